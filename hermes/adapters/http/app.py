"""The ASGI app: authenticates each request, and hands it to its endpoint."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio
from starlette.requests import Request
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes.actors.runtime import Runtime
from hermes.adapters.http import conversation_files, metrics
from hermes.adapters.http.access.browsers import Browsers, Outgoing, cors_headers, preflight
from hermes.adapters.http.access.requests import set_replaceable
from hermes.adapters.http.api import openapi, rpc
from hermes.adapters.http.api.routes import ENDPOINTS as API
from hermes.adapters.http.api.streams.multiplex import ROUTER
from hermes.adapters.http.config import HttpConfig
from hermes.adapters.http.endpoints import Call, Endpoint, Services, with_encoded_path
from hermes.adapters.http.errors import ApiError, ClientGone, as_api_error, not_found
from hermes.adapters.http.health import routes as health
from hermes.adapters.http.hooks import routes as hooks
from hermes.adapters.http.openai import files, models
from hermes.adapters.http.openai.chat import routes as chat
from hermes.adapters.http.openai.responses import conversations, resuming, routes as responses
from hermes.adapters.http.turns.elsewhere import TurnsElsewhere
from hermes.adapters.http.turns.logs import TurnLogs, catch_up, check_ends
from hermes.adapters.http.web import assets, sign_in
from hermes.background import open_background, start_soon
from hermes.errors import NotAdmitted
from hermes.telemetry.collecting import Collected, collecting
from hermes.user_code import contained, leaf

BEAT = 5.0
"""Seconds between two signs of life; a retry uses the last one of a process that died."""
SECRET = "http:secret"
_DESCRIBED: tuple[Endpoint, ...] = (
    *responses.ENDPOINTS,
    *conversations.ENDPOINTS,
    *chat.ENDPOINTS,
    *models.ENDPOINTS,
    *files.ENDPOINTS,
    *API,
    *sign_in.ENDPOINTS,
    *conversation_files.ENDPOINTS,
    *metrics.ENDPOINTS,
    *health.ENDPOINTS,
    *hooks.ENDPOINTS,
    *assets.ENDPOINTS,
)
ENDPOINTS: tuple[Endpoint, ...] = (*_DESCRIBED, openapi.endpoint(_DESCRIBED))


@asynccontextmanager
async def open_app(
    runtime: Runtime,
    config: HttpConfig | None = None,
    *,
    collected: Collected | None = None,
) -> AsyncIterator[ASGIApp]:
    """Open the app on Trio, for a runtime on the same loop. It serves requests during the block.

    `collected` returns the metrics of the runtime, for `/metrics`, and the state of its host, for
    `/api/status`; by default the app collects them itself.
    """
    logs = TurnLogs()
    await trio.to_thread.run_sync(assets.load_assets)
    async with open_background() as background:
        services = Services(
            runtime=runtime,
            config=config or HttpConfig(),
            logs=logs,
            secret=await _secret(runtime),
            nursery=background,
            draining=trio.Event(),
            collected=collected or collecting(runtime),
        )
        await runtime.api.record_process(services.process)
        if not runtime.api.has_other_nodes():
            await runtime.api.clear_sign_ins()
        start_soon(background, _beat, services)
        start_soon(background, _end_with_runtime, services)
        start_soon(background, services.requests.watch)
        start_soon(background, services.recorder.run)
        start_soon(background, check_ends, runtime, logs)
        logs.on_restart = lambda inbox_id: start_soon(
            background, resuming.resume, services, inbox_id
        )
        with runtime.subscribe(callback=logs.receive) as subscription:
            if runtime.api.has_other_nodes():
                logs.elsewhere = TurnsElsewhere(runtime, logs, subscription, background)
            catch_up(runtime, logs)
            try:
                yield _App(services, ENDPOINTS)
            finally:
                services.stop()


async def _secret(runtime: Runtime) -> bytes:
    """Return the key of the hashes of bodies; it stays the same, so that retries are known."""
    state = runtime.adapter_state
    while (stored := await state.get(SECRET)) is None:  # another node may be faster
        await state.set(SECRET, secrets.token_hex(32), replace=False)
    return bytes.fromhex(stored)


async def _beat(services: Services) -> None:
    while True:
        await trio.sleep(BEAT)
        with contained():  # the store may be busy; the next one counts
            await services.runtime.api.record_process(services.process)
            await services.endings.catch_up()


async def _end_with_runtime(services: Services) -> None:
    """End all waits and streams once the runtime is drained: nothing more would come."""
    with contained():  # it may have failed; whoever opened it is told
        await services.runtime.wait_stopped()
    services.stop()


class _App:
    """Checks each request, finds its endpoint and its caller, and contains what goes wrong."""

    def __init__(self, services: Services, endpoints: Sequence[Endpoint]) -> None:
        self._browsers = Browsers(services.config)
        self._answered = services.answered
        paths: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            paths.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        apps = {path: _Path(services, path, methods) for path, methods in paths.items()}
        self._without_parameters: dict[str, ASGIApp] = {
            path: app for path, app in apps.items() if "{" not in path
        }
        routes = [Route(path, app) for path, app in apps.items()]
        socket = WebSocketRoute(rpc.PATH, _RpcSocket(services))
        self._router = Router([*routes, socket], redirect_slashes=False, default=_not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._router(scope, receive, send)
            return
        set_replaceable(scope, True)
        outgoing = Outgoing(send)
        try:
            await self._answer(scope, receive, outgoing)
        finally:
            self._answered[outgoing.route, outgoing.status] += 1

    async def _answer(self, scope: Scope, receive: Receive, outgoing: Outgoing) -> None:
        try:
            origin = self._browsers.check(scope)
        except ApiError as error:
            await refuse(error, scope, receive, outgoing)
            return
        outgoing.add_headers(cors_headers(origin))
        answer = None if origin is None else preflight(scope)
        scope = {**with_encoded_path(scope), ROUTER: self._router}
        await (answer or self._app_of(scope))(scope, receive, outgoing)

    def _app_of(self, scope: Scope) -> ASGIApp:
        """Return the endpoints of a path without parameters, or what finds those of another one."""
        if scope["type"] != "http" or scope.get("root_path"):
            return self._router
        return self._without_parameters.get(scope["path"], self._router)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await refuse(not_found("such path"), scope, receive, send)


class _RpcSocket:
    """The WebSocket of JSON-RPC."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contained() as caught:
            await rpc.serve_rpc(self._services, scope, receive, send)
        if isinstance(caught.error, ApiError):  # before the handshake
            await refuse(caught.error, scope, receive, send)
        elif caught.error is not None and not isinstance(leaf(caught.error), ClientGone):
            as_api_error(caught.error)  # logs it
            await send({"type": "websocket.close", "code": 1011, "reason": "Internal error."})


class _Path:
    """The endpoints of one path, by method."""

    def __init__(self, services: Services, path: str, endpoints: Mapping[str, Endpoint]) -> None:
        self._services = services
        self._path = path
        self._endpoints = dict(endpoints)
        if "GET" in endpoints:
            self._endpoints.setdefault("HEAD", endpoints["GET"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outgoing = send if isinstance(send, Outgoing) else Outgoing(send)
        outgoing.route = self._path
        with contained() as caught:
            await self._answer(scope, receive, outgoing)
        if caught.error is not None and not isinstance(leaf(caught.error), ClientGone):
            error = as_api_error(caught.error)
            if not outgoing.started:  # else the connection is closed before the end of the body
                await refuse(error, scope, receive, outgoing)

    async def _answer(self, scope: Scope, receive: Receive, send: Outgoing) -> None:
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is None:
            allowed = ", ".join(sorted(self._endpoints))
            text = f"The path takes {allowed}, not {scope['method']:.20}."
            raise ApiError(405, text, code="method_not_allowed", headers={"Allow": allowed})
        request = Request(scope, receive, send)
        if endpoint.role is None:
            call = Call(request=request, services=self._services, caller=None)
            await _respond(endpoint, call, send)
            return
        logins, verify = self._services.logins, None
        cookies = self._path.startswith("/api/")
        caller = logins.known(scope, cookies=cookies) if endpoint.checks_token else None
        if caller is None:
            caller = await logins.caller(scope, cookies=cookies)
        else:
            verify = partial(logins.caller, scope, cookies=cookies)
        set_replaceable(scope, False)
        if not caller.has_role(endpoint.role):
            text = f"The token does not have the role {endpoint.role!r}."
            raise ApiError(403, text, code="missing_role")
        with self._services.requests.opened(caller.id) as opened:
            send.on_written = opened.note_answered
            call = Call(
                request=request,
                services=self._services,
                caller=caller,
                verify=verify,
                opened=opened,
            )
            try:
                await _respond(endpoint, call, send)
            except NotAdmitted:
                await call.verify()  # the token may have been revoked
                raise
        if opened.scope.cancelled_caught:
            raise ApiError(401, "The token was revoked.", code="invalid_api_key")


async def _respond(endpoint: Endpoint, call: Call, send: Outgoing) -> None:
    request = call.request
    if endpoint.body is not None:
        _require_json(request)
    try:
        response = await endpoint.handle(call)
    except BaseException:
        await call.discard_files()
        raise
    await response(request.scope, request.receive, send)


def _require_json(request: Request) -> None:
    """Raise `ApiError` for a body of another type, which a foreign page could send unasked."""
    headers = request.headers
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        text = "The body must be JSON, with the header Content-Type: application/json."
        raise ApiError(415, text, code="unsupported_media_type")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        text = "The body must not be compressed."
        raise ApiError(415, text, code="unsupported_content_encoding")


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error; a WebSocket is closed if the server cannot send a response to it."""
    denial = "websocket.http.response" in scope.get("extensions", {})
    if scope["type"] == "websocket" and not denial:
        await send({"type": "websocket.close", "code": 1008, "reason": error.message})
        return
    await error.response()(scope, receive, send)
