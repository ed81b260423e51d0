"""Titles that nobody asked for: made beside the conversation, while it is young."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import trio

from hermes import user_code
from hermes.actors.budget import spent_by
from hermes.actors.session.route_state import RouteState
from hermes.errors import HermesError, StoreFailed
from hermes.events import TitleChanged
from hermes.messages import Message
from hermes.protocols import Store, Summary, Titler, TitleRequest

log = logging.getLogger(__name__)

YOUNG = 20
"""Messages before a turn with which a conversation stays without a title, where none was made."""
AT_ONCE = 4
SECONDS = 60.0
LENGTH = 80
_MARKS = " \t#*_`\"'“”„«»"


class AutoTitler:
    """Gives young conversations a title. No turn waits for it, and a lost try is made again.

    What is kept of a title is in the store. A try that fails, or that the end of the runtime cuts
    short, is made again after the next turn, as long as the conversation is young.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        store: Store,
        titler: Titler,
        publish: Callable[[str, int | None, TitleChanged], None],
        redact: Callable[[str], str] = str,
    ) -> None:
        self._nursery = nursery
        self._store = store
        self._titler = titler
        self._publish = publish
        self._redact = redact
        self._running: set[str] = set()
        self._slots = trio.Semaphore(AT_ONCE)

    def offer(self, key: str, place: RouteState, exchange: Sequence[Message], rows: int) -> None:
        """A turn of this conversation has ended, with so many rows; never waits."""
        head = place.head
        # Without its own rows: a first exchange is one, however many tools it took.
        if head is None or head.message_count - rows >= YOUNG:
            return
        if head.session_id in {place.titled, *self._running}:
            return
        self._running.add(head.session_id)
        self._nursery.start_soon(self._run, key, head.session_id, place, exchange)

    async def _run(
        self, key: str, session_id: str, place: RouteState, exchange: Sequence[Message]
    ) -> None:
        try:
            with trio.move_on_after(SECONDS):
                async with self._slots:
                    await self._name(key, session_id, exchange)
                place.titled = session_id
        except StoreFailed:
            raise
        except BaseException as error:  # noqa: BLE001 - foreign code: a title is worth nobody's trouble
            if (through := user_code.passing(error)) is not None:
                raise through from None
            log.info(
                "%s has no title yet: %s", session_id, user_code.loggable(user_code.leaf(error))
            )
        finally:
            self._running.discard(session_id)

    async def _name(self, key: str, session_id: str, exchange: Sequence[Message]) -> None:
        session = await self._store.get_session(session_id)
        if session is None or session.title is not None:
            return
        spent = functools.partial(spent_by, self._store, session_id)
        written: object = await self._titler.title(
            TitleRequest(session_id=session_id, messages=exchange, spent=spent)
        )
        if not isinstance(written, Summary) or not isinstance(written.text, str):
            raise TypeError(f"a titler answers with a Summary, not {written!r:.100}")
        await self._store.book(session_id, list(written.usage))
        title = short(self._redact(written.text))  # first: what is cut has only half of a secret
        if not title:
            raise HermesError("the title is empty")
        if await self._store.set_auto_title_if_empty(session_id, title):
            self._publish(key, None, TitleChanged(session_id, title))


def short(text: str) -> str:
    """A title as a model may say it, without what stands around it: one line of some words."""
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
