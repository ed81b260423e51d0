"""The app inside an asyncio program, with uvicorn and FastAPI."""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, contextmanager

import httpx2
import openai
import pytest
import trio
import uvicorn
import websockets.sync.client
from fastapi import FastAPI

import hermes
from hermes.adapters.http.credentials import digest_of, new_id, new_secret
from hermes.embed.asyncio_http import _serve
from hermes.messages import Token
from hermes.store import SessionStore
from tests.support.services import EXAMPLES

SECONDS = 60


def store_token(path):
    """Store a token in the database; returns its secret."""
    secret = new_secret()
    token = Token(id=new_id("tok"), name="ann", namespace="ann", roles=("user",), created_at=0.0)
    with SessionStore(path) as store:
        store.add_token(token, digest_of(secret))
    return secret


@contextmanager
def uvicorn_in_a_thread(path, agent, *, trio_app=None):
    """A FastAPI app with ours below a prefix; yields its URL and the runtime."""

    @asynccontextmanager
    async def lifespan(app):
        async with (
            hermes.embed.open_runtime_asyncio(path, agent=agent) as runtime,
            hermes.embed.open_http_app(runtime) as http,
        ):
            app.mount("/hermes", http)
            if trio_app is not None:
                app.mount("/trio", functools.partial(_serve, runtime, trio_app))
            opened.put(runtime)
            yield

    opened = queue.SimpleQueue()
    app = FastAPI(lifespan=lifespan)
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="error", ws="websockets-sansio", access_log=False)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        runtime = opened.get(timeout=SECONDS)
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.01)
        [listening] = server.servers[0].sockets
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", runtime
    finally:
        server.should_exit = True
        thread.join(SECONDS)
        assert not thread.is_alive()


async def reply(turn):
    for letter in turn.text:
        turn.emit(hermes.TextDelta(letter))
    await asyncio.sleep(0)  # it runs on the loop of the host
    return turn.text


def test_the_sdk_works_below_a_prefix(path):
    secret = store_token(path)
    with uvicorn_in_a_thread(path, reply) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/hermes/v1", api_key=secret, max_retries=0)
        with client:
            answer = client.responses.create(model="hermes", input="good evening")
            assert answer.output_text == "good evening"
            assert client.responses.retrieve(answer.id).output_text == "good evening"
            with client.responses.stream(model="hermes", input="one two") as stream:
                kinds = [event.type for event in stream]
                assert stream.get_final_response().output_text == "one two"
            assert "response.output_text.delta" in kinds
        assert httpx2.get(f"{url}/hermes/readyz").text == "ready\n"
        assert httpx2.get(f"{url}/hermes/v1/models").status_code == 401
        assert httpx2.get(f"{url}/v1/models").status_code == 404


class Probe:
    """An app on Trio that says what happens to it."""

    def __init__(self):
        self.events = queue.SimpleQueue()

    async def __call__(self, scope, receive, send):
        assert trio.lowlevel.in_trio_run()
        serve = self.websocket if scope["type"] == "websocket" else self.http
        await serve(receive, send)

    async def http(self, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.wait_for_the_end, receive, nursery.cancel_scope)
                while True:
                    piece = {"type": "http.response.body", "body": bytes(65536), "more_body": True}
                    with trio.move_on_after(0.5) as waiting:
                        await send(piece)
                    if waiting.cancelled_caught:
                        self.events.put("blocked")
                        await trio.sleep_forever()
        finally:
            self.events.put("ended")

    async def wait_for_the_end(self, receive, scope):
        while (await receive())["type"] != "http.disconnect":
            pass
        self.events.put("disconnected")
        scope.cancel()

    async def websocket(self, receive, send):
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"].upper()})
        self.events.put("closed")


def test_a_client_that_does_not_read_stops_its_request_only_and_its_end_is_known(path):
    probe = Probe()
    with uvicorn_in_a_thread(path, reply, trio_app=probe) as (url, _):
        with httpx2.stream("GET", f"{url}/trio/") as response:
            assert response.status_code == 200
            assert probe.events.get(timeout=SECONDS) == "blocked"
            assert httpx2.get(f"{url}/hermes/healthz").text == "ok\n"
        assert probe.events.get(timeout=SECONDS) == "disconnected"
        assert probe.events.get(timeout=SECONDS) == "ended"


def test_websockets_cross_to_the_runtimes_loop(path):
    probe = Probe()
    with uvicorn_in_a_thread(path, reply, trio_app=probe) as (url, _):
        address = f"ws{url.removeprefix('http')}/trio/"
        with websockets.sync.client.connect(address) as client:
            client.send("hello")
            assert client.recv(timeout=SECONDS) == "HELLO"
        assert probe.events.get(timeout=SECONDS) == "closed"


async def _cancelled(path, probe):
    started = asyncio.Event()

    async def receive():
        await asyncio.sleep(3600)

    async def send(message):
        started.set()
        if message["type"] == "http.response.body":
            await asyncio.sleep(3600)

    async with hermes.embed.open_runtime_asyncio(path, agent=reply) as runtime:
        task = asyncio.create_task(_serve(runtime, probe, {"type": "http"}, receive, send))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_a_request_that_the_host_cancels_is_cancelled_on_trio(path):
    probe = Probe()
    asyncio.run(_cancelled(path, probe))
    assert probe.events.get(timeout=SECONDS) == "ended"


async def _after_the_end(path):
    sent = []

    async def send(message):
        sent.append(message)

    async with hermes.embed.open_runtime_asyncio(path, agent=reply) as runtime:
        async with hermes.embed.open_http_app(runtime) as http:
            pass
    await http({"type": "http"}, None, send)
    return sent


def test_after_the_end_of_the_runtime_it_answers_503(path):
    start, body = asyncio.run(_after_the_end(path))
    assert start["status"] == 503
    assert b"has ended" in body["body"]


@pytest.mark.parametrize(
    ("command", "base"),
    [
        (["http_trio.py", "{path}", "127.0.0.1:0"], "/v1"),
        (["-m", "uvicorn", "--port", "0", "http_asyncio:app"], "/hermes/v1"),
    ],
    ids=["trio", "asyncio"],
)
def test_the_examples_answer_the_sdk(path, command, base):
    secret = store_token(path)
    process = subprocess.Popen(
        [sys.executable, "-W", "error", *(each.format(path=path) for each in command)],
        cwd=EXAMPLES,
        env={**os.environ, "CHATS": str(path), "PYTHONPATH": str(EXAMPLES.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        assert found, "".join(lines)
        with openai.OpenAI(base_url=f"{found[0]}{base}", api_key=secret, max_retries=0) as client:
            answer = client.responses.create(model="hermes", input="hello")
        assert answer.output_text == "You said: hello"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
    assert process.returncode in {0, -signal.SIGTERM}
