"""Result files, and what is made from them: terminal tables, README tables and an HTML page."""

from __future__ import annotations
