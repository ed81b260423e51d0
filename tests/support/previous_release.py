"""Run a runtime on a copy of `tests/fixtures/previous_release.db` and record what it does."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import apsw
import attrs
import trio

from hermes import (
    AccessPolicy,
    CompressionConfig,
    Config,
    ExpiryPolicy,
    PlatformRules,
    Source,
    ToolCall,
    TurnResult,
    open_runtime,
)
from hermes.agents import Toolbox, tool
from hermes.store import Clock, SessionStore
from hermes.testing import DeterministicCompressor, MemoryAdapter, ScriptedAgent, texts_of

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXPORT = (FIXTURES / "previous_release_export.jsonl").read_text().splitlines()
OPENED = 1_800_000_000.0
STEADY = 50_000.0
SECONDS = 60
LONG = "The harbour of Naxos was quiet that morning, and nobody had seen the boat. "
PICTURE = {"type": "image_url", "image_url": {"url": "https://pictures.invalid/kettle.png"}}
CONFIG = Config(
    expiry_by={"brief": ExpiryPolicy(mode="idle", idle_minutes=30)},
    compression=CompressionConfig(
        window=1600, max_output=0, share=0.25, tail_share=0.1, protect_first=1
    ),
)
EVENTS = ("on_session_finalize", "on_session_reset", "on_session_switch")


def select(path, sql, *values):
    """Query the file directly, without code under test."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    db = apsw.Connection(f"file:{path}?immutable=1", flags=flags)
    try:
        return db.execute(sql, values).fetchall()
    finally:
        db.close()


def one(path, sql, *values):
    """Return the only row of a query."""
    [row] = select(path, sql, *values)
    return row


BEFORE = FIXTURES / "previous_release.db"
OPEN = select(
    BEFORE, "SELECT id, event_id, session_key, body FROM inbox WHERE state = 'open' ORDER BY id"
)
INBOX = {event_id: inbox_id for inbox_id, event_id, _, _ in OPEN}
ERRAND = one(BEFORE, "SELECT session_key FROM approvals WHERE asked_of = 'errand'")[0]
[BACKGROUND] = [key for _, event_id, key, _ in OPEN if event_id.startswith("background:")]
APPROVALS = dict(select(BEFORE, "SELECT asked_of, id FROM approvals"))


class Recorder(ScriptedAgent):
    """A scripted agent that records the input of each turn."""

    def __init__(self, key, runner, script=()):
        super().__init__(script)
        self.key = key
        self.runner = runner

    async def run(self, turn, /):
        given = Given(
            turn.turn_id,
            turn.session_id,
            turn.source,
            [message.content for message in turn.input],
            [message.parts for message in turn.input],
            texts_of(turn.history),
        )
        self.runner.turns[self.key].append(given)
        return await super().run(turn)


@attrs.frozen
class Given:
    """The input of one turn."""

    turn_id: int
    session_id: str
    source: Source
    texts: list
    parts: list
    history: list


@attrs.define
class Runner:
    """Opens a copy of the file with a runtime, and records what the runtime does."""

    path: Path
    turns: dict = attrs.Factory(lambda: defaultdict(list))
    tools: list = attrs.Factory(list)
    results: list = attrs.Factory(list)
    hooks: list = attrs.Factory(list)
    compressor: DeterministicCompressor = attrs.Factory(DeterministicCompressor)
    memory: MemoryAdapter = attrs.Factory(MemoryAdapter)
    split: MemoryAdapter = attrs.Factory(lambda: MemoryAdapter("split", limit=100))
    brief: MemoryAdapter = attrs.Factory(lambda: MemoryAdapter("brief"))

    def open(self, **options):
        minted = iter(range(1, 10_000))
        return open_runtime(
            self.path,
            build_agent=self._agent,
            adapters=[self.memory, self.split, self.brief],
            compressor=self.compressor,
            hooks={event: [self._hook] for event in EVENTS},
            config=CONFIG,
            clock=Clock(
                wall=lambda: OPENED, steady=lambda: STEADY, hex8=lambda: f"ff{next(minted):06x}"
            ),
            **options,
        )

    def _agent(self, spec):
        mail = {
            "approved": "approved", "approving": "approving", ERRAND: "background",
            "pending": "pending", "used": "used", "late approval": "late",
        }  # fmt: skip
        to = "bob" if spec.session_key == ERRAND else "ann"
        if spec.session_key == "once":
            calls = [("charge", {"amount": 5})] * 3
            calls += [("refuse", {"reason": "no"}), ("launch", {"name": "boat"})]
            script = [self._calls(calls)]
        elif spec.session_key in mail:
            script = [self._calls([("send_mail", {"to": to, "text": mail[spec.session_key]})])]
        else:
            script = ()
        return Recorder(spec.session_key, self, script)

    def _calls(self, calls):
        async def step(turn):
            toolbox = Toolbox(self._tools())
            for name, arguments in calls:
                ran = await toolbox.run(ToolCall("call", name, json.dumps(arguments)), turn)
                self.results.append((turn.session_key, ran.content, ran.failed))
            return TurnResult(text="done")

        return step

    def _tools(self):
        @tool(approval=True)
        def send_mail(to: str, text: str) -> str:
            """Send a mail."""
            self.tools.append(("send_mail", to, text))
            return f"sent to {to}: {text}"

        @tool(once=True)
        def charge(amount: int) -> str:
            """Charge an amount."""
            self.tools.append(("charge", amount))
            return f"charged {amount} now"

        @tool(once=True)
        def refuse(reason: str) -> str:
            """Refuse something."""
            self.tools.append(("refuse", reason))
            return "refused now"

        @tool(once=True)
        def launch(name: str) -> str:
            """Launch something."""
            self.tools.append(("launch", name))
            return "launched now"

        return [send_mail, charge, refuse, launch]

    async def _hook(self, session_id, platform, event, boundary_id, session_key, reason,
                    old_session_id, new_session_id):  # fmt: skip
        told = (
            boundary_id, event, session_key, session_id, platform, reason,
            old_session_id, new_session_id,
        )  # fmt: skip
        self.hooks.append(told)

    def sent_to(self, chat, adapter=None):
        """Return the rows sent to a chat, in order."""
        adapter = adapter or self.memory
        return [row for row in adapter.sent if row.body["chat_id"] == chat]

    def kinds(self, chat, adapter=None):
        return [row.body["kind"] for row in self.sent_to(chat, adapter)]

    def select(self, sql, *values):
        return select(self.path, sql, *values)

    def session_of(self, key):
        """Return the session that a route names."""
        return one(self.path, "SELECT session_id FROM routes WHERE session_key = ?", key)[0]

    def texts(self, session_id):
        """Return roles and texts of a transcript."""
        with SessionStore(self.path) as store:
            return texts_of(store.get_messages(session_id))


def operators(*names):
    """Return an access policy with these operators; other users must be paired."""
    return AccessPolicy(rules={"memory": PlatformRules(operators=names, pairing=False)})


async def finish(runner):
    """Open the file and wait until nothing is left to do."""
    with trio.fail_after(SECONDS):
        async with runner.open(access=operators("op")) as runtime:
            with runtime.subscribe(deltas=False) as events:
                while (await runtime.admin.statistics()).store.inbox_open:
                    await anext(aiter(events))
            await runtime.wait_hooks()
