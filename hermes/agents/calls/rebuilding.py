"""Put the body of a recorded request together again, from stored rows and texts."""

from __future__ import annotations

import msgspec

from hermes.agents.calls.recording import InjectedMessage
from hermes.agents.providers.attachments import Acceptance, acceptance_of
from hermes.agents.providers.base import Endpoint, OpenFile, with_files
from hermes.agents.providers.file_body import open_body
from hermes.agents.providers.formats import (
    AnthropicFormat,
    OpenAIFormat,
    RequestFormat,
    RequestParts,
    RequestSettings,
)
from hermes.errors import CannotRebuild
from hermes.messages import CallRows, Message, RecordedCall
from hermes.transcript.calls import open_step
from hermes.transcript.render import AlternatingRenderer, IncrementalRenderer

_decode_settings = msgspec.json.Decoder(RequestSettings).decode
_decode_injected = msgspec.json.Decoder(list[InjectedMessage]).decode


async def rebuild_request(call: RecordedCall, rows: CallRows, open_file: OpenFile) -> bytes:
    """Return the body of a request as it can be rebuilt now.

    Raises `CannotRebuild` if its settings do not exist any more, or cannot be read.
    """
    try:
        settings = _decode_settings(call.settings.text)
        injected = [] if call.injected is None else _decode_injected(call.injected.text)
    except msgspec.MsgspecError:
        raise CannotRebuild("the settings of the request do not exist any more") from None
    format_ = _format(call, settings)
    history, own = rows.history, rows.turn
    if own and own[0].role == "tool":  # as `history_and_input` does
        start = open_step(history)
        history, own = history[:start], [*history[start:], *own]
    renderer = AlternatingRenderer() if settings.alternate_roles else IncrementalRenderer()
    before = b",".join(format_.encode(renderer.add(history)))
    new = format_.encode(renderer.copy().add(own))
    suffix = [Message(each.role, each.content) for each in injected]
    encoded = format_.body(before, new, suffix)
    body = format_.acceptance.limited(with_files(encoded, open_file, frozenset(call.hidden_files)))
    if isinstance(body, bytes):
        return body
    return b"".join([chunk async for chunk in await open_body(body)])


def _format(call: RecordedCall, settings: RequestSettings) -> RequestFormat:
    tools = b"" if call.tools is None else call.tools.text.encode()
    system = None if call.system is None else call.system.text
    parts = RequestParts(bytes(settings.fields), tools, system)
    endpoint = Endpoint(
        base_url="",
        model=settings.model,
        alternate_roles=settings.alternate_roles,
        attachments=settings.attachments,
    )
    acceptance: Acceptance = acceptance_of(settings.format, endpoint)
    if settings.format == "anthropic":
        return AnthropicFormat(parts, acceptance)
    return OpenAIFormat(parts, acceptance, endpoint)
