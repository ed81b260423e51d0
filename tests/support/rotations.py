"""Conversations that move to a child session, in every way there is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import trio

from hermes import (
    CompressionConfig,
    Config,
    current_session_id,
    open_runtime,
    set_current_session_id,
)
from hermes.errors import ContextOverflow
from hermes.messages import TurnResult, Usage
from hermes.testing import DeterministicCompressor, inspect, texts_of

LONG = "a sentence that is long enough to be worth a summary, " * 3
SMALL = Config(compression=CompressionConfig(window=1000, max_output=0, share=0.5, protect_first=0))
ROOT = Path(__file__).parents[2]


async def visible_ids(turn):
    """Return the session id as the turn, its task, a child task and a thread see it."""
    seen = [turn.session_id, current_session_id()]

    async def task():
        seen.append(current_session_id())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(task)
    seen.append(await trio.to_thread.run_sync(current_session_id))
    return seen


@attrs.define
class RotatingAgent:
    """An agent that runs the command in its input and records which session it is in."""

    seen: list = attrs.Factory(list)
    """The ids of `visible_ids`, for each turn."""
    shown: list = attrs.Factory(list)
    """The history that each turn was given."""
    overflowed: bool = False

    async def run(self, turn, /):
        command, _, argument = turn.text.partition(" ")
        self.shown.append(texts_of(turn.history))
        result = await self._execute(command, argument)
        self.seen.append(await visible_ids(turn))
        return result or TurnResult(text=f"echo: {turn.text}")

    async def _execute(self, command, session_id):
        match command:
            case "return":
                return TurnResult(text="I went on by myself", session_id=session_id)
            case "set":
                set_current_session_id(session_id)
            case "thread":
                await trio.to_thread.run_sync(set_current_session_id, session_id)
            case "task":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._execute, "set", session_id)
            case "overflow" if not self.overflowed:
                self.overflowed = True
                raise ContextOverflow("too much")
            case "count":
                return TurnResult(text="counted", usage=[Usage(input_tokens=100_000)])
            case "die":
                os._exit(9)
        return None


async def speak(runtime, times, key="k"):
    """Send long messages; returns the last reply."""
    for _ in range(times):
        reply = await runtime.ask(key, LONG)
    return reply


# Ways to rotate. Each returns the id of the child session.


async def by_threshold(runtime):
    first = (await speak(runtime, 5)).session_id
    for _ in range(5):
        if (reply := await speak(runtime, 1)).session_id != first:
            return reply.session_id
    raise AssertionError("it was not compressed")


async def by_command(runtime):
    await speak(runtime, 4)
    reply = await runtime.ask("k", "/compress here 1")
    assert reply.text.startswith("Compressed"), reply.text
    return reply.session_id


async def by_verb(runtime):
    await speak(runtime, 4)
    return (await runtime.conversation("k").compress(keep_exchanges=1)).session_id


async def by_overflow(runtime):
    before = (await speak(runtime, 4)).session_id
    reply = await runtime.ask("k", "overflow")
    assert (reply.status, reply.session_id != before) == ("complete", True)
    return reply.session_id


async def by_provider_count(runtime):
    await speak(runtime, 4)
    before = (await runtime.ask("k", "count")).session_id
    await inspect(runtime).wait_idle("k")  # it is compressed after the reply
    child = (await runtime.conversation("k").status()).session_id
    assert child != before, "it was not compressed"
    return child


async def by_result(runtime):
    await speak(runtime, 2)
    return (await runtime.ask("k", "return child-1")).session_id


async def by_context(runtime):
    await speak(runtime, 2)
    return (await runtime.ask("k", "set child-1")).session_id


async def by_context_in_a_thread(runtime):
    await speak(runtime, 2)
    return (await runtime.ask("k", "thread child-1")).session_id


async def by_context_in_a_task(runtime):
    await speak(runtime, 2)
    return (await runtime.ask("k", "task child-1")).session_id


async def by_result_in_the_first_turn(runtime):
    return (await runtime.ask("k", "return child-1")).session_id


BY_AGENT = [
    by_result, by_context, by_context_in_a_thread, by_context_in_a_task,
    by_result_in_the_first_turn,
]  # fmt: skip
BY_COMPRESSION = [by_threshold, by_command, by_verb, by_overflow, by_provider_count]
WAYS = {way.__name__: way for way in [*BY_COMPRESSION, *BY_AGENT]}


# Processes that end abruptly: `python -m tests.support.rotations PATH [WAY]`


def _open(path):
    return open_runtime(
        path,
        build_agent=lambda _: RotatingAgent(),
        compressor=DeterministicCompressor(),
        config=SMALL,
    )


async def _rotate_and_wait(path, way):
    """Rotate, print the child's id and wait to be killed."""
    async with _open(path) as runtime:
        print(json.dumps(await WAYS[way](runtime)), flush=True)  # noqa: T201
        await trio.sleep_forever()


async def _die_in_a_turn(path):
    """Die in a turn that was preceded by a compression."""
    async with _open(path) as runtime:
        await speak(runtime, 5)
        await runtime.ask("k", f"die {LONG}", event_id="fatal")


def rotate_and_get_killed(path, way):
    """Rotate in a process that is killed right after it; returns the child's id."""
    with _start(path, way) as process:
        child = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    return child


def die_in_a_turn_after_a_rotation(path):
    """Run a process that dies in its turn `fatal`, right after a compression."""
    with _start(path) as process:
        assert process.wait(60) == 9


def _start(*arguments):
    command = [sys.executable, "-m", "tests.support.rotations", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)


if __name__ == "__main__":
    trio.run(_rotate_and_wait if len(sys.argv) > 2 else _die_in_a_turn, *sys.argv[1:])
