"""Drivers: one small program per thing measured, each in its own interpreter, asked over a pipe."""

from __future__ import annotations
