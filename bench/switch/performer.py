"""Performs the script in the same way with any runtime, and records what is observed."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from bench.switch import workload
from bench.switch.workload import Compress, Step, Turn, Write


@dataclass
class TurnRecord:
    """A turn, timed from the message to the reply, without the switch before it."""

    number: int
    ms: float
    built: str | None
    """Why an agent was built for it; None if the cached one was used."""
    build_ms: float


@dataclass
class Record:
    """Everything observed from outside, and where the users are."""

    turns: list[TurnRecord] = field(default_factory=list)
    switch_ms: list[float] = field(default_factory=list)
    transcripts: dict[int, list[dict[str, object]]] = field(default_factory=dict)
    """What the model is shown of a session after a compression, by its number."""
    not_compressed: list[int] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)
    """Turns whose reply was not what the model said."""
    lost: list[str] = field(default_factory=list)
    """Messages that are not in the file at the end."""
    ids: dict[str, str] = field(default_factory=dict)
    """The current id of each session, by user and session."""
    current: dict[str, str] = field(default_factory=dict)
    """The current session of each user."""


def ms_since(started: float) -> float:
    return (perf_counter() - started) * 1e3


def name(step: Turn | Write | Compress) -> str:
    return f"{step.user} {step.session}"


class OtherWriter:
    """Adds messages to sessions through `append(session_id, role, content)`."""

    def __init__(
        self, steps: Sequence[Step], record: Record, append: Callable[[str, str, str], object]
    ) -> None:
        self._record = record
        self._append = append
        marked = (step for step in steps if isinstance(step, Turn) and step.mark is not None)
        self.during = {turn.word: turn for turn in marked}
        """The turns in which to write, by the word that is looked up."""

    def write_during(self, word: str) -> None:
        """Write if this is to happen while the word is looked up."""
        if turn := self.during.pop(word, None):
            self.write(Write(turn.user, turn.session, turn.mark or 0))

    def write(self, step: Write) -> None:
        session_id = self._record.ids[name(step)]
        for role, content in zip(("user", "assistant"), workload.written(step.mark), strict=True):
            self._append(session_id, role, content)


class Performer(ABC):
    """Users write, and switch and compress with commands; the other writer adds messages."""

    def __init__(self, record: Record, writer: OtherWriter) -> None:
        self.record = record
        self.writer = writer

    @abstractmethod
    async def say(self, user: int, text: str) -> str:
        """Send a message of a user and return the reply."""

    @abstractmethod
    def session_of(self, user: int) -> str:
        """Return the id of the session that a user is in."""

    @abstractmethod
    def build_of_turn(self, user: int) -> tuple[str | None, float]:
        """Return why an agent was built for the user's last turn, and in how many milliseconds."""

    @abstractmethod
    async def was_compressed(self, step: Compress, reply: str) -> bool:
        """Return whether a compression took place."""

    def is_answer(self, reply: str, expected: str) -> bool:
        return reply == expected

    async def perform(self, step: Step) -> None:
        """Perform one step, which is not a restart."""
        match step:
            case Turn():
                await self._turn(step)
            case Write():
                self.writer.write(step)
            case Compress():
                if not await self.was_compressed(step, await self.say(step.user, "/compress")):
                    self.record.not_compressed.append(step.number)
                self.record.ids[name(step)] = self.session_of(step.user)

    async def _turn(self, turn: Turn) -> None:
        await self._switch(turn)
        started = perf_counter()
        reply = await self.say(turn.user, turn.text)
        ms = ms_since(started)
        self.record.turns.append(TurnRecord(turn.number, ms, *self.build_of_turn(turn.user)))
        if not self.is_answer(reply, workload.answer(turn.number)):
            print(f"the reply to turn {turn.number} was {reply!r}", file=sys.stderr)
            self.record.wrong.append(turn.number)
        session_id = self.session_of(turn.user)
        if self.record.ids.setdefault(name(turn), session_id) != session_id:
            raise AssertionError(f"turn {turn.number} was in session {session_id}")
        if len(set(self.record.ids.values())) < len(self.record.ids):
            raise AssertionError(f"turn {turn.number} did not start a new session")

    async def _switch(self, turn: Turn) -> None:
        """Change to the session of this turn with the user's own commands."""
        there, before = name(turn), self.record.current.get(str(turn.user))
        self.record.current[str(turn.user)] = there
        if there in self.record.ids and before != there:
            started = perf_counter()
            await self.say(turn.user, f"/resume {self.record.ids[there]}")
            self.record.switch_ms.append(ms_since(started))
        elif there not in self.record.ids and before is not None:
            await self.say(turn.user, "/new")
