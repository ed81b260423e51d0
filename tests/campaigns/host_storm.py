"""The program of test_host_storms: clients that storm one host, which is killed over and over.

A plan, made from the seed, has one step per message: who says what, how the client waits (`ask`,
`stream`, `submit`, `withdraw`), when it gives up, how the agent misbehaves, whether it asks another
conversation, which may ask a third one, and which verb follows.

Each life is a real process with real files. It works on the steps that are not finished and reports
each acceptance and answer through a pipe, until it is killed. The last life finishes the plan.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import json
import os
import random
import selectors
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import attrs
import outcome
import trio

from hermes import (
    AlreadyAnswered,
    CompressionConfig,
    Config,
    Draining,
    EventConflict,
    Inbound,
    ReplyTimeout,
    Source,
    Summary,
    TextDelta,
    TurnClosed,
    TurnResult,
    UnknownSession,
    WaitCircle,
    open_runtime,
)
from hermes.agents import blocking_agent
from hermes.embed import open_runtime_asyncio, start_runtime
from tests.campaigns.storm_checks import ASKS, partner, violations

HOSTS = ("trio", "asyncio", "blocking")
CLIENTS = 12
PATIENCE = 60.0
"""Seconds without a report after which a life counts as hanging."""
GRACE, STUBBORN = 0.05, 0.15
CONFIG = Config(
    max_queued=1_000_000,
    drain_timeout=600,
    max_attempts=10_000,
    max_agents=8,
    agents_may_ask=True,
    grace_period=GRACE,
    transcript_bytes=20_000,
    compression=CompressionConfig(window=400, max_output=0, share=0.5, tail_share=0.2),
)
FAULTS = ("raise", "group", "exit", "leak", "slow", "stubborn")
ASK_TIMEOUT = 0.2
ASK_ERRORS = (AlreadyAnswered, Draining, ReplyTimeout, TurnClosed)
"""What an agent that asks another conversation must expect, besides a circle."""
VERBS = {
    "new": lambda chat, _: chat.new(),
    "title": lambda chat, name: chat.set_title(name),
    "switch": lambda chat, name: chat.switch(name),
    "branch": lambda chat, _: chat.branch(),
    "undo": lambda chat, _: chat.undo(),
    "compress": lambda chat, _: chat.compress(keep_exchanges=1),
    "interrupt": lambda chat, _: chat.interrupt(),
    "close": lambda chat, _: chat.close(),
    "post": lambda chat, name: chat.post(f"a post about {name}"),
    "configure": lambda chat, name: chat.configure(model=name),
}


@attrs.frozen
class Step:
    """One message, and what its client does."""

    number: int
    key: str
    text: str
    form: str
    give_up: float | None
    """Seconds after which the client is cancelled; it repeats the message later."""
    timeout: float | None
    """Seconds after which `ask` gives up the wait; the client then waits for the receipt."""
    interrupt_on_exit: bool
    when_busy: str
    platform: str
    verb: str | None
    name: str
    """The title that the verb sets or looks for."""

    @property
    def options(self):
        source = Source(self.platform, chat_id=self.key, user_id=self.key)
        return {"event_id": f"e{self.number}", "source": source, "when_busy": self.when_busy}

    @property
    def inbound(self):
        return Inbound(self.key, text=self.text, per_conversation=True, **self.options)


def make_plan(seed, asks, keys):
    """Return the steps of a storm."""
    dice = random.Random(seed)
    return [_make_step(dice, number, keys) for number in range(asks)]


def _make_step(dice, number, keys):
    key = f"k{dice.randrange(keys)}"
    fault = "" if number % 3 else FAULTS[number // 3 % len(FAULTS)]
    ask = dice.choice(ASKS) if dice.random() < 0.2 else ""
    return Step(
        number=number,
        key=key,
        text=f"{number:05} {'word ' * dice.randint(1, 20)}{fault} {ask}",
        form=dice.choice(("ask", "ask", "ask", "stream", "submit", "withdraw")),
        give_up=dice.random() * 0.03 if dice.random() < 0.3 else None,
        timeout=dice.random() * 0.03 if dice.random() < 0.2 else None,
        interrupt_on_exit=dice.random() < 0.5,
        when_busy=dice.choice(("queue", "queue", "interrupt", "steer")),
        platform=dice.choice(("embedded", "wire")),
        verb=dice.choice(list(VERBS)) if dice.random() < 0.5 else None,
        name=f"{key} title {dice.randrange(3)}",
    )


# The host's own code: agents, an adapter, a compressor, a hook


def say(*words):
    """Report something to the parent process."""
    os.write(REPORTS[0], (json.dumps(words) + "\n").encode())


REPORTS = [1]


def say_answer(step, reply):
    """Report a reply: which turn it is of, and what it says."""
    say("answered", step.number, f"{reply.turn_id} {reply.status} {reply.text}")


def say_piece(turn, said, number):
    """Emit the next piece of an answer; return the text since the last steering input."""
    if turn.steered():
        said = ""
    turn.emit(TextDelta(f"[{turn.turn_id}.{number}] "))
    return f"{said}[{turn.turn_id}.{number}] "


def fault_of(turn):
    return next((word for word in turn.text.split() if word in FAULTS), None)


def question_of(turn):
    """Return what the agent asks: a key and the arguments of `ask`; None if it asks nothing.

    It is always the same for a turn and a number of further questions, also after a crash.
    """
    hops = max((int(word[3:]) for word in turn.text.split() if word in ASKS), default=0)
    if not hops:
        return None
    name = f"t{turn.turn_id}.{hops}"
    text = f"{name} {'' if hops == 1 else f'ask{hops - 1}'}"
    key = partner(turn.turn_id, hops)
    return (key, text), {"event_id": name, "timeout": ASK_TIMEOUT}


def say_asked(question, reply):
    """Report the reply to the question of an agent."""
    say("asked", question[1]["event_id"], f"{reply.turn_id} {reply.status} {reply.text}")


@contextlib.contextmanager
def asking():
    """Report circles of agents that ask each other, and errors that they must not get."""
    with reported(*ASK_ERRORS):
        try:
            yield
        except WaitCircle as error:
            say("circle", str(error))


def check_status(turn, status):
    """Report a status that is not that of a running turn."""
    if status.session_key != turn.session_key or not status.busy:
        say("violation", f"the turn of {turn.session_key} sees the status {status}")


def raise_fault(fault):
    """Fail as a message asks for, if that needs no event loop."""
    if fault == "raise":
        raise ValueError("a fault")
    if fault == "group":
        raise BaseExceptionGroup("faults", [ValueError("a fault"), SystemExit(3)])
    if fault == "exit":
        raise SystemExit(3)


@attrs.define
class StormAgent:
    """Answers in pieces, or fails as the last message asks for."""

    leak: object
    busy: bool = False

    async def run(self, turn):
        if self.busy:
            say("violation", f"the agent of {turn.session_key} runs twice at once")
        self.busy = True
        try:
            return await self._answer(turn)
        finally:
            self.busy = False

    async def _answer(self, turn):
        with reported(TurnClosed):
            check_status(turn, await turn.runtime.conversation.status())
        if (question := question_of(turn)) is not None:
            with asking():
                args, named = question
                say_asked(question, await turn.runtime.ask(*args, **named))
        said = ""
        for number in range(3):
            said = say_piece(turn, said, number)
            await anyio.sleep(random.random() * 0.003)
        fault = fault_of(turn)
        if fault == "leak":
            await self.leak()
        elif fault == "slow":
            await anyio.sleep(0.2)
        elif fault == "stubborn":
            await ignore_cancellation()
        raise_fault(fault)
        return TurnResult(text=said)


async def ignore_cancellation():
    """Wait longer than the grace period, whatever happens."""
    until = time.monotonic() + STUBBORN
    with anyio.CancelScope(shield=True):
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                await anyio.sleep(left)


def answer_in_thread(turn):
    """Answer as `StormAgent` does, in a thread."""
    with reported(TurnClosed):
        status = turn.runtime.conversation.status()
        if not turn.cancelled:
            check_status(turn, status)
    if (question := question_of(turn)) is not None:
        with asking():
            args, named = question
            say_asked(question, turn.runtime.ask(*args, **named))
    said = ""
    for number in range(3):
        said = say_piece(turn, said, number)
        turn.wait_cancelled(random.random() * 0.003)
    fault = fault_of(turn)
    if fault == "leak":
        trio.run(leak_trio)
    elif fault == "slow":
        turn.wait_cancelled(0.2)
    elif fault == "stubborn":
        threading.Event().wait(STUBBORN)
    raise_fault(fault)
    return said


async def leak_trio():
    """Raise a `trio.Cancelled` that was kept from a scope which has ended."""
    with trio.CancelScope() as scope:
        scope.cancel()
        kept = await outcome.acapture(trio.lowlevel.checkpoint)
    kept.unwrap()


async def leak_asyncio():
    """Raise an `asyncio.CancelledError` that was kept from a task which has ended."""
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    kept = (await asyncio.gather(task, return_exceptions=True))[0]
    raise kept


class Wire:
    """An adapter that sometimes fails."""

    platform = "wire"
    local = True

    async def send(self, row, /):
        await anyio.sleep(random.random() * 0.002)
        if not row.attempts and random.random() < 0.05:
            raise SystemExit(4)


class Summarizer:
    """A compressor that sometimes fails."""

    async def summarize(self, request, /):
        await anyio.sleep(random.random() * 0.002)
        if random.random() < 0.1:
            raise BaseExceptionGroup("faults", [ValueError("a fault")])
        return Summary(f"{len(request.messages)} messages")


async def note(session_id, platform):
    """A hook that sometimes fails."""
    await anyio.sleep(random.random() * 0.002)
    if random.random() < 0.1:
        raise SystemExit(5)


def options(build):
    return {
        "build_agent": build,
        "config": CONFIG,
        "adapters": [Wire()],
        "compressor": Summarizer(),
        "hooks": {"on_session_finalize": [note]},
    }


# Clients on Trio and asyncio


@attrs.define
class AsyncClients:
    """Clients that take steps from one list until it is empty."""

    runtime: object
    steps: list

    async def run(self):
        async with anyio.create_task_group() as group:
            for _ in range(CLIENTS):
                group.start_soon(self._client)

    async def _client(self):
        while self.steps:
            step = self.steps.pop()
            if not await self._send(step):
                self.steps.append(attrs.evolve(step, give_up=None))
            if step.verb is not None:
                with reported(UnknownSession, ValueError):
                    await VERBS[step.verb](self.runtime.conversation(step.key), step.name)
            if random.random() < 0.1:
                await self._repeat(step)

    async def _send(self, step):
        """Send a message; False if the client gave up before it knew of the acceptance."""
        with reported():
            async with impatience(step.give_up):
                try:
                    await self._wait(step)
                except (AlreadyAnswered, ReplyTimeout) as error:
                    say_answer(step, await self.runtime.wait(error.receipt))
                return True
            return False
        return True

    async def _wait(self, step):
        if step.form == "ask":
            options = {**step.options, "timeout": step.timeout}
            say_answer(step, await self.runtime.ask(step.key, step.text, **options))
        elif step.form == "submit":
            await self.runtime.submit(step.inbound)
            say("accepted", step.number)
        elif step.form == "withdraw":
            receipt = await self.runtime.submit(step.inbound)
            await self.runtime.withdraw(receipt)
            say_answer(step, await self.runtime.wait(receipt))
        else:
            leave = step.interrupt_on_exit
            stream = self.runtime.stream(
                step.key, step.text, interrupt_on_exit=leave, **step.options
            )
            async with stream:
                say("accepted", step.number)
                async for _ in stream:
                    if leave and random.random() < 0.3:
                        break

    async def _repeat(self, step):
        """Send a finished message again, and another one with its id."""
        with reported():
            try:
                reply = await self.runtime.ask(step.key, step.text, **step.options)
            except AlreadyAnswered as error:
                reply = await self.runtime.wait(error.receipt)
            say_answer(step, reply)
        with reported(EventConflict):
            await self.runtime.ask(step.key, "something else", **step.options)
            say("violation", f"event e{step.number} was accepted with another text")


@contextlib.asynccontextmanager
async def impatience(seconds):
    """Cancel a block after some time, in one of the ways that the event loop has."""
    if seconds is None:
        yield
    elif asyncio_is_running() and random.random() < 0.5:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                yield
    else:
        with anyio.move_on_after(seconds):
            yield


def asyncio_is_running():
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop() is not None
    return False


@contextlib.contextmanager
def reported(*expected):
    """Suppress exceptions that a client must expect, and report all others."""
    try:
        yield
    except expected:
        pass
    except Exception:  # noqa: BLE001 - whatever a host gets to see is reported
        say("violation", traceback.format_exc())


async def storm_trio(path, steps):
    async with open_runtime(path, **options(lambda _: StormAgent(leak_trio))) as runtime:
        await AsyncClients(runtime, steps).run()


async def storm_asyncio(path, steps):
    async with open_runtime_asyncio(path, **options(lambda _: StormAgent(leak_asyncio))) as runtime:
        await AsyncClients(runtime, steps).run()


# Clients in threads


class GaveUp(BaseException):
    """Raised by the alarm in the main thread, as Ctrl-C is."""


@attrs.define
class ThreadClients:
    """Clients in threads, and one in the main thread, which an alarm interrupts."""

    runtime: object
    steps: list

    def run(self):
        signal.signal(signal.SIGALRM, self._alarm)
        with ThreadPoolExecutor(CLIENTS) as threads:
            done = [threads.submit(self._client) for _ in range(CLIENTS - 1)]
            self._client(alarm=True)
            for each in done:
                each.result()

    @staticmethod
    def _alarm(_signal, _frame):
        raise GaveUp

    def _client(self, *, alarm=False):
        while step := self._next():
            if not self._send(step, alarm=alarm):
                self.steps.append(attrs.evolve(step, give_up=None))
            if step.verb is not None:
                with reported(UnknownSession, ValueError):
                    VERBS[step.verb](self.runtime.conversation(step.key), step.name)
            if random.random() < 0.1:
                self._repeat(step)

    def _next(self):
        with contextlib.suppress(IndexError):
            return self.steps.pop()
        return None

    def _send(self, step, *, alarm):
        """Send a message; False if the client gave up before it knew of the acceptance."""
        with reported():
            try:
                with self._alarm_after(step.give_up if alarm else None):
                    try:
                        self._wait(step)
                    except (AlreadyAnswered, ReplyTimeout) as error:
                        say_answer(step, self.runtime.wait(error.receipt))
            except GaveUp:
                return False
        return True

    @contextlib.contextmanager
    def _alarm_after(self, seconds):
        if seconds is None:
            yield
            return
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _wait(self, step):
        if step.form == "ask":
            options = {**step.options, "timeout": step.timeout}
            say_answer(step, self.runtime.ask(step.key, step.text, **options))
        elif step.form == "submit":
            self.runtime.submit(step.inbound)
            say("accepted", step.number)
        elif step.form == "withdraw":
            receipt = self.runtime.submit(step.inbound)
            self.runtime.withdraw(receipt)
            say_answer(step, self.runtime.wait(receipt))
        else:
            leave = step.interrupt_on_exit
            stream = self.runtime.stream(
                step.key, step.text, interrupt_on_exit=leave, **step.options
            )
            with stream:
                say("accepted", step.number)
                for _ in stream:
                    if leave and random.random() < 0.3:
                        break

    def _repeat(self, step):
        """Send a finished message again, and another one with its id."""
        with reported():
            try:
                reply = self.runtime.ask(step.key, step.text, **step.options)
            except AlreadyAnswered as error:
                reply = self.runtime.wait(error.receipt)
            say_answer(step, reply)
        with reported(EventConflict):
            self.runtime.ask(step.key, "something else", **step.options)
            say("violation", f"event e{step.number} was accepted with another text")


def storm_blocking(path, steps):
    in_thread = blocking_agent(answer_in_thread, grace_period=GRACE, max_abandoned=1000)

    def build(spec):
        even = int(spec.session_key[1:]) % 2 == 0
        return in_thread(spec) if even else StormAgent(leak_trio)

    with start_runtime(path, **options(build)) as runtime:
        ThreadClients(runtime, steps).run()


# The parent process


STORMS = {
    "trio": lambda *args: trio.run(storm_trio, *args),
    "asyncio": lambda *args: asyncio.run(storm_asyncio(*args)),
    "blocking": storm_blocking,
}


@attrs.define
class Storm:
    """A plan, and what the clients were told while it was carried out."""

    host: str
    path: Path
    plan: list
    dice: random.Random
    accepted: set = attrs.Factory(set)
    answers: dict = attrs.Factory(functools.partial(defaultdict, set))
    """The replies to each message, as the clients were told."""
    asked: dict = attrs.Factory(functools.partial(defaultdict, set))
    """The replies to each question of an agent."""
    problems: list = attrs.Factory(list)
    """Errors that a client must not get, and other misbehaviour of the host."""
    circles: int = 0
    reports: int = 0

    def carry_out(self, kills):
        """Kill the host this many times, and let the last life finish the plan."""
        most = len(self.plan) // (kills + 1)
        for _ in range(kills):
            self._life(self.reports + self.dice.randint(1, most))
        self._life(None)

    def contradictions(self):
        """Return what the clients saw and must not see."""
        answers = [*self.answers.values(), *self.asked.values()]
        several = [replies for replies in answers if len(replies) > 1]
        return [*self.problems, *(f"one message has several answers: {each}" for each in several)]

    @property
    def withdrawn(self):
        """The numbers of the messages that were withdrawn."""
        return {n for n, replies in self.answers.items() if " withdrawn " in next(iter(replies))}

    def _life(self, kill_at):
        """Run a host until it has made this many reports, and a moment longer."""
        pid, reading = self._fork()
        begun, heard = time.monotonic(), b""
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            while piece := self._read(selector, reading):
                *lines, heard = (heard + piece).split(b"\n")
                self._take(lines)
                if kill_at is not None and self.reports >= kill_at:
                    selector.unregister(reading)
                    selector.select(self.dice.random() * 0.03)
                    os.kill(pid, signal.SIGKILL)
                    selector.register(reading, selectors.EVENT_READ)
                    kill_at = None
        os.close(reading)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code not in {0, -signal.SIGKILL}:
            seconds = time.monotonic() - begun
            self.problems.append(f"the host ended with {code} after {seconds:.1f} seconds")

    def _read(self, selector, reading):
        if not selector.select(PATIENCE):
            self.problems.append("the host hangs")
            return b""
        return os.read(reading, 65536)

    def _take(self, lines):
        for line in lines:
            self.reports += 1
            match json.loads(line):
                case ["accepted", number]:
                    self.accepted.add(number)
                case ["answered", number, reply]:
                    self.accepted.add(number)
                    self.answers[number].add(reply)
                case ["asked", name, reply]:
                    self.asked[name].add(reply)
                case ["circle", _]:
                    self.circles += 1
                case ["violation", text]:
                    self.problems.append(text)

    def _fork(self):
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(reading)
            REPORTS[0] = writing
            random.seed(self.dice.random())
            faulthandler.dump_traceback_later(PATIENCE / 2, exit=True)
            steps = [step for step in self.plan if step.number not in self.accepted]
            code = 1
            try:
                STORMS[self.host](self.path, steps[::-1])
                code = 0
            except BaseException:  # noqa: BLE001 - reported, and the parent sees the code
                say("violation", traceback.format_exc())
            finally:
                os._exit(code)
        os.close(writing)
        return pid, reading


def main(host, path, asks, keys, kills, seed):
    """Carry out a storm, and print the results as JSON."""
    storm = Storm(host, Path(path), make_plan(seed, asks, keys), random.Random(seed))
    storm.carry_out(kills)
    found = violations(storm.path, storm.plan, storm.withdrawn)
    report = {
        "accepted": len(storm.accepted),
        "answered": len(storm.answers),
        "asked": len(storm.asked),
        "circles": storm.circles,
        "withdrawn": sorted(storm.withdrawn),
        "violations": [*storm.contradictions(), *found][:20],
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
