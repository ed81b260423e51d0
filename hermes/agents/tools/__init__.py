"""Tools: Python functions, and functions of MCP servers, that a model may call.

`toolbox` has `tool`, `Tool`, `Toolbox` and `ToolOutcome`, which are also available here; `schema`
derives JSON schemas from signatures; `mcp_servers` needs the `mcp` extra and is imported only if a
server is configured.
"""

from __future__ import annotations

from hermes.agents.tools.toolbox import (
    Tool as Tool,
    Toolbox as Toolbox,
    ToolOutcome as ToolOutcome,
    tool as tool,
)

__all__ = ["Tool", "ToolOutcome", "Toolbox", "tool"]
