"""Conversations from a hermes-agent home.

Read: untouched, tables, plan, routes, reading, home, taking.
"""

from __future__ import annotations
