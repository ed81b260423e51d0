"""Random sequences of operations: the cached agent is always shown the right history."""

from __future__ import annotations

import attrs
import trio
from hypothesis import HealthCheck, example, given, settings, strategies as st
from msgspec.structs import replace

from hermes import open_runtime
from hermes.config import Config
from hermes.messages import (
    AgentSpec,
)
from hermes.store import SessionStore
from hermes.testing import (
    CountingBuilder,
    DeterministicCompressor,
    inline,
    inspect,
    texts_of,
)
from tests.support.recording import LONG, RecordingAgent
from tests.support.stores import World

OPERATIONS = (
    "turn", "turn", "turn", "meanwhile", "new", "close", "switch", "switch", "branch", "append",
    "edit", "rewind", "rewrite", "title", "undo", "retry", "retry_meanwhile", "compress", "rotate",
    "rotate_meanwhile", "evict", "sign", "status",
)  # fmt: skip


@attrs.define
class Instructions:
    """What the agents do next; the test changes it."""

    prompt: int = 0
    meanwhile: object = None
    continue_in: str | None = None


@attrs.define
class InstructedAgent(RecordingAgent):
    """An agent that can call a function during its turn, or continue in another session."""

    instructions: Instructions = attrs.field(kw_only=True)

    async def run(self, turn):
        reply = await super().run(turn)
        if self.instructions.meanwhile is not None:
            self.instructions.meanwhile(turn.session_id)
        return replace(reply, session_id=self.instructions.continue_in)


class Walk:
    """A conversation, another writer on the same file, and a model of the expected outcome."""

    def __init__(self, runtime, store, builder, instructions):
        self.runtime, self.store, self.builder, self.instructions = (
            runtime,
            store,
            builder,
            instructions,
        )
        self.rows = {}
        self.stored = []  # sessions that can be switched to
        self.ended = set()
        self.here = None
        self.last = None  # the session of the last turn
        self.lost = "cold"  # why there is no agent
        self.signature = 0
        self.news = set()
        self.number = 0

    def text(self):
        self.number += 1
        return f"{self.number} {LONG}"

    def expected(self):
        if self.lost is not None:
            return self.lost
        if self.signature != self.instructions.prompt:
            return "signature"
        return "foreign-write" if self.last == self.here and self.here in self.news else None

    def turned(self, reply, expected, shown):
        assert (reply.session_id, reply.status) == (self.here, "complete")
        assert reply.build_reason == expected
        assert self.builder.agents[-1].shown[-1] == shown
        if self.here not in self.stored:
            self.stored.append(self.here)
        self.last, self.lost, self.signature = self.here, None, self.instructions.prompt
        self.news.discard(self.here)
        self.ended.discard(self.here)

    async def turn(self, meanwhile=False):
        expected, text = self.expected(), self.text()
        theirs = self.text()
        if meanwhile:
            self.instructions.meanwhile = lambda sid: self.store.append_message(
                sid, "assistant", theirs
            )
        reply = await self.runtime.ask("k", text)
        self.instructions.meanwhile = None
        self.here = self.here or reply.session_id
        rows = self.rows.setdefault(self.here, [])
        self.turned(reply, expected, rows)
        if meanwhile:
            rows.append(("assistant", theirs))
            self.news.add(self.here)
        self.rows[self.here] = [*rows, ("user", text), ("assistant", f"echo: {text}")]

    async def meanwhile(self):
        if self.here in self.stored:
            await self.turn(meanwhile=True)

    async def rotate(self, meanwhile=False):
        """A turn whose agent continues in a session that it named."""
        expected, text, theirs = self.expected(), self.text(), self.text()
        self.instructions.continue_in = child = f"made {self.number}"
        if meanwhile:
            self.instructions.meanwhile = lambda sid: self.store.append_message(
                sid, "assistant", theirs
            )
        reply = await self.runtime.ask("k", text)
        self.instructions.continue_in = self.instructions.meanwhile = None
        parent, self.here = self.here, child
        self.turned(reply, expected, self.rows[parent])
        self.last = parent if meanwhile else child
        self.stored = [each for each in self.stored if each != parent]
        self.ended.add(parent)
        carried = [("assistant", theirs)] if meanwhile else []
        self.rows[child] = [*carried, ("user", text), ("assistant", f"echo: {text}")]

    async def rotate_meanwhile(self):
        if self.here in self.stored:
            await self.rotate(meanwhile=True)

    def question(self, rows):
        """The first and last index of the last question."""
        asked = [place for place, (role, _) in enumerate(rows) if role == "user"]
        if not asked or any(text.startswith("[CONTEXT") for _, text in rows):
            return None
        first = last = asked[-1]
        while first > 0 and rows[first - 1][0] == "user":
            first -= 1
        return first, last

    async def retry(self, meanwhile=False):
        rows = self.rows[self.here]
        if (question := self.question(rows)) is None:
            return
        first, last = question
        expected, theirs = self.expected(), self.text()
        if meanwhile:
            self.instructions.meanwhile = lambda sid: self.store.append_message(
                sid, "assistant", theirs
            )
        reply = await self.runtime.conversation("k").retry()
        self.instructions.meanwhile = None
        self.turned(reply, expected, rows[:first])
        said = "\n\n".join(text for _, text in rows[first : last + 1])
        news = [("assistant", theirs)] if meanwhile else []
        self.rows[self.here] = [
            *rows[:first], *news, *rows[first : last + 1], ("assistant", f"echo: {said}"),
        ]  # fmt: skip
        self.news |= {self.here} if meanwhile else set()

    async def undo(self):
        rows = self.rows[self.here]
        if (question := self.question(rows)) is not None:
            await self.runtime.conversation("k").undo()
            self.rows[self.here] = rows[: question[1]]

    async def new(self):
        self.ended.add(self.here)
        self.here = (await self.runtime.conversation("k").new()).session_id
        self.rows[self.here] = []

    async def close(self):
        self.ended.add(self.here)
        assert (await self.runtime.conversation("k").close()).old_session_id == self.here
        self.here = self.store.get_route("k").session_id
        self.rows[self.here] = []

    async def switch(self, choice):
        self.here = self.stored[choice % len(self.stored)]
        assert (await self.runtime.conversation("k").switch(self.here)).session_id == self.here
        self.ended.discard(self.here)

    async def branch(self):
        if self.here in self.stored:
            rows = self.rows[self.here]
            self.here = (await self.runtime.conversation("k").branch()).session_id
            self.stored.append(self.here)
            self.rows[self.here] = list(rows)

    async def compress(self):
        outcome = await self.runtime.conversation("k").compress(keep_exchanges=1)
        if outcome.changed:
            self.stored.remove(self.here)
            self.ended.add(self.here)
            self.here = outcome.session_id
            self.stored.append(self.here)
            self.rows[self.here] = texts_of(self.store.get_messages(self.here))

    def change(self, operation, choice):
        """Another writer changes a transcript."""
        session_id = self.stored[choice % len(self.stored)]
        rows, text = self.rows[session_id], self.text()
        if session_id in self.ended or not rows:
            return
        ids = [row.id for row in self.store.get_messages(session_id)]
        if operation == "append":
            self.store.append_message(session_id, "assistant", text)
            rows = [*rows, ("assistant", text)]
        elif operation == "edit":
            self.store.edit_message(session_id, ids[0], text)
            rows = [(rows[0][0], text), *rows[1:]]
        elif operation == "rewind":
            self.store.rewind(session_id, ids[-1])
            rows = rows[:-1]
        else:
            self.store.rewind(session_id, self.store.append_message(session_id, "user").message_id)
        self.rows[session_id] = rows
        self.news.add(session_id)

    async def retry_meanwhile(self):
        await self.retry(meanwhile=True)

    async def title(self):
        self.store.set_session_title(self.here, self.text()[:20])

    async def evict(self):
        """Another conversation needs the only place in the cache."""
        await inspect(self.runtime).wait_idle("k")
        await self.runtime.ask("other", "hello")
        self.lost = self.lost or "evicted"

    async def sign(self):
        self.instructions.prompt += 1

    async def status(self):
        assert (await self.runtime.conversation("k").status()).session_id == self.here

    async def step(self, operation, choice):
        if operation in {"append", "edit", "rewind", "rewrite"}:
            self.change(operation, choice)
        elif operation == "switch":
            await self.switch(choice)
        else:
            await getattr(self, operation)()


async def walk(path, steps):
    instructions = Instructions()
    builder = CountingBuilder(lambda _: InstructedAgent(instructions=instructions))
    async with open_runtime(
        path,
        build_agent=builder,
        agent_spec=lambda key, _: AgentSpec(
            session_key=key, system_prompt=f"{instructions.prompt}"
        ),
        config=Config(max_agents=1),
        compressor=DeterministicCompressor(),
        clock=World().clock,
        open_worker=inline(),
    ) as runtime:
        with SessionStore(path) as store:
            walked = Walk(runtime, store, builder, instructions)
            await walked.turn()
            for operation, choice in steps:
                await walked.step(operation, choice)
            await walked.turn()
    assert all(agent.closed == 1 for agent in builder.agents)


STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 5)), min_size=6, max_size=30)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(steps=STEPS)
@example(steps=[("new", 0), ("turn", 0), ("append", 0), ("switch", 0), ("turn", 0), ("turn", 0)])
@example(steps=[("branch", 0), ("meanwhile", 0), ("turn", 0)])
@example(steps=[("rotate", 0), ("append", 0), ("turn", 0)])
@example(steps=[("retry_meanwhile", 0), ("turn", 0)])
@example(steps=[("turn", 0), ("edit", 0), ("undo", 0), ("turn", 0)])
def test_any_sequence_of_operations_shows_the_right_history_and_rebuilds_for_the_right_reasons(
    tmp_path_factory, steps
):
    trio.run(walk, tmp_path_factory.mktemp("walk") / "state.db", steps)
