"""Which replacements of the sentences for users can be used."""

from __future__ import annotations

import string
from collections.abc import Iterator

import msgspec

from hermes.texts import ENGLISH, Texts


def problems(texts: Texts) -> Iterator[tuple[str, str]]:
    """Yield the name of every sentence that cannot be used, and why."""
    defaults = msgspec.structs.asdict(ENGLISH)
    for name, text in msgspec.structs.asdict(texts).items():
        if text is defaults[name]:
            continue
        problem = _problem(name, text, defaults[name])
        if problem is not None:
            yield name, problem


def _problem(name: str, text: object, default: str) -> str | None:
    if not isinstance(text, str):
        return f"expected a string, not {text!r:.50}"
    if not text.strip():
        return "the text is empty; users would see nothing"
    try:
        used, allowed = _placeholders(text), _placeholders(default)
    except ValueError as error:
        return f"the braces do not match ({error}); write {{{{ and }}}} for braces in the text"
    if unknown := sorted(used - allowed):
        known = ", ".join(sorted(allowed)) or "none"
        return f"unknown placeholder {unknown[0]}; it may use {known}"
    if name.startswith("help_"):
        usage, colon, _ = text.partition(": ")
        command = default.partition(": ")[0].split()[0]
        if not colon or usage.split()[:1] != [command]:
            return f"expected {command}, a colon and what it does"
    return None


def _placeholders(text: str) -> set[str]:
    """Return the placeholders of a text, each as `{name}`; raises `ValueError` if they are odd."""
    found = set()
    for _, name, spec, conversion in string.Formatter().parse(text):
        if name is not None:
            ending = (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            found.add(f"{{{name}{ending}}}")
    return found


def require_usable(texts: Texts) -> None:
    """Raise `ValueError` if a sentence cannot be used."""
    for name, problem in problems(texts):
        raise ValueError(f"texts.{name}: {problem}")
