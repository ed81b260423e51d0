"""What can be set, with its defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hermes.messages import Busy, ExpiryPolicy


def data_path() -> Path:
    """Where conversations are kept when nobody says otherwise."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "hermes" / "state.db"


class CompressionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When and how far a conversation is compressed; sizes are in tokens, times in seconds."""

    enabled: bool = True
    window: int = 128_000
    max_output: int = 8_000
    share: float = 0.75
    """How full the window may become, after room for the answer was set aside."""
    tail_share: float = 0.2
    protect_first: int = 3
    margin: float = 0.1
    """By how much a compressed conversation must be smaller to be worth it."""
    lease_timeout: float = 30.0
    summary_timeout: float = 120.0
    cooldowns: tuple[float, ...] = (60.0, 300.0, 900.0)
    """How long not to try again after one, two, and more failures in a row."""
    max_useless: int = 2


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """How a runtime behaves; every bound is one of these."""

    busy: Busy = "queue"
    busy_by_platform: Mapping[str, Busy] = msgspec.field(default_factory=dict)
    expiry: ExpiryPolicy = msgspec.field(default_factory=ExpiryPolicy)
    expiry_by: Mapping[str, ExpiryPolicy] = msgspec.field(default_factory=dict)
    """By platform, by chat type, or by both as `platform/chat_type`; the closest one counts."""
    max_queued: int = 100
    turn_timeout: float = 1800.0
    commit_timeout: float = 30.0
    close_timeout: float = 10.0
    drain_timeout: float = 30.0
    idle_timeout: float = 900.0
    max_agents: int = 128
    transcript_bytes: int = 64 * 1024 * 1024
    max_attempts: int = 3
    quarantine_time: float = 60.0
    compression: CompressionConfig = msgspec.field(default_factory=CompressionConfig)

    def busy_on(self, platform: str) -> Busy:
        """What to do with input while a turn runs."""
        return self.busy_by_platform.get(platform, self.busy)

    def expiry_of(self, platform: str, chat_type: str) -> ExpiryPolicy:
        """When a conversation is over by itself."""
        for name in (f"{platform}/{chat_type}", platform, chat_type):
            if name in self.expiry_by:
                return self.expiry_by[name]
        return self.expiry
