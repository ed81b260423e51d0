"""Measurements beside peers. Read: store, store_cells, board, drivers, peers."""

from __future__ import annotations
