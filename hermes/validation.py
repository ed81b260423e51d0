"""Check values against their annotated types, and say what is expected instead."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import asdict

_MAX_SHOWN = 80
_JSON_PATH = re.compile(r" - at `\$[^`]*`$")
_TYPE_NAMES = {
    "`str` of length >= 1": "a string that is not empty",
    "`int`": "an integer",
    "`float`": "a number",
    "`str`": "a string",
    "`bool`": "true or false",
    "`array`": "an array",
    "`object`": "a table",
    "`null`": "None",
}
_BOUND = re.compile(r" [<>]=? -?[\d.]+$")
_TYPE_NAME = re.compile("|".join(map(re.escape, _TYPE_NAMES)))


class Validated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value whose fields are checked. Raises `ValueError` if one has a value that is not allowed.

    The annotations of the fields say what is allowed.
    """

    def __post_init__(self) -> None:
        values = asdict(self)
        for name, kind in _types_of(type(self)).items():
            for place, value, expected in _problems(values[name], kind, name):
                shown = f"{value!r}"[:_MAX_SHOWN]
                raise ValueError(f"{type(self).__name__}.{place} is {shown}: {expected}")


@functools.cache
def _types_of(cls: type[msgspec.Struct]) -> Mapping[str, Any]:
    types = get_type_hints(cls, include_extras=True)
    return {name: types[name] for name in cls.__struct_fields__}


def _problems(value: object, kind: Any, place: str) -> Iterator[tuple[str, object, str]]:
    """Yield the place, the value and what is expected there, for what does not fit its type."""
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        if not isinstance(value, inner):
            yield place, value, f"expected {_with_article(inner.__name__)}"
    elif get_origin(inner) is Mapping and isinstance(value, Mapping):
        key_type, item_type = get_args(inner)
        for name, item in value.items():
            yield from _problems(name, key_type, f"{place}[{name!r}]")
            yield from _problems(item, item_type, f"{place}[{name!r}]")
    elif (expected := expectation(value, kind)) is not None:
        yield place, value, expected


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def expectation(
    value: object, kind: Any, dec_hook: Callable[[type, Any], Any] | None = None
) -> str | None:
    """Return what was expected instead of a value, or None if it fits its type.

    `dec_hook` converts values to types that msgspec does not know.
    """
    try:
        msgspec.convert(value, kind, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        choices = _choices(kind)
        if choices:
            listed = ", ".join(f"'{choice}'" for choice in choices)
            hint = did_you_mean(value, choices) if isinstance(value, str) else ""
            return f"expected one of {listed}{hint}"
        return _with_both_bounds(_in_words(error), kind)
    return None


def require_string(name: str, value: object) -> None:
    """Raise `TypeError` unless a value is a string."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {value!r:.{_MAX_SHOWN}}")


def require_instance(name: str, value: object, kind: type) -> None:
    """Raise `TypeError` unless a value is of this class."""
    if not isinstance(value, kind):
        expected = _with_article(f"hermes.{kind.__name__}")
        raise TypeError(f"{name} must be {expected}, not {value!r:.{_MAX_SHOWN}}")


def require_whole(name: str, value: object) -> None:
    """Raise `TypeError` unless a value is a whole number, or None."""
    if isinstance(value, bool) or not (value is None or isinstance(value, int)):
        raise TypeError(f"{name} must be a whole number or None, not {value!r:.{_MAX_SHOWN}}")


def require_timeout(seconds: object) -> None:
    """Raise `ValueError` unless this is a time to wait, or None."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not (isinstance(seconds, int | float) and seconds >= 0):
        raise ValueError(f"timeout is a number of seconds, at least 0, or None, not {seconds!r}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests the most similar name, or nothing."""
    similar = most_similar(name, known)
    return "" if similar is None else f"; did you mean {similar}?"


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """Return the name that was probably meant, or None."""
    return next(iter(difflib.get_close_matches(name, list(known), 1)), None)


def _with_both_bounds(message: str, kind: Any) -> str:
    """Return the message with both bounds of a number; msgspec names the one that was crossed."""
    for meta in get_args(kind):
        if isinstance(meta, msgspec.Meta):
            bounds = {">=": meta.ge, ">": meta.gt, "<=": meta.le, "<": meta.lt}
            named = [f"{sign} {bound}" for sign, bound in bounds.items() if bound is not None]
            message = _BOUND.sub(f" {' and '.join(named)}", message) if named else message
    return message


def _choices(kind: Any) -> list[str]:
    """Return the strings that a type allows, if it lists them."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [choice for part in get_args(kind) for choice in _choices(part)]


def _in_words(error: msgspec.ValidationError) -> str:
    """Return a message of msgspec without its names of types."""
    message = _JSON_PATH.sub("", str(error)).replace(" | null", "")
    message = _TYPE_NAME.sub(lambda found: _TYPE_NAMES[found[0]], message)
    return message[:1].lower() + message[1:]


def is_duration(value: object) -> bool:
    """Whether a value is a number of seconds, 0 or more; NaN is not."""
    return isinstance(value, int | float) and value >= 0
