"""Files over JSON-RPC.

`uploads` (files that clients send in chunks), `handlers` (the methods), `sources` (the other end:
what a client reads and sends).
"""
