"""The table of methods: what each takes, gives and does. The schema is made of exactly this."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import msgspec

from hermes.adapters.jsonrpc import types as v
from hermes.adapters.jsonrpc.handlers import Conversations


@attrs.frozen
class Method:
    """A method. Those `in_order` of one session are done one after the other, the rest at once."""

    params: type[v.Params]
    result: type[msgspec.Struct]
    run: Callable[[Conversations, Any], Awaitable[msgspec.Struct]]
    in_order: bool = False
    kept: bool = True
    """Whether its answer can be replayed."""

    @property
    def summary(self) -> str:
        """What it does, in its own words."""
        return (self.run.__doc__ or "").split("\n\n")[0]


METHODS: Mapping[str, Method] = {
    "session.create": Method(v.Create, v.Created, Conversations.create),
    "session.resume": Method(v.Resume, v.Resumed, Conversations.resume),
    "session.list": Method(v.List, v.Sessions, Conversations.list),
    "session.title": Method(v.Title, v.Titled, Conversations.title, in_order=True),
    "session.history": Method(v.History, v.Transcript, Conversations.history),
    "session.branch": Method(v.Branch, v.Branched, Conversations.branch),
    "session.undo": Method(v.Undo, v.Undone, Conversations.undo),
    "session.compress": Method(v.Compress, v.Compressed, Conversations.compress),
    "session.interrupt": Method(v.Session, v.Interrupted, Conversations.interrupt),
    "session.steer": Method(v.Steer, v.Submitted, Conversations.steer, in_order=True),
    "session.close": Method(v.Session, v.Closed, Conversations.close),
    "session.delete": Method(v.Delete, v.Deleted, Conversations.delete),
    "prompt.submit": Method(v.Prompt, v.Submitted, Conversations.submit, in_order=True),
    "events.replay": Method(v.Replay, v.Replayed, Conversations.replay, kept=False),
}
