"""The best possible result of the switching benchmark, computed from the script alone.

Nothing from hermes is imported: when an agent must be rebuilt, and what a provider can have cached,
is computed independently from the script and from what compressions have left.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.switch import workload
from bench.switch.workload import Compress, Restart, Step, Turn, Write, tags_in, tags_of

Message = Mapping[str, object]
BLOCK = 512  # bytes: 128 tokens of 4 bytes, the unit in which prompts are cached
SHORTEST = 4096  # bytes: shorter prefixes are not cached
TOKEN = 4
ELSEWHERE = -1


@dataclass(frozen=True)
class Request:
    """A request to the model, in tokens: its prompt, the cached part of it, and the output."""

    turn: int
    prompt: int
    cached: int
    output: int


@dataclass
class Rebuilds:
    """The turns for which an agent must be built, with the reason, and those where it may be."""

    must: dict[int, str] = field(default_factory=dict)
    may: set[int] = field(default_factory=set)
    """Turns in a session that was written to while its user was in another one."""

    def note(self, turn: Turn, last: int | None, *, stale: bool) -> None:
        """Add a turn; `last` is the session of the user's last turn in this process."""
        if last is None:
            self.must[turn.number] = "cold"
        elif stale and last == turn.session:
            self.must[turn.number] = "foreign-write"
        elif stale:
            self.may.add(turn.number)


def rebuilds(steps: Sequence[Step], compressed: Collection[int]) -> Rebuilds:
    """Return when an agent must be built.

    Once per user in each process, and if the user's last turn was in the same session and the other
    writer has written to it since that turn began: the agent has not seen these messages. An agent
    that comes to another session is shown all of it, and a compression creates another session.
    `compressed` has the numbers of the compressions that took place.
    """
    due = Rebuilds()
    last: dict[int, int] = {}
    stale: set[tuple[int, int]] = set()
    for step in steps:
        if isinstance(step, Turn):
            place = step.user, step.session
            due.note(step, last.get(step.user), stale=place in stale)
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
    """Return the turn in which the model must see each message of the other writer at the latest.

    A message that is written during a turn must be visible in the next one.
    """
    due: dict[str, int] = {}
    waiting: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for step in steps:
        if isinstance(step, Turn):
            due |= dict.fromkeys(waiting.pop((step.user, step.session), []), step.number)
        if isinstance(step, Turn | Write) and step.mark is not None:
            tags = tags_of(Write(step.user, step.session, step.mark))
            waiting[step.user, step.session] += tags
    return due


def forgotten(
    steps: Sequence[Step], left: Mapping[int, Sequence[Message]], summarized: Collection[str]
) -> int:
    """Count the mistakes of compressions.

    `left` has what each compression left of its session, by its number. Kept messages must be
    unchanged and in order, dropped ones must have been shown to the summarizer, and there must be a
    summary.
    """
    wrong = 0
    sessions: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for step in steps:
        if isinstance(step, Turn | Write):
            sessions[step.user, step.session] += tags_of(step)
        if isinstance(step, Compress) and step.number in left:
            before = sessions[step.user, step.session]
            rows = [str(message.get("content") or "") for message in left[step.number]]
            after = [tag for row in rows for tag in tags_in(row) if workload.SUMMARY not in row]
            wrong += sum(tag not in after and tag not in summarized for tag in before)
            wrong += [tag for tag in before if tag in after] != after
            wrong += not any(workload.SUMMARY in row for row in rows)
            sessions[step.user, step.session] = after
    return wrong


@dataclass
class Provider:
    """Caches all prompts, in whole blocks, and never forgets."""

    seen: set[bytes] = field(default_factory=set)

    def read(self, prompt: bytes) -> int:
        """Return how many bytes of a prompt were cached; now all of it is."""
        digest = hashlib.blake2b()
        cached = 0
        for end in range(BLOCK, len(prompt) + 1, BLOCK):
            digest.update(prompt[end - BLOCK : end])
            prefix = digest.digest()  # of the whole prompt up to here
            if prefix in self.seen:
                cached = end
            self.seen.add(prefix)
        return cached if cached >= SHORTEST else 0


def best(steps: Sequence[Step], compressed: Mapping[int, Sequence[Message]]) -> list[Request]:
    """Return the cheapest possible requests: every prompt extends the one before it.

    `compressed` has what each compression left of its session, by its number. A restart changes
    nothing, because the cache is the provider's.
    """
    provider = Provider()
    sessions: defaultdict[tuple[int, int], list[Message]] = defaultdict(list)
    requests: list[Request] = []
    for step in steps:
        if isinstance(step, Compress) and step.number in compressed:
            sessions[step.user, step.session] = list(compressed[step.number])
        if not isinstance(step, Turn | Write):
            continue
        history = sessions[step.user, step.session]
        said = _messages(step) if isinstance(step, Turn) else []
        if isinstance(step, Turn):
            requests += _requests(provider, step.number, history, said)
        if step.mark is not None:  # stored first, because a turn is stored when it ends
            question, reply = workload.written(step.mark)
            history.append({"role": "user", "content": question})
            history.append({"role": "assistant", "content": reply})
        history += said
    return requests


def _requests(
    provider: Provider, number: int, history: list[Message], said: list[Message]
) -> Iterator[Request]:
    """One request for each message of the model."""
    for place, message in enumerate(said):
        if message["role"] == "assistant":
            prompt = _prompt([*history, *said[:place]])
            cached = provider.read(prompt)
            yield Request(number, _tokens(prompt), cached // TOKEN, _output(message))


def _messages(turn: Turn) -> list[Message]:
    """All messages of a turn."""
    said: list[Message] = [{"role": "user", "content": turn.text}]
    if turn.word is not None:
        function = {"name": workload.TOOL, "arguments": json.dumps({"word": turn.word})}
        call_id = workload.call_id(turn.number)
        call = {"id": call_id, "type": "function", "function": function}
        said.append({"role": "assistant", "content": None, "tool_calls": [call]})
        result = workload.finding(turn.word)
        said.append({"role": "tool", "tool_call_id": call_id, "content": result})
    said.append({"role": "assistant", "content": workload.answer(turn.number)})
    return said


def _prompt(messages: Sequence[Message]) -> bytes:
    """The prompt as a provider reads it: the tools, the system prompt, the conversation."""
    tools = _json([{"type": "function", "function": workload.TOOL_SCHEMA}])
    return tools + b"\n" + _json([{"role": "system", "content": workload.SYSTEM}, *messages])[:-1]


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _tokens(words: bytes) -> int:
    return -(-len(words) // TOKEN)


def _output(message: Message) -> int:
    """The tokens of a reply: its text, or its tool calls."""
    calls = message.get("tool_calls") or []
    assert isinstance(calls, list)
    words = [str(message.get("content") or "")]
    words += [call["function"]["name"] + call["function"]["arguments"] for call in calls]
    return _tokens("".join(words).encode())
