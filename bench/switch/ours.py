"""Driver of our runtime with `ChatAgent`, which performs the script under a given policy."""

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

from bench.harness.protocol import serve
from bench.switch import policies, workload
from bench.switch.performer import OtherWriter, Performer, Record, ms_since, name
from bench.switch.policies import Contender, Policy
from bench.switch.workload import Compress, Restart, Step, Turn, Write
from hermes.actors.runtime import Runtime, open_actors
from hermes.agents import ChatAgent, ChatAgents, Endpoint, chat_agents, tool
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.config import CompressionConfig, Config
from hermes.messages import AgentSpec, Reply
from hermes.store import SessionStore, open_store
from hermes.transcript.render import IncrementalRenderer

# Only the script compresses; then everything but the last exchanges is summarized.
CONFIG = Config(compression=CompressionConfig(window=1_000_000, tail_share=0.0003))


class Builder:
    """Builds agents for one contender, and counts them."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.builds = 0
        self.ms = 0.0

    def build(self, agents: ChatAgents, spec: AgentSpec) -> ChatAgent:
        """Build an agent, with changed content in the prompt if the contender renders it again."""
        started = perf_counter()
        self.builds += 1
        if self.contender.renders:
            system = f"{agents.system}\n\nThis prompt was made {self.builds} times."
            agents = attrs.evolve(agents, system=system)
        agent = agents.build(spec)
        self.ms += ms_since(started)
        return agent


class Ours(Performer):
    """One process of our runtime; `policy` is in place of its own guard."""

    def __init__(
        self, script: Script, writer: OtherWriter, runtime: Runtime, policy: Policy
    ) -> None:
        super().__init__(script.record, writer)
        self.script = script
        self.runtime = runtime
        self.policy = policy
        self.replies: dict[int, Reply] = {}
        self.builds_before = 0

    async def say(self, user: int, text: str) -> str:
        self.script.builder.ms, self.builds_before = 0.0, self.script.builder.builds
        reply = self.replies[user] = await self.runtime.ask(key_of(user), text)
        self.script.all_ids.add(reply.session_id)
        return reply.text

    def session_of(self, user: int) -> str:
        return self.replies[user].session_id

    def build_of_turn(self, user: int) -> tuple[str | None, float]:
        """Builds are counted here; the reason is the runtime's."""
        if self.script.builder.builds == self.builds_before:
            return None, 0.0
        return self.replies[user].build_reason or "no reason", self.script.builder.ms

    async def was_compressed(self, step: Compress, reply: str) -> bool:
        if self.session_of(step.user) == self.record.ids[name(step)]:
            return False
        messages = IncrementalRenderer().add(
            await self.runtime.conversation(key_of(step.user)).history()
        )
        provider = OpenAIChat(httpx2.AsyncClient(), Endpoint(base_url="", model="m"))
        shown = [msgspec.json.decode(each) for each in provider.encode(messages)]
        self.record.transcripts[step.number] = shown
        return True

    async def perform(self, step: Step) -> None:
        if isinstance(step, Write):
            await trio.to_thread.run_sync(self.writer.write, step)
            return
        await super().perform(step)
        snapshot = (
            self.runtime.conversation(key_of(step.user)).snapshot()
            if isinstance(step, Turn)
            else None
        )
        if isinstance(step, Turn) and snapshot is not None:
            session_id = self.session_of(step.user)
            session = await trio.to_thread.run_sync(self.script.store.get_session, session_id)
            count = 0 if session is None else session.message_count
            self.policy.refresh(snapshot.agent, session_id, count)


@attrs.frozen
class Script:
    """A script and what outlives a restart. `store` is the connection of the other writer."""

    path: Path
    steps: Sequence[Step]
    store: SessionStore
    builder: Builder
    record: Record = attrs.Factory(Record)
    all_ids: set[str] = attrs.Factory(set)


def key_of(user: int) -> str:
    return f"bench:{user}"


@asynccontextmanager
async def open_process(script: Script, url: str) -> AsyncIterator[Ours]:
    """Open a runtime with a new policy in place of its own guard."""
    writer = OtherWriter(script.steps, script.record, script.store.append_message)
    policy = script.builder.contender.policy()

    @tool
    async def look_up(word: str) -> str:
        """Look a word up in the dictionary.

        Args:
            word: The word.
        """
        if writer.writes_during(word):
            await trio.to_thread.run_sync(writer.write_during, word)
        return workload.finding(word)

    endpoint = Endpoint(base_url=url, model="m")
    async with (
        chat_agents(endpoint, system=workload.SYSTEM, tools=[look_up]) as agents,
        open_store(script.path) as store,
        open_actors(
            store,
            build=lambda spec: script.builder.build(agents, spec),
            agent_spec=agents.agent_spec,
            config=CONFIG,
            compressor=agents.compressor(),
            rebuild_policy=policy,
        ) as runtime,
    ):
        yield Ours(script, writer, runtime, policy)


async def perform(script: Script, url: str) -> None:
    """Perform all steps, with a new runtime after each restart."""
    left = list(script.steps)
    while left:
        async with open_process(script, url) as ours:
            while left and not isinstance(left[0], Restart):
                await ours.perform(left.pop(0))
        del left[:1]


async def run(path: str, url: str, script: str, label: str) -> dict[str, Any]:
    """Perform a script on a new file and return the record."""
    steps = workload.load(Path(script))
    with SessionStore(Path(path)) as store:
        done = Script(Path(path), steps, store, Builder(policies.BY_LABEL[label]))
        await perform(done, url)
        rows = [row.content for each in done.all_ids for row in store.get_messages(each)]
        done.record.lost = workload.missing(steps, rows)
    return asdict(done.record)


if __name__ == "__main__":
    serve({"hermes": version("hermes-runtime"), "httpx2": version("httpx2")}, run, run=trio.run)
