"""The commands that users can send, and how a message is recognized as one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from hermes.messages import Inbound, Role, WhenBusy
from hermes.texts import Texts

CommandMode: TypeAlias = Literal["message", "now", "stops", "waits", "steers"]
"""How a command relates to a running turn.

`now` runs beside it, `stops` interrupts it and cancels what is queued, `waits` runs after it;
`message` and `steers` carry a message for the next or the running turn.
"""

Commands: TypeAlias = bool | Literal["all"]
"""Whether a text that starts with a known command is a command. "all": also with an unknown one."""

_COMMAND = re.compile(r"/([^\W\d_]+)(?:@\S+)?(?:\s+(.*))?", re.DOTALL)


class Command(msgspec.Struct, frozen=True):
    """A command: its mode, and who may use it. `Texts` has its help."""

    mode: CommandMode
    role: Role = "user"
    """The role it needs, if there is an access policy."""
    platform: str | None = None
    """The platform that has it; None for all of them."""


COMMANDS: Mapping[str, Command] = {
    "new": Command("stops", "guest"),
    "resume": Command("waits"),
    "sessions": Command("now"),
    "search": Command("now"),
    "delete": Command("waits"),
    "export": Command("now"),
    "title": Command("now"),
    "branch": Command("waits"),
    "compress": Command("waits"),
    "retry": Command("waits", "guest"),
    "undo": Command("waits", "guest"),
    "stop": Command("stops", "guest"),
    "queue": Command("message", "guest"),
    "steer": Command("steers", "guest"),
    "background": Command("now"),
    "approve": Command("waits"),
    "deny": Command("waits"),
    "model": Command("now"),
    "tools": Command("now"),
    "status": Command("now"),
    "usage": Command("now"),
    "help": Command("now", "guest"),
    "whoami": Command("now", "guest"),
    "pair": Command("waits", "operator"),
    "unpair": Command("waits", "operator"),
    "attach": Command("now", platform="console"),
    "detach": Command("now", platform="console"),
    "save": Command("now", platform="console"),
    "quit": Command("now", "guest", platform="console"),
    "start": Command("now", "guest", platform="telegram"),
}
ALIASES = {"reset": "new", "compact": "compress", "exit": "quit"}


class ParsedCommand(msgspec.Struct, frozen=True):
    """A known command and its argument."""

    name: str
    argument: str


def parse(text: str, platform: str | None = None) -> ParsedCommand | None:
    """Return the command in a text; None if it is not a known command.

    With a `platform`, commands of other platforms are unknown.
    """
    found = _COMMAND.fullmatch(text)
    if found is None:
        return None
    name = ALIASES.get(found[1].lower(), found[1].lower())
    if name not in COMMANDS or (platform and COMMANDS[name].platform not in {None, platform}):
        return None
    return ParsedCommand(name, (found[2] or "").strip())


def unknown(text: str, platform: str, texts: Texts) -> str:
    """Return the answer to a command that does not exist, with the one that was probably meant."""
    command = (text.split() or ["/"])[0][:50]
    name = command[1:].partition("@")[0].lower()
    known = [each for each in (*COMMANDS, *ALIASES) if parse(f"/{each}", platform) is not None]
    if close := difflib.get_close_matches(name, known, 1):
        return texts.unknown_command_meant.format(command=command, meant=f"/{close[0]}")
    return texts.unknown_command.format(command=command)


def recognize(text: str) -> tuple[str, bool]:
    """Return a text as it is sent, and whether it is a command, known or not.

    A command is `/` and a word of letters, alone or with an argument. A second `/` before it, or a
    space, sends it as a text; the `/` is removed.
    """
    if text.startswith("//") and _COMMAND.fullmatch(text, 1):
        return text[1:], False
    return text, _COMMAND.fullmatch(text) is not None


def with_command(inbound: Inbound, commands: Commands) -> Inbound:
    """Return a message of a host, marked as a command if it is one."""
    return _marked(inbound, commands) if commands and inbound.text.startswith("/") else inbound


def _marked(inbound: Inbound, commands: Commands) -> Inbound:
    if commands == "all":
        text, command = recognize(inbound.text)
        return replace(inbound, text=text, command=command)
    command = parse(inbound.text, inbound.source.platform) is not None
    return replace(inbound, command=command)


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
