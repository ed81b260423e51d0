"""Benchmarks of Hermes against its peers; start with README.md and command.py."""

from __future__ import annotations
