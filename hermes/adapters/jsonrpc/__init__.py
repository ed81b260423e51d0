"""JSON-RPC for terminals and editors: many conversations over one pair of byte streams.

Read: frames (what a line may be), methods and events (the vocabulary; the schema is made of them),
conversations (what the methods do), outgoing (numbers, shedding and replay), peer (one client),
stdio (lines over byte streams). `serve` needs a runtime and two streams; `serve_stdio` takes those
of the process.
"""

from __future__ import annotations

from hermes.adapters.jsonrpc.connection import Peer as Peer, open_peer as open_peer
from hermes.adapters.jsonrpc.stdio import serve as serve, serve_stdio as serve_stdio
