"""Telemetry: a log line per turn, counters, and the status files."""

from __future__ import annotations

import json
import stat
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes.errors import ContextOverflow
from hermes.events import Envelope, Notice, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Inbound, Source, ToolCall, TurnResult, Usage
from hermes.run import status
from hermes.run.telemetry import MAX_TURNS, Telemetry, TurnLog
from hermes.telemetry.metrics import Metrics
from hermes.testing import DeterministicCompressor, MemoryAdapter, ScriptedAgent, inspect

BODY = "nobody shall read this"
USAGE = Usage(input_tokens=10, output_tokens=3, cache_read_tokens=7, cost=0.25)
TELEGRAM = Source(platform="telegram", chat_id="5", user_id="7", user_name=BODY)


class Lines:
    """The logged events, and a way to wait for more."""

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
async def observed(path, start, script, lines, **options):
    telemetry = Telemetry(path=path, log_event=lines, **options.pop("telemetry", {}))
    opening = start(build_agent=lambda _: ScriptedAgent(script), **options)
    async with telemetry.observe(opening) as runtime:
        yield runtime


async def test_a_turn_is_one_line_with_its_numbers_and_without_content(path, start):
    lines = Lines()
    calls = [
        ToolStarted(ToolCall("1", "search", f'{{"q": "{BODY}"}}')),
        ToolFinished("1", BODY),
        ToolStarted(ToolCall("2", f"no such tool: {BODY}")),
        ToolFinished("2", BODY),
        TextDelta(BODY),
    ]
    script = [[*calls, TurnResult(text=BODY, usage=[USAGE, USAGE])], BODY]
    async with observed(path, start, script, lines) as runtime:
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


async def test_metadata_and_posts_are_logged(path, start):
    lines = Lines()
    async with observed(path, start, ["one", "two"], lines) as runtime:
        reply = await runtime.ask("k", BODY, metadata={"tenant": "acme"})
        await runtime.ask("k", BODY)
        await runtime.post("k", BODY)
    first, second = await lines.wait("turn", 2)
    assert first["metadata"] == {"tenant": "acme"}
    assert "metadata" not in second
    [posted] = await lines.wait("message posted")
    assert posted == {"session_key": "k", "turn_id": None, "session_id": reply.session_id}
    assert BODY not in repr(lines.all)


async def test_the_time_a_message_waited_is_logged(path, start, world):
    lines = Lines()
    begun, go = trio.Event(), trio.Event()

    async def wait(turn):
        begun.set()
        await go.wait()

    async with observed(path, start, [wait], lines) as runtime:
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
                while (await runtime.admin.statistics()).store.inbox_open < 2:
                    await trio.lowlevel.checkpoint()
            assert (await runtime.admin.statistics()).running == 1
            world.pass_time(42)
            statistics = await runtime.admin.statistics()
            assert statistics.store.inbox_oldest_seconds == 42
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
async def test_a_failure_is_logged_by_its_class(path, start, step, status_, kind):
    lines = Lines()
    async with observed(path, start, [step], lines) as runtime:
        reply = await runtime.ask("k", "hello")
        assert reply.error_kind == kind
        statistics = await runtime.admin.statistics()
    [line] = await lines.wait("turn")
    assert (line["status"], line.get("error")) == (status_, kind)
    assert BODY not in repr(lines.all)
    assert statistics.turns == {status_: 1}
    assert statistics.errors == ({} if kind is None else {kind: 1})
    assert (statistics.last_error is None) == (kind is None)


async def test_commands_session_changes_and_notices_are_logged_without_content(path, start):
    lines = Lines()
    async with observed(
        path, start, ["fine", ContextOverflow(BODY), "again"], lines,
        compressor=DeterministicCompressor(),
    ) as runtime:  # fmt: skip
        await runtime.ask("k", BODY)
        await runtime.ask("k", f"/title {BODY}")
        await runtime.conversation("k").compress()
        await runtime.ask("k", f"/new {BODY}!")
    turns = await lines.wait("turn", 3)
    assert [line["status"] for line in turns] == ["complete", "command", "command"]
    assert "agent" not in turns[1]  # no agent ran
    reasons = [line["reason"] for line in lines.named("session moved")]
    assert "session_reset" in reasons
    assert BODY not in repr(lines.all)


async def test_turns_that_end_while_the_runtime_drains_are_logged(path, start):
    lines = Lines()
    begun = trio.Event()

    async def slowly(turn):
        begun.set()
        for _ in range(20):
            await trio.lowlevel.checkpoint()

    async with observed(path, start, [slowly], lines) as runtime:
        await runtime.submit(Inbound("k", "e1", "hello"))
        await begun.wait()
    assert [line["status"] for line in lines.named("turn")] == ["complete"]


async def test_all_events_are_logged_before_the_block_ends(path):
    """Also if they were published while the runtime closed, and arrive one by one."""
    closed, lines = trio.Event(), Lines()

    class Events:
        lost = 0

        async def __aiter__(self):
            await closed.wait()
            for number in range(3):
                await trio.lowlevel.checkpoint()
                yield Envelope(number, "k", None, Notice(BODY))

    @asynccontextmanager
    async def closing():
        yield SimpleNamespace(subscribe=lambda **_: Events())
        closed.set()

    async with Telemetry(path=path, log_event=lines).observe(closing()):
        await wait_all_tasks_blocked()
    assert len(lines.named("notice")) == 3


async def test_the_state_of_the_host_has_its_platforms_servers_and_models(path, start):
    telemetry = Telemetry(
        path=path, log_event=Lines(), model="m", dropped=lambda: 3,
        adapters=lambda: {"telegram": f"refused: {BODY}"},
        mcp_servers=lambda: {"files": "running"},
        redact=lambda text: text.replace(BODY, "..."),
    )  # fmt: skip
    opening = start(build_agent=lambda _: ScriptedAgent([TurnResult(text="a", usage=[USAGE])]))
    async with telemetry.observe(opening) as runtime:
        await runtime.ask("k", "hello")
        state = telemetry.collected(runtime).host_status()
    assert (state.model, state.log_lines_dropped) == ("m", 3)
    assert state.channels == {"telegram": "refused: ..."}
    assert state.mcp_servers == {"files": "running"}
    assert [(each.model, each.calls) for each in state.models] == [(USAGE.model, 1)]


async def test_a_failing_log_does_not_end_the_runtime(path, start, caplog):
    def fail(event, **values):
        raise OSError(BODY)

    async with observed(path, start, ["one", "two"], fail) as runtime:
        assert (await runtime.ask("k", "a")).text == "one"
        assert (await runtime.ask("k", "b")).text == "two"
    assert caplog.text.count("could not log an event") == 2


async def test_turns_whose_end_was_lost_are_forgotten(path, start):
    from hermes.events import TurnStarted

    async with start() as runtime:
        with runtime.subscribe() as events:
            log = TurnLog(events, Lines())
            for number in range(MAX_TURNS + 5):
                log.handle(Envelope(number, "k", number, TurnStarted(number, "s", None)))
            assert len(log._turns) == MAX_TURNS


async def test_lost_events_are_logged(path, start):
    from hermes.actors.event_bus import MAX_BUFFERED

    lines = Lines()
    async with start() as runtime:
        with runtime.subscribe(deltas=False) as events:
            for _ in range(MAX_BUFFERED + 3):
                inspect(runtime).publish("k", None, Notice(BODY))
        await TurnLog(events, lines).run()
    assert lines.named("events lost") == [{"count": 3}]
    assert len(lines.named("notice")) == MAX_BUFFERED
    assert BODY not in repr(lines.all)


async def test_a_subscription_without_deltas_gets_none(path, start):
    async with start(
        build_agent=lambda _: ScriptedAgent([[TextDelta("a"), TextDelta("b"), "ab"]])
    ) as r:
        with r.subscribe(deltas=False) as events:
            await r.ask("k", "hello")
        assert [type(each.event).__name__ async for each in events] == ["TurnStarted", "TurnEnded"]


async def test_reuses_builds_tokens_and_commits_are_counted(path, start):
    lines = Lines()
    script = [TurnResult(text="x", usage=[USAGE])] * 3
    async with observed(path, start, script, lines) as runtime:
        for _ in range(3):
            await runtime.ask("k", "hello")
        seen = await runtime.admin.statistics()
    assert (seen.builds, seen.reuses, seen.turns) == ({"cold": 1}, 2, {"complete": 3})
    assert (seen.spending.calls, seen.spending.input_tokens) == (3, 30)
    assert (seen.spending.output_tokens, seen.spending.cached_tokens) == (9, 21)
    assert seen.spending.cost == 0.75
    commits = seen.commits
    assert commits.count == 3
    assert 0 < commits.p50 <= commits.p99 <= commits.longest <= commits.total


# Files


async def test_the_status_file_exists_while_the_runtime_is_open(path, start, tmp_path):
    lines, prom = Lines(), tmp_path / "hermes.prom"
    options = {"prometheus_file": prom, "interval": 0.01, "adapters": lambda: {"telegram": "up"}}
    adapter = MemoryAdapter("telegram")
    async with observed(
        path, start, ["x"] * 3, lines, telemetry=options, adapters=[adapter]
    ) as runtime:
        await runtime.ask("k", "hello", source=TELEGRAM)
        metrics = await eventually(path, lambda metrics: metrics.turns.get("complete") == 1)
        assert metrics.adapters == {"telegram": "up"}
        assert metrics.builds == {"cold": 1}
        assert metrics.wal_bytes > 0
        assert metrics.database_bytes > 0
        assert metrics.uptime_seconds >= 0
        for file in (status.status_path(path), prom):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        await file_with(prom, 'hermes_turns_total{status="complete"} 1.0')
    assert not status.status_path(path).exists()
    assert not prom.exists()
    assert not list(tmp_path.glob("*.partial"))


async def test_after_a_failure_the_status_file_remains(path, start):
    with pytest.raises(ZeroDivisionError):
        async with observed(path, start, ["x"], Lines(), telemetry={"interval": 0.01}) as runtime:
            await runtime.ask("k", "hello")
            await eventually(path, lambda metrics: metrics.turns.get("complete") == 1)
            raise ZeroDivisionError
    metrics = status.read(status.status_path(path))
    assert metrics.turns == {"complete": 1}


async def test_a_status_file_that_cannot_be_written_is_logged_once(path, start, tmp_path, caplog):
    options = {"prometheus_file": tmp_path / "no folder" / "x", "interval": 0.001}
    async with observed(path, start, ["x"], Lines(), telemetry=options) as runtime:
        assert (await runtime.ask("k", "hello")).text == "x"
        first = await eventually(path, lambda _: True)
        await eventually(path, lambda metrics: metrics.written_at > first.written_at)
    assert caplog.text.count("could not write the metrics") == 1


async def eventually(path, wanted):
    """Return the metrics in the status file once they are as wanted."""
    with trio.fail_after(30):
        while True:
            try:
                metrics = status.read(status.status_path(path))
            except status.UnreadableStatus:
                metrics = None
            if metrics is not None and wanted(metrics):
                return metrics
            await trio.sleep(0.005)


async def file_with(path, text):
    with trio.fail_after(30):
        while text not in (content := path.read_text()):  # noqa: ASYNC110 - it is a file
            await trio.sleep(0.005)
    return content


def test_metrics_are_read_as_they_were_written(path):
    metrics = Metrics(version="1", pid=2, started_at=3.0, written_at=4.0, errors={"x": 1})
    status.write(path, status.encode(metrics))
    assert status.read(path) == metrics
    assert json.loads(path.read_text())["format"] == 1
