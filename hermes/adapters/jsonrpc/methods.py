"""The table of methods: params, result and handler of each. The schema is generated from it."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import msgspec

from hermes.adapters.jsonrpc import types as t
from hermes.adapters.jsonrpc.events import FilePart
from hermes.adapters.jsonrpc.handlers import Handlers


@attrs.frozen
class Method:
    """A method of the protocol."""

    params: type[t.Params]
    result: type[msgspec.Struct]
    run: Callable[[Handlers, Any], Awaitable[msgspec.Struct]]
    in_order: Callable[[Any], str] | None = None
    """Names the session or upload whose calls run one after the other. Others run concurrently."""
    replayable: bool = True
    """Whether the response can be replayed."""

    @property
    def summary(self) -> str:
        """The first paragraph of the handler's docstring."""
        return (self.run.__doc__ or "").split("\n\n")[0]


_SESSION = operator.attrgetter("session_id")
_UPLOAD = operator.attrgetter("upload")
METHODS: Mapping[str, Method] = {
    "session.create": Method(t.CreateParams, t.CreateResult, Handlers.create),
    "session.attach": Method(t.AttachParams, t.AttachResult, Handlers.attach),
    "session.resume": Method(t.ResumeParams, t.ResumeResult, Handlers.resume),
    "session.status": Method(t.SessionParams, t.StatusResult, Handlers.status),
    "session.list": Method(t.ListParams, t.ListResult, Handlers.list),
    "session.title": Method(t.TitleParams, t.TitleResult, Handlers.title, in_order=_SESSION),
    "session.history": Method(t.HistoryParams, t.HistoryResult, Handlers.history),
    "session.branch": Method(t.BranchParams, t.BranchResult, Handlers.branch),
    "session.undo": Method(t.UndoParams, t.UndoResult, Handlers.undo),
    "session.compress": Method(t.CompressParams, t.CompressResult, Handlers.compress),
    "session.interrupt": Method(t.SessionParams, t.InterruptResult, Handlers.interrupt),
    "session.steer": Method(t.SteerParams, t.SubmitResult, Handlers.steer, in_order=_SESSION),
    "session.close": Method(t.SessionParams, t.CloseResult, Handlers.close),
    "session.delete": Method(t.DeleteParams, t.DeleteResult, Handlers.delete),
    "prompt.submit": Method(t.SubmitParams, t.SubmitResult, Handlers.submit, in_order=_SESSION),
    "file.begin": Method(t.BeginParams, t.BeginResult, Handlers.begin_file),
    "file.chunk": Method(t.ChunkParams, t.ChunkResult, Handlers.write_chunk, in_order=_UPLOAD),
    "file.end": Method(t.UploadParams, FilePart, Handlers.end_file, in_order=_UPLOAD),
    "file.cancel": Method(t.UploadParams, t.CancelResult, Handlers.cancel_file),
    "file.read": Method(t.ReadParams, t.ReadResult, Handlers.read_file, replayable=False),
    "events.replay": Method(t.ReplayParams, t.ReplayResult, Handlers.replay, replayable=False),
}
