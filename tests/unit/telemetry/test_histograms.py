"""Histograms: what is counted of a turn, and how the series stay few."""

from __future__ import annotations

import pytest

from hermes.events import (
    AssistantMessage,
    Envelope,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Message, Reply, ToolCall, Usage
from hermes.telemetry.histograms import MAX_SERIES, Histogram, TurnHistograms
from hermes.telemetry.turn_records import MAX_STEPS, TurnRecorder

CALL = ToolCall("c1", "look", "{}")


def envelope(event, turn_id=1, key="k"):
    return Envelope(0, key, turn_id, event)


def started(turn_id=1):
    return TurnStarted(turn_id, "s", None, waited=3.0)


def ended(turn_id=1, usage=(), status="complete"):
    reply = Reply(text="", session_id="s", turn_id=turn_id, usage=usage, status=status)
    return TurnEnded(reply, platform="telegram")


@pytest.fixture
def records():
    return []


@pytest.fixture
def recorder(records):
    return TurnRecorder(lambda record, event: records.append(record))


async def play(recorder, clock, *events):
    """Give events to a recorder; a number lets so many seconds pass."""
    for event in events:
        if isinstance(event, float):
            clock.jump(event)
        else:
            recorder.receive(envelope(event))


def test_a_bucket_counts_what_is_smaller_too():
    histogram = Histogram((0.1, 1.0), "platform")
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(seconds, "console")
    assert list(histogram.samples()) == [
        ("_bucket", {"platform": "console", "le": "0.1"}, 2.0),
        ("_bucket", {"platform": "console", "le": "1"}, 3.0),
        ("_bucket", {"platform": "console", "le": "+Inf"}, 4.0),
        ("_sum", {"platform": "console"}, 7.65),
        ("_count", {"platform": "console"}, 4.0),
    ]


def test_the_number_of_series_is_limited():
    histogram = Histogram((1.0,), "model")
    for number in range(2 * MAX_SERIES):
        histogram.observe(0.5, f"m{number}")
    series = {labels["model"] for _, labels, _ in histogram.samples()}
    assert len(series) == MAX_SERIES + 1
    assert "other" in series


async def test_the_steps_of_a_turn_are_timed(recorder, records, mock_clock):
    message = AssistantMessage(Message("assistant", None, tool_calls=(CALL,)))
    await play(
        recorder, mock_clock, started(), 1.0, ReasoningDelta("hm"), 1.0, Retrying(1.0, "again"),
        1.0, message, ToolStarted(CALL), 5.0, ToolFinished("c1", "seen", failed=True), 2.0,
        TextDelta("a"), 1.0, TextDelta("b"), 3.0, ended(),
    )  # fmt: skip
    [record] = records
    first, last = record.steps
    begin = record.started
    assert (first.first_token, first.ended, first.retries) == (begin + 1, begin + 3, 1)
    assert (last.started, last.first_token, last.ended) == (begin + 8, begin + 10, begin + 11)
    [run] = record.tools
    assert (run.name, run.started, run.ended, run.failed) == ("look", begin + 3, begin + 8, True)
    assert record.ended == begin + 14


async def test_a_turn_that_starts_again_keeps_its_first_start(recorder, records, mock_clock):
    await play(recorder, mock_clock, started(), 2.0, started(), 2.0, ended())
    assert [record.ended - record.started for record in records] == [4.0]


async def test_what_was_refused_or_is_unknown_is_left_out(recorder, records, mock_clock):
    await play(recorder, mock_clock, ended(), TextDelta("x"), ToolFinished("c", "x"))
    assert records == []


async def test_memory_is_bounded(records):
    recorder = TurnRecorder(lambda record, event: records.append(record), limit=5)
    for turn_id in range(10):
        recorder.receive(envelope(started(turn_id), turn_id))
    for turn_id in range(10):
        recorder.receive(envelope(ended(turn_id), turn_id))
    assert [record.event.turn_id for record in records] == [5, 6, 7, 8, 9]
    recorder.receive(envelope(started()))
    for _ in range(2 * MAX_STEPS):
        recorder.receive(envelope(AssistantMessage(Message("assistant", None))))
        recorder.receive(envelope(ToolStarted(CALL)))
        recorder.receive(envelope(ToolFinished("c1", "seen")))
    recorder.receive(envelope(ended()))
    assert len(records[-1].steps) == len(records[-1].tools) == MAX_STEPS


async def test_only_calls_of_models_are_calls(mock_clock):
    histograms = TurnHistograms()
    usage = (Usage(model="m1"), Usage(model="m2", purpose="compression"))
    await play(histograms, mock_clock, started(), 1.0, TextDelta("a"), ended(usage=usage))
    await play(histograms, mock_clock, started(), 1.0, ended(status="failed"))
    counts = {
        name: [(labels, value) for suffix, labels, value in family if suffix == "_count"]
        for name, family in {
            "calls": histograms.calls.samples(),
            "queue": histograms.queue.samples(),
        }.items()
    }
    assert counts == {
        "calls": [({"model": "m1"}, 1.0)],
        "queue": [({"platform": "telegram"}, 2.0)],
    }
