"""What a client wants of a turn, as fields of a request to a provider.

A turn whose client wants nothing sends the same bytes as ever. Instructions are the last message of
a request, so that they do not invalidate the prompt cache, and are not stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

import attrs

from hermes.agents.providers.base import Endpoint, Provider, ProviderError
from hermes.messages import JsonObject, Message, TurnOptions

Handling: TypeAlias = Literal["passed on", "ignored", "refused"]
SAMPLING: Final[Mapping[str, tuple[Handling, Handling]]] = {
    "temperature": ("passed on", "passed on"),
    "top_p": ("passed on", "passed on"),
    "stop": ("passed on", "passed on"),
    "presence_penalty": ("passed on", "ignored"),
    "frequency_penalty": ("passed on", "ignored"),
    "seed": ("passed on", "ignored"),
    "reasoning_effort": ("passed on", "ignored"),
    "verbosity": ("passed on", "ignored"),
    "response_format": ("passed on", "refused"),
}
"""What becomes of each sampling setting with OpenAI's and with Anthropic's protocol."""
OPENAI: Final = 0
ANTHROPIC: Final = 1
AS_USER: Final = "[Instructions for this answer, from the program that sends the messages:\n{text}]"
"""Instructions for models that take no system message in the middle of a conversation."""
_NEW_LIMIT = "max_completion_tokens"
_LIMITS = ("max_tokens", _NEW_LIMIT)
_OPENAI_URL = re.compile(r"https://api\.openai\.com(?:[:/]|$)", re.IGNORECASE)


class OptionRefused(ProviderError):
    """The provider cannot do what the client of a turn wants."""


@runtime_checkable
class ConfigurableProvider(Provider, Protocol):
    """A provider that can do what the client of a turn wants."""

    def configured(self, options: TurnOptions) -> Provider:
        """Return a provider for one turn, with these options. Raises `OptionRefused`."""
        ...


def configured(provider: Provider, options: TurnOptions) -> Provider:
    """Return a provider for one turn, with these options. Raises `OptionRefused`."""
    if not isinstance(provider, ConfigurableProvider):
        raise OptionRefused(f"{provider.endpoint.title} takes no options of a client")
    return provider.configured(options)


def instructions(options: TurnOptions, endpoint: Endpoint) -> list[Message]:
    """Return the instructions of a client as the last message of a request, if there are any."""
    if options.instructions is None:
        return []
    message = Message("system", options.instructions)
    return [as_user(message)] if endpoint.alternate_roles else [message]


def as_user(message: Message) -> Message:
    """Return instructions as a message of the user."""
    return Message("user", AS_USER.format(text=message.content))


def limited(endpoint: Endpoint, options: TurnOptions) -> Endpoint:
    """Return the endpoint with the limit of a client, unless its own is lower."""
    if options.max_output_tokens is None:
        return endpoint
    limits = [options.max_output_tokens, endpoint.max_tokens]
    limits += [
        value for name, value in endpoint.parameters if name in _LIMITS and isinstance(value, int)
    ]
    return attrs.evolve(endpoint, max_tokens=min(filter(None, limits), default=None))


def openai_fields(
    options: TurnOptions, endpoint: Endpoint, tools: Sequence[JsonObject]
) -> JsonObject:
    """Return the fields of a chat completion. None: the field must be left out."""
    fields = _sampling(options, endpoint, OPENAI)
    if options.max_output_tokens is not None:
        names = {name for name, _ in endpoint.parameters}
        is_new = _NEW_LIMIT in names or _OPENAI_URL.match(endpoint.base_url)
        fields |= dict.fromkeys(_LIMITS)
        fields[_NEW_LIMIT if is_new else "max_tokens"] = endpoint.max_tokens
    if not tools:  # the API rejects the other two without tools
        return fields
    if options.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = options.parallel_tool_calls
    match options.tool_choice:
        case str() as choice:
            fields["tool_choice"] = choice
        case {"name": name}:
            fields["tool_choice"] = {"type": "function", "function": {"name": name}}
    return fields


def anthropic_fields(
    options: TurnOptions, endpoint: Endpoint, tools: Sequence[JsonObject]
) -> JsonObject:
    """Return the fields of a request of the Messages API."""
    fields = _sampling(options, endpoint, ANTHROPIC)
    if (stop := fields.pop("stop", None)) is not None:
        fields["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if options.max_output_tokens is not None:
        fields["max_tokens"] = endpoint.max_tokens
    choice: JsonObject = {}
    match options.tool_choice:
        case "auto" | "none":
            choice = {"type": options.tool_choice}
        case "required":
            choice = {"type": "any"}
        case {"name": name}:
            choice = {"type": "tool", "name": name}
    if options.parallel_tool_calls is False and choice.get("type") != "none":
        choice = {"type": "auto", **choice, "disable_parallel_tool_use": True}
    return {**fields, "tool_choice": choice} if choice and tools else fields


def _sampling(options: TurnOptions, endpoint: Endpoint, protocol: int) -> JsonObject:
    """Return the settings that a protocol has. Raises `OptionRefused` for those that matter."""
    handled = {name: SAMPLING[name][protocol] for name in options.sampling if name in SAMPLING}
    refused = [name for name, handling in handled.items() if handling == "refused"]
    if refused:
        raise OptionRefused(f"{endpoint.title} does not support {', '.join(sorted(refused))}")
    passed = [name for name, handling in handled.items() if handling == "passed on"]
    return {name: options.sampling[name] for name in passed}


def merged(request: JsonObject, fields: JsonObject) -> JsonObject:
    """Return a request with other fields; those that are None are left out."""
    return {name: value for name, value in {**request, **fields}.items() if value is not None}
