"""Look inside a runtime, for tests that check what no verb shows."""

from __future__ import annotations

import attrs

from hermes.actors.context import RuntimeContext
from hermes.actors.runtime import Runtime
from hermes.actors.session.actor import SessionActor
from hermes.actors.supervisor import Supervisor
from hermes.events import RuntimeEvent
from hermes.messages import Accepted, Head
from hermes.protocols import Store


@attrs.frozen
class Inspection:
    """The inner state of a runtime: `inspect(runtime)`."""

    context: RuntimeContext
    supervisor: Supervisor

    @property
    def store(self) -> Store:
        """The store of the runtime."""
        return self.context.store

    @property
    def waiting_callers(self) -> int:
        """How many messages have callers that wait for their reply."""
        return self.context.bus.waiting

    def actor(self, session_key: str) -> SessionActor | None:
        """Return the actor of a conversation, if there is one now."""
        return self.supervisor.find(session_key)

    def baseline(self, session_key: str, session_id: str) -> Head | None:
        """Return the baseline of a session in the agent cache of a conversation."""
        actor = self.actor(session_key)
        return None if actor is None else actor.state.cache.baseline(session_id)

    def publish(self, session_key: str, turn_id: int | None, event: RuntimeEvent) -> None:
        """Publish an event."""
        self.context.bus.publish(session_key, turn_id, event)

    def deliver(self, accepted: Accepted) -> None:
        """Hand an accepted message to its actor, as the store does."""
        self.supervisor.deliver(accepted)

    async def wait_idle(self, session_key: str) -> None:
        """Wait until the actor of a conversation, if there is one, has nothing to do."""
        actor = self.actor(session_key)
        if actor is not None:
            await actor.wait_idle()

    async def wait_recovered(self) -> None:
        """Wait until the conversations of an earlier process have been woken."""
        await self.supervisor.wait_recovered()

    async def wait_sent(self) -> None:
        """Wait until all replies have been sent."""
        await self.supervisor.wait_sent()


def inspect(runtime: Runtime) -> Inspection:
    """Return the inner state of a runtime."""
    return Inspection(runtime._context, runtime._supervisor)  # noqa: SLF001 - its purpose
