"""A node of test_chaos: `python -m tests.campaigns.chaos_node URL LOG`, commands on standard input.

Each line is a JSON object: `id`, `do` (the name of a function below) and its arguments. The answer
is a line with the same `id` and `said` or `error`. The node drains when its input ends. Its adapter
appends what it sends to LOG, which all nodes share.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import re
import sys
import traceback

import attrs
import trio

from hermes import CompressionConfig, Config, Inbound, Source, TurnResult, open_runtime
from hermes.errors import AlreadyAnswered, HermesError, ReplyTimeout
from hermes.events import TextDelta
from hermes.messages import Attachment, Reply
from hermes.testing import DeterministicCompressor

CONFIG = Config(
    max_queued=1_000_000,
    drain_timeout=20,
    max_attempts=10_000,
    commit_timeout=120,
    quarantine_time=0.5,
    idle_timeout=3,
    compression=CompressionConfig(
        window=700, max_output=0, share=0.5, tail_share=0.2, cooldowns=(0.0,), max_useless=10_000
    ),
)
SUMMARY_SECONDS = 0.3
FAILING = 0.02
"""How often a send fails after the message was taken, and how often before."""
SLOW = "slow"
NUMBER = re.compile(r"(\d+) ")
LARGEST = 2_200_000
"""Bytes of a file: more than two chunks of the database."""


def number_of(text):
    """Return the number that a message begins with; None for other texts."""
    found = NUMBER.match(text or "")
    return None if found is None else int(found[1])


def content_of(name):
    """Return the bytes of the file with this name: most are small, and a few are large."""
    dice = random.Random(name)
    return dice.randbytes(LARGEST if dice.random() < 0.04 else dice.randint(1, 20_000))


def digest(data):
    return hashlib.sha256(data).hexdigest()[:12]


def source_of(key):
    return Source("wire", chat_id=key, user_id=key)


# The host's own code: an agent and an adapter


def parts_of(messages):
    return [part for message in messages for part in message.parts or ()]


async def read_file(turn, part):
    """Return the digest of an attached file."""
    return digest(await (await turn.open_file(part["file"])).read())


async def answer(turn):
    """Say which messages the turn has, which one came before, and what the files contain."""
    seen = [number_of(message.content) for message in turn.input]
    before = [number_of(row.content) for row in turn.history if row.role == "user"]
    last = next((number for number in reversed(before) if number is not None), "-")
    files = [await read_file(turn, part) for part in parts_of(turn.input)]
    slow = any(SLOW in message.content for message in turn.input)
    for _ in range(4):
        await trio.sleep(random.random() * (0.25 if slow else 0.02))
        more = turn.steered()
        seen += [number_of(message.content) for message in more]
        files += [await read_file(turn, part) for part in parts_of(more)]
    text = f"well, {' '.join(map(str, seen))} after {last} with {' '.join(files) or '-'}"
    turn.emit(TextDelta(text))
    made = [f"answer {number}" for number in seen if number is not None and number % 11 == 0]
    attached = [Attachment(data=content_of(name), name=name) for name in made]
    return TurnResult(text=text, files=attached)


@attrs.define
class Wire:
    """An adapter that notes what it sends, before it fails now and then."""

    log: int
    platform: str = "wire"
    local: bool = True

    async def send(self, row, /):
        await self._send(row, row.body["text"].encode())

    async def send_file(self, row, file, /):
        await self._send(row, await file.read())

    async def _send(self, row, data):
        dice = random.random()
        if dice < FAILING:
            raise ValueError("a fault before the send")
        said = [row.outbox_id, row.part, int(row.recovered), row.lane, digest(data)]
        os.write(self.log, (json.dumps(said) + "\n").encode())
        await trio.sleep(random.random() * 0.02)
        if dice > 1 - FAILING:
            raise ValueError("a fault after the send")


# Commands


@attrs.define
class Commands:
    """What a node can be asked to do."""

    runtime: object

    async def submit(self, key, event, text, busy=None, file=None):
        """Return the id of the message."""
        inbound = Inbound(
            key, event, text, source_of(key), command=text.startswith("/"), when_busy=busy
        )
        attached = [Attachment(data=content_of(file), name=file)] if file else None
        return [(await self.runtime.submit(inbound, attachments=attached)).inbox_id, None]

    async def ask(self, key, event, text, busy=None, file=None):
        """Return the id of the message, and the reply."""
        options = self._options(key, event, busy, file)
        try:
            reply = await self.runtime.ask(key, text, timeout=20, **options)
        except (AlreadyAnswered, ReplyTimeout) as error:
            reply = await self.runtime.wait(error.receipt, timeout=20)
        return await self._told(key, event, reply)

    async def stream(self, key, event, text, busy=None, file=None):
        """Do as `ask`, with the events until the reply."""
        last = None
        try:
            async with self.runtime.stream(
                key, text, timeout=20, **self._options(key, event, busy, file)
            ) as stream:
                async for each in stream:
                    last = each
        except (AlreadyAnswered, ReplyTimeout) as error:
            last = await self.runtime.wait(error.receipt, timeout=20)
        return await self._told(key, event, last if isinstance(last, Reply) else last.reply)

    def _options(self, key, event, busy, file):
        attached = [Attachment(data=content_of(file), name=file)] if file else None
        return {
            "event_id": event, "source": source_of(key), "when_busy": busy, "commands": False,
            "attachments": attached,
        }  # fmt: skip

    async def _told(self, key, event, reply):
        receipt = await self.runtime.receipt_of(key, event, source=source_of(key))
        return [receipt and receipt.inbox_id, reply.text]

    async def verb(self, key, name):
        """Call a verb of a conversation; what it returns does not matter."""
        chat = self.runtime.conversation(key, source=source_of(key))
        calls = {
            "compress": lambda: chat.compress(keep_exchanges=1),
            "title": lambda: chat.set_title(f"{key} {random.randrange(3)}"),
            "status": chat.status,
            "history": chat.history,
            "post": lambda: chat.post("a post"),
            "sessions": chat.sessions,
        }
        await calls[name]()

    async def read(self, key, file):
        """Return the digest of a stored file."""
        chat = self.runtime.conversation(key, source=source_of(key))
        return digest(await chat.read_file(file))


async def serve(runtime, source):
    """Carry out the commands of standard input until it ends."""
    commands = Commands(runtime)

    async def carry_out(number, do, arguments):
        try:
            said = {"said": await getattr(commands, do)(**arguments)}
        except HermesError as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        except Exception:  # noqa: BLE001 - whatever a host gets to see is reported
            said = {"violation": traceback.format_exc()[-900:]}
        os.write(1, (json.dumps({"id": number, **said}) + "\n").encode())

    async with trio.open_nursery() as nursery:
        rest = b""
        async for piece in source:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                order = json.loads(line)
                nursery.start_soon(carry_out, order.pop("id"), order.pop("do"), order)
        nursery.cancel_scope.cancel()


async def main(url, log):
    logging.basicConfig(level="INFO", format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%T")
    wire = Wire(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    async with (
        trio.lowlevel.FdStream(os.dup(0)) as source,
        open_runtime(
            url, agent=answer, config=CONFIG, adapters=[wire], sweep_interval=1.0,
            compressor=DeterministicCompressor(delay=SUMMARY_SECONDS),
        ) as runtime,
    ):  # fmt: skip
        os.write(1, b'{"id": 0, "said": "ready"}\n')
        await serve(runtime, source)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
