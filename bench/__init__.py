"""Benchmarks of Hermes against its peers.

Read: command (how a benchmark runs), harness (drivers, repetitions, figures), then one folder per
benchmark: benchmark.py says what is measured, ours.py is our driver. peers has the other drivers.
"""

from __future__ import annotations
