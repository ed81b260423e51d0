"""Output items: a stream ends with exactly what the store has."""

from __future__ import annotations

import msgspec
from hypothesis import given, strategies as st

from hermes.adapters.http.openai.responses.item_stream import ItemStream, whole_item
from hermes.adapters.http.openai.responses.items import bodies_of, output_of
from hermes.adapters.http.openai.responses.outcomes import lost_items, recorded
from hermes.events import (
    ReasoningDelta,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)
from hermes.messages import Message, Reply, StoredMessage, StoredResponse, ToolCall
from hermes.transcript.rows import rows_from_events

ID = "resp_" + "a" * 32
words = st.text("ab ", min_size=1, max_size=3)
call_ids = st.sampled_from(["c1", "c2", "c3"])
events = st.lists(
    st.one_of(
        st.builds(TextDelta, words),
        st.builds(TextDelta, words, st.just(True)),
        st.builds(ReasoningDelta, words),
        st.builds(lambda call: ToolStarted(ToolCall(call, "look", "{}")), call_ids),
        st.builds(ToolFinished, call_ids, words),
        st.builds(lambda text: Steered(Message("user", text)), words),
        st.just(TurnStarted(1, "s", None)),
    ),
    max_size=12,
)
statuses = st.sampled_from(["complete", "partial", "failed", "interrupted", "withdrawn"])


def a_response(reply=None, items=()):
    return StoredResponse(
        id=ID, credential="tok", session_key="k", session_id="s", inbox_id=1, path="/v1/responses",
        digest="", idempotency_key=None, echo={}, stored=True, created_at=0.0, connection="open",
        reply=reply, items=tuple(items),
    )  # fmt: skip


def stored(rows):
    """The rows as they are read back."""
    question = Message("user", "?")
    return [
        msgspec.convert(
            {"content": None, **msgspec.to_builtins(row), "id": number, "timestamp": 0.0},
            StoredMessage,
        )
        for number, row in enumerate([question, *rows], 1)
    ]


def play(stream_events, output=None):
    """The items that a client has after these events. It checks their order."""
    items = dict(enumerate(output or []))
    for event in stream_events:
        index, kind = event["output_index"], event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert index not in items
            items[index] = event["item"]
        elif kind == "output_item.done":
            assert items[index]["id"] == event["item"]["id"]
            items[index] = event["item"]
        elif kind.endswith("text.delta"):
            assert items[index]["id"] == event["item_id"]
            content = items[index]["content"] = list(items[index]["content"])
            content[0] = {**content[0], "text": content[0]["text"] + event["delta"]}
        elif kind == "content_part.added":
            items[index] = {**items[index], "content": [event["part"]]}
        elif kind.endswith("text.done"):
            content = items[index]["content"]
            assert content[0]["text"].strip() == event["text"].strip()
            items[index]["content"] = [{**content[0], "text": event["text"]}]
    return [items[index] for index in range(len(items))]


@given(
    first=st.one_of(st.none(), events),
    run=events,
    text=st.one_of(st.none(), words),
    status=statuses,
)
def test_a_stream_ends_with_what_the_store_has(first, run, text, status):
    before = {}
    if first is not None:  # an attempt that a crash ended
        lost = ItemStream(ID, {})
        for event in first:
            list(lost.feed(event))
        before = lost_items(a_response(items=recorded(lost.seen(), 0)))
        assert all(item["status"] == "incomplete" for item in before.values())
    live = ItemStream(ID, before)
    seen = list(before.values())
    streamed = [each for event in run for each in live.feed(event)]
    started = [n for n, event in enumerate(run) if isinstance(event, TurnStarted)]
    kept = run[started[-1] + 1 :] if started else run
    rows = stored(rows_from_events(kept, text if status == "complete" else None))
    answer = rows[-1].content if rows[-1].role == "assistant" else None
    reply = Reply(text=text or answer or "", session_id="s", turn_id=1, status=status)
    bodies = bodies_of(ID, rows, reply)
    streamed += live.finish(bodies)
    response = a_response(reply, recorded(live.lost, 0))
    output = output_of(ID, lost_items(response), bodies)
    assert live.output == output
    assert play(streamed, seen) == output
    assert len({item["id"] for item in output}) == len(output)
    calls = [item["call_id"] for item in output if item["type"] == "function_call"]
    assert len(set(calls)) == len(calls)
    replayed = [event for n, item in enumerate(output) for event in whole_item(n, item)]
    assert play(replayed) == output


@given(run=events)
def test_what_a_crash_left_does_not_count_if_the_turn_was_committed(run):
    live = ItemStream(ID, {})
    for event in run:
        list(live.feed(event))
    response = a_response(Reply(text="", session_id="s", turn_id=1), recorded(live.seen(), 0))
    assert lost_items(response) == live.lost


def test_a_call_id_that_is_used_again_is_renamed():
    pair = [ToolStarted(ToolCall("c1", "look", "{}")), ToolFinished("c1", "one")]
    lost = ItemStream(ID, {})
    for event in pair:
        list(lost.feed(event))
    live = ItemStream(ID, lost_items(a_response(items=recorded(lost.seen(), 0))))
    for event in [*pair, *pair]:
        list(live.feed(event))
    assert [item["call_id"] for item in live.output] == [
        "c1", "c1", "c1_2", "c1_2", "c1_3", "c1_3",
    ]  # fmt: skip


def test_pairs_are_shown_in_the_order_of_their_calls():
    live = ItemStream(ID, {})
    run = [
        ToolStarted(ToolCall("c1", "slow")), ToolStarted(ToolCall("c2", "fast")),
        ToolFinished("c2", "two"), ToolFinished("c1", "one"),
    ]  # fmt: skip
    shown = [len(list(live.feed(event))) for event in run]
    assert shown == [0, 0, 0, 12]
    kinds = [(item["type"], item["call_id"]) for item in live.output]
    assert kinds == [
        ("function_call", "c1"), ("function_call_output", "c1"),
        ("function_call", "c2"), ("function_call_output", "c2"),
    ]  # fmt: skip
