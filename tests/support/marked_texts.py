"""A table of texts without words of a language, and a search for words that come from elsewhere."""

from __future__ import annotations

import re
from typing import get_args

import msgspec

from hermes import Texts
from hermes.actors.commands import COMMANDS
from hermes.messages import BuildReason, Role
from hermes.texts import ENGLISH

_CODES = re.compile(r"\d[\d_]*|[0-9a-f]{6}|\d{8}_\d{6}_[0-9a-f]+|[0-9A-Z]{4}")
"""Numbers, references, ids of sessions, and halves of pairing codes."""
_FIXED = {*COMMANDS, *get_args(Role), *re.findall(r"\w+", " ".join(get_args(BuildReason)))}
"""Words that are part of the interface, in every language."""


def _marked(name, text):
    marker = " ".join([f"«{name}", *re.findall(r"\{\w+\}", text)]) + "»"
    if name.startswith("help_"):
        return f"/{name.removeprefix('help_')}: {marker}"
    return marker.replace("{code}", "/pair {code}")


MARKED = Texts(
    **{name: _marked(name, text) for name, text in msgspec.structs.asdict(ENGLISH).items()}
)
"""Every text is its own name and its placeholders, in «»."""


def foreign_words(texts, *said):
    """Return the words that come neither from `MARKED` nor from what was `said`."""
    known = _FIXED | set(re.findall(r"\w+", " ".join(said)))
    words = re.findall(r"\w+", re.sub(r"«[a-z_]+", "«", "\n".join(texts)))
    return {word for word in words if word not in known and not _CODES.fullmatch(word)}


def names_in(texts):
    """Return the names of the texts that were used."""
    return set(re.findall(r"«([a-z_]+)", "\n".join(texts)))
