"""Benchmark of the HTTP server. Read: benchmark, measuring, client, ours, bare."""

from __future__ import annotations
