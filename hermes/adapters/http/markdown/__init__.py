"""Markdown as a tree of nodes in JSON, from which the page builds its DOM without any HTML.

Read `nodes` (the shape), `limits`, `addresses`, `highlighting`, `elements`, `grammar`, `parsing`.

Nothing here waits or does I/O. A hostile block of 50 kB takes up to two seconds of CPU time, so
callers parse texts of unknown size in a thread.
"""
