"""The console: a chat at a terminal, with line editing and Markdown, or plain text through pipes.

Reading order: `adapter` (the adapter itself), `chat` (what it needs of a conversation), `remote`
(a conversation in another process), `display_queue` (events and outbox rows in order),
`view` (what has been shown already), `plain_screen` (pipes and simple terminals), `terminal` (Trio
side of the full terminal), `terminal_view` (its prompt_toolkit side), `markdown_stream` and
`markdown` (incremental rendering), `completion`, `history`.

prompt_toolkit and rich are imported only when a terminal is used.
"""

from __future__ import annotations

from hermes.adapters.console.adapter import SOURCE as SOURCE, Console as Console
