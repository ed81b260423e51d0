"""User code that raises a `trio.Cancelled` of a scope that is gone fails alone.

No scope catches such an exception. If the runtime let it through, it would end every conversation.
"""

from __future__ import annotations

import outcome
import pytest
import trio

from hermes import AgentSpec, Source, TurnResult
from hermes.config import CompressionConfig, Config
from hermes.events import TextDelta
from hermes.testing import MemoryAdapter, inspect
from tests.support.runtime import SECONDS, with_threads

pytestmark = with_threads


async def leak():
    """Raise a `Cancelled` that was kept from a scope which has ended."""
    with trio.move_on_after(0.01):
        kept = await outcome.acapture(trio.sleep, 1)
    kept.unwrap()


def kept_cancellation():
    """Return such a `Cancelled`, for user code that is not async."""

    async def keep():
        with trio.CancelScope() as scope:
            scope.cancel()
            return await outcome.acapture(trio.lowlevel.checkpoint)

    return trio.run(keep).error


class Leaking:
    """An agent that leaks if it is told to."""

    def __init__(self, inside=False):
        self.inside = inside

    async def run(self, turn):
        if turn.text == "leak":
            if self.inside:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(leak)
            await leak()
        turn.emit(TextDelta(turn.text))
        return TurnResult(text=turn.text)

    async def aclose(self):
        await leak()


class LeakingAdapter(MemoryAdapter):
    """An adapter that leaks on its first send."""

    leaked = False

    async def send(self, row, /):
        if not self.leaked:
            self.leaked = True
            await leak()
        await super().send(row)


async def works(runtime, key="other"):
    """Check that another conversation is answered."""
    with trio.fail_after(SECONDS):
        assert (await runtime.ask(key, "hello")).text == "hello"


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a nursery"])
async def test_of_an_agent_the_turn_fails_and_nothing_else(start, inside):
    for _ in range(2):  # the second runtime finds nothing left to do
        async with start(build_agent=lambda _: Leaking(inside)) as runtime:
            with trio.fail_after(SECONDS):
                reply = await runtime.ask("k", "leak")
            assert (reply.status, reply.error_kind) == ("failed", "Cancelled")
            await works(runtime, "k")
            await works(runtime)


async def test_of_a_builder_the_turn_fails(start):
    async def build(spec):
        if spec.session_key == "k":
            await leak()
        return Leaking()

    async with start(build_agent=build) as runtime:
        with trio.fail_after(SECONDS):
            assert (await runtime.ask("k", "hi")).status == "failed"
        await works(runtime)


async def test_of_an_agent_spec_the_turn_fails(start):
    error = await trio.to_thread.run_sync(kept_cancellation)

    def describe(key, source):
        if key == "k":
            raise error
        return AgentSpec(session_key=key)

    async with start(build_agent=lambda _: Leaking(), agent_spec=describe) as runtime:
        with trio.fail_after(SECONDS):
            assert (await runtime.ask("k", "hi")).status == "failed"
        await works(runtime)


async def test_of_a_redactor_the_turn_fails(start):
    error = await trio.to_thread.run_sync(kept_cancellation)

    def redact(text):
        if "secret" in text:
            raise error
        return text

    async with start(build_agent=lambda _: Leaking(), redact=redact) as runtime:
        with trio.fail_after(SECONDS):
            assert (await runtime.ask("k", "secret")).status == "failed"
        await works(runtime)


async def test_of_an_adapter_the_reply_is_sent_again(start):
    adapter = LeakingAdapter()
    async with start(build_agent=lambda _: Leaking(), adapters=[adapter]) as runtime:
        with trio.fail_after(100 * SECONDS):
            await runtime.ask("k", "hello", source=Source("memory", chat_id="1"))
            await inspect(runtime).wait_sent()
        assert [row.body["text"] for row in adapter.sent] == ["hello"]
        await works(runtime)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_of_a_hook_the_boundary_is_closed_with_an_error(start, kind):
    error = await trio.to_thread.run_sync(kept_cancellation)

    async def leaking(**_):
        await leak()

    def raising(**_):
        raise error

    hooks = {"on_session_finalize": [leaking if kind == "async" else raising]}
    async with start(build_agent=lambda _: Leaking(), hooks=hooks) as runtime:
        with trio.fail_after(SECONDS):
            await runtime.ask("k", "hello")
            await runtime.conversation("k").new()
        await works(runtime, "k")
        await works(runtime)


async def test_of_a_titler_the_conversation_has_no_title(start):
    class Titler:
        async def title(self, request, /):
            await leak()

    async with start(build_agent=lambda _: Leaking(), titler=Titler()) as runtime:
        await works(runtime, "k")
        await works(runtime, "k")
        await works(runtime)
        assert (await runtime.conversation("k").title()).text is None


async def test_of_a_compressor_the_conversation_stays_as_it_is(start):
    class Compressor:
        async def summarize(self, request, /):
            await leak()

    config = Config(compression=CompressionConfig(protect_first=0))
    async with start(
        build_agent=lambda _: Leaking(), compressor=Compressor(), config=config
    ) as runtime:
        for _ in range(4):
            await works(runtime, "k")
        with trio.fail_after(SECONDS):
            changed = await runtime.conversation("k").compress(keep_exchanges=1)
        assert (changed.changed, changed.failed) == (False, True)
        await works(runtime, "k")
