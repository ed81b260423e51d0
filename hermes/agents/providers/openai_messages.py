"""Messages in the format of chat completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes.agents.providers.attachments import (
    SENT,
    Acceptance,
    data,
    described,
    described_parts,
    file_slot,
    has_attachments,
    inline_text,
    name_of,
)
from hermes.agents.providers.base import Endpoint
from hermes.agents.providers.tool_calls import arguments_json, valid_name
from hermes.messages import JsonObject, Message
from hermes.transcript.attachments import form_of, is_attachment
from hermes.transcript.render import NO_ANSWER, parts_of

_ANTHROPIC_REASONING = frozenset({"thinking", "redacted_thinking"})
BELOW = "in the next message"
_AUDIO_FORMATS = {"audio/mpeg": "mp3", "audio/mp3": "mp3"}


def to_json(
    messages: Sequence[Message], acceptance: Acceptance, endpoint: Endpoint
) -> Iterator[JsonObject]:
    """Yield messages as JSON objects.

    A tool message takes text only, so the files of tool results follow in a user message.
    """
    files: list[object] = []
    for message in messages:
        if files and message.role != "tool":
            yield from _shown(files, endpoint)
            files = []
        if message.parts and has_attachments(message):
            encoded, more = _with_attachments(message, acceptance)
            files += more
            yield encoded
        else:
            yield _encoded(message)
    if files:
        yield from _shown(files, endpoint)


def _encoded(message: Message) -> JsonObject:
    if message.role == "tool":
        return _tool_result(message, message.content or "")
    encoded: JsonObject = {"role": message.role}
    encoded["content"] = list(parts_of(message)) if message.parts else message.content
    if message.tool_calls:
        encoded["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": valid_name(call), "arguments": arguments_json(call)},
            }
            for call in message.tool_calls
        ]
    details = [
        each for each in message.reasoning_details if each.get("type") not in _ANTHROPIC_REASONING
    ]
    if details:
        encoded["reasoning_details"] = details
    elif message.reasoning and message.tool_calls:  # some models resume their reasoning from it
        encoded["reasoning_content"] = message.reasoning
    return encoded


def _tool_result(message: Message, text: str) -> JsonObject:
    return {"role": "tool", "tool_call_id": message.tool_call_id or "", "content": text}


def _with_attachments(
    message: Message, acceptance: Acceptance
) -> tuple[JsonObject, Sequence[object]]:
    """Return a message with attachments, and the parts that follow in another message."""
    if message.role == "user":
        content = [_part(part, acceptance) for part in parts_of(message)]
        return {"role": "user", "content": content}, ()
    if message.role == "tool":
        return _tool_files(message, acceptance)
    texts = [str(part.get("text") or "") for part in described_parts(message, SENT)]
    return {**_encoded(message), "content": "\n\n".join(filter(None, texts))}, ()


def _tool_files(message: Message, acceptance: Acceptance) -> tuple[JsonObject, Sequence[object]]:
    texts, files = [message.content or ""], list[object]()
    for part in message.parts or ():
        if not is_attachment(part):
            continue
        if (text := acceptance.text_instead(part)) is None:
            text = described(part, BELOW)
            files.append(_attachment(part))
        texts.append(text["text"])
    return _tool_result(message, "\n".join(filter(None, texts))), files


def _shown(files: Sequence[object], endpoint: Endpoint) -> Iterator[JsonObject]:
    """Yield a message with files; before it, one that makes the roles alternate, if they must."""
    if endpoint.alternate_roles:
        yield {"role": "assistant", "content": NO_ANSWER}
    yield {"role": "user", "content": files}


def _part(part: JsonObject, acceptance: Acceptance) -> object:
    """Return a part of a user message."""
    if not is_attachment(part):
        return part
    return acceptance.text_instead(part) or _attachment(part)


def _attachment(part: JsonObject) -> object:
    media_type = str(part.get("media_type"))
    encoded = data(f"data:{media_type};base64,")
    match form_of(part):
        case "image":
            block = {"type": "image_url", "image_url": {"url": encoded}}
        case "pdf":
            file = {"filename": name_of(part) or "file.pdf", "file_data": encoded}
            block = {"type": "file", "file": file}
        case "audio":
            audio = {"data": data(), "format": _AUDIO_FORMATS.get(media_type, "wav")}
            block = {"type": "input_audio", "input_audio": audio}
        case "text":
            return inline_text(part)
        case _:
            block = {"type": "image_url", "image_url": {"url": data(part["url"])}}
            return file_slot(part, block, "url")
    return file_slot(part, block, "base64")
