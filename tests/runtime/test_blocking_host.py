"""A runtime inside a synchronous program."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor, _base

import pytest
import trio
import trio.testing

from hermes.embed import BlockingRuntime, start_runtime
from hermes.errors import ActorStopped, UnknownSession
from hermes.events import TextDelta, TurnEnded
from hermes.store import SessionStore
from tests.support.runtime import SECONDS


async def echo(turn):
    return f"echo: {turn.text}"


def test_a_script_asks_from_many_threads(path):
    with start_runtime(path, agent=echo) as runtime:
        with ThreadPoolExecutor(8) as threads:
            asked = [f"message {n}" for n in range(40)]
            replies = list(threads.map(lambda text: runtime.ask(f"k{len(text)}", text), asked))
        for text, reply in zip(asked, replies, strict=True):
            assert text in reply.text  # messages that were queued together get one answer
        assert runtime.admin.statistics().actors == 2
        assert runtime.conversation("nobody").snapshot() is None
    with SessionStore(path) as store:
        assert not store.open_inbox()


def test_a_script_reads_a_stream_and_may_leave_it(path):
    with start_runtime(path, agent=echo) as runtime:
        with runtime.stream("k", "one") as stream:
            *_, last = stream
        assert last == TurnEnded(last.reply)
        assert last.reply.text == "echo: one"
        with runtime.stream("k", "two") as stream:
            next(stream)
        assert runtime.ask("k", "three").text.endswith("three")


class CountingPortal:
    """Counts the calls into the runtime's thread."""

    def __init__(self, portal):
        self.portal = portal
        self.calls = 0

    def start_task_soon(self, function):
        self.calls += 1
        return self.portal.start_task_soon(function)


def test_events_that_have_arrived_cross_together(path):
    pieces, ended = [f"{number} " for number in range(200)], threading.Event()

    async def speak(turn):
        for piece in pieces:
            turn.emit(TextDelta(piece))
        return "done"

    def on_event(envelope):
        if isinstance(envelope.event, TurnEnded):
            ended.set()

    with start_runtime(path, agent=speak) as runtime:
        portal = CountingPortal(runtime._portal)
        counted = BlockingRuntime(portal, runtime._target)
        with runtime.subscribe(callback=on_event), counted.stream("k", "hello") as stream:
            ended.wait()
            before = portal.calls
            texts = [event.text for event in stream if isinstance(event, TextDelta)]
        assert "".join(texts) == "".join(pieces)
        assert portal.calls - before == 2


def test_errors_are_raised_in_the_script_unchanged(path):
    with start_runtime(path, agent=echo) as runtime:
        with pytest.raises(UnknownSession, match="there is no session"):
            runtime.conversation("k").switch("nowhere")
        with pytest.raises(ValueError, match="session_key"):
            runtime.ask("", "hello")
        runtime.drain()
        with pytest.raises(ActorStopped):
            runtime.ask("k", "too late")
    with pytest.raises(ZeroDivisionError), start_runtime(path, agent=echo):
        raise ZeroDivisionError


def test_a_script_interrupted_during_a_turn_ends_at_once_and_loses_nothing(path):
    """The main thread of another process is interrupted while it waits for a reply."""
    code = """
        import os, signal, sys, trio
        from hermes.embed import start_runtime

        async def never(turn):
            os.kill(os.getpid(), signal.SIGINT)
            await trio.sleep_forever()

        try:
            with start_runtime(sys.argv[1], agent=never) as runtime:
                runtime.ask("k", "hello?")
        except KeyboardInterrupt:
            print("interrupted")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
    with start_runtime(path, agent=echo) as runtime:
        runtime.drain()
        assert [row.content for row in runtime.conversation("k").history()] == [
            "hello?",
            "echo: hello?",
        ]


def test_search_finds_messages_of_the_key_only(path):
    with start_runtime(path, agent=echo) as runtime:
        runtime.ask("k", "bees sleep at night")
        runtime.ask("other", "bees are mine alone")
        assert [hit.role for hit in runtime.conversation("k").search("bees")] == [
            "user",
            "assistant",
        ]
        assert [hit.snippet for hit in runtime.conversation("k").search("bees", role="user")] == [
            ">>>bees<<< sleep at night"
        ]
        assert runtime.conversation("k").search("mine") == []


def test_a_call_that_ends_while_it_is_being_cancelled_logs_nothing(path, caplog):
    """The call ends after its future was cancelled, but before the callbacks of that have run."""
    begun, gates = threading.Event(), []

    async def call():
        gates.append(trio.Event())
        begun.set()
        await gates[0].wait()

    async def end_call(_):
        gates[0].set()
        await trio.testing.wait_all_tasks_blocked()

    def end_call_once(frame, _event, _argument):
        if frame.f_code.co_filename not in {_base.__file__, threading.__file__}:
            sys.settrace(traced_before)
            runtime.run_on_trio(end_call)

    with start_runtime(path, agent=echo) as runtime:
        future = runtime._portal.start_task_soon(call)
        assert begun.wait(SECONDS)
        traced_before = sys.gettrace()
        sys.settrace(end_call_once)
        future.cancel()
        assert sys.gettrace() is traced_before
        assert future.cancelled()
    assert caplog.records == []
