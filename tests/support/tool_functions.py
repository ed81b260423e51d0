"""Functions and types for tests of tools."""

from __future__ import annotations

import dataclasses
import enum
from typing import Literal, Optional

import attrs
import msgspec

from hermes.protocols import Turn


@attrs.frozen
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Line:
    ends: list[Point]
    label: str | None = None


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mailing(msgspec.Struct):
    title: str
    properties: dict[str, int] = {}


class Tree(msgspec.Struct):
    branches: list[Tree]


def send_mail(
    to: list[str],
    subject: str,
    urgency: Literal["low", "high"] = "low",
    cc: Optional[str] = None,  # noqa: UP045 - a common way to write it
    *,
    copies: int = 1,
    turn: Turn,
) -> str:
    """Send a mail.

    It leaves at once.

    Args:
        to: Who gets it;
            one or many.
        subject (str): What it is about.
        nobody: A parameter that does not exist.

    Returns:
        Its number.
    """
    return f"{turn.turn_id}: {to} {subject} {urgency} {cc} {copies}"
