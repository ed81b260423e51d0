"""Schemas of functions for a model, and decoding of the arguments that it sends."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from hermes.agents.tools.schema import BadArguments, Signature, parse_docstring
from hermes.agents.tools.toolbox import tool
from tests.support.tool_functions import Colour, Line, Mailing, Point, Tree, send_mail


def parameters(function):
    return tool(function).schema["parameters"]


def test_a_schema_is_made_of_the_signature_and_the_docstring():
    assert tool(send_mail).schema == {
        "name": "send_mail",
        "description": "Send a mail.\n\nIt leaves at once.\n\nReturns:\n    Its number.",
        "parameters": {
            "type": "object",
            "properties": {
                "to": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Who gets it; one or many.",
                },
                "subject": {"type": "string", "description": "What it is about."},
                "urgency": {"enum": ["high", "low"], "default": "low"},
                "cc": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                "copies": {"type": "integer", "default": 1},
            },
            "required": ["to", "subject"],
            "additionalProperties": False,
        },
    }


def test_nested_types_are_written_out():
    def draw(line: Line, more: dict[str, Point], mailing: Mailing | None = None) -> None: ...

    point = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
    }
    found = parameters(draw)
    assert found["properties"]["line"] == {
        "type": "object",
        "properties": {
            "ends": {"type": "array", "items": point},
            "label": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["ends"],
    }
    assert found["properties"]["more"] == {"type": "object", "additionalProperties": point}
    inside = found["properties"]["mailing"]["anyOf"]
    assert set(inside[0].get("properties", inside[-1].get("properties"))) == {"title", "properties"}
    assert "$" not in json.dumps(found)


def test_other_types_of_json_are_understood():
    def run(
        when: date, colour: Colour, any_: Any, either: int | str,
        size: Annotated[int, msgspec.Meta(ge=1, description="How many.")] = 3,
        odd: Any = threading, names: frozenset[str] = frozenset({"b", "a", "c"}),
    ) -> None: ...  # fmt: skip

    assert parameters(run)["properties"] == {
        "when": {"type": "string", "format": "date"},
        "colour": {"enum": ["blue", "red"]},
        "any_": {},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "size": {"type": "integer", "minimum": 1, "description": "How many.", "default": 3},
        "odd": {},
        "names": {
            "type": "array",
            "items": {"type": "string"},
            "uniqueItems": True,
            "default": ["a", "b", "c"],
        },
    }


def test_a_function_without_parameters_has_an_empty_object():
    def now() -> str: ...

    assert tool(now).schema == {
        "name": "now",
        "description": "",
        "parameters": {
            "type": "object",
            "properties": {},
            "required": [],
            "additionalProperties": False,
        },
    }


@pytest.mark.parametrize(
    ("doc", "description", "described"),
    [
        ("", "", {}),
        ("One line.", "One line.", {}),
        (
            "Do it.\n\n:param str x: The first,\n    and more.\n:param y: Two.\n:returns: no\n",
            "Do it.",
            {"x": "The first, and more.", "y": "Two."},
        ),
        (
            "Do it.\n\nArgs:\n  x: One.\n\n  y (int, optional): Two:\n    three.\n\nAnd then.",
            "Do it.\n\nAnd then.",
            {"x": "One.", "y": "Two: three."},
        ),
        ("Args:\n", "", {}),
        ("Note: it is slow.\nArguments: none", "Note: it is slow.\nArguments: none", {}),
    ],
)
def test_docstrings_in_both_styles(doc, description, described):
    assert parse_docstring(doc) == (description, described)


@given(st.text(alphabet=":A rgsparmx\n(y) -", max_size=80))
def test_any_docstring_can_be_read(doc):
    _, described = parse_docstring(doc)
    assert all("\n" not in text for text in described.values())


def test_schemas_are_sorted_and_have_the_same_bytes_in_every_process():
    code = (
        "import json\n"
        "from typing import Literal\n"
        "from hermes.agents.tools import Toolbox\n"
        "from tests.support.tool_functions import Line, send_mail\n"
        "def b(names: frozenset[str] = frozenset('qwertyuiop')): ...\n"
        "def a(urgency: Literal['z', 'y', 'x'], line: Line): ...\n"
        "print(json.dumps(Toolbox([b, a, send_mail]).schemas))"
    )

    def written(seed):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": "."}
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment, check=True, capture_output=True, text=True, timeout=60,
        ).stdout  # fmt: skip

    first = written("1")
    assert first == written("2")
    assert [each["name"] for each in json.loads(first)] == ["a", "b", "send_mail"]


# Functions that cannot be tools


def positional(x: int, /) -> None: ...
def many(*xs: int) -> None: ...
def named(**xs: int) -> None: ...
def bare(x) -> None: ...
def strange(x: threading.Thread) -> None: ...
def recursive(x: Tree) -> None: ...
def function_of(x: Callable[[], int]) -> None: ...
def two_objects(x: Point | Mailing) -> None: ...
def unknown(x: Nowhere) -> None: ...  # noqa: F821
def underscored(__x: int) -> None: ...  # noqa: PYI063


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (positional, "a model cannot pass x, which has no keyword"),
        (many, r"a model cannot pass \*xs, which"),
        (named, r"a model cannot pass \*\*xs, which"),
        (bare, "parameter x needs an annotation"),
        (strange, "parameter x cannot be decoded from JSON: type .* is not supported"),
        (recursive, "recursive types are not supported"),
        (function_of, "parameter x cannot be decoded from JSON"),
        (two_objects, "parameter x cannot be decoded from JSON"),
        (unknown, "an annotation cannot be resolved: name 'Nowhere' is not defined"),
        (underscored, "must not begin with two underscores"),
    ],
)
def test_a_function_that_a_model_cannot_call_is_refused_in_one_sentence(function, why):
    with pytest.raises(TypeError, match=why) as refused:
        tool(function)
    text = str(refused.value)
    assert text.startswith(f"tool {function.__name__}: ")
    assert "\n" not in text


# Arguments


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def free(x: Any, y: Any = None) -> None: ...


@given(x=json_values, y=json_values, swapped=st.booleans(), spaced=st.booleans())
def test_the_same_arguments_are_the_same_text_however_they_are_written(x, y, swapped, spaced):
    pairs = [("x", x), ("y", y)]
    sent = json.dumps(
        dict(reversed(pairs) if swapped else pairs),
        indent=3 if spaced else None,
        ensure_ascii=not spaced,
    )
    signature = Signature.of(free, "free")
    read = signature.read(sent)
    assert read.values == {"x": x, "y": y}
    assert signature.read(read.canonical) == read
    assert read.canonical == signature.read(json.dumps(dict(pairs))).canonical
    assert json.loads(read.canonical) == {"x": x, "y": y}


@given(text=st.text(max_size=60) | st.from_regex(r'\{"(to|subject)": .{0,20}\}'))
def test_whatever_a_model_sends_it_is_read_or_refused_in_one_line(text):
    signature = Signature.of(send_mail, "send_mail")
    try:
        read = signature.read(text)
    except BadArguments as error:
        refused = str(error)
    else:
        assert set(read.values) >= {"to", "subject"}
        return
    assert "\n" not in refused


@given(
    to=st.lists(st.text(st.characters(codec="utf-8"), max_size=5), max_size=3),
    subject=st.text(st.characters(codec="utf-8"), max_size=10),
    copies=st.integers(-(2**63), 2**63 - 1),
)
def test_good_arguments_are_never_refused(to, subject, copies):
    sent = json.dumps({"to": to, "subject": subject, "copies": copies})
    read = Signature.of(send_mail, "send_mail").read(sent)
    assert read.values == {"to": to, "subject": subject, "copies": copies}


@pytest.mark.parametrize(
    "number",
    [
        "12345678901234567890.99", "12345678901234567000.0", "0.1000000000000000000000001",
        "1.50", "1.5", "-0.0", "1E+400", "1E-400", "3", "123456789012345678901234567890",
    ],
)  # fmt: skip
def test_the_canonical_arguments_have_all_digits_of_a_decimal(number):
    def pay(amount: Decimal) -> str:
        """Pay."""
        return str(amount)

    signature = Signature.of(pay, "pay")
    read = signature.read(f'{{"amount": {number}}}')
    assert read.canonical == f'{{"amount":{number}}}'
    assert str(read.values["amount"]) == str(Decimal(number))
    assert signature.read(read.canonical) == read


def test_a_number_beyond_all_bounds_is_refused():
    def pay(amount: Decimal) -> str:
        """Pay."""
        return str(amount)

    with pytest.raises(BadArguments):
        Signature.of(pay, "pay").read('{"amount": 1e9999999999999999999999}')
