"""Turns of requests that belong to no conversation."""

from __future__ import annotations

import secrets

import attrs
import trio
import trio.testing

from hermes import Config, Usage
from hermes.messages import ApiRequest, Inbound, Message, Source, ToolCall, TurnResult
from hermes.protocols import Summary
from hermes.testing import CountingBuilder, DeterministicCompressor, inspect
from tests.support.boundaries import hooks_of
from tests.support.runtime import reply_to, with_threads

SOURCE = Source("http", "tok_1", "ann", user_id="tok_1")
HISTORY = (
    Message("user", "What is 2 + 2?"),
    Message("assistant", None, tool_calls=(ToolCall("c1", "add", "{}"),)),
    Message("tool", "4", tool_call_id="c1", tool_name="add"),
    Message("assistant", "4"),
)


async def waits(turn):
    await trio.sleep_forever()


def new_key():
    return f"agent:main:http:dm:ann:temp_{secrets.token_hex(16)}"


def inbound(text="And 3 + 3?", key=None, **options):
    number = secrets.token_hex(16)
    options = {"stored": False, "history": HISTORY, **options}
    request = ApiRequest(
        id=f"resp_{number}", credential="tok_1", path="/v1/x", digest="d", **options
    )  # fmt: skip
    return Inbound(key or new_key(), request.id, text, source=SOURCE, request=request)


async def ask(runtime, message):
    with runtime.subscribe() as events:
        receipt = await runtime.submit(message)
        return await reply_to(events, receipt)


@attrs.define
class Recorder:
    """An agent that records what it is given."""

    seen: list = attrs.Factory(list)
    settings: list = attrs.Factory(list)
    closed: int = 0

    async def run(self, turn):
        self.seen.append([(row.role, row.content) for row in turn.messages()])
        self.settings.append(turn.settings.agent)
        turn.charge(Usage(input_tokens=1_000_000, cost=0.25))
        return TurnResult(text=f"answer to {turn.text}")

    async def aclose(self):
        self.closed += 1


async def no_title(request):
    raise AssertionError("there is no conversation to title")


class NoTitles:
    title = staticmethod(no_title)


@with_threads
async def test_the_history_is_that_of_the_request_and_nothing_is_stored(start):
    agent = Recorder()
    async with start(build_agent=lambda _: agent) as runtime:
        reply = await ask(runtime, inbound())
        assert (reply.text, reply.status) == ("answer to And 3 + 3?", "complete")
        [seen] = agent.seen
        assert seen == [*((row.role, row.content) for row in HISTORY), ("user", "And 3 + 3?")]
        assert await runtime.admin.sessions() == []
        assert await inspect(runtime).store.search_messages("answer") == []


async def test_nothing_is_compressed_titled_or_announced_to_hooks(start, recorder):
    options = {"compressor": DeterministicCompressor(), "titler": NoTitles()}
    async with start(build_agent=lambda _: Recorder(), hooks=hooks_of(recorder), **options) as r:
        for _ in range(3):
            await ask(r, inbound("word " * 190_000))
        stats = await inspect(r).store.facts()
        assert stats.cost_today == 0.75
    assert recorder.calls == []


async def test_a_turn_that_runs_at_the_end_is_not_announced_and_runs_again(start, recorder):
    message = inbound()
    hooks = hooks_of(recorder)
    async with start(agent=waits, config=Config(drain_timeout=0), hooks=hooks) as runtime:
        receipt = await runtime.submit(message)
        await trio.testing.wait_all_tasks_blocked()
    assert recorder.calls == []
    agent = Recorder()
    async with start(build_agent=lambda _: agent, hooks=hooks) as runtime:
        reply = await runtime.wait(receipt)
        assert reply.text == "answer to And 3 + 3?"
        assert len(agent.seen[0]) == len(HISTORY) + 1
    assert recorder.calls == []


async def test_no_actor_and_no_agent_is_left(start):
    builder = CountingBuilder(lambda _: Recorder())
    async with start(build_agent=builder) as runtime:
        for _ in range(20):
            await ask(runtime, inbound())
        await trio.testing.wait_all_tasks_blocked()
        assert list(inspect(runtime).supervisor.actors) == []
        assert inspect(runtime).context.caches.agents == 0
        assert [agent.closed for agent in builder.agents] == [1] * 20


async def test_a_request_can_choose_its_agent(start):
    agent = Recorder()
    async with start(build_agent=lambda _: agent) as runtime:
        await ask(runtime, inbound(agent="coder"))
        await ask(runtime, inbound())
    assert agent.settings == ["coder", None]


async def test_a_failed_and_an_interrupted_turn_leave_nothing_either(start):
    async def fails(turn):
        if turn.text == "wait":
            await trio.sleep_forever()
        raise ValueError("secret")

    async with start(agent=fails) as runtime:
        assert (await ask(runtime, inbound())).status == "failed"
        message = inbound("wait")
        receipt = await runtime.submit(message)
        await trio.testing.wait_all_tasks_blocked()
        assert await runtime.api.cancel_turn(receipt)
        assert (await runtime.wait(receipt)).status == "interrupted"
        assert await runtime.admin.sessions() == []
        assert list(inspect(runtime).supervisor.actors) == []


async def test_a_summary_is_never_asked_for_after_an_overflow(start):
    class Never:
        async def summarize(self, request):
            raise AssertionError(Summary)

    async def overflows(turn):
        return TurnResult(failed=True, error="context_length_exceeded: maximum context length")

    async with start(agent=overflows, compressor=Never()) as runtime:
        reply = await ask(runtime, inbound())
        assert reply.status == "failed"
