"""The table of endpoints: each module lists its own, and `app` serves all of them."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from secrets import token_hex
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote
from weakref import WeakValueDictionary

import attrs
import msgspec
import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from hermes.actors.admin import ApiRecords
from hermes.actors.runtime import Runtime
from hermes.adapters.http.access.logins import Logins
from hermes.adapters.http.access.requests import OpenRequest, OpenRequests
from hermes.adapters.http.access.tickets import Tickets
from hermes.adapters.http.api.live.feed import LiveFeed
from hermes.adapters.http.api.streams.hub import Hub
from hermes.adapters.http.config import HttpConfig
from hermes.adapters.http.credentials import Caller
from hermes.adapters.http.errors import ApiError, stopping
from hermes.adapters.http.health.readiness import Readiness
from hermes.adapters.http.hooks.registry import Hook, open_hooks
from hermes.adapters.http.turns.endings import Ending, Endings
from hermes.adapters.http.turns.logs import TurnLogs
from hermes.adapters.http.turns.recording import Recorder
from hermes.adapters.http.turns.sharing import ItemRecords, SharedRecords
from hermes.adapters.http.web.people import Visitors
from hermes.background import cancel, set_event
from hermes.telemetry.collecting import Collected
from hermes.user_code import contained

T = TypeVar("T")
DISCARD_SECONDS = 10.0
WHOLE_BODY = "hermes.whole_body"
"""In the scope of a request: returns its body, if all of it has arrived. Our own server has it."""
MIN_RATE = 1000
"""Bytes per second at which a body must arrive on average, beyond `body_timeout`."""
MAX_DEPTH = 100
"""Levels of arrays and objects in a body."""


def _live(services: Services) -> LiveFeed:
    host_status = services.collected.host_status
    return LiveFeed(services.runtime, services.nursery, token_hex(8), lambda: host_status().budgets)


def _shared(api: ApiRecords) -> SharedRecords | None:
    return SharedRecords(api) if api.has_other_nodes() else None


@attrs.frozen(kw_only=True)
class Services:
    """What endpoints share."""

    runtime: Runtime
    config: HttpConfig
    logs: TurnLogs
    secret: bytes
    """The key of the hashes of bodies."""
    nursery: trio.Nursery
    """For work that outlives a connection."""
    draining: trio.Event
    """Set when the server stops: streams end."""
    reading: set[trio.CancelScope] = attrs.Factory(set)
    """Waits for bodies, which `stop` ends."""
    collected: Collected
    """Returns the metrics of the runtime, and the state of its host."""
    hub: Hub = attrs.Factory(
        lambda self: Hub(self.runtime, self.nursery, token_hex(8)), takes_self=True
    )
    """Serves event streams."""
    live: LiveFeed = attrs.Factory(_live, takes_self=True)
    """Serves the live view."""
    readiness: Readiness = attrs.Factory(Readiness)
    logins: Logins = attrs.Factory(
        lambda self: Logins(self.runtime.api.find_token, self.runtime.api.valid_digests),
        takes_self=True,
    )
    requests: OpenRequests = attrs.Factory(
        lambda self: OpenRequests(self.config, self.runtime.api), takes_self=True
    )
    endings: Endings = attrs.Factory(
        lambda self: Endings(self.runtime.api, self.requests), takes_self=True
    )
    """Records how the connections of requests have ended."""
    hooks: Mapping[str, Hook] = attrs.Factory(lambda self: open_hooks(self.config), takes_self=True)
    tickets: Tickets = attrs.Factory(Tickets)
    visitors: Visitors = attrs.Factory(Visitors)
    shared: SharedRecords | None = attrs.Factory(
        lambda self: _shared(self.runtime.api), takes_self=True
    )
    """What clients have seen on several nodes; None on one process."""
    recorder: Recorder = attrs.Factory(lambda self: Recorder(self.records), takes_self=True)
    """Records what clients have seen of responses that run."""
    following: WeakValueDictionary[str, trio.Lock] = attrs.Factory(WeakValueDictionary)
    """One for each conversation, held while a request is accepted that follows a response of it."""
    counters: Counter[str] = attrs.Factory(Counter)
    """How often requests repeated earlier ones; `/metrics` shows them."""
    answered: Counter[tuple[str, int | str]] = attrs.Factory(Counter)
    """Requests by route and status."""

    def stop(self) -> None:
        """End the streams, and refuse the requests that have not arrived: the server stops."""
        set_event(self.draining)
        for scope in self.reading:
            cancel(scope)
        self.logs.stop()
        self.hub.close()
        self.live.close()

    @property
    def records(self) -> ItemRecords:
        """Where it is recorded what clients have seen of responses that run."""
        return self.shared or self.runtime.api

    @property
    def process(self) -> str:
        """The random id of the runtime, by which its connections are known."""
        return self.runtime.api.process_id()


@attrs.frozen(kw_only=True)
class Call:
    """One request."""

    request: Request
    services: Services
    new_files: list[tuple[str, str]] = attrs.Factory(list)
    """The files that were stored for the request: the session key and the id of each."""
    _caller: Caller | None
    _verify: Callable[[], Awaitable[object]] | None = None
    opened: OpenRequest = attrs.Factory(OpenRequest)
    """How the request is known while it is open."""

    @property
    def caller(self) -> Caller:
        """The holder of the token. There is none if the endpoint has no role."""
        assert self._caller is not None, "the endpoint needs a role"
        return self._caller

    async def verify(self) -> None:
        """Raise `ApiError` if the token is not valid any more.

        An endpoint with `checks_token` must call this before it reads or writes anything, unless
        the first thing it does is to accept a message: that checks the token too.
        """
        if self._verify is not None:
            await self._verify()

    def ending(self, response_id: str | None) -> Ending:
        """Return the end of the answer; None if no retry can attach to the response."""
        return Ending(self.services.endings, self.opened, response_id)

    @property
    def runtime(self) -> Runtime:
        """The runtime."""
        return self.services.runtime

    @property
    def path(self) -> dict[str, str]:
        """The parameters in the path, decoded."""
        return {name: unquote(value) for name, value in self.request.path_params.items()}

    def query(self, kind: type[T]) -> T:
        """Return the query parameters. Raises `ApiError` if they are not valid."""
        try:
            return msgspec.convert(dict(self.request.query_params), kind, strict=False)
        except msgspec.ValidationError as error:
            raise ApiError(400, f"{error}.", code="invalid_value", param=_param(error)) from None

    async def read(self, kind: type[T]) -> T:
        """Return the JSON body; an empty one is an empty object. Raises `ApiError`."""
        return decode(await self.body() or b"{}", kind)

    async def chunks(self, limit: int) -> AsyncGenerator[bytes, None]:
        """Yield the body in pieces. Raises `ApiError` beyond this many bytes, or if it stalls."""
        size = 0
        async with aclosing(self.request.stream()) as stream:
            while (piece := await self._next(stream)) is not None:
                size += len(piece)
                if size > limit:
                    raise _too_long(limit)
                if piece:
                    yield piece

    async def _next(self, stream: AsyncGenerator[bytes, None]) -> bytes | None:
        """Return the next piece of the body; None at its end."""
        with self._waiting():
            return await anext(stream, None)
        raise self._not_arrived()

    @contextmanager
    def _waiting(self) -> Iterator[trio.CancelScope]:
        """Wait for a body during the block, until `body_timeout` or the end of the server."""
        reading = self.services.reading
        with trio.move_on_after(self.services.config.body_timeout) as waiting:
            reading.add(waiting)
            try:
                yield waiting
            finally:
                reading.discard(waiting)

    def _not_arrived(self) -> ApiError:
        if self.services.draining.is_set():
            return stopping("The server is stopping; nothing was stored.")
        return ApiError(408, "The body did not arrive in time.", code="timeout")

    async def body(self, limit: int | None = None) -> bytes:
        """Return the whole body, within a limit; by default the configured one."""
        limit = self.services.config.max_body if limit is None else limit
        if content_length(self.request) > limit:
            raise _too_long(limit)
        try:
            return await self._whole(limit)
        except ClientDisconnect:
            raise ApiError(400, "The body is incomplete.") from None

    async def _whole(self, limit: int) -> bytes:
        whole: bytes | None = self.request.scope.get(WHOLE_BODY, _not_known)()
        if whole is not None:
            if len(whole) > limit:
                raise _too_long(limit)
            return whole
        pieces, size, timeout = list[bytes](), 0, self.services.config.body_timeout
        with self._waiting() as waiting:
            begun = trio.current_time()
            async with aclosing(self.request.stream()) as stream:
                async for piece in stream:
                    pieces.append(piece)
                    size += len(piece)
                    if size > limit:
                        raise _too_long(limit)
                    slowest = begun + size / MIN_RATE
                    waiting.deadline = min(trio.current_time(), slowest) + timeout
            return b"".join(pieces)
        raise self._not_arrived()

    async def discard_files(self) -> None:
        """Delete the files of a request that is refused; a sweep deletes what is left."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + DISCARD_SECONDS):
            for key, file_id in self.new_files:
                with contained():  # the runtime may be ending
                    await self.runtime.api.delete_file(file_id, session_key=key)

    def digest(self, body: bytes) -> str:
        """Return a keyed hash of the route and the body."""
        content = f"{self.request.method} {self.request.scope['path']}\n".encode() + body
        return hmac.digest(self.services.secret, content, "sha256").hex()


def _not_known() -> bytes | None:
    return None


def _too_long(limit: int) -> ApiError:
    text = f"The body is longer than {limit} bytes."
    return ApiError(413, text, code="body_too_long", headers={"Connection": "close"})


def with_encoded_path(scope: Scope) -> Scope:
    """Return the scope with its path as it was sent, so that a name in it may contain a slash."""
    raw = scope.get("raw_path")
    return scope if raw is None else {**scope, "path": raw.decode("ascii", errors="replace")}


def decode(body: bytes, kind: type[T]) -> T:
    """Decode a JSON body. Raises `ApiError` if it is not valid."""
    try:
        if not is_shallow(body):
            text = f"The body is nested in more than {MAX_DEPTH} levels."
            raise ApiError(400, text, code="invalid_json")
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"{error}.", code="invalid_value", param=_param(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from None


def is_shallow(body: bytes) -> bool:
    """Whether JSON has at most `MAX_DEPTH` levels. Deeper values could be read but not written."""
    if body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return True
    level: list[Any] = [msgspec.json.decode(body)]
    for _ in range(MAX_DEPTH):
        nested = [value.values() if isinstance(value, dict) else value for value in level]
        level = [each for values in nested for each in values if isinstance(each, dict | list)]
        if not level:
            return True
    return False


def _param(error: msgspec.ValidationError) -> str | None:
    _, found, path = str(error).partition(" - at `$.")
    return path.rstrip("`") if found else None


def content_length(request: Request) -> int:
    """Return the announced length of a body; 0 if there is none."""
    length = request.headers.get("content-length", "0")
    return int(length) if length.isascii() and length.isdigit() else 0


def json_response(value: object, status: int = 200) -> Response:
    """Return a value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


Handler: TypeAlias = Callable[[Call], Awaitable[Response]]


@attrs.frozen(kw_only=True)
class Endpoint:
    """A route: what it is called with and returns is also in the OpenAPI document."""

    method: str
    path: str
    """With parameters in braces, such as "/v1/responses/{response_id}"."""
    handle: Handler
    summary: str
    role: str | None = "user"
    """The role that the token needs; None if there is no token."""
    body: Any = None
    """The type of the JSON body."""
    query: Any = None
    """A struct with the query parameters."""
    result: Any = None
    """The type of the JSON result."""
    media_types: tuple[str, ...] = ()
    """Other types of content that it may answer with."""
    streams: bool = False
    """Whether it may answer with server-sent events."""
    events: tuple[Any, ...] = ()
    """The types of the data of these events."""
    status: int = 200
    """The status code of success."""
    other_results: Mapping[int, Any] = attrs.Factory(dict)
    """The types of the JSON results of other status codes of success."""
    checks_token: bool = False
    """Whether it checks by itself that a token which was valid before still is; see `verify`."""
    idempotency_key: bool = False
    """Whether it takes the header `Idempotency-Key`."""
