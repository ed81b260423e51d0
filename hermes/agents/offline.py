"""`OfflineAgent`: answers without a model, a key or a network, always in the same way.

Every feature of the runtime can be tried on it: it streams, calls tools, recalls what was said,
hears what is said into its answer, and can be stopped.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import ClassVar, Protocol

import attrs
import msgspec
import trio
from msgspec.structs import replace

from hermes.actors.session.running_turn import rows_of
from hermes.agents.arithmetic import calculate
from hermes.events import AgentEvent, Steered, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Message, SearchHit, ToolCall, TurnResult
from hermes.protocols import Turn
from hermes.transcript.compaction import is_question

WHO = "I am the offline agent of Hermes: no model is connected."
CONNECT = (
    "To talk with a model, set OPENAI_API_KEY before you start Hermes, and OPENAI_BASE_URL as well "
    "if the model is not one of OpenAI's."
)
ABILITIES = """\
Without one I can
- tell the time: what time is it
- do sums: what is 2 + 3*4
- count words: count the words in to be or not to be
- recall what you said: what did I say about bees
- count: count to 100 slowly (meanwhile, try /stop, /steer and /queue)"""

MAX_COUNT = 1000
MAX_RECALLED = 5
PACE = 0.2
"""Seconds between two numbers that are counted slowly."""
_GIST = 80


def _request(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?:please |(?:can|could) you )?(?:{pattern})", re.IGNORECASE)


_SUM = _request(
    r"(?:what is |what's |whats |how much is |calculate |compute )?"
    r"(?P<sum>(?=.*[\d)]\s*[-+−*×·/÷%^])[-+−*×·/÷%^\d\s.()]*[\d.)])\s*=?"
)
_TIME = _request(
    r"what time is it|what(?:'s| is) the time|what day is it|"
    r"what(?:'s| is) (?:the|today's) date|tell (?:me )?the time"
)
_WORDS = _request(
    r"(?:count (?:the )?words (?:in|of)|how many words (?:are (?:there )?)?in)[: ]+(?P<text>.+)"
)
_COUNT = _request(r"count (?:up )?to (?P<last>\d{1,9})(?P<slowly> slowly)?")
_RECALL = _request(
    r"(?:what (?:did|have) i (?:say|said|tell you|told you|mention|mentioned|write|written)|"
    r"do you (?:remember|recall)(?: what i said)?|recall)(?: about)? (?P<words>.+)"
)
_REMEMBER = _request(r"remember:? (?:that )?(?P<what>.+)")
_HELP = _request(r"help|what can you do|who are you|what are you")
_STOP = _request(r"stop|enough|that(?:'s| is) enough")


class Search(Protocol):
    """Finds messages by their words, among those of one session_key."""

    def __call__(
        self, session_key: str, words: str, *, role: str | None = None, limit: int = 20
    ) -> Awaitable[Sequence[SearchHit]]: ...


def _local_time() -> datetime:
    return datetime.now().astimezone()


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip("?!. ")


@attrs.define
class _Talk:
    """What is said and done in one turn, told as it happens and kept for its rows."""

    turn: Turn
    waiting: list[str]
    """What is still to be answered."""
    log: list[AgentEvent | Steered] = attrs.Factory(list)
    said: str = ""
    calls: int = 0

    async def say(self, text: str) -> None:
        """Say it, word by word, apart from what was said before."""
        await self.begin()
        for piece in re.findall(r"\s*\S+", text):
            await self.piece(piece)

    async def begin(self) -> None:
        """Leave a line between two answers."""
        if self.said and not self.said.endswith("\n\n"):
            await self.piece("\n\n")

    async def piece(self, text: str, pause: float = 0.0) -> None:
        """Say a piece of it; here the agent can be stopped."""
        await trio.sleep(pause)
        self._tell(TextDelta(text))
        self.said += text

    def _tell(self, event: AgentEvent) -> None:
        self.turn.emit(event)
        self.log.append(event)

    async def use(
        self, name: str, tool: Callable[[], Awaitable[str]], **arguments: str
    ) -> ToolFinished:
        """Use a tool, and listen then; what it refuses is its answer."""
        self.calls += 1
        call_id = f"offline-{self.turn.turn_id}-{self.calls}"
        self._tell(ToolStarted(ToolCall(call_id, name, msgspec.json.encode(arguments).decode())))
        try:
            finished = ToolFinished(call_id, await tool())
        except ValueError as refusal:
            finished = ToolFinished(call_id, str(refusal), failed=True)
        self._tell(finished)
        self.waiting += self.listen()
        return finished

    def listen(self) -> list[str]:
        """What was said into this answer since the last time."""
        heard = self.turn.steered()
        self.log += [Steered(message) for message in heard]
        return [message.content or "" for message in heard]

    def result(self) -> TurnResult:
        """All of it; each message that was heard stands where it was heard."""
        rows = [_stripped(row) for row in rows_of(self.log, None)]
        return TurnResult(text=self.said, rows=rows, api_calls=0)


def _stripped(row: Message) -> Message:
    if row.role != "assistant" or row.content is None:
        return row
    return replace(row, content=row.content.strip())


@attrs.define(eq=False)
class OfflineAgent:
    """Answers plain requests by rules, and says what it is to all others.

    It keeps nothing between turns, so one is enough: `open_runtime(path, agent=lambda _: agent)`.
    """

    on_trio: ClassVar[bool] = True
    search: Search | None = None
    """Such as a runtime's; without it, what was said is looked for in this session's history."""
    now: Callable[[], datetime] = _local_time
    pace: float = PACE

    async def run(self, turn: Turn, /) -> TurnResult:
        """Answer each message, and then what was said meanwhile."""
        talk = _Talk(turn, [message.content or "" for message in turn.input])
        while talk.waiting:
            await self._answer(talk, talk.waiting.pop(0))
            talk.waiting += talk.listen()
        return talk.result()

    async def _answer(self, talk: _Talk, text: str) -> None:
        asked = _plain(text)
        for pattern, answer in (
            (_SUM, self._sum),
            (_TIME, self._time),
            (_WORDS, self._words),
            (_COUNT, self._count),
            (_RECALL, self._recall),
            (_REMEMBER, self._remember),
            (_HELP, self._help),
        ):
            if found := pattern.fullmatch(asked):
                await answer(talk, found)
                return
        await self._admit(talk, " ".join(text.split()))

    async def _sum(self, talk: _Talk, found: re.Match[str]) -> None:
        wanted = found["sum"].strip()

        async def tool() -> str:
            await trio.lowlevel.checkpoint()
            return calculate(wanted)

        answer = await talk.use("calculate", tool, expression=wanted)
        await talk.say(f"{wanted} {'does not work:' if answer.failed else '='} {answer.content}")

    async def _time(self, talk: _Talk, _: re.Match[str]) -> None:
        async def tool() -> str:
            await trio.lowlevel.checkpoint()
            return f"{self.now():%A, %Y-%m-%d %H:%M:%S %Z}".strip()

        answer = await talk.use("now", tool)
        await talk.say(f"It is {answer.content}.")

    async def _words(self, talk: _Talk, found: re.Match[str]) -> None:
        async def tool() -> str:
            await trio.lowlevel.checkpoint()
            return str(len(found["text"].split()))

        answer = await talk.use("count_words", tool, text=found["text"])
        await talk.say(f"Words: {answer.content}")

    async def _count(self, talk: _Talk, found: re.Match[str]) -> None:
        """Count; what is said meanwhile is answered in between, or ends it."""
        last = int(found["last"])
        await talk.begin()
        for number in range(1, min(last, MAX_COUNT) + 1):
            heard = talk.listen()
            if any(_STOP.fullmatch(_plain(text)) for text in heard):
                await talk.say("As you say: I stop here.")
                return
            for text in heard:
                await self._answer(talk, text)
                await talk.begin()
            pause = self.pace if found["slowly"] and number > 1 else 0.0
            joint = "" if talk.said[-1:] in {"", "\n"} else " "
            await talk.piece(f"{joint}{number}", pause)
        if not 1 <= last <= MAX_COUNT:
            await talk.say(f"I count from 1, and to {MAX_COUNT} at most.")

    async def _recall(self, talk: _Talk, found: re.Match[str]) -> None:
        wanted = found["words"]

        async def tool() -> str:
            return "\n".join(await self._recalled(talk.turn, wanted))

        answer = await talk.use("recall", tool, words=wanted)
        if answer.content:
            lines = "".join(f"\n- {line}" for line in answer.content.splitlines())
            await talk.say(f"You said about {wanted}:{lines}")
        else:
            await talk.say(f"I find nothing that you said about {wanted}.")

    async def _recalled(self, turn: Turn, wanted: str) -> list[str]:
        """The latest things that the user said with these words in them, on a line each."""
        if self.search is None:
            await trio.lowlevel.checkpoint()
            words = wanted.lower().split()
            said = [row.content or "" for row in turn.history if is_question(row)]
            found = [text for text in said if all(word in text.lower() for word in words)]
        else:
            # Each in quotes: a word of the user's is no operator of the search.
            quoted = " ".join(f'"{word}"' for word in wanted.replace('"', " ").split())
            hits = await self.search(turn.session_key, quoted, role="user", limit=4 * MAX_RECALLED)
            hits = sorted(hits, key=lambda hit: (hit.timestamp, hit.message_id))
            found = [hit.snippet.replace(">>>", "").replace("<<<", "") for hit in hits]
        lines = [" ".join(text.split()) for text in found]
        # Not the questions: the words are in them too.
        told = [line for line in lines if not _RECALL.match(line)]
        return list(dict.fromkeys(told))[-MAX_RECALLED:]

    async def _remember(self, talk: _Talk, found: re.Match[str]) -> None:
        await talk.say(
            f"That is kept with this conversation: {found['what']}\n"
            "Ask me what you said about it, by one of its words."
        )

    async def _help(self, talk: _Talk, _: re.Match[str]) -> None:
        await talk.say(f"{WHO}\n{ABILITIES}\n{CONNECT}")

    async def _admit(self, talk: _Talk, text: str) -> None:
        gist = text if len(text) <= _GIST else text[: _GIST - 1] + "…"
        said = f"You said: {gist}" if gist else "There were no words in your message."
        await talk.say(f"{said}\n{WHO} Say help to see what I can do. {CONNECT}")
