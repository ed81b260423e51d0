"""What an actor does besides waiting."""

from __future__ import annotations

from hermes.actors.context import RuntimeContext
from hermes.actors.session.agent_cache import AgentCache
from hermes.actors.session.route_state import RouteState


class Part:
    """A part of an actor that keeps nothing; made where it is needed: idle actors are many."""

    __slots__ = ("_cache", "_context", "_key", "_place")

    def __init__(
        self, session_key: str, context: RuntimeContext, place: RouteState, cache: AgentCache
    ) -> None:
        self._key = session_key
        self._context = context
        self._place = place
        self._cache = cache
