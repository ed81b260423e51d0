"""Periods on the command line, such as 30d."""

from __future__ import annotations

import argparse
import re

DAY = 86_400.0
_DAYS = {"min": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0, "mo": 30.0, "y": 365.0}
AGE_HELP = "a number and min, h, d, w, mo (30 days) or y (365 days), such as 30d or 6mo"


def days(text: str) -> float:
    """Return a period in days. Raises `argparse.ArgumentTypeError` if it has no valid unit."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([a-z]*)", text.strip())
    if match is None or match[2] not in _DAYS:
        hint = "; m could be minutes or months" if match is not None and match[2] == "m" else ""
        raise argparse.ArgumentTypeError(f"{text!r} is not an age: expected {AGE_HELP}{hint}")
    return float(match[1]) * _DAYS[match[2]]
