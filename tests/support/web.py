"""A runtime with the web page in a thread, for tests whose browser runs in the main thread."""

from __future__ import annotations

import inspect
import queue
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import attrs
import outcome
import trio

from hermes.adapters.http.credentials import digest_of, new_secret
from hermes.adapters.http.web.people import LINK_PREFIX
from hermes.agents import Endpoint, Secret, chat_agents
from hermes.events import TextDelta
from hermes.messages import Person, TurnResult
from hermes.testing import open_model
from tests.support.http import http_server, new_token

SECONDS = 60
"""How long a test waits for the server."""


class HeldTurn:
    """A turn whose events and end the test decides."""

    def __init__(self, turn, call):
        self.turn = turn
        self._call = call
        self.done = trio.Event()
        self.result = None

    def emit(self, *events):
        """Emit events; a string is a piece of the answer."""
        for event in events:
            self._call(self.turn.emit, TextDelta(event) if isinstance(event, str) else event)

    def finish(self, result="done"):
        """End the turn with an answer, or with an exception."""
        self.result = result
        self._call(self.done.set)


class PageAgent:
    """An agent that echoes; it holds a turn whose message begins with "hold"."""

    def __init__(self):
        self.held = queue.Queue()
        self.turns = []
        self.call = None

    async def run(self, turn):
        if not turn.text.startswith("hold"):
            return TurnResult(text=f"echo: {turn.text}")
        held = HeldTurn(turn, self.call)
        self.turns.append(held)
        self.held.put(held)
        await held.done.wait()
        if isinstance(held.result, BaseException):
            raise held.result
        return held.result if isinstance(held.result, TurnResult) else TurnResult(text=held.result)

    def release(self):
        """End all turns, so that the end of the server does not wait for them."""
        for held in self.turns:
            if not held.done.is_set():
                held.finish()


@attrs.frozen
class WebServer:
    """A server in another thread."""

    server: object
    agent: object
    _token: object

    @property
    def url(self):
        """The address of the page, without a slash."""
        return self.server.url

    def call(self, function, *arguments, **options):
        """Run a function, or an async function, in the thread of the server."""
        run = trio.from_thread.run if _is_async(function) else trio.from_thread.run_sync
        return run(partial(function, *arguments, **options), trio_token=self._token)

    def next_turn(self):
        """Wait until a turn that is held has started, and return it."""
        return self.agent.held.get(timeout=SECONDS)

    @property
    def secret(self):
        """The bearer token of the user ann."""
        return self.server.secret

    def new_secret(self, name, **options):
        """Store another bearer token, and return its secret."""
        return self.call(new_token, self.server.runtime, name, **options)

    def sign_in_token(self, name="ann", role="user"):
        """Return a one-time token with which a person can sign in."""
        secret = new_secret(LINK_PREFIX)
        person = Person(namespace=name, name=name, role=role)
        self.call(self.server.runtime.api.add_sign_in, digest_of(secret), person)
        return secret


def _is_async(function):
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function)


@contextmanager
def running(open_server):
    """Run an async context manager in a thread; yields its value and the token of its loop."""
    ready = queue.Queue()

    async def main():
        stop = trio.Event()
        async with open_server() as value:
            ready.put(outcome.Value((value, trio.lowlevel.current_trio_token(), stop)))
            await stop.wait()

    thread = threading.Thread(
        target=lambda: ready.put(outcome.capture(trio.run, main)), name="web server"
    )
    thread.start()
    first = ready.get(timeout=SECONDS)
    if isinstance(first, outcome.Error):
        thread.join()
    value, token, stop = first.unwrap()
    try:
        yield value, token
    finally:
        if thread.is_alive():
            trio.from_thread.run_sync(stop.set, trio_token=token)
        thread.join()
    ready.get(timeout=SECONDS).unwrap()


@contextmanager
def web_server(path, agent=None, **options):
    """Serve the page during the block, by default with a `PageAgent`."""
    agent = agent or PageAgent()
    with running(partial(http_server, path, agent, **options)) as (server, token):
        web = WebServer(server, agent, token)
        if isinstance(agent, PageAgent):
            agent.call = web.call
        try:
            yield web
        finally:
            if isinstance(agent, PageAgent):
                agent.release()


@contextmanager
def model_server(path, answer, **options):
    """Serve the page with agents that ask a loopback model; `answer(request)` is what it says."""

    @asynccontextmanager
    async def opened():
        async with open_model(answer) as model:
            endpoint = Endpoint(
                base_url=model.openai_url, model="m", key=Secret("k"), attachments=("image", "file")
            )
            async with (
                chat_agents(endpoint, protocol="openai", **options) as agents,
                http_server(
                    path, None, build_agent=agents.build, agent_spec=agents.agent_spec
                ) as server,
            ):
                yield server

    with running(opened) as (server, token):
        yield WebServer(server, None, token)
