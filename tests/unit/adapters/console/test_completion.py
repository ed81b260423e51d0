"""Completion of commands and sessions."""

from __future__ import annotations

from hermes.actors.commands import COMMANDS
from hermes.adapters.console.chat import NamedSession
from hermes.adapters.console.completion import choices
from hermes.texts import ENGLISH, help_line


def summary(title, id_="20260101_000000_0000abcd"):
    return NamedSession(id_, title)


def test_a_slash_offers_the_commands_with_their_summaries():
    offered = [each.text for each in choices("/", [])]
    assert offered == [f"/{name}" for name in COMMANDS if name != "start"]  # of Telegram
    (only,) = choices("/sta", [])
    _, summary = help_line(ENGLISH, "status")
    assert (only.text, only.replaces, only.summary) == ("/status", 4, summary)
    assert choices("say /", []) == []
    assert choices("/stop\n", []) == []


def test_sessions_are_offered_by_title_or_else_by_id():
    sessions = [
        summary("A talk"),
        summary(None, "20260102_x"),
        summary("42", "z1"),
        summary("\x1b", "z2"),
    ]
    texts = [each.text for each in choices("/resume ", sessions)]
    assert texts == ["A talk", "20260102_x", "z1", "z2"]
    assert [each.text for each in choices("/resume a t", sessions)] == ["A talk"]
    assert choices("/resume a t", sessions)[0].replaces == 3
    assert [each.text for each in choices("/resume 20260102", sessions)] == ["20260102_x"]
