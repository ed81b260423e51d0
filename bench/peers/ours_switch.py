"""Our runtime with `ChatAgent`, doing the script of the switching benchmark under some policy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import attrs
import httpx2
import msgspec
import trio

from bench import policies, workload
from bench.peers.switch_record import Record, TurnRecord
from bench.peers.wire import serve
from bench.policies import Contender, Policy
from bench.workload import Compress, Restart, Step, Turn, Write
from hermes.actors.runtime import Runtime, running
from hermes.agents import ChatAgent, ChatAgents, Endpoint, chat_agents, tool
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.config import CompressionConfig, Config
from hermes.messages import AgentSpec, Message
from hermes.store import SessionStore, open_store
from hermes.transcript.render import Unfolding

# Nothing is compressed but by the script; then all but the last exchanges is summed up.
CONFIG = Config(compression=CompressionConfig(window=1_000_000, tail_share=0.0003))


@attrs.define
class Process:
    """One life of the runtime, between two restarts."""

    runtime: Runtime
    policy: Policy


@attrs.define
class Doing:
    """A script on its way: where everybody is, and what was seen."""

    path: Path
    contender: Contender
    elsewhere: SessionStore
    record: Record = attrs.Factory(Record)
    sessions: dict[tuple[int, int], str] = attrs.Factory(dict)
    every_id: set[str] = attrs.Factory(set)
    at: dict[int, int] = attrs.Factory(dict)
    built_ms: float = 0.0
    builds: int = 0
    marks: dict[str, tuple[str, int]] = attrs.Factory(dict)
    """By a word: where somebody else writes what while it is looked up."""

    async def step(self, process: Process, step: Step) -> None:
        match step:
            case Turn():
                await self._turn(process, step)
            case Write(user, session, mark):
                await self._write(self.sessions[user, session], mark)
            case Compress():
                await self._compress(process.runtime, step)
            case Restart():
                raise AssertionError("a restart ends a process")

    async def _turn(self, process: Process, turn: Turn) -> None:
        runtime, key = process.runtime, key_of(turn.user)
        await self._go(runtime, turn.user, turn.session)
        if turn.word is not None and turn.mark is not None:
            session_id = self.sessions.get((turn.user, turn.session), "")
            self.marks[turn.word] = (session_id, turn.mark)
        self.built_ms, before = 0.0, self.builds
        started = perf_counter()
        reply = await runtime.ask(key, turn.text)
        ms = (perf_counter() - started) * 1e3
        # What was built is seen here; why is the runtime's word.
        built = (reply.build_reason or "no reason") if self.builds > before else None
        self.record.turns.append(TurnRecord(turn.number, ms, built, self.built_ms))
        if reply.text != workload.answer(turn.number):
            self.record.wrong.append(turn.number)
        self.sessions[turn.user, turn.session] = reply.session_id
        self.every_id.add(reply.session_id)
        snapshot = runtime.snapshot(key)
        count = await trio.to_thread.run_sync(self._count, reply.session_id)
        if snapshot is not None:
            process.policy.refresh(snapshot.agent, reply.session_id, count)

    async def _go(self, runtime: Runtime, user: int, session: int) -> None:
        """Have the user be in a session, as he himself would."""
        if self.at.get(user) == session:
            return
        known = self.sessions.get((user, session))
        if known is not None:
            started = perf_counter()
            await runtime.ask(key_of(user), f"/resume {known}")
            self.record.switch_ms.append((perf_counter() - started) * 1e3)
        elif user in self.at:
            await runtime.ask(key_of(user), "/new")
        self.at[user] = session

    def _count(self, session_id: str) -> int:
        session = self.elsewhere.get_session(session_id)
        return 0 if session is None else session.message_count

    async def _write(self, session_id: str, mark: int) -> None:
        await trio.to_thread.run_sync(self._append, session_id, mark)

    def _append(self, session_id: str, mark: int) -> None:
        question, answer = workload.written(mark)
        self.elsewhere.append_message(session_id, "user", question)
        self.elsewhere.append_message(session_id, "assistant", answer)

    async def look_up(self, word: str) -> str:
        session_id, mark = self.marks.pop(word, ("", 0))
        if session_id:
            await self._write(session_id, mark)
        return workload.finding(word)

    async def _compress(self, runtime: Runtime, step: Compress) -> None:
        key, place = key_of(step.user), (step.user, step.session)
        started = perf_counter()
        reply = await runtime.ask(key, "/compress")
        self.record.compress_ms.append((perf_counter() - started) * 1e3)
        if reply.session_id == self.sessions[place]:
            self.record.not_compressed.append(step.number)
            return
        self.sessions[place] = reply.session_id
        shown = Unfolding().add(await runtime.history(key))
        wire = openai_wire(shown)
        self.record.transcripts[step.number] = [msgspec.json.decode(each) for each in wire]

    def build(self, agents: ChatAgents, spec: AgentSpec) -> ChatAgent:
        """An agent; a policy that renders its prompt again does so with what is true only now."""
        started = perf_counter()
        self.builds += 1
        if self.contender.renders:
            system = f"{agents.system}\n\nThis prompt was made {self.builds} times."
            agents = attrs.evolve(agents, system=system)
        agent = agents.build(spec)
        self.built_ms += (perf_counter() - started) * 1e3
        return agent


def openai_wire(messages: Sequence[Message]) -> list[bytes]:
    """What a provider is sent of messages."""
    return OpenAIChat(httpx2.AsyncClient(), Endpoint(base_url="", model="m")).encode(messages)


def key_of(user: int) -> str:
    return f"bench:{user}"


@asynccontextmanager
async def open_process(doing: Doing, url: str) -> AsyncIterator[Process]:
    """A runtime with the contender's guard in place of its own."""
    policy = doing.contender.policy()

    @tool
    async def look_up(word: str) -> str:
        """Look a word up in the dictionary.

        Args:
            word: The word.
        """
        return await doing.look_up(word)

    async with (
        chat_agents(
            Endpoint(base_url=url, model="m"), system=workload.SYSTEM, tools=[look_up]
        ) as agents,
        open_store(doing.path) as store,
        running(
            store,
            build=lambda spec: doing.build(agents, spec),
            describe=agents.describe,
            config=CONFIG,
            compressor=agents.compressor(),
            guard=policy,
        ) as runtime,
    ):
        yield Process(runtime, policy)


async def perform(doing: Doing, steps: Sequence[Step], url: str) -> None:
    """Do all steps, in as many processes as there are restarts."""
    left = list(steps)
    while left:
        async with open_process(doing, url) as process:
            while left and not isinstance(left[0], Restart):
                await doing.step(process, left.pop(0))
        del left[:1]


def run(path: str, url: str, script: str, label: str) -> dict[str, Any]:
    """Do a script on a new file, and tell what was seen."""
    steps = workload.load(Path(script))
    file = Path(path)
    with SessionStore(file) as elsewhere:
        doing = Doing(file, policies.BY_LABEL[label], elsewhere)
        trio.run(perform, doing, steps, url)
        rows = [row.content for each in doing.every_id for row in elsewhere.get_messages(each)]
        doing.record.lost = workload.missing(steps, rows)
    return asdict(doing.record)


if __name__ == "__main__":
    serve({"hermes": version("hermes-runtime"), "httpx2": version("httpx2")}, {"run": run})
