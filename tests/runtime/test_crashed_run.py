"""If the Trio run of a runtime crashes, every call of its host gets an answer."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio

from hermes.background import crash_run
from hermes.embed import open_runtime_asyncio, start_runtime

BEGUN = threading.Event()
FAILED = "ActorStopped: the runtime failed: trio.TrioInternalError"


class Endless:
    """An agent that never answers."""

    on_trio = True

    async def run(self, turn):
        BEGUN.set()
        await trio.sleep_forever()


async def crash(runtime):
    crash_run()
    await trio.sleep_forever()


def raised(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - the test compares it
        return f"{type(error).__name__}: {error}"


async def raised_by(awaitable):
    try:
        await awaitable
    except Exception as error:  # noqa: BLE001 - the test compares it
        return f"{type(error).__name__}: {error}"


def blocking(path, answers):
    with ThreadPoolExecutor() as pool, start_runtime(path, agent=Endless()) as runtime:
        waiting = pool.submit(raised, runtime.ask, "k", "hello")
        BEGUN.wait()
        answers["crash"] = raised(runtime.run_on_trio, crash)
        answers["waiting"] = waiting.result()
        answers["later"] = raised(runtime.ask, "k", "again")
        answers["stopped"] = raised(runtime.wait_stopped)


async def on_asyncio(path, answers):
    async with open_runtime_asyncio(path, agent=Endless()) as runtime:
        waiting = asyncio.create_task(raised_by(runtime.ask("k", "hello")))
        await asyncio.to_thread(BEGUN.wait)
        answers["crash"] = await raised_by(runtime.run_on_trio(crash))
        answers["waiting"] = await waiting
        answers["later"] = await raised_by(runtime.ask("k", "again"))
        answers["stopped"] = await raised_by(runtime.wait_stopped())


HOSTS = {
    "blocking": blocking,
    "asyncio": lambda path, answers: asyncio.run(on_asyncio(path, answers)),
}


@pytest.mark.parametrize("host", HOSTS)
def test_a_crash_of_trio_answers_every_call_of_the_host(host, tmp_path):
    """In a process of its own: a run that crashes leaves coroutines behind."""
    done = subprocess.run(
        [sys.executable, __file__, host, str(tmp_path / "chat.db")],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    answers = json.loads(done.stdout)
    assert answers.pop("left").startswith("TrioInternalError")
    assert answers == dict.fromkeys(("crash", "waiting", "later", "stopped"), FAILED)


if __name__ == "__main__":
    found: dict[str, str | None] = {}
    found["left"] = raised(HOSTS[sys.argv[1]], sys.argv[2], found)
    sys.stdout.write(json.dumps(found))
