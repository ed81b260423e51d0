"""The contracts of agents, builders, compressors and hooks, for the fakes and the real ones."""

from __future__ import annotations

import asyncio

import pytest
import trio

from hermes import AgentSpec, Message, TurnResult
from hermes.agents.bridges import asyncio_agent, blocking_agent
from hermes.agents.offline import FALLBACK, OfflineAgent
from hermes.embed.agent import ReplyAgent
from hermes.events import TextDelta, ToolFinished, ToolStarted, TurnStarted
from hermes.messages import ToolCall
from hermes.protocols import Summary, SummaryRequest
from hermes.testing import (
    CountingBuilder,
    DeterministicCompressor,
    RecordingHook,
    ScriptedAgent,
    forever,
    texts_of,
)

CALL = ToolCall("c1", "look", "{}")
SPEC = AgentSpec(session_key="k")


# Agents: each class makes agents of one kind, as its users would.


class Scripted:
    """`ScriptedAgent`."""

    def saying(self, text):
        return ScriptedAgent([text])

    def waiting(self):
        return ScriptedAgent([forever()])

    def failing(self, error):
        return ScriptedAgent([error])

    def working(self):
        return ScriptedAgent(
            [[TextDelta("let me "), ToolStarted(CALL), ToolFinished("c1", "seen"), "done"]]
        )

    def steerable(self, gate):
        return ScriptedAgent([steered_after(gate)])


class Functions:
    """An async function."""

    def saying(self, text):
        async def reply(turn):
            return text

        return ReplyAgent(reply)

    def waiting(self):
        async def reply(turn):
            await trio.sleep_forever()

        return ReplyAgent(reply)

    def failing(self, error):
        async def reply(turn):
            raise error

        return ReplyAgent(reply)

    def working(self):
        async def reply(turn):
            turn.emit(TextDelta("let me "))
            turn.emit(ToolStarted(CALL))
            turn.emit(ToolFinished("c1", "seen"))
            return "done"

        return ReplyAgent(reply)

    def steerable(self, gate):
        return ReplyAgent(steered_after(gate))


class Threads:
    """A plain function in a thread."""

    def saying(self, text):
        return self.built(lambda turn: text)

    def waiting(self):
        return self.built(lambda turn: str(turn.wait_cancelled()))

    def failing(self, error):
        def reply(turn):
            raise error

        return self.built(reply)

    def working(self):
        def reply(turn):
            turn.emit(TextDelta("let me "))
            turn.emit(ToolStarted(CALL))
            turn.emit(ToolFinished("c1", "seen"))
            return "done"

        return self.built(reply)

    def steerable(self, gate):
        token = trio.lowlevel.current_trio_token()

        def reply(turn):
            trio.from_thread.run(gate.wait, trio_token=token)
            return f"steered: {[message.content for message in turn.steered()]}"

        return self.built(reply)

    def built(self, reply):
        return blocking_agent(reply)(SPEC)

    def close(self):
        pass


class OnAsyncio(Threads):
    """A coroutine on asyncio."""

    def __init__(self):
        self.bridges = []

    def waiting(self):
        async def reply(turn):
            await asyncio.Event().wait()

        return self.awaited(reply)

    def built(self, reply):
        async def on_asyncio(turn):
            return await asyncio.to_thread(reply, turn)

        return self.awaited(on_asyncio)

    def awaited(self, reply):
        self.bridges.append(asyncio_agent(reply))
        return self.bridges[-1](SPEC)

    def close(self):
        for bridge in self.bridges:
            bridge.close()


def steered_after(gate):
    async def run(turn):
        await gate.wait()
        texts = [message.content for message in turn.steered()]
        return TurnResult(text=f"steered: {texts}")

    return run


@pytest.fixture(params=[Scripted, Functions, Threads, OnAsyncio])
def maker(request):
    made = request.param()
    yield made
    if isinstance(made, Threads):
        made.close()


async def turn_started(events):
    async for envelope in events:
        if isinstance(envelope.event, TurnStarted):
            return


async def test_an_agent_answers_and_its_answer_is_kept(start, maker):
    agent = maker.saying("well")
    async with start(build_agent=lambda _: agent) as runtime:
        reply = await runtime.ask("k", "hello")
        assert (reply.text, reply.status) == ("well", "complete")
        assert texts_of(await runtime.conversation("k").history()) == [
            ("user", "hello"),
            ("assistant", "well"),
        ]


async def test_an_agent_that_waits_ends_when_it_is_interrupted(start, maker):
    agent = maker.waiting()
    async with start(build_agent=lambda _: agent) as runtime, trio.open_nursery() as nursery:
        with runtime.subscribe("k") as events:
            replies = []

            async def ask():
                replies.append(await runtime.ask("k", "hello"))

            nursery.start_soon(ask)
            await turn_started(events)
        assert await runtime.conversation("k").interrupt()
    assert [reply.status for reply in replies] == ["interrupted"]


async def test_an_exception_of_an_agent_fails_only_its_turn(start, maker):
    agent = maker.failing(RuntimeError("no luck"))
    async with start(build_agent=lambda _: agent) as runtime:
        reply = await runtime.ask("k", "hello")
        assert (reply.status, reply.error_kind) == ("failed", "RuntimeError")
        assert "no luck" not in f"{reply}"
        assert reply.reference in reply.text
        assert texts_of(await runtime.conversation("k").history()) == [("user", "hello")]


async def test_the_events_of_an_agent_are_published_and_kept(start, maker):
    agent = maker.working()
    heard = []
    async with start(build_agent=lambda _: agent) as runtime:
        async with runtime.stream("k", "hello") as stream:
            heard = [type(event).__name__ async for event in stream]
        rows = await runtime.conversation("k").history()
    assert heard[-4:] == ["TextDelta", "ToolStarted", "ToolFinished", "TurnEnded"]
    assert [row.role for row in rows] == ["user", "assistant", "tool", "assistant"]
    assert (rows[1].tool_calls, rows[2].content, rows[3].content) == ((CALL,), "seen", "done")


async def test_an_agent_can_be_steered(start, maker):
    gate = trio.Event()
    agent = maker.steerable(gate)
    async with start(build_agent=lambda _: agent) as runtime, trio.open_nursery() as nursery:
        replies = []

        async def ask():
            replies.append(await runtime.ask("k", "hello"))

        with runtime.subscribe("k") as events:
            nursery.start_soon(ask)
            await turn_started(events)
        await runtime.conversation("k").steer("and this")
        gate.set()
    assert [reply.text for reply in replies] == ["steered: ['and this']"]


async def test_the_offline_agent_fulfils_the_same_contract(start):
    async with start(build_agent=lambda _: OfflineAgent()) as runtime:
        assert (await runtime.ask("k", "hello")).text == f"You said: hello\n{FALLBACK}"


async def test_an_agent_is_closed_once(start):
    agent = ScriptedAgent()
    async with start(build_agent=lambda _: agent) as runtime:
        await runtime.ask("k", "hello")
    assert agent.closed == 1


# Builders


async def build(spec: AgentSpec):
    return ScriptedAgent()


async def reply(turn):
    return f"echo: {turn.text}"


@pytest.mark.parametrize(
    "options",
    [{"build_agent": CountingBuilder()}, {"build_agent": build}, {"agent": reply}],
    ids=["fake", "async", "function"],
)
async def test_an_agent_is_built_once_for_two_turns(start, options):
    async with start(**options) as runtime:
        build_reason = [(await runtime.ask("k", text)).build_reason for text in ("one", "two")]
    assert build_reason == ["cold", None]


# Compressors

LONG = [Message("user", f"{number} " + "word " * 100) for number in range(20)]


def request(**options):
    options = {"previous": None, "focus": None, "max_tokens": 500, **options}
    return SummaryRequest(session_id="s", messages=LONG, **options)


@pytest.fixture(params=[DeterministicCompressor])
def compressor(request):
    return request.param()


async def test_a_summary_is_shorter_and_reports_its_cost(compressor):
    summary = await compressor.summarize(request())
    assert isinstance(summary, Summary)
    assert 0 < len(summary.text) < sum(len(message.content) for message in LONG) // 2
    assert [call.purpose for call in summary.usage] == ["summary"]


async def test_an_earlier_summary_is_updated(compressor):
    summary = await compressor.summarize(request(previous="they spoke of bees"))
    assert "they spoke of bees" in summary.text


async def test_a_compressor_can_be_cancelled(compressor):
    with trio.CancelScope() as scope:
        scope.cancel()
        await compressor.summarize(request())
    assert scope.cancelled_caught


# Hooks


def plain(heard):
    def hook(session_id, platform):
        heard.append(session_id)

    return hook


def awaited(heard):
    async def hook(session_id, platform):
        heard.append(session_id)

    return hook


def open_handed(heard):
    async def hook(**told):
        heard.append(told["session_id"])

    return hook


def recording(heard):
    recorder = RecordingHook()

    async def then():
        heard.append(recorder.calls[-1][1])

    recorder.then = then
    return recorder.named("finalize")


@pytest.mark.parametrize("make", [plain, awaited, open_handed, recording])
async def test_a_hook_is_called_once_for_each_boundary(start, make):
    heard = []
    async with start(hooks={"on_session_finalize": [make(heard)]}) as runtime:
        old = (await runtime.ask("k", "hello")).session_id
        await runtime.conversation("k").new()
        await runtime.wait_hooks()
        assert heard == [old]
