"""A program in which one allocation fails.

Start it with `python -m tests.campaigns.out_of_memory FILE HOST WHEN K [NUMBER]`. The K-th
allocation after the start of WHEN raises `MemoryError`, and so do the next ones, NUMBER in all.
HOST is "trio" or "asyncio". The program writes a line for each event that was acknowledged, and for
each reply that was sent. If it hangs, a timer ends it and writes "Timeout" and the stacks to
standard error.
"""

from __future__ import annotations

import _testcapi
import asyncio
import faulthandler
import os
import sys

import anyio
import attrs
import trio

from hermes import Inbound, Source, open_runtime
from hermes.embed import open_runtime_asyncio

HANGS_AFTER = 40.0
OPEN = {"trio": open_runtime, "asyncio": open_runtime_asyncio}
RUN = {"trio": trio.run, "asyncio": lambda main, *args: asyncio.run(main(*args))}
SOURCE = Source("campaign", chat_id="c", user_id="u")


def write(line):
    os.write(1, f"{line}\n".encode())


@attrs.define(eq=False)
class Recorder:
    """The platform, which writes what it receives."""

    platform: str = "campaign"
    local: bool = True
    on_trio: bool = True
    sent: int = 0

    async def send(self, row):
        write(f"sent:{row.body['text']!r}")
        self.sent += 1


@attrs.define(eq=False)
class Program:
    """Runs a conversation, and lets memory run out once."""

    path: str
    host: str
    when: str
    first: int
    number: int = 1
    platform: Recorder = attrs.Factory(Recorder)
    ran_out: bool = False

    def run_out(self, when):
        """Let an allocation fail from here on, if this is the time for it."""
        if when == self.when and not self.ran_out:
            self.ran_out = True
            _testcapi.set_nomemory(self.first, self.first + self.number)

    async def answer(self, turn):
        if turn.text == "during":
            self.run_out("delivery")
        return turn.text

    def open(self):
        return OPEN[self.host](self.path, agent=self.answer, adapters=[self.platform])

    async def attempt(self, runtime):
        """Send a message while an allocation fails, and report whether it was acknowledged."""
        try:
            if self.when == "submit":
                self.run_out("submit")
                inbound = Inbound("k", "during", "during", SOURCE, per_conversation=True)
                await runtime.submit(inbound)
            else:
                self.run_out("turn")
                await runtime.ask("k", "during", event_id="during", source=SOURCE)
            while self.when == "delivery" and self.platform.sent < 3:  # noqa: ASYNC110
                await anyio.sleep(0.01)  # forever, if the reply is lost
        finally:
            _testcapi.remove_mem_hooks()
        write("during")

    async def start(self):
        """Open the runtime while an allocation fails."""
        self.run_out("start")
        try:
            async with self.open():
                _testcapi.remove_mem_hooks()
        finally:
            _testcapi.remove_mem_hooks()

    async def main(self):
        async with self.open() as runtime:
            for event_id in ("first", "second"):
                await runtime.ask("k", event_id, event_id=event_id, source=SOURCE)
                write(event_id)
            if self.when == "drain":
                self.run_out("drain")
                return
            if self.when != "start":
                await contain(self.attempt(runtime))
                await runtime.ask("k", "after", event_id="after", source=SOURCE)
                write("after")
        if self.when == "start":
            await contain(self.start())
            async with self.open() as runtime:
                await runtime.ask("k", "after", event_id="after", source=SOURCE)
                write("after")


async def contain(attempt):
    """Whatever the attempt raises, the runtime goes on or ends."""
    try:
        await attempt
    except Exception as error:  # noqa: BLE001
        os.write(2, f"the call raised {type(error).__name__}\n".encode())


def run(path, host, when, first, number=1):
    RUN[host](Program(path, host, when, int(first), int(number)).main)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    run(*sys.argv[1:])
