"""Parse a configuration file and report everything that is wrong with it, with line numbers."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, get_args, get_origin

import attrs
import msgspec

from hermes.settings.environment import with_environment
from hermes.settings.schema import Reference, Settings, keys_of, table_type
from hermes.settings.toml_lines import KeyPath, key_lines
from hermes.settings.validate import validate
from hermes.validation import did_you_mean, expectation

Values: TypeAlias = Mapping[str, Any]

_SYNTAX_LINE = re.compile(r"\(at line (\d+), column \d+\)")


@attrs.frozen(order=True)
class Problem:
    """One thing that is wrong with the settings. `line` is 0 and `key` empty if unknown."""

    line: int
    key: str
    message: str

    def __str__(self) -> str:
        line = f"line {self.line}: " if self.line else ""
        key = f"{self.key}: " if self.key else ""
        return f"{line}{key}{self.message}"


class SettingsError(ValueError):
    """The settings cannot be used; `problems` lists why."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def load(
    text: str, overrides: Values | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings in a TOML text.

    `overrides` are values from elsewhere, such as the command line; they replace those of the text.
    `environment` holds environment variables, which choose the agent if nothing else does.
    Raises `SettingsError` with every problem that was found.
    """
    try:
        values: Values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError([_syntax_problem(error)]) from None
    except RecursionError:
        raise SettingsError([Problem(0, "", "the file is nested too deeply")]) from None
    values = _merge(values, overrides or {})
    if environment is not None and isinstance(agent := values.get("agent", {}), dict):
        values["agent"] = with_environment(agent, environment)
    problems = list(_check_table(values, Settings, ()))
    if not problems:
        try:
            settings = msgspec.convert(values, Settings, dec_hook=_convert)
        except msgspec.ValidationError as error:
            problems = [_combination_problem(error)]
        else:
            problems = list(validate(settings, values))
            if not problems:
                return settings
    lines = key_lines(text)
    raise SettingsError(
        sorted(Problem(_line(lines, path), _dotted(path), message) for path, message in problems)
    )


def with_lines(problems: Iterable[Problem], text: str) -> list[Problem]:
    """Return the problems with the line numbers of their keys in the text, sorted."""
    lines = {_dotted(path): line for path, line in key_lines(text).items()}
    return sorted(
        attrs.evolve(problem, line=problem.line or lines.get(problem.key, 0))
        for problem in problems
    )


def _merge(values: Values, overrides: Values) -> dict[str, Any]:
    merged = dict(values)
    for name, value in overrides.items():
        below = merged.get(name)
        both_tables = isinstance(below, dict) and isinstance(value, dict)
        merged[name] = _merge(below, value) if both_tables else value  # type: ignore[arg-type]
    return merged


def _syntax_problem(error: tomllib.TOMLDecodeError) -> Problem:
    message = str(error)
    line = _SYNTAX_LINE.search(message)
    reason = _SYNTAX_LINE.sub("", message).strip()
    return Problem(int(line[1]) if line else 0, "", f"invalid TOML: {reason}")


def _combination_problem(error: msgspec.ValidationError) -> tuple[KeyPath, str]:
    """Return the table and the message for values that are allowed, but not together."""
    message, _, path = str(error).partition(" - at `$.")
    return tuple(path.rstrip("`").split(".")), message


# The walk through tables and values. msgspec alone would report only the first problem.


def _check(value: Any, kind: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Yield everything in a value that does not fit its type."""
    inner = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    table = table_type(kind)
    if table is not None and isinstance(value, dict):
        yield from _check_table(value, table, path)
    elif get_origin(inner) in {dict, Mapping} and isinstance(value, dict):
        for name, item in value.items():
            yield from _check(item, get_args(inner)[1], (*path, name))
    elif get_origin(inner) is list and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _check(item, get_args(inner)[0], (*path, index))
    else:
        yield from _check_value(value, kind, path)


def _check_table(
    values: Values, table: type[msgspec.Struct], path: KeyPath
) -> Iterator[tuple[KeyPath, str]]:
    kinds = keys_of(table)
    for name, value in values.items():
        if name in kinds:
            yield from _check(value, kinds[name], (*path, name))
        elif table is not Settings and name in Settings.__struct_fields__:
            yield (*path, name), f"unknown key; it is a separate table, [{name}]"
        else:
            yield (*path, name), f"unknown key{did_you_mean(name, kinds)}"
    for field in msgspec.structs.fields(table):
        if field.required and field.name not in values:
            yield path, f"{field.name} is missing"


def _check_value(value: Any, kind: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if (expected := expectation(value, kind, _convert)) is not None:
        yield path, expected


def _convert(kind: type, value: object) -> object:
    if kind is Reference and isinstance(value, str):
        return Reference(value)
    raise ValueError("expected a string: env:NAME or file:PATH")


def _line(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """Return the line of a key, or of the innermost table around it that has one."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 0)


def _dotted(path: KeyPath) -> str:
    dotted = ""
    for part in path:
        dotted += f"[{part}]" if isinstance(part, int) else f"{'.' if dotted else ''}{part}"
    return dotted
