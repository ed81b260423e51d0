"""hermes-agent 0.19.0 performs the script of the switching benchmark, in a new home.

An agent counts as built for a turn if it was created while the turn ran and is in the gateway's
cache afterwards. The agent that /compress creates for itself is in no turn and in no cache.
"""

# ruff: noqa: SLF001 - the entry point of a turn is private, and so is the cache of agents

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from dataclasses import asdict
from time import perf_counter
from typing import Any, ClassVar

import run_agent
from gateway.run import GatewayRunner
from hermes_state import SessionDB
from tools.registry import registry

from bench.harness.driver import call_in_new_process, serve
from bench.peers import hermes_gateway
from bench.switch import workload
from bench.switch.performer import OtherWriter, Performer, Record, ms_since
from bench.switch.workload import Compress, Step

TOOLSET = "bench"
SOUL = "\n".join(workload.SYSTEM.splitlines()[:9])
"""hermes-agent adds 4,400 characters, as many as the other eleven lines have: a longer prompt than
ours would have a larger cached share."""
# The default configuration except for this:
CONFIG = f"""\
model:
  default: stub
  provider: custom
  base_url: URL
  api_key: none
  context_length: 200000
  ollama_num_ctx: 0  # otherwise each new agent sends requests to a local server
platform_toolsets:
  telegram: [{TOOLSET}, no_mcp]  # only the tool of the script, as for ours
approvals:
  destructive_slash_confirm: false  # /new needs no confirmation
security:
  tirith_enabled: false  # it would be downloaded
onboarding:
  profile_build: "off"  # as a string: the YAML value is not understood
auxiliary:
  compression:
    context_length: 200000  # otherwise each compression sends requests to a local server
  title_generation:
    enabled: false  # an extra request beside the first turn
"""


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
        message = hermes_gateway.event(user, text, f"{os.getpid()}-{self.sent}")
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
        self.writer.write_during(arguments["word"])
        return workload.finding(arguments["word"])

    def _key(self, user: int) -> str:
        return str(self.runner._session_key_for_source(hermes_gateway.source(user)))


def perform(steps: list[Step], record: Record) -> Record:
    """Perform the steps of one process, and continue the record of the process before it."""
    run_agent.AIAgent = TimedAgent

    async def perform_all() -> None:
        runner, db = hermes_gateway.start_gateway(), SessionDB()
        theirs = Theirs(record, OtherWriter(steps, record, db.append_message), runner)
        registry.register(workload.TOOL, TOOLSET, dict(workload.TOOL_SCHEMA), theirs.look_up)
        for step in steps:
            await theirs.perform(step)
        db.close()
        await runner.stop()

    asyncio.run(perform_all())
    return record


def run(path: str, url: str, plan: Any, pattern: str, **_: object) -> dict[str, object]:
    """Perform the script with a model at this URL, each part in a new process."""
    steps, record = workload.script(workload.Plan(**plan), pattern), Record()
    with hermes_gateway.new_home(path, CONFIG, url) as home:
        (home / "SOUL.md").write_text(SOUL)
        for part in workload.parts(steps):
            record = call_in_new_process(perform, part, record)
        with closing(sqlite3.connect(home / hermes_gateway.DATABASE)) as connection:
            # A compression archives rows, so a message that is in no row is lost.
            stored = [row[0] for row in connection.execute("SELECT content FROM messages")]
    record.lost = workload.missing(steps, stored)
    return asdict(record)


if __name__ == "__main__":
    serve(hermes_gateway.ABOUT, run)
