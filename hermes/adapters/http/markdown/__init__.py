"""Markdown as a tree of nodes in JSON, from which the page builds its DOM without any HTML.

Read `nodes` (the shape), `limits`, `addresses`, `highlighting`, `elements`, `grammar`, `parsing`.

Nothing here waits or does I/O. A block of 50 kB takes up to half a second of CPU time, so callers
parse texts of unknown size in a thread.
"""
