"""A tool for bots in tests."""

from __future__ import annotations

from hermes.agents.tools.toolbox import tool


def price(bird: str) -> str:
    """Return the price of a bird."""
    return "12.50" if bird == "heron" else "unknown"


@tool(approval=True)
def order(bird: str) -> str:
    """Order a bird."""
    return f"ordered {bird}"
