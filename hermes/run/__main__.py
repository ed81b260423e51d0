"""`python -m hermes.run`: the standalone bot.

Without a configuration: a chat in the terminal, with a model where OPENAI_API_KEY or
OPENAI_BASE_URL is set (OPENAI_MODEL names it) or --model is given, else with the offline agent.

Exit codes: 0 it ended as it was told to, and all was answered; 1 a turn failed; 2 wrong usage or
settings; 3 the data cannot be used; 4 the store failed while running; 5 no platform is left that
could be served; 130 ended at once by a second signal, or left by Ctrl-C. With --status: 0 a bot
runs on this data, 1 none does, 3 that cannot be told.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import trio

from hermes.errors import StoreFailed, StoreRefused
from hermes.run import references
from hermes.run.status import report
from hermes.settings import EXAMPLE, BadSettings, Problem, Settings, located, read

try:
    from hermes.run.app import Front, Kept, Stopped, place_of, run_bot
    from hermes.run.logs import Form, configure
except ModuleNotFoundError as missing:
    sys.stderr.write(
        f"The bot needs the package {missing.name}: pip install 'hermes-runtime[bot]'\n"
    )
    sys.exit(2)

KINDS = ("offline", "openai", "anthropic")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bot; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.json and not options.status:
        parser.error("--json goes with --status")
    if options.no_console and options.stdio:
        parser.error("--stdio has no console anyway; take --no-console out")
    if options.example_config:
        sys.stdout.write(EXAMPLE)
        return 0
    with _kept(options) as kept:
        return _main(options, kept)


def _main(options: argparse.Namespace, kept: Kept) -> int:
    try:
        text = "" if options.config is None else _text(options.config)
        settings = read(text, _said(options), os.environ)
        if options.status:  # who asks need not have the bot's keys and functions
            return _tell(settings, "json" if options.json else "text")
        if problems := located(references.unresolved(settings), text):
            return _complain(problems, options)
    except BadSettings as bad:
        return _complain(bad.problems, options)
    if options.check_config:
        sys.stdout.write(f"{options.config or 'What is set'} is in order.\n")
        return 0
    return _run(settings, _front(options), kept)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("hermes.run", description="A chat bot that keeps every word.")
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="the settings, in TOML")
    add("--db", type=Path, metavar="FILE", help="where the conversations are kept")
    add("--agent", choices=KINDS, help="what answers")
    add("--model", metavar="NAME", help="which model answers")
    add("--no-console", action="store_true", help="without a chat in the terminal")
    add("--stdio", action="store_true", help="speak JSON-RPC over standard input and output")
    add("--log", choices=("text", "json"), help="the form of the log, on standard error")
    add("--status", action="store_true", help="how the bot on this data is doing")
    add("--json", action="store_true", help="with --status: as JSON")
    add("--check-config", action="store_true", help="explain what is wrong with the settings")
    add("--example-config", action="store_true", help="print settings with every key, explained")
    return parser


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise BadSettings([Problem(0, "", f"it cannot be read: {why}")]) from None
    except UnicodeDecodeError:
        raise BadSettings([Problem(0, "", "it is not UTF-8 text")]) from None


def _said(options: argparse.Namespace) -> dict[str, Any]:
    said: dict[str, Any] = {}
    agent = {"kind": options.agent, "model": options.model}
    for name, table in (("agent", agent), ("log", {"form": options.log})):
        if kept := {key: value for key, value in table.items() if value is not None}:
            said[name] = kept
    if options.db is not None:
        said["data"] = str(options.db)
    return said


def _kept(options: argparse.Namespace) -> AbstractContextManager[Kept]:
    """Frames alone go to standard output, also while the settings' own modules are imported."""
    if not options.stdio or options.status or options.check_config:
        return nullcontext()
    from hermes.adapters.jsonrpc.stdio import reserved  # noqa: PLC0415 - only here

    return reserved()


def _front(options: argparse.Namespace) -> Front:
    if options.stdio:
        return "stdio"
    return "none" if options.no_console else "console"


def _tell(settings: Settings, form: Form) -> int:
    text, code = report(place_of(settings), form)
    sys.stdout.write(f"{text}\n")
    return code


def _complain(problems: Sequence[Problem], options: argparse.Namespace) -> int:
    for each in problems:
        sys.stderr.write(f"{options.config or 'settings'}: {each}\n")
    return 2


def _run(settings: Settings, front: Front, kept: Kept) -> int:
    usual = "warning" if front == "console" else "info"
    configure(
        form=settings.log.form,
        level=settings.log.level or usual,
        secrets=references.secrets(settings),
        stream=sys.stderr,
    )
    try:
        return 0 if trio.run(run_bot, settings, front, kept) else 1
    except Stopped as stopped:
        return stopped.code
    except BadSettings as bad:
        sys.stderr.write(f"{bad}\n")
        return 2
    except StoreRefused as refusal:
        sys.stderr.write(f"{refusal}\n")
        return 3
    except StoreFailed as failure:
        sys.stderr.write(f"The store failed: {failure}\n")
        return 4
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
