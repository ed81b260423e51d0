"""One gateway of hermes-agent 0.19.0 does a part of the script, in the home that it finds.

A process of its own for each part between two restarts, started by `hermes_switch`. The gateway,
its stores, its thread pools and its agents are the real ones. No platform is connected: one that is
would make turns wait for its way of streaming.

An agent counts as built for a turn if it was made while the turn ran and is in the gateway's cache
after it; what /compress makes for itself is in no turn and in no cache. Switches that are timed are
those to a session that exists (/resume); /new and its wait are in no figure.
"""

# ruff: noqa: SLF001 - the way into a turn is private, and so is the cache of agents

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import ClassVar

import run_agent
from gateway.config import Platform
from gateway.platforms.base import MessageEvent, MessageType
from gateway.run import GatewayRunner
from gateway.session import SessionSource
from hermes_state import SessionDB
from tools.registry import registry

from bench import workload
from bench.peers.hermes_switch import RESULT, TOOLSET
from bench.peers.switch_record import Record, TurnRecord


class Agent(run_agent.AIAgent):
    """The real one; it notes who was made, and in how many milliseconds."""

    made: ClassVar[list[tuple[Agent, float]]] = []

    def __init__(self, *arguments: object, **settings: object) -> None:
        started = perf_counter()
        super().__init__(*arguments, **settings)
        self.made.append((self, since(started)))


@dataclass
class Known:
    """What goes from one process to the next."""

    ids: dict[str, str] = field(default_factory=dict)
    """By user and session: the gateway's name for it."""
    at: dict[str, str] = field(default_factory=dict)
    """By user: the session he is in."""
    record: Record = field(default_factory=Record)

    @classmethod
    def load(cls, path: Path) -> Known:
        if not path.exists():
            return cls()
        found = json.loads(path.read_text())
        record = Record(**found["record"])
        record.turns = [TurnRecord(**turn) for turn in found["record"]["turns"]]
        return cls(found["ids"], found["at"], record)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


class Chats:
    """Every user has one direct chat with the gateway, and all his sessions there."""

    def __init__(self, runner: GatewayRunner, elsewhere: SessionDB, known: Known) -> None:
        self.runner = runner
        self.elsewhere = elsewhere
        self.known = known
        self.record = known.record
        self.running: workload.Turn | None = None
        self.sent = 0

    async def do(self, step: workload.Step) -> None:
        match step:
            case workload.Turn():
                await self.turn(step)
            case workload.Write():
                self.write(self.known.ids[name(step)], step.mark)
            case workload.Compress():
                await self.compress(step)
            case workload.Restart():
                raise AssertionError("a process knows nothing of its restart")

    async def turn(self, turn: workload.Turn) -> None:
        await self.go(turn)
        Agent.made.clear()
        self.running = turn
        started = perf_counter()
        reply = await self.say(turn.user, turn.text)
        record = TurnRecord(turn.number, since(started))
        self.running = None
        cached = self.runner._agent_cache.get(self.key(turn.user))
        for agent, ms in Agent.made:
            if cached and agent is cached[0]:
                record.built, record.build_ms = "built", ms
        self.record.turns.append(record)
        if workload.answer(turn.number) not in reply:
            print(f"turn {turn.number} was answered {reply!r}", file=sys.stderr)
            self.record.wrong.append(turn.number)
        was = self.known.ids.get(name(turn))
        self.note(turn)
        if was not in {None, self.here(turn.user)}:
            raise AssertionError(f"turn {turn.number} was not in {was}")
        if len(set(self.known.ids.values())) < len(self.known.ids):
            raise AssertionError(f"turn {turn.number} was in a session that was there before")

    async def go(self, turn: workload.Turn) -> None:
        """Into the session of this turn, by the command that a user has for it."""
        there, user = name(turn), str(turn.user)
        if there not in self.known.ids:
            if user in self.known.at:
                await self.say(turn.user, "/new")
        elif self.known.at[user] != there:
            wanted = self.known.ids[there]
            started = perf_counter()
            reply = await self.say(turn.user, f"/resume {wanted}")
            self.record.switch_ms.append(since(started))
            if self.here(turn.user) != wanted:
                raise AssertionError(f"/resume {wanted} was answered {reply!r}")

    async def compress(self, step: workload.Compress) -> None:
        started = perf_counter()
        reply = await self.say(step.user, "/compress")
        self.record.compress_ms.append(since(started))
        if "Compressed:" not in reply:
            print(f"compression {step.number} was answered {reply!r}", file=sys.stderr)
            self.record.not_compressed.append(step.number)
        self.note(step)

    def note(self, step: workload.Turn | workload.Compress) -> None:
        """Where the user is now; a compression may have given the session another id."""
        self.known.at[str(step.user)] = name(step)
        self.known.ids[name(step)] = self.here(step.user)

    async def say(self, user: int, text: str) -> str:
        self.sent += 1
        event = MessageEvent(
            text=text,
            message_type=MessageType.TEXT,
            source=source(user),
            message_id=f"{os.getpid()}-{self.sent}",
        )
        return str(await self.runner._handle_message(event))

    def look_up(self, arguments: dict[str, str], **_: object) -> str:
        """The tool; it runs in the agent's thread."""
        if self.running is not None and self.running.mark is not None:
            self.write(self.here(self.running.user), self.running.mark)
        return workload.finding(arguments["word"])

    def write(self, session_id: str, mark: int) -> None:
        question, answer = workload.written(mark)
        self.elsewhere.append_message(session_id, role="user", content=question)
        self.elsewhere.append_message(session_id, role="assistant", content=answer)

    def here(self, user: int) -> str:
        return str(self.runner.session_store.peek_session_id(self.key(user)))

    def key(self, user: int) -> str:
        return str(self.runner._session_key_for_source(source(user)))


def source(user: int) -> SessionSource:
    chat = str(user)
    return SessionSource(platform=Platform.TELEGRAM, chat_id=chat, user_id=chat, chat_type="dm")


def name(step: workload.Turn | workload.Write | workload.Compress) -> str:
    return f"{step.user} {step.session}"


def since(started: float) -> float:
    return (perf_counter() - started) * 1e3


async def do(steps: list[workload.Step], known: Known) -> None:
    """Start a gateway as its own `start` leaves it, without what would listen, watch or restore."""
    runner = GatewayRunner()
    runner._running = True
    runner._gateway_loop = asyncio.get_running_loop()
    elsewhere = SessionDB()
    chats = Chats(runner, elsewhere, known)
    schema = {
        "name": workload.TOOL,
        "description": workload.TOOL_SAYS,
        "parameters": workload.TOOL_TAKES,
    }
    registry.register(workload.TOOL, TOOLSET, schema, chats.look_up)
    for step in steps:
        await chats.do(step)
    elsewhere.close()
    await runner.stop()


def main(script: str, start: str, end: str) -> None:
    result = Path(os.environ["HERMES_HOME"]) / RESULT
    known = Known.load(result)
    run_agent.AIAgent = Agent
    asyncio.run(do(workload.load(Path(script))[int(start) : int(end)], known))
    known.save(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
