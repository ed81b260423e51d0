"""What a contender of the switching benchmark reports of a script that it has done.

Standard library only: the peers' interpreters import it too.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TurnRecord:
    """A turn: how long it took from the question to the answer, without the switch before it."""

    number: int
    ms: float
    built: str | None = None
    """Why an agent was built for it; None where the cached one was used."""
    build_ms: float = 0.0


@dataclass
class Record:
    """All that was seen from the outside."""

    turns: list[TurnRecord] = field(default_factory=list)
    switch_ms: list[float] = field(default_factory=list)
    compress_ms: list[float] = field(default_factory=list)
    transcripts: dict[int, list[dict[str, object]]] = field(default_factory=dict)
    """By the number of a compression: what a model is shown of the session after it."""
    not_compressed: list[int] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)
    """Turns that were not answered with what the model said."""
    lost: list[str] = field(default_factory=list)
    """Messages that are not in the file at the end."""
