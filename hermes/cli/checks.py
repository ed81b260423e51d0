"""The checks of `hermes doctor`."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from importlib import metadata
from pathlib import Path

import attrs
import msgspec

import hermes
from hermes.agents.providers.base import (
    AuthenticationFailed,
    OutOfQuota,
    ProviderError,
    Unavailable,
)
from hermes.cli.model_calls import call_model, call_transcriber
from hermes.config import MAX_WAL_BYTES, data_path, shown_database
from hermes.errors import ContextOverflow, HermesError, RetryAfter, StoreError
from hermes.run.agent_setup import endpoint_of, host_of, open_mcp, transcriber_endpoint
from hermes.run.configuration import Configuration
from hermes.run.references import resolve_secret
from hermes.settings import Problem, Settings
from hermes.settings.installation import (
    DISTRIBUTION,
    EXTRAS,
    command,
    install_command,
    installed_extras,
    missing_extra,
)
from hermes.store.choosing import has_store, read_stats
from hermes.store.sqlite import file_lock, runtime_lock
from hermes.store.sqlite.inspection import sqlite_version

OTHERS_BITS = 0o077
MAX_SCRIPT = 10_000
_MINIMUM = re.compile(r"([\w.-]+)>=([\d.]+)")
"""A requirement without a marker; those of extras have one."""


@attrs.frozen
class Finding:
    """The result of one check. `text` says what was found; if it is not ok, also what to do."""

    topic: str
    text: str
    ok: bool = True


def versions() -> Iterator[Finding]:
    """Yield the versions, the packages that are too old, and the extras that are missing."""
    text = (
        f"Hermes {hermes.__version__}, Python {platform.python_version()}, "
        f"SQLite {sqlite_version()}, Trio {metadata.version('trio')}"
    )
    yield Finding("versions", text)
    for name, minimum in _required():
        if _numbers(found := metadata.version(name)) < _numbers(minimum):
            text = f"{name} {found} is older than {minimum}; run: {install_command('bot')}"
            yield Finding("versions", text, ok=False)
    installed = set(installed_extras())
    for extra in (each for each in EXTRAS if each not in installed):
        yield Finding("extras", missing_extra(extra), ok=extra != "bot")


def _required() -> Iterator[tuple[str, str]]:
    """Yield the packages that Hermes needs, with their minimum versions."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # it runs from a checkout
        return
    for requirement in requirements:
        if found := _MINIMUM.fullmatch(requirement):
            yield found[1], found[2]


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def first_on_path() -> Finding:
    """Check that `hermes` in the shell is this program."""
    found = shutil.which("hermes")
    if found is None:
        return Finding("command", f"hermes is not on the path; start it with: {command()}")
    if _is_ours(Path(found)):
        return Finding("command", f"hermes is {found}")
    other = "hermes-agent" if b"hermes_cli" in _script(Path(found)) else "another program"
    second = shutil.which(DISTRIBUTION)
    start = DISTRIBUTION if second and _is_ours(Path(second)) else command()
    text = f"hermes is {found}, which is {other}; start this one with: {start}"
    return Finding("command", text, ok=False)


def _is_ours(path: Path) -> bool:
    return b"hermes.cli" in _script(path)


def _script(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_SCRIPT)
    except OSError:
        return b""


def configuration(configured: Configuration, problems: Sequence[Problem]) -> Iterator[Finding]:
    """Yield a finding for each problem, or one that names the file."""
    for problem in problems:
        yield Finding("configuration", f"{configured.name}: {problem}", ok=False)
    if not problems:
        none = f"no file; to write one: {command('setup')}"
        yield Finding("configuration", none if configured.file is None else configured.name)


def database(path: Path | str) -> Finding:
    """Check that the database can be used."""
    if isinstance(path, str):
        return _database_on_server(path)
    if not path.exists():
        return _new_database(path)
    try:
        path = file_lock.resolve(path)
        owner = runtime_lock.owner(path)
        stats, parked = read_stats(path)
    except StoreError as error:
        return Finding("database", str(error), ok=False)
    if path.stat().st_mode & OTHERS_BITS:
        text = f"other users can read {path}; run: chmod 600 {shlex.quote(str(path))}"
        return Finding("database", text, ok=False)
    state = "not in use" if owner is None else f"in use by {owner}"
    text = f"{path}, {state}; {stats.inbox_open} messages waiting, {parked} set aside"
    return Finding("database", text)


def _database_on_server(url: str) -> Finding:
    try:
        if not has_store(url):
            text = f"{shown_database(url)} is empty; the first start creates the tables"
            return Finding("database", text)
        stats, parked = read_stats(url)
    except StoreError as error:
        return Finding("database", str(error), ok=False)
    text = f"{stats.inbox_open} messages waiting, {parked} set aside"
    return Finding("database", f"{shown_database(url)}; {text}")


def _new_database(path: Path) -> Finding:
    folder = _existing(path.absolute().parent)
    if path != data_path() and folder != path.absolute().parent:
        create = f"mkdir -p {shlex.quote(str(path.parent))}"
        return Finding("database", f"there is no folder {path.parent}; run: {create}", ok=False)
    if not os.access(folder, os.W_OK | os.X_OK):
        text = f"cannot create {path}: {folder} is not writable; choose another file with --db"
        return Finding("database", text, ok=False)
    return Finding("database", f"{path} does not exist yet; the first start creates it")


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def disk(path: Path, needed: int = MAX_WAL_BYTES) -> Finding:
    """Check that the disk of the database has space left, by default for a write-ahead log."""
    folder = _existing(path.expanduser().absolute().parent)
    free = shutil.disk_usage(folder).free
    text = f"{free / 1e9:.1f} GB free in {folder}"
    if free < needed:
        advice = f"make room: at least {needed / 1e9:.1f} GB should be free"
        return Finding("disk", f"{text}; {advice}", ok=False)
    return Finding("disk", text)


async def model(settings: Settings) -> Finding:
    """Call the model once."""
    if settings.agent.kind is None or settings.agent.kind == "offline":
        return Finding("model", f"the offline agent; to connect a model: {command('setup')}")
    endpoint = endpoint_of(settings)
    where = f"{endpoint.model} at {host_of(endpoint)}"
    try:
        seconds = await call_model(settings.agent.kind, endpoint)
    except (ProviderError, ContextOverflow) as error:
        return Finding("model", f"{where}: {error}{_model_advice(error)}", ok=False)
    return Finding("model", f"{where} answered in {seconds:.1f} seconds")


async def transcriber(settings: Settings) -> list[Finding]:
    """Have a second of silence transcribed."""
    if settings.transcriber is None:
        return []
    endpoint = transcriber_endpoint(settings.transcriber)
    where = f"{endpoint.model} at {host_of(endpoint)}"
    try:
        seconds = await call_transcriber(endpoint)
    except (ProviderError, ContextOverflow) as error:
        advice = _model_advice(error).replace("[agent]", "[transcriber]")
        return [Finding("transcriber", f"{where}: {error}{advice}", ok=False)]
    return [Finding("transcriber", f"{where} answered in {seconds:.1f} seconds")]


def _model_advice(error: ProviderError | ContextOverflow) -> str:
    """Return what to do, unless the message says it."""
    if isinstance(error, AuthenticationFailed | OutOfQuota) or "; check" in str(error):
        return ""
    if isinstance(error, Unavailable):
        if error.rate_limited:
            return "; try again later"
        return "; check that it runs, base_url in [agent], and the network"
    return "; check the model and its parameters in [agent]"


async def mcp_servers(settings: Settings) -> list[Finding]:
    """Start the MCP servers."""
    async with AsyncExitStack() as stack:
        opened = await open_mcp(settings, stack)
        problems, states = opened.problems(), opened.states()
    return [
        Finding("mcp", f"{name}: {state}", ok=True)
        if name not in problems
        else Finding("mcp", f"{name}: {problems[name]}; {_server_advice(settings, name)}", ok=False)
        for name, state in states.items()
    ]


def _server_advice(settings: Settings, name: str) -> str:
    if settings.mcp[name].url is not None:
        return f"start the server, or correct url in [mcp.{name}]"
    # The command is not shown: it may have secrets.
    return f"to see more, run the command of [mcp.{name}] yourself"


class _User(msgspec.Struct):
    username: str = "?"


async def platforms(settings: Settings) -> list[Finding]:
    """Ask each platform who the bot is."""
    if settings.telegram is None:
        return []
    from hermes.adapters.telegram.api import BASE, BotApi, Revoked  # noqa: PLC0415 - rarely needed

    token = resolve_secret("telegram.token", settings.telegram.token)
    api = BotApi(token, settings.telegram.base_url or BASE)
    try:
        user = msgspec.json.decode(await api.call("getMe", {}), type=_User)
    except Revoked as error:
        return [Finding("telegram", str(error), ok=False)]
    except (HermesError, msgspec.DecodeError) as error:
        reason = "its answer is not Telegram's" if isinstance(error, ValueError) else str(error)
        advice = "check the network, and base_url in [telegram]"
        if isinstance(error, RetryAfter):
            advice = "try again later"
        return [Finding("telegram", f"{reason}; {advice}", ok=False)]
    finally:
        await api.aclose()
    return [Finding("telegram", f"the bot is @{user.username}")]
