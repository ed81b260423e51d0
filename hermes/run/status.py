"""The status file beside the data, and what `--status` says of a bot from another process.

Exit codes: 0 it runs, 1 it does not run or has been silent for a minute, 3 it cannot be read.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import attrs
import msgspec

from hermes.errors import StoreError
from hermes.messages import StoreStats
from hermes.run.metrics import FORMAT, Metrics
from hermes.store import file_lock
from hermes.store.maintenance.stats import look

RUNS, DOES_NOT_RUN, UNREADABLE = 0, 1, 3
SILENT_SECONDS = 60.0
MAX_BYTES = 1_000_000


class Unreadable(Exception):
    """The status file says nothing; the text tells why, in one sentence."""


def status_path(path: Path) -> Path:
    """Where a bot writes how it is doing: beside its data."""
    return path.parent / f"{path.name}.status"


def encoded(facts: Metrics) -> str:
    """The facts as the file has them."""
    return msgspec.json.encode(facts).decode()


def write(path: Path, text: str) -> None:
    """Put a text in the place of a file, for its owner alone; a reader sees all of it or none.

    It is not flushed to disk: after a power cut it would be wrong anyway.
    """
    partial = path.with_name(f"{path.name}.partial")
    with contextlib.suppress(FileNotFoundError):  # a leftover, whoever may read it
        partial.unlink()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)


def read(path: Path) -> Metrics:
    """What the file says. Raises `Unreadable`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
    except FileNotFoundError:
        raise Unreadable("There is no status file.") from None
    except OSError as error:
        raise Unreadable(f"The status file cannot be read: {error.strerror}.") from None
    try:
        form = msgspec.json.decode(content, type=_Form).format
    except msgspec.DecodeError:
        form = None
    if form is not None and form > FORMAT:
        raise Unreadable("The status file was written by a newer Hermes; update this one.")
    try:
        return msgspec.json.decode(content, type=Metrics)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unreadable("The status file is damaged; a running bot writes it anew.") from None


class _Form(msgspec.Struct):
    format: int


@attrs.frozen(kw_only=True)
class Report:
    """What can be found out about a bot from outside."""

    path: Path
    owner: str | None
    """Who runs on the data, by its lock."""
    facts: Metrics | None
    age: float
    """Of the facts, in seconds."""
    store: StoreStats | None
    parked: int
    """Messages that were begun too often within a day, and set aside."""
    problems: tuple[str, ...]
    unreadable: bool

    @property
    def code(self) -> int:
        """The exit code."""
        if self.unreadable:
            return UNREADABLE
        if self.owner is None or (self.facts is not None and self.age > SILENT_SECONDS):
            return DOES_NOT_RUN
        return RUNS

    def json(self) -> str:
        """For programs."""
        values = {
            "path": str(self.path),
            "code": self.code,
            "running": self.owner is not None,
            "owner": self.owner,
            "age_seconds": None if self.facts is None else self.age,
            "facts": self.facts,
            "store": self.store,
            "parked": self.parked,
            "problems": self.problems,
        }
        return msgspec.json.encode(values).decode()

    def text(self) -> str:
        """For people."""
        return "\n".join(_lines(self))


def report(path: str | os.PathLike[str], form: Literal["text", "json"] = "text") -> tuple[str, int]:
    """What to print, and the exit code."""
    found = examine(path)
    return (found.text() if form == "text" else found.json()), found.code


def examine(path: str | os.PathLike[str]) -> Report:
    """Look at the lock, the status file and the database; none of them is touched."""
    problems: list[str] = []
    owner: str | None = None
    stored: StoreStats | None = None
    facts: Metrics | None = None
    parked, unreadable = 0, False
    real = Path(path)
    try:
        real = file_lock.resolve(path)
        owner = file_lock.owner(real)
        stored, parked = look(real)
    except StoreError as error:
        problems.append(f"{str(error)[:1].upper()}{str(error)[1:]}.")
        unreadable = True
    try:
        facts = read(status_path(real))
    except Unreadable as problem:
        if owner is not None:
            problems.append(str(problem))
    age = 0.0 if facts is None else max(0.0, time.time() - facts.written_at)
    return Report(
        path=real, owner=owner, facts=facts, age=age, store=stored, parked=parked,
        problems=tuple(problems), unreadable=unreadable,
    )  # fmt: skip


# For people


def _lines(found: Report) -> Iterator[str]:
    yield from found.problems
    if found.owner is not None:
        yield f"Hermes runs on {found.path} ({found.owner})."
    elif not found.unreadable:
        yield f"Hermes does not run on {found.path}."
    if found.facts is not None:
        yield from _of_facts(found, found.facts)
    if found.store is not None:
        yield from _of_store(found.store, found.parked)


def _of_facts(found: Report, facts: Metrics) -> Iterator[str]:
    if found.owner is None:
        yield f"The last one ended without a farewell; it was last heard of {_ago(found.age)}:"
    elif found.age > SILENT_SECONDS:
        yield f"It has been silent since {_span(found.age)}: it hangs, or its disk does."
    draining = ", and is about to end" if facts.draining else ""
    yield f"version   {facts.version}, up {_span(facts.uptime_seconds)}{draining}"
    yield f"turns     {_counts(facts.turns)}; {facts.running} running"
    yield (
        f"agents    {facts.agents} cached of {facts.actors} conversations; "
        f"reused {facts.reuses}, built {_counts(facts.builds)}"
    )
    yield (
        f"models    {facts.provider_calls} calls, {facts.input_tokens} tokens in, "
        f"{facts.cached_tokens} cached, {facts.output_tokens} out"
    )
    yield (
        f"commits   {facts.commits}; lately p50 {_ms(facts.commit_p50)}, "
        f"p99 {_ms(facts.commit_p99)}, longest {_ms(facts.commit_max)}"
    )
    yield f"data      {facts.database_bytes} bytes, and {facts.wal_bytes} in its log"
    for name, state in facts.adapters.items():
        yield f"adapter   {name}: {state}"
    if facts.errors:
        when = "" if facts.last_error_at is None else _ago(time.time() - facts.last_error_at)
        yield f"errors    {_counts(facts.errors)}; last {facts.last_error}, {when}"
    if facts.log_lines_dropped:
        yield f"log       {facts.log_lines_dropped} lines dropped: too slow a log"


def _of_store(stored: StoreStats, parked: int) -> Iterator[str]:
    oldest = f", the first since {_span(stored.inbox_oldest_seconds)}" if stored.inbox_open else ""
    yield f"inbox     {stored.inbox_open} waiting{oldest}; {parked} set aside within a day"
    if not stored.outbox:
        yield "outbox    empty"
    for each in stored.outbox:
        yield (
            f"outbox    {each.platform}: {each.pending} pending, {each.sending} being sent, "
            f"{each.recovered} of them again; {each.dead} given up within a day"
        ) + (f"; the first since {_span(each.oldest_seconds)}" if each.oldest_seconds else "")
    yield f"hooks     {stored.hooks_open} to be told"
    yield f"cost      {stored.cost_today:.4f} today"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _ago(seconds: float) -> str:
    return f"{_span(max(0.0, seconds))} ago"


def _span(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
