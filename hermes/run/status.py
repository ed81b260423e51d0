"""The status file beside the database, and the report of `--status` from another process.

Exit codes: 0 the bot runs, or a node on the same PostgreSQL database; 1 it does not run, or has not
written its status for a minute; 3 the database cannot be read.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import attrs
import msgspec

from hermes.config import is_database_url, shown_database
from hermes.errors import StoreError
from hermes.messages import StoreStats
from hermes.run.configuration import Configuration, expand_path
from hermes.run.local_files import local_path
from hermes.run.nodes import NodeStatus, lines_of, nodes_of
from hermes.settings import SettingsError
from hermes.store.choosing import has_store, read_cluster, read_stats
from hermes.store.sqlite import file_lock, runtime_lock
from hermes.telemetry.metrics import FORMAT, Metrics

RUNNING, NOT_RUNNING, UNREADABLE = 0, 1, 3
MAX_AGE = 60.0
"""Seconds after which a status file that is not rewritten means that the bot hangs."""
MAX_BYTES = 1_000_000
NO_MODEL = "none"
OFFLINE = "none: the built-in offline agent answers"


class UnreadableStatus(Exception):
    """The status file cannot be used; the message says why."""


def status_path(path: Path) -> Path:
    """Return the path of the status file of a database."""
    return path.parent / f"{path.name}.status"


def encode(metrics: Metrics) -> str:
    """Return the content of a status file."""
    return msgspec.json.encode(metrics).decode()


def write(path: Path, text: str) -> None:
    """Replace a file atomically, with mode 0600.

    It is not synced to disk: after a power failure its content would be wrong anyway.
    """
    partial = path.with_name(f"{path.name}.partial")
    with contextlib.suppress(FileNotFoundError):  # a leftover, perhaps with another mode
        partial.unlink()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)


def read(path: Path) -> Metrics:
    """Return the metrics in a status file. Raises `UnreadableStatus`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
    except FileNotFoundError:
        raise UnreadableStatus("There is no status file.") from None
    except OSError as error:
        raise UnreadableStatus(f"Cannot read the status file: {error.strerror}.") from None
    try:
        version = msgspec.json.decode(content, type=_Format).format
    except msgspec.DecodeError:
        version = None
    if version is not None and version > FORMAT:
        raise UnreadableStatus("The status file is from a newer Hermes; update this one.")
    try:
        return msgspec.json.decode(content, type=Metrics)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UnreadableStatus("The status file is damaged; a running bot rewrites it.") from None


class _Format(msgspec.Struct):
    format: int


@attrs.frozen(kw_only=True)
class StatusReport:
    """What another process can find out about a bot."""

    path: str
    """The path of the database, or its URL without a password."""
    exists: bool
    """Whether there is a database; the first start of a bot creates it."""
    owner: str | None
    """The process that holds the lock of the database."""
    metrics: Metrics | None
    age: float
    """Age of the metrics, in seconds."""
    store: StoreStats | None
    parked: int
    """Messages that were set aside within a day, after too many failed attempts."""
    problems: tuple[str, ...]
    unreadable: bool
    configured_model: str | None = None
    """The model that the settings name, as far as they were given."""
    configured_servers: tuple[str, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()
    """The processes that share a database of PostgreSQL, on all machines."""

    @property
    def code(self) -> int:
        """The exit code."""
        if self.unreadable:
            return UNREADABLE
        if self.owner is None and any(node.lease_seconds > 0 for node in self.nodes):
            return RUNNING
        if self.owner is None or (self.metrics is not None and self.age > MAX_AGE):
            return NOT_RUNNING
        return RUNNING

    def json(self) -> str:
        """Return the report as a JSON object."""
        values = {
            "path": self.path,
            "code": self.code,
            "running": self.owner is not None,
            "owner": self.owner,
            "age_seconds": None if self.metrics is None else self.age,
            "metrics": self.metrics,
            "store": self.store,
            "parked": self.parked,
            "problems": self.problems,
            "configured_model": self.configured_model,
            "configured_servers": self.configured_servers,
            "nodes": self.nodes,
        }
        return msgspec.json.encode(values).decode()

    def text(self) -> str:
        """Return the report as text."""
        return "\n".join(_lines(self))


def status_of(configuration: Configuration) -> StatusReport:
    """Return the report about the bot of a configuration.

    Of the configuration only the database needs to be valid: other settings may depend on the
    environment of the bot. Raises `SettingsError` or `OSError` if the file cannot be read.
    """
    found = examine(configuration.database())
    with contextlib.suppress(SettingsError):
        settings = configuration.load()
        found = attrs.evolve(
            found,
            configured_model=settings.agent.model or NO_MODEL,
            configured_servers=tuple(settings.mcp),
        )
    return found


def print_status(found: StatusReport, *, json: bool) -> int:
    """Print a report; returns the exit code."""
    sys.stdout.write(f"{found.json() if json else found.text()}\n")
    return found.code


def report(path: str | os.PathLike[str], form: Literal["text", "json"] = "text") -> tuple[str, int]:
    """Return the report about the bot of a database, and the exit code."""
    found = examine(path)
    return (found.text() if form == "text" else found.json()), found.code


def sentence(error: StoreError) -> str:
    """Return an error as a sentence; one that begins with a URL or path stays as it is."""
    text = str(error)
    first = text.partition(" ")[0]
    return f"{text if '/' in first else text[:1].upper() + text[1:]}."


def has_folder(path: Path) -> bool:
    """Return whether the folder of a database exists; without it no bot can run on that."""
    try:
        path.parent.stat()
    except FileNotFoundError:
        return False
    except OSError:  # whoever opens the file will report it
        return True
    return True


def examine(path: str | os.PathLike[str]) -> StatusReport:
    """Read the lock, the status file and the database; none of them is changed."""
    problems: list[str] = []
    owner: str | None = None
    store: StoreStats | None = None
    metrics: Metrics | None = None
    parked, unreadable = 0, False
    nodes: tuple[NodeStatus, ...] = ()
    is_url = is_database_url(path)
    resolved = local_path(os.fspath(path) if is_url else expand_path(os.fspath(path)).absolute())
    try:
        if has_folder(resolved):
            resolved = file_lock.resolve(resolved)
            owner = runtime_lock.owner(resolved)
        exists = has_store(path) if is_url else os.path.lexists(resolved)
        if exists or owner is not None:
            store, parked = read_stats(path if is_url else resolved)
        if exists and is_url:
            nodes = nodes_of(*read_cluster(path))
    except StoreError as error:
        exists = True
        problems.append(sentence(error))
        unreadable = True
    try:
        metrics = read(status_path(resolved))
    except UnreadableStatus as problem:
        if owner is not None:
            problems.append(str(problem))
    return StatusReport(
        path=shown_database(path) if is_url else str(resolved),
        exists=exists,
        owner=owner,
        metrics=metrics,
        age=0.0 if metrics is None else max(0.0, time.time() - metrics.written_at),
        store=store,
        parked=parked,
        problems=tuple(problems),
        unreadable=unreadable,
        nodes=nodes,
    )


def _lines(report: StatusReport) -> Iterator[str]:
    yield from report.problems
    if report.owner is not None:
        yield f"Hermes is running on {report.path} ({report.owner})."
    elif report.code == RUNNING:
        yield f"Hermes is running on {report.path}, but not on this machine."
    elif not report.unreadable:
        missing = "" if report.exists else ", which does not exist yet"
        yield f"Hermes is not running on {report.path}{missing}."
    yield from lines_of(report.nodes)
    if report.metrics is not None:
        yield from _metrics_lines(report, report.metrics)
    elif not report.unreadable:
        yield from _configured_lines(report)
    if report.store is not None:
        yield from _store_lines(report.store, report.parked)


def _configured_lines(report: StatusReport) -> Iterator[str]:
    if report.configured_model == NO_MODEL:
        yield f"model     {OFFLINE}"
    elif report.configured_model is not None:
        yield f"model     {report.configured_model} (configured)"
    for name in report.configured_servers:
        yield f"mcp       {name} (configured)"


def _metrics_lines(report: StatusReport, metrics: Metrics) -> Iterator[str]:
    if report.owner is None:
        yield f"The last bot did not shut down properly; its last status, {_ago(report.age)}:"
    elif report.age > MAX_AGE:
        yield f"It has not written its status for {_duration(report.age)}: it or its disk hangs."
    draining = ", shutting down" if metrics.draining else ""
    yield f"version   {metrics.version}, up {_duration(metrics.uptime_seconds)}{draining}"
    yield f"model     {metrics.model or OFFLINE}"
    for name, state in metrics.mcp_servers.items():
        yield f"mcp       {name}: {state}"
    yield f"turns     {_counts(metrics.turns)}; {metrics.running} running"
    yield (
        f"agents    {metrics.agents} cached; conversations in memory: {metrics.actors}; "
        f"reused {metrics.reuses}, built {_counts(metrics.builds)}"
    )
    yield (
        f"models    calls: {metrics.provider_calls}; tokens: {metrics.input_tokens} input, "
        f"{metrics.cached_tokens} cached, {metrics.output_tokens} output"
    )
    yield (
        f"commits   {metrics.commits}; last minute: p50 {_ms(metrics.commit_p50)}, "
        f"p99 {_ms(metrics.commit_p99)}, max {_ms(metrics.commit_max)}"
    )
    yield f"database  {metrics.database_bytes} bytes, write-ahead log {metrics.wal_bytes} bytes"
    for name, state in metrics.adapters.items():
        yield f"adapter   {name}: {state}"
    if metrics.http is not None:
        yield f"http      {metrics.http}"
    if metrics.errors:
        when = "" if metrics.last_error_at is None else _ago(time.time() - metrics.last_error_at)
        yield f"errors    {_counts(metrics.errors)}; last: {metrics.last_error}, {when}"
    if metrics.log_lines_dropped:
        yield f"log       {metrics.log_lines_dropped} lines dropped because it is too slow"


def _store_lines(store: StoreStats, parked: int) -> Iterator[str]:
    oldest = f", the oldest for {_duration(store.inbox_oldest_seconds)}" if store.inbox_open else ""
    yield f"inbox     {store.inbox_open} waiting{oldest}; {parked} set aside within a day"
    if not store.outbox:
        yield "outbox    empty"
    for each in store.outbox:
        yield (
            f"outbox    {each.platform}: {each.pending} pending, {each.sending} being sent, "
            f"{each.recovered} of them again; {each.dead} given up within a day"
        ) + (f"; the oldest for {_duration(each.oldest_seconds)}" if each.oldest_seconds else "")
    yield f"hooks     {store.hooks_open} to run"
    yield f"cost      {store.cost_today:.4f} today"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _ago(seconds: float) -> str:
    return f"{_duration(max(0.0, seconds))} ago"


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    whole = round(seconds)
    return "1 second" if whole == 1 else f"{whole} seconds"
