"""`/api/rpc`: the methods and events of docs/jsonrpc.md over a WebSocket, for operators.

JSON-RPC shows all conversations and acts as the operator of the machine, so that a token needs the
role "operator". Each message of the WebSocket is one frame.
"""

from __future__ import annotations

import msgspec
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hermes.adapters.http.access.requests import set_replaceable
from hermes.adapters.http.access.tickets import PREFIX, PROTOCOL, SECONDS
from hermes.adapters.http.credentials import Caller
from hermes.adapters.http.endpoints import Call, Endpoint, Services, json_response
from hermes.adapters.http.errors import ApiError
from hermes.adapters.jsonrpc.connection import Connection, open_connection
from hermes.adapters.jsonrpc.frames import MAX_LINE
from hermes.background import cancel, open_background, start_soon

PATH = "/api/rpc"
ROLE = "operator"
GOING_AWAY, POLICY = 1001, 1008


async def serve_rpc(services: Services, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a client until it leaves, its token is revoked or the runtime ends.

    Raises `ApiError`, before the handshake, if the client is not allowed to connect.
    """
    caller = await _caller(services, scope)
    set_replaceable(scope, False)
    if not caller.has_role(ROLE):
        raise ApiError(403, f"The token does not have the role {ROLE!r}.", code="missing_role")
    with services.requests.opened(caller.id) as opened:
        await receive()  # the handshake
        chosen = PROTOCOL if PROTOCOL in scope.get("subprotocols", []) else None
        await send({"type": "websocket.accept", "subprotocol": chosen})
        await _serve(services, receive, send)
    if opened.scope.cancelled_caught:
        await send({"type": "websocket.close", "code": POLICY, "reason": "The token was revoked."})


async def _caller(services: Services, scope: Scope) -> Caller:
    """Return who connects: by a ticket, or by the bearer token of the handshake."""
    for protocol in scope.get("subprotocols", []):
        if protocol.startswith(PREFIX):
            found = services.tickets.take(protocol.removeprefix(PREFIX))
            if found is None or found.id not in await services.runtime.api.valid_tokens():
                raise ApiError(401, "The ticket is not valid.", code="invalid_ticket")
            return found
    return await services.logins.caller(scope)


async def _serve(services: Services, receive: Receive, send: Send) -> None:
    async with open_connection(services.runtime) as connection:
        connection.greet()
        with trio.CancelScope() as connected:
            async with open_background() as background:
                start_soon(background, _read, receive, connection, connected)
                start_soon(background, _end, services.draining, connection)
                await _write(connection, send)
    if not connected.cancel_called:
        await send({"type": "websocket.close", "code": GOING_AWAY, "reason": "The server ends."})


async def _read(receive: Receive, connection: Connection, connected: trio.CancelScope) -> None:
    """Take frames until the client leaves. A client that does not read is not read either."""
    while True:
        await connection.wait_writable()
        message = await receive()
        if message["type"] == "websocket.disconnect":
            cancel(connected)
            return
        body = message.get("bytes") or (message.get("text") or "").encode(errors="replace")
        if len(body) > MAX_LINE:
            connection.reject_long_line()
        else:
            connection.receive(body)


async def _end(draining: trio.Event, connection: Connection) -> None:
    """Send what waits, and nothing more, once the runtime has ended."""
    await draining.wait()
    connection.close()


async def _write(connection: Connection, send: Send) -> None:
    while (frame := await connection.next_frame()) is not None:
        try:
            await send({"type": "websocket.send", "text": frame.decode()})
        except BaseException:
            connection.lose_last_frame()
            raise


class TicketResult(msgspec.Struct):
    """A ticket for one connection, and for how many seconds it is valid."""

    ticket: str
    expires_in: float


async def create_ticket(call: Call) -> Response:
    """Return a ticket for a WebSocket: its second subprotocol is `ticket.` and the ticket."""
    await trio.lowlevel.checkpoint()
    ticket = call.services.tickets.issue(call.caller)
    return json_response(TicketResult(ticket, SECONDS), 201)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path="/api/tickets",
        handle=create_ticket,
        summary="Return a one-time ticket for the WebSocket.",
        role=ROLE,
        result=TicketResult,
        status=201,
    ),
)
