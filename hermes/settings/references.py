"""Where secrets are found: the settings never have them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Self

from hermes.redaction import Secret

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+")


class Reference(str):
    """Where a secret is found: `env:NAME` or `file:PATH`. Never the secret itself."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if not _REFERENCE.fullmatch(text):
            # Do not quote the text: it may be the secret.
            raise ValueError(
                "secrets do not belong in this file; write env:NAME or file:PATH instead"
            )
        return super().__new__(cls, text)


def is_reference(text: str) -> bool:
    """Return whether a text is a reference."""
    return _REFERENCE.fullmatch(text) is not None


def read_secret(reference: Reference) -> Secret:
    """Return the secret that a reference names. Raises `ValueError` with a sentence if none."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        if not os.environ.get(name):
            raise ValueError(
                f"the environment variable {name} is not set; set it before Hermes starts"
            )
        return Secret.env(name)
    try:
        value = expand_path(name).read_text("utf-8").strip()
    except FileNotFoundError:
        raise ValueError(f"there is no file {name}; create it, with the secret in it") from None
    except OSError as error:
        raise ValueError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"cannot read {name}: not UTF-8 text") from None
    if not value:
        raise ValueError(f"{name} is empty; write the secret into it")
    return Secret(value)


def expand_path(name: str) -> Path:
    """Return the path with a leading `~` expanded."""
    try:
        return Path(name).expanduser()
    except RuntimeError:  # no such user; whoever opens the file will report it
        return Path(name)
