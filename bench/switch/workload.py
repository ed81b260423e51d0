"""The script of the switching benchmark: the same steps for every contender.

The drivers of peers import this and `performer`, so both use the standard library only.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.harness.sample_text import TEXTS, text

SEED = 20_260_102
SYSTEM = "\n".join(f"{n + 1}. {TEXTS[-1 - n]}" for n in range(20))
"""A system prompt of about 2,000 tokens."""
TOOL = "look_up"
TOOL_SCHEMA: Mapping[str, object] = {
    "name": TOOL,
    "description": "Look a word up in the dictionary.",
    "parameters": {
        "type": "object",
        "properties": {"word": {"type": "string", "description": "The word."}},
        "required": ["word"],
        "additionalProperties": False,
    },
}
SUMMARY = "The conversation so far: " + TEXTS[0]
_TURN = re.compile(r"\[turn (\d+)\]")
_TAG = re.compile(r"\[((?:turn|answer|found|elsewhere|replied) \d+)\]")
_WORD = re.compile(r"Look up the word (w\d+)\.")


@dataclass(frozen=True)
class Plan:
    """The amount of work; shares are of the turns."""

    users: int
    sessions: int
    turns: int
    """Turns of each user."""
    tools: float = 0.3
    writes: float = 0.15
    """Messages of the other writer: half go to the current session after a turn, a quarter to any
    session after a turn, a quarter to the current session during a turn."""
    compressions: float = 0.04
    restarts: int = 3
    """Restarts in the pattern that has them."""


@dataclass(frozen=True)
class Turn:
    """A message of a user, who switches to the session first if necessary."""

    user: int
    session: int
    number: int
    word: str | None = None
    """The word that the model will look up."""
    mark: int | None = None
    """Set if the other writer adds messages while the word is looked up."""

    @property
    def text(self) -> str:
        look = f" Look up the word {self.word}." if self.word else ""
        return f"[turn {self.number}] {text(self.user, self.number)}{look}"


@dataclass(frozen=True)
class Write:
    """The other writer adds a question and an answer to a session."""

    user: int
    session: int
    mark: int


@dataclass(frozen=True)
class Compress:
    """The user compresses the current session."""

    user: int
    session: int
    number: int


@dataclass(frozen=True)
class Restart:
    """The process shuts down and another one continues."""


Step = Turn | Write | Compress | Restart


# Every message starts with a tag, by which it is recognized wherever it appears.


def written(mark: int) -> tuple[str, str]:
    """The question and the answer of the other writer."""
    return f"[elsewhere {mark}] {text(mark, 1)}", f"[replied {mark}] {text(mark, 2)}"


def answer(number: int) -> str:
    """The model's reply in a turn."""
    return f"[answer {number}] {text(number, 3)}"


def finding(word: str) -> str:
    """The result of the tool."""
    number = int(word[1:])
    return f"[found {number}] {text(number, 4)} {text(number, 5)}"


def call_id(number: int) -> str:
    """The model's id of the tool call in a turn."""
    return f"call_{number:06d}"


def turn_of(message: str) -> int | None:
    """Return the number of the turn that this message of a user starts."""
    found = _TURN.match(message)
    return int(found[1]) if found else None


def word_of(message: str) -> str | None:
    """Return the word that a user wants to be looked up."""
    found = _WORD.search(message)
    return found[1] if found else None


def tags_in(words: str) -> list[str]:
    """Return the tags of all messages in a text, in order."""
    return _TAG.findall(words)


def tags_of(step: Step) -> list[str]:
    """Return the tags of the messages that a step adds to its session."""
    tags = []
    if isinstance(step, Turn | Write) and step.mark is not None:
        tags += [f"elsewhere {step.mark}", f"replied {step.mark}"]
    if isinstance(step, Turn):
        found = [f"found {step.number}"] if step.word else []
        tags += [f"turn {step.number}", *found, f"answer {step.number}"]
    return tags


def missing(steps: Sequence[Step], stored: Iterable[str | None]) -> list[str]:
    """Return the tags of messages that are in none of the stored texts."""
    known = {tag for words in stored for tag in tags_in(words or "")}
    return [tag for step in steps for tag in tags_of(step) if tag not in known]


def round_robin(generator: random.Random, sessions: int) -> Iterator[int]:
    """One session after the other."""
    session = generator.randrange(sessions)
    while True:
        yield session
        session = (session + 1) % sessions


def zipf(generator: random.Random, sessions: int) -> Iterator[int]:
    """A favourite session, and others that are visited less often."""
    weights = [1 / rank for rank in range(1, sessions + 1)]
    while True:
        yield generator.choices(range(sessions), weights)[0]


def bursts(generator: random.Random, sessions: int) -> Iterator[int]:
    """Some turns in one session, then some in another."""
    while True:
        session = generator.randrange(sessions)
        for _ in range(generator.randint(2, 8)):
            yield session


RESUME = "resume after restart"
PATTERNS: Mapping[str, Callable[[random.Random, int], Iterator[int]]] = {
    "round robin": round_robin,
    "zipf": zipf,
    "bursts": bursts,
    RESUME: bursts,
}


def script(plan: Plan, pattern: str, seed: int = SEED) -> list[Step]:
    """Return the steps in order; they depend only on the arguments."""
    generator = random.Random(f"{seed} {pattern}")
    steps = _opening_turns(plan)
    first = len(steps)
    marks = itertools.count()
    sessions = [PATTERNS[pattern](generator, plan.sessions) for _ in range(plan.users)]
    order = [user for user in range(plan.users) for _ in range(plan.turns)]
    generator.shuffle(order)
    restarts: set[int] = set()
    if pattern == RESUME:
        restarts = {len(order) * n // (plan.restarts + 1) for n in range(1, plan.restarts + 1)}
    unseen: set[tuple[int, int]] = set()
    for place, user in enumerate(order):
        if place in restarts:
            steps.append(Restart())
        session = next(sessions[user])
        turn = _turn(plan, generator, (user, session, first + place), marks)
        steps.append(turn)
        unseen.discard((user, session))
        if turn.mark is not None:
            unseen.add((user, session))
        # The model must see what the other writer wrote before it can be summarized.
        if generator.random() < plan.compressions and (user, session) not in unseen:
            steps.append(Compress(user, session, turn.number))
        if turn.mark is None and generator.random() < plan.writes * 0.75:
            where = session if generator.random() < 2 / 3 else generator.randrange(plan.sessions)
            steps.append(Write(user, where, next(marks)))
            unseen.add((user, where))
    return steps


def opening_turns(plan: Plan) -> int:
    """The number of turns at the beginning that open the sessions and are not counted."""
    return 2 * plan.users * plan.sessions


def _opening_turns(plan: Plan) -> list[Step]:
    """Every user opens each session, and returns to each once."""
    places = [(user, session) for user in range(plan.users) for session in range(plan.sessions)]
    return [Turn(*place, number) for number, place in enumerate(places * 2)]


def _turn(
    plan: Plan, generator: random.Random, place: tuple[int, int, int], marks: Iterator[int]
) -> Turn:
    looks_up = generator.random() < plan.tools
    written_to = generator.random() < (plan.writes * 0.25 / plan.tools if plan.tools else 0.0)
    word = f"w{place[2]}" if looks_up else None
    return Turn(*place, word, next(marks) if looks_up and written_to else None)


def parts(steps: Sequence[Step]) -> list[list[Step]]:
    """Return the steps of each process: those between restarts."""
    done: list[list[Step]] = [[]]
    for step in steps:
        if isinstance(step, Restart):
            done.append([])
        else:
            done[-1].append(step)
    return done
