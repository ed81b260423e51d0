"""The stock SDK through every call: on Trio in the same loop, in a thread, and on asyncio."""

from __future__ import annotations

import sys
from pathlib import Path

import openai
import pytest
import trio

from hermes import TextDelta
from tests.support.http import http_server
from tests.support.sdk_walk import walk_async, walk_blocking

# The SDK stops reading at "[DONE]", and leaves the end of the stream to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
ROOT = Path(__file__).parents[2]


async def speak(turn):
    if turn.text == "wait":
        await trio.sleep_forever()
    turn.emit(TextDelta("echo: "))
    await trio.lowlevel.checkpoint()
    turn.emit(TextDelta(turn.text))
    return f"echo: {turn.text}"


async def test_the_asynchronous_client_on_trio(path):
    async with http_server(path, speak) as server:
        await walk_async(server.openai())


async def test_the_synchronous_client_in_a_thread(path):
    def walk():
        url = f"{server.url}/v1"
        with openai.OpenAI(base_url=url, api_key=server.secret, max_retries=0) as client:
            walk_blocking(client)

    async with http_server(path, speak) as server:
        await trio.to_thread.run_sync(walk)


async def test_the_asynchronous_client_on_asyncio(path):
    async with http_server(path, speak) as server:
        program = [sys.executable, "-W", "error", "-m", "tests.support.sdk_walk"]
        await trio.run_process([*program, f"{server.url}/v1", server.secret], cwd=ROOT)
