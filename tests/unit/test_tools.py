"""Functions as tools: what a model is told of them, what it may send, and what it gets back."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, Literal, Optional

import attrs
import msgspec
import pytest
import trio
from hypothesis import given, strategies as st

from hermes import Inbound, Source, ToolCall, current_session_id
from hermes.actors.session.running_turn import Mail, RunningTurn
from hermes.agents.tools.schema import BadArguments, Signature, read_docstring
from hermes.agents.tools.toolbox import Toolbox, ToolOutcome, tool
from hermes.context import TurnContext, within
from hermes.errors import TurnClosed
from hermes.protocols import Turn
from hermes.user_code import leaf


def a_turn(platform="embedded"):
    mail = Mail(7, Inbound("k", "e", "hi", Source(platform)))
    return RunningTurn(TurnContext("k", "s", 7), [mail], [mail.message], lambda event: None)


async def ran(function, arguments="{}", turn=None, **options):
    """What comes of one call of a function."""
    made = tool(**options)(function)
    call = ToolCall("c", made.name, arguments)
    return await Toolbox([made]).run(call, turn or a_turn())


def parameters(function):
    return tool(function).schema["parameters"]


# Schemas


@attrs.frozen
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Line:
    ends: list[Point]
    label: str | None = None


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mailing(msgspec.Struct):
    title: str
    properties: dict[str, int] = {}


class Tree(msgspec.Struct):
    branches: list[Tree]


def send_mail(
    to: list[str],
    subject: str,
    urgency: Literal["low", "high"] = "low",
    cc: Optional[str] = None,  # noqa: UP045 - what people write
    *,
    copies: int = 1,
    turn: Turn,
) -> str:
    """Send a mail.

    It leaves at once.

    Args:
        to: Who gets it;
            one or many.
        subject (str): What it is about.
        nobody: A parameter that there is not.

    Returns:
        Its number.
    """
    return f"{turn.turn_id}: {to} {subject} {urgency} {cc} {copies}"


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
    ("doc", "said", "described"),
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
def test_docstrings_in_both_styles(doc, said, described):
    assert read_docstring(doc) == (said, described)


@given(st.text(alphabet=":A rgsparmx\n(y) -", max_size=80))
def test_any_docstring_can_be_read(doc):
    _, described = read_docstring(doc)
    assert all("\n" not in text for text in described.values())


def test_schemas_are_sorted_and_have_the_same_bytes_in_every_process():
    code = (
        "import json; from tests.unit.test_tools import *\n"
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


# What is refused when a tool is made


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
        (positional, "a model cannot give x, which has no name in a call"),
        (many, r"a model cannot give \*xs, which"),
        (named, r"a model cannot give \*\*xs, which"),
        (bare, "parameter x needs an annotation"),
        (strange, "parameter x cannot come from JSON: type .* is not supported"),
        (recursive, "a type that contains itself has no end"),
        (function_of, "parameter x cannot come from JSON"),
        (two_objects, "parameter x cannot come from JSON"),
        (unknown, "an annotation cannot be understood: name 'Nowhere' is not defined"),
        (underscored, "cannot begin with two underscores"),
    ],
)
def test_a_function_that_a_model_cannot_call_is_refused_in_one_sentence(function, why):
    with pytest.raises(TypeError, match=why) as refused:
        tool(function)
    text = str(refused.value)
    assert text.startswith(f"tool {function.__name__}: ")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "with space"}, "needs a name of up to 64 letters"),
        ({"name": "x" * 65}, "needs a name of up to 64 letters"),
        ({"platforms": "telegram"}, "platforms are several names"),
        ({"seconds": 0}, "seconds must be positive"),
        ({"max_output": 199}, "max_output must be at least 200"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, why):
    with pytest.raises((ValueError, TypeError), match=why):
        tool(**options)(free)


def test_a_lambda_needs_a_name_and_two_tools_need_two():
    with pytest.raises(ValueError, match="<lambda>"):
        tool(lambda: None)
    twice = [tool(name="t")(lambda: None), tool(name="t")(lambda: None)]
    with pytest.raises(ValueError, match="the same name"):
        Toolbox(twice)


def test_a_tool_is_still_the_function_it_was():
    @tool
    def add(x: int, y: int = 1) -> int:
        return x + y

    assert (add(1), add(1, y=5)) == (2, 6)


def test_an_approval_tool_is_a_once_tool():
    assert tool(approval=True, name="t")(lambda: None).once
    assert not tool(name="t")(lambda: None).once


# Arguments


async def test_arguments_arrive_as_the_types_of_the_signature():
    seen = []

    def draw(line: Line, colour: Colour, when: date | None = None, n: int = 5) -> None:
        seen.append((line, colour, when, n))

    sent = '{"line": {"ends": [{"x": 1}]}, "colour": "red", "when": "2026-01-02"}'
    assert await ran(draw, sent) == ToolOutcome("(done)")
    assert seen == [(Line([Point(1)]), Colour.RED, date(2026, 1, 2), 5)]


async def test_a_default_that_json_cannot_say_is_left_to_the_function():
    marker = object()
    seen = []

    def look(x: Any = marker) -> None:
        seen.append(x)

    await ran(look)
    await ran(look, '{"x": null}')
    assert seen == [marker, None]


async def test_the_turn_is_given_and_not_asked_for():
    def annotated(x: int, here: Turn) -> int:
        return here.turn_id + x

    def by_name(turn) -> int:
        return turn.turn_id

    assert list(parameters(annotated)["properties"]) == ["x"]
    assert await ran(annotated, '{"x": 1}') == ToolOutcome("8")
    assert await ran(by_name, "") == ToolOutcome("7")
    refused = await ran(by_name, '{"turn": 1}')
    assert refused == ToolOutcome(
        "by_name was not run: Object contains unknown field `turn`. It takes no arguments.",
        failed=True,
    )


TAKES = (
    "It takes an object with to: array, subject: string, "
    'urgency: one of "high", "low" (optional), cc: string or null (optional), '
    "copies: integer (optional)."
)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ('{"to": [], "subject": 5}', "Expected `str`, got `int` - at `$.subject`"),
        ('{"to": []}', "Object missing required field `subject`"),
        ('{"to": [], "subject": "s", "bcc": 1}', "Object contains unknown field `bcc`"),
        ('{"to": [], "subject": "s", "urgency": "now"}', "Invalid enum value 'now'"),
        ("[]", "Expected `object`, got `array`"),
        ('{"to":', "Input data was truncated"),
        ("to=me", "JSON is malformed"),
        ('{"to": [], "subject": "s"} {}', "JSON is malformed"),
        ("[" * 100_000, "Expected `object`, got `array`"),
        ('{"to": ' + "[" * 100_000, "Expected `str`, got `array`"),
        ('{"to": "\ud800"}', "surrogates not allowed"),
    ],
)
async def test_bad_arguments_are_told_to_the_model_in_one_line(sent, why):
    answer = await ran(send_mail, sent)
    assert answer.failed
    assert answer.content.startswith("send_mail was not run: ")
    assert why in answer.content
    assert answer.content.endswith(TAKES)
    assert "\n" not in answer.content


async def test_depth_that_nobody_can_read_is_refused():
    def keep(x: Any) -> None: ...

    answer = await ran(keep, '{"x": ' + "[" * 100_000)
    assert answer.failed
    assert "recursion" in answer.content


async def test_a_type_that_refuses_its_values_answers_the_model():
    def check(p: Picky) -> None: ...

    assert (await ran(check, '{"p": {"x": 1}}')).content.startswith("check was not run: ")
    odd = await ran(check, '{"p": {"x": 2}}')
    assert odd == ToolOutcome("check was not run: LookupError: not two", failed=True)


class Picky(msgspec.Struct):
    x: int

    def __post_init__(self):
        if self.x == 2:
            raise LookupError("not\ntwo")
        raise ValueError("never")


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


# Results


class Plain:
    def __str__(self):
        return "plain"


class Silent:
    def __str__(self):
        raise ValueError("no words")


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        ("", ""),
        (None, "(done)"),
        (0, "0"),
        (False, "false"),
        ({"a": [1, 2.5]}, '{"a":[1,2.5]}'),
        (Point(1), '{"x":1,"y":0}'),
        ([Line([], "l")], '[{"ends":[],"label":"l"}]'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (Plain(), '"plain"'),
        ({1: Plain()}, '{"1":"plain"}'),
        ("half \ud800", "half \ud800"),
        (["half \ud800"], "['half \\ud800']"),
        (LOOP, "[[...]]"),
    ],
)
async def test_what_a_function_returns_is_a_text_for_the_model(value, text):
    def give() -> Any:
        return value

    async def give_later() -> Any:
        return value

    assert await ran(give) == ToolOutcome(text)
    assert await ran(give_later) == ToolOutcome(text)


async def test_what_cannot_be_said_is_a_failure_of_the_tool():
    def give() -> Any:
        return Silent()

    assert await ran(give) == ToolOutcome("give failed: ValueError: no words", failed=True)


@given(size=st.integers(0, 2000), most=st.integers(200, 1000))
def test_output_is_bounded_and_the_model_is_told_how_much_is_missing(size, most):
    made = tool(name="t", max_output=most)(lambda: None)
    text = "x" * size
    bounded = made.bounded(text)
    assert len(bounded) <= most
    if size <= most:
        assert bounded == text
    else:
        kept, note = bounded.split("\n")
        left, total = (int(word) for word in note.strip("[]").split() if word.isdigit())
        assert (len(kept) + left, total) == (size, size)


async def test_the_bound_holds_for_results_and_errors_alike():
    def much() -> str:
        return "y" * 1000

    def fail() -> str:
        raise ValueError("z" * 1000)

    def take(x: int) -> None: ...

    for function, sent in ((much, "{}"), (fail, "{}"), (take, '{"' + "w" * 1000 + '": 1}')):
        answer = await ran(function, sent, max_output=300)
        assert len(answer.content) <= 300
        assert "left out" in answer.content


# Running


async def test_a_plain_function_runs_in_a_thread_and_knows_its_conversation():
    def look() -> list[Any]:
        return [threading.current_thread() is threading.main_thread(), current_session_id()]

    async def look_here() -> list[Any]:
        return look()

    with within(TurnContext("k", "the session", 7)):
        assert await ran(look) == ToolOutcome('[false,"the session"]')
        assert await ran(look_here) == ToolOutcome('[true,"the session"]')


async def test_a_coroutine_behind_a_plain_decorator_is_awaited():
    async def look(at: str) -> str:
        """Look."""
        await trio.lowlevel.checkpoint()
        return f"at {at}: {current_session_id()}"

    @functools.wraps(look)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return look(*args, **kwargs)

    with within(TurnContext("k", "the session", 7)):
        assert await ran(decorated, '{"at": "it"}') == ToolOutcome("at it: the session")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no\n such  thing"), "ValueError: no such thing"),
        (KeyError("x"), "KeyError: 'x'"),
        (SystemExit(3), "SystemExit: 3"),
        (ExceptionGroup("both", [OSError("disk"), ValueError()]), "OSError: disk"),
    ],
)
async def test_what_a_tool_raises_is_told_to_the_model_in_one_line(error, told, caplog):
    async def fail() -> None:
        raise error

    def fail_in_thread() -> None:
        raise error

    with caplog.at_level(logging.WARNING):
        assert await ran(fail) == ToolOutcome(f"fail failed: {told}", failed=True)
    assert caplog.records[0].exc_info[1] is error
    assert await ran(fail_in_thread) == ToolOutcome(f"fail_in_thread failed: {told}", failed=True)


async def test_ctrl_c_and_the_end_of_the_turn_pass():
    async def press() -> None:
        raise (
            ExceptionGroup("x", [ValueError()])
            if False
            else BaseExceptionGroup("x", [KeyboardInterrupt(), ValueError()])
        )

    with pytest.raises(BaseExceptionGroup) as raised:
        await ran(press)
    assert isinstance(leaf(raised.value), KeyboardInterrupt)
    turn = a_turn()

    async def outlive() -> None:
        turn.close()
        turn.steered()

    with pytest.raises(TurnClosed):
        await ran(outlive, turn=turn)


async def test_a_turn_that_is_over_runs_no_tools():
    done = []

    def work() -> None:
        done.append(1)

    turn = a_turn()
    turn.close()
    with pytest.raises(TurnClosed):
        await ran(work, turn=turn)
    assert done == []


async def test_a_tool_that_takes_too_long_is_given_up(autojump_clock):
    async def wait() -> None:
        await trio.sleep_forever()

    began = trio.current_time()
    assert await ran(wait) == ToolOutcome(
        "wait took longer than 300 seconds and was given up.", failed=True
    )
    assert trio.current_time() - began == 300
    assert (await ran(wait, seconds=2)).content.startswith("wait took longer than 2 seconds")


async def test_a_tool_has_no_more_time_than_its_turn(autojump_clock):
    async def wait() -> None:
        await trio.sleep_forever()

    turn = a_turn()
    turn.deadline = trio.current_time() + 5
    began = trio.current_time()
    with trio.CancelScope(deadline=turn.deadline) as scope:
        await ran(wait, turn=turn)
    assert scope.cancelled_caught
    assert trio.current_time() - began == 5


async def test_a_cancelled_tool_is_not_answered(autojump_clock):
    left = []

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        finally:
            left.append(True)

    with trio.move_on_after(1) as scope:
        await ran(wait)
    assert scope.cancelled_caught
    assert left == [True]


async def test_a_thread_is_abandoned_and_counts_until_it_ends():
    gate, began = threading.Event(), threading.Event()

    def block() -> str:
        began.set()
        gate.wait(20)
        return "at last"

    toolbox = Toolbox([block], threads=1)
    call = ToolCall("c", "block")
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(toolbox.run, call, a_turn())
            await trio.to_thread.run_sync(began.wait, 20)
            nursery.cancel_scope.cancel()
        began.clear()
        turn = a_turn()
        turn.deadline = trio.current_time() + 0.05
        assert (await toolbox.run(call, turn)).failed  # there is no thread for it
        assert not began.is_set()
    finally:
        gate.set()
    assert await toolbox.run(call, a_turn()) == ToolOutcome("at last")


# Toolboxes


async def test_an_unknown_tool_is_answered_with_those_there_are():
    toolbox = Toolbox([tool(name="b")(lambda: None), tool(name="a")(lambda: None)])
    assert await toolbox.run(ToolCall("c", "x"), a_turn()) == ToolOutcome(
        "There is no tool 'x'; the tools are: a, b.", failed=True
    )
    assert "the tools are: none." in (await Toolbox().run(ToolCall("c", "x"), a_turn())).content


async def test_a_tool_is_only_for_its_platforms():
    def anywhere() -> str:
        return "ran"

    here = tool(platforms=["telegram"], name="here")(anywhere)
    nowhere = tool(platforms=(), name="nowhere")(anywhere)
    toolbox = Toolbox([anywhere, here, nowhere])
    call = ToolCall("c", "here")
    assert await toolbox.run(call, a_turn("telegram")) == ToolOutcome("ran")
    assert await toolbox.run(call, a_turn("slack")) == ToolOutcome(
        "here may not be used on slack.", failed=True
    )
    assert (await toolbox.run(ToolCall("c", "nowhere"), a_turn("telegram"))).failed
    names = {p: [each["name"] for each in toolbox.on(p).schemas] for p in ("telegram", "slack")}
    assert names == {"telegram": ["anywhere", "here"], "slack": ["anywhere"]}
    assert await toolbox.on("telegram").run(call, a_turn("telegram")) == ToolOutcome("ran")


async def test_a_once_tool_without_a_store_does_not_run():
    done = []

    def work() -> None:
        done.append(1)

    assert (await ran(work, once=True)).failed
    assert (await ran(work, approval=True)).failed
    assert done == []


def test_a_turn_counts_its_calls_and_begins_anew_when_it_runs_again():
    turn = a_turn()
    assert [turn.ordinal("t", "{}") for _ in range(3)] == [0, 1, 2]
    assert (turn.ordinal("t", "[]"), turn.ordinal("u", "{}")) == (0, 0)
    turn.restart()
    assert turn.ordinal("t", "{}") == 0
