"""JSON schemas of typed Python functions, and the conversion of arguments and results."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import attrs
import msgspec

from hermes.messages import JsonObject
from hermes.protocols import Turn
from hermes.sanitize import one_line

_ENCODER = msgspec.json.Encoder(order="deterministic", decimal_format="number")
NO_RESULT = "(done)"
_TURN = "turn"
_ARGS_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_SPHINX_PARAM = re.compile(r":(?:param|parameter|arg|argument)(?:\s+[^:]*?)?\s+(\w+):\s*(.*)")
_SPHINX_FIELD = re.compile(r":\w[^:]*:")
_STARS: Mapping[object, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_LITERAL_KEYS = frozenset({"default", "enum", "const", "examples", "required"})
_DROPPED_KEYS = frozenset({"$ref", "title", "discriminator"})


class BadArguments(ValueError):
    """The arguments from a model do not match the function. The message is one line for it."""


@attrs.frozen
class Arguments:
    """The decoded arguments of a call."""

    canonical: str
    """JSON with sorted keys and no white space. Numbers keep all of their digits."""
    values: Mapping[str, Any]
    """The arguments as the types of the function's annotations."""


@attrs.frozen
class Signature:
    """How a model calls a function."""

    description: str
    parameters: JsonObject
    takes_turn: str | None
    """The name of the parameter that receives the running turn, if there is one."""
    _decoder: msgspec.json.Decoder[Any] = attrs.field(eq=False, repr=False)

    @classmethod
    def of(cls, function: Callable[..., Any], name: str) -> Signature:
        """Return the signature of a function.

        Raises `TypeError`, with a message of one line, if a model could not call the function.
        """
        hints = _hints(function, name)
        fields: list[tuple[str, Any, Any] | tuple[str, Any]] = []
        defaults: dict[str, object] = {}
        takes_turn = None
        for each in inspect.signature(function).parameters.values():
            if hints.get(each.name) is Turn or (each.name == _TURN and each.name not in hints):
                takes_turn = each.name
                continue
            kind = _checked_type(each, hints, name)
            if each.default is inspect.Parameter.empty:
                fields.append((each.name, kind))
            else:
                # A parameter that the model omits is omitted in the call, and gets its default.
                fields.append((each.name, kind, msgspec.UNSET))
                defaults[each.name] = each.default
        arguments = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        description, described = parse_docstring(inspect.getdoc(function) or "")
        return cls(
            description,
            _parameters(arguments, name, defaults, described),
            takes_turn,
            msgspec.json.Decoder(arguments),
        )

    def read(self, text: str) -> Arguments:
        """Decode the arguments that a model has sent. Raises `BadArguments`."""
        try:
            sent = text.encode() if text.strip() else b"{}"
            values = self._decoder.decode(sent)
            canonical = _ENCODER.encode(_EXACT.decode(sent))
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise BadArguments(f"{one_line(str(error))}. {self.usage}") from None
        except Exception as error:  # noqa: BLE001 - user code: validation in a type of the function
            raise BadArguments(f"{type(error).__name__}: {one_line(str(error))}") from None
        given = {
            name: value
            for name, value in msgspec.structs.asdict(values).items()
            if value is not msgspec.UNSET
        }
        return Arguments(canonical.decode(), given)

    @property
    def usage(self) -> str:
        """The expected arguments, in one sentence."""
        required = self.parameters.get("required", ())
        expected = [
            f"{name}: {_type_name(schema)}" + ("" if name in required else " (optional)")
            for name, schema in self.parameters["properties"].items()
        ]
        if not expected:
            return "It takes no arguments."
        return f"It takes an object with {', '.join(expected)}."


@attrs.frozen
class GivenSignature(Signature):
    """A signature with a given JSON schema. The tool itself validates the arguments."""

    @classmethod
    def given(cls, description: str, parameters: JsonObject) -> GivenSignature:
        """Return a signature with this description and schema."""
        return cls(description, parameters, None, msgspec.json.Decoder(dict[str, Any]))

    def read(self, text: str) -> Arguments:
        """Decode a JSON object, without validating it. Raises `BadArguments`."""
        try:
            values = self._decoder.decode(text.encode() if text.strip() else b"{}")
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise BadArguments(f"{one_line(str(error))}. It takes an object.") from None
        canonical = msgspec.json.encode(values, order="deterministic")
        return Arguments(canonical.decode(), values)


def _exact_number(text: str) -> float | Decimal:
    """Return a number that is encoded with the same digits: a parameter may be a `Decimal`."""
    number, exact = float(text), Decimal(text)
    return number if Decimal(repr(number)).as_tuple() == exact.as_tuple() else exact


_EXACT = msgspec.json.Decoder(float_hook=_exact_number)


def result_text(value: object) -> str:
    """Return the return value of a function as text for a model: a string as it is, else JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return NO_RESULT
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise TypeError(f"tool {name}: an annotation cannot be resolved: {error}") from None


def _checked_type(parameter: inspect.Parameter, hints: Mapping[str, Any], tool: str) -> Any:
    """Return the type of a parameter. Raises `TypeError` if a model cannot send a value of it."""
    name = parameter.name
    if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
        shown = _STARS.get(parameter.kind, "") + name
        raise TypeError(f"tool {tool}: a model cannot pass {shown}, which has no keyword")
    if name not in hints:
        raise TypeError(f"tool {tool}: parameter {name} needs an annotation")
    if name.startswith("__"):
        raise TypeError(f"tool {tool}: parameter {name} must not begin with two underscores")
    try:
        msgspec.json.schema(hints[name])
        msgspec.json.Decoder(hints[name])
    except (TypeError, NameError) as error:
        why = str(error).strip().splitlines()[-1]
        raise TypeError(
            f"tool {tool}: parameter {name} cannot be decoded from JSON: {why}"
        ) from None
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
        raise TypeError(f"tool {tool}: recursive types are not supported") from None
    for name, each in schema["properties"].items():
        each.pop("default", None)
        if name in defaults and (default := _json_default(defaults[name])) is not msgspec.UNSET:
            each["default"] = default
        if name in described:
            each.setdefault("description", described[name])
    return schema


def _inlined(node: Any, components: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    """Return a schema with all references replaced by what they refer to."""
    if isinstance(node, list):
        return [_inlined(each, components, inside) for each in node]
    if not isinstance(node, dict):
        return node
    found: JsonObject = {}
    if (name := node.get("$ref")) is not None:
        if name in inside:
            raise RecursionError(name)
        found = _inlined(components[name], components, (*inside, name))
    kept = {key: value for key, value in node.items() if key not in _DROPPED_KEYS}
    for key, value in kept.items():
        if key == "properties":  # its keys are names of parameters, not keywords of the schema
            found[key] = {n: _inlined(each, components, inside) for n, each in value.items()}
        elif key in _LITERAL_KEYS:
            found[key] = value
        else:
            found[key] = _inlined(value, components, inside)
    return found


def _json_default(value: object) -> Any:
    """Return a default value as JSON; UNSET if it cannot be encoded."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))
    except (TypeError, ValueError, msgspec.MsgspecError):
        return msgspec.UNSET


def _type_name(schema: JsonObject) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(msgspec.json.encode(each).decode() for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type_name(each) for each in schema["anyOf"])
    name = schema.get("type")
    return name if isinstance(name, str) else "anything"


def parse_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Split a docstring, in Google or Sphinx style, into description and parameter descriptions."""
    description: list[str] = []
    described: dict[str, str] = {}
    lines = doc.splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        if _ARGS_SECTION.fullmatch(line):
            end = _block_end(lines, index + 1, deeper_than=0)
            described |= _google_items(lines[index + 1 : end])
            index = end
        elif _SPHINX_FIELD.match(line):
            end = _block_end(lines, index + 1, deeper_than=0)
            if match := _SPHINX_PARAM.match(line):
                described[match[1]] = one_line(" ".join([match[2], *lines[index + 1 : end]]))
            index = end
        else:
            description.append(line)
            index += 1
    return re.sub(r"\n{3,}", "\n\n", "\n".join(description)).strip(), described


def _google_items(lines: list[str]) -> dict[str, str]:
    described: dict[str, str] = {}
    indentation = min((_indentation(line) for line in lines if line.strip()), default=0)
    name = None
    for line in lines:
        match = _GOOGLE_ITEM.fullmatch(line.strip())
        if match and _indentation(line) == indentation:
            name = match[1]
            described[name] = match[2]
        elif name is not None:
            described[name] += " " + line
    return {name: one_line(text) for name, text in described.items()}


def _block_end(lines: list[str], start: int, deeper_than: int) -> int:
    """Return the end of a block of lines that are blank or indented deeper."""
    end = start
    for index in range(start, len(lines)):
        if not lines[index].strip():
            continue
        if _indentation(lines[index]) <= deeper_than:
            break
        end = index + 1
    return end


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
