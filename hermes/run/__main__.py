"""The command line of the bot, `python -m hermes.run`; see `--help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, get_args

import trio

from hermes.errors import StoreBusy, StoreFailed, StoreRefused, StoreUnavailable
from hermes.run.references import check_references, secret_values
from hermes.run.status import report
from hermes.settings import Problem, Settings, SettingsError, example_config, load, with_lines
from hermes.settings.schema import AgentKind, LogForm
from hermes.store.files.problems import RETRY, is_temporary
from hermes.user_code import describe

try:
    from hermes.run.app import Frontend, ReservedStdio, Stopped, database_path, run_bot
    from hermes.run.logs import configure
except ModuleNotFoundError as _missing:
    sys.stderr.write(
        f"The bot needs the package {_missing.name}: pip install 'hermes-runtime[bot]'\n"
    )
    sys.exit(2)

DESCRIPTION = """\
Run a chat bot: in the terminal, on the platforms of the configuration, or over JSON-RPC.

Without a configuration it opens a chat in the terminal. A model answers if OPENAI_API_KEY or
OPENAI_BASE_URL is set or --model is given; otherwise the built-in offline agent does.
"""
EPILOG = """\
exit codes:
  0    finished or stopped as requested
  1    a turn failed
  2    invalid usage or configuration
  3    the database cannot be used
  4    the database failed while the bot was running
  5    no platform is left to serve, for example because a token was revoked
  6    --stdio ended before all accepted messages were answered
  70   an internal error, for example because memory ran out; a restart may help
  75   the database or the configuration cannot be opened now; a restart may help
  130  stopped at once by a second signal, or left with Ctrl-C

exit codes of --status:
  0    the bot is running
  1    the bot is not running, or hangs
  3    the database cannot be read
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.json and not options.status:
        parser.error("--json requires --status")
    if options.no_console and options.stdio:
        parser.error("--no-console has no effect with --stdio; remove it")
    if options.example_config:
        sys.stdout.write(example_config())
        return 0
    with _reserve_stdio(options) as stdio:
        return _main(options, stdio)


def _main(options: argparse.Namespace, stdio: ReservedStdio) -> int:
    try:
        text = "" if options.config is None else _read(options.config)
        settings = load(text, _overrides(options), os.environ)
        if options.status:  # needs neither the secrets nor the functions of the bot
            return _print_status(settings, json=options.json)
        if problems := with_lines(check_references(settings), text):
            return _print_problems(problems, options)
    except SettingsError as error:
        return _print_problems(error.problems, options)
    except OSError as error:
        if not is_temporary(error):
            raise
        sys.stderr.write(f"{options.config} cannot be read now: {error.strerror}; {RETRY}\n")
        return os.EX_TEMPFAIL
    if options.check_config:
        sys.stdout.write(f"{options.config or 'configuration'}: OK\n")
        return 0
    return _run(settings, _frontend(options), stdio)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hermes.run",
        usage="%(prog)s [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument_group("configuration").add_argument
    add("--config", type=Path, metavar="FILE", help="read the configuration from a TOML file")
    add("--db", type=Path, metavar="FILE",
        help="database file (default: ~/.local/share/hermes/state.db)")  # fmt: skip
    add("--agent", choices=get_args(AgentKind), help="kind of agent")
    add("--model", metavar="NAME", help="name of the model")
    add("--log", choices=get_args(LogForm), help="format of the log on standard error")
    add = parser.add_argument_group("interfaces").add_argument
    add("--no-console", action="store_true", help="do not open a chat in the terminal")
    add("--stdio", action="store_true", help="serve JSON-RPC on standard input and output")
    add = parser.add_argument_group("information").add_argument
    add("--status", action="store_true", help="print the status of a running bot and exit")
    add("--json", action="store_true", help="print the status as JSON")
    add("--check-config", action="store_true", help="check the configuration and exit")
    add("--example-config", action="store_true",
        help="print an example configuration with every key and exit")  # fmt: skip
    return parser


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        if is_temporary(error):
            raise
        reason = error.strerror or type(error).__name__
        raise SettingsError([Problem(0, "", f"cannot read the file: {reason}")]) from None
    except UnicodeDecodeError:
        raise SettingsError([Problem(0, "", "the file is not UTF-8 text")]) from None


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given on the command line."""
    overrides: dict[str, Any] = {}
    agent = {"kind": options.agent, "model": options.model}
    for name, table in (("agent", agent), ("log", {"form": options.log})):
        if given := {key: value for key, value in table.items() if value is not None}:
            overrides[name] = given
    if options.db is not None:
        overrides["data"] = str(options.db)
    return overrides


def _reserve_stdio(options: argparse.Namespace) -> AbstractContextManager[ReservedStdio]:
    """Reserve standard output for JSON-RPC, before modules of the settings could print to it."""
    if not options.stdio or options.status or options.check_config:
        return nullcontext()
    from hermes.adapters.jsonrpc.stdio import reserve_stdio  # noqa: PLC0415 - rarely needed

    return reserve_stdio()


def _frontend(options: argparse.Namespace) -> Frontend:
    if options.stdio:
        return "stdio"
    return "none" if options.no_console else "console"


def _print_status(settings: Settings, *, json: bool) -> int:
    text, code = report(database_path(settings), "json" if json else "text")
    sys.stdout.write(f"{text}\n")
    return code


def _print_problems(problems: Sequence[Problem], options: argparse.Namespace) -> int:
    for problem in problems:
        sys.stderr.write(f"{options.config or 'configuration'}: {problem}\n")
    return 2


def _run(settings: Settings, frontend: Frontend, stdio: ReservedStdio) -> int:
    default_level = "warning" if frontend == "console" else "info"
    configure(
        form=settings.log.form,
        level=settings.log.level or default_level,
        secrets=secret_values(settings),
        stream=sys.stderr,
    )
    try:
        return _run_on_trio(settings, frontend, stdio)
    except Stopped as stopped:
        if stopped.reason is not None:
            sys.stderr.write(f"{stopped.reason}\n")
        return stopped.code
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (StoreRefused, StoreBusy) as error:
        sys.stderr.write(f"{error}\n")
        return os.EX_TEMPFAIL if isinstance(error, StoreUnavailable | StoreBusy) else 3
    except StoreFailed as error:
        sys.stderr.write(f"The database failed: {error}\n")
        return 4
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return 130


def _run_on_trio(settings: Settings, frontend: Frontend, stdio: ReservedStdio) -> int:
    try:
        return 0 if trio.run(run_bot, settings, frontend, stdio) else 1
    except (trio.TrioInternalError, MemoryError) as error:
        sys.stderr.write(f"The event loop failed: {describe(error.__cause__ or error)}\n")
        return os.EX_SOFTWARE


if __name__ == "__main__":
    sys.exit(main())
