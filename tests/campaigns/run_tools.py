"""A tool and a hook for the bots of `run_driver`."""

from __future__ import annotations

from hermes.agents.tools import tool


@tool(approval=True)
def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


async def on_boundary(session_id, platform):
    """Do nothing when a session ends or begins."""
