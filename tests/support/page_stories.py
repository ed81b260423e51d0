"""Stories for pictures of the web page: a conversation with tools, and a busy runtime."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, contextmanager
from functools import partial

import trio
from playwright.sync_api import expect

from hermes import Config, Inbound, Source
from hermes.errors import MessageRefused
from hermes.events import ApprovalAsked, ReasoningDelta, TextDelta, ToolFinished, ToolStarted
from hermes.messages import AgentSpec, Message, ToolCall, TurnResult, Usage
from hermes.testing import MemoryAdapter
from tests.support.chat_page import choose, composer
from tests.support.compression import SMALL, ScriptedCompressor
from tests.support.http import http_server
from tests.support.web import PageAgent, WebServer, running

KEY = "agent:main:web:dm:ann:{}"
PROMPT = "You are the assistant of a small shop. Today is {}."
TITLE = "Why the nightly import fails"
QUESTION = "The import failed again last night. Can you find out why?"
ANSWER = """The import stopped at **02:14**: invoice `2026-1187` is in two files, and the table \
allows it once.

| file | received | rows | total |
|:-----|:---------|-----:|------:|
| `invoices-15.csv` | Sunday 23:50 | 412 | 18,204.10 |
| `invoices-15b.csv` | Monday 00:05 | 37 | 1,930.55 |

The second file is a correction. Its rows should replace the earlier ones:

```python
def merge(rows: Iterable[Invoice]) -> dict[str, Invoice]:
    \"\"\"Return the latest version of each invoice.\"\"\"
    return {row.number: row for row in sorted(rows, key=attrgetter("received"))}
```
"""
ORDER = "Great. Fix it, and import Sunday's files once more."
DONE = "The fix is in, and all **214 tests** pass. The import changes 37 invoices, so I ask first."
EARLIER = (
    ("Offer for the harbour museum", 0.2),
    ("Why is the search slow?", 0.4),
    ("Release notes for 4.2", 1),
    ("Translate the letter to Oslo", 1),
    ("A logo with a heron", 3),
    ("Shift plan for December", 4),
    ("Questions for the new accountant", 12),
)
CHATS = ("telegram:dm:{}", "web:dm:ann:conv-{}", "web:dm:tom:conv-{}", "telegram:group:{}")
MODEL = "example-large"


class StoryAgent(PageAgent):
    """Plays the conversation; it echoes in others."""

    def describe(self, key, source):
        return AgentSpec(session_key=key, model=MODEL, system_prompt=PROMPT.format("Monday"))

    async def run(self, turn):
        if turn.text == QUESTION:
            return await self._find(turn)
        if turn.text == ORDER:
            return await self._fix(turn)
        cached = 0 if len(turn.history) < 2 else 1900 + 310 * (turn.turn_id % 4)
        usage = Usage(
            model=MODEL, input_tokens=3200 - cached, cache_read_tokens=cached,
            output_tokens=140, cost=0.011 - cached * 3e-6,
        )  # fmt: skip
        turn.charge(usage)
        return await super().run(turn)

    async def _call(self, turn, tool, arguments, result, seconds):
        call = ToolCall(f"call_{tool}", tool, arguments)
        turn.emit(ToolStarted(call))
        await trio.sleep(seconds)
        turn.emit(ToolFinished(call.id, result))

    async def _find(self, turn):
        turn.emit(ReasoningDelta("The log of last night says where it stopped."))
        await self._call(
            turn, "read_log", '{"service": "import", "lines": 200}',
            "02:14:07 IntegrityError: UNIQUE constraint failed: invoices.number", 0.4,
        )  # fmt: skip
        await self._call(
            turn, "query", '{"sql": "SELECT file, count(*) FROM staging GROUP BY file"}',
            '[["invoices-15.csv", 412], ["invoices-15b.csv", 37]]', 0.7,
        )  # fmt: skip
        turn.emit(TextDelta(ANSWER))
        usage = Usage(
            model=MODEL, input_tokens=2140, cache_read_tokens=6800, output_tokens=655, cost=0.021
        )
        return TurnResult(text=ANSWER, usage=(usage,))

    async def _fix(self, turn):
        await self._call(
            turn,
            "edit_file",
            '{"file": "shop/importer.py", "replace": "merge(rows)"}',
            "saved",
            0.1,
        )
        await self._call(turn, "run_tests", '{"folder": "tests"}', "214 passed in 8.31s", 1.3)
        turn.emit(TextDelta(DONE))
        approval = await turn.records.ask_approval(
            turn.session_key, "import_invoices",
            '{"files": ["invoices-15.csv", "invoices-15b.csv"], "mode": "replace"}',
            delivery="host",
        )  # fmt: skip
        turn.emit(ApprovalAsked(approval))
        usage = Usage(
            model=MODEL, input_tokens=980, cache_read_tokens=9400, output_tokens=212, cost=0.0094
        )
        return TurnResult(text=DONE, usage=(usage,))


@contextmanager
def story_server(path):
    """Serve the page with the agent of the stories."""
    agent = StoryAgent()
    adapter = MemoryAdapter(errors=[MessageRefused("too many messages")] * 30)
    opening = partial(
        http_server, path, None, build_agent=lambda _: agent, agent_spec=agent.describe,
        adapters=[adapter], compressor=ScriptedCompressor(),
        runtime_config=Config(compression=SMALL, drain_timeout=0.1),
    )  # fmt: skip
    with running(opening) as (server, token):
        web = WebServer(server, agent, token)
        agent.call = web.call
        try:
            yield web
        finally:
            agent.release()


def add_earlier(web, path):
    """Store the conversations of the last days, at their times."""
    now = time.time()
    for number, (title, days) in enumerate(EARLIER):
        key, at = KEY.format(f"conv_{number:032x}"), now - days * 86_400
        rows = [Message("user", title, at), Message("assistant", "Done.", at)]
        web.call(web.server.runtime.api.add_messages, key, rows, Source("web", chat_id="ann"))
        with closing(sqlite3.connect(path)) as database, database:
            change = "UPDATE routes SET last_active = ? WHERE session_key = ?"
            database.execute(change, (at, key))


def play(web, page):
    """Have the conversation, up to the call that waits for approval."""
    for text, shown in ((QUESTION, page.get_by_role("figure")), (ORDER, page.get_by_role("timer"))):
        composer(page).fill(text)
        composer(page).press("Enter")
        expect(shown).to_be_visible()
        expect(page.get_by_label("Hermes is answering")).to_be_hidden()
    choose(page, "Rename")
    page.get_by_role("textbox", name="Title").fill(TITLE)
    page.get_by_role("textbox", name="Title").press("Enter")
    expect(page.get_by_role("heading", name=TITLE)).to_be_visible()
    composer(page).focus()


def keep_busy(web, *, rounds=12, count=120):
    """Have many conversations, of which some are running while others wait, and a failed send."""
    runtime = web.server.runtime
    keys = [f"agent:main:{CHATS[n % 4].format(4100 + 37 * n)}" for n in range(count)]

    async def chat(number, key):
        for _ in range(1 + number % rounds):
            await runtime.ask(key, "hello")
            await trio.sleep(0.2 + number % 9 * 0.15)

    async def talk():
        async with trio.open_nursery() as nursery:
            for number, key in enumerate(keys):
                nursery.start_soon(chat, number, key)

    web.call(talk)
    chat_of_ann = Source("memory", chat_id="ann")
    web.call(runtime.submit, Inbound("agent:main:memory:ann", "1", "hello", source=chat_of_ann))
    for number, key in enumerate(keys[::9]):
        web.call(runtime.submit, Inbound(key, f"hold {number}", "hold on"))
        web.next_turn()
        if number % 3 == 0:
            web.call(runtime.submit, Inbound(key, f"next {number}", "and then?"))
