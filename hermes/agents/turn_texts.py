"""The sentences for users in the turn of an agent."""

from __future__ import annotations

from hermes.errors import HermesError
from hermes.protocols import Turn
from hermes.texts import ENGLISH, Texts


def texts_of(turn: Turn) -> Texts:
    """Return what users are told; in English if the turn is over or runs without a runtime."""
    try:
        return turn.runtime.texts
    except HermesError:
        return ENGLISH
