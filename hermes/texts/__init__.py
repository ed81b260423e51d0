"""What Hermes itself says to users."""

from __future__ import annotations

from hermes.texts.table import ENGLISH as ENGLISH, Texts as Texts, help_line as help_line
