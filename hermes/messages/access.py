"""Who may use an agent."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from hermes.messages.inbox import Source

Role: TypeAlias = Literal["guest", "user", "operator"]
ROLES: tuple[Role, ...] = ("guest", "user", "operator")
"""In ascending order: each role includes the ones before it."""


def may(role: Role, needed: Role) -> bool:
    """Return whether a role includes the needed one."""
    return ROLES.index(role) >= ROLES.index(needed)


class Principal(msgspec.Struct, frozen=True):
    """A paired user. `name` is self-declared and unverified."""

    platform: str
    account: str
    user_id: str
    role: Role
    name: str | None
    paired_at: float


class Pairing(msgspec.Struct, frozen=True):
    """A pending pairing request: an unknown user holds a code that an operator can approve."""

    source: Source
    session_key: str
    asked_at: float
    expires_at: float


class PairingRejected(msgspec.Struct, frozen=True):
    """No request has this code; `left` attempts remain, or none for `seconds`."""

    left: int
    seconds: float = 0.0


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who may sign in to the web page."""

    namespace: str
    """The id of the person, to whom all sessions with it belong."""
    name: str
    role: Role
