"""`contained` and its relatives: what is caught, what propagates, and what may be logged."""

from __future__ import annotations

import asyncio

import outcome
import pytest
import trio
from hypothesis import given, strategies as st

from hermes.errors import Overloaded, StoreBusy
from hermes.user_code import contained, describe, kind, leaf, loggable, passing

OWN = [ValueError("v"), SystemExit(1), asyncio.CancelledError(), MemoryError(), StopIteration()]
PASSING = [KeyboardInterrupt(), GeneratorExit()]


def groups(leaves):
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, min_size=1, max_size=3).map(
            lambda errors: BaseExceptionGroup("group", errors)
        ),
        max_leaves=8,
    )


ERRORS = groups(st.sampled_from([*OWN, *PASSING]))


def leaves(error):
    if isinstance(error, BaseExceptionGroup):
        return [each for inner in error.exceptions for each in leaves(inner)]
    return [error]


def raised_by(block, error):
    """Raise an exception in a block, and return what propagates."""

    def work():
        with block:
            raise error

    try:
        work()
    except BaseException as out:  # noqa: BLE001 - any kind may propagate
        return out
    return None


@given(ERRORS)
def test_only_ctrl_c_and_generator_exit_propagate_however_deeply_nested(error):
    expected = [each for each in leaves(error) if each in PASSING]
    caught = contained()
    out = raised_by(caught, error)
    propagated = [] if out is None else leaves(out)
    if out is not None:
        assert isinstance(error, BaseExceptionGroup) == isinstance(out, BaseExceptionGroup)
    assert propagated == expected
    assert caught.error is (None if expected else error)
    through = passing(error)
    assert ([] if through is None else leaves(through)) == expected


async def test_cancellation_propagates():
    with trio.CancelScope() as scope:
        scope.cancel()
        with contained() as caught:
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert caught.error is None


async def test_cancellation_propagates_out_of_a_group_and_the_rest_is_dropped():
    async def fail():
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while it was cancelled")

    with trio.CancelScope() as scope, contained() as caught:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(trio.sleep_forever)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert caught.error is None


def test_nothing_is_kept_if_nothing_is_raised():
    with contained() as caught:
        pass
    assert caught.error is None


@pytest.mark.parametrize("error", [LookupError("x"), ExceptionGroup("g", [KeyError("x")])])
def test_more_exception_types_can_propagate(error):
    with pytest.raises(type(error)):
        with contained(LookupError):
            raise error
    with contained(LookupError) as caught:
        raise ValueError
    assert isinstance(caught.error, ValueError)


@given(ERRORS)
def test_a_group_is_described_by_its_first_exception(error):
    first = leaves(error)[0]
    assert leaf(error) is first
    assert kind(error) == type(first).__name__
    assert describe(error) == f"{type(first).__name__}: {first}"


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (ValueError("what a user wrote"), "ValueError"),
        (Overloaded("64 are waiting"), "hermes.errors.Overloaded: 64 are waiting"),
        (StoreBusy("locked"), "hermes.errors.StoreBusy: locked"),
        (OSError(28, "No space left on device", "/home/x"), "OSError: No space left on device"),
        (OSError("what a user wrote"), "OSError"),
        (ExceptionGroup("what a user wrote", [ValueError()]), "ExceptionGroup"),
    ],
)  # fmt: skip
def test_only_messages_of_hermes_and_the_system_are_logged(error, logged):
    assert loggable(error) == logged


async def test_a_kept_cancellation_is_an_error_of_user_code():
    with trio.CancelScope() as scope:
        scope.cancel()
        kept = await outcome.acapture(trio.lowlevel.checkpoint)
    with contained() as caught:
        kept.unwrap()
    assert caught.error is kept.error
    group = BaseExceptionGroup("g", [kept.error, ValueError()])
    with contained() as caught:
        raise group
    assert caught.error is group


async def test_a_kept_cancellation_propagates_if_a_scope_is_cancelled():
    with trio.CancelScope() as scope:
        scope.cancel()
        kept = await outcome.acapture(trio.lowlevel.checkpoint)
    with trio.CancelScope() as scope:  # noqa: ASYNC100 - what is kept is raised, not awaited
        scope.cancel()
        with contained() as caught:
            kept.unwrap()
    assert scope.cancelled_caught
    assert caught.error is None
