"""Messages in the format of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes.agents.providers.attachments import (
    SENT,
    Acceptance,
    data,
    described_parts,
    file_slot,
    inline_text,
    name_of,
)
from hermes.agents.providers.tool_calls import arguments_object, valid_id, valid_name
from hermes.messages import JsonObject, Message
from hermes.transcript.attachments import form_of, is_attachment
from hermes.transcript.render import parts_of

_REASONING = frozenset({"thinking", "redacted_thinking"})


def to_json(messages: Sequence[Message], acceptance: Acceptance) -> Iterator[JsonObject]:
    """Yield messages as JSON objects; consecutive tool results become one user message."""
    results: list[JsonObject] = []
    for message in messages:
        if message.role == "tool":
            results.append(_tool_result(message, acceptance))
            continue
        if results:
            yield {"role": "user", "content": results}
            results = []
        yield {"role": message.role, "content": list(_blocks(message, acceptance))}
    if results:
        yield {"role": "user", "content": results}


def _tool_result(message: Message, acceptance: Acceptance) -> JsonObject:
    files = [_attachment(part, acceptance) for part in message.parts or () if is_attachment(part)]
    text = message.content or ("" if files else "(no output)")
    texts = [{"type": "text", "text": text}] if text.strip() or not files else []
    return {
        "type": "tool_result",
        "tool_use_id": valid_id(message.tool_call_id),
        "content": [*texts, *files],
    }


def _blocks(message: Message, acceptance: Acceptance) -> Iterator[object]:
    # Reasoning from models of other providers is rejected.
    yield from (each for each in message.reasoning_details if each.get("type") in _REASONING)
    if message.parts:
        yield from _parts(message, acceptance)
    elif message.content and message.content.strip():  # a blank text block is rejected
        yield {"type": "text", "text": message.content}
    for call in message.tool_calls:
        yield {
            "type": "tool_use",
            "id": valid_id(call.id),
            "name": valid_name(call),
            "input": arguments_object(call),
        }


def _parts(message: Message, acceptance: Acceptance) -> Iterator[object]:
    if message.role == "assistant":
        yield from map(_converted, described_parts(message, SENT))
        return
    for part in parts_of(message):
        yield _attachment(part, acceptance) if is_attachment(part) else _converted(part)


def _converted(part: JsonObject) -> JsonObject:
    """Convert a part in OpenAI's format to Anthropic's."""
    if part.get("type") not in {"image_url", "input_image"}:
        return part
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str):
        return part
    if url.startswith("data:") and ";base64," in url:
        media, _, encoded = url.removeprefix("data:").partition(";base64,")
        source = {"type": "base64", "media_type": media, "data": encoded}
        return {"type": "image", "source": source}
    return {"type": "image", "source": {"type": "url", "url": url}}


def _attachment(part: JsonObject, acceptance: Acceptance) -> object:
    """Return an attachment of a user message or a tool result."""
    if (text := acceptance.text_instead(part)) is not None:
        return text
    media_type, name = part.get("media_type"), name_of(part)
    source: JsonObject = {"type": "base64", "media_type": media_type, "data": data()}
    title = {"title": name} if name.strip() else {}
    match form_of(part):
        case "image":
            return file_slot(part, {"type": "image", "source": source}, "base64")
        case "pdf":
            return file_slot(part, {"type": "document", "source": source, **title}, "base64")
        case "text" if "file" in acceptance.kinds:
            source = {"type": "text", "media_type": "text/plain", "data": data()}
            return file_slot(part, {"type": "document", "source": source, **title}, "text")
        case "text":
            return inline_text(part)
        case _:
            source = {"type": "url", "url": data(part["url"])}
            return file_slot(part, {"type": "image", "source": source}, "url")
