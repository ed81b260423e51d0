"""`python -m bench scale`: the capacity of one node. Read: unit_costs, capacity, tables."""

from __future__ import annotations
