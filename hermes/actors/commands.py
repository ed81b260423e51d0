"""The commands that users can send, and how a message is recognized as one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from hermes.messages import Inbound, Role, WhenBusy

CommandMode: TypeAlias = Literal["message", "now", "stops", "waits", "steers"]
"""How a command relates to a running turn.

`now` runs beside it, `stops` interrupts it and cancels what is queued, `waits` runs after it;
`message` and `steers` carry a message for the next or the running turn.
"""

_COMMAND = re.compile(r"\s*/([a-z]+)(?:@\S+)?(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)


class Command(msgspec.Struct, frozen=True):
    """A command: its mode, its help text, and who may use it."""

    mode: CommandMode
    usage: str
    summary: str
    role: Role = "user"
    """The role it needs, if there is an access policy."""


COMMANDS: Mapping[str, Command] = {
    "new": Command("stops", "/new [title]", "start a new conversation (also /reset)", "guest"),
    "resume": Command("waits", "/resume [number, id or title]", "go back to a conversation"),
    "sessions": Command("now", "/sessions", "list your conversations"),
    "title": Command("now", "/title [title]", "show or set the title"),
    "branch": Command("waits", "/branch [title]", "continue in a copy of this conversation"),
    "compress": Command(
        "waits", "/compress [here N | focus]", "summarize the older part (also /compact)"
    ),
    "retry": Command("waits", "/retry", "answer your last message again", "guest"),
    "undo": Command("waits", "/undo [number]", "take back your last messages and replies", "guest"),
    "stop": Command("stops", "/stop", "stop the answer and cancel queued messages", "guest"),
    "queue": Command(
        "message", "/queue <text>", "send a message after the current answer", "guest"
    ),
    "steer": Command("steers", "/steer <text>", "send a message into the current answer", "guest"),
    "background": Command("now", "/background <text>", "run a task in the background"),
    "approve": Command("waits", "/approve [number]", "allow a tool call, once"),
    "deny": Command("waits", "/deny [number]", "refuse a tool call"),
    "status": Command("now", "/status", "show the state of this conversation"),
    "usage": Command("now", "/usage", "show tokens and cost so far"),
    "help": Command("now", "/help", "show the commands", "guest"),
    "whoami": Command("now", "/whoami", "show who you are here", "guest"),
    "pair": Command("waits", "/pair [code [role]]", "let someone in, or list requests", "operator"),
    "unpair": Command("waits", "/unpair <platform> <user id>", "remove a user", "operator"),
}
ALIASES = {"reset": "new", "compact": "compress"}


class ParsedCommand(msgspec.Struct, frozen=True):
    """A known command and its argument."""

    name: str
    argument: str


def parse(text: str) -> ParsedCommand | None:
    """Return the command in a text; None if it is not a known command."""
    found = _COMMAND.fullmatch(text)
    if found is None:
        return None
    name = ALIASES.get(found[1].lower(), found[1].lower())
    return ParsedCommand(name, (found[2] or "").strip()) if name in COMMANDS else None


def interpret(inbound: Inbound) -> tuple[CommandMode, Inbound]:
    """Return how a command relates to a running turn, and the message inside it.

    `/queue` and `/steer` carry a message; any other command is returned unchanged.
    """
    parsed = parse(inbound.text)
    mode = "now" if parsed is None else COMMANDS[parsed.name].mode
    if parsed is None or mode not in {"message", "steers"}:
        return mode, inbound
    if not parsed.argument:
        return "now", inbound  # there is no message: the reply explains the command
    when_busy: WhenBusy = "queue" if mode == "message" else "steer"
    return mode, replace(inbound, text=parsed.argument, command=False, when_busy=when_busy)
