"""Files that come with messages and go with replies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio
from msgspec.structs import replace

from hermes.config import AttachmentLimits
from hermes.errors import AttachmentRefused, HermesError
from hermes.messages import (
    Attachment,
    Inbound,
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
from hermes.protocols import FileStore
from hermes.session_keys import payer_of
from hermes.validation import require_instance

DISCARD_SECONDS: Final = 10.0


async def store_attachments(
    store: FileStore, inbound: Inbound, attachments: Sequence[Attachment], limits: AttachmentLimits
) -> Inbound:
    """Store the files of a message that is about to be accepted, and return it with their parts.

    Raises `AttachmentRefused` if one cannot be stored; then none is.
    """
    if len(attachments) > limits.message_files:
        most = f"a message can have {limits.message_files} files, not {len(attachments)}"
        raise AttachmentRefused(most)
    principal, parts = principal_of(inbound.source), list[JsonObject]()
    try:
        for each in attachments:
            require_instance("an attachment", each, Attachment)
            if each.url is not None:
                parts.append({"type": "image", "url": each.url})
                continue
            file = await store.put_file(each, session_key=inbound.session_key, principal=principal)
            parts.append(file.part)
    except BaseException:
        await discard_files(store, inbound.session_key, parts)
        raise
    return replace(inbound, parts=(*(inbound.parts or ()), *parts))


def principal_of(source: Source | None) -> str | None:
    """Return whose limits a file counts for; None if the sender is unknown."""
    if source is None or not source.user_id:
        return None
    return payer_of(source.platform, source.user_id)


async def discard_files(
    store: FileStore, session_key: str, parts: Sequence[JsonObject] | None
) -> None:
    """Delete files of a message that was not accepted, unless others name them."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + DISCARD_SECONDS):
        for part in parts or ():
            if (file_id := file_id_of(part)) is not None:
                with suppress(HermesError):  # a sweep deletes it later
                    await store.discard_file(file_id, session_key=session_key)


def with_files(commit: TurnCommit, files: Sequence[StoredFile], row: InboxRow) -> TurnCommit:
    """Return the commit with files: in the last row of the assistant, the reply and the outbox.

    `row` is the message that is replied to.
    """
    assert commit.reply is not None
    parts = tuple(file.part for file in files)
    rows, last = list(commit.rows), len(commit.rows) - 1
    if rows and rows[last].role == "assistant" and not rows[last].tool_calls:
        rows[last] = replace(rows[last], parts=(*(rows[last].parts or ()), *parts))
    else:
        rows.append(Message("assistant", None, parts=parts))
    reply = replace(commit.reply, files=tuple(files))
    return replace(commit, rows=rows, reply=reply, outbox=_with_files(commit, parts, row))


def _with_files(
    commit: TurnCommit, parts: Sequence[JsonObject], row: InboxRow
) -> Sequence[Outbound]:
    """Return the replies, the last of which has the files."""
    assert commit.reply is not None
    outbox = list(commit.outbox)
    if not commit.reply.text:
        source, key, session_id = row.inbound.source, commit.session_key, commit.reply.session_id
        to = row.inbound.platform_message_id
        outbox += outbox_rows(source, key, session_id, "", "reply", to)
    outbox[-1] = replace(outbox[-1], body={**outbox[-1].body, "files": list(parts)})
    return outbox
