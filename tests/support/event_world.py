"""A runtime with a hub, random steps on a conversation, and clients whose models are compared."""

from __future__ import annotations

import attrs
import trio

from hermes import open_runtime
from hermes.adapters.http.api.streams.hub import Hub
from hermes.adapters.http.api.streams.rendered.renderer import Renderer
from hermes.background import open_background
from hermes.config import Config
from hermes.events import ReasoningDelta, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Inbound, ToolCall
from hermes.testing import DeterministicCompressor
from tests.support.event_clients import EventClient, rendered_state, stored_state

KEY = "agent:main:http:dm:ann:conv"
STEPS = (
    "send", "send", "hold", "release", "undo", "retry", "edit", "new", "close", "title", "settings",
    "archive", "steer", "interrupt", "withdraw", "command", "compress", "switch", "delete", "post",
    "cut", "cut", "connect", "stop_reading", "go_on", "flood", "flood", "again", "race", "race",
    "race", "restart", "kill",
)  # fmt: skip


async def inline(function, *args, limiter):
    """Run a function without a thread."""
    async with limiter:
        return function(*args)


class Killed(Exception):
    """The process ends in the middle of whatever it does."""


async def begin_again(turn):
    """Discard the text, and say another one."""
    await trio.sleep(0.01)
    turn.emit(TextDelta("", restart=True))
    for piece in ("# once\n\nmo", "re *and", " more*, *and", "*\n\n- a\n", "- b"):
        turn.emit(TextDelta(piece))
        await trio.sleep(0.01)


@attrs.define
class Gate:
    """Holds turns whose text says so."""

    open: trio.Event = attrs.Factory(trio.Event)
    entered: trio.Event = attrs.Factory(trio.Event)

    async def agent(self, turn):
        turn.emit(ReasoningDelta("let me see"))
        turn.emit(TextDelta("*first* "))
        turn.emit(ToolStarted(ToolCall(id=f"call{turn.turn_id}", name="look")))
        turn.emit(ToolFinished(f"call{turn.turn_id}", "seen", "fail" in turn.text))
        if "flood" in turn.text:
            for number in range(1100):
                turn.emit(TextDelta(f"{number} "))
        if "slow" in turn.text:
            for number in range(50):
                turn.emit(TextDelta(f"{number} "))
                await trio.lowlevel.checkpoint()
        if "again" in turn.text:
            await begin_again(turn)
        if "hold" in turn.text:
            self.entered.set()
            await self.open.wait()
            turn.steered()
        if "fail" in turn.text:
            raise ValueError("no")
        turn.emit(TextDelta("second"))
        return f"answer to {turn.text}"


class World:
    """A runtime with a hub, which are restarted now and then, and two clients."""

    def __init__(self, path):
        self.path = path
        self.clients = [EventClient(KEY), EventClient(KEY), EventClient(KEY, rendered=True)]
        self.number = 0
        self.receipts = []
        self.first = None

    async def start(self, stack):
        self.gate = Gate()
        self.runtime = await stack.enter_async_context(
            open_runtime(
                self.path,
                agent=self.gate.agent,
                compressor=DeterministicCompressor(),
                config=Config(drain_timeout=0.0, merge_messages=False),
            )
        )
        self.nursery = await stack.enter_async_context(open_background())
        self.number += 1
        renderer = Renderer(inline, pause=0.0, turns=self.runtime.api.turns_of_rows)
        self.hub = Hub(self.runtime, self.nursery, f"process{self.number}", renderer)
        for client in self.clients[1:]:
            self.connect(client)

    def connect(self, client):
        self.nursery.start_soon(client.listen, self.hub)

    @property
    def conversation(self):
        return self.runtime.conversation(KEY)

    def text(self, kind):
        self.number += 1
        return f"{kind} {self.number}"

    async def send(self, text, **options):
        inbound = Inbound(KEY, f"event{self.number}", text, per_conversation=True, **options)
        receipt = await self.runtime.submit(inbound)
        self.receipts.append(receipt)
        return receipt

    @property
    def held(self):
        return self.gate.entered.is_set()

    async def release(self):
        self.gate.open.set()
        for receipt in self.receipts:
            await self.runtime.wait(receipt)
        self.receipts.clear()
        self.gate.open, self.gate.entered = trio.Event(), trio.Event()

    async def settle(self):
        """Wait for all turns, unless one is held."""
        if not self.held:
            await self.release()

    async def step(self, name, client):
        await getattr(self, f"do_{name}")(client)
        await self.settle()

    async def do_send(self, client):
        await self.send(self.text("fail" if self.number % 5 == 0 else "say"))

    async def do_race(self, client):
        """Connect again and again while turns run."""
        await self.send(self.text("slow hold"))
        for number in range(2, 60):
            client.cut()
            if number % 3 == 0:
                client.last_id = None  # as a new page does
            self.connect(client)
            for _ in range(number % 7):
                await trio.lowlevel.checkpoint()
            if number % 20 == 0:
                await self.conversation.set_title(self.text("title"))
        await self.send(self.text("slow"))
        await self.gate.entered.wait()

    async def do_hold(self, client):
        await self.hold("hold")

    async def do_flood(self, client):
        await self.hold("flood hold")

    async def do_again(self, client):
        await self.hold("again hold")

    async def hold(self, kind):
        held = self.held
        await self.send(self.text(kind))
        if not held:
            await self.gate.entered.wait()

    async def do_release(self, client):
        await self.release()

    async def do_steer(self, client):
        await self.send(self.text("steer"), when_busy="steer")

    async def do_withdraw(self, client):
        receipt = await self.send(self.text("say"))
        await self.runtime.withdraw(receipt)

    async def do_interrupt(self, client):
        await self.conversation.interrupt()
        await self.release()

    async def do_command(self, client):
        self.text("")
        await self.send("/undo" if self.number % 2 else "/status", command=True)

    async def do_retry(self, client):
        self.text("")
        await self.send("/retry", command=True)

    async def do_undo(self, client):
        await self.between(self.conversation.undo)

    async def do_new(self, client):
        await self.between(self.conversation.new)

    async def do_close(self, client):
        await self.between(self.conversation.close)

    async def do_compress(self, client):
        await self.between(self.conversation.compress)

    async def do_switch(self, client):
        found = await self.conversation.sessions()
        if found:
            await self.between(self.conversation.switch, found[-1].session.id)

    async def do_post(self, client):
        await self.between(self.conversation.post, self.text("post"))

    async def do_edit(self, client):
        rows = await self.conversation.history(include_waiting=False)
        asked = [row.id for row in rows if row.role == "user"]
        if asked:
            await self.between(self.branch, asked[-1])
            await self.send(self.text("edited"))

    async def branch(self, message_id):
        await self.conversation.branch(before=message_id)

    async def between(self, verb, *args):
        """Run a verb that waits for the running turn."""
        await self.release()
        await verb(*args)

    async def do_title(self, client):
        await self.conversation.set_title(self.text("title"))

    async def do_settings(self, client):
        await self.conversation.configure(model=self.text("model"))

    async def do_archive(self, client):
        session_id = (await self.runtime.api.view(KEY)).session_id
        if session_id is not None and await self.runtime.admin.find(session_id) is not None:
            rows = await self.conversation.history(include_waiting=False)
            if rows:
                await self.conversation.archive(session_id)

    async def do_delete(self, client):
        await self.runtime.api.delete_conversation(KEY)

    async def do_cut(self, client):
        client.cut()

    async def do_connect(self, client):
        client.cut()
        self.connect(client)

    async def do_stop_reading(self, client):
        client.stop_reading()

    async def do_go_on(self, client):
        client.go_on()

    async def check(self):
        """Compare all clients with the store; the ones that were cut connect again."""
        self.hub.touch(KEY)
        for client in self.clients:
            client.cut()
            self.connect(client)
        for client in self.clients:
            state = rendered_state if client.rendered else stored_state
            before, expected = None, await state(self.runtime, KEY)
            while before != expected:  # a turn of an earlier process may be about to begin
                await client.catch_up(self.hub)
                before, expected = expected, await state(self.runtime, KEY)
            assert client.model.comparable() == expected
