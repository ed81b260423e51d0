"""Parses Markdown in threads, and keeps the nodes of messages that were shown lately."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeAlias, TypeVar, TypeVarTuple, cast
from urllib.parse import unquote

import msgspec
import trio

from hermes.adapters.http.api.streams.rendered.types import RenderedHistory, RenderedRow
from hermes.adapters.http.api.streams.state import History
from hermes.adapters.http.markdown import addresses
from hermes.adapters.http.markdown.nodes import Element, plain
from hermes.adapters.http.markdown.parsing import parse
from hermes.adapters.jsonrpc.types import Row
from hermes.messages import TurnEvent, TurnOfRows

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
MAX_CACHE = 16_000_000
"""Bytes of nodes that are kept."""
PAUSE = 0.1
"""Seconds between two events `progress` of a conversation."""
BUDGET = 5.0
"""Seconds for the messages of one answer. Those that are not parsed by then are plain text."""
STREAM_THREADS = 2
SHOWN_ROLES = ("user", "assistant")
_CONVERSATION = re.compile("/api/conversations/([^/]*)/")
_FILES = "/api/conversations/"
NO_PARTS: Mapping[int, int] = MappingProxyType({})
TurnsOfRows: TypeAlias = Callable[[Sequence[int]], Awaitable[Sequence[TurnOfRows]]]


class RunInThread(Protocol):
    """Runs a function beside the event loop."""

    def __call__(
        self, function: Callable[[*Ts], T], *args: *Ts, limiter: trio.CapacityLimiter
    ) -> Awaitable[T]: ...


async def in_thread(function: Callable[[*Ts], T], *args: *Ts, limiter: trio.CapacityLimiter) -> T:
    """Run a function in a thread."""
    return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=True, limiter=limiter)


class Renderer:
    """Parses the texts of one server.

    Stored messages have a thread of their own, so that they do not delay answers that arrive.
    """

    def __init__(
        self,
        run: RunInThread = in_thread,
        *,
        pause: float = PAUSE,
        cache: int = MAX_CACHE,
        turns: TurnsOfRows | None = None,
    ) -> None:
        self.pause: float = pause
        self._max_cache = cache
        self._run = run
        self._turns = turns
        self._streams = trio.CapacityLimiter(STREAM_THREADS)
        self._stored = trio.CapacityLimiter(1)
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._parsed: deque[tuple[bytes, bytes]] = deque()
        """What threads have parsed, also after nobody waited for it any more."""
        self._size = 0

    async def stream(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a function that parses a part of an answer."""
        return await self._run(function, *args, limiter=self._streams)

    async def history(self, session_key: str, history: History) -> RenderedHistory:
        """Return messages with their nodes."""
        rows = await self.rows(session_key, history.messages)
        return RenderedHistory(rows, replace=history.replace, earlier=history.earlier)

    async def rows(
        self, session_key: str, rows: Sequence[Row], parts: Mapping[int, int] = NO_PARTS
    ) -> list[RenderedRow]:
        """Return messages with their nodes and turns. The latest are parsed first.

        `parts` has the numbers of the parts that clients know, by the ids of their messages.
        """
        nodes: dict[int, bytes] = {}
        with trio.move_on_after(BUDGET):
            for index, row in reversed([*enumerate(rows)]):
                if is_shown(row) and row.id not in parts:
                    nodes[index] = await self._nodes(session_key, row.text or "")
        rendered = [RenderedRow(**msgspec.structs.asdict(row)) for row in rows]
        for index, row in enumerate(rendered):
            if row.id in parts:
                row.part = parts[row.id]
            elif is_shown(row):
                blocks = nodes.get(index) or msgspec.json.encode([plain(row.text or "")])
                row.nodes = cast("list[Element]", msgspec.Raw(blocks))  # encoded already
        if self._turns is not None:
            add_turns(rendered, await self._turns([row.id for row in rows]))
        return rendered

    def keep(self, session_key: str, text: str, blocks: list[Element]) -> None:
        """Keep the nodes of a text that was parsed while it arrived."""
        self._keep(_key(session_key, text), msgspec.json.encode(blocks))

    async def _nodes(self, session_key: str, text: str) -> bytes:
        key = _key(session_key, text)
        while self._parsed:
            self._keep(*self._parsed.popleft())
        found = self._cache.get(key)
        if found is None:
            found = await self._run(self._parse, key, session_key, text, limiter=self._stored)
        self._keep(key, found)
        return found

    def _parse(self, key: bytes, session_key: str, text: str) -> bytes:
        """Return the nodes of a message. It runs in a thread."""
        blocks = parse(text, is_own_file=own_files(session_key))
        encoded = msgspec.json.encode(blocks)
        self._parsed.append((key, encoded))
        return encoded

    def _keep(self, key: bytes, blocks: bytes) -> None:
        self._size += len(blocks) - len(self._cache.pop(key, b""))
        self._cache[key] = blocks
        while self._size > self._max_cache:
            self._size -= len(self._cache.popitem(last=False)[1])


def is_shown(row: Row) -> bool:
    """Whether a message is shown as Markdown."""
    return bool(row.text) and row.role in SHOWN_ROLES


def add_turns(rows: Sequence[RenderedRow], turns: Sequence[TurnOfRows]) -> None:
    """Add what is recorded of the turns that have stored these messages."""
    turns = sorted(turns, key=lambda turn: turn.first_id)
    tools = [_tools_by_id(turn) for turn in turns]
    for row in rows:
        index = bisect_right(turns, row.id, key=lambda turn: turn.first_id) - 1
        if index < 0 or row.id >= turns[index].first_id + turns[index].row_count:
            continue
        row.turn_id = turns[index].turn_id
        tool = tools[index].get(row.tool_call_id)
        if tool is not None and tool.duration is not None:
            row.duration, row.failed = tool.duration, tool.failed


def _tools_by_id(turn: TurnOfRows) -> dict[str | None, TurnEvent]:
    """Return the tool calls of a turn by their ids; some models repeat ids."""
    ids = Counter(tool.call_id for tool in turn.tools)
    return {each.call_id: each for each in turn.tools if each.call_id and ids[each.call_id] == 1}


def own_files(session_key: str) -> Callable[[str], bool]:
    """Return whether an address is that of a file of this conversation.

    A path names the conversation by its session key or, in its namespace, by its id.
    """
    name = session_key.rpartition(":")[2]
    names = {session_key, name, unquote(name)}

    def is_own_file(address: str) -> bool:
        found = _CONVERSATION.match(address)
        is_own = found is not None and unquote(found.group(1)) in names
        return is_own and addresses.is_own_file(address)

    return is_own_file


def _key(session_key: str, text: str) -> bytes:
    """Return the key of a text: only addresses of files make it depend on the conversation."""
    where = session_key if _FILES in text else ""
    content = f"{where}\n{text}".encode(errors="surrogatepass")
    return hashlib.blake2b(content, digest_size=16).digest()
