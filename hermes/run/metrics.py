"""How a running bot is doing, as a value: what `--status` shows and Prometheus is told."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

import hermes
from hermes.actors.runtime import Runtime
from hermes.errors import HermesError
from hermes.messages import OutboxStats, StoreStats

FORMAT = 1
"""Grows when a reader of an older Hermes would misunderstand the file."""


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers and names; nothing that anybody said. Counters count since `started_at`."""

    format: int = FORMAT
    version: str
    pid: int
    started_at: float
    """Seconds since 1970, as all times here."""
    written_at: float
    draining: bool = False
    """It is about to end and takes no new messages."""

    actors: int = 0
    """Conversations that are awake."""
    agents: int = 0
    """Agents in the cache."""
    transcript_bytes: int = 0
    """What is held of transcripts in memory."""
    running: int = 0
    """Turns that run now."""
    turns: dict[str, int] = {}
    """Messages that had their end, by how: complete, failed, interrupted, refused, command."""
    builds: dict[str, int] = {}
    """Agents that were built, by why."""
    reuses: int = 0
    """Turns that found their agent in the cache."""
    errors: dict[str, int] = {}
    """Turns that failed, by the class of the error."""
    last_error: str | None = None
    last_error_at: float | None = None

    provider_calls: int = 0
    """Calls that turns have made of models."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Read from the provider's cache, and not among the input."""
    cost: float = 0.0
    cost_today: float = 0.0
    """Of everything since midnight, also before the start."""

    inbox_open: int = 0
    """Accepted messages that no turn has finished."""
    inbox_oldest_seconds: float = 0.0
    outbox: tuple[OutboxStats, ...] = ()
    """Replies that wait or were given up, by platform."""
    hooks_open: int = 0
    """Boundaries that the hooks have not all heard of."""

    commits: int = 0
    """Turns that were written to disk."""
    commit_timeout: float = 0.0
    """How long that took in all."""
    commit_p50: float = 0.0
    """Of the last minute, as the next two."""
    commit_p99: float = 0.0
    commit_max: float = 0.0
    wal_bytes: int = 0
    """The log of the database."""
    database_bytes: int = 0

    adapters: dict[str, str] = {}
    """Platforms, and how they are doing."""
    log_lines_dropped: int = 0
    """Lines that a slow log had no room for."""

    @property
    def uptime_seconds(self) -> float:
        return max(0.0, self.written_at - self.started_at)


def size(path: Path, suffix: str = "") -> int:
    """The bytes of a file; 0 where there is none."""
    try:
        return path.with_name(f"{path.name}{suffix}").stat().st_size
    except OSError:
        return 0


class Collector:
    """Asks a runtime for its facts; where the store cannot answer, its last answer stands."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started_at = time.time()
        self._store = StoreStats()

    async def collect(
        self, runtime: Runtime, *, adapters: Mapping[str, str], log_lines_dropped: int
    ) -> Metrics:
        """The facts as they are now."""
        with contextlib.suppress(HermesError):  # busy, or about to end
            self._store = await runtime.facts()
        seen, stored = runtime.statistics(), self._store
        kind, when = seen.last_error or (None, None)
        return Metrics(
            version=hermes.__version__,
            pid=os.getpid(),
            started_at=self._started_at,
            written_at=time.time(),
            draining=seen.draining,
            actors=seen.actors,
            agents=seen.agents,
            transcript_bytes=seen.transcript_bytes,
            running=seen.running,
            turns={str(name): count for name, count in seen.turns.items()},
            builds={str(name): count for name, count in seen.builds.items()},
            reuses=seen.reuses,
            errors=dict(seen.errors),
            last_error=kind,
            last_error_at=when,
            provider_calls=seen.spending.calls,
            input_tokens=seen.spending.input_tokens,
            output_tokens=seen.spending.output_tokens,
            cached_tokens=seen.spending.cached_tokens,
            cost=seen.spending.cost,
            cost_today=stored.cost_today,
            inbox_open=stored.inbox_open,
            inbox_oldest_seconds=stored.inbox_oldest_seconds,
            outbox=stored.outbox,
            hooks_open=stored.hooks_open,
            commits=seen.commits.count,
            commit_timeout=seen.commits.total,
            commit_p50=seen.commits.p50,
            commit_p99=seen.commits.p99,
            commit_max=seen.commits.longest,
            wal_bytes=size(self._path, "-wal"),
            database_bytes=size(self._path),
            adapters=dict(adapters),
            log_lines_dropped=log_lines_dropped,
        )
