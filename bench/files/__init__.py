"""Benchmark of attached files: storing and sending them. Read: benchmark, ours."""

from __future__ import annotations
