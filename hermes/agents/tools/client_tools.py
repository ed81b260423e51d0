"""What the client of a turn wants of it, and the tools that the client runs itself."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence, Set as AbstractSet
from typing import TypeAlias

import attrs
from msgspec.structs import replace

from hermes.agents.providers.base import Provider
from hermes.agents.providers.options import OptionRefused, configured, instructions
from hermes.agents.tools.toolbox import Toolbox
from hermes.messages import NO_OPTIONS, Message, StoredMessage, TurnOptions
from hermes.protocols import Turn
from hermes.transcript.calls import open_step

Rows: TypeAlias = Sequence[Message | StoredMessage]

SAME_NAME = "the agent has a tool {name!r} of its own; give yours another name"
_NUMBERED = re.compile(r"(?:call_)?\d*")
"""Ids that say nothing but the position of a call in its message."""
NO_SUCH_TOOL = "tool_choice names {name!r}, and there is no such tool"


@attrs.frozen
class TurnPlan:
    """How a turn is answered: with which provider and instructions, and whose tools."""

    first: Provider
    """For the first call of the model."""
    later: Provider
    """For the calls after it. A tool that must be called is called once, or no turn would end."""
    suffix: Sequence[Message] = ()
    """The instructions of the client."""
    client_tools: frozenset[str] = frozenset()
    """The names of the tools that the client runs."""


def plan_turn(options: TurnOptions, provider: Provider, toolbox: Toolbox) -> TurnPlan:
    """Return how a turn is answered; `toolbox` has the tools of the agent.

    Raises `OptionRefused` if the client wants something that cannot be done.
    """
    if options == NO_OPTIONS:
        return TurnPlan(provider, provider)
    own = {tool["name"] for tool in toolbox.schemas}
    names = [tool["name"] for tool in options.tools]
    for name in names:
        if name in own:
            raise OptionRefused(SAME_NAME.format(name=name))
    choice = options.tool_choice
    if isinstance(choice, dict) and choice["name"] not in own | {*names}:
        raise OptionRefused(NO_SUCH_TOOL.format(name=choice["name"]))
    first = later = configured(provider, options)
    if choice == "required" or isinstance(choice, dict):
        later = configured(provider, replace(options, tool_choice=None))
    return TurnPlan(first, later, instructions(options, provider.endpoint), frozenset(names))


def with_own_ids(message: Message, names: AbstractSet[str], earlier: Rows) -> Message:
    """Return a message whose calls of a client's tools have ids of their own.

    Clients find a call by its id, in all rows of a turn. Some models number the calls of each
    message in the same way; `earlier` are the rows before it.
    """
    used = {call.id for row in earlier for call in row.tool_calls}
    calls = []
    for call in message.tool_calls:
        again = call.id in used or _NUMBERED.fullmatch(call.id)
        new = call.name in names and again
        calls.append(replace(call, id=f"call_{secrets.token_hex(12)}") if new else call)
        used.add(call.id)
    return replace(message, tool_calls=tuple(calls)) if names else message


def history_and_input(turn: Turn) -> tuple[Rows, Rows]:
    """Return the rows before a turn and those that are new in it.

    If the input answers calls of the last message, that message counts as new: it is sent together
    with the results, and what was sent before it stays the same.
    """
    history, given = turn.history, turn.input
    if not given or given[0].role != "tool":
        return history, given
    start = open_step(history)
    return history[:start], [*history[start:], *given]
