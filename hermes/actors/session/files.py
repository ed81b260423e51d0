"""Files that come with messages and go with replies."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import trio
from msgspec.structs import replace

from hermes.config import AttachmentLimits
from hermes.errors import AttachmentRefused, HermesError, StoreError, UnknownFile
from hermes.messages import (
    Attachment,
    InboxRow,
    JsonObject,
    Message,
    Outbound,
    Source,
    StoredFile,
    TurnCommit,
    file_id_of,
)
from hermes.outbound import outbox_rows
from hermes.protocols import FileReader, FileStore
from hermes.sanitize import one_line, scrub
from hermes.session_keys import payer_of
from hermes.transcript.attachments import check_url, describe
from hermes.transcript.calls import open_calls
from hermes.user_code import loggable

log: logging.Logger = logging.getLogger(__name__)

DISCARD_SECONDS: Final = 10.0
CHUNK: Final = 1 << 20
NOT_ATTACHED: Final = "it could not be attached"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class TurnFiles(Protocol):
    """The files of a turn."""

    @property
    def turn_id(self) -> int: ...
    async def open_file(self, file_id: str) -> FileReader: ...
    async def put_file(self, attachment: Attachment) -> StoredFile: ...


async def put_attachments(
    store: FileStore,
    session_key: str,
    principal: str | None,
    attachments: Sequence[Attachment],
    limits: AttachmentLimits,
) -> list[JsonObject]:
    """Store the files of a message that is about to be stored, and return their parts.

    Raises `AttachmentRefused` if one cannot be stored; then none is.
    """
    if len(attachments) > limits.message_files:
        most = f"a message can have {limits.message_files} files, not {len(attachments)}"
        raise AttachmentRefused(most)
    parts: list[JsonObject] = []
    try:
        for each in attachments:
            if each.url is None:
                file = await store.put_file(each, session_key=session_key, principal=principal)
                parts.append(file.part)
            else:
                check_url(each.url)
                parts.append({"type": "image", "url": each.url})
    except BaseException:
        await discard_files(store, session_key, parts)
        raise
    return parts


def principal_of(source: Source | None) -> str | None:
    """Return whose limits the files of a sender count for; None for an unknown one."""
    known = source is not None and source.user_id is not None
    return payer_of(source.platform, source.user_id) if source and known else None


async def discard_files(
    store: FileStore, session_key: str, parts: Sequence[JsonObject] | None
) -> None:
    """Delete files of a message that was not accepted, unless others name them."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + DISCARD_SECONDS):
        for part in parts or ():
            if (file_id := file_id_of(part)) is not None:
                with suppress(HermesError):  # a sweep deletes it later
                    await store.discard_file(file_id, session_key=session_key)


async def keep_file(turn: TurnFiles, file: Attachment | StoredFile) -> StoredFile | str:
    """Store a file of an answer, or find it; if that is impossible, return a line that says so.

    The rest of the answer is not lost then. The log has the reason, without texts of other code.
    """
    try:
        if isinstance(file, StoredFile):
            return (await turn.open_file(file.id)).file
        return await turn.put_file(file)
    except (AttachmentRefused, UnknownFile, StoreError) as error:
        reason = str(error) if error.__cause__ is None else loggable(error.__cause__)
        log.warning("a file of turn %d is left out: %s", turn.turn_id, reason)
        name = file.name if isinstance(file, StoredFile) else file.file_name
        return describe({"type": "file", "name": one_line(scrub(name or ""))}, NOT_ATTACHED)


def with_files(
    commit: TurnCommit, kept: Sequence[Attachment | StoredFile], row: InboxRow
) -> TurnCommit:
    """Return the commit with files: in the last row of the assistant, the reply and the outbox.

    `kept` is what `keep_file` has returned; `row` is the message that is replied to. The row of
    the assistant may have calls of a client's tools, which wait for their results; nothing may
    follow it then.
    """
    assert commit.reply is not None
    files = [file for file in kept if isinstance(file, StoredFile)]
    parts = tuple(file.part for file in files)
    rows, last = list(commit.rows), len(commit.rows) - 1
    if open_calls(rows):
        last = max(index for index, each in enumerate(rows) if each.role == "assistant")
    elif not rows or rows[last].role != "assistant" or rows[last].tool_calls:
        rows.append(Message("assistant", None))
        last = len(rows) - 1
    rows[last] = replace(rows[last], parts=(*(rows[last].parts or ()), *parts))
    reply = replace(commit.reply, files=tuple(files))
    return replace(commit, rows=rows, reply=reply, outbox=_with_files(commit, parts, row))


def _with_files(
    commit: TurnCommit, parts: Sequence[JsonObject], row: InboxRow
) -> Sequence[Outbound]:
    """Return the replies, the last of which has the files; none for the client of an API."""
    assert commit.reply is not None
    request = row.inbound.request
    source = row.inbound.source if request is None else request.deliver
    if source is None:  # an API client gets the reply, and no adapter sends it
        return commit.outbox
    outbox = list(commit.outbox)
    if not commit.reply.text:
        key, session_id = commit.session_key, commit.reply.session_id
        to = row.inbound.platform_message_id
        outbox += outbox_rows(source, key, session_id, "", "reply", to)
    outbox[-1] = replace(outbox[-1], body={**outbox[-1].body, "files": list(parts)})
    return outbox


async def save_file(reader: FileReader, path: str | os.PathLike[str]) -> Path:
    """Write a stored file to a new file, piece by piece, and return its path.

    Raises `FileExistsError` if the path exists. No file is left if this fails or is cancelled.
    """
    target = Path(path)
    descriptor = await trio.to_thread.run_sync(os.open, target, _NEW_FILE, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            await _copy(reader, opened.write)
    except BaseException:
        target.unlink()  # noqa: ASYNC240 - quick, and also after a cancellation
        raise
    return target


async def _copy(reader: FileReader, write: Callable[[bytes], object]) -> None:
    offset, size = 0, reader.file.size
    while offset < size:
        chunk = await reader.read(offset, CHUNK)  # never empty: that would be a damaged file
        await trio.to_thread.run_sync(write, chunk)
        offset += len(chunk)
