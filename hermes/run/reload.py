"""Read the configuration again while the bot runs, at SIGHUP or `hermes reload`.

What can change at run time: agents, prices and budgets, who may use the bot, the models for titles
and summaries, and the log level. For the rest the report says that a restart is needed.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import msgspec
import trio
from msgspec.structs import replace

from hermes.actors.admission.access import PlatformRules
from hermes.adapters.http.hooks.registry import hook_rules
from hermes.background import open_background
from hermes.config import is_database_url, shown_database
from hermes.errors import StoreError
from hermes.run import logs, status
from hermes.run.configuration import Configuration, expand_path
from hermes.run.local_files import local_path
from hermes.run.references import check_references, secret_values
from hermes.settings import Settings, SettingsError
from hermes.store.sqlite import file_lock, runtime_lock
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)
report_log: logging.Logger = logging.getLogger("hermes.reload")
"""For reports, which the screen shows in another form."""

ANSWER_SECONDS = 15.0
POLL_SECONDS = 0.05
RELOADED, REFUSED = 0, 1
NOTHING_CHANGED = "{configuration} cannot be used; nothing was changed:"
READ_AGAIN = "{configuration} was read again."
NOT_READABLE = "{configuration} cannot be read now: {reason}; try again later."
_ACCESS = ("operators", "users", "chats", "open", "pairing")


class ReloadReport(msgspec.Struct, frozen=True):
    """What a reload has done."""

    number: int
    """How many there have been, with this one."""
    refused: bool
    """Whether the configuration could not be used, so that nothing was changed."""
    lines: tuple[str, ...]


@attrs.define(eq=False)
class Reloader:
    """Applies a changed configuration to a running bot."""

    settings: Settings
    """The settings in effect."""
    configuration: Configuration
    default_level: str
    """The log level if the settings name none."""
    rules: dict[str | tuple[str, str], PlatformRules]
    """The access rules of the runtime, which are changed in place."""
    apply_agents: Callable[[Settings], None] | None
    """Replaces the agents; None: the offline agent answers."""
    secrets: frozenset[str]
    """The secrets that are redacted."""
    applied: Callable[[Settings], None] = lambda _: None
    """Called with the settings after a reload."""
    number: int = 0

    def reload(self) -> ReloadReport:
        """Read the configuration, and apply what can be applied."""
        self.number += 1
        try:
            self.configuration = self.configuration.find_again()
            wanted = self.configuration.load(check_references)
            unknown = not self.secrets.issuperset(secret_values(wanted))
            settings = with_changes(
                self.settings, wanted, agents=self._replaceable(wanted, unknown)
            )
            if self.apply_agents is not None:
                self.apply_agents(settings)
        except SettingsError as error:
            first = NOTHING_CHANGED.format(configuration=self.name)
            return ReloadReport(self.number, True, (first, *map(str, error.problems)))
        except OSError as error:
            line = NOT_READABLE.format(configuration=self.name, reason=error.strerror)
            return ReloadReport(self.number, True, (line,))
        before, self.settings = self.settings, settings
        self.rules.update(access_rules(settings))
        logs.set_level(settings.log.level or self.default_level)
        self.applied(settings)
        return ReloadReport(self.number, False, tuple(_lines(before, settings, wanted, unknown)))

    @property
    def name(self) -> str:
        """The configuration, at the beginning of a sentence."""
        file = self.configuration.file
        return f"The configuration{'' if file is None else f' {file.path.absolute()}'}"

    def _replaceable(self, wanted: Settings, unknown: bool) -> bool:
        """Return whether the agents can be replaced: there are models, and no new secrets."""
        return self.apply_agents is not None and wanted.agent.kind != "offline" and not unknown


@asynccontextmanager
async def reloading(
    reloader: Reloader, path: Path, hang_up: Callable[[], None]
) -> AsyncIterator[None]:
    """Reload at each SIGHUP during the block.

    The report is logged, shown on the screen of a chat, and written to a file beside the database.
    If the terminal of the bot is gone, `hang_up` is called instead.
    """

    async def receive(task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGHUP) as received:
            task_status.started()
            async for _ in received:
                if _is_hung_up():
                    hang_up()
                    continue
                with contained() as caught:  # a failing reload must not end the bot
                    report = reloader.reload()
                    _report(report, path)
                    _show(report, reloader.name)
                if caught.error is not None:
                    log.error("the reload failed", exc_info=caught.error)

    async with open_background() as background:
        await background.start(receive)
        yield
    with suppress(OSError):
        report_path(path).unlink()


def _report(report: ReloadReport, path: Path) -> None:
    level = logging.WARNING if report.refused else logging.INFO
    for line in report.lines:
        report_log.log(level, "%s", line)
    try:
        status.write(report_path(path), msgspec.json.encode(report).decode())
    except OSError as error:
        log.warning("could not write the report of the reload: %s", error.strerror)


def _show(report: ReloadReport, name: str) -> None:
    """Show a report on the screen of a chat: in one line, or with a line for each problem."""
    first = READ_AGAIN.format(configuration=name)
    for line in report.lines if report.refused else [" ".join((first, *report.lines))]:
        logs.show(line)


def _is_hung_up() -> bool:
    """Return whether standard input is a terminal that has been closed."""
    try:
        termios.tcgetattr(0)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)  # ENOTTY: it is not a terminal
    return False


def with_changes(running: Settings, wanted: Settings, *, agents: bool) -> Settings:
    """Return the running settings with what can change at run time; `agents`: the agents too."""
    settings = replace(running, log=replace(running.log, level=wanted.log.level))
    if agents:
        settings = replace(
            settings,
            agent=wanted.agent,
            agents=wanted.agents,
            compression=replace(running.compression, model=wanted.compression.model),
            titles=replace(running.titles, model=wanted.titles.model),
        )
    if running.telegram is not None and wanted.telegram is not None:
        access = {name: _field(wanted.telegram, name) for name in _ACCESS}
        settings = replace(settings, telegram=replace(running.telegram, **access))
    return settings


def _field(table: msgspec.Struct, name: str) -> Any:
    return msgspec.structs.asdict(table)[name]


def access_rules(settings: Settings) -> dict[str | tuple[str, str], PlatformRules]:
    """Return who may use the bot, by platform."""
    rules: dict[str | tuple[str, str], PlatformRules] = {}
    if (telegram := settings.telegram) is not None:
        rules["telegram"] = PlatformRules(**{name: _field(telegram, name) for name in _ACCESS})
    if settings.http is not None:
        rules["http"] = PlatformRules(pairing=False)  # tokens are stored as principals
        rules["web"] = PlatformRules(pairing=True)  # and so are people who have signed in
        rules |= hook_rules(settings.http)
    return rules


def _lines(before: Settings, after: Settings, wanted: Settings, unknown: bool) -> Iterator[str]:
    changed, left = changes(before, after), changes(after, wanted)
    if changed:
        yield f"Changed: {', '.join(changed)}."
    if left:
        yield f"A restart is needed for: {', '.join(left)}."
    if unknown:
        yield "New secrets are redacted only after a restart; until then the agents do not change."
    if not changed and not left:
        yield "Nothing has changed."


def changes(one: Settings, other: Settings) -> list[str]:
    """Return the keys in which the settings differ."""
    before, after = (
        dict(_leaves(msgspec.to_builtins(each, enc_hook=str))) for each in (one, other)
    )
    return sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{path}{name}.")
        elif value not in ({}, None):
            yield f"{path}{name}", value


# From another process


def report_path(path: Path) -> Path:
    """Return the path of the report of the last reload."""
    return path.parent / f"{path.name}.reload"


def request_reload(path: str | os.PathLike[str]) -> tuple[str, int]:
    """Ask the bot of a database to read its configuration again.

    Returns its report, or why there is none, and an exit code: 0 if the configuration is in effect,
    1 if it could not be used, or if no bot is running.
    """
    is_url = is_database_url(path)
    resolved = local_path(os.fspath(path) if is_url else expand_path(os.fspath(path)).absolute())
    shown, owner = shown_database(path) if is_url else resolved, None
    try:
        if status.has_folder(resolved):
            resolved = file_lock.resolve(resolved)
            owner = runtime_lock.owner(resolved)
    except StoreError as error:
        return status.sentence(error), REFUSED
    if owner is None:
        return f"Hermes is not running on {shown}.", REFUSED
    if not owner.removeprefix("pid ").isdigit():
        return "It cannot be found out which process to ask; send it SIGHUP.", REFUSED
    pid, before = int(owner.removeprefix("pid ")), _read_report(resolved)
    try:
        os.kill(pid, signal.SIGHUP)
    except OSError as error:
        return f"The bot ({owner}) cannot be asked: {error.strerror}.", REFUSED
    return _await_report(resolved, before)


def _await_report(path: Path, before: bytes) -> tuple[str, int]:
    deadline = time.monotonic() + ANSWER_SECONDS
    while (content := _read_report(path)) == before:
        if time.monotonic() > deadline:
            return "The bot was asked, but has not answered; see its log.", REFUSED
        time.sleep(POLL_SECONDS)
    report = msgspec.json.decode(content, type=ReloadReport)
    return "\n".join(report.lines), REFUSED if report.refused else RELOADED


def _read_report(path: Path) -> bytes:
    try:
        return report_path(path).read_bytes()
    except OSError:
        return b""
