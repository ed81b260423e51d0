"""Redaction of the events of a turn, without a runtime."""

from __future__ import annotations

from hermes import Inbound
from hermes.actors.session.running_turn import RunningTurn
from hermes.context import TurnContext
from hermes.events import (
    Steered,
    TextDelta,
)
from hermes.messages import InboxRow
from hermes.redaction import ValueRedactor, as_redactor

SECRET = "hush-hush-7"


REDACT = ValueRedactor([SECRET])


def running(redact, published):
    row = InboxRow(7, Inbound("k", "e", "one"), 0, 0.0)
    return RunningTurn(
        TurnContext("k", "s", 7), [row], [row.message], published.append, redact=as_redactor(redact)
    )


def test_withheld_text_is_published_before_a_steering_message():
    turn = running(REDACT, published := [])
    turn.emit(TextDelta("hush"))
    turn.steer(InboxRow(8, Inbound("k", "f", f"say {SECRET}"), 0, 0.0))
    [said] = turn.steered()
    assert published == [TextDelta("hush"), Steered(said, (8,))]
    assert said.content == f"say {SECRET}", "messages of users are not redacted"


def test_a_failing_redactor_does_not_prevent_a_restart(caplog):
    def redact(text):
        raise ValueError("nothing")

    turn = running(redact, published := [])
    turn.close()
    turn.restart()
    assert (published, caplog.text) == ([], ""), "there was nothing to redact"
    turn = running(redact, published)
    turn.emit(TextDelta("x"))
    turn.restart()
    assert published == []
    assert "the end of a text was not published" in caplog.text


def test_after_a_restart_the_text_starts_again():
    """An overflow runs the agent again; withheld text belongs to the first run."""
    turn = running(REDACT, published := [])
    turn.emit(TextDelta("hush-"))
    turn.restart()
    assert turn.published_text == ""
    turn.emit(TextDelta("hush-7 "))
    turn.close()
    assert published == [TextDelta("hush-"), TextDelta("hush-7 ")]
    assert turn.published_text == "hush-7 "
