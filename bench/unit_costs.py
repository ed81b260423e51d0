"""What one of everything costs, read from the files of results."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import attrs

from bench.board import Ref
from bench.capacity import work_from

MIB = 1024.0**2
FULL = 100
"""Sessions at once in the cell in which the interpreter is the limit."""
LONG, SHORT = 10_000, 10
"""Messages of the cells of results that are about so many."""
MESSAGE_KIB = 1.0
"""Assumed: 400 bytes of text, and Python's objects about them."""

ALONE, CROWD = "10 messages, one session", f"{FULL} sessions at once"


class Missing(Exception):
    """A figure that the derivation needs was not measured; the sentence says which, and by what."""


class Results:
    """The files of results in a folder, by (benchmark, cell, who, figure): medians."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, dict[Ref, float]] = {}

    def find(self, benchmark: str, cell: str, who: str, figure: str) -> float | None:
        """The figure, or None where the benchmark has none such."""
        if benchmark not in self._files:
            self._files[benchmark] = self._read(benchmark)
        return self._files[benchmark].get(Ref(cell, who, figure))

    def get(self, benchmark: str, cell: str, who: str, figure: str) -> float:
        """The figure that must be there."""
        found = self.find(benchmark, cell, who, figure)
        if found is None:
            raise Missing(
                f'{benchmark}.json has no {figure} of "{who}" in "{cell}": '
                f"run `python -m bench {benchmark}`."
            )
        return found

    def _read(self, benchmark: str) -> dict[Ref, float]:
        path = self._folder / f"{benchmark}.json"
        try:
            found = json.loads(path.read_text())
            if found["quick"]:
                raise Missing(f"{path.name} is of a quick run: run `python -m bench {benchmark}`.")
            figures = found["figures"]
            return {
                Ref(one["cell"], one["who"], one["figure"]): float(one["median"]) for one in figures
            }
        except OSError as error:
            raise Missing(
                f"{path.name} cannot be read ({error.strerror}): run `python -m bench {benchmark}`."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise Missing(f"{path.name} is no file of results.") from error


@attrs.frozen
class Unit:
    """One cost, in seconds or bytes, and how it was found."""

    value: float
    shown: str
    source: str


@attrs.frozen(kw_only=True)
class Units:
    """All that is needed."""

    flush: Unit
    append: Unit
    commit: Unit
    turn: Unit
    index: Unit
    call: Unit
    message: Unit
    piece: Unit
    process: Unit
    actor: Unit
    warm: Unit
    stored: Unit
    start: Unit
    load: Unit


def units(results: Results) -> Units:
    """Every unit cost; raises `Missing`."""
    store, runtime, agents = (
        partial(results.get, benchmark) for benchmark in ("store", "runtime", "agents")
    )
    flush = 1 / store("100 sessions", "fdatasync", "rate")
    append = 1 / store("100 sessions", "ours, actor", "rate")
    commit = 1 / store("one session", "ours, actor", "rate") - append - flush
    stored = "stored, 100 sessions", "ours, actor"
    index = 1 / store(*stored, "searchable_rate") - 1 / store(*stored, "rate")
    long = agents("a turn, 10,000 messages", "ours", "cpu_ms")
    short = agents("a turn, 10 messages", "ours", "cpu_ms")
    starting = agents("importing", "ours, with open_runtime", "seconds")
    starting += store("opening", "ours, blocking", "ms") / 1e3
    found = Units(
        flush=_ms(flush, "store, 100 sessions, fdatasync: 1 / rate"),
        append=_ms(append, "store, 100 sessions, ours: 1 / rate"),
        commit=_ms(commit, "store, one session, ours: 1 / rate - append - flush"),
        turn=_ms(
            work_from(runtime(CROWD, "ours", "rate"), FULL, commit + flush),
            f"runtime, {CROWD}: 1 / rate - 4 (commit + flush) / {FULL}",
        ),
        index=_ms(index, "store, stored, 100 sessions: 1 / searchable_rate - 1 / rate"),
        call=_ms(
            (short - runtime(ALONE, "ours", "cpu_ms")) / 1e3,
            "agents, a turn, 10 messages: cpu_ms - runtime's",
        ),
        message=_us(
            (long - short) / 1e3 / (LONG - SHORT),
            "agents, a turn: (cpu_ms with 10,000 messages - with 10) / 9,990",
        ),
        piece=_us(agents("streaming", "ours", "piece_us") / 1e6, "agents, streaming: piece_us"),
        process=_size(
            agents("importing", "ours, with open_runtime", "mib") * MIB, "agents, importing: mib"
        ),
        actor=_size(runtime("idle", "ours", "kib") * 1024, "runtime, idle: kib"),
        warm=_size(
            runtime("a warm session", "ours", "kib") * 1024,
            "runtime, a warm session: kib (with 10 messages)",
        ),
        stored=_size(runtime(CROWD, "ours", "disk_bytes") / 2, f"runtime, {CROWD}: disk_bytes / 2"),
        start=Unit(
            starting, f"{starting:.2f} s", "agents, importing: seconds + store, opening: ms"
        ),
        load=_us(
            store("loading", "ours, blocking", "ms") / 1e3 / LONG, "store, loading: ms / 10,000"
        ),
    )
    return _sound(found)


def _sound(found: Units) -> Units:
    """A difference of figures that noise has turned round is no cost."""
    for name, unit in attrs.asdict(found, recurse=False).items():
        if unit.value <= 0:
            raise Missing(
                f"The results contradict each other: {name} would be {unit.shown} ({unit.source})."
            )
    return found


def _ms(seconds: float, source: str) -> Unit:
    return Unit(seconds, f"{seconds * 1e3:.3f} ms", source)


def _us(seconds: float, source: str) -> Unit:
    return Unit(seconds, f"{seconds * 1e6:.2f} us", source)


def _size(size: float, source: str) -> Unit:
    for least, name in ((MIB, "MiB"), (1024, "KiB")):
        if size >= least:
            return Unit(size, f"{size / least:.2f} {name}", source)
    return Unit(size, f"{size:.0f} bytes", source)
