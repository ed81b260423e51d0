"""Import of conversations from a hermes-agent home.

Reading order: readonly_source, tables, plan, routes, convert, source, importer.
"""

from __future__ import annotations
