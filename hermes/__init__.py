"""Hermes keeps conversations whole. Read: messages, errors, store."""

from __future__ import annotations

__version__ = "0.1.0.dev0"
