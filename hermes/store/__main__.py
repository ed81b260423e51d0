"""`python -m hermes.store`: administer a database of conversations.

Exit codes: 0 success, 1 nothing found or `check` found problems, 2 invalid usage, 3 the database or
the input cannot be used, 4 the operation failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NoReturn, TypeAlias

from hermes.config import data_path, database_of, shown_database
from hermes.errors import AmbiguousTitle, BadImport, HermesError, StoreRefused
from hermes.sanitize import sanitize
from hermes.standard_output import run_command
from hermes.store.cli import check, commands, copy, files, prune, show
from hermes.store.cli.ages import AGE_HELP, days
from hermes.store.cli.output import RichMissing, require_rich

Run: TypeAlias = Callable[[argparse.Namespace], int]
Add: TypeAlias = Callable[[str, Run, str], argparse.ArgumentParser]
_LIMIT_HELP = "maximum number of rows (default %(default)s)"


def main(
    arguments: Sequence[str] | None = None,
    *,
    prog: str = "python -m hermes.store",
    default: Path | str | None = None,
) -> int:
    """Run one command, and return the exit code.

    Args:
        arguments: The arguments; by default those of the process.
        prog: The name of the program in its help.
        default: The database if `--db` is not given; by default that of `data_path`.
    """
    options = _parser(prog, data_path() if default is None else default).parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        if not options.json:
            require_rich()
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        if options.run is commands.export:  # whoever reads it must notice that it is not complete
            sys.stderr.write("The output was closed before the export was complete.\n")
            return 4
        return 0
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        start = "\n" if sys.stderr.isatty() else ""  # after the ^C of the terminal
        sys.stderr.write(f"{start}Interrupted; completed steps are kept.\n")
        return 130
    except (HermesError, OSError) as error:
        sys.stderr.write(f"{sanitize(str(error))}\n")
        _discard_output()
        return _code_of(error)
    return code


def _discard_output() -> None:
    """Discard what is still in the buffer of stdout, which could not be written at exit either."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _code_of(error: Exception) -> int:
    if isinstance(error, RichMissing | AmbiguousTitle):
        return 2
    return 3 if isinstance(error, StoreRefused | BadImport) else 4


def _number(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _common(database: Path | str, path: object, json: object) -> argparse.ArgumentParser:
    """Return a parser for the options that are allowed before and after the command.

    `path` and `json` are the defaults of the options, and `database` is the default that is shown.
    """
    common = argparse.ArgumentParser(add_help=False)
    shown = shown_database(database).replace("%", "%%")
    help_ = f"the database: a file, or a URL of PostgreSQL (default {shown})"
    common.add_argument("--db", type=database_of, default=path, metavar="DATABASE", help=help_)
    common.add_argument("--json", action="store_true", default=json, help="print JSON")
    return common


class _Parser(argparse.ArgumentParser):
    """A parser that suggests a command for one that does not exist."""

    commands: Collection[str] = ()

    def error(self, message: str) -> NoReturn:
        """Exit with the message."""
        unknown = re.match(r"argument command: invalid choice: '(\w+)'", message)
        if unknown is None:
            super().error(message)
        from hermes.settings.installation import command  # noqa: PLC0415 - rarely needed

        close = difflib.get_close_matches(unknown[1], self.commands, 1)
        hint = f"did you mean {close[0]}?" if close else f"to see all: {command('store --help')}"
        self.exit(2, f"{self.prog}: there is no command {unknown[1]!r}; {hint}\n")


def _parser(prog: str, default: Path | str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog,
        parents=[_common(default, default, json=False)],
        description="Administer a database of conversations.",
        epilog="exit codes: 0 success, 1 nothing found or check found problems, 2 invalid usage, "
        "3 the database or the input cannot be used, 4 the operation failed, 130 interrupted",
    )
    commands = parser.add_subparsers(
        required=True, metavar="command", parser_class=argparse.ArgumentParser
    )
    common = _common(default, argparse.SUPPRESS, json=argparse.SUPPRESS)

    def command(name: str, run: Run, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, parents=[common], help=text, description=text)
        added.set_defaults(run=run)
        return added

    _add_show_commands(command)
    _add_transfer_commands(command)
    _add_maintenance_commands(command)
    parser.commands = commands.choices
    return parser


def _add_key(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--session-key", "--key", dest="key", metavar="KEY", help=text)


def _add_platform(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--platform",
        type=_platform,
        help="only conversations of this platform, such as telegram; console and rpc are chats",
    )


def _platform(text: str) -> str:
    if text in {"chat", "client"}:
        both = "console (a chat) or rpc (clients, hermes -p and attached chats)"
        raise argparse.ArgumentTypeError(f"{text!r} is stored as another name: {both}")
    return text


def _add_show_commands(command: Add) -> None:
    parser = command("list", show.list_, "list conversations, latest first")
    _add_key(parser, "only conversations of this session_key")
    _add_platform(parser)
    parser.add_argument("--limit", type=_number, default=20, help=_LIMIT_HELP)
    parser.add_argument("--archived", action="store_true", help="include archived conversations")
    parser.add_argument("--subagents", action="store_true", help="include sessions of subagents")
    state = parser.add_mutually_exclusive_group()
    state.add_argument("--ended", action="store_true", help="only conversations that have ended")
    state.add_argument("--open", action="store_true", help="only conversations that have not ended")

    parser = command("show", show.show, "print the transcript of a conversation")
    parser.add_argument("session", help="a session id, a unique prefix of one, or a title")
    _add_key(parser, "only sessions of this session_key")
    parser.add_argument(
        "--all", action="store_true", help="include the sessions before compression"
    )
    parser.add_argument("--rewound", action="store_true", help="include messages that were rewound")

    parser = command("file", files.file, "save an attached file")
    parser.add_argument("file", metavar="ID", help="the id of the file, as show prints it")
    parser.add_argument(
        "--to", type=Path, required=True, metavar="PATH", help="a new file, or a folder"
    )

    parser = command("search", show.search, "search messages")
    parser.add_argument("words", nargs="+", help='words, "a phrase", AND, OR, NOT, prefix*')
    _add_key(parser, "only messages of this session_key")
    parser.add_argument("--role", help="only messages with this role")
    parser.add_argument("--limit", type=_number, default=20, help=_LIMIT_HELP)


def _add_transfer_commands(command: Add) -> None:
    parser = command("export", commands.export, "export sessions as JSON Lines, with all messages")
    parser.add_argument("sessions", nargs="*", help="session ids, unique prefixes, or titles")
    _add_key(parser, "only named sessions of this session_key")
    parser.add_argument("--all", action="store_true", help="export all sessions")
    parser.add_argument("-o", "--output", default="-", help="a new file, or - for stdout (default)")

    parser = command("import", commands.import_, "import an export or a hermes-agent home")
    parser.add_argument(
        "source", help="an exported file, - for stdin, a hermes-agent home or its state.db"
    )

    parser = command("copy", copy.copy, "move the database to another one, or copy a snapshot")
    parser.add_argument("source", help="a file, or a URL of PostgreSQL (postgresql://HOST/NAME)")
    parser.add_argument("target", help="a new file, or the URL of an empty database")
    parser.add_argument(
        "--snapshot",
        action="store_true",
        help="copy it as it is now, while it may be in use; it is not a move",
    )

    parser = command("backup", commands.backup, "copy the database while it is in use")
    parser.add_argument("target", type=Path, help="a new file")


def _add_maintenance_commands(command: Add) -> None:
    parser = command("prune", prune.prune, "delete conversations that ended long ago")
    parser.add_argument(
        "--older-than",
        type=days,
        default=90.0,
        metavar="AGE",
        help=f"minimum age: {AGE_HELP} (default 90d)",
    )
    parser.add_argument("--yes", action="store_true", help="delete without a question")
    _add_platform(parser)
    parser.add_argument("--dry-run", action="store_true", help="only report what would be deleted")

    parser = command("archive", commands.archive, "hide a conversation from lists")
    parser.add_argument("session", help="a session id, a unique prefix of one, or a title")
    _add_key(parser, "only sessions of this session_key")
    parser.add_argument("--undo", action="store_true", help="list it again")

    parser = command("check", check.check, "check the database and attached files for damage")
    parser.add_argument(
        "--full", action="store_true", help="also read the content of all attached files"
    )
    command("vacuum", commands.vacuum, "shrink the file; it must not be in use")
    parser = command("migrate", commands.migrate, "migrate the database to the current schema")
    parser.add_argument("--dry-run", action="store_true", help="only report what would be done")


if __name__ == "__main__":
    sys.exit(run_command(main))
