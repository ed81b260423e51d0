"""Estimate the size of messages in tokens, without a tokenizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from hermes.messages import JsonObject, Message, StoredMessage
from hermes.transcript.attachments import MAX_TEXT, describe, form_of, is_attachment

AnyMessage: TypeAlias = Message | StoredMessage

# Weights are counted in eighths of a token, so that they add up without rounding.
TOKEN = 8
_PER_MESSAGE = 4 * TOKEN
_PER_CALL = 8 * TOKEN
_BINARY = 1_500 * TOKEN  # about what providers charge for a large image
_BINARY_TYPES = (
    "image", "image_url", "input_image", "audio", "input_audio", "video", "video_url",
    "input_video", "file", "input_file", "base64", "url",
)  # fmt: skip

# Images: the higher of what the large providers count, after they have scaled them down.
_IMAGE = 1_600
_SIDE, _PIXELS_PER_TOKEN = 1568, 750
_LONG_SIDE, _SHORT_SIDE, _TILE = 2048, 768, 512
_TILE_TOKENS, _TILED_IMAGE = 170, 85
# About 50 kB and 2,000 tokens a page; 16 kB and 10 tokens a second.
_PDF_BYTES, _PDF = 25, (2_000, 40_000)
_AUDIO_BYTES, _AUDIO = 1_600, (100, 20_000)
_REASON = 12


def estimate_tokens(messages: Sequence[AnyMessage]) -> int:
    """Estimate how many tokens a provider counts for the messages."""
    return math.ceil(sum(map(weight, messages)) / TOKEN)


def weight(message: AnyMessage) -> int:
    """Return the estimated size of a message, in eighths of a token."""
    content = message.content
    words = _text_weight(content) if content else 0
    total = _PER_MESSAGE + words
    if message.tool_calls:
        for call in message.tool_calls:
            total += _PER_CALL + _text_weight(call.name) + _text_weight(call.arguments)
    if message.parts:
        total += _parts_weight(message.parts, words)
    return total


def _text_weight(text: str) -> int:
    """Four ASCII characters are one token; others count by their bytes, so a CJK one is a token."""
    if text.isascii():
        return 2 * len(text)
    return 3 * len(text.encode(errors="surrogatepass")) - len(text)


def _parts_weight(parts: Sequence[JsonObject], content: int) -> int:
    """Return what the parts add to content of this weight, which often repeats their text."""
    words = rest = 0
    for part in parts:
        text = part.get("text")
        if isinstance(text, str):
            words += _text_weight(text)
        elif is_attachment(part):
            rest += file_tokens(part) * TOKEN
        else:
            rest += _json_weight(part)
    return max(0, words - content) + rest


def file_tokens(part: JsonObject) -> int:
    """Estimate how many tokens a provider counts for an attachment.

    A file whose type no model takes, or a text that is too long, counts by its description.
    """
    size = part.get("size")
    size = size if isinstance(size, int) else 0
    match form_of(part):
        case "image" | "url":
            return _image_tokens(part.get("width"), part.get("height"))
        case "pdf":
            return min(max(size // _PDF_BYTES, _PDF[0]), _PDF[1])
        case "audio":
            return min(max(size // _AUDIO_BYTES, _AUDIO[0]), _AUDIO[1])
        case "text" if size <= MAX_TEXT:
            return math.ceil(size / 4)
        case _:
            return _REASON + math.ceil(_text_weight(describe(part)) / TOKEN)


def _image_tokens(width: object, height: object) -> int:
    """Return the tokens of an image with these dimensions, which may be unknown."""
    if not (isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0):
        return _IMAGE
    long, short = max(width, height), min(width, height)
    by_pixels = math.ceil(width * height * min(1.0, _SIDE / long) ** 2 / _PIXELS_PER_TOKEN)
    scale = min(1.0, _LONG_SIDE / long, _SHORT_SIDE / short)
    tiles = math.ceil(long * scale / _TILE) * math.ceil(short * scale / _TILE)
    return max(min(by_pixels, _IMAGE), _TILED_IMAGE + _TILE_TOKENS * tiles)


def _json_weight(value: object) -> int:
    """Return the weight of any JSON value, keys included; binary data has a flat weight."""
    total = 0
    stack = [value]  # iterative: a message may be nested deeper than Python's stack
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            total += _BINARY if _is_data_url(item) else _text_weight(item)
        elif isinstance(item, dict):
            if item.get("type") in _BINARY_TYPES:
                total += _BINARY
            else:
                stack += [*item, *item.values()]
        elif isinstance(item, list | tuple):
            stack += item
        else:
            total += TOKEN
    return total


def _is_data_url(text: str) -> bool:
    return text.startswith("data:") and ";base64," in text[:200]
