"""`python -m bench compare OLD NEW`. Read: comparison (what is compared), noise (what counts)."""

from __future__ import annotations
