"""From a TOML text to settings, or to everything that is wrong with it, line by line."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

import attrs
import msgspec

from hermes.settings.environment import agent_of
from hermes.settings.schema import Reference, Settings, Table
from hermes.settings.toml_lines import Path, lines_of
from hermes.settings.validate import broken_rules

Told: TypeAlias = Mapping[str, Any]

_AT = re.compile(r"\(at line (\d+), column \d+\)")
_WHERE = re.compile(r" - at `\$[^`]*`$")


@attrs.frozen(order=True)
class Problem:
    """What is wrong, in a sentence that says what to do; `line` is 0 where it has none."""

    line: int
    key: str
    sentence: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.key}: {self.sentence}" if self.key else f"{place}{self.sentence}"


class BadSettings(ValueError):
    """The settings cannot be used; `problems` says why."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def read(
    text: str, also: Told | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """The settings of a text. Raises `BadSettings` with all that is wrong.

    `also` was said elsewhere, as on the command line, and counts more; the `environment` counts
    where neither chose what answers.
    """
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadSettings([_syntax(error)]) from None
    except RecursionError:
        raise BadSettings([Problem(0, "", "it is nested too deeply")]) from None
    told = _merged(told, also or {})
    if environment is not None and isinstance(agent := told.get("agent", {}), dict):
        told["agent"] = agent_of(agent, environment)
    problems = list(_check(told, Settings, ()))
    if not problems:
        settings = msgspec.convert(told, Settings, dec_hook=_convert)
        problems = list(broken_rules(settings, told))
        if not problems:
            return settings
    lines = lines_of(text)
    raise BadSettings(
        sorted(Problem(_line(lines, path), _shown(path), why) for path, why in problems)
    )


def located(problems: Iterable[Problem], text: str) -> list[Problem]:
    """The problems, with the lines of their keys where they had none."""
    lines = {_shown(path): line for path, line in lines_of(text).items()}
    return sorted(
        Problem(each.line or lines.get(each.key, 0), each.key, each.sentence) for each in problems
    )


def _merged(told: Told, also: Told) -> dict[str, Any]:
    merged = dict(told)
    for name, value in also.items():
        before = merged.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[name] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return merged


def _syntax(error: tomllib.TOMLDecodeError) -> Problem:
    said = str(error)
    found = _AT.search(said)
    what = _AT.sub("", said).strip()
    return Problem(int(found[1]) if found else 0, "", f"this is not TOML: {what}")


def _check(told: Any, kind: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Everything that does not fit, deepest first."""
    table, values = _table_of(kind), _values_of(kind)
    if table is not None and isinstance(told, dict):
        yield from _check_table(told, table, path)
    elif values is not None and isinstance(told, dict):
        names, value = values
        for name, each in told.items():
            if names and name not in names:
                yield (*path, name), _unknown(name, names)
            else:
                yield from _check(each, value, (*path, name))
    elif get_origin(kind) is list and isinstance(told, list):
        for number, each in enumerate(told):
            yield from _check(each, get_args(kind)[0], (*path, number))
    else:
        yield from _check_value(told, kind, path)


def _check_table(
    told: Mapping[str, Any], table: type[Table], path: Path
) -> Iterator[tuple[Path, str]]:
    kinds = get_type_hints(table, include_extras=True)
    for name, each in told.items():
        if name in kinds:
            yield from _check(each, kinds[name], (*path, name))
        else:
            yield (*path, name), _unknown(name, table.__struct_fields__)
    for field in msgspec.structs.fields(table):
        if field.required and field.name not in told:
            yield path, f"{field.name} is missing"


def _check_value(told: Any, kind: Any, path: Path) -> Iterator[tuple[Path, str]]:
    try:
        msgspec.convert(told, kind, dec_hook=_convert)
    except msgspec.ValidationError as error:
        yield path, _sentence(str(error))


def _table_of(kind: Any) -> type[Table] | None:
    choices = [kind, *get_args(kind)] if get_origin(kind) is not dict else []
    return next(
        (each for each in choices if isinstance(each, type) and issubclass(each, Table)), None
    )


def _values_of(kind: Any) -> tuple[tuple[str, ...], Any] | None:
    """The names and the kind of the values of a table whose keys the user chooses."""
    if get_origin(kind) is not dict:
        return None
    name, value = get_args(kind)
    return get_args(name), value


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return "there is no such key" + (f"; did you mean {near[0]}?" if near else "")


def _sentence(said: str) -> str:
    said = _WHERE.sub("", said).replace(" | null", "")
    return said[:1].lower() + said[1:]


def _convert(kind: type, value: object) -> object:
    if kind is Reference and isinstance(value, str):
        return Reference(value)
    raise ValueError("expected a text: env:NAME or file:PATH")


def _line(lines: Mapping[Path, int], path: Path) -> int:
    """The line of the key, or of the closest one around it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 0)


def _shown(path: Path) -> str:
    shown = ""
    for part in path:
        shown += f"[{part}]" if isinstance(part, int) else f"{'.' if shown else ''}{part}"
    return shown
