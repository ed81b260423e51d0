"""Handlers of the methods that send and read files, for one client."""

from __future__ import annotations

import binascii
from collections.abc import Sequence

import trio
from msgspec import UNSET

from hermes.actors.conversation import Conversation
from hermes.actors.runtime import Runtime
from hermes.adapters.jsonrpc import types as t
from hermes.adapters.jsonrpc.events import FilePart
from hermes.adapters.jsonrpc.files.uploads import Upload
from hermes.adapters.jsonrpc.frames import (
    BAD_PARAMS,
    FILE_REFUSED,
    MAX_LINE,
    NO_UPLOAD,
    TOO_MANY_UPLOADS,
    Refused,
)
from hermes.adapters.jsonrpc.handles import Handle, Handles
from hermes.adapters.jsonrpc.send_buffer import SendBuffer
from hermes.background import holding, start_soon
from hermes.errors import UnknownFile
from hermes.messages import Attachment, Inbound, JsonObject, Receipt

MAX_UPLOADS = 16
"""Open uploads of one client."""
NO_PATHS = (
    "Hermes reads no path that a client names; send the content as `data`, or upload it with "
    "`file.begin`."
)


class FileHandlers:
    """The methods of one client that are about files."""

    def __init__(
        self,
        runtime: Runtime,
        buffer: SendBuffer,
        handles: Handles,
        nursery: trio.Nursery,
        upload_idle: float,
    ) -> None:
        self._runtime = runtime
        self._buffer = buffer
        self._handles = handles
        self._nursery = nursery
        self._upload_idle = upload_idle
        self._uploads: dict[str, Upload] = {}
        self._reading = trio.Lock()

    def _conversation(self, handle: Handle) -> Conversation:
        return self._runtime.conversation(handle.session_key)

    async def begin_file(self, params: t.BeginParams) -> t.BeginResult:
        """Begin to upload a file to a conversation, in chunks.

        The end of the connection discards an upload that has not ended.
        """
        handle = self._handles.require(params.session_id)
        if len(self._uploads) >= MAX_UPLOADS:
            raise Refused(TOO_MANY_UPLOADS)
        upload = Upload(handle.session_key, params.name, params.size, self._upload_idle)
        self._uploads[upload.id] = upload
        start_soon(self._nursery, self._store, upload, handle)
        await upload.wait_begun()
        return t.BeginResult(upload.id)

    async def _store(self, upload: Upload, handle: Handle) -> None:
        conversation = self._runtime.conversation(handle.session_key, source=handle.source)
        try:
            await upload.run(conversation.put_file)
        finally:
            del self._uploads[upload.id]

    def _upload(self, upload_id: str) -> Upload:
        if upload_id not in self._uploads:
            raise Refused(NO_UPLOAD)
        return self._uploads[upload_id]

    async def write_chunk(self, params: t.ChunkParams) -> t.ChunkResult:
        """Add bytes to an upload; the response is sent when the bot can take the next ones.

        An upload is discarded with the first chunk that is refused.
        """
        upload = self._upload(params.upload)
        try:
            await upload.write(params.offset, _decoded(params.data, t.MAX_CHUNK))
        except Refused:
            await upload.stop()
            raise
        return t.ChunkResult(upload.received)

    async def end_file(self, params: t.UploadParams) -> FilePart:
        """Complete an upload; the file is kept for an hour, or as long as a message names it."""
        return FilePart(**(await self._upload(params.upload).finish()).part)

    async def cancel_file(self, params: t.UploadParams) -> t.CancelResult:
        """Discard an upload."""
        await self._upload(params.upload).stop()
        return t.CancelResult(cancelled=True)

    async def stop_uploads(self, handle: Handle) -> None:
        """Discard the uploads to a conversation."""
        for upload in list(self._uploads.values()):
            if upload.session_key == handle.session_key:
                await upload.stop()

    async def _accept(self, inbound: Inbound, attachments: Sequence[Attachment]) -> Receipt:
        """Submit a message. One that was accepted before may name files that are gone by now."""
        try:
            return await self._runtime.submit(inbound, attachments=attachments)
        except UnknownFile:
            key, event_id, source = inbound.session_key, inbound.event_id, inbound.source
            receipt = await self._runtime.receipt_of(key, event_id, source=source)
            if receipt is None:
                raise
            return receipt

    async def read_file(self, params: t.ReadParams) -> t.ReadResult:
        """Return bytes of a file of a conversation."""
        handle = self._handles.require(params.session_id)
        async with holding(self._reading):  # one at a time, so that few responses wait in memory
            await self._buffer.wait_writable()
            reader = await self._conversation(handle).open_file(params.file)
            data = await reader.read(params.offset, params.size)
        return t.ReadResult(**reader.file.part, data=data)


def message_parts(parts: Sequence[t.Part]) -> tuple[list[JsonObject], list[Attachment]]:
    """Return the parts of a message that name stored files or URLs, and those to be stored."""
    stored, attachments = list[JsonObject](), list[Attachment]()
    for part in parts:
        if part.path is not UNSET:
            raise Refused(BAD_PARAMS, NO_PATHS)
        if sum(each is not None for each in (part.file, part.data, part.url)) != 1:
            raise Refused(BAD_PARAMS, "A part has exactly one of `file`, `data` and `url`.")
        if part.file is not None:
            stored.append({"file": part.file})
        elif part.data is not None:
            content = _decoded(part.data, MAX_LINE)
            attachments.append(Attachment(data=content, name=part.name))
        else:
            stored.append({"type": "image", "url": part.url})
    return stored, attachments


def _decoded(data: str, most: int) -> bytes:
    """Return at most this many bytes that are given in base64."""
    if len(data) > (most + 2) // 3 * 4:
        raise Refused(FILE_REFUSED, f"A chunk has at most {most:,} bytes.")
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        raise Refused(FILE_REFUSED, "`data` is not valid base64.") from None
