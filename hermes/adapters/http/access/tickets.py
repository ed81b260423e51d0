"""One-time tickets: how a web page opens a WebSocket, for which it cannot send a header."""

from __future__ import annotations

import secrets

import attrs
import trio

from hermes.adapters.http.credentials import Caller, digest_of

SECONDS = 30.0
"""How long a ticket is valid."""
MAX_TICKETS = 1000
PROTOCOL = "hermes.v1"
PREFIX = "ticket."


@attrs.frozen
class _Ticket:
    caller: Caller
    expires: float


class Tickets:
    """The tickets that were not used yet. They are in memory only, as hashes."""

    def __init__(self) -> None:
        self._tickets: dict[str, _Ticket] = {}

    def issue(self, caller: Caller) -> str:
        """Return a new ticket of a caller. The oldest one is dropped if there are too many."""
        now = trio.current_time()
        self._tickets = {
            digest: each for digest, each in self._tickets.items() if each.expires > now
        }
        if len(self._tickets) >= MAX_TICKETS:
            del self._tickets[next(iter(self._tickets))]
        ticket = secrets.token_urlsafe(32)
        self._tickets[digest_of(ticket)] = _Ticket(caller, now + SECONDS)
        return ticket

    def take(self, ticket: str) -> Caller | None:
        """Return whose ticket it is, and forget it; None if it is not valid."""
        found = self._tickets.pop(digest_of(ticket), None)
        expired = found is None or found.expires <= trio.current_time()
        return None if found is None or expired else found.caller
