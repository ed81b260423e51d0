"""The table of methods: params, result and handler of each. The schema is generated from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import msgspec

from hermes.adapters.jsonrpc import types as t
from hermes.adapters.jsonrpc.handlers import Handlers


@attrs.frozen
class Method:
    """A method of the protocol."""

    params: type[t.Params]
    result: type[msgspec.Struct]
    run: Callable[[Handlers, Any], Awaitable[msgspec.Struct]]
    in_order: bool = False
    """Whether calls for one session run one after the other; otherwise they run concurrently."""
    replayable: bool = True
    """Whether the response can be replayed."""

    @property
    def summary(self) -> str:
        """The first paragraph of the handler's docstring."""
        return (self.run.__doc__ or "").split("\n\n")[0]


METHODS: Mapping[str, Method] = {
    "session.create": Method(t.CreateParams, t.CreateResult, Handlers.create),
    "session.attach": Method(t.AttachParams, t.AttachResult, Handlers.attach),
    "session.resume": Method(t.ResumeParams, t.ResumeResult, Handlers.resume),
    "session.status": Method(t.SessionParams, t.StatusResult, Handlers.status),
    "session.list": Method(t.ListParams, t.ListResult, Handlers.list),
    "session.title": Method(t.TitleParams, t.TitleResult, Handlers.title, in_order=True),
    "session.history": Method(t.HistoryParams, t.HistoryResult, Handlers.history),
    "session.branch": Method(t.BranchParams, t.BranchResult, Handlers.branch),
    "session.undo": Method(t.UndoParams, t.UndoResult, Handlers.undo),
    "session.compress": Method(t.CompressParams, t.CompressResult, Handlers.compress),
    "session.interrupt": Method(t.SessionParams, t.InterruptResult, Handlers.interrupt),
    "session.steer": Method(t.SteerParams, t.SubmitResult, Handlers.steer, in_order=True),
    "session.close": Method(t.SessionParams, t.CloseResult, Handlers.close),
    "session.delete": Method(t.DeleteParams, t.DeleteResult, Handlers.delete),
    "prompt.submit": Method(t.SubmitParams, t.SubmitResult, Handlers.submit, in_order=True),
    "events.replay": Method(t.ReplayParams, t.ReplayResult, Handlers.replay, replayable=False),
}
