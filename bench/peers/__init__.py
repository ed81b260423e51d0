"""Drivers of the peers; each runs in the environment of its peer (`bench.peers_env`)."""

from __future__ import annotations
