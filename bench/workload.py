"""What people do in the switching benchmark: a script, the same for everybody who is measured.

Some users have several sessions each, all under one session_key. They switch between them by a
pattern, some turns call a tool, some sessions are compressed, somebody else writes to them now and
then, also while a turn runs, and in one pattern the process is started anew on the way.

Standard library only, and nothing of hermes: the peers' interpreters and the oracle import it.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import texts

SEED = 20_260_102
SYSTEM = "\n".join(f"{n + 1}. {texts.TEXTS[-1 - n]}" for n in range(20))
"""A system prompt of about 2,000 tokens, which is what small ones have."""
TOOL = "look_up"
TOOL_SAYS = "Look a word up in the dictionary."
TOOL_TAKES: Mapping[str, object] = {
    "type": "object",
    "properties": {"word": {"type": "string", "description": "The word."}},
    "required": ["word"],
    "additionalProperties": False,
}
SUMMARY = "The conversation so far: " + texts.TEXTS[0]
_TURN = re.compile(r"\[turn (\d+)\]")
_TAG = re.compile(r"\[((?:turn|answer|found|elsewhere|replied) \d+)\]")
_WORD = re.compile(r"Look up the word (w\d+)\.")


@dataclass(frozen=True)
class Plan:
    """How much of everything; shares are of the turns."""

    users: int
    sessions: int
    turns: int
    """Of each user."""
    tools: float = 0.3
    writes: float = 0.15
    """How often somebody else writes: half of these after a turn, to the session that the user is
    in; a quarter after it, to any; a quarter while it runs."""
    compressions: float = 0.04
    restarts: int = 3
    """In the pattern that has them."""


@dataclass(frozen=True)
class Turn:
    """A user says something in one of his sessions; who is in another one switches first."""

    user: int
    session: int
    number: int
    word: str | None = None
    """What the model will look up."""
    mark: int | None = None
    """Somebody else writes to the session while the word is looked up."""

    @property
    def text(self) -> str:
        look = f" Look up the word {self.word}." if self.word else ""
        return f"[turn {self.number}] {texts.text(self.user, self.number)}{look}"


@dataclass(frozen=True)
class Write:
    """Somebody else adds a question and an answer to a session, behind everybody's back."""

    user: int
    session: int
    mark: int


@dataclass(frozen=True)
class Compress:
    """The user has the session compressed that he is in."""

    user: int
    session: int
    number: int


@dataclass(frozen=True)
class Restart:
    """The process ends in an orderly way, and another one goes on."""


Step = Turn | Write | Compress | Restart
_STEPS: Mapping[str, Callable[..., Step]] = {
    kind.__name__: kind for kind in (Turn, Write, Compress, Restart)
}


# What is said. Every message has a tag, so that it can be found again wherever it goes.


def written(mark: int) -> tuple[str, str]:
    """The question and the answer that come from elsewhere."""
    return f"[elsewhere {mark}] {texts.text(mark, 1)}", f"[replied {mark}] {texts.text(mark, 2)}"


def answer(number: int) -> str:
    """What the model says in a turn."""
    return f"[answer {number}] {texts.text(number, 3)}"


def finding(word: str) -> str:
    """What the dictionary says."""
    number = int(word[1:])
    return f"[found {number}] {texts.text(number, 4)} {texts.text(number, 5)}"


def call_id(number: int) -> str:
    """The model's name for its call in a turn."""
    return f"call_{number:06d}"


def turn_of(text: str) -> int | None:
    """Which turn's question this is; None where it is none."""
    found = _TURN.match(text)
    return int(found[1]) if found else None


def word_of(text: str) -> str | None:
    """Which word a question wants to be looked up."""
    found = _WORD.search(text)
    return found[1] if found else None


def tags_in(text: str) -> list[str]:
    """Which messages are in a text, in their order."""
    return _TAG.findall(text)


def tags_of(step: Step) -> list[str]:
    """The messages that a step adds to its session."""
    tags = []
    if isinstance(step, Turn | Write) and step.mark is not None:
        tags += [f"elsewhere {step.mark}", f"replied {step.mark}"]
    if isinstance(step, Turn):
        found = [f"found {step.number}"] if step.word else []
        tags += [f"turn {step.number}", *found, f"answer {step.number}"]
    return tags


def missing(steps: Sequence[Step], stored: Iterable[str | None]) -> list[str]:
    """The messages that are in none of the texts that were stored."""
    known = {tag for text in stored for tag in tags_in(text or "")}
    return [tag for step in steps for tag in tags_of(step) if tag not in known]


# How people switch


def round_robin(random_: random.Random, sessions: int) -> Iterator[int]:
    """One after the other."""
    place = random_.randrange(sessions)
    while True:
        yield place
        place = (place + 1) % sessions


def zipf(random_: random.Random, sessions: int) -> Iterator[int]:
    """A favourite, and rarer ones."""
    weights = [1 / rank for rank in range(1, sessions + 1)]
    while True:
        yield random_.choices(range(sessions), weights)[0]


def bursts(random_: random.Random, sessions: int) -> Iterator[int]:
    """Some turns in one session, then some in another."""
    while True:
        place = random_.randrange(sessions)
        for _ in range(random_.randint(2, 8)):
            yield place


RESUME = "resume after restart"
PATTERNS: Mapping[str, Callable[[random.Random, int], Iterator[int]]] = {
    "round robin": round_robin,
    "zipf": zipf,
    "bursts": bursts,
    RESUME: bursts,
}


def script(plan: Plan, pattern: str, seed: int = SEED) -> list[Step]:
    """The steps, in the order in which they are done; the same for the same seed."""
    random_ = random.Random(f"{seed} {pattern}")
    steps = _openings(plan)
    first = len(steps)
    marks = itertools.count()
    places = [PATTERNS[pattern](random_, plan.sessions) for _ in range(plan.users)]
    order = [user for user in range(plan.users) for _ in range(plan.turns)]
    random_.shuffle(order)
    pauses: set[int] = set()
    if pattern == RESUME:
        pauses = {len(order) * n // (plan.restarts + 1) for n in range(1, plan.restarts + 1)}
    stale: set[tuple[int, int]] = set()
    for place, user in enumerate(order):
        if place in pauses:
            steps.append(Restart())
        session = next(places[user])
        turn = _turn(plan, random_, user, session, first + place, marks)
        steps.append(turn)
        stale.discard((user, session))
        if turn.mark is not None:
            stale.add((user, session))
        # What came from elsewhere is shown to the model before it can be summed up.
        if random_.random() < plan.compressions and (user, session) not in stale:
            steps.append(Compress(user, session, turn.number))
        if turn.mark is None and random_.random() < plan.writes * 0.75:
            where = session if random_.random() < 2 / 3 else random_.randrange(plan.sessions)
            steps.append(Write(user, where, next(marks)))
            stale.add((user, where))
    return steps


def openings(plan: Plan) -> int:
    """How many turns at the beginning do not count: they open the sessions, and warm up."""
    return 2 * plan.users * plan.sessions


def _openings(plan: Plan) -> list[Step]:
    """Everybody opens all of his sessions, and comes back to each once."""
    places = [(user, session) for user in range(plan.users) for session in range(plan.sessions)]
    return [Turn(*place, number) for number, place in enumerate(places * 2)]


def _turn(
    plan: Plan,
    random_: random.Random,
    user: int,
    session: int,
    number: int,
    marks: Iterator[int],
) -> Turn:
    looks = random_.random() < plan.tools
    during = random_.random() < (plan.writes * 0.25 / plan.tools if plan.tools else 0.0)
    word = f"w{number}" if looks else None
    return Turn(user, session, number, word, next(marks) if looks and during else None)


# As a file, for whoever does it


def encode(steps: Sequence[Step]) -> str:
    """A script as text."""
    return json.dumps([[type(step).__name__, asdict(step)] for step in steps])


def decode(text: str) -> list[Step]:
    """The script that a text was made of."""
    return [_STEPS[kind](**fields) for kind, fields in json.loads(text)]


def save(steps: Sequence[Step], path: Path) -> None:
    """Write a script down."""
    path.write_text(encode(steps))


def load(path: Path) -> list[Step]:
    """Read a script that was written down."""
    return decode(path.read_text())
