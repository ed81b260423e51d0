"""JSON-RPC for terminals and editors: many conversations over one pair of byte streams.

`serve` needs a runtime and two streams; `serve_stdio` uses standard input and output, and
`serve_socket` a Unix socket.

Reading order: `frames` (requests, responses, error codes), `types` and `events` (the data of
methods and events), `methods` (the table of methods), `connection` (one client), `handlers` (what
the methods do), `handles` (a client's names for its conversations), `opening` (finds conversations
and opens handles), `notifications` (runtime events become JSON-RPC events), `send_buffer` (sequence
numbers, shedding, replay), `stdio` and `socket_server` (transports), `client` (the other end),
`schema` (JSON Schema and tables, generated from the code).
"""

from __future__ import annotations

from hermes.adapters.jsonrpc.connection import (
    Connection as Connection,
    open_connection as open_connection,
)
from hermes.adapters.jsonrpc.socket_server import serve_socket as serve_socket
from hermes.adapters.jsonrpc.stdio import serve as serve, serve_stdio as serve_stdio
