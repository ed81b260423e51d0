"""The command `hermes`: finds the subcommand, and imports only what that needs."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

import hermes
from hermes.standard_output import run_command

Run: TypeAlias = Callable[[Sequence[str]], int]

SIMILAR_WORD = 0.6
SAME_WORD = 0.8
"""How similar the first of several words must be to a command: "what" is no "chat"."""
PLAIN = re.compile(r"[\w ,.:;?'-]+")
"""Text that a shell does not change within double quotation marks."""

HELP = """\
usage: hermes [command] [options]

Run chat agents: in the terminal, on chat platforms, or behind an editor.

commands:
  chat      chat in the terminal; the default
  run       run the bot on the platforms of the configuration, without a chat in the terminal
  status    print the status of a running bot
  reload    let a running bot read its configuration again
  store     list, search, export, back up and repair conversations
  web       open the web page of a running bot, signed in; list and revoke its sessions
  tokens    create, list and revoke bearer tokens of the HTTP API
  setup     connect a model: writes a configuration and starts a chat
  doctor    check the installation, the configuration and everything it names

`hermes -p "question"` prints the answer and exits.
`hermes COMMAND --help` describes the options of a command. `hermes --version` prints the version.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. `arguments` are by default those of the process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: _main(words))


def _main(words: list[str]) -> int:
    first = words[0] if words else "chat"
    if first in {"--version", "-V"}:
        sys.stdout.write(f"hermes {hermes.__version__}\n")
        return 0
    if first in {"--help", "-h", "help"}:
        sys.stdout.write(HELP)
        return 0
    if first.startswith("-"):
        return _chat(words)
    if first not in COMMANDS:
        sys.stderr.write(f"hermes: there is no command {first!r}; {_hint(words)}\n")
        return 2
    return COMMANDS[first](words[1:])


def _hint(words: list[str]) -> str:
    """Return what to type instead: a command with a similar name, or the words as a question."""
    from hermes.settings.installation import command  # noqa: PLC0415 - rarely needed

    is_question = len(words) > 1 and not any(word.startswith("-") for word in words)
    cutoff = SAME_WORD if is_question else SIMILAR_WORD
    if close := difflib.get_close_matches(words[0], COMMANDS, 1, cutoff):
        return f"did you mean {close[0]}?"
    if is_question:
        text = " ".join(words)
        quoted = f'"{text}"' if PLAIN.fullmatch(text) else shlex.quote(text)
        return f"to ask a question: {command('-p')} {quoted}"
    return f"to see all: {command('--help')}"


def _chat(arguments: Sequence[str]) -> int:
    from hermes.run.__main__ import CHAT, main as run  # noqa: PLC0415 - it imports the whole bot

    return run(arguments, CHAT)


def _run(arguments: Sequence[str]) -> int:
    from hermes.run.__main__ import RUN, main as run  # noqa: PLC0415

    return run(arguments, RUN)


def _reload(arguments: Sequence[str]) -> int:
    from hermes.cli.reload import main as reload  # noqa: PLC0415

    return reload(arguments)


def _status(arguments: Sequence[str]) -> int:
    from hermes.cli.status import main as status  # noqa: PLC0415

    return status(arguments)


def _store(arguments: Sequence[str]) -> int:
    from hermes.cli.store import main as store  # noqa: PLC0415

    return store(arguments)


def _tokens(arguments: Sequence[str]) -> int:
    from hermes.cli.tokens import main as tokens  # noqa: PLC0415

    return tokens(arguments)


def _web(arguments: Sequence[str]) -> int:
    from hermes.cli.web import main as web  # noqa: PLC0415

    return web(arguments)


def _setup(arguments: Sequence[str]) -> int:
    from hermes.cli.setup import main as setup  # noqa: PLC0415

    return setup(arguments)


def _doctor(arguments: Sequence[str]) -> int:
    from hermes.cli.doctor import main as doctor  # noqa: PLC0415

    return doctor(arguments)


COMMANDS: dict[str, Run] = {
    "chat": _chat,
    "run": _run,
    "status": _status,
    "reload": _reload,
    "store": _store,
    "web": _web,
    "tokens": _tokens,
    "setup": _setup,
    "doctor": _doctor,
}
