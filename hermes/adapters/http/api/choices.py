"""`GET /api/choices`: the commands and agents that a client can offer to its user."""

from __future__ import annotations

import msgspec
import trio
from starlette.responses import Response

from hermes.actors.commands import COMMANDS
from hermes.adapters.http.credentials import PLATFORM
from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.messages import AttachmentKind, Role, may
from hermes.texts import help_line


class CommandChoice(msgspec.Struct):
    """A command: `usage` shows its arguments, `help` says what it does."""

    name: str
    usage: str
    help: str


class AgentName(msgspec.Struct):
    """An agent that may answer a conversation: its setting `agent`."""

    name: str
    model: str
    takes: tuple[AttachmentKind, ...]
    """What the model takes beside text."""


class Choices(msgspec.Struct):
    """What the caller may choose. Without a catalog of agents, there is only the default one."""

    commands: list[CommandChoice]
    agents: list[AgentName]


async def choices(call: Call) -> Response:
    """List the commands and the agents that the caller may use."""
    await trio.lowlevel.checkpoint()
    role: Role = "operator" if call.caller.has_role("operator") else "user"
    commands = [
        CommandChoice(name, *help_line(call.runtime.texts, name))
        for name, command in COMMANDS.items()
        if may(role, command.role) and command.platform in {None, PLATFORM}
    ]
    agents = [
        AgentName(each.name, each.model, each.takes)
        for each in call.runtime.api.list_agents(call.caller.source("choices"))
    ]
    return json_response(Choices(commands, agents))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET", path="/api/choices", handle=choices, result=Choices,
        summary="List the commands and the agents that the caller may use.",
    ),
)  # fmt: skip
