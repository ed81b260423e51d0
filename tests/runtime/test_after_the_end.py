"""After the end of a runtime every verb says why, in every host; `wait_stopped` reports the end."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio

from hermes import Attachment, Config, open_runtime
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.errors import (
    ActorStopped,
    Draining,
    HermesError,
    StoreFailed,
    UnknownFile,
    UnknownSession,
    UnknownTurn,
)
from hermes.events import TurnEnded
from hermes.messages import (
    Approval,
    ConversationSettings,
    Inbound,
    Message,
    Person,
    Receipt,
    Reply,
    Snapshot,
    Source,
    Token,
)
from hermes.testing import MemoryAdapter
from hermes.texts import ENGLISH
from tests.support.runtime import SECONDS

ARGUMENTS = {
    "session_key": "k",
    "text": "hello",
    "inbound": Inbound("k", "e", "hello"),
    "receipt": Receipt(1, "k", "s", 1, 0.0),
    "messages": [Message("user", "hello")],
    "target": "s",
    "snapshot": Snapshot(object(), "signature", None, "s"),
    "title": "a title",
    "session_id": "s",
    "query": "hello",
    "event_id": "e",
    "function": lambda runtime: runtime.wait_hooks(),
    "name": "n",
    "value": "v",
    "attachment": Attachment(data=b"x"),
    "file_id": "file_x",
    "path": "never-written.txt",
    "response_id": "resp_x",
    "credential": "tok_x",
    "idempotency_key": "key",
    "digest": "00",
    "process": "p",
    "complete": True,
    "approval_id": 1,
    "code": "ABCD-EFGH",
    "prefix": "k",
    "inbox_id": 1,
    "turn_id": 1,
    "row_ids": [1],
    "number": 0,
    "tool": "t",
    "role": "user",
    "by": Source("p", user_id="u"),
    "texts": ENGLISH,
    "platform": "p",
    "user_id": "u",
    "session_keys": ["k"],
    "items": [],
    "purpose": "user_data",
    "to": "k2",
    "settings": ConversationSettings(),
    "source": Source(),
    "token": Token(id="tok", name="t", namespace="n", roles=("user",), created_at=0.0),
    "session": Token(id="web", name="t", namespace="n", roles=("user",), created_at=0.0),
    "session_digest": "d",
    "person": Person(namespace="n", name="t", role="user"),
    "reply": Reply(text="", session_id="s", turn_id=1),
    "adapter": MemoryAdapter(),
    "run": trio.lowlevel.checkpoint,
    "approval": Approval(1, "k", "k", "tool", "{}", "pending", 0.0, 1.0),
}
NO_VERBS = {
    "conversation", "wait_stopped", "wait_revoked", "admin", "adapter_state", "api", "session_key",
    "texts", "process",
}  # fmt: skip


async def echo(turn):
    return f"echo: {turn.text}"


def verbs_of(runtime, without=()):
    """All verbs with arguments: a list of name and function."""
    parts = [runtime, runtime.conversation("k"), runtime.admin]
    parts += [runtime.adapter_state, runtime.api]
    calls = []
    for part in parts:
        names = sorted(name for name in set(dir(part)) - NO_VERBS if not name.startswith("_"))
        kind = type(part).__name__
        calls += [(f"{kind}.{name}", with_arguments(getattr(part, name))) for name in names]
    assert len(calls) > 30
    return [(name, call) for name, call in calls if name not in without]


def with_arguments(verb):
    parameters = inspect.signature(verb).parameters.values()
    needed = [each for each in parameters if each.default is each.empty or each.name == "text"]
    return lambda: verb(**{each.name: ARGUMENTS[each.name] for each in needed})


async def finished(result):
    """Await what a verb returned, or enter it."""
    if inspect.isawaitable(result):
        return await result
    if hasattr(result, "__aenter__"):
        async with result:
            return None
    return result


def entered(result):
    """Enter what a verb returned, if it is a stream or a subscription."""
    if hasattr(result, "__enter__"):
        with result:
            return None
    return result


def refused(outcomes, kind, words):
    """All of these outcomes of verbs must be errors of this kind with these words."""
    wrong = {
        name: outcome
        for name, outcome in outcomes.items()
        if not isinstance(outcome, kind) or words not in str(outcome)
    }
    assert wrong == {}


# How to call all verbs, per host


async def call_on_trio(runtime, without=()):
    outcomes = {}
    for name, call in verbs_of(runtime, without):
        try:
            with trio.fail_after(SECONDS):
                outcomes[name] = await finished(call())
        except Exception as error:  # noqa: BLE001 - the test judges it
            outcomes[name] = error
    return outcomes


def call_blocking(runtime, without=()):
    outcomes = {}
    with ThreadPoolExecutor(1) as threads:
        for name, call in verbs_of(runtime, without):
            called = threads.submit(lambda call=call: entered(call()))
            outcomes[name] = called.exception(SECONDS) or called.result()
    return outcomes


async def call_on_asyncio(runtime, without=()):
    outcomes = {}
    for name, call in verbs_of(runtime, without):
        try:
            outcomes[name] = await asyncio.wait_for(finished(call()), SECONDS)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the test judges it
            outcomes[name] = error
    return outcomes


def break_store(path):
    """Let the next write of a store fail for good."""
    path.with_name(f"{path.name}-wal").unlink()


# The end of the block


async def test_on_trio_every_verb_says_that_the_runtime_has_ended(path):
    async with open_runtime(path, agent=echo) as runtime:
        await runtime.ask("k", "hello")
    refused(await call_on_trio(runtime), ActorStopped, "the runtime has ended")
    await runtime.wait_stopped()


def test_in_a_script_every_verb_says_that_the_runtime_has_ended(path):
    with start_runtime(path, agent=echo) as runtime:
        runtime.ask("k", "hello")
    refused(call_blocking(runtime), ActorStopped, "the runtime has ended")
    runtime.wait_stopped()


def test_on_asyncio_every_verb_says_that_the_runtime_has_ended(path):
    async def main():
        async with open_runtime_asyncio(path, agent=echo) as runtime:
            await runtime.ask("k", "hello")
        outcomes = await call_on_asyncio(runtime)
        await runtime.wait_stopped()
        return outcomes

    refused(asyncio.run(main()), ActorStopped, "the runtime has ended")


# Hooks that are still running at the end

HOOKS_LEFT = "the runtime has ended before all hooks have run"
SHORT = Config(hook_drain_timeout=0.01)


async def hang(session_id, platform):
    await trio.sleep_forever()


async def test_on_trio_a_pending_wait_for_the_hooks_ends_with_the_runtime(path):
    async def wait(runtime, task_status):
        task_status.started()
        with pytest.raises(ActorStopped, match=HOOKS_LEFT):
            await runtime.wait_hooks()

    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            hooks = {"on_session_reset": [hang]}
            async with open_runtime(path, agent=echo, hooks=hooks, config=SHORT) as runtime:
                await runtime.ask("k", "hello")
                await runtime.conversation("k").new()
                await nursery.start(wait, runtime)


def test_in_a_script_a_pending_wait_for_the_hooks_ends_with_the_runtime(path):
    pending = threading.Event()

    async def wait(runtime):
        pending.set()
        await runtime.wait_hooks()

    hooks = {"on_session_reset": [hang]}
    with ThreadPoolExecutor(1) as threads:
        with start_runtime(path, agent=echo, hooks=hooks, config=SHORT) as runtime:
            runtime.ask("k", "hello")
            runtime.conversation("k").new()
            waiting = threads.submit(runtime.run_on_trio, wait)
            assert pending.wait(SECONDS)
        with pytest.raises(ActorStopped, match=HOOKS_LEFT):
            waiting.result(SECONDS)


def test_on_asyncio_a_pending_wait_for_the_hooks_ends_with_the_runtime(path):
    async def hang_on_asyncio(session_id, platform):
        await asyncio.Event().wait()

    async def main():
        hooks = {"on_session_reset": [hang_on_asyncio]}
        async with open_runtime_asyncio(path, agent=echo, hooks=hooks, config=SHORT) as runtime:
            await runtime.ask("k", "hello")
            await runtime.conversation("k").new()
            waiting = asyncio.create_task(runtime.wait_hooks())
            for _ in range(2):  # the task starts during the first call, and its call runs first
                await runtime.conversation("k").history()
        with pytest.raises(ActorStopped, match=HOOKS_LEFT):
            await asyncio.wait_for(waiting, SECONDS)

    asyncio.run(main())


# A store that has failed


@pytest.mark.sqlite_only("removes a file of the database")
async def test_on_trio_every_verb_says_that_the_store_has_failed(path):
    with pytest.raises(StoreFailed):
        async with open_runtime(path, agent=echo) as runtime:
            await runtime.ask("k", "hello")
            break_store(path)
            await runtime.ask("k", "hello")
    refused(await call_on_trio(runtime), StoreFailed, "removed or replaced")
    with pytest.raises(StoreFailed, match="removed or replaced"):
        await runtime.wait_stopped()


@pytest.mark.sqlite_only("removes a file of the database")
def test_in_a_script_every_verb_says_that_the_store_has_failed(path):
    with pytest.raises(StoreFailed), start_runtime(path, agent=echo) as runtime:
        runtime.ask("k", "hello")
        break_store(path)
        with pytest.raises(StoreFailed):
            runtime.ask("k", "hello")
        refused(call_blocking(runtime), StoreFailed, "removed or replaced")
        with pytest.raises(StoreFailed, match="removed or replaced"):
            runtime.wait_stopped()
    refused(call_blocking(runtime), StoreFailed, "removed or replaced")


@pytest.mark.sqlite_only("removes a file of the database")
def test_on_asyncio_every_verb_says_that_the_store_has_failed(path):
    outcomes = []

    async def main():
        async with open_runtime_asyncio(path, agent=echo) as runtime:
            await runtime.ask("k", "hello")
            break_store(path)
            with pytest.raises(StoreFailed):
                await runtime.ask("k", "hello")
            outcomes.append(await call_on_asyncio(runtime))
            with pytest.raises(StoreFailed, match="removed or replaced"):
                await runtime.wait_stopped()

    with pytest.raises(StoreFailed):
        asyncio.run(main())
    refused(outcomes[0], StoreFailed, "removed or replaced")


# Subscriptions and streams when the store fails


def opened_by(runtime):
    """Everything that iterates over events."""
    return {
        "subscribe": runtime.subscribe(),
        "follow": runtime.follow("k"),
        "follow a conversation": runtime.conversation("k").follow(),
        "stream": runtime.stream("k", "hold"),
        "stream of a conversation": runtime.conversation("other").stream("hold"),
    }


async def read_to_the_end(events):
    """Read events to the end; return the error that ended them."""
    try:
        async for _ in events:
            pass
    except HermesError as error:
        return error
    return None


def read_in_a_thread(events):
    try:
        for _ in events:
            pass
    except HermesError as error:
        return error
    return None


@pytest.mark.sqlite_only("removes a file of the database")
async def test_on_trio_events_end_with_the_failure_of_the_store(path):
    outcomes = {}

    async def read(name, events, task_status):
        async with events:
            task_status.started()
            outcomes[name] = await read_to_the_end(events)

    async def hold(turn):
        await trio.sleep(SECONDS if turn.text == "hold" else 0)
        return "held"

    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            with pytest.raises(StoreFailed):
                async with open_runtime(path, agent=hold) as runtime:
                    late = runtime.subscribe()
                    for name, events in opened_by(runtime).items():
                        await nursery.start(read, name, events)
                    break_store(path)
                    await runtime.ask("third", "hello")
    outcomes["read afterwards"] = await read_to_the_end(late)
    assert len(outcomes) == 6
    refused(outcomes, StoreFailed, "removed or replaced")


@pytest.mark.sqlite_only("removes a file of the database")
def test_in_a_script_events_end_with_the_failure_of_the_store(path):
    async def hold(turn):
        await trio.sleep(SECONDS if turn.text == "hold" else 0)
        return "held"

    with ThreadPoolExecutor(5) as threads:
        with pytest.raises(StoreFailed), start_runtime(path, agent=hold) as runtime:
            late = runtime.subscribe().__enter__()
            opened = {name: each.__enter__() for name, each in opened_by(runtime).items()}
            read = {name: threads.submit(read_in_a_thread, each) for name, each in opened.items()}
            break_store(path)
            runtime.ask("third", "hello")
        outcomes = {name: each.result(SECONDS) for name, each in read.items()}
    outcomes["read afterwards"] = read_in_a_thread(late)
    refused(outcomes, StoreFailed, "removed or replaced")


@pytest.mark.sqlite_only("removes a file of the database")
def test_on_asyncio_events_end_with_the_failure_of_the_store(path):
    async def hold(turn):
        await asyncio.sleep(SECONDS if turn.text == "hold" else 0)
        return "held"

    async def main():
        read = {}
        with pytest.raises(StoreFailed):
            async with open_runtime_asyncio(path, agent=hold) as runtime:
                late = await runtime.subscribe().__aenter__()
                for name, each in opened_by(runtime).items():
                    events = await each.__aenter__()
                    read[name] = asyncio.create_task(read_to_the_end(events))
                break_store(path)
                await runtime.ask("third", "hello")
        outcomes = {name: await asyncio.wait_for(each, SECONDS) for name, each in read.items()}
        return {**outcomes, "read afterwards": await read_to_the_end(late)}

    refused(asyncio.run(main()), StoreFailed, "removed or replaced")


# Subscriptions at an orderly end


async def test_on_trio_a_subscription_that_is_read_after_the_end_has_all_events(path):
    async with open_runtime(path, agent=echo) as runtime:
        events = runtime.subscribe()
        await runtime.ask("k", "hello")
    assert [type(each.event) async for each in events][-1] is TurnEnded


def test_in_a_script_a_subscription_that_is_read_after_the_end_has_all_events(path):
    with start_runtime(path, agent=echo) as runtime:
        events = runtime.subscribe().__enter__()
        runtime.ask("k", "hello")
    assert [type(each.event) for each in events][-1] is TurnEnded


def test_on_asyncio_a_subscription_that_is_read_after_the_end_has_all_events(path):
    async def main():
        async with open_runtime_asyncio(path, agent=echo) as runtime:
            events = await runtime.subscribe().__aenter__()
            await runtime.ask("k", "hello")
        return [type(each.event) async for each in events]

    assert asyncio.run(main())[-1] is TurnEnded


# Functions for Trio that still run


@pytest.mark.sqlite_only("removes a file of the database")
def test_on_asyncio_a_function_for_trio_is_told_why_the_runtime_ended(path):
    async def forever(_):
        await trio.sleep_forever()

    async def main():
        with pytest.raises(StoreFailed):
            async with open_runtime_asyncio(path, agent=echo) as runtime:
                await runtime.ask("k", "hello")
                pending = asyncio.create_task(runtime.run_on_trio(forever))
                await runtime.conversation("k").history()
                break_store(path)
                await runtime.ask("k", "hello")
        with pytest.raises(StoreFailed, match="removed or replaced"):
            await asyncio.wait_for(pending, SECONDS)

    asyncio.run(main())


@pytest.mark.sqlite_only("removes a file of the database")
def test_in_a_script_a_function_for_trio_is_told_why_the_runtime_ended(path):
    pending = threading.Event()

    async def forever(_):
        pending.set()
        await trio.sleep_forever()

    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(StoreFailed), start_runtime(path, agent=echo) as runtime:
            waiting = threads.submit(runtime.run_on_trio, forever)
            assert pending.wait(SECONDS)
            break_store(path)
            runtime.ask("k", "hello")
        with pytest.raises(StoreFailed, match="removed or replaced"):
            waiting.result(SECONDS)


# A drain inside the block

STORE_ONLY = {
    "drain", "follow", "subscribe", "is_answered", "receipt_of", "reply_of", "run_on_trio", "wait",
    "wait_hooks", "history", "title", "settings", "sessions", "search", "snapshot", "interrupt",
    "archive", "unarchive", "find", "messages", "delete", "running_turns", "statistics",
    "commit_seconds",
    "passivate", "get", "set", "receive", "roles", "mark_shown", "open_file", "read_file",
    "is_elsewhere", "cluster_view", "node_id",
    "save_file",
    "get_response", "find_response", "response_to", "attach", "open_elsewhere", "begin_answer",
    "end_connection",
    "record_process",
    "recent_rows", "record_items", "delete_response", "delete_responses", "list_responses",
    "add_token", "find_token", "valid_tokens", "valid_digests", "list_tokens", "revoke_token",
    "add_sign_in", "find_sign_in", "sign_in", "sign_in_paired", "request_access",
    "asks_for_access", "clear_sign_ins",
    "current_agent", "list_agents", "attachment_limits", "find_file",
    "list_files", "keep_file", "delete_file", "list_branches", "conversations", "view", "stamps",
    "has_other_nodes",
    "progress", "outcome", "approvals", "approval", "allowed_tools", "revoke_tool", "usage",
    "spent", "actors", "lanes", "pairings", "principals", "approve_pairing", "unpair",
    "waiting_calls", "process_id", "health", "waiting_approvals", "published",
    "past_turns", "past_turn", "turns_of_rows", "call_rows", "rebuild_call", "turn_events",
    "watch_actors", "live_runtime", "commits_by_second", "pulse", "costs_today", "lane_rows",
    "session_family", "summary_rows", "model_calls", "cached_conversations", "rebuilds",
}  # fmt: skip
"""Verbs that work until the block is left; `wait` does so for a message that was answered."""


def refused_by_a_drain(outcomes, kind, words, also_working=()):
    """All verbs are refused with this error, except those that use the store only."""
    named = {name: name.partition(".")[2] for name in outcomes}
    working = {name for name in outcomes if named[name] in {*STORE_ONLY, *also_working}}
    refused({name: outcomes[name] for name in outcomes.keys() - working}, kind, words)
    failed = {
        name: outcomes[name]
        for name in working
        if isinstance(outcomes[name], BaseException)
        and not isinstance(outcomes[name], UnknownSession | UnknownFile | UnknownTurn | ValueError)
    }
    assert failed == {}
    assert len(outcomes) - len(working) > 15


def refused_while_draining(outcomes):
    refused_by_a_drain(outcomes, Draining, "accepts no new work", {"status"})


def refused_once_drained(outcomes):
    refused_by_a_drain(outcomes, ActorStopped, "the runtime has ended")


async def test_on_trio_verbs_are_refused_by_a_drain(path):
    gate, began = trio.Event(), trio.Event()

    async def agent(turn):
        if turn.text == "hold":
            began.set()
            await gate.wait()
        return "held"

    async with trio.open_nursery() as nursery, open_runtime(path, agent=agent) as runtime:
        await runtime.ask("k", "hello")
        await runtime.submit(Inbound("held", "e", "hold"))
        await began.wait()
        nursery.start_soon(runtime.drain)
        while not (await runtime.admin.statistics()).draining:
            pass
        refused_while_draining(await call_on_trio(runtime, without={"Runtime.drain"}))
        gate.set()
        await runtime.wait_stopped()
        refused_once_drained(await call_on_trio(runtime))
        assert len(await runtime.conversation("k").history()) == 2


def test_in_a_script_verbs_are_refused_by_a_drain(path):
    gate, began = trio.Event(), threading.Event()

    async def agent(turn):
        if turn.text == "hold":
            began.set()
            await gate.wait()
        return "held"

    async def open_gate(_):
        gate.set()

    with start_runtime(path, agent=agent) as runtime, ThreadPoolExecutor(1) as threads:
        runtime.ask("k", "hello")
        runtime.submit(Inbound("held", "e", "hold"))
        assert began.wait(SECONDS)
        drain = threads.submit(runtime.drain)
        while not runtime.admin.statistics().draining:
            pass
        refused_while_draining(call_blocking(runtime, without={"BlockingRuntime.drain"}))
        runtime.run_on_trio(open_gate)
        drain.result(SECONDS)
        runtime.wait_stopped()
        refused_once_drained(call_blocking(runtime))


def test_on_asyncio_verbs_are_refused_by_a_drain(path):
    async def main():
        gate, began = asyncio.Event(), asyncio.Event()

        async def agent(turn):
            if turn.text == "hold":
                began.set()
                await gate.wait()
            return "held"

        async with open_runtime_asyncio(path, agent=agent) as runtime:
            await runtime.ask("k", "hello")
            await runtime.submit(Inbound("held", "e", "hold"))
            await began.wait()
            stopped = asyncio.create_task(runtime.wait_stopped())
            drain = asyncio.create_task(runtime.drain())
            while not (await runtime.admin.statistics()).draining:
                pass
            during = await call_on_asyncio(runtime, without={"AsyncioRuntime.drain"})
            gate.set()
            await drain
            await asyncio.wait_for(stopped, SECONDS)
            return during, await call_on_asyncio(runtime)

    during, once_drained = asyncio.run(main())
    refused_while_draining(during)
    refused_once_drained(once_drained)


# Waiting for the end


@pytest.mark.sqlite_only("removes a file of the database")
async def test_on_trio_those_who_wait_for_the_end_are_told_why_it_came(path):
    ended = []

    async def watch(runtime):
        try:
            await runtime.wait_stopped()
        except StoreFailed as error:
            ended.append(error)

    async with trio.open_nursery() as nursery:
        with pytest.raises(StoreFailed):
            async with open_runtime(path, agent=echo) as runtime:
                nursery.start_soon(watch, runtime)
                await runtime.ask("k", "hello")
                break_store(path)
                await runtime.ask("k", "hello")
    assert len(ended) == 1


@pytest.mark.sqlite_only("removes a file of the database")
def test_in_a_script_those_who_wait_for_the_end_are_told_why_it_came(path):
    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(StoreFailed), start_runtime(path, agent=echo) as runtime:
            runtime.ask("k", "hello")
            waiting = threads.submit(runtime.wait_stopped)
            break_store(path)
            runtime.ask("k", "hello")
        assert "removed or replaced" in str(waiting.exception(SECONDS))
        with pytest.raises(StoreFailed, match="removed or replaced"):
            runtime.wait_stopped()


@pytest.mark.sqlite_only("removes a file of the database")
def test_on_asyncio_those_who_wait_for_the_end_are_told_why_it_came(path):
    async def main():
        with pytest.raises(StoreFailed):
            async with open_runtime_asyncio(path, agent=echo) as runtime:
                await runtime.ask("k", "hello")
                waiting = asyncio.create_task(runtime.wait_stopped())
                break_store(path)
                await runtime.ask("k", "hello")
        for wait in (waiting, runtime.wait_stopped()):
            with pytest.raises(StoreFailed, match="removed or replaced"):
                await asyncio.wait_for(wait, SECONDS)

    asyncio.run(main())


# A store that fails while the runtime drains, or afterwards


@pytest.mark.sqlite_only("removes a file of the database")
async def test_on_trio_a_store_that_fails_during_a_drain_is_reported(path):
    began, errors = trio.Event(), []

    async def hold(turn):
        began.set()
        await trio.sleep_forever()

    with pytest.raises(StoreFailed, match="removed or replaced"):
        async with open_runtime(path, agent=hold) as runtime:
            await runtime.submit(Inbound("k", "e", "hold"))
            await began.wait()
            break_store(path)
            try:
                await runtime.drain(0)
            except BaseException as error:
                errors.append(error)
                raise
    assert isinstance(errors[0], StoreFailed | trio.Cancelled)
    with pytest.raises(StoreFailed, match="removed or replaced"):
        await runtime.wait_stopped()


@pytest.mark.sqlite_only("removes a file of the database")
def test_in_a_script_a_store_that_fails_during_a_drain_is_reported(path):
    began = threading.Event()

    async def hold(turn):
        began.set()
        await trio.sleep_forever()

    with pytest.raises(StoreFailed), start_runtime(path, agent=hold) as runtime:
        runtime.submit(Inbound("k", "e", "hold"))
        assert began.wait(SECONDS)
        break_store(path)
        for wait in (lambda: runtime.drain(0), runtime.wait_stopped):
            with pytest.raises(StoreFailed, match="removed or replaced"):
                wait()


@pytest.mark.sqlite_only("removes a file of the database")
def test_on_asyncio_a_store_that_fails_during_a_drain_is_reported(path):
    async def main():
        began = asyncio.Event()

        async def hold(turn):
            began.set()
            await asyncio.Event().wait()

        async with open_runtime_asyncio(path, agent=hold) as runtime:
            await runtime.submit(Inbound("k", "e", "hold"))
            await began.wait()
            break_store(path)
            for wait in (lambda: runtime.drain(0), runtime.wait_stopped):
                with pytest.raises(StoreFailed, match="removed or replaced"):
                    await asyncio.wait_for(wait(), SECONDS)

    with pytest.raises(StoreFailed):
        asyncio.run(main())


@pytest.mark.sqlite_only("removes a file of the database")
def test_in_a_script_a_store_that_fails_after_a_drain_is_reported(path):
    with pytest.raises(StoreFailed), start_runtime(path, agent=echo) as runtime:
        runtime.drain()
        break_store(path)
        for verb in (lambda: runtime.adapter_state.set("n", "v"), runtime.wait_stopped):
            with pytest.raises(StoreFailed, match="removed or replaced"):
                verb()


async def test_an_error_of_the_host_is_no_failure_of_the_runtime(path):
    with pytest.raises(ZeroDivisionError):
        async with open_runtime(path, agent=echo) as runtime:
            raise ZeroDivisionError
    await runtime.wait_stopped()


@pytest.mark.sqlite_only("removes a file of the database")
def test_on_asyncio_a_host_is_told_that_its_store_failed_although_it_calls_nothing(path):
    async def main():
        async with open_runtime_asyncio(path, agent=echo, sweep_interval=0.05) as runtime:
            break_store(path)
            with pytest.raises(StoreFailed):
                await asyncio.wait_for(runtime.wait_stopped(), SECONDS)

    with pytest.raises(StoreFailed):
        asyncio.run(main())


def test_streams_and_subscriptions_of_a_runtime_that_has_ended_can_be_closed(path):
    with start_runtime(path, agent=echo) as runtime:
        stream = runtime.stream("k", "hello").__enter__()
        events = runtime.subscribe().__enter__()
    stream.__exit__(None, None, None)
    events.close()


def test_a_script_that_calls_a_verb_in_the_thread_of_the_runtime_is_refused(path):
    errors = []

    async def agent(turn):
        try:
            runtime.conversation("other").history()
        except HermesError as error:
            errors.append(error)
        return "refused"

    with start_runtime(path, agent=agent) as runtime:
        assert runtime.ask("k", "hello").text == "refused"
    assert len(errors) == 1
