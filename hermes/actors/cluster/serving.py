"""Which node does what a caller asks of a conversation."""

from __future__ import annotations

from typing import Protocol

from hermes.actors.session.actor import SessionActor
from hermes.errors import NotOwner
from hermes.messages import Claim
from hermes.protocols import Cluster


class Actors(Protocol):
    """The actors of a runtime."""

    def find(self, session_key: str, /) -> SessionActor | None: ...
    def actor(self, session_key: str, claim: Claim | None, /) -> SessionActor: ...


async def serve(actors: Actors, cluster: Cluster, session_key: str) -> SessionActor:
    """Return the actor of a key. If no node serves its conversation, this one does from now on.

    Raises `NotOwner` if another node serves it.
    """
    if actors.find(session_key) is not None:
        return actors.actor(session_key, None)
    claim = await cluster.claim(session_key)
    if claim is not None and claim.node != cluster.node:
        raise NotOwner(f"{session_key} is served by node {claim.node}")
    return actors.actor(session_key, claim)
