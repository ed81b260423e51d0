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
from bench.switch.workload import Compress, Restart, Step, Turn, Write, tags_in

Message = Mapping[str, object]
Key = tuple[int, int]  # a user and one of its sessions
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


@dataclass
class Oracle:
    """Reads a script, and determines what must happen in it.

    An agent must be built once per user in each process, and if the user's last turn was in the
    same session and the other writer has written to it since that turn began: the agent has not
    seen these messages. An agent that comes to another session is shown all of it, and a
    compression creates another session.
    """

    steps: Sequence[Step]
    compressed: Collection[int] = ()
    """The compressions that took place."""
    left: Mapping[int, Sequence[Message]] = field(default_factory=dict)
    """What each compression left of its session."""
    summarized: Collection[str] = ()
    """The tags of all messages that were shown to the summarizer."""
    must: dict[int, str] = field(default_factory=dict)
    """The turns for which an agent must be built, with the reason."""
    may: set[int] = field(default_factory=set)
    """Turns in a session that was written to while its user was in another one."""
    shown: dict[str, int] = field(default_factory=dict)
    """The turn in which the model must see each message of the other writer at the latest."""
    requests: list[Request] = field(default_factory=list)
    """The cheapest possible requests: every prompt extends the one before it."""
    forgotten: int = 0
    """Mistakes of compressions: what was dropped without a summary, changed or reordered."""

    def __post_init__(self) -> None:
        self._provider = Provider()
        self._last: dict[int, int] = {}  # the session of each user's last turn in this process
        self._unseen: defaultdict[Key, list[str]] = defaultdict(list)
        self._sessions: defaultdict[Key, list[Message]] = defaultdict(list)
        for step in self.steps:
            match step:
                case Turn():
                    self._turn(step)
                case Write():
                    self._write(step)
                case Compress():
                    self._compress(step)
                case Restart():  # the cache is the provider's, so it stays
                    self._last.clear()

    def _turn(self, turn: Turn) -> None:
        place = turn.user, turn.session
        last, unseen = self._last.get(turn.user), self._unseen.pop(place, [])
        if last is None:
            self.must[turn.number] = "cold"
        elif unseen and last == turn.session:
            self.must[turn.number] = "foreign-write"
        elif unseen:
            self.may.add(turn.number)
        self.shown |= dict.fromkeys(unseen, turn.number)
        self._last[turn.user] = turn.session
        said = _messages(turn)
        self.requests += self._ask(turn.number, self._sessions[place], said)
        if turn.mark is not None:  # stored first, because a turn is stored when it ends
            self._write(Write(*place, turn.mark))
        self._sessions[place] += said

    def _ask(self, number: int, history: list[Message], said: list[Message]) -> Iterator[Request]:
        """One request for each message of the model."""
        for place, message in enumerate(said):
            if message["role"] == "assistant":
                prompt = _prompt([*history, *said[:place]])
                cached = self._provider.read(prompt)
                yield Request(number, _tokens(prompt), cached // TOKEN, _output(message))

    def _write(self, step: Write) -> None:
        roles = zip(("user", "assistant"), workload.written(step.mark), strict=True)
        written: list[Message] = [{"role": role, "content": text} for role, text in roles]
        self._sessions[step.user, step.session] += written
        self._unseen[step.user, step.session] += _tags(written)

    def _compress(self, step: Compress) -> None:
        if step.number in self.compressed:
            self._last[step.user] = ELSEWHERE
        if step.number in self.left:
            left = self.left[step.number]
            before, after = _tags(self._sessions[step.user, step.session]), _tags(left)
            lost = [tag for tag in before if tag not in after and tag not in self.summarized]
            changed = [tag for tag in before if tag in after] != after
            self.forgotten += len(lost) + changed + (not any(map(_is_summary, left)))
            self._sessions[step.user, step.session] = list(left)


def _is_summary(message: Message) -> bool:
    return workload.SUMMARY in str(message.get("content"))


def _tags(messages: Sequence[Message]) -> list[str]:
    """The tags of messages, without those in summaries."""
    kept = (str(each.get("content")) for each in messages if not _is_summary(each))
    return [tag for text in kept for tag in tags_in(text)]


def _messages(turn: Turn) -> list[Message]:
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
