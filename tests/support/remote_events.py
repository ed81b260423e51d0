"""What subscribers on several nodes receive of one conversation, and how it compares."""

from __future__ import annotations

from hermes.actors.remote.frames import Item
from hermes.actors.remote.items import Items
from hermes.events import MessageAccepted, MessageWaiting, TextDelta, TurnEnded, TurnStarted


class Recorder:
    """Keeps what a subscription to one conversation receives."""

    def __init__(self, runtime, key, *, follow=False):
        self.envelopes = []
        self.subscription = (
            runtime.follow(key)
            if follow
            else runtime.subscribe(key, callback=self.envelopes.append)
        )

    async def read(self):
        """Read a follower until it is closed."""
        async for envelope in self.subscription:
            self.envelopes.append(envelope)

    @property
    def events(self):
        """The events in their shortest form, without announcements."""
        items = [
            Item(each.turn_id, each.event)
            for each in self.envelopes
            if not isinstance(each.event, MessageWaiting | MessageAccepted)
        ]
        return [*Items(items)]

    @property
    def ends(self):
        """The replies of the turns that have ended."""
        return [each.event.reply for each in self.envelopes if isinstance(each.event, TurnEnded)]

    @property
    def started(self):
        return [each.event for each in self.envelopes if isinstance(each.event, TurnStarted)]

    @property
    def text(self):
        """The text since the last start."""
        text = ""
        for each in self.envelopes:
            if isinstance(each.event, TurnStarted):
                text = ""
            elif isinstance(each.event, TextDelta):
                text += each.event.text
        return text
