"""What a conversation has cost so far, for those who may spend no more."""

from __future__ import annotations

from hermes.messages import Spent
from hermes.protocols import Store


async def spent_by(store: Store, session_id: str) -> Spent:
    """The cost of a session's conversation, and of the day of the one it belongs to."""
    session = await store.get_session(session_id)
    if session is None:
        return Spent()
    return await store.spent(session_id, session.source, session.user_id)
