"""Driver of message passing: our mailbox, Trio's channels, and the scheduler alone."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from time import perf_counter

import outcome
import trio
import trio.testing
from trio import lowlevel

from bench.harness.driver import Figures, ask_async, message_figures, serve

# The kernel that session actors and the store actor run on.
from hermes.actors.kernel.mailbox import Mailbox, Request, serve as serve_mailbox


class Adder:
    """What every actor does with a number."""

    handled = 0

    async def handle(self, number: int) -> int:
        self.handled += 1
        return number + 1


class Question(Request[int]):
    """A request for the next number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


async def ask_mailbox(count: int) -> Figures:
    mailbox: Mailbox[Question] = Mailbox()
    adder = Adder()

    async def reply(questions: list[Question]) -> None:
        for question in questions:
            question.answer(await adder.handle(question.number))

    async def ask(number: int) -> int:
        question = Question(number)
        mailbox.send_nowait(question)
        return await question.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_mailbox, mailbox, reply)
        figures = await ask_async(ask, count)
        mailbox.close()
    return figures


async def ask_channel(count: int) -> Figures:
    """One unbounded channel in each direction."""
    send, requests = trio.open_memory_channel[int](math.inf)
    replies, receive = trio.open_memory_channel[int](math.inf)
    adder = Adder()

    async def actor() -> None:
        async for number in requests:
            await replies.send(await adder.handle(number))

    async def ask(number: int) -> int:
        await send.send(number)
        return await receive.receive()

    async with trio.open_nursery() as nursery, send:
        nursery.start_soon(actor)
        return await ask_async(ask, count)


async def ask_scheduler(count: int) -> Figures:
    """Two tasks that wake each other, with nothing but the scheduler between them."""
    caller, adder = lowlevel.current_task(), Adder()

    def abort(_: object) -> lowlevel.Abort:
        return lowlevel.Abort.SUCCEEDED

    async def actor(task_status: trio.TaskStatus[lowlevel.Task]) -> None:
        task_status.started(lowlevel.current_task())
        while True:
            number = await lowlevel.wait_task_rescheduled(abort)
            lowlevel.reschedule(caller, outcome.Value(await adder.handle(number)))

    async def ask(number: int) -> int:
        lowlevel.reschedule(other, outcome.Value(number))
        reply: int = await lowlevel.wait_task_rescheduled(abort)
        return reply

    async with trio.open_nursery() as nursery:
        other = await nursery.start(actor)
        figures = await ask_async(ask, count)
        nursery.cancel_scope.cancel()
    return figures


async def tell_mailbox(count: int) -> Figures:
    mailbox: Mailbox[int] = Mailbox(count)
    adder = Adder()

    async def process(numbers: list[int]) -> None:
        for number in numbers:
            await adder.handle(number)

    async def actor() -> None:
        await serve_mailbox(mailbox, process)

    return await _time_sending(actor, mailbox.send_nowait, mailbox.close, adder, count)


async def tell_channel(count: int) -> Figures:
    send, requests = trio.open_memory_channel[int](math.inf)
    adder = Adder()

    async def actor() -> None:
        async for number in requests:
            await adder.handle(number)

    return await _time_sending(actor, send.send_nowait, send.close, adder, count)


async def _time_sending(
    actor: Callable[[], Awaitable[None]],
    send: Callable[[int], None],
    close: Callable[[], None],
    adder: Adder,
    count: int,
) -> Figures:
    """Send messages until the last one is processed."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor)
        await trio.testing.wait_all_tasks_blocked()
        started = perf_counter()
        for number in range(count):
            send(number)
        close()
    seconds = perf_counter() - started
    if adder.handled != count:
        raise AssertionError(f"{adder.handled} messages were processed instead of {count}")
    return message_figures(count, seconds)


if __name__ == "__main__":
    commands = (ask_mailbox, ask_channel, ask_scheduler, tell_mailbox, tell_channel)
    serve({"trio": version("trio")}, *commands, run=trio.run)
