"""Hostile texts of any length, and every function of Hermes that reads texts of others.

`FUNCTIONS` and `ASSEMBLING` are the registry: a new function that reads text of users, models,
tools or platforms belongs into it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from hermes.actors import auto_title, commands
from hermes.actors.delivery.split import split
from hermes.adapters.console import markdown as console_markdown
from hermes.adapters.console.markdown_stream import BlockSplitter
from hermes.adapters.jsonrpc import frames
from hermes.adapters.lines import LineSplitter
from hermes.adapters.previews import _RunningTurn
from hermes.adapters.telegram import markdown as telegram_markdown, utf16
from hermes.agents.providers.anthropic_messages import _StreamedAnswer as AnthropicAnswer
from hermes.agents.providers.base import Endpoint
from hermes.agents.providers.openai_chat import _StreamedAnswer as OpenAIAnswer
from hermes.agents.providers.sse_transport import _EventParser, response_error
from hermes.agents.providers.tool_calls import Nesting, arguments_json, valid_id
from hermes.agents.tools.schema import BadArguments, GivenSignature
from hermes.events import ReasoningDelta, TextDelta
from hermes.messages import Approval, Message, ToolCall
from hermes.redaction import Secret, StrictRedactor, ValueRedactor, redact_keys
from hermes.redaction.keys import key_stream
from hermes.sanitize import encodable, one_line, sanitize, scrub, shorten, visible
from hermes.store.conversations import codec, titles
from hermes.store.sqlite import search
from hermes.texts import ENGLISH
from hermes.transcript import compaction, questions
from hermes.transcript.overflow import is_overflow
from hermes.transcript.rows import rows_from_events
from hermes.transcript.tokens import estimate_tokens
from tests.support.secrets import SECRET

PIECE = 64
_VALUES = ValueRedactor([SECRET, "hush-hush-7", "aaaaaaa1"])
_STRICT = StrictRedactor([SECRET, "hush-hush-7"])
_ENDPOINT = Endpoint(base_url="http://x", model="m", key=Secret(SECRET))
_SIGNATURE = GivenSignature.given("", {})

UNITS = [
    "a", " ", "\n", "\t", "a ", "a. ", "a\n\n", "1", "日", "e\u0301", "\u200d", "\U0001f1e6",
    "\U0001f600", "\ud83d", "\0", "\x1b[", "\r\n",  # characters
    "`", "`a", "```\n", "~~~\n", "*a ", "**", "_a_", "*a*_b_", "[", "[a](", "[a](http://x", "> ",
    "- ", "# ", "|a", "<a", "- ```\n",  # Markdown
    "{", '{"a":', "[1,", '"', '\\"', "\\", "\\u00", "%25", "&amp;", "&#0",  # JSON and escapes
    "sk-", "sk-a", "AIza-", "key-", "Bearer ", "12345:", "hush-",  # secrets
    "data: x\n", "data: x\n\n", "data:", "/a@", " #1", "prompt 1,", "[CONTEXT SUMMARY",
]  # fmt: skip
"""Texts are made of repetitions of these."""
FRAMES = [
    ("", ""), ("", "!"), ("a", "b"), ("```\n", ""), ("# ", "a"), ("> ", "`"), ("sk-", " "),
    ("Bearer ", "\n"), ("``` ", "`"), ('{"a": "', '"}'), ("[a](http://x", " )"), ("*a", "*"),
]  # fmt: skip
"""What comes before and after them."""


def hostile(unit: str, frame: tuple[str, str], size: int) -> str:
    """Return a text of about `size` characters."""
    before, after = frame
    return before + unit * max(1, (size - len(before) - len(after)) // len(unit)) + after


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def _bytes(text: str) -> list[bytes]:
    return [piece.encode(errors="replace") for piece in _pieces(text)]


def _streamed(new_stream: Callable[[], object]) -> Callable[[str], object]:
    def run(text: str) -> None:
        stream = new_stream()
        for piece in _pieces(text):
            stream.feed(piece)
        stream.finish()

    return run


def _refusing(function: Callable[[str], object]) -> Callable[[str], None]:
    """Call a function that may refuse the text."""

    def run(text: str) -> None:
        with contextlib.suppress(ValueError, BadArguments, frames.Refused):
            function(text)

    return run


def _sse(text: str) -> None:
    parser = _EventParser(_ENDPOINT, lambda data: None)
    for piece in _bytes(text):
        parser.feed(piece)
    parser.feed(b"\n\n")


def _openai_answer(text: str) -> None:
    answer = OpenAIAnswer(_ENDPOINT, lambda delta: None)
    for number, piece in enumerate(_pieces(scrub(text))):
        # A server that repeats the name in every chunk, and one that numbers nothing.
        call = {"function": {"name": "f", "arguments": piece}}
        other = {"id": f"c{number}", "function": {"name": "g", "arguments": "{}"}}
        delta = {"content": piece, "reasoning": piece, "tool_calls": [{"index": 0, **call}, other]}
        answer.feed(msgspec.json.encode({"choices": [{"delta": delta}]}))
    answer.feed(b"[DONE]")
    answer.completion()


def _anthropic_answer(text: str) -> None:
    answer = AnthropicAnswer(_ENDPOINT, lambda delta: None)
    for piece in _pieces(scrub(text)):
        for index, kind in enumerate(("text", "thinking", "partial_json")):
            delta = {"type": "content_block_delta", "index": index, "delta": {kind: piece}}
            answer.feed(msgspec.json.encode(delta))
    answer.feed(b'{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}')
    answer.completion()


def _rows(text: str) -> None:
    deltas = [kind(piece) for piece in _pieces(text) for kind in (TextDelta, ReasoningDelta)]
    rows_from_events(deltas, None)


def _console_blocks(text: str) -> None:
    splitter = BlockSplitter()
    for piece in _pieces(text):
        splitter.feed(piece)
    splitter.end()


def _lines(text: str) -> None:
    splitter = LineSplitter(frames.MAX_LINE)
    for piece in _bytes(text):
        splitter.feed(piece)
    splitter.end()


def _nesting(text: str) -> None:
    nesting = Nesting()
    for piece in _pieces(text):
        nesting.feed(piece)


def _previews(text: str) -> None:
    turn = _RunningTurn("k", 1)
    for piece in _pieces(text):
        turn.append(piece)


def _question(text: str) -> str:
    approval = Approval(1, "k", "k", "run", text, "pending", 0.0, 1.0)
    return questions.question(approval, ENGLISH)


FUNCTIONS: dict[str, Callable[[str], object]] = {
    "redaction of values": _VALUES,
    "redaction of keys": redact_keys,
    "redaction in a log": _STRICT,
    "redaction by a secret": Secret(SECRET).redact,
    "streamed redaction in one chunk": lambda text: _STRICT.stream().feed(text),
    "sanitize": sanitize,
    "one line": one_line,
    "visible arguments": visible,
    "questions": _question,
    "shorten": lambda text: shorten(text, 100),
    "lone surrogates": scrub,
    "lone surrogates in JSON": lambda text: encodable({text: [text]}),
    "split for Telegram": lambda text: split("x" * 5000 + "\n" + text, 4096),
    "split into small parts": lambda text: split(text, 60),
    "Telegram's Markdown": telegram_markdown.markdown_v2,
    "visible text for previews": telegram_markdown.visible_text,
    "spans in UTF-16": lambda text: utf16.remove(utf16.extract(text, 0, len(text)), [(0, 2)]),
    "console Markdown": lambda text: console_markdown.render(text, 80),
    "console text": lambda text: console_markdown.plain(text, 80),
    "titles of models": auto_title.shorten,
    "titles of users": _refusing(titles.sanitize_title),
    "commands": commands.parse,
    "token estimate": lambda text: estimate_tokens([Message("user", text)]),
    "overflow errors": lambda text: is_overflow(text, 100),
    "summaries": lambda text: compaction.summary_text(compaction.summary_message(text)),
    "tool arguments": _refusing(_SIGNATURE.read),
    "arguments for a provider": lambda text: arguments_json(ToolCall("a", "b", text)),
    "ids for a provider": valid_id,
    "error responses": lambda text: response_error(_ENDPOINT, 500, scrub(text), {}),
    "frames of a client": _refusing(lambda text: frames.decode(text.encode(errors="replace"))),
    "encoded frames": lambda text: frames.encode({"text": text}),
    "indexed text": search.indexed_text,
    "indexed arguments": _refusing(search._argument_texts),
    "search query": search.to_fts,
    "search snippet": search.format_snippet,
    "depth of JSON": codec.is_too_deep,
}
"""Every function that reads a text which others have written, by what it does."""

ASSEMBLING: dict[str, Callable[[str], object]] = {
    "streamed redaction of values": _streamed(_VALUES.stream),
    "streamed redaction of keys": _streamed(key_stream),
    "blocks for the console": _console_blocks,
    "nesting of arguments": _nesting,
    "server-sent events": _sse,
    "answers of OpenAI": _openai_answer,
    "answers of Anthropic": _anthropic_answer,
    "rows of deltas": _rows,
    "lines of a client": _lines,
    "previews": _previews,
}
"""Functions that get a text in pieces. Each piece may be short, so copies of what came before add
up to much more than any work with one text."""
