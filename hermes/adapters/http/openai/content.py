"""The content of messages: texts, images and files in OpenAI's formats."""

from __future__ import annotations

import binascii
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import trio

from hermes.adapters.http.endpoints import Call
from hermes.adapters.http.errors import ApiError, file_error, unsupported
from hermes.adapters.http.openai.uploads import readable_key
from hermes.errors import AttachmentRefused, UnknownFile
from hermes.messages import Attachment, ConversationSettings, JsonObject, StoredFile
from hermes.transcript.attachments import check_url

TEXTS = frozenset({"input_text", "output_text", "text", "refusal"})
IMAGES = frozenset({"input_image", "image_url"})
FILES = frozenset({"input_file", "file"})
AUDIO = "input_audio"
PIECE = 1 << 20
"""Characters of base64 that are decoded at a time; a multiple of 4."""
NO_ADDRESSES = (
    "is the address of an image, which the agent's model does not take; send the image itself, as "
    "a data URL"
)
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


@attrs.frozen
class Content:
    """What a message says: its text, and its parts if it has more than a text."""

    text: str
    parts: tuple[JsonObject, ...] = ()


async def read_content(
    call: Call,
    key: str,
    content: str | Sequence[dict[str, Any]],
    *,
    param: str = "content",
    agent: str | None = None,
) -> Content:
    """Return the content of a message; its files are stored for the conversation `key`.

    `param` is where the content is in the body, for errors. `agent` is the name of the agent that
    answers; None is the one of the conversation, or the one that Hermes chooses. The files are
    deleted if the request is refused, and after an hour unless a message of the conversation names
    them. Raises `ApiError`.
    """
    await trio.lowlevel.checkpoint()
    if isinstance(content, str):
        return Content(content)
    kinds = [str(part.get("type")) for part in content]
    others = [kind for kind in kinds if kind not in TEXTS]
    limit = call.runtime.api.attachment_limits().message_files
    if len(others) > limit:
        text = f"A message can have {limit} files, not {len(others)}."
        raise ApiError(400, text, code="too_many_files", param=param)
    reader = _Reader(call, key, agent)
    parts: list[JsonObject] = []
    for index, part in enumerate(content):
        parts.append(await reader.read(part, f"{param}[{index}]"))
    text = "\n\n".join(part["text"] for part in parts if part["type"] == "text")
    return Content(text, tuple(parts) if others else ())


@attrs.frozen
class _Reader:
    """Reads the parts of one message."""

    call: Call
    key: str
    agent: str | None

    async def read(self, part: JsonObject, param: str) -> JsonObject:
        """Return a part as the runtime takes it."""
        kind = str(part.get("type"))
        if kind in TEXTS:
            name = "refusal" if kind == "refusal" else "text"
            return {"type": "text", "text": _string(part, name, param)}
        if kind in IMAGES:
            return await self._image(part, param)
        if kind in FILES:
            return await self._file(part, param)
        if kind == AUDIO:
            return await self._audio(part, param)
        text = f"Parts of the type {kind[:50]!r} are not supported."
        raise ApiError(400, text, code="unsupported_part", param=f"{param}.type")

    async def _image(self, part: JsonObject, param: str) -> JsonObject:
        if part.get("file_id") is not None:
            file = await self._stored(_string(part, "file_id", param), f"{param}.file_id")
            return _of_type(file, "image", f"{param}.file_id")
        param = f"{param}.image_url"
        given = part.get("image_url")
        if isinstance(given, dict):
            given, param = given.get("url"), f"{param}.url"
        if not isinstance(given, str):
            raise ApiError(400, f"{param} must be a string.", code="invalid_value", param=param)
        if given[:5].lower() != "data:":
            return await self._address(given, param)
        start = _data_start(given, param)
        return _of_type(await self._put(given, start, None, param), "image", param)

    async def _address(self, url: str, param: str) -> JsonObject:
        """Return the part of an image on the web, if the provider of the agent fetches it."""
        with _about(param):
            check_url(url)
        runtime, source = self.call.runtime, self.call.caller.source("files")
        settings = await runtime.conversation(self.key).settings()
        if self.agent is not None:
            settings = ConversationSettings(agent=self.agent)
        known = runtime.api.current_agent(settings, source)
        taken = self.call.services.config.image_urls if known is None else "url" in known.takes
        if not taken:
            raise unsupported(param, NO_ADDRESSES)
        return {"type": "image", "url": url}

    async def _file(self, part: JsonObject, param: str) -> JsonObject:
        fields = part.get("file") if part.get("type") == "file" else part
        if fields is not part:
            param = f"{param}.file"
        if not isinstance(fields, dict):
            raise ApiError(400, f"{param} must be an object.", code="invalid_value", param=param)
        if fields.get("file_url") is not None:
            why = "is not supported: Hermes fetches no files; send the file itself as file_data"
            raise unsupported(f"{param}.file_url", why)
        if fields.get("file_id") is not None:
            return (await self._stored(_string(fields, "file_id", param), f"{param}.file_id")).part
        name = None if fields.get("filename") is None else _string(fields, "filename", param)
        data, param = _string(fields, "file_data", param), f"{param}.file_data"
        start = _data_start(data, param) if data[:5].lower() == "data:" else 0
        return (await self._put(data, start, name, param)).part

    async def _audio(self, part: JsonObject, param: str) -> JsonObject:
        param = f"{param}.{AUDIO}"
        fields = part.get(AUDIO)
        if not isinstance(fields, dict):
            raise ApiError(400, f"{param} must be an object.", code="invalid_value", param=param)
        data, kind = _string(fields, "data", param), _string(fields, "format", param)
        file = await self._put(data, 0, f"audio.{kind[:10]}", f"{param}.data")
        return _of_type(file, "audio", f"{param}.data")

    async def _put(self, data: str, start: int, name: str | None, param: str) -> StoredFile:
        """Store a file that is given in base64."""
        source = self.call.caller.source("files")
        conversation = self.call.runtime.conversation(self.key, source=source)
        with _about(param):
            attachment = Attachment(chunks=_decoded(data, start), name=name)
            file = await conversation.put_file(attachment)
        self.call.new_files.append((self.key, file.id))
        return file

    async def _stored(self, file_id: str, param: str) -> StoredFile:
        """Return a file that the caller has uploaded before, as a file of this conversation."""
        with _about(param):
            key = await readable_key(self.call, file_id, first=self.key)
            if key == self.key:
                return (await self.call.runtime.conversation(key).open_file(file_id)).file
            source = self.call.caller.source("files")
            return await self.call.runtime.api.copy_file(
                file_id, session_key=key, to=self.key, source=source
            )


def _string(fields: JsonObject, name: str, param: str) -> str:
    value, param = fields.get(name), f"{param}.{name}"
    if not isinstance(value, str):
        raise ApiError(400, f"{param} must be a string.", code="invalid_value", param=param)
    return value


def _data_start(url: str, param: str) -> int:
    """Return where the content of a data URL begins."""
    found = _DATA_URL.match(url)
    if found is None:
        text = f"{param} is not a data URL in base64, such as data:image/png;base64,…."
        raise ApiError(400, text, code="invalid_value", param=param)
    return found.end()


async def _decoded(data: str, start: int) -> AsyncIterator[bytes]:
    """Yield the bytes of a text in base64, piece by piece."""
    padding = data.find("=", start)
    if 0 <= padding < len(data) - 2:
        raise AttachmentRefused("the file is not valid base64")
    for at in range(start, len(data), PIECE):
        try:
            yield binascii.a2b_base64(data[at : at + PIECE], strict_mode=True)
        except ValueError:
            raise AttachmentRefused("the file is not valid base64") from None


def _of_type(file: StoredFile, kind: str, param: str) -> JsonObject:
    """Return the part of a file; its type is recognized by its bytes."""
    if file.type != kind:
        text = f"{param} is not {'an image' if kind == 'image' else 'a sound'}: its bytes are "
        raise ApiError(400, f"{text}{file.media_type}.", code="wrong_type", param=param)
    return file.part


@contextmanager
def _about(param: str) -> Iterator[None]:
    """Raise `ApiError` with the parameter's name if its file is refused or unknown."""
    try:
        yield
    except (AttachmentRefused, UnknownFile) as error:
        raise file_error(error, param) from None
