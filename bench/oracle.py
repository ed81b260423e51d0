"""The theoretical best of the switching benchmark, from the list of what was written alone.

Nothing of hermes is imported: what a rebuild is due for, and what a provider can have seen before,
is computed here a second time, from the script and from what a compression has left.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.workload import (
    SUMMARY,
    SYSTEM,
    TOOL,
    TOOL_SAYS,
    TOOL_TAKES,
    Compress,
    Restart,
    Step,
    Turn,
    Write,
    answer,
    call_id,
    finding,
    tags_in,
    tags_of,
    written,
)

Message = Mapping[str, object]
STEP = 512  # bytes: 128 tokens of 4, the grain in which prompts are remembered
LEAST = 4096  # bytes: what is shorter is not remembered
TOKEN = 4


@dataclass(frozen=True)
class Asked:
    """One request to the model: the tokens of its prompt, those known before, and the answer's."""

    turn: int
    prompt: int
    cached: int
    output: int


ELSEWHERE = -1


@dataclass
class Due:
    """The turns for which an agent must be built, and why; and those where it may as well be."""

    must: dict[int, str] = field(default_factory=dict)
    may: set[int] = field(default_factory=set)
    """Turns in a session that somebody else has written to while the agent was elsewhere."""

    def note(self, number: int, last: int | None, session: int, *, stale: bool) -> None:
        """A turn, after the user's last one in this process was in `last`."""
        if last is None:
            self.must[number] = "cold"
        elif stale and last == session:
            self.must[number] = "foreign-write"
        elif stale:
            self.may.add(number)


def rebuilds(steps: Sequence[Step], compressed: Collection[int]) -> Due:
    """When an agent has to be built, by these rules.

    Once per user in each process; and where the user's last turn was in the same session, and
    somebody else has written to it since that turn began: then the agent remembers too little. Who
    comes to another session is shown that one whole; a compression makes another one.
    """
    due = Due()
    last: dict[int, int] = {}
    stale: set[tuple[int, int]] = set()
    for step in steps:
        if isinstance(step, Turn):
            place = step.user, step.session
            due.note(step.number, last.get(step.user), step.session, stale=place in stale)
            last[step.user] = step.session
            stale.discard(place)
        if isinstance(step, Turn | Write) and step.mark is not None:
            stale.add((step.user, step.session))
        if isinstance(step, Compress) and step.number in compressed:
            last[step.user] = ELSEWHERE
        if isinstance(step, Restart):
            last.clear()
    return due


def first_shown(steps: Sequence[Step]) -> dict[str, int]:
    """In which turn the model must be shown each message that somebody else has written.

    What is written during a turn may be shown in that turn; it must be in the next one.
    """
    due: dict[str, int] = {}
    waiting: dict[tuple[int, int], list[str]] = {}
    for step in steps:
        if isinstance(step, Turn):
            due |= dict.fromkeys(waiting.pop((step.user, step.session), []), step.number)
        if isinstance(step, Turn | Write) and step.mark is not None:
            tags = tags_of(Write(step.user, step.session, step.mark))
            waiting.setdefault((step.user, step.session), []).extend(tags)
    return due


def forgotten(
    steps: Sequence[Step], left: Mapping[int, Sequence[Message]], summed_up: Collection[str]
) -> int:
    """How many messages compressions have dropped that no summary was made of.

    `left` has, by the number of a compression, what is left of the session. What is left must be
    there as it was, in its order, with a summary; what is not must have been shown to a summarizer.
    """
    wrong = 0
    sessions: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for step in steps:
        if isinstance(step, Turn | Write):
            sessions[step.user, step.session] += tags_of(step)
        if isinstance(step, Compress) and step.number in left:
            before = sessions[step.user, step.session]
            rows = [str(message.get("content") or "") for message in left[step.number]]
            after = [tag for row in rows for tag in tags_in(row) if SUMMARY not in row]
            wrong += sum(tag not in after and tag not in summed_up for tag in before)
            wrong += [tag for tag in before if tag in after] != after
            wrong += not any(SUMMARY in row for row in rows)
            sessions[step.user, step.session] = after
    return wrong


@dataclass
class Provider:
    """Remembers all prompts, in whole steps."""

    seen: set[bytes] = field(default_factory=set)

    def read(self, prompt: bytes) -> int:
        """How many bytes of a prompt were known; all of it is, from now on."""
        so_far = hashlib.blake2b()
        known = place = 0
        for place in range(STEP, len(prompt) + 1, STEP):
            so_far.update(prompt[place - STEP : place])
            digest = so_far.digest()
            if known == place - STEP and digest in self.seen:
                known = place
            self.seen.add(digest)
        return known if known >= LEAST else 0


def best(steps: Sequence[Step], compressed: Mapping[int, Sequence[Message]]) -> list[Asked]:
    """What each request costs at least: every prompt is the one before it, and what is new.

    `compressed` has, by the number of a compression, what is left of the session. A restart changes
    nothing: providers remember.
    """
    provider = Provider()
    sessions: defaultdict[tuple[int, int], list[Message]] = defaultdict(list)
    asked: list[Asked] = []
    for step in steps:
        if isinstance(step, Compress) and step.number in compressed:
            sessions[step.user, step.session] = list(compressed[step.number])
        if not isinstance(step, Turn | Write):
            continue
        history = sessions[step.user, step.session]
        said = []
        if isinstance(step, Turn):
            said = _said(step)
            asked += _asked(provider, step.number, history, said)
        if step.mark is not None:  # it was stored first: a turn is stored when it ends
            history += _elsewhere(step.mark)
        history += said
    return asked


def _asked(
    provider: Provider, number: int, history: list[Message], said: list[Message]
) -> Iterator[Asked]:
    """One request for each thing that the model says."""
    for place, message in enumerate(said):
        if message["role"] == "assistant":
            prompt = _prompt([*history, *said[:place]])
            known = provider.read(prompt)
            yield Asked(number, _tokens(prompt), known // TOKEN, _output(message))


def _said(turn: Turn) -> list[Message]:
    """All that is said in a turn."""
    said: list[Message] = [{"role": "user", "content": turn.text}]
    if turn.word is not None:
        function = {"name": TOOL, "arguments": json.dumps({"word": turn.word})}
        call = {"id": call_id(turn.number), "type": "function", "function": function}
        said.append({"role": "assistant", "content": None, "tool_calls": [call]})
        found = finding(turn.word)
        said.append({"role": "tool", "tool_call_id": call_id(turn.number), "content": found})
    said.append({"role": "assistant", "content": answer(turn.number)})
    return said


def _elsewhere(mark: int) -> list[Message]:
    question, reply = written(mark)
    return [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]


def _prompt(messages: Sequence[Message]) -> bytes:
    """As a provider reads it: the tools, the system prompt, the conversation."""
    function = {"name": TOOL, "description": TOOL_SAYS, "parameters": TOOL_TAKES}
    tools = _json([{"type": "function", "function": function}])
    return tools + b"\n" + _json([{"role": "system", "content": SYSTEM}, *messages])[:-1]


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _tokens(text: bytes) -> int:
    return -(-len(text) // TOKEN)


def _output(message: Message) -> int:
    """The tokens of an answer: its text, or its calls."""
    calls = message.get("tool_calls") or []
    assert isinstance(calls, list)
    words = [str(message.get("content") or "")]
    words += [call["function"]["name"] + call["function"]["arguments"] for call in calls]
    return _tokens("".join(words).encode())
