"""`rows_from_events`: transcript rows from the events of a turn."""

from __future__ import annotations

from hypothesis import given, strategies as st

from hermes.events import (
    AssistantMessage,
    ReasoningDelta,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from hermes.messages import Message, ToolCall
from hermes.transcript.render import is_valid, render
from hermes.transcript.rows import INTERRUPTED, rows_from_events


def call(id_):
    return ToolCall(id_, "look")


def calls(*ids, text=None, **rest):
    return Message("assistant", text, tool_calls=tuple(map(call, ids)), **rest)


def started(*ids):
    return [ToolStarted(call(id_)) for id_ in ids]


def result(id_, text):
    return Message("tool", text, tool_call_id=id_, tool_name="look")


def test_an_agent_that_only_returns_a_text():
    assert rows_from_events([], "hi") == [Message("assistant", "hi")]
    assert rows_from_events([], None) == rows_from_events([], "") == []


def test_deltas_are_joined_and_the_final_text_replaces_them():
    log = [ReasoningDelta("be"), TextDelta("he"), ReasoningDelta("cause"), TextDelta("llo")]
    assert rows_from_events(log, None) == [Message("assistant", "hello", reasoning="because")]
    assert rows_from_events(log, "bye") == [Message("assistant", "bye", reasoning="because")]


def test_a_restart_discards_the_text_before_it():
    log = [TextDelta("wrong"), TextDelta("ignored", restart=True), TextDelta("right")]
    assert rows_from_events(log, None) == [Message("assistant", "right")]


def test_results_follow_their_message_in_the_order_of_the_calls():
    log = [
        TextDelta("let me see"),
        *started("1", "2"),
        ToolFinished("2", "second"),
        ToolFinished("1", "first"),
        TextDelta("found"),
    ]
    asked = [calls("1", "2", text="let me see"), result("1", "first"), result("2", "second")]
    assert rows_from_events(log, None) == [*asked, Message("assistant", "found")]
    assert rows_from_events(log[:-1], "found") == [*asked, Message("assistant", "found")]


def test_a_call_without_a_result_was_interrupted():
    log = [*started("1", "2"), ToolFinished("2", "second")]
    assert rows_from_events(log, None) == [
        calls("1", "2"), result("1", INTERRUPTED), result("2", "second"),
    ]  # fmt: skip


def test_a_complete_message_of_the_agent_is_stored_as_it_is():
    message = calls("1", text="thinking", reasoning="r", provider_data={"id": "x"})
    log = [TextDelta("thin"), AssistantMessage(message), *started("1"), ToolFinished("1", "ok")]
    assert rows_from_events(log, "done") == [
        message, result("1", "ok"), Message("assistant", "done"),
    ]  # fmt: skip


def test_steered_input_follows_the_text_and_the_results_before_it():
    steer = Message("user", "hurry")
    log = [TextDelta("a"), Steered(steer), TextDelta("b")]
    assert rows_from_events(log, None) == [
        Message("assistant", "a"), steer, Message("assistant", "b"),
    ]  # fmt: skip
    log = [*started("1"), Steered(steer), ToolFinished("1", "late")]
    assert rows_from_events(log, "done") == [
        calls("1"), result("1", "late"), steer, Message("assistant", "done"),
    ]  # fmt: skip
    assert rows_from_events([Steered(steer)], None) == [steer]


EVENTS = st.one_of(
    st.sampled_from("abc").map(TextDelta),
    st.just(ReasoningDelta("r")),
    st.sampled_from("1234").map(lambda id_: ToolStarted(ToolCall(id_, "t"))),
    st.sampled_from("1234").map(lambda id_: ToolFinished(id_, f"result {id_}")),
    st.sampled_from("xy").map(lambda text: Steered(Message("user", text))),
)


@given(st.lists(EVENTS, max_size=12), st.sampled_from([None, "the end"]))
def test_the_rows_of_any_sequence_of_events_are_valid_model_input(log, text):
    rows = [Message("user", "asked"), *rows_from_events(log, text)]
    assert is_valid(render(rows)) is None
    steered = [event.message.content for event in log if isinstance(event, Steered)]
    assert [row.content for row in rows[1:] if row.role == "user"] == steered
    said = "".join(row.content or "" for row in rows if row.role == "assistant")
    if text is None:
        assert said == "".join(event.text for event in log if isinstance(event, TextDelta))
    else:
        assert said.endswith(text)


def test_a_tool_result_after_steered_input_is_kept():
    log = [*started("a"), Steered(Message("user", "hurry")), ToolFinished("a", "found")]
    shown = render([Message("user", "asked"), *rows_from_events(log, "done")])
    assert is_valid(shown) is None
    assert [row.content for row in shown if row.role == "tool"] == ["found"]
