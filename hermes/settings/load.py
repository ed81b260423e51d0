"""Parse a configuration file and report everything that is wrong with it, with line numbers."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, get_args, get_origin

import attrs
import msgspec

from hermes.settings.environment import with_environment
from hermes.settings.references import Reference
from hermes.settings.schema import Settings, keys_of, table_type
from hermes.settings.toml_lines import KeyPath, key_lines
from hermes.settings.validate import validate
from hermes.validation import expectation, most_similar

Values: TypeAlias = Mapping[str, Any]

_SYNTAX_LINE = re.compile(r"\(at line (\d+), column \d+\)")


@attrs.frozen(order=True)
class Problem:
    """One thing that is wrong with the settings. `line` is 0 and `key` empty if unknown."""

    line: int
    key: str
    message: str
    because: tuple[str, ...] = attrs.field(default=(), kw_only=True, eq=False)
    """Other keys. If one of them is wrong too, this is probably a consequence."""

    def __str__(self) -> str:
        line = f"line {self.line}: " if self.line else ""
        key = f"{self.key}: " if self.key else ""
        return f"{line}{key}{self.message}"


class SettingsError(ValueError):
    """The settings cannot be used; `problems` lists why."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


Check: TypeAlias = Callable[[Settings], Iterable[Problem]]

WrongKey: TypeAlias = tuple[KeyPath, str, *tuple[KeyPath, ...]]
"""A key, what is wrong with it, and the key that it resembles: that one only seems to be missing.
"""

_STAND_INS: Mapping[KeyPath, str] = {
    ("agent", "kind"): "openai",
    ("telegram", "token"): "env:TOKEN",
    ("transcriber", "base_url"): "http://127.0.0.1",
    ("transcriber", "model"): "whisper-1",
    ("metrics", "file"): "metrics.prom",
    ("http", "hooks", "NAME", "secret"): "env:SECRET",
}
"""What replaces a wrong value while everything else in the file is checked.

For other keys this is the default. These have none, or one with which other keys have no effect.
"""


def load(
    text: str,
    overrides: Values | None = None,
    environment: Mapping[str, str] | None = None,
    check: Check | None = None,
) -> Settings:
    """Return the settings in a TOML text.

    `overrides` are values from elsewhere, such as the command line; they replace those of the text.
    `environment` holds environment variables, which choose the agent if nothing else does. `check`
    looks for further problems. Raises `SettingsError` with every problem that was found: also if
    some values are wrong, the others are checked.
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
    wrong = list(_check_table(values, Settings, ()))
    settings, right = _convert_right(values, wrong)
    problems = [Problem(0, _dotted(path), message) for path, message, *_ in wrong]
    affected = {_dotted(path) for path, _, *meant in wrong for path in (path, *meant)}
    broken = [
        Problem(0, _dotted(path), message, because=tuple(map(_dotted, because)))
        for path, message, *because in validate(settings, right)
    ]
    problems += _independent(broken, affected)
    if check is not None:
        reported = {each.key for each in broken}
        further = [each for each in check(settings) if each.key not in reported]
        problems += _independent(further, affected)
    if problems:
        raise SettingsError(_with_lines(problems, text))
    return settings


def _independent(found: Iterable[Problem], affected: Collection[str]) -> Iterator[Problem]:
    """Yield the problems that are not a consequence of problems with the `affected` keys."""
    for problem in found:
        inside = any(_is_inside(problem.key, key) for key in affected)
        caused = any(
            _is_inside(key, other) or _is_inside(other, key)
            for key in problem.because
            for other in affected
        )
        if not inside and not caused:
            yield problem


def _is_inside(key: str, other: str) -> bool:
    """Return whether a key is another one, or inside of the table or array with that key."""
    return key == other or key.startswith((f"{other}.", f"{other}["))


def _convert_right(values: Values, wrong: list[WrongKey]) -> tuple[Settings, dict[str, Any]]:
    """Return the settings without the values that are wrong, and the values without them.

    Values that are not allowed together are added to `wrong`.
    """
    right = _without(values, [path for path, *_ in wrong])
    while True:
        try:
            return msgspec.convert(right, Settings, dec_hook=_convert), right
        except msgspec.ValidationError as error:
            path, message = _combination_problem(error)
            wrong.append((path, message))
            shorter = _without(right, [path])
            # An error of msgspec without a path would remove nothing.
            right = shorter if shorter != right else {}


def _without(values: Values, paths: Sequence[KeyPath]) -> dict[str, Any]:
    """Return a copy of the values without those at the paths.

    Values that are needed for the rest are replaced instead, and so are elements of arrays.
    """
    copy = _copy(values)
    for path in paths:
        table: dict[str, Any] = copy
        for index, part in enumerate(path):
            value = table.get(str(part))
            if not isinstance(value, dict) or index == len(path) - 1:
                array = _replaced(value, path[: index + 1], paths)
                if array:
                    table[str(part)] = array
                else:
                    table.pop(str(part), None)
                break
            table = value
        if (stand_in := _stand_in(path)) is not None:
            table[str(path[-1])] = stand_in
    return copy


def _stand_in(path: KeyPath) -> str | None:
    """Return what replaces a wrong value. The names of webhooks are chosen by the user."""
    named = (*path[:2], "NAME", *path[3:]) if path[:2] == ("http", "hooks") else path
    return _STAND_INS.get(named)


def _replaced(array: object, path: KeyPath, wrong: Collection[KeyPath]) -> list[Any]:
    """Return an array with a right element in place of each wrong one, if it has a right one.

    So the others keep their positions. If the array itself is wrong, the result is empty.
    """
    if path in wrong or not isinstance(array, list):
        return []
    bad = {each[len(path)] for each in wrong if each[: len(path)] == path}
    right = [element for index, element in enumerate(array) if index not in bad]
    if not right:
        return []
    return [right[0] if index in bad else element for index, element in enumerate(array)]


def _copy(values: Values) -> dict[str, Any]:
    return {
        name: _copy(value) if isinstance(value, dict) else value for name, value in values.items()
    }


def _with_lines(problems: Iterable[Problem], text: str) -> list[Problem]:
    """Return the problems with the line of their key, or of the table around it, sorted."""
    lines = {_dotted(path): line for path, line in key_lines(text).items()}

    def line_of(key: str) -> int:
        while key and key not in lines:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return lines.get(key, 0)

    return sorted(attrs.evolve(problem, line=line_of(problem.key)) for problem in problems)


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


def _check(value: Any, kind: Any, path: KeyPath) -> Iterator[WrongKey]:
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


def _check_table(values: Values, table: type[msgspec.Struct], path: KeyPath) -> Iterator[WrongKey]:
    kinds = keys_of(table)
    for name, value in values.items():
        if name in kinds:
            yield from _check(value, kinds[name], (*path, name))
        elif table is not Settings and name in Settings.__struct_fields__:
            yield (*path, name), f"unknown key; it is a separate table, [{name}]"
        elif (meant := most_similar(name, kinds)) is not None:
            yield (*path, name), f"unknown key; did you mean {meant}?", (*path, meant)
        else:
            yield (*path, name), f"unknown key; the keys here are {', '.join(kinds)}"
    for field in msgspec.structs.fields(table):
        if field.required and field.name not in values:
            example = _stand_in((*path, field.name))
            yield (*path, field.name), f"missing; add it, as in {field.name} = {example!r}"


def _check_value(value: Any, kind: Any, path: KeyPath) -> Iterator[WrongKey]:
    if (expected := expectation(value, kind, _convert)) is not None:
        yield path, expected


def _convert(kind: type, value: object) -> object:
    if kind is Reference and isinstance(value, str):
        return Reference(value)
    raise ValueError("expected a string: env:NAME or file:PATH")


def _dotted(path: KeyPath) -> str:
    dotted = ""
    for part in path:
        dotted += f"[{part}]" if isinstance(part, int) else f"{'.' if dotted else ''}{part}"
    return dotted
