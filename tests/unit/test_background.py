"""`open_background`: exceptions leave as they are, and tasks end with the block."""

from __future__ import annotations

import pytest
import trio

from hermes.background import open_background
from hermes.errors import Overloaded, StoreFailed


async def fail(error):
    raise error


async def fail_when_cancelled(error):
    try:
        await trio.sleep_forever()
    finally:
        raise error


async def test_tasks_are_cancelled_when_the_block_ends():
    ended = []

    async def work():
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    async with open_background() as nursery:
        nursery.start_soon(work)
        await trio.testing.wait_all_tasks_blocked()
        assert ended == []
    assert ended == [True]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(2)])
async def test_an_exception_of_the_block_leaves_as_it_is(error):
    with pytest.raises(type(error)) as raised:
        async with open_background() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise error
    assert raised.value is error


async def test_the_exception_of_a_task_cancels_the_block_and_leaves():
    error = Overloaded("full")
    with pytest.raises(Overloaded) as raised:
        async with open_background() as nursery:
            nursery.start_soon(fail, error)
            await trio.sleep_forever()
    assert raised.value is error


async def test_a_store_failure_is_more_important_than_other_errors():
    with pytest.raises(StoreFailed):
        async with open_background() as nursery:
            nursery.start_soon(fail_when_cancelled, StoreFailed("disk"))
            nursery.start_soon(fail_when_cancelled, Overloaded("full"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(fail, ValueError())
            await trio.sleep_forever()


async def test_the_exception_of_a_task_has_that_of_the_block_as_its_cause():
    with pytest.raises(StoreFailed) as raised:
        async with open_background() as nursery:
            nursery.start_soon(fail_when_cancelled, StoreFailed("disk"))
            await trio.testing.wait_all_tasks_blocked()
            raise ValueError("of the block")
    assert isinstance(raised.value.__cause__, ValueError)


async def test_a_group_without_an_error_of_ours_stays_a_group():
    with pytest.raises(ExceptionGroup):
        async with open_background() as nursery:
            nursery.start_soon(fail, ValueError())
            await trio.sleep_forever()


async def test_cancellation_from_outside_ends_the_block():
    with trio.CancelScope() as scope:
        async with open_background() as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
