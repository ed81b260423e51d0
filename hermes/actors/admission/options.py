"""The options of a message, and the checks of what a host or an adapter passes."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Sequence
from typing import TypedDict, TypeVar, get_args
from uuid import uuid4

from hermes.actors.commands import Commands, with_command
from hermes.messages import APPROVAL, Attachment, Inbound, JsonObject, Source, WhenBusy
from hermes.transcript.validate import stored_metadata
from hermes.validation import require_instance, require_string, require_timeout

F = TypeVar("F", bound=Callable[..., object])


class MessageOptions(TypedDict, total=False):
    """The keyword arguments of `ask` and `stream`. All of them are optional."""

    parts: Sequence[JsonObject] | None
    """A structured form of the message, for agents that understand it, with or without a text."""
    attachments: Sequence[Attachment] | None
    """Files to send with the message, with or without a text."""
    source: Source | None
    """Where the message comes from; by default the platform is "embedded"."""
    event_id: str | None
    """Identifies the message within its conversation, so that a repeated call is not answered
    twice."""
    when_busy: WhenBusy | None
    """What to do if a turn is running; by default the configuration decides."""
    commands: Commands
    """Whether a text that starts with a known command is a command (the default), or a text. With
    "all", any `/word` is a command: an unknown one is answered, and `//word` sends `/word`."""
    metadata: JsonObject | None
    """What the host wants to find again, such as a tenant or a trace id: a dict of JSON values, of
    at most 4096 bytes. It reaches the turn, its events, the hooks, the log and the reply."""
    timeout: float | None
    """Seconds to wait for the reply once the message is accepted; by default there is no limit."""


_OPTIONS = frozenset(MessageOptions.__annotations__)
_UNCHECKED = frozenset({"source", "commands"})
_NAMED = (
    "session_key",
    "event_id",
    "text",
    "source.platform",
    "source.account",
    "source.chat_type",
)
_NAMES = operator.attrgetter(*_NAMED)
_IDENTIFIED = (
    "source.chat_id", "source.thread_id", "source.user_id", "source.user_name",
    "platform_message_id", "edits",
)  # fmt: skip
_IDS = operator.attrgetter(*_IDENTIFIED)
_FREE = re.compile(f"(?!{APPROVAL}:).", re.DOTALL).match
"""Matches the id of an event, unless it is empty or may be reserved."""


def takes_options(function: F) -> F:
    """Show the fields of `MessageOptions` in the signature of a function, for `help()`."""
    signature = inspect.signature(function)
    *own, _ = signature.parameters.values()
    named = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=True if name == "commands" else None,
            annotation=hint.__forward_arg__,
        )
        for name, hint in MessageOptions.__annotations__.items()
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*own, *named])
    return function


def make_inbound(session_key: str, text: str, options: MessageOptions) -> Inbound:
    """Return the message of a host; a text that starts like a known command is a command.

    Raises `TypeError` for an unknown option or a field of the wrong type, and `ValueError` if the
    message is empty or a field is not valid.
    """
    parts, source = options.get("parts"), options.get("source")
    if not text or not options.keys() <= _UNCHECKED:
        _check_options(text, options)
    source = Source() if source is None else source
    inbound = Inbound(
        session_key, options.get("event_id") or uuid4().hex, text, source,
        parts=None if parts is None else tuple(parts), when_busy=options.get("when_busy"),
        per_conversation=True, metadata=options.get("metadata") or {},
    )  # fmt: skip
    require_valid(inbound)
    return with_command(inbound, options.get("commands", True))


def _check_options(text: object, options: MessageOptions) -> None:
    for unknown in sorted(options.keys() - _OPTIONS):
        raise TypeError(f"{unknown!r} is not an option of a message: {', '.join(sorted(_OPTIONS))}")
    require_string("text", text)
    parts, event_id = options.get("parts"), options.get("event_id")
    _check_parts(parts)
    require_attachments(options.get("attachments"))
    if not (text or parts or options.get("attachments")):
        raise ValueError("the message is empty: pass a text, attachments or parts")
    if event_id is not None:
        require_event_id(event_id)
    if options.get("metadata") is not None:
        stored_metadata(options["metadata"])
    when_busy, known = options.get("when_busy"), get_args(WhenBusy)
    if when_busy not in (None, *known):
        raise ValueError(f"when_busy is one of {', '.join(known)}, or None, not {when_busy!r:.50}")
    require_timeout(options.get("timeout"))


def require_valid(inbound: Inbound) -> None:
    """Raise `TypeError` or `ValueError` if a field is not valid: 42 and "42" would be two users."""
    given: object = inbound
    plain = isinstance(given, Inbound) and isinstance(given.source, Source)
    plain = plain and all(isinstance(value, str) for value in _NAMES(inbound))
    plain = plain and all(isinstance(value, str | None) for value in _IDS(inbound))
    if not (plain and _FREE(inbound.event_id) and inbound.parts is None and inbound.metadata == {}):
        _check_fields(inbound)


def _check_fields(inbound: Inbound) -> None:
    require_instance("a message", inbound, Inbound)
    require_instance("source", inbound.source, Source)
    for name, value in zip(_NAMED, _NAMES(inbound), strict=True):
        require_string(name, value)
    for name, value in zip(_IDENTIFIED, _IDS(inbound), strict=True):
        require_string(name, "" if value is None else value)
    require_event_id(inbound.event_id)
    if inbound.decided_call is not None:
        raise ValueError(
            f"event_id {inbound.event_id!r} is reserved: Hermes itself uses ids of this form for "
            "decisions about tool calls"
        )
    _check_parts(inbound.parts)
    stored_metadata(inbound.metadata)


def require_event_id(event_id: object) -> None:
    """Raise `TypeError` or `ValueError` if this cannot be the id of an event."""
    require_string("event_id", event_id)
    if not event_id:
        raise ValueError("event_id must not be empty; None means that there is none")


def require_attachments(attachments: object) -> None:
    """Raise `TypeError` unless this is a list of attachments, or None."""
    if attachments is None:
        return
    if not isinstance(attachments, Sequence):
        raise TypeError(f"attachments must be a list of hermes.Attachment, not {attachments!r:.50}")
    for each in attachments:
        require_instance("an attachment", each, Attachment)


def _check_parts(parts: object) -> None:
    if parts is None:
        return
    if not (isinstance(parts, Sequence) and all(isinstance(part, dict) for part in parts)):
        raise TypeError(f"parts must be a list of dicts, not {parts!r:.50}")
