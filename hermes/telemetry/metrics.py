"""The metrics of a running bot: what `--status` shows and Prometheus scrapes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

import hermes
from hermes.actors.runtime import Runtime
from hermes.config import Budgets
from hermes.messages import OutboxStats, StoreStats
from hermes.telemetry.model_health import ModelHealth

FORMAT = 1
"""Version of the status file; raised if an older Hermes would misread a newer file."""


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers and names, never content of messages. Counters start at 0 with the process."""

    format: int = FORMAT
    version: str
    pid: int
    started_at: float
    """Unix time, like all points in time here."""
    written_at: float
    draining: bool = False
    """Whether the bot is shutting down and accepts no new messages."""

    actors: int = 0
    """Conversations in memory."""
    agents: int = 0
    """Agents in the cache."""
    transcript_bytes: int = 0
    """Size of the transcripts in memory."""
    running: int = 0
    """Running turns."""
    turns: dict[str, int] = {}
    """Finished messages by status: complete, partial, failed, interrupted, refused..."""
    builds: dict[str, int] = {}
    """Built agents by reason."""
    reuses: int = 0
    """Turns that used an agent of the cache."""
    errors: dict[str, int] = {}
    """Failed turns by class of the exception."""
    last_error: str | None = None
    last_error_at: float | None = None

    provider_calls: int = 0
    """Calls to models made by turns."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Tokens read from the provider's cache, not included in `input_tokens`."""
    cost: float = 0.0
    cost_today: float = 0.0
    """Total cost since midnight, also of earlier processes."""

    inbox_open: int = 0
    """Accepted messages without an answer."""
    inbox_oldest_seconds: float = 0.0
    outbox: tuple[OutboxStats, ...] = ()
    """Undelivered and given up replies by platform."""
    hooks_open: int = 0
    """Session boundaries whose hooks have not all run."""

    commits: int = 0
    """Committed turns."""
    commit_seconds: float = 0.0
    """Total duration of these commits."""
    commit_p50: float = 0.0
    """Median of the last minute, in seconds."""
    commit_p99: float = 0.0
    """99th percentile of the last minute, in seconds."""
    commit_max: float = 0.0
    """Maximum of the last minute, in seconds."""
    commit_counts: tuple[int, ...] = ()
    """Commits by the upper bounds of a histogram."""
    wal_bytes: int = 0
    """Size of the database's write-ahead log."""
    database_bytes: int = 0

    adapters: dict[str, str] = {}
    """State of each platform."""
    http: str | None = None
    """The URL of the HTTP server."""
    model: str | None = None
    """The model that answers; None: the offline agent does."""
    mcp_servers: dict[str, str] = {}
    """State of each MCP server."""
    spans_dropped: int = 0
    """Spans that were not sent to the collector of OpenTelemetry."""
    log_lines_dropped: int = 0
    """Log lines that were dropped because the log was written too slowly."""

    @property
    def uptime_seconds(self) -> float:
        """Seconds from the start of the bot until these metrics were written."""
        return max(0.0, self.written_at - self.started_at)


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The process, its platforms, and its models."""

    version: str = hermes.__version__
    pid: int = msgspec.field(default_factory=os.getpid)
    started_at: float
    """Unix time."""
    models: list[ModelHealth]
    model: str | None = None
    """The configured model."""
    budgets: Budgets | None = None
    """How much may be spent; null if the host has not said."""
    channels: dict[str, str] = {}
    """The state of each platform: "running", or why it receives nothing."""
    mcp_servers: dict[str, str] = {}
    """The state of each MCP server."""
    spans_dropped: int = 0
    """Spans that were not sent to the collector of OpenTelemetry."""
    log_lines_dropped: int = 0
    """Log lines that were dropped because the log was written too slowly."""


class MetricsCollector:
    """Collects the metrics of a runtime. If the store does not answer, its last values are used."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._started_at = time.time()
        self._store = StoreStats()

    async def collect(
        self,
        runtime: Runtime,
        *,
        adapters: Mapping[str, str] | None = None,
        log_lines_dropped: int = 0,
        model: str | None = None,
        mcp_servers: Mapping[str, str] | None = None,
    ) -> Metrics:
        """Return the current metrics."""
        seen = await runtime.admin.statistics()
        stored = self._store = seen.store or self._store
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
            last_error=seen.last_error and seen.last_error[0],
            last_error_at=seen.last_error and seen.last_error[1],
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
            commit_seconds=seen.commits.total,
            commit_p50=seen.commits.p50,
            commit_p99=seen.commits.p99,
            commit_max=seen.commits.longest,
            commit_counts=seen.commits.counts,
            wal_bytes=_file_size(self._path, "-wal"),
            database_bytes=_file_size(self._path),
            adapters=dict(adapters or {}),
            model=model,
            mcp_servers=dict(mcp_servers or {}),
            log_lines_dropped=log_lines_dropped,
        )


def _file_size(path: Path | None, suffix: str = "") -> int:
    """Return the size of the database or of a file beside it; 0 if that is not known."""
    if path is None:
        return 0
    try:
        return path.with_name(f"{path.name}{suffix}").stat().st_size
    except OSError:
        return 0
