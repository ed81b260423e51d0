"""Driver of our runtime with `ChatAgent`, which performs the script under a given policy."""

from __future__ import annotations

from collections.abc import AsyncIterator
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

from bench.harness.driver import serve
from bench.switch import policies, workload
from bench.switch.performer import OtherWriter, Performer, Record, ms_since, name
from bench.switch.policies import Contender, Policy
from bench.switch.workload import Compress, Step, Turn
from hermes.actors.runtime import Runtime, open_actors
from hermes.agents import ChatAgent, ChatAgents, Endpoint, chat_agents, tool
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.config import CompressionConfig, Config
from hermes.messages import AgentSpec, Reply
from hermes.store import SessionStore, open_store
from hermes.transcript.render import IncrementalRenderer

# Only the script compresses; then everything but the last exchanges is summarized.
CONFIG = Config(compression=CompressionConfig(window=1_000_000, tail_share=0.0003))


@attrs.define
class Script:
    """What outlives a restart. `store` is the connection of the other writer."""

    contender: Contender
    path: Path
    url: str
    store: SessionStore
    record: Record
    writer: OtherWriter
    ids: set[str] = attrs.Factory(set)
    """All sessions of the script."""
    builds: int = 0
    build_ms: float = 0.0

    def build(self, agents: ChatAgents, spec: AgentSpec) -> ChatAgent:
        """Build an agent, with changed content in the prompt if the contender renders it again."""
        started = perf_counter()
        self.builds += 1
        if self.contender.renders:
            system = f"{agents.system}\n\nThis prompt was made {self.builds} times."
            agents = attrs.evolve(agents, system=system)
        agent = agents.build(spec)
        self.build_ms += ms_since(started)
        return agent


class Ours(Performer):
    """One process of our runtime; `policy` decides when it rebuilds an agent."""

    def __init__(self, script: Script, runtime: Runtime, policy: Policy) -> None:
        super().__init__(script.record, script.writer)
        self.script = script
        self.runtime = runtime
        self.policy = policy
        self.replies: dict[int, Reply] = {}
        self.builds_before = 0

    async def say(self, user: int, text: str) -> str:
        self.script.build_ms, self.builds_before = 0.0, self.script.builds
        reply = self.replies[user] = await self.runtime.ask(key_of(user), text)
        self.script.ids.add(reply.session_id)
        return reply.text

    def session_of(self, user: int) -> str:
        return self.replies[user].session_id

    def build_of_turn(self, user: int) -> tuple[str | None, float]:
        """Builds are counted here; the reason is the runtime's."""
        if self.script.builds == self.builds_before:
            return None, 0.0
        return self.replies[user].build_reason or "no reason", self.script.build_ms

    async def was_compressed(self, step: Compress, reply: str) -> bool:
        if self.session_of(step.user) == self.record.ids[name(step)]:
            return False
        history = await self.runtime.conversation(key_of(step.user)).history()
        provider = OpenAIChat(httpx2.AsyncClient(), Endpoint(base_url="", model="m"))
        shown = provider.encode(IncrementalRenderer().add(history))
        self.record.transcripts[step.number] = [msgspec.json.decode(each) for each in shown]
        return True

    async def perform(self, step: Step) -> None:
        await super().perform(step)
        if isinstance(step, Turn):
            snapshot = self.runtime.conversation(key_of(step.user)).snapshot()
            session = self.script.store.get_session(self.session_of(step.user))
            if snapshot is not None and session is not None:
                self.policy.refresh(snapshot.agent, session.id, session.message_count)


def key_of(user: int) -> str:
    return f"bench:{user}"


@asynccontextmanager
async def open_process(script: Script) -> AsyncIterator[Ours]:
    """Open a runtime with a new policy."""
    policy, writer = script.contender.policy(), script.writer

    @tool
    async def look_up(word: str) -> str:
        """Look a word up in the dictionary.

        Args:
            word: The word.
        """
        if word in writer.during:
            await trio.to_thread.run_sync(writer.write_during, word)
        return workload.finding(word)

    endpoint = Endpoint(base_url=script.url, model="m")
    async with (
        chat_agents(endpoint, system=workload.SYSTEM, tools=[look_up]) as agents,
        open_store(script.path) as store,
        open_actors(
            store,
            build=lambda spec: script.build(agents, spec),
            agent_spec=agents.agent_spec,
            config=CONFIG,
            compressor=agents.compressor(),
            rebuild_policy=policy,
        ) as runtime,
    ):
        yield Ours(script, runtime, policy)


async def run(path: str, url: str, plan: Any, pattern: str, label: str) -> dict[str, Any]:
    """Perform a script on a new file, with a new runtime after each restart; return the record."""
    steps = workload.script(workload.Plan(**plan), pattern)
    record, contender = Record(), policies.BY_LABEL[label]
    with SessionStore(Path(path)) as store:
        writer = OtherWriter(steps, record, store.append_message)
        shared = Script(contender, Path(path), url, store, record, writer)
        for part in workload.parts(steps):
            async with open_process(shared) as ours:
                for step in part:
                    await ours.perform(step)
        rows = [row.content for each in shared.ids for row in store.get_messages(each)]
        record.lost = workload.missing(steps, rows)
    return asdict(record)


if __name__ == "__main__":
    serve({"hermes": version("hermes-runtime"), "httpx2": version("httpx2")}, run, run=trio.run)
