"""Streams that go on: in another process after a crash, or on another node of a cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from msgspec.structs import replace

from hermes.adapters.http.connections import COMMENT, EventStream
from hermes.adapters.http.endpoints import Services
from hermes.adapters.http.openai.responses.outcomes import lost_items, next_block, recorded
from hermes.adapters.http.openai.responses.streams import (
    BLOCK,
    FROM_STORE,
    LiveResponse,
    is_silent,
    live_response,
    read_live,
    read_stored,
)
from hermes.adapters.http.turns.endings import Ending
from hermes.adapters.http.turns.logs import TurnLog
from hermes.messages import Receipt, StoredResponse
from hermes.user_code import contained

MAX_BLOCK: Final = FROM_STORE // BLOCK - 100
"""The last block that a node takes for a response."""


async def resume(services: Services, inbox_id: int) -> None:
    """Go on with the stream of a response that clients have seen from an earlier process."""
    receipt, api = Receipt(inbox_id, "", "", 0, 0.0), services.runtime.api
    with contained():
        response = await api.response_to(receipt)
        log = services.logs.find(inbox_id)
        if log is None or log.listener is not None or response is None or not response.items:
            return
        unanswered = replace(response, reply=None)  # what was seen then is lost in any case
        if log.reply is not None:
            items = recorded(lost_items(unanswered), next_block(response))
            await services.records.record_items(response.id, items)
        elif services.shared is None:
            live_response(services, unanswered, log)
        elif not api.is_elsewhere(response.session_key):
            await _live_elsewhere(services, unanswered, log)


async def stream_elsewhere(
    services: Services, response: StoredResponse, ending: Ending, after: int
) -> EventStream:
    """Stream a response whose turn has not ended, and may run on another node of a cluster."""
    log = await services.logs.heard(response)
    live = await _live_elsewhere(services, response, log, after)
    if live is None:
        return EventStream(_read_end(services, response, log, ending))
    return EventStream(read_live(services, live, log, ending, after))


async def _live_elsewhere(
    services: Services, response: StoredResponse, log: TurnLog, after: int = -1
) -> LiveResponse | None:
    """Return the frames of a response that a client of a cluster may have seen on another node.

    Each node has other numbers. If those that the client has seen are not of this node, it gets the
    whole stream, with greater numbers. Returns None if the turn has ended meanwhile, or if no node
    has such numbers.
    """
    assert services.shared is not None
    live = log.listener
    while not (isinstance(live, LiveResponse) and live.has_numbers_to(after)):
        if after >= max(next_block(response), 1) * BLOCK or next_block(response) > MAX_BLOCK:
            return None
        taken = await services.shared.take_block(response)
        if taken is None or taken.reply is not None or log.reply is not None or log.stopped:
            return None
        if log.listener is live:  # else another client was faster
            log.earlier = [each for each in log.listeners if each.in_use]
            LiveResponse(services, taken, next_block(taken) - 1).open(log)
        live, response = log.listener, taken
    return live


async def _read_end(
    services: Services, response: StoredResponse, log: TurnLog, ending: Ending
) -> AsyncGenerator[bytes, None]:
    """Yield the whole response from the store, once its turn has ended."""
    while log.reply is None:
        if await is_silent(log.wait):
            yield COMMENT
    async for chunk in read_stored(services, response, log.reply, ending):
        yield chunk
