"""The live view in a browser: a server with something of everything that it shows."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

from hermes import Config, Source
from hermes.errors import MessageRefused
from hermes.events import TextDelta
from hermes.messages import AgentSpec, TurnResult, Usage
from hermes.testing import MemoryAdapter
from tests.support.compression import FULL, SMALL, ScriptedCompressor, talk
from tests.support.http import http_server
from tests.support.live_view import operator
from tests.support.web import PageAgent, WebServer, running

TALK = "agent:main:talk"
"""A conversation that was compressed and branched."""
CHAT = Source("memory", chat_id="ann")
PROMPT = "You are a helpful assistant. You answer in one sentence. Today is {}."


class LiveAgent(PageAgent):
    """Echoes, and uses a cache; the prompt of its agents can be changed."""

    def __init__(self):
        super().__init__()
        self.day = "Monday"
        self.calls = 0

    def describe(self, key, source):
        return AgentSpec(session_key=key, model="example-1", system_prompt=PROMPT.format(self.day))

    async def run(self, turn):
        self.calls += 1
        cached = 90 if self.calls % 5 else 0
        turn.charge(
            Usage(
                model="example-1", input_tokens=100 - cached, cache_read_tokens=cached,
                output_tokens=20, cost=0.002,
            )
        )  # fmt: skip
        result = await super().run(turn)
        turn.emit(TextDelta(result.text))
        return TurnResult(text=result.text)


@contextmanager
def live_server(path, *, errors=(), compressor=None):
    """Serve the page; replies to the chat of ann get these errors first."""
    compressor = ScriptedCompressor() if compressor is None else compressor
    agent, adapter = LiveAgent(), MemoryAdapter(errors=[*errors])
    opening = partial(
        http_server, path, None, build_agent=lambda _: agent, agent_spec=agent.describe,
        adapters=[adapter], compressor=compressor,
        runtime_config=Config(compression=SMALL, drain_timeout=0.1, max_agents=5000),
    )  # fmt: skip
    with running(opening) as (server, token):
        web = WebServer(server, agent, token)
        agent.call = web.call
        yield web


def open_live(new_context, web, route="", **options):
    """Open the live view as an operator, on a new page."""
    secret = web.call(operator, web.server)
    context = new_context(extra_http_headers={"Authorization": f"Bearer {secret}"}, **options)
    page = context.new_page()
    page.goto(f"{web.url}/#/live{route}")
    return page


def ask(web, key, text, **options):
    """Send a message and wait for its reply."""
    return web.call(web.server.runtime.ask, key, text, **options)


def talk_long(web):
    """Talk, compress the conversation, and continue it on a branch."""
    conversation = web.server.runtime.conversation(TALK)
    web.call(partial(talk, web.server.runtime, FULL - 1, key=TALK))
    assert web.call(conversation.compress).changed
    web.call(conversation.branch, "Another way")


REFUSED = [MessageRefused("too fast")] * 30
LOST = [OSError("the connection was lost")] * 30
