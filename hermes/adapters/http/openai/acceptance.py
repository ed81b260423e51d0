"""Acceptance of a request: a repetition is answered by the response that exists already."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio
from msgspec.structs import replace

from hermes.adapters.http.endpoints import Call
from hermes.adapters.http.errors import ApiError
from hermes.adapters.http.tracing import trace_metadata
from hermes.messages import ApiRequest, Inbound, StoredResponse

KEY_HEADER = "idempotency-key"
RETRY_HEADER = "x-stainless-retry-count"
MAX_KEY = 255
LOOK_SECONDS = 0.2
"""Seconds between two looks at equal requests that are open on other nodes of a cluster."""
NOTICE_SECONDS = 1.0
"""Seconds that a retry waits for the end of an equal request that is open."""


@attrs.frozen
class Accepted:
    """A response that exists, and whether this connection is the one that it is written to."""

    response: StoredResponse
    tracked: bool = True
    """Whether a retry may attach to it if this connection is lost."""
    fresh: bool = False
    """Whether the request has created it just now."""


def idempotency_key(call: Call) -> str | None:
    """Return the `Idempotency-Key` of a request. Raises `ApiError` if it is not valid.

    An empty key counts as none.
    """
    key = call.request.headers.get(KEY_HEADER)
    if not key:
        return None
    if not 0 < len(key) <= MAX_KEY or not key.isprintable():
        text = f"Idempotency-Key must have 1 to {MAX_KEY} printable characters."
        raise ApiError(400, text, code="invalid_value", param="Idempotency-Key")
    return key


def may_repeat(call: Call) -> bool:
    """Whether a request says that it may repeat an earlier one."""
    return KEY_HEADER in call.request.headers or RETRY_HEADER in call.request.headers


async def find_repeated(
    call: Call, path: str, digest: str, *, key: str | None = None
) -> Accepted | None:
    """Return the response to an earlier request that this one repeats; None if it is a new one.

    Raises `ApiError` if its idempotency key was used for another request.
    """
    api, services = call.runtime.api, call.services
    key = key or idempotency_key(call)
    if key is not None:
        found = await api.find_response(call.caller.id, key)
        return None if found is None else _repeated(call, found, path, digest)
    count, found = call.request.headers.get(RETRY_HEADER, "0"), None
    if count.isascii() and count.isdigit() and count.strip("0"):
        found = await _attach(call, path, digest)
        services.counters["retries_attached" if found else "retries_new"] += 1
    call.opened.content = path, digest
    return None if found is None else Accepted(found)


async def _attach(call: Call, path: str, digest: str) -> StoredResponse | None:
    """Attach a retry to the response of an equal request that was lost; None if there is none.

    If an equal request is open, its client may have gone away without the server knowing it yet.
    Then the retry waits for its end, for a moment: the client may as well be another one.
    """
    services, caller, content = call.services, call.caller.id, (path, digest)
    requests, deadline = services.requests, trio.current_time() + NOTICE_SECONDS
    api, request = call.runtime.api, (caller, path, digest, services.process)
    before = await api.open_elsewhere(*request)
    while True:
        await services.endings.catch_up()
        ended, equal = requests.ended, requests.equals(caller, content)
        found = await api.attach(*request)
        if found is not None:
            return found
        if await _may_be_lost(call, request, before, deadline):
            await trio.sleep(LOOK_SECONDS)
            continue
        if not equal:
            return None
        if equal <= requests.equals(caller, content):  # none has ended meanwhile
            if trio.current_time() >= deadline:
                return None
            with trio.move_on_at(deadline):
                await ended.wait()


async def _may_be_lost(
    call: Call, request: tuple[str, str, str, str], before: Mapping[str, float], deadline: float
) -> bool:
    """Whether an equal request that was open on another node may be lost, as far as is known.

    If its process lives, it says so before its lease ends; if not, it is declared dead.
    """
    now = await call.runtime.api.open_elsewhere(*request) if before else {}
    open_before = [each for each in before if each in now]
    if trio.current_time() < deadline:
        return bool(open_before)
    return any(now[each] <= before[each] for each in open_before)


async def accept(call: Call, inbound: Inbound) -> Accepted:
    """Store a message with its request; the response exists when this returns.

    Of two requests with the same idempotency key at once, both get the response to the first.
    """
    request = inbound.request
    assert request is not None
    inbound = replace(inbound, metadata={**inbound.metadata, **trace_metadata(call)})
    if request.idempotency_key is not None:
        inbound = replace(inbound, event_id=f"key:{request.idempotency_key}")
    receipt = await call.runtime.submit(inbound)
    if request.idempotency_key is not None:
        stored = await call.runtime.api.response_to(receipt)
        if stored is None:
            text = "The response to the request with this Idempotency-Key was deleted."
            raise ApiError(409, text, code="conflict", param="Idempotency-Key")
        if stored.id != request.id:
            return _repeated(call, stored, request.path, request.digest)
    return Accepted(
        StoredResponse(
            id=request.id, credential=request.credential, session_key=receipt.session_key,
            session_id=receipt.session_id, inbox_id=receipt.inbox_id, path=request.path,
            digest=request.digest, idempotency_key=request.idempotency_key, echo=request.echo,
            stored=request.stored, created_at=receipt.accepted_at, connection="open",
        ),
        fresh=True,
    )  # fmt: skip


def new_request(
    call: Call, response_id: str, path: str, digest: str, *, key: str | None
) -> ApiRequest:
    """Return the request of a call; the caller adds what it asks for."""
    return ApiRequest(
        id=response_id,
        credential=call.caller.id,
        path=path,
        digest=digest,
        idempotency_key=key,
        process=call.services.process,
    )


def _repeated(call: Call, found: StoredResponse, path: str, digest: str) -> Accepted:
    if (found.path, found.digest) != (path, digest):
        text = "This Idempotency-Key was used for another request."
        raise ApiError(422, text, code="idempotency_key_reused", param="Idempotency-Key")
    call.services.counters["idempotent_repeats"] += 1
    return Accepted(found, tracked=False)
