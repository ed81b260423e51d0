"""Drives the real bot, `python -m hermes.run --stdio`, through many lives.

`open_bots` starts bots: forked from a process that has imported everything, so that a start takes
milliseconds, or as a new process. `Users` are JSON-RPC clients that survive the bot. They send each
prompt until it is acknowledged and answered, some of them again, and log all acknowledgements. They
use every command of `hermes.actors.commands`. The model is a loopback server.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from hermes.actors.commands import COMMANDS
from hermes.agents.compressor import SUMMARY_PROMPT
from hermes.messages import ToolCall
from hermes.testing import open_model
from hermes.testing.script import Drip, ModelAnswer

ROOT = Path(__file__).parents[2]
SUMMARY = SUMMARY_PROMPT[:40].encode()
"""What the request for a summary contains."""
PATIENCE = 60.0
"""Seconds after which a bot counts as hanging."""
MOST_SENT = 20
"""How many prompts of a chat may be on their way or wait for their answer."""
SETTINGS = """
data = "{path}"
[agent]
kind = "openai"
model = "m"
base_url = "{url}"
tools = ["tests.campaigns.run_tools:note"]
[hooks]
on_session_finalize = ["tests.campaigns.run_tools:on_boundary"]
[runtime]
commit_timeout = 1.0
drain_timeout = 10.0
quarantine_time = 0.2
[log]
level = "error"
[compression]
window = 1500
max_output = 0
share = 0.5
lease_timeout = {lease_timeout}
cooldowns = [0.0]
"""
"""The configuration of the bots. The number of attempts is the default one."""


# The bot


@attrs.define
class Bot:
    """A running bot."""

    pid: int
    sink: trio.lowlevel.FdStream
    source: trio.lowlevel.FdStream
    errors: Path
    """What it wrote to standard error."""
    _wait: Callable[[], Awaitable[int]]
    code: int | None = None

    def signal(self, number: int) -> None:
        """Send a signal, unless it is known to have ended."""
        if self.code is None:
            os.kill(self.pid, number)

    async def wait(self) -> int:
        """Wait for the end and return the exit code."""
        if self.code is None:
            self.code = await self._wait()
        return self.code


@attrs.define
class Bots:
    """Starts bots with one configuration, one at a time."""

    folder: Path
    root: Path
    """The tree that the bot is run from."""
    environment: Mapping[str, str]
    model: object
    _requests: socket.socket
    _responses: trio.socket.SocketType
    on_summary: Callable[[], None] | None = None
    """Called when a bot asks the model for a summary."""
    _partial: bytes = b""

    @property
    def path(self) -> Path:
        return self.folder / "state.db"

    def configure(self, *, lease_timeout: float = 30.0) -> None:
        """Write the configuration."""
        url = self.model.openai_url
        text = SETTINGS.format(path=self.path, url=url, lease_timeout=lease_timeout)
        (self.folder / "hermes.toml").write_text(text)

    async def start(self, *, fork: bool = True) -> Bot:
        """Start a bot: forked, or as a new process."""
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        errors = self.folder.with_name(f"{self.folder.name}.stderr")
        log = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        arguments = ["--stdio", "--config", str(self.folder / "hermes.toml")]
        streams = [theirs_in, theirs_out, log]
        if fork:
            socket.send_fds(self._requests, [json.dumps(arguments).encode()], streams)
            pid, wait = await self._read_number(), self._read_number
        else:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "hermes.run", *arguments],
                stdin=theirs_in, stdout=theirs_out, stderr=log, cwd=self.root, env=self.environment,
            )  # fmt: skip
            pid, wait = process.pid, process.wait
        for stream in streams:
            os.close(stream)
        sink, source = trio.lowlevel.FdStream(ours_out), trio.lowlevel.FdStream(ours_in)
        return Bot(pid, sink, source, errors, wait)

    async def _read_number(self) -> int:
        while b"\n" not in self._partial:
            piece = await self._responses.recv(4096)
            assert piece, "the process of the bots has ended"
            self._partial += piece
        line, _, self._partial = self._partial.partition(b"\n")
        return int(line)


@asynccontextmanager
async def open_bots(folder: Path, *, root: Path = ROOT, shim=None, seed: int = 0):
    """Open a loopback model and the process that forks bots; `shim` is loaded into them."""
    environment = {
        **os.environ,
        **({} if shim is None else shim.environment),
        "PYTHONPATH": f"{root}{os.pathsep}{ROOT}",
        "OPENAI_API_KEY": "sk-campaign",
    }
    dice = random.Random(seed)
    faults = [Drip(0.01) if dice.random() < 0.3 else None for _ in range(20_000)]
    ours, theirs = socket.socketpair()
    bots: Bots | None = None

    def respond(request):
        if bots and bots.on_summary and SUMMARY in request.body:
            bots.on_summary()
        return answer(request)

    async with open_model(respond, faults, keep=1) as model:
        command = [sys.executable, "-m", "tests.campaigns.run_forks", str(theirs.fileno())]
        forks = await trio.lowlevel.open_process(
            command, cwd=root, env=environment, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        with trio.socket.from_stdlib_socket(ours) as connection:
            bots = Bots(folder, root, environment, model, ours, connection)
            bots.configure()
            yield bots
        await forks.wait()


def answer(request):
    """Answer as the model: call the tool if the user says so, else repeat the number."""
    messages = request.json["messages"]
    if messages[-1]["role"] == "tool":
        return f"re {request.text[:4]} with a tool"
    if "tool" in request.text.split() and request.json.get("tools"):
        call = ToolCall(f"call{len(messages)}", "note", json.dumps({"text": request.text[:4]}))
        return ModelAnswer(calls=[call])
    return f"re {request.text[:4]}" + " so be it" * 5


# What users say

# Forms of commands with arguments, or with other names. All commands are used.
FORMS = {
    "new": ["/new", "/reset"],
    "resume": ["/resume", "/resume 1", "/resume t{k}"],
    "search": ["/search word"],
    "delete": ["/delete", "/delete yes", "/delete t{k} yes"],
    "title": ["/title", "/title t{k}"],
    "branch": ["/branch", "/branch b{n}"],
    "compress": ["/compress", "/compact"],
    "undo": ["/undo", "/undo 2"],
    "queue": ["/queue {n} later"],
    "steer": ["/steer {n} now"],
    "background": ["/background {n} aside"],
    "approve": ["/approve", "/approve {k}"],
    "deny": ["/deny", "/deny {k}"],
    "model": ["/model", "/model m"],
    "pair": ["/pair 12345678"],
    "unpair": ["/unpair {k}"],
}
DELETING = "chat/4"
"""The only conversation that deletes sessions: it is not known which messages are gone then."""


@attrs.define
class Prompt:
    """A prompt, its acknowledgement and its answer, if there are any."""

    number: int
    chat: str
    text: str
    command: str | None
    busy: str | None
    message_id: int | None = None
    """From the acknowledgement."""
    answer: dict | None = None

    @property
    def event_id(self) -> str:
        """The id of the event, as the client sends it."""
        return f"e{self.number}"


def make_prompt(dice: random.Random, number: int, chat: str) -> Prompt:
    """Return the next prompt: a message or a command."""
    name = dice.choice(list(COMMANDS)) if dice.random() < 0.45 else None
    if name is not None:
        forms = FORMS.get(name, [f"/{name}"])
        text = dice.choice(forms).format(n=f"{number:04}", k=dice.randint(1, 5))
        if chat != DELETING:
            text = text.removesuffix(" yes")
        return Prompt(number, chat, text, name, None)
    words = "word " * dice.randint(1, 40) + ("tool" if dice.random() < 0.2 else "")
    busy = dice.choice([None, None, "queue", "steer", "interrupt"])
    return Prompt(number, chat, f"{number:04} {words}", None, busy)


# The users


@attrs.define
class Users:
    """JSON-RPC clients that survive the bot, and the log of what was acknowledged to them."""

    dice: random.Random
    chats: tuple[str, ...] = ("chat/1", "chat/2", "chat/3", DELETING)
    in_flight: int = 3
    """Prompts of a chat that may be without an answer."""
    patience: float = PATIENCE
    budget: int | None = None
    """How many prompts may still be made; None: any number."""
    prompts: list[Prompt] = attrs.Factory(list)
    violations: list[str] = attrs.Factory(list)
    repeated: int = 0
    """How many prompts were sent again after their answer, and got the same one."""
    refused: list[dict] = attrs.Factory(list)
    """The errors that prompts got."""
    next_prompt: Callable[[random.Random, int, str], Prompt] = make_prompt
    on_prompt: Callable[[], None] = lambda: None
    """Called when a prompt was made."""
    go_on: Callable[[], int] = lambda: 0
    """Called when everything was answered; returns how many prompts to make after that."""
    _everything: bool = False
    _refused_now: set[int] = attrs.Factory(set)
    """The numbers of prompts that got an error in this life; they are sent again in the next."""
    _handles: dict[str, str] = attrs.Factory(dict)
    _requests: dict[int, Callable] = attrs.Factory(dict)
    _unsent: dict[str, list[Prompt]] = attrs.Factory(dict)
    _sending: Counter[str] = attrs.Factory(Counter)
    """How many prompts of each chat were sent and are not acknowledged yet."""
    _waiting: dict[int, Prompt] = attrs.Factory(dict)
    _lines: trio.MemorySendChannel | None = None
    _request_id: int = 0

    @property
    def acknowledged(self) -> list[Prompt]:
        """The log of acknowledgements."""
        return [prompt for prompt in self.prompts if prompt.message_id is not None]

    async def life(self, bot: Bot, *, kill_after: int | None = None, everything: bool = False):
        """Talk to a bot until it ends, and return its exit code.

        It is killed shortly after it has sent this many frames; without a number, it is asked to
        end when each prompt has its answer. `everything` sends all prompts again.
        """
        self._everything = everything
        self._handles, self._requests, self._waiting, self._refused_now = {}, {}, {}, set()
        self._sending = Counter()
        self._lines, lines = trio.open_memory_channel(100_000)
        with trio.move_on_after(self.patience) as patience:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, bot, lines)
                for chat in self.chats:
                    self._open(chat)
                await self._read(bot, kill_after)
                nursery.cancel_scope.cancel()
        if patience.cancelled_caught:
            self.violations.append(f"the bot hangs; without an answer: {self.unanswered}")
            bot.signal(signal.SIGKILL)
        await bot.sink.aclose()
        await bot.source.aclose()
        return await bot.wait()

    async def _write(self, bot: Bot, lines: trio.MemoryReceiveChannel) -> None:
        try:
            async with bot.sink:
                async for line in lines:
                    await bot.sink.send_all(line)
        except trio.BrokenResourceError:
            pass  # it has ended

    async def _read(self, bot: Bot, kill_after: int | None) -> None:
        partial, frames = b"", 0
        async for piece in bot.source:
            *lines, partial = (partial + piece).split(b"\n")
            for line in lines:
                self._receive(json.loads(line))
            frames += len(lines)
            if kill_after is None and self.is_done and not self._made_more():
                self._lines.close()
            elif kill_after is not None and frames >= kill_after:
                await trio.sleep(self.dice.random() * 0.02)
                bot.signal(signal.SIGKILL)
                kill_after = sys.maxsize  # what it has sent is still read

    def _made_more(self) -> bool:
        self.budget = self.go_on()
        for chat in self._handles:
            self._submit_more(chat)
        return not self.is_done

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to say and nothing to wait for."""
        left = self._requests or self.budget or any(self._unsent.values())
        return not left and not self.unanswered

    @property
    def unanswered(self) -> list[Prompt]:
        """The prompts that have neither an answer nor an error from this life."""
        waiting = [prompt for prompt in self.prompts if prompt.answer is None]
        return [prompt for prompt in waiting if prompt.number not in self._refused_now]

    # Requests

    def _send(self, method: str, then: Callable[[dict], None], **params) -> None:
        self._request_id += 1
        self._requests[self._request_id] = then
        frame = {"jsonrpc": "2.0", "id": self._request_id, "method": method, "params": params}
        self._lines.send_nowait(json.dumps(frame).encode() + b"\n")

    def _open(self, chat: str) -> None:
        mine = [prompt for prompt in self.prompts if prompt.chat == chat]
        done = [prompt for prompt in mine if prompt.answer is not None]
        again = done if self._everything else self.dice.sample(done, min(len(done), 2))
        left = [prompt for prompt in mine if prompt.answer is None] + again
        self._unsent[chat] = self.dice.sample(left, len(left))

        def opened(frame: dict) -> None:
            if "error" in frame:
                self.refused.append(frame["error"])
                self._unsent[chat] = []
                return
            self._handles[chat] = frame["result"]["session_id"]
            self._submit_more(chat)

        self._send("session.create", opened, conversation=chat)

    def _submit_more(self, chat: str) -> None:
        open_ones = sum(each.chat == chat for each in self.unanswered)
        while open_ones < self.in_flight and self.budget != 0 and not self._everything:
            prompt = self.next_prompt(self.dice, len(self.prompts), chat)
            self.prompts.append(prompt)
            self._unsent[chat].append(prompt)
            self.budget = None if self.budget is None else self.budget - 1
            self.on_prompt()
            open_ones += 1
        waiting = sum(chat == each.chat for each in self._waiting.values())
        free = MOST_SENT - waiting - self._sending[chat]
        for _ in range(min(len(self._unsent[chat]), free)):
            self._submit(self._unsent[chat].pop(0))

    def _submit(self, prompt: Prompt) -> None:
        def submitted(frame: dict) -> None:
            self._sending[prompt.chat] -= 1
            if "error" in frame:
                self.refused.append(frame["error"])
                self._refused_now.add(prompt.number)
                self._submit_more(prompt.chat)
                return
            result = frame["result"]
            if prompt.message_id not in {None, result["message_id"]}:
                self.violations.append(f"{prompt} is now message {result['message_id']}")
            prompt.message_id = result["message_id"]
            if result["status"] != "answered":
                self._waiting[prompt.message_id] = prompt
            elif "reply" in result:
                self._answered(prompt, result["reply"])
            else:
                self.violations.append(f"{prompt} was answered, but has no reply")
            self._submit_more(prompt.chat)

        self._sending[prompt.chat] += 1
        busy = {} if prompt.busy is None else {"busy": prompt.busy}
        self._send(
            "prompt.submit", submitted, session_id=self._handles[prompt.chat],
            text=prompt.text, event_id=prompt.event_id, **busy,
        )  # fmt: skip

    def _answered(self, prompt: Prompt, reply: dict) -> None:
        known = prompt.answer
        prompt.answer = {name: reply[name] for name in ("turn_id", "text", "status")}
        if reply["status"] == "interrupted":  # only the event itself has the text so far
            prompt.answer["text"] = ""
        if known is not None:
            self.repeated += 1
            if known != prompt.answer:
                self.violations.append(f"{prompt} had another answer: {known}")
        self._submit_more(prompt.chat)

    def _receive(self, frame: dict) -> None:
        if "id" in frame:
            self._requests.pop(frame["id"])(frame)
        elif frame["params"]["type"] == "message.complete":
            payload = frame["params"]["payload"]
            for message_id in payload["message_ids"]:
                # An answer that comes before its acknowledgement is in the acknowledgement.
                if message_id in self._waiting:
                    self._answered(self._waiting.pop(message_id), payload)
