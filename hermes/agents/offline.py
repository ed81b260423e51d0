"""`OfflineAgent`: a deterministic agent that needs no model, API key or network.

Every feature of the runtime can be tried with it: it streams, calls tools, remembers the
conversation, takes messages into account that arrive while it answers, and can be stopped.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import ClassVar

import attrs
import msgspec
import trio
from msgspec.structs import replace

from hermes.events import AgentEvent, Steered, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Message, ToolCall, TurnResult
from hermes.protocols import Agent, RunsOnTrio, Turn
from hermes.sanitize import one_line, shorten
from hermes.transcript.attachments import as_text
from hermes.transcript.rows import rows_from_events

INTRODUCTION = "I am the offline agent of Hermes; no model is connected."
HELP = """\
Here is what I can do without a model:
- remember things: remember that the key is under the mat
- find what you told me: what did I say about the key
- tell the time: what time is it
- count words: count the words in to be or not to be
- count: count to 100 slowly (try /stop, /steer and /queue while I count)"""
FALLBACK = f"{INTRODUCTION} Type help to see what I can do."

MAX_COUNT = 1000
MAX_RECALLED = 5
MAX_QUOTE = 80
SECONDS_PER_NUMBER = 0.2
"""The pause between two numbers if the agent counts slowly."""


def _request(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?:please |(?:can|could) you )?(?:{pattern})", re.IGNORECASE)


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


def _local_time() -> datetime:
    return datetime.now().astimezone()


def _normalize(text: str) -> str:
    return " ".join(text.split()).rstrip("?!. ")


@attrs.define
class _Answer:
    """The answer to one turn: emits events, and keeps them to build the rows of the turn."""

    turn: Turn
    waiting: list[str]
    """Messages that are not answered yet."""
    events: list[AgentEvent | Steered] = attrs.Factory(list)
    text: str = ""
    tool_calls: int = 0

    async def say(self, text: str) -> None:
        """Stream a paragraph, word by word."""
        await self.start_paragraph()
        for word in re.findall(r"\s*\S+", text):
            await self.stream(word)

    async def start_paragraph(self) -> None:
        """Separate the next paragraph from the text so far."""
        if self.text and not self.text.endswith("\n\n"):
            await self.stream("\n\n")

    async def stream(self, text: str, pause: float = 0.0) -> None:
        """Emit a piece of text; the turn can be cancelled here."""
        await trio.sleep(pause)
        self._emit(TextDelta(text))
        self.text += text

    def _emit(self, event: AgentEvent) -> None:
        self.turn.emit(event)
        self.events.append(event)

    async def call(self, name: str, tool: Callable[[], Awaitable[str]], **arguments: str) -> str:
        """Run a tool, emit its events, and return its result."""
        self.tool_calls += 1
        call_id = f"offline-{self.turn.turn_id}-{self.tool_calls}"
        self._emit(ToolStarted(ToolCall(call_id, name, msgspec.json.encode(arguments).decode())))
        result = await tool()
        self._emit(ToolFinished(call_id, result))
        self.waiting += self.steered()
        return result

    def steered(self) -> list[str]:
        """Return the messages that arrived since the last call."""
        messages = self.turn.steered()
        self.events += [Steered(message) for message in messages]
        return [as_text(message) for message in messages]

    def result(self) -> TurnResult:
        """Return the result of the turn, with steered messages where they were read."""
        rows = [_stripped(row) for row in rows_from_events(self.events, None)]
        return TurnResult(text=self.text, rows=rows, api_calls=0)


def _stripped(row: Message) -> Message:
    if row.role != "assistant" or row.content is None:
        return row
    return replace(row, content=row.content.strip())


@attrs.define(eq=False)
class OfflineAgent(Agent, RunsOnTrio):
    """Answers a few simple requests by rules, and explains itself for all others.

    It keeps no state between turns, so one agent can serve all conversations.
    """

    on_trio: ClassVar[bool] = True
    now: Callable[[], datetime] = _local_time
    """Returns the current time."""
    pause: float = SECONDS_PER_NUMBER
    """Seconds between two numbers if the agent counts slowly."""
    hint: str = ""
    """A sentence that says how to connect a model, for users who ask for help."""

    async def run(self, turn: Turn, /) -> TurnResult:
        """Answer each message, including those that arrive meanwhile."""
        answer = _Answer(turn, [as_text(message) for message in turn.input])
        while answer.waiting:
            await self._reply(answer, answer.waiting.pop(0))
            answer.waiting += answer.steered()
        return answer.result()

    async def _reply(self, answer: _Answer, text: str) -> None:
        request = _normalize(text)
        for pattern, reply in (
            (_TIME, self._tell_time),
            (_WORDS, self._count_words),
            (_COUNT, self._count),
            (_RECALL, self._recall),
            (_REMEMBER, self._remember),
            (_HELP, self._help),
        ):
            if match := pattern.fullmatch(request):
                await reply(answer, match)
                return
        quote = shorten(text, MAX_QUOTE)
        first_line = f"You said: {quote}" if quote else "Your message contains no text."
        await answer.say(f"{first_line}\n{FALLBACK} {self.hint}".rstrip())

    async def _tell_time(self, answer: _Answer, _: re.Match[str]) -> None:
        async def tool() -> str:
            await trio.lowlevel.checkpoint()
            return f"{self.now():%A, %Y-%m-%d %H:%M:%S %Z}".strip()

        await answer.say(f"It is {await answer.call('now', tool)}.")

    async def _count_words(self, answer: _Answer, match: re.Match[str]) -> None:
        text = match["text"]

        async def tool() -> str:
            await trio.lowlevel.checkpoint()
            return str(len(text.split()))

        await answer.say(f"Words: {await answer.call('count_words', tool, text=text)}")

    async def _count(self, answer: _Answer, match: re.Match[str]) -> None:
        """Count, and reply to messages that arrive meanwhile; one of them may stop the count."""
        last = int(match["last"])
        await answer.start_paragraph()
        for number in range(1, min(last, MAX_COUNT) + 1):
            steered = answer.steered()
            if any(_STOP.fullmatch(_normalize(text)) for text in steered):
                await answer.say("OK, I stop here.")
                return
            for text in steered:
                await self._reply(answer, text)
                await answer.start_paragraph()
            pause = self.pause if match["slowly"] and number > 1 else 0.0
            separator = "" if answer.text[-1:] in {"", "\n"} else " "
            await answer.stream(f"{separator}{number}", pause)
        if not 1 <= last <= MAX_COUNT:
            await answer.say(f"I can count from 1 to {MAX_COUNT}.")

    async def _recall(self, answer: _Answer, match: re.Match[str]) -> None:
        words = match["words"]

        async def tool() -> str:
            return "\n".join(await _find(answer.turn, words))

        found = await answer.call("recall", tool, words=words)
        if found:
            lines = "".join(f"\n- {line}" for line in found.splitlines())
            await answer.say(f"You said about {words}:{lines}")
        else:
            await answer.say(f"You have not told me anything about {words}.")

    async def _remember(self, answer: _Answer, match: re.Match[str]) -> None:
        await answer.say(f"I will remember: {match['what']}\nAsk me later what you said about it.")

    async def _help(self, answer: _Answer, _: re.Match[str]) -> None:
        await answer.say(f"{INTRODUCTION}\n{HELP}\n\n{self.hint}".rstrip())


async def _find(turn: Turn, words: str) -> list[str]:
    """Return the user's latest messages that contain the words, each on one line."""
    # Quoted, so that no word is taken for an operator of the query language.
    query = " ".join(f'"{word}"' for word in words.replace('"', " ").split())
    hits = await turn.search(query, role="user", limit=4 * MAX_RECALLED)
    found = [
        one_line(hit.snippet.replace(">>>", "").replace("<<<", ""))
        for hit in sorted(hits, key=lambda hit: (hit.timestamp, hit.message_id))
    ]
    # Earlier questions of this kind contain the words too.
    lines = [line for line in found if not _RECALL.match(line)]
    return list(dict.fromkeys(lines))[-MAX_RECALLED:]
