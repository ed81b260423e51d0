"""A line per turn, counters, and the files that tell how a bot is doing."""

from __future__ import annotations

import json
import stat
from contextlib import asynccontextmanager

import pytest
import trio

from hermes.errors import ContextOverflow
from hermes.events import TextDelta, ToolFinished, ToolStarted
from hermes.messages import Inbound, Source, ToolCall, TurnResult, Usage
from hermes.run import status
from hermes.run.metrics import Metrics
from hermes.run.telemetry import MAX_TURNS, TurnLog, open_telemetry
from hermes.testing import DeterministicCompressor, MemoryAdapter, ScriptedAgent

BODY = "nobody shall read this"
USAGE = Usage(input_tokens=10, output_tokens=3, cache_read_tokens=7, cost=0.25)
TELEGRAM = Source(platform="telegram", chat_id="5", user_id="7", user_name=BODY)


class Lines:
    """What was written, and a way to wait for more of it."""

    def __init__(self):
        self.all = []
        self._more = trio.Event()

    def __call__(self, event, **values):
        self.all.append((event, values))
        self._more.set()

    def named(self, event):
        return [values for name, values in self.all if name == event]

    async def wait(self, event, count=1):
        with trio.fail_after(30):
            while len(self.named(event)) < count:
                self._more = trio.Event()
                await self._more.wait()
        return self.named(event)


@asynccontextmanager
async def watched(path, start, script, lines, **options):
    async with open_telemetry(path, write=lines, **options.pop("watch", {})) as watch:
        async with start(agent=lambda _: ScriptedAgent(script), **options) as runtime:
            watch.begin(runtime)
            yield runtime


async def test_a_turn_is_one_line_with_its_numbers_and_none_of_its_words(path, start):
    lines = Lines()
    calls = [
        ToolStarted(ToolCall("1", "search", f'{{"q": "{BODY}"}}')),
        ToolFinished("1", BODY),
        ToolStarted(ToolCall("2", f"no such tool: {BODY}")),
        ToolFinished("2", BODY),
        TextDelta(BODY),
    ]
    script = [[*calls, TurnResult(text=BODY, usage=[USAGE, USAGE])], BODY]
    async with watched(path, start, script, lines) as runtime:
        reply = await runtime.ask("k", BODY, source=TELEGRAM)
        await runtime.ask("k", BODY, source=TELEGRAM)
    first, second = await lines.wait("turn", 2)
    times = {name: first.pop(name) for name in ("queued", "ran", "total")}
    assert first == {
        "session_key": "k",
        "session_id": reply.session_id,
        "turn_id": 1,
        "platform": "telegram",
        "status": "complete",
        "agent": "cold",
        "calls": 2,
        "input_tokens": 20,
        "output_tokens": 6,
        "cached_tokens": 14,
        "cost": 0.5,
        "tools": ["search", "?"],
        "steered": 0,
    }
    assert times["total"] == pytest.approx(times["queued"] + times["ran"], abs=0.002)
    assert (second["agent"], second["calls"], second["cost"]) == ("reused", 0, None)
    assert BODY not in repr(lines.all)


async def test_how_long_a_message_waited_is_told(path, start, world):
    lines = Lines()
    begun, go = trio.Event(), trio.Event()

    async def wait(turn):
        begun.set()
        await go.wait()

    async with watched(path, start, [wait], lines) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.ask, "k", "one")
            await begun.wait()
            accepted = trio.Event()

            async def ask_more():
                async with runtime.stream("k", "two") as stream:
                    accepted.set()
                    async for _ in stream:
                        pass

            nursery.start_soon(ask_more)
            await accepted.wait()
            with trio.fail_after(30):
                while (await runtime.facts()).inbox_open < 2:
                    await trio.lowlevel.checkpoint()
            assert runtime.statistics().running == 1
            world.pass_time(42)
            assert (await runtime.facts()).inbox_oldest_seconds == 42
            go.set()
    first, second = await lines.wait("turn", 2)
    assert (first["queued"], second["queued"]) == (0, 42)
    assert second["total"] >= 42


@pytest.mark.parametrize(
    ("step", "status_", "kind"),
    [
        (KeyError(BODY), "failed", "KeyError"),
        (ExceptionGroup(BODY, [ValueError(BODY)]), "failed", "ValueError"),
        (TurnResult(failed=True, error=BODY), "failed", "agent"),
        (TurnResult(text=BODY, interrupted=True), "interrupted", None),
        ("fine", "complete", None),
    ],
)
async def test_what_failed_is_told_by_its_class(path, start, step, status_, kind):
    lines = Lines()
    async with watched(path, start, [step], lines) as runtime:
        reply = await runtime.ask("k", "hello")
        assert reply.error_kind == kind
        statistics = runtime.statistics()
    [line] = await lines.wait("turn")
    assert (line["status"], line.get("error")) == (status_, kind)
    assert BODY not in repr(lines.all)
    assert statistics.turns == {status_: 1}
    assert statistics.errors == ({} if kind is None else {kind: 1})
    assert (statistics.last_error is None) == (kind is None)


async def test_commands_moves_and_notices_are_lines_without_words(path, start):
    lines = Lines()
    async with watched(
        path, start, ["fine", ContextOverflow(BODY), "again"], lines,
        compressor=DeterministicCompressor(),
    ) as runtime:  # fmt: skip
        await runtime.ask("k", BODY)
        await runtime.ask("k", f"/title {BODY}")
        await runtime.compress("k")
        await runtime.ask("k", f"/new {BODY}")
    turns = await lines.wait("turn", 3)
    assert [line["status"] for line in turns] == ["complete", "command", "command"]
    assert "agent" not in turns[1]  # no agent was asked
    reasons = [line["reason"] for line in lines.named("session moved")]
    assert "session_reset" in reasons
    assert BODY not in repr(lines.all)


async def test_turns_that_end_while_the_runtime_drains_have_their_line(path, start):
    lines = Lines()
    begun = trio.Event()

    async def slowly(turn):
        begun.set()
        for _ in range(20):
            await trio.lowlevel.checkpoint()

    async with watched(path, start, [slowly], lines) as runtime:
        await runtime.submit(Inbound("k", "e1", "hello"))
        await begun.wait()
    assert [line["status"] for line in lines.named("turn")] == ["complete"]


async def test_a_line_that_cannot_be_written_ends_nothing(path, start, caplog):
    def fail(event, **values):
        raise OSError(BODY)

    async with watched(path, start, ["one", "two"], fail) as runtime:
        assert (await runtime.ask("k", "a")).text == "one"
        assert (await runtime.ask("k", "b")).text == "two"
    assert caplog.text.count("an event could not be told of") == 2


async def test_turns_whose_end_is_never_heard_of_are_forgotten(path, start):
    from hermes.events import Envelope, TurnStarted

    async with start() as runtime:
        with runtime.events() as events:
            log = TurnLog(events, Lines())
            for number in range(MAX_TURNS + 5):
                log.hear(Envelope(number, "k", number, TurnStarted(number, "s", None)))
            assert len(log._turns) == MAX_TURNS


async def test_lost_events_are_told_of(path, start):
    from hermes.actors.event_bus import MAX_HEARD
    from hermes.events import Notice

    lines = Lines()
    async with start() as runtime:
        with runtime.events(pieces=False) as events:
            for _ in range(MAX_HEARD + 3):
                runtime._context.publish("k", None, Notice(BODY))
        await TurnLog(events, lines).run()
    assert lines.named("events were lost") == [{"count": 3}]
    assert len(lines.named("notice")) == MAX_HEARD
    assert BODY not in repr(lines.all)


async def test_who_wants_no_pieces_hears_none(path, start):
    async with start(agent=lambda _: ScriptedAgent([[TextDelta("a"), TextDelta("b"), "ab"]])) as r:
        with r.events(pieces=False) as events:
            await r.ask("k", "hello")
        assert [type(each.event).__name__ async for each in events] == ["TurnStarted", "TurnEnded"]


async def test_reuses_builds_tokens_and_commits_are_counted(path, start):
    lines = Lines()
    script = [TurnResult(text="x", usage=[USAGE])] * 3
    async with watched(path, start, script, lines) as runtime:
        for _ in range(3):
            await runtime.ask("k", "hello")
        seen = runtime.statistics()
    assert (seen.builds, seen.reuses, seen.turns) == ({"cold": 1}, 2, {"complete": 3})
    assert (seen.spending.calls, seen.spending.input_tokens) == (3, 30)
    assert (seen.spending.output_tokens, seen.spending.cached_tokens) == (9, 21)
    assert seen.spending.cost == 0.75
    commits = seen.commits
    assert commits.count == 3
    assert 0 < commits.p50 <= commits.p99 <= commits.longest <= commits.total


# The files


async def test_the_status_file_is_there_while_it_runs_and_gone_after(path, start, tmp_path):
    lines, prom = Lines(), tmp_path / "hermes.prom"
    watch = {"prometheus_file": prom, "seconds": 0.01, "adapters": lambda: {"telegram": "up"}}
    adapter = MemoryAdapter("telegram")
    async with watched(path, start, ["x"] * 3, lines, watch=watch, adapters=[adapter]) as runtime:
        await runtime.ask("k", "hello", source=TELEGRAM)
        facts = await eventually(path, lambda facts: facts.turns.get("complete") == 1)
        assert facts.adapters == {"telegram": "up"}
        assert facts.builds == {"cold": 1}
        assert facts.wal_bytes > 0
        assert facts.database_bytes > 0
        assert facts.uptime_seconds >= 0
        for file in (status.status_path(path), prom):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        await file_with(prom, 'hermes_turns_total{status="complete"} 1')
    assert not status.status_path(path).exists()
    assert not prom.exists()
    assert not list(tmp_path.glob("*.partial"))


async def test_after_a_failure_the_status_file_stays(path, start):
    with pytest.raises(ZeroDivisionError):
        async with watched(path, start, ["x"], Lines(), watch={"seconds": 0.01}) as runtime:
            await runtime.ask("k", "hello")
            await eventually(path, lambda facts: facts.turns.get("complete") == 1)
            raise ZeroDivisionError
    facts = status.read(status.status_path(path))
    assert facts.turns == {"complete": 1}


async def test_a_status_that_cannot_be_written_stops_nobody_and_is_told_of_once(
    path, start, tmp_path, caplog
):
    watch = {"prometheus_file": tmp_path / "no folder" / "x", "seconds": 0.001}
    async with watched(path, start, ["x"], Lines(), watch=watch) as runtime:
        assert (await runtime.ask("k", "hello")).text == "x"
        first = await eventually(path, lambda _: True)
        await eventually(path, lambda facts: facts.written_at > first.written_at)
    assert caplog.text.count("the status cannot be written") == 1


async def eventually(path, wanted):
    """The facts in the file, once they are as they should be."""
    with trio.fail_after(30):
        while True:
            try:
                facts = status.read(status.status_path(path))
            except status.Unreadable:
                facts = None
            if facts is not None and wanted(facts):
                return facts
            await trio.sleep(0.005)


async def file_with(path, text):
    with trio.fail_after(30):
        while text not in (content := path.read_text()):  # noqa: ASYNC110 - it is a file
            await trio.sleep(0.005)
    return content


def test_facts_are_read_as_they_were_written(path):
    facts = Metrics(version="1", pid=2, started_at=3.0, written_at=4.0, errors={"x": 1})
    status.write(path, status.encoded(facts))
    assert status.read(path) == facts
    assert json.loads(path.read_text())["format"] == 1
