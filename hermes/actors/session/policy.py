"""Decide what happens to input while a turn runs. A pure function."""

from __future__ import annotations

from typing import Literal, TypeAlias

from hermes.actors.commands import CommandMode
from hermes.messages import WhenBusy

Action: TypeAlias = Literal["queue", "interrupt", "steer", "reject", "concurrent"]
"""`concurrent` runs a command beside the turn; the others are as in `WhenBusy`."""


def decide(when_busy: WhenBusy, mode: CommandMode, *, running: bool) -> Action:
    """Return what to do with input. Every message ends in a turn or in a visible refusal."""
    if mode == "now":
        return "concurrent"
    if not running or mode == "waits":
        return "queue"
    if mode == "stops":
        return "interrupt"
    if mode == "steers":
        return "steer"
    return when_busy
