"""The command line of the bot, `python -m hermes.run`; see `--help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any

import attrs
import trio

from hermes.errors import StoreBusy, StoreFailed, StoreRefused, StoreUnavailable
from hermes.run.configuration import (
    Configuration,
    add_agent_options,
    add_file_options,
    http_address,
    read_database,
)
from hermes.run.local_files import create_folder, local_path
from hermes.run.references import check_references, secret_values
from hermes.run.status import print_status, status_of
from hermes.settings import Settings, SettingsError, example_config
from hermes.settings.installation import missing_extra
from hermes.standard_output import run_command
from hermes.store.files.problems import RETRY, is_temporary
from hermes.user_code import describe

try:
    from hermes.run.app import (
        Frontend,
        ReservedStdio,
        Stopped,
        default_level,
        run_bot,
    )
    from hermes.run.attached import ChatOptions, chat_options
    from hermes.run.logs import at_terminal, configure, log_path, open_log_file
except ModuleNotFoundError:
    sys.stderr.write(f"{missing_extra('bot')}\n")
    sys.exit(2)

DESCRIPTION = """\
Run a chat bot: in the terminal, on the platforms of the configuration, or over JSON-RPC.
Without options it opens a chat in the terminal.
"""
CHAT_DESCRIPTION = """\
Chat with the agent in the terminal; through a pipe, each line is a message. If a bot is running
on the database, the chat attaches to it. Otherwise the platforms of the configuration, such as
Telegram, are served at the same time.
"""
RUN_DESCRIPTION = """\
Run the bot on the platforms of the configuration, such as Telegram, without a chat in the
terminal; over HTTP, with --http; or over JSON-RPC, with --stdio. `hermes chat` attaches to a
running bot.
"""
MODELS = """
A model answers if the configuration or --model names one, or if OPENAI_BASE_URL, OPENAI_API_KEY,
ANTHROPIC_API_KEY or OPENROUTER_API_KEY is set (the first of them counts); otherwise the built-in
offline agent does.
"""
EPILOG = """\
exit codes:
  0    finished or stopped as requested
  1    a turn failed (not at a terminal), or an answer cannot be written
  2    invalid usage or configuration
  3    the database cannot be used
  4    the database failed while the bot was running
  5    no platform is left to serve, for example because a token was revoked
  6    --stdio ended before all accepted messages were answered
  7    the running bot to which the chat was attached has ended
  70   an internal error, for example because memory ran out; a restart may help
  74   other output cannot be written, for example because the disk is full
  75   the database or the configuration cannot be opened now; a restart may help
  130  stopped at once by a second signal, or left with Ctrl-C

exit codes of --status:
  0    the bot is running
  1    the bot is not running, or hangs
  3    the database cannot be read
"""


@attrs.frozen
class Command:
    """A name under which this program can be started, with its help.

    Options and exit codes that are hidden make no sense for it; the help leaves them out.
    """

    prog: str
    description: str
    console: bool = True
    """Whether it opens a chat in the terminal, unless an option says otherwise."""
    hidden: frozenset[str] = frozenset()

    def epilog(self) -> str:
        """Return the exit codes."""
        if not self.hidden:
            return EPILOG
        codes = EPILOG.partition("\nexit codes of --status")[0].splitlines(keepends=True)
        return "".join(line for line in codes if not self.hidden.intersection(line.split()[:1]))


OF_A_CHAT = ("-p", "--session", "--new", "--attach", "--save")
MODULE = Command("python -m hermes.run", DESCRIPTION)
CHAT = Command(
    "hermes chat",
    CHAT_DESCRIPTION,
    hidden=frozenset({"--no-console", "--stdio", "--status", "5", "6"}),
)
RUN = Command(
    "hermes run",
    RUN_DESCRIPTION,
    console=False,
    hidden=frozenset({*OF_A_CHAT, "--no-console", "--status", "--json", "1", "7"}),
)


def main(arguments: Sequence[str] | None = None, command: Command = MODULE) -> int:
    """Run the command; returns the exit code. `arguments` are by default those of the process."""
    parser = _parser(command)
    options = parser.parse_args(arguments)
    if options.json and not options.status and options.prompt is None:
        parser.error("--json requires --status or -p")
    _check_chat_options(parser, options, console=command.console)
    if options.no_console and options.stdio:
        parser.error("--no-console has no effect with --stdio; remove it")
    if options.example_config:
        sys.stdout.write(example_config())
        return 0
    options.no_console = options.no_console or not command.console
    try:
        options.chat = chat_options(options)
    except ValueError as error:
        parser.error(str(error))
    with _reserve_stdio(options) as stdio:
        return _main(options, stdio)


def _main(options: argparse.Namespace, stdio: ReservedStdio) -> int:
    configuration = Configuration.of(options)
    try:
        # The status needs neither the secrets nor the functions of the bot.
        found = status_of(configuration) if options.status else None
        settings = Settings() if options.status else configuration.load(check_references)
    except SettingsError as error:
        return configuration.print_problems(error.problems)
    except OSError as error:
        if not is_temporary(error):
            raise
        sys.stderr.write(f"{configuration.name} cannot be read now: {error.strerror}; {RETRY}\n")
        return os.EX_TEMPFAIL
    if found is not None:
        return print_status(found, json=options.json)
    if options.check_config:
        sys.stdout.write(f"{configuration.name}: OK\n")
        return 0
    return _run(settings, configuration, _frontend(options), stdio, options.chat)


def _parser(command: Command) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=command.prog,
        usage="%(prog)s [options]",
        description=command.description + MODELS,
        epilog=command.epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("configuration")
    add_file_options(group)
    add_agent_options(group)

    def adder(title: str) -> Callable[..., None]:
        """Return a function that adds an option to a group; a hidden one is not in the help."""
        group = parser.add_argument_group(title)

        def add(*names: str, help: str, **options: Any) -> None:  # noqa: A002 - as in argparse
            shown = argparse.SUPPRESS if command.hidden.intersection(names) else help
            group.add_argument(*names, help=shown, **options)

        return add

    add = adder("chat")
    add("-p", "--prompt", metavar="TEXT",
        help="ask one question, print the answer and exit; piped input is appended to the question "
             "(- for the input alone)")  # fmt: skip
    add("--session", metavar="KEY", help="key of the conversation (default: that of the console)")
    add("--new", action="store_true", help="with -p: start a new session first")
    add("--attach", metavar="FILE", action="append", default=[],
        help="with -p: send a file with the question; may be repeated")  # fmt: skip
    add("--save", metavar="DIR", help="with -p: save the files of the answer in a folder")
    add = adder("interfaces")
    add("--no-console", action="store_true", help="do not open a chat in the terminal")
    add("--stdio", action="store_true", help="serve JSON-RPC on standard input and output")
    add("--http", metavar="HOST:PORT", nargs="?", const={}, type=http_address,
        help="serve the web page and the APIs (default: 127.0.0.1:8420)")  # fmt: skip
    add("--open", action="store_true", help="serve HTTP, and open the web page in a browser")
    add("--force", action="store_true",
        help="open a database that `hermes store copy` has moved to another one")  # fmt: skip
    add = adder("information")
    add("--status", action="store_true", help="print the status of a running bot and exit")
    status = "" if "--status" in command.hidden else "the status, or "
    add("--json", action="store_true", help=f"print {status}the answer to -p as JSON")
    add("--check-config", action="store_true", help="check the configuration and exit")
    add("--example-config", action="store_true",
        help="print an example configuration with every key and exit")  # fmt: skip
    return parser


def _check_chat_options(
    parser: argparse.ArgumentParser, options: argparse.Namespace, *, console: bool
) -> None:
    """Refuse options of the chat without one, and those of a question without a question."""
    if not console or options.no_console or options.stdio or options.status:
        for name, given in (("-p", options.prompt), ("--session", options.session)):
            if given is not None:
                parser.error(f"{name} requires a chat; use it with hermes chat")
    for name in ("new", "attach", "save"):
        if vars(options)[name] and options.prompt is None:
            parser.error(f"--{name} requires -p")
    for name, asked in (("http", options.http is not None), ("open", options.open)):
        if asked and options.prompt is not None:
            parser.error(f"--{name} has no effect with -p; remove it")


def _reserve_stdio(options: argparse.Namespace) -> AbstractContextManager[ReservedStdio]:
    """Reserve standard output for JSON-RPC, before modules of the settings could print to it."""
    if not options.stdio or options.status or options.check_config:
        return nullcontext()
    from hermes.adapters.jsonrpc.stdio import reserve_stdio  # noqa: PLC0415 - rarely needed

    return reserve_stdio()


def _frontend(options: argparse.Namespace) -> Frontend:
    if options.stdio:
        return "stdio"
    if options.prompt is not None:
        return "once"
    return "none" if options.no_console else "console"


def _run(
    settings: Settings,
    configuration: Configuration,
    frontend: Frontend,
    stdio: ReservedStdio,
    chat: ChatOptions,
) -> int:
    try:
        file = _open_log(settings, frontend)
        configure(
            form=settings.log.form,
            level=settings.log.level or default_level(frontend),
            secrets=secret_values(settings),
            stream=file or sys.stderr,
            screen=file is not None,
        )
        return _run_on_trio(settings, configuration, frontend, stdio, chat)
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


def _open_log(settings: Settings, frontend: Frontend) -> IO[str] | None:
    """Return the log file of a chat at a terminal; None if the log goes to standard error."""
    if frontend != "console" or not at_terminal():
        return None
    database = read_database(settings.data)
    create_folder(database)
    return open_log_file(log_path(local_path(database)))


def _run_on_trio(
    settings: Settings,
    configuration: Configuration,
    frontend: Frontend,
    stdio: ReservedStdio,
    chat: ChatOptions,
) -> int:
    try:
        return 0 if trio.run(run_bot, settings, configuration, frontend, stdio, chat) else 1
    except (trio.TrioInternalError, MemoryError) as error:
        sys.stderr.write(f"The event loop failed: {describe(error.__cause__ or error)}\n")
        return os.EX_SOFTWARE


if __name__ == "__main__":
    sys.exit(run_command(main))
