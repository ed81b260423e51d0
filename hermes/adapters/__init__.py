"""Adapters: connections between a runtime and the platforms on which people talk to it.

- `console`: a chat at a terminal or through pipes.
- `jsonrpc`: JSON-RPC over byte streams, for editors and other front ends.
- `telegram`: a Telegram bot, by long polling.

Shared by adapters: `previews` (show the text of a running turn), `rate_limit` (stay within the
limits of a platform) and `lines` (split bytes into lines). The protocol that every adapter
implements is `hermes.protocols.Adapter`; docs/delivery.md explains how to write one.
"""
