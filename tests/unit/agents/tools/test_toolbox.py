"""Tool calls: what the function gets, what the model gets back, and which calls are refused."""

from __future__ import annotations

import functools
import logging
import threading
from datetime import date
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given, strategies as st

from hermes import ToolCall, current_session_id
from hermes.agents.tools.toolbox import Toolbox, ToolOutcome, tool
from hermes.context import TurnContext, within
from hermes.errors import TurnClosed
from hermes.protocols import Turn
from hermes.user_code import leaf
from tests.support.tool_functions import Colour, Line, Point, send_mail
from tests.support.turns import running_turn


async def run(function, arguments="{}", turn=None, **options):
    """Call a function as a tool; returns the outcome."""
    made = tool(**options)(function)
    call = ToolCall("c", made.name, arguments)
    return await Toolbox([made]).run(call, turn or running_turn())


# Options


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "with space"}, "needs a name of 1 to 64 letters"),
        ({"name": "x" * 65}, "needs a name of 1 to 64 letters"),
        ({"platforms": "telegram"}, "platforms must be a list of names"),
        ({"timeout": 0}, "timeout must be positive"),
        ({"max_output": 199}, "max_output must be at least 200"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, why):
    with pytest.raises((ValueError, TypeError), match=why):
        tool(**options)(send_mail)


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
    assert await run(draw, sent) == ToolOutcome("(done)")
    assert seen == [(Line([Point(1)]), Colour.RED, date(2026, 1, 2), 5)]


async def test_a_default_that_json_cannot_express_is_left_to_the_function():
    marker = object()
    seen = []

    def look(x: Any = marker) -> None:
        seen.append(x)

    await run(look)
    await run(look, '{"x": null}')
    assert seen == [marker, None]


async def test_the_turn_is_passed_and_not_part_of_the_schema():
    def annotated(x: int, here: Turn) -> int:
        return here.turn_id + x

    def by_name(turn) -> int:
        return turn.turn_id

    assert list(tool(annotated).schema["parameters"]["properties"]) == ["x"]
    assert await run(annotated, '{"x": 1}') == ToolOutcome("8")
    assert await run(by_name, "") == ToolOutcome("7")
    refused = await run(by_name, '{"turn": 1}')
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
async def test_the_model_gets_the_problem_with_its_arguments_in_one_line(sent, why):
    answer = await run(send_mail, sent)
    assert answer.failed
    assert answer.content.startswith("send_mail was not run: ")
    assert why in answer.content
    assert answer.content.endswith(TAKES)
    assert "\n" not in answer.content


async def test_arguments_that_are_nested_too_deeply_are_refused():
    def keep(x: Any) -> None: ...

    answer = await run(keep, '{"x": ' + "[" * 100_000)
    assert answer.failed
    assert "recursion" in answer.content


async def test_a_type_that_refuses_its_values_answers_the_model():
    def check(p: Picky) -> None: ...

    assert (await run(check, '{"p": {"x": 1}}')).content.startswith("check was not run: ")
    odd = await run(check, '{"p": {"x": 2}}')
    assert odd == ToolOutcome("check was not run: LookupError: not two", failed=True)


class Picky(msgspec.Struct):
    x: int

    def __post_init__(self):
        if self.x == 2:
            raise LookupError("not\ntwo")
        raise ValueError("never")


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

    assert await run(give) == ToolOutcome(text)
    assert await run(give_later) == ToolOutcome(text)


async def test_a_result_without_a_text_form_is_a_failure_of_the_tool():
    def give() -> Any:
        return Silent()

    assert await run(give) == ToolOutcome("give failed: ValueError: no words", failed=True)


@given(size=st.integers(0, 2000), most=st.integers(200, 1000))
def test_output_is_bounded_and_says_how_much_is_missing(size, most):
    made = tool(name="t", max_output=most)(lambda: None)
    text = "x" * size
    bounded = made.truncate(text)
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
        answer = await run(function, sent, max_output=300)
        assert len(answer.content) <= 300
        assert "omitted" in answer.content


# Running


async def test_a_plain_function_runs_in_a_thread_and_knows_its_conversation():
    def look() -> list[Any]:
        return [threading.current_thread() is threading.main_thread(), current_session_id()]

    async def look_here() -> list[Any]:
        return look()

    with within(TurnContext("k", "the session", 7)):
        assert await run(look) == ToolOutcome('[false,"the session"]')
        assert await run(look_here) == ToolOutcome('[true,"the session"]')


async def test_a_coroutine_behind_a_plain_decorator_is_awaited():
    async def look(at: str) -> str:
        """Look."""
        await trio.lowlevel.checkpoint()
        return f"at {at}: {current_session_id()}"

    @functools.wraps(look)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return look(*args, **kwargs)

    with within(TurnContext("k", "the session", 7)):
        assert await run(decorated, '{"at": "it"}') == ToolOutcome("at it: the session")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no\n such  thing"), "ValueError: no such thing"),
        (KeyError("x"), "KeyError: 'x'"),
        (SystemExit(3), "SystemExit: 3"),
        (ExceptionGroup("both", [OSError("disk"), ValueError()]), "OSError: disk"),
    ],
)
async def test_the_model_gets_the_exception_of_a_tool_in_one_line(error, told, caplog):
    async def fail() -> None:
        raise error

    def fail_in_thread() -> None:
        raise error

    with caplog.at_level(logging.WARNING):
        assert await run(fail) == ToolOutcome(f"fail failed: {told}", failed=True)
    assert caplog.records[0].exc_info[1] is error
    assert await run(fail_in_thread) == ToolOutcome(f"fail_in_thread failed: {told}", failed=True)


async def test_ctrl_c_and_the_end_of_the_turn_pass():
    async def press() -> None:
        raise (
            ExceptionGroup("x", [ValueError()])
            if False
            else BaseExceptionGroup("x", [KeyboardInterrupt(), ValueError()])
        )

    with pytest.raises(BaseExceptionGroup) as raised:
        await run(press)
    assert isinstance(leaf(raised.value), KeyboardInterrupt)
    turn = running_turn()

    async def outlive() -> None:
        turn.close()
        turn.steered()

    with pytest.raises(TurnClosed):
        await run(outlive, turn=turn)


async def test_a_turn_that_is_over_runs_no_tools():
    done = []

    def work() -> None:
        done.append(1)

    turn = running_turn()
    turn.close()
    with pytest.raises(TurnClosed):
        await run(work, turn=turn)
    assert done == []


async def test_a_tool_that_takes_too_long_times_out(autojump_clock):
    async def wait() -> None:
        await trio.sleep_forever()

    began = trio.current_time()
    assert await run(wait) == ToolOutcome("wait timed out after 300 seconds.", failed=True)
    assert trio.current_time() - began == 300
    assert (await run(wait, timeout=2)).content.startswith("wait timed out after 2 seconds")


async def test_a_tool_has_no_more_time_than_its_turn(autojump_clock):
    async def wait() -> None:
        await trio.sleep_forever()

    turn = running_turn()
    turn.deadline = trio.current_time() + 5
    began = trio.current_time()
    with trio.CancelScope(deadline=turn.deadline) as scope:
        await run(wait, turn=turn)
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
        await run(wait)
    assert scope.cancelled_caught
    assert left == [True]


async def test_a_thread_is_abandoned_and_counts_until_it_ends():
    gate, began = threading.Event(), threading.Event()

    def block() -> str:
        began.set()
        gate.wait(20)
        return "at last"

    toolbox = Toolbox([block], max_threads=1)
    call = ToolCall("c", "block")
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(toolbox.run, call, running_turn())
            await trio.to_thread.run_sync(began.wait, 20)
            nursery.cancel_scope.cancel()
        began.clear()
        turn = running_turn()
        turn.deadline = trio.current_time() + 0.05
        assert (await toolbox.run(call, turn)).failed  # there is no thread for it
        assert not began.is_set()
    finally:
        gate.set()
    assert await toolbox.run(call, running_turn()) == ToolOutcome("at last")


# Toolboxes


async def test_an_unknown_tool_is_answered_with_the_names_of_the_existing_ones():
    toolbox = Toolbox([tool(name="b")(lambda: None), tool(name="a")(lambda: None)])
    assert await toolbox.run(ToolCall("c", "x"), running_turn()) == ToolOutcome(
        "There is no tool 'x'. Available tools: a, b.", failed=True
    )
    outcome = await Toolbox().run(ToolCall("c", "x"), running_turn())
    assert "Available tools: none." in outcome.content


async def test_a_tool_is_only_for_its_platforms():
    def anywhere() -> str:
        return "ran"

    here = tool(platforms=["telegram"], name="here")(anywhere)
    nowhere = tool(platforms=(), name="nowhere")(anywhere)
    toolbox = Toolbox([anywhere, here, nowhere])
    call = ToolCall("c", "here")
    assert await toolbox.run(call, running_turn(platform="telegram")) == ToolOutcome("ran")
    assert await toolbox.run(call, running_turn(platform="slack")) == ToolOutcome(
        "here is not available on slack.", failed=True
    )
    assert (await toolbox.run(ToolCall("c", "nowhere"), running_turn(platform="telegram"))).failed
    names = {p: [each["name"] for each in toolbox.on(p).schemas] for p in ("telegram", "slack")}
    assert names == {"telegram": ["anywhere", "here"], "slack": ["anywhere"]}
    assert await toolbox.on("telegram").run(call, running_turn(platform="telegram")) == ToolOutcome(
        "ran"
    )


async def test_a_once_tool_without_a_store_does_not_run():
    done = []

    def work() -> None:
        done.append(1)

    assert (await run(work, once=True)).failed
    assert (await run(work, approval=True)).failed
    assert done == []


def test_a_turn_counts_its_calls_and_starts_over_when_it_runs_again():
    turn = running_turn()
    assert [turn.ordinal("t", "{}") for _ in range(3)] == [0, 1, 2]
    assert (turn.ordinal("t", "[]"), turn.ordinal("u", "{}")) == (0, 0)
    turn.restart()
    assert turn.ordinal("t", "{}") == 0
