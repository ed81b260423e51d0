"""`python -m hermes.store`: look after a file of conversations.

Exit codes: 0 done, 1 nothing was found or `check` found problems, 2 wrong usage, 3 the data cannot
be used, 4 failed while working, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from hermes.config import data_path
from hermes.errors import BadImport, HermesError, StoreRefused
from hermes.sanitize import sanitize
from hermes.store.cli import commands, show
from hermes.store.cli.output import NoTables, require_rich

Run: TypeAlias = Callable[[argparse.Namespace], int]
Add: TypeAlias = Callable[[str, Run, str], argparse.ArgumentParser]
_UNITS = {"m": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0, "y": 365.0}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        if not options.json:
            require_rich()
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has seen enough; what is left must not be written at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stderr.write("Interrupted; what was finished before stays.\n")
        return 130
    except (HermesError, OSError) as error:
        sys.stderr.write(f"{sanitize(str(error))}\n")
        return _code_of(error)
    return code


def _code_of(error: Exception) -> int:
    if isinstance(error, NoTables):
        return 2
    return 3 if isinstance(error, StoreRefused | BadImport) else 4


def _days(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([mhdwy]?)", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; say 90d, 12h or 2w")
    return float(found[1]) * _UNITS[found[2] or "d"]


def _number(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _common(path: object, json: object) -> argparse.ArgumentParser:
    """What may stand before the command or after it."""
    common = argparse.ArgumentParser(add_help=False)
    where = f"the file ({data_path()})".replace("%", "%%")
    common.add_argument("--db", type=Path, default=path, metavar="FILE", help=where)
    common.add_argument("--json", action="store_true", default=json, help="JSON, for programs")
    return common


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m hermes.store",
        parents=[_common(data_path(), json=False)],
        description="Look after a file of conversations.",
        epilog="exit codes: 0 done, 1 nothing found or check found problems, 2 wrong usage, "
        "3 the data cannot be used, 4 failed while working, 130 interrupted",
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    common = _common(argparse.SUPPRESS, json=argparse.SUPPRESS)

    def command(name: str, run: Run, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, parents=[common], help=text, description=text)
        added.set_defaults(run=run)
        return added

    _add_showing(command)
    _add_moving(command)
    _add_caring(command)
    return parser


def _add_showing(command: Add) -> None:
    one = command("list", show.list_, "the conversations, latest first")
    one.add_argument("--key", help="only those of this session_key")
    one.add_argument("--platform", help="only those of this platform")
    one.add_argument("--limit", type=_number, default=20, help="at most so many (%(default)s)")
    which = one.add_mutually_exclusive_group()
    which.add_argument("--ended", action="store_true", help="only those that have ended")
    which.add_argument("--open", action="store_true", help="only those that go on")

    one = command("show", show.show, "a conversation, to read")
    one.add_argument("session", help="its id, the beginning of it, or its title")
    one.add_argument("--all", action="store_true", help="with what it was compressed from")
    one.add_argument("--rewound", action="store_true", help="with what was taken back")

    one = command("search", show.search, "messages that contain the words")
    one.add_argument("words", nargs="+", help='words, "a phrase", AND, OR, NOT, begin*')
    one.add_argument("--key", help="only of this session_key")
    one.add_argument("--role", help="only of this role")
    one.add_argument("--limit", type=_number, default=20, help="at most so many (%(default)s)")


def _add_moving(command: Add) -> None:
    one = command("export", commands.export, "conversations as JSON lines, with every row")
    one.add_argument("sessions", nargs="*", help="ids, beginnings of ids, or titles")
    one.add_argument("--all", action="store_true", help="every session of the file")
    one.add_argument("-o", "--output", default="-", help="a file that does not exist; - is stdout")

    one = command(
        "import", commands.import_, "sessions from JSON lines, or from a hermes-agent home"
    )
    one.add_argument("source", help="a file of `export` (- is stdin), or a home or its state.db")

    one = command("backup", commands.backup, "copy the file while it is in use")
    one.add_argument("target", type=Path, help="a file that does not exist")


def _add_caring(command: Add) -> None:
    one = command("prune", commands.prune, "delete conversations that ended long ago")
    one.add_argument("--older-than", type=_days, default=90.0, help="an age such as 90d (90d)")
    one.add_argument("--platform", help="only those of this platform")
    one.add_argument("--dry-run", action="store_true", help="only say what would be deleted")

    command("check", commands.check, "look for damage")
    command("vacuum", commands.vacuum, "give free space back; nobody else may use the file")
    one = command("migrate", commands.migrate, "bring the file to the schema of this version")
    one.add_argument("--dry-run", action="store_true", help="only say what would be done")


if __name__ == "__main__":
    sys.exit(main())
