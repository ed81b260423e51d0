"""Counts of the calls of models, and of what went wrong."""

from __future__ import annotations

import time

import msgspec

from hermes.events import TurnEnded
from hermes.messages import Reply
from hermes.telemetry.turn_records import TurnRecord

MAX_MODELS = 100
"""Models that are counted; further ones are counted as `other`."""
OTHER = "other"


class ModelHealth(msgspec.Struct, kw_only=True):
    """The calls of one model in turns, since the start."""

    model: str | None
    """None for turns that failed before a model was called successfully."""
    calls: int = 0
    """Successful calls."""
    retries: int = 0
    """Calls that failed and were made again."""
    failures: int = 0
    """Turns that failed."""
    first_token_seconds: float | None = None
    """Of the last call that was streamed."""
    last_call_at: float | None = None
    """Unix time of the last successful call."""
    last_error: str | None = None
    """The class of the last error."""
    last_error_at: float | None = None


class ModelCounts:
    """Counts the calls and failures of models, from the records of turns."""

    def __init__(self) -> None:
        self._models: dict[str | None, ModelHealth] = {}

    @property
    def models(self) -> list[ModelHealth]:
        """The models that were called, in the order of their first calls."""
        return list(self._models.values())

    def add(self, record: TurnRecord, event: TurnEnded) -> None:
        """Count a turn that has ended."""
        reply, now = event.reply, time.time()
        names = [call.model for call in reply.usage if call.purpose == "turn"]
        for name in names:
            health = self._of(name)
            health.calls += 1
            health.last_call_at = now
        if names or reply.error_kind is not None:
            last = self._of(names[-1] if names else None)
            last.retries += sum(step.retries for step in record.steps)
            first = [step.first_token - step.started for step in record.steps if step.first_token]
            last.first_token_seconds = first[-1] if first else last.first_token_seconds
            self._count_error(last, reply, now)

    def _count_error(self, health: ModelHealth, reply: Reply, now: float) -> None:
        if reply.error_kind is not None:
            health.failures += 1
            health.last_error, health.last_error_at = reply.error_kind, now

    def _of(self, name: str | None) -> ModelHealth:
        if name not in self._models and len(self._models) >= MAX_MODELS:
            name = OTHER
        return self._models.setdefault(name, ModelHealth(model=name))
