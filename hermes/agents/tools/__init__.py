"""Tools: Python functions, and functions of MCP servers, that a model may call.

`definitions` has `tool` and `Tool`, `toolbox` has `Toolbox`, and `outputs` has `ToolOutput` and
`ToolOutcome`; all are also available here. `schema` derives JSON schemas from signatures.
`mcp_servers` needs the `mcp` extra and is imported only if a server is configured.
"""

from __future__ import annotations

from hermes.agents.tools.definitions import Tool as Tool, tool as tool
from hermes.agents.tools.outputs import ToolOutcome as ToolOutcome, ToolOutput as ToolOutput
from hermes.agents.tools.toolbox import Toolbox as Toolbox

__all__ = ["Tool", "ToolOutcome", "ToolOutput", "Toolbox", "tool"]
