"""The operator's chat: at a terminal with line editing and Markdown, through pipes as plain text.

Read: chat (the whole), showing (what was shown already), plain and terminal (two screens).
prompt_toolkit and rich are loaded where a terminal is used, and never by the import of this.
"""

from __future__ import annotations

from hermes.adapters.console.adapter import SOURCE as SOURCE, Console as Console
