"""A failing actor affects no other; a failing store ends the runtime with a clear error."""

from __future__ import annotations

import outcome
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes import Config, Inbound, Source
from hermes.actors.runtime import open_actors
from hermes.embed.agent import default_spec
from hermes.errors import ActorStopped, HermesError, StoreBusy, StoreFailed
from hermes.store import open_store
from hermes.testing import (
    CountingBuilder,
    MemoryAdapter,
    ScriptedAgent,
    inline,
    inspect,
)
from tests.support.conversations import GatedAgent, history
from tests.support.held_turns import PendingReply
from tests.support.processes import foreign
from tests.support.runtime import SECONDS, with_threads
from tests.support.store_faults import CommitFaults, FailingVerb


@pytest.fixture
async def two_conversations(path, world):
    """A file with two conversations, whose transcripts are not in memory."""
    async with open_store(path, clock=world.clock, open_worker=inline()) as store:
        async with open_actors(
            store, build=CountingBuilder(), agent_spec=default_spec, config=Config()
        ) as runtime:
            for key in ("k", "other"):
                await runtime.ask(key, "before")


BEFORE = [("user", "before"), ("assistant", "echo: before")]


# Actors that fail


async def test_a_failed_actor_ends_alone_and_a_new_one_answers(
    two_conversations, start_proxy, caplog
):
    load, gate = FailingVerb(1), trio.Event()
    other = GatedAgent(gate)
    builder = CountingBuilder(lambda spec: other if spec.session_key == "o" else ScriptedAgent())
    theirs = PendingReply()
    with trio.fail_after(SECONDS):
        async with (
            start_proxy(builder, load=load) as runtime,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(theirs.run, lambda: runtime.ask("o", "theirs"))
            await other.began.wait()
            reply = await runtime.ask("k", "mine")
            assert reply.text == "echo: mine"
            assert not theirs.done
            gate.set()
            await theirs.wait()
            assert theirs.reply.text == "echo: theirs"
            assert await history(runtime) == [*BEFORE, ("user", "mine"), ("assistant", reply.text)]
    assert load.left == 0
    assert "the actor of k failed" in caplog.text
    assert [agent.closed for agent in builder.agents] == [1] * len(builder)


async def test_messages_that_waited_for_a_failed_actor_are_answered_in_order_and_once(
    two_conversations, start_proxy
):
    """Messages start a new actor; a request, which is only in memory, fails."""
    gate, entered = trio.Event(), trio.Event()

    async def fail_once(real, *args):
        if not entered.is_set():
            entered.set()
            await gate.wait()
            raise RuntimeError("my own")
        return await real(*args)

    builder = CountingBuilder()
    first, request, replies = PendingReply(), PendingReply(), []
    with trio.fail_after(SECONDS):
        async with start_proxy(builder, load=fail_once) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.run, lambda: runtime.ask("k", "one"))
                await entered.wait()
                for n in range(5):
                    await runtime.submit(Inbound("k", f"e{n}", str(n)))
                nursery.start_soon(request.run, lambda: runtime.conversation("k").new())
                await wait_all_tasks_blocked()
                gate.set()
                await first.wait()
                replies.append(first.reply)
            assert isinstance(request.error, ActorStopped)
            said = [text for role, text in await history(runtime) if role == "user"]
            assert said == ["before", "one", *"01234"]
    [agent] = builder.agents
    assert [turn.turn_id for turn in agent.turns] == [3]


async def test_requests_to_an_actor_that_fails_repeatedly_are_refused_after_a_pause(
    two_conversations, start_proxy, sql, autojump_clock, caplog
):
    load = FailingVerb(3)
    async with start_proxy(load=load) as runtime:
        began = trio.current_time()
        reply = await runtime.ask("k", "mine")
        assert reply.status == "refused"
        assert "3 times" in reply.text
        assert 60 <= trio.current_time() - began < 62
        assert load.left == 0
        assert "failed 3 times, paused" in caplog.text
        assert (await runtime.ask("k", "later")).text == "echo: later"
        assert await history(runtime) == [
            *BEFORE,
            ("user", "later"),
            ("assistant", "echo: later"),
        ]
    assert sql("SELECT state FROM inbox ORDER BY id") == [["done"], ["done"], ["parked"], ["done"]]


async def test_while_one_conversation_is_paused_the_others_continue(
    two_conversations, start_proxy, autojump_clock
):
    load, mine = FailingVerb(3), PendingReply()
    async with start_proxy(load=load) as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(mine.run, lambda: runtime.ask("k", "mine"))
        await trio.sleep(1)
        assert load.left == 0
        assert (await runtime.ask("other", "theirs")).text == "echo: theirs"
        assert trio.current_time() < 5
        assert not mine.done
        await trio.sleep(70)
        assert mine.done


async def test_failures_that_are_far_apart_cause_no_pause(
    two_conversations, start_proxy, autojump_clock
):
    load = FailingVerb(0)
    async with start_proxy(load=load, config=Config(transcript_bytes=0)) as runtime:
        for n in range(5):
            load.left = 1  # it is loaded for each turn
            began = trio.current_time()
            assert (await runtime.ask("k", str(n))).text == f"echo: {n}"
            assert trio.current_time() - began < 1
            await trio.sleep(40)


async def test_a_new_message_does_not_shorten_the_pause_and_is_answered_after_it(
    two_conversations, start_proxy, autojump_clock
):
    """The user is notified of the pause, and the order is kept."""
    load, first, adapter = FailingVerb(3), PendingReply(), MemoryAdapter()
    source = Source("memory", chat_id="c")
    config = Config(max_attempts=10)
    async with (
        start_proxy(load=load, config=config, adapters=[adapter]) as runtime,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(first.run, lambda: runtime.ask("k", "mine", source=source))
        await trio.sleep(10)
        assert load.left == 0
        assert len(adapter.texts) == 1
        assert "paused" in adapter.texts[0]
        with pytest.raises(HermesError, match="paused"):
            await runtime.conversation("k").new()
        reply = await runtime.ask("k", "second", source=source)
        assert trio.current_time() >= 60
        await first.wait()
        assert (first.reply.text, reply.text) == ("echo: mine", "echo: second")
        said = [text for role, text in await history(runtime) if role == "user"]
        assert said == ["before", "mine", "second"]


async def test_a_runtime_can_end_during_a_pause(
    two_conversations, start_proxy, path, autojump_clock
):
    async with start_proxy(load=FailingVerb(3)) as runtime:
        await runtime.submit(Inbound("k", "e", "mine"))
        await trio.sleep(10)
    assert trio.current_time() < 20
    async with start_proxy(config=Config(max_attempts=10)) as runtime:
        await wait_all_tasks_blocked()
        assert (await history(runtime))[2:] == [("user", "mine"), ("assistant", "echo: mine")]


async def test_a_command_whose_own_code_fails_ends_alone(two_conversations, start_proxy):
    with trio.fail_after(SECONDS):
        async with start_proxy(get_usage=FailingVerb(1)) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.submit, Inbound("k", "e", "/usage", command=True))
            assert (await runtime.ask("other", "theirs")).text == "echo: theirs"
            assert (await runtime.ask("k", "mine")).text == "echo: mine"


async def test_a_command_is_answered_once_although_the_actor_fails_meanwhile(
    two_conversations, start_proxy
):
    """The new actor finds its row open and answers it; the old one is too late."""
    gates = {"load": trio.Event(), "usage": trio.Event()}
    entered = {"load": trio.Event(), "usage": trio.Event()}

    async def fail_once(real, *args):
        if not entered["load"].is_set():
            entered["load"].set()
            await gates["load"].wait()
            raise RuntimeError("my own")
        return await real(*args)

    async def slow_once(real, *args):
        if not entered["usage"].is_set():
            entered["usage"].set()
            await gates["usage"].wait()
        return await real(*args)

    adapter, mine, command = MemoryAdapter(), PendingReply(), PendingReply()
    source = Source("memory", chat_id="c")
    with trio.fail_after(SECONDS):
        async with (
            start_proxy(load=fail_once, get_usage=slow_once, adapters=[adapter]) as runtime,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(mine.run, lambda: runtime.ask("k", "mine", source=source))
            await entered["load"].wait()
            nursery.start_soon(command.run, lambda: runtime.ask("k", "/usage", source=source))
            await entered["usage"].wait()
            gates["load"].set()
            await mine.wait()
            await wait_all_tasks_blocked()
            gates["usage"].set()
            await command.wait()
    assert len(adapter.texts) == 2


async def test_a_conversation_whose_messages_cannot_be_read_affects_no_other(
    two_conversations, start_proxy, path, autojump_clock
):
    async with open_store(path, open_worker=inline()) as store:
        await store.accept(Inbound("k", "e", "left by an earlier process"))

    async def unreadable(real, *args, **kwargs):
        if args == ("k",):
            raise RuntimeError("damaged")
        return await real(*args, **kwargs)

    async with start_proxy(open_inbox=unreadable) as runtime:
        for _ in range(3):
            await trio.sleep(50)
            assert (await runtime.ask("other", "theirs")).text == "echo: theirs"


async def test_a_message_that_can_no_longer_be_read_affects_no_other(
    two_conversations, start_proxy, path
):
    """For example a damaged row, or one of a later version."""
    async with open_store(path, open_worker=inline()) as store:
        await store.accept(Inbound("k", "e1", "damaged"))
        await store.accept(Inbound("other", "e2", "whole"))
    foreign(path, "UPDATE inbox SET body = '{}' WHERE event_id = 'e1'")
    with trio.fail_after(SECONDS):
        async with start_proxy() as runtime:
            await wait_all_tasks_blocked()
            assert ("user", "whole") in await history(runtime, "other")
            assert (await runtime.ask("third", "hello")).text == "echo: hello"


@pytest.mark.parametrize("what", ["describe", "build"])
async def test_a_failing_spec_or_builder_fails_only_that_turn(start, what):
    def fail(*_):
        if not failed:
            failed.append(1)
            raise LookupError("no such model")

    failed = []

    def build(spec):
        if what == "build":
            fail()
        return ScriptedAgent()

    def described(key, source):
        if what == "describe":
            fail()
        return default_spec(key, source)

    async with start(build_agent=build, agent_spec=described) as runtime:
        reply = await runtime.ask("k", "one")
        assert (reply.status, reply.error_kind) == ("failed", "LookupError")
        assert "no such model" not in reply.text
        assert (await runtime.ask("k", "two")).text == "echo: two"


async def test_messages_that_overflow_while_an_actor_fetches_the_rest_are_not_lost(
    start_proxy, path
):
    async with open_store(path, open_worker=inline()) as store:
        await store.accept(Inbound("k", "e", "left by an earlier process"))
    gate, entered = trio.Event(), trio.Event()

    async def slow(real, *args):
        entered.set()
        await gate.wait()
        return await real(*args)

    with trio.fail_after(SECONDS):
        async with start_proxy(start_inbox=slow) as runtime:
            await entered.wait()
            for n in range(70):  # the mailbox holds 64
                await runtime.submit(Inbound("k", f"e{n}", str(n)))
            gate.set()
            await wait_all_tasks_blocked()
            assert await inspect(runtime).store.open_inbox() == []


# Stores that fail


@pytest.mark.parametrize("kind", ["busy", "full"])
@pytest.mark.sqlite_only("makes a COMMIT of SQLite fail")
async def test_a_commit_that_fails_temporarily_is_retried_and_the_agent_is_not_run_again(
    start, kind, autojump_clock
):
    faults = CommitFaults()

    async def trouble(turn):
        faults.next = [kind] * 6

    agent = ScriptedAgent([[trouble, "well"]])
    async with start(build_agent=lambda _: agent, open_worker=inline(faults)) as runtime:
        reply = await runtime.ask("k", "one")
        assert (reply.text, reply.status) == ("well", "complete")
        assert await history(runtime) == [("user", "one"), ("assistant", "well")]
    assert faults.next == []
    assert len(agent.turns) == 1


@pytest.mark.parametrize("kind", ["busy", "full"])
@pytest.mark.sqlite_only("makes a COMMIT of SQLite fail")
async def test_a_message_is_refused_while_nothing_can_be_stored_and_accepted_afterwards(
    start, kind, autojump_clock
):
    faults = CommitFaults()
    async with start(open_worker=inline(faults)) as runtime:
        faults.next = [kind]
        with pytest.raises(HermesError, match="try again") as refused:
            await runtime.ask("k", "one", event_id="e")
        assert "nothing was stored" in str(refused.value)
        assert (await runtime.ask("k", "one", event_id="e")).text == "echo: one"
        assert len(await runtime.conversation("k").history()) == 2


@pytest.mark.parametrize("kind", ["busy", "full"])
@pytest.mark.sqlite_only("makes a COMMIT of SQLite fail")
async def test_an_answer_is_not_lost_because_the_store_was_busy_for_long(
    start, kind, autojump_clock
):
    faults = CommitFaults()

    async def trouble(turn):
        faults.kind, faults.until = kind, trio.current_time() + 40

    agent = ScriptedAgent([[trouble, "well"], "well"])
    async with start(build_agent=lambda _: agent, open_worker=inline(faults)) as runtime:
        reply = await runtime.ask("k", "one")
        assert (reply.text, reply.status) == ("well", "complete")


STORE_FAULTS = pytest.mark.parametrize("fault", ["unknown-present", "unknown-absent"])


@STORE_FAULTS
@pytest.mark.sqlite_only("makes a COMMIT of SQLite fail")
async def test_a_commit_with_an_unknown_outcome_ends_the_block_and_each_message_is_answered_once(
    start, path, fault
):
    """The next start finds out whether the turn is on disk. No message is answered twice."""
    faults, agents = CommitFaults(), []

    async def trouble(turn):
        faults.next = [fault]

    def build(spec):
        agents.append(ScriptedAgent([[trouble, "well"]] if spec.session_key == "k" else []))
        return agents[-1]

    with trio.fail_after(SECONDS):
        with pytest.raises(StoreFailed):
            async with start(build_agent=build, open_worker=inline(faults)) as runtime:
                await runtime.ask("other", "theirs")
                await runtime.ask("k", "one", event_id="e")
        again = ScriptedAgent(["well"])
        async with start(build_agent=lambda _: again) as runtime:
            await wait_all_tasks_blocked()
            assert await history(runtime) == [("user", "one"), ("assistant", "well")]
            assert len(await runtime.conversation("other").history()) == 2
            receipt = await runtime.submit(Inbound("k", "e", "one", per_conversation=True))
            assert receipt.inbox_id == 2
            await wait_all_tasks_blocked()
            assert len(await runtime.conversation("k").history()) == 2
    assert [turn.turn_id for turn in again.turns] == ([] if fault == "unknown-present" else [2])
    assert [agent.closed for agent in agents] == [1, 1]


@STORE_FAULTS
@pytest.mark.sqlite_only("makes a COMMIT of SQLite fail")
async def test_a_message_whose_acceptance_has_an_unknown_outcome_is_never_answered_twice(
    start, fault
):
    faults = CommitFaults()
    with trio.fail_after(SECONDS):
        with pytest.raises(StoreFailed):
            async with start(open_worker=inline(faults)) as runtime:
                faults.next = [fault]
                await runtime.ask("k", "one", event_id="e")
        async with start() as runtime:
            await runtime.submit(Inbound("k", "e", "one", per_conversation=True))
            await runtime.ask("k", "two")
            said = [text for role, text in await history(runtime) if role == "user"]
            assert said == ["one", "two"]


async def _stream(runtime):
    async with runtime.stream("stream", "one") as stream:
        async for _ in stream:
            pass


WAITERS = {
    "asks": lambda runtime: runtime.ask("k", "one"),
    "asks another": lambda runtime: runtime.ask("b", "one"),
    "requests": lambda runtime: runtime.conversation("k").new(),
    "streams": _stream,
}


@pytest.mark.parametrize("who", WAITERS)
@STORE_FAULTS
@pytest.mark.sqlite_only("makes a COMMIT of SQLite fail")
async def test_callers_in_other_threads_get_the_error_when_the_store_fails(start, fault, who):
    """For example a thread of a synchronous host, which cannot be cancelled."""
    faults, gate, began = CommitFaults(), trio.Event(), []

    async def hold(turn):
        began.append(turn)
        await gate.wait()
        if turn.session_key == "trigger":
            faults.next = [fault]
        else:
            await trio.sleep_forever()

    asked, trigger = PendingReply(), PendingReply()
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            with pytest.raises(StoreFailed):
                async with start(
                    build_agent=lambda _: ScriptedAgent([[hold, "x"]]), open_worker=inline(faults)
                ) as runtime:
                    if who == "requests":
                        await runtime.submit(Inbound("k", "e", "one"))
                        await wait_all_tasks_blocked()
                    nursery.start_soon(asked.run, lambda: WAITERS[who](runtime))
                    nursery.start_soon(trigger.run, lambda: runtime.ask("trigger", "now"))
                    await wait_all_tasks_blocked()
                    assert len(began) == 2
                    gate.set()
                    await trio.sleep_forever()
    assert isinstance(trigger.error, HermesError)
    assert isinstance(asked.error, StoreFailed)


@pytest.mark.sqlite_only("makes a COMMIT of SQLite fail")
async def test_requests_to_a_runtime_whose_store_failed_are_refused(start):
    faults = CommitFaults()
    with trio.fail_after(SECONDS):
        with pytest.raises(StoreFailed):
            async with start(open_worker=inline(faults)) as runtime:
                faults.next = ["unknown-absent"]
                await runtime.ask("k", "one")
        with pytest.raises(HermesError):
            await runtime.ask("k", "two")
        with pytest.raises(HermesError):
            await runtime.submit(Inbound("k", "e", "two"))
        with pytest.raises(HermesError):
            await runtime.conversation("k").new()


@with_threads
async def test_requests_to_a_runtime_that_has_ended_are_refused(start):
    async with start() as runtime:
        await runtime.ask("k", "one")
    for verb in (
        lambda: runtime.ask("k", "two"),
        lambda: runtime.submit(Inbound("k", "e", "two")),
        lambda: runtime.conversation("k").new(),
        lambda: runtime.conversation("k").compress(),
        lambda: runtime.conversation("k").status(),
        lambda: runtime.conversation("k").history(),
    ):
        with trio.fail_after(SECONDS), pytest.raises(HermesError):
            await verb()


async def test_a_store_error_of_a_verb_is_raised_to_its_caller_and_the_actor_continues(start_proxy):
    builder = CountingBuilder()
    async with start_proxy(builder, new_session=FailingVerb(1, StoreBusy("not now"))) as runtime:
        await runtime.ask("k", "one")
        with pytest.raises(StoreBusy, match="not now"):
            await runtime.conversation("k").new()
        assert (await runtime.ask("k", "two")).build_reason is None
    assert len(builder) == 1


async def leak_cancellation():
    """Raise a `Cancelled` that was kept from a scope which has ended."""
    with trio.CancelScope() as scope:
        scope.cancel()
        kept = await outcome.acapture(trio.lowlevel.checkpoint)
    kept.unwrap()


async def test_a_supervisor_that_ends_ends_the_runtime_with_an_error(start_proxy):
    async def waiting_keys(store, *arguments, **options):
        await leak_cancellation()

    with pytest.raises(ActorStopped, match="the task of all conversations has ended"):
        with trio.fail_after(SECONDS):
            async with start_proxy(waiting_keys=waiting_keys):
                await trio.sleep_forever()
