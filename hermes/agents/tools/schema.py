"""From a typed Python function to what a model is told of it, and back from a model's JSON."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import msgspec

from hermes.messages import JsonObject
from hermes.protocols import Turn

TURN = "turn"
_ARGS = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_SPHINX = re.compile(r":(?:param|parameter|arg|argument)(?:\s+[^:]*?)?\s+(\w+):\s*(.*)")
_FIELD = re.compile(r":\w[^:]*:")
_SHOWN: Mapping[object, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_AS_THEY_ARE = frozenset({"default", "enum", "const", "examples", "required"})
_LEFT_OUT = frozenset({"$ref", "title", "discriminator"})


class BadArguments(ValueError):
    """What a model has sent is not what the function takes; the text says why."""


@attrs.frozen
class Arguments:
    """The arguments of a call: as canonical JSON, and as the function takes them."""

    canonical: str
    values: Mapping[str, Any]


@attrs.frozen
class Signature:
    """How a function is called by a model."""

    description: str
    parameters: JsonObject
    takes_turn: str | None
    """The parameter that is given the running turn, if there is one."""
    _decoder: msgspec.json.Decoder[Any] = attrs.field(eq=False, repr=False)

    @classmethod
    def of(cls, function: Callable[..., Any], name: str) -> Signature:
        """Read a function; TypeError, in a sentence, where a model could not call it."""
        hints = _hints(function, name)
        fields: list[tuple[str, Any, Any] | tuple[str, Any]] = []
        defaults: dict[str, object] = {}
        takes_turn = None
        for each in inspect.signature(function).parameters.values():
            if hints.get(each.name) is Turn or (each.name == TURN and each.name not in hints):
                takes_turn = each.name
                continue
            kind = _checked(each, hints, name)
            if each.default is inspect.Parameter.empty:
                fields.append((each.name, kind))
            else:
                # Left out by the model, it is left out of the call: the function has its default.
                fields.append((each.name, kind, msgspec.UNSET))
                defaults[each.name] = each.default
        arguments = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        said, described = read_docstring(inspect.getdoc(function) or "")
        return cls(
            said,
            _parameters(arguments, name, defaults, described),
            takes_turn,
            msgspec.json.Decoder(arguments),
        )

    def read(self, text: str) -> Arguments:
        """The arguments that a model has sent, or `BadArguments`."""
        try:
            sent = text.encode() if text.strip() else b"{}"
            values = self._decoder.decode(sent)
            canonical = msgspec.json.encode(msgspec.json.decode(sent), order="deterministic")
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise BadArguments(f"{_one_line(str(error))}. {self.usage}") from None
        except Exception as error:  # noqa: BLE001 - a type of the function's own may refuse its values
            raise BadArguments(f"{type(error).__name__}: {_one_line(str(error))}") from None
        named = {name: getattr(values, name) for name in values.__struct_fields__}
        given = {name: value for name, value in named.items() if value is not msgspec.UNSET}
        return Arguments(canonical.decode(), given)

    @property
    def usage(self) -> str:
        """What it takes, in a sentence for a model that got it wrong."""
        required = self.parameters.get("required", ())
        taken = [
            f"{name}: {_kind(schema)}" + ("" if name in required else " (optional)")
            for name, schema in self.parameters["properties"].items()
        ]
        return "It takes " + (f"an object with {', '.join(taken)}." if taken else "no arguments.")


@attrs.frozen
class GivenSignature(Signature):
    """How a tool of somebody else's is called: by the schema it came with, which it checks."""

    @classmethod
    def given(cls, description: str, parameters: JsonObject) -> GivenSignature:
        """The signature of a tool that has told its schema."""
        return cls(description, parameters, None, msgspec.json.Decoder(dict[str, Any]))

    def read(self, text: str) -> Arguments:
        """The arguments that a model has sent; whether they are right, the tool will say."""
        try:
            values = self._decoder.decode(text.encode() if text.strip() else b"{}")
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise BadArguments(f"{_one_line(str(error))}. It takes an object.") from None
        canonical = msgspec.json.encode(values, order="deterministic")
        return Arguments(canonical.decode(), values)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise TypeError(f"tool {name}: an annotation cannot be understood: {error}") from None


def _checked(parameter: inspect.Parameter, hints: Mapping[str, Any], tool: str) -> Any:
    """The type of a parameter; TypeError where a model cannot give it."""
    name = parameter.name
    if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
        shown = _SHOWN.get(parameter.kind, "") + name
        raise TypeError(f"tool {tool}: a model cannot give {shown}, which has no name in a call")
    if name not in hints:
        raise TypeError(f"tool {tool}: parameter {name} needs an annotation")
    if name.startswith("__"):
        raise TypeError(f"tool {tool}: parameter {name} cannot begin with two underscores")
    try:
        msgspec.json.schema(hints[name])
        msgspec.json.Decoder(hints[name])
    except (TypeError, NameError) as error:
        why = str(error).strip().splitlines()[-1]
        raise TypeError(f"tool {tool}: parameter {name} cannot come from JSON: {why}") from None
    return hints[name]


def _parameters(
    arguments: type[msgspec.Struct],
    tool: str,
    defaults: Mapping[str, object],
    described: Mapping[str, str],
) -> JsonObject:
    (ref,), components = msgspec.json.schema_components([arguments], ref_template="{name}")
    try:
        schema: JsonObject = _inlined(ref, components, ())
    except RecursionError:
        raise TypeError(f"tool {tool}: a type that contains itself has no end") from None
    for name, each in schema["properties"].items():
        each.pop("default", None)
        if name in defaults and (default := _as_json(defaults[name])) is not msgspec.UNSET:
            each["default"] = default
        if name in described:
            each.setdefault("description", described[name])
    return schema


def _inlined(node: Any, components: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    """A schema without references, and without the names that only these need."""
    if isinstance(node, list):
        return [_inlined(each, components, inside) for each in node]
    if not isinstance(node, dict):
        return node
    found: JsonObject = {}
    if (name := node.get("$ref")) is not None:
        if name in inside:
            raise RecursionError(name)
        found = _inlined(components[name], components, (*inside, name))
    kept = {key: value for key, value in node.items() if key not in _LEFT_OUT}
    for key, value in kept.items():
        if key == "properties":  # its keys are names, not words of the schema
            found[key] = {n: _inlined(each, components, inside) for n, each in value.items()}
        else:
            as_it_is = key in _AS_THEY_ARE
            found[key] = value if as_it_is else _inlined(value, components, inside)
    return found


def _as_json(value: object) -> Any:
    """A default as a model sees it; UNSET where JSON cannot say it."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))
    except (TypeError, ValueError, msgspec.MsgspecError):
        return msgspec.UNSET


def _kind(schema: JsonObject) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(msgspec.json.encode(each).decode() for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    kind = schema.get("type")
    return kind if isinstance(kind, str) else "anything"


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of the function, and of each parameter (Google's style or Sphinx's)."""
    said: list[str] = []
    described: dict[str, str] = {}
    lines = doc.splitlines()
    place = 0
    while place < len(lines):
        line = lines[place]
        if _ARGS.fullmatch(line):
            end = _block(lines, place + 1, deeper_than=0)
            described |= _google(lines[place + 1 : end])
            place = end
        elif _FIELD.match(line):
            end = _block(lines, place + 1, deeper_than=0)
            if found := _SPHINX.match(line):
                text = [found[2], *lines[place + 1 : end]]
                described[found[1]] = _one_line(" ".join(text))
            place = end
        else:
            said.append(line)
            place += 1
    return re.sub(r"\n{3,}", "\n\n", "\n".join(said)).strip(), described


def _google(lines: list[str]) -> dict[str, str]:
    described: dict[str, str] = {}
    depth = min((_depth(line) for line in lines if line.strip()), default=0)
    name = None
    for line in lines:
        if _depth(line) == depth and (found := _GOOGLE.fullmatch(line.strip())):
            name = found[1]
            described[name] = found[2]
        elif name is not None:
            described[name] += " " + line
    return {name: _one_line(text) for name, text in described.items()}


def _block(lines: list[str], start: int, deeper_than: int) -> int:
    """Where the lines end that are indented deeper, empty ones among them."""
    end = start
    for place in range(start, len(lines)):
        if not lines[place].strip():
            continue
        if _depth(lines[place]) <= deeper_than:
            break
        end = place + 1
    return end


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _one_line(text: str) -> str:
    return " ".join(text.split())
