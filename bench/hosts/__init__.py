"""Benchmark of the hosts: what a stream costs outside of Trio. Read: benchmark, ours."""

from __future__ import annotations
