"""Automatic titles, generated in the background after the first turns of a conversation."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import trio
from msgspec.structs import replace

from hermes.actors.budget import session_costs
from hermes.background import holding, start_soon
from hermes.errors import HermesError, StoreFailed
from hermes.events import TitleChanged
from hermes.messages import Head, Message
from hermes.protocols import Store, Summary, Titler, TitleRequest
from hermes.redaction.slices import redact_text
from hermes.transcript.validate import check_usage
from hermes.user_code import contained, leaf, loggable

log: logging.Logger = logging.getLogger(__name__)

MAX_MESSAGES = 20
"""A conversation with more messages before the turn gets no automatic title any more."""
CONCURRENCY = 4
SECONDS = 60.0
LENGTH = 80
_MARKS = " \t#*_`\"'“”„«»"


PublishTitle: TypeAlias = Callable[[str, int | None, TitleChanged], None]


class WrongTitle(HermesError):
    """A titler has returned something that is no title."""


class TitledSession(Protocol):
    """What the titler reads and writes of a session actor's state."""

    head: Head | None
    titled: str | None
    """The session that needs no automatic title any more."""


class AutoTitler:
    """Titles new conversations in the background. No turn waits for it.

    An attempt that fails, or that the end of the runtime cuts short, is repeated after the next
    turn, as long as the conversation is short.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        store: Store,
        titler: Titler,
        publish: PublishTitle,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._nursery = nursery
        self._store = store
        self._titler = titler
        self._publish = publish
        self._redact = redact
        self._running: set[str] = set()
        self._slots = trio.Semaphore(CONCURRENCY)

    def offer(
        self, key: str, state: TitledSession, exchange: Sequence[Message], added: int
    ) -> None:
        """Start an attempt after a turn that added rows, if one is due. Never waits."""
        head = state.head
        # The turn's own rows do not count: a first exchange may take many tool calls.
        if head is None or head.message_count - added >= MAX_MESSAGES:
            return
        if head.session_id in {state.titled, *self._running}:
            return
        self._running.add(head.session_id)
        start_soon(self._nursery, self._run, key, head.session_id, state, exchange)

    async def _run(
        self, key: str, session_id: str, state: TitledSession, exchange: Sequence[Message]
    ) -> None:
        with contained(StoreFailed) as caught, trio.move_on_after(SECONDS):
            async with holding(self._slots):
                await self._set_title(key, session_id, exchange)
            state.titled = session_id
        if isinstance(caught.error, WrongTitle):
            log.warning("%s has no title yet: %s", session_id, caught.error)
        elif caught.error is not None:
            log.info("%s has no title yet: %s", session_id, loggable(leaf(caught.error)))
        self._running.discard(session_id)

    async def _set_title(self, key: str, session_id: str, exchange: Sequence[Message]) -> None:
        session = await self._store.get_session(session_id)
        if session is None or session.title is not None:
            return
        spent = functools.partial(session_costs, self._store, session_id)
        written = _checked(
            await self._titler.title(
                TitleRequest(session_id=session_id, messages=exchange, spent=spent)
            )
        )
        calls = [replace(call, purpose="title") for call in written.usage]
        await self._store.book(session_id, calls)
        # Redact it first: a secret that was cut is not recognized.
        title = shorten(await redact_text(written.text, self._redact))
        if not title:
            raise WrongTitle("the titler has returned an empty title")
        if await self._store.set_auto_title_if_empty(session_id, title):
            found = await self._store.find(session_id)  # at the tip, perhaps with a number
            if found is not None and found.session is not None:
                titled = TitleChanged(found.session_id, found.session.title or title)
                self._publish(key, None, titled)


def _checked(written: object) -> Summary:
    """Return what a titler has returned. Raises `WrongTitle` with its type if it is no title."""
    kind = type(written).__name__
    if not isinstance(written, Summary):
        raise WrongTitle(f"the titler has returned {kind}, not a hermes.Summary")
    text: object = written.text
    if not isinstance(text, str):
        kind = type(text).__name__
        raise WrongTitle(f"the titler has returned a Summary whose text is {kind}, not a string")
    try:
        check_usage(written.usage)
    except (TypeError, ValueError) as error:
        raise WrongTitle(f"the titler has returned a Summary that is not valid: {error}") from None
    return written


def shorten(text: str) -> str:
    """Return a model's title on one line of limited length, without quotes and markup."""
    line = next(filter(None, map(_bare, text.splitlines())), "")
    head, colon, rest = line.partition(":")
    if colon and head.casefold() == "title":
        line = _bare(rest)
    words = " ".join(line.split())
    if len(words) <= LENGTH:
        return words
    return words[:LENGTH].rsplit(" ", 1)[0][: LENGTH - 1].rstrip(" ,;:.") + "…"


def _bare(line: str) -> str:
    return line.strip(_MARKS).rstrip(".").strip(_MARKS)


def auto_titler(
    titler: Titler | None,
    nursery: trio.Nursery,
    store: Store,
    publish: PublishTitle,
    redact: Callable[[str], str],
) -> AutoTitler | None:
    """Return what titles new conversations, if there is a titler."""
    return None if titler is None else AutoTitler(nursery, store, titler, publish, redact)
