"""What tests of a runtime share."""

from __future__ import annotations

import pytest

from hermes.events import TurnEnded

SECONDS = 30
"""How long a test may wait before it fails."""

inline_only = pytest.mark.parametrize("workers", ["inline"])
"""Run a test with the inline store only: threads make no difference to it."""

with_threads = pytest.mark.parametrize("workers", ["threads", "inline"])
"""Run a test twice: with a store in threads, as in production, and with an inline store."""


async def reply_to(subscription, receipt):
    """Wait for the end of the turn of this message, and return its reply."""
    async for envelope in subscription:
        event = envelope.event
        if isinstance(event, TurnEnded) and event.reply.turn_id == receipt.inbox_id:
            return event.reply
    raise AssertionError("the runtime ended")


threads_only = pytest.mark.parametrize("workers", ["threads"])
"""Run a test with a store in threads only."""
