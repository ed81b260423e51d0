"""One gateway of hermes-agent 0.19.0 performs a part of the script, in an existing home.

The gateway, its stores, thread pools and agents are the real ones. No platform is connected.

An agent counts as built for a turn if it was created while the turn ran and is in the gateway's
cache afterwards. The agent that /compress creates for itself is in no turn and in no cache. Timed
switches are those to an existing session (/resume); /new is in no figure.
"""

# ruff: noqa: SLF001 - the entry point of a turn is private, and so is the cache of agents

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import ClassVar

import run_agent
from gateway.run import GatewayRunner
from hermes_state import SessionDB
from tools.registry import registry

from bench.peers.hermes_switch import RECORD, TOOLSET
from bench.peers.hermes_turns import event, source, start_gateway
from bench.switch import workload
from bench.switch.performer import OtherWriter, Performer, Record, TurnRecord, ms_since
from bench.switch.workload import Compress, Step


class TimedAgent(run_agent.AIAgent):
    """The real agent; it records which agents were created, and how long that took."""

    created: ClassVar[list[tuple[TimedAgent, float]]] = []

    def __init__(self, *arguments: object, **settings: object) -> None:
        started = perf_counter()
        super().__init__(*arguments, **settings)
        self.created.append((self, ms_since(started)))


class Theirs(Performer):
    """Every user has one direct chat with the gateway, with all of its sessions."""

    def __init__(self, record: Record, writer: OtherWriter, runner: GatewayRunner) -> None:
        super().__init__(record, writer)
        self.runner = runner
        self.sent = 0

    async def say(self, user: int, text: str) -> str:
        TimedAgent.created.clear()
        self.sent += 1
        message = event(user, text, f"{os.getpid()}-{self.sent}")
        return str(await self.runner._handle_message(message))

    def session_of(self, user: int) -> str:
        return str(self.runner.session_store.peek_session_id(self._key(user)))

    def build_of_turn(self, user: int) -> tuple[str | None, float]:
        cached = self.runner._agent_cache.get(self._key(user))
        for agent, ms in TimedAgent.created:
            if cached and agent is cached[0]:
                return "built", ms
        return None, 0.0

    async def was_compressed(self, step: Compress, reply: str) -> bool:
        return "Compressed:" in reply

    def is_answer(self, reply: str, expected: str) -> bool:
        """The first reply also contains a greeting."""
        return expected in reply

    def look_up(self, arguments: dict[str, str], **_: object) -> str:
        """The tool; it runs in the thread of the agent."""
        if self.writer.writes_during(arguments["word"]):
            self.writer.write_during(arguments["word"])
        return workload.finding(arguments["word"])

    def _key(self, user: int) -> str:
        return str(self.runner._session_key_for_source(source(user)))


async def perform(steps: list[Step], record: Record) -> None:
    runner, db = start_gateway(), SessionDB()
    theirs = Theirs(record, OtherWriter(steps, record, db.append_message), runner)
    registry.register(workload.TOOL, TOOLSET, dict(workload.TOOL_SCHEMA), theirs.look_up)
    for step in steps:
        await theirs.perform(step)
    db.close()
    await runner.stop()


def load(path: Path) -> Record:
    """Continue the record of the process before."""
    if not path.exists():
        return Record()
    found = json.loads(path.read_text())
    turns = [TurnRecord(**turn) for turn in found.pop("turns")]
    return Record(turns, **found)


def main(script: str, start: str, end: str) -> None:
    path = Path(os.environ["HERMES_HOME"]) / RECORD
    record = load(path)
    run_agent.AIAgent = TimedAgent
    asyncio.run(perform(workload.load(Path(script))[int(start) : int(end)], record))
    path.write_text(json.dumps(asdict(record)))


if __name__ == "__main__":
    main(*sys.argv[1:])
