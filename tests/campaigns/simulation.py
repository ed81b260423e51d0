"""The program of test_simulation: a whole runtime on a virtual clock, with faults mixed per seed.

A seed decides which operations and faults occur, how often, and in which order; it also decides
everything that is random in Trio, in the runtime and in the store. A seed therefore repeats
exactly, in any process:

    python -m tests.campaigns.simulation SEED PATH      prints the hash of the trace

COMMITs fail: busy, full, or with an unknown outcome, which ends the runtime as a crash would. The
program crashes, the platform fails before or after it has taken a reply, summaries fail, agents
fail, the wall clock is set, other processes write, and the message ids of the platform start again
and again. In the end the runtime is opened once more
without faults. `invariants.py` then reads the file and the log of acknowledgements.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import attrs
import trio
from trio.testing import MockClock

from hermes import CompressionConfig, Config, ExpiryPolicy, Inbound, Source
from hermes.actors.runtime import open_actors
from hermes.embed.agent import default_spec
from hermes.errors import ContextOverflow, HermesError, Overloaded, RetryAfter, StoreFailed
from hermes.events import TextDelta, ToolFinished, ToolStarted
from hermes.messages import ToolCall, TurnResult, Usage
from hermes.store import SessionStore, open_store
from hermes.testing import DeterministicCompressor, MemoryAdapter, inline, inspect
from hermes.transcript.render import is_valid
from tests.campaigns.invariants import Entry, violations
from tests.support.stores import World

KEYS = ("k0", "k1", "k2")
COMMANDS = (
    "/new", "/new a title", "/stop", "/retry", "/undo", "/undo 3", "/compress", "/compress here 1",
    "/branch", "/resume 1", "/resume 2", "/sessions", "/title x", "/status", "/background look",
    "/steer left", "/queue later", "/usage", "/nonsense",
)  # fmt: skip
WHEN_BUSY = (None, None, "queue", "interrupt", "steer", "reject")
PLATFORM_IDS = 5
"""After so many messages, the ids of the platform start again."""
PATIENCE = 10_000.0
MOST_OPERATIONS = 80
CONFIG = Config(
    expiry=ExpiryPolicy(mode="idle", idle_minutes=10),
    turn_timeout=60,
    commit_timeout=2,
    idle_timeout=300,
    max_agents=1,
    drain_timeout=0,
    max_attempts=1000,
    compression=CompressionConfig(window=1000, max_output=100, protect_first=1),
)


# The script of a seed

DRAWS: dict[str, Callable[[random.Random], tuple]] = {
    "say": lambda dice: (dice.choice(KEYS), dice.choice(WHEN_BUSY)),
    "command": lambda dice: (dice.choice(KEYS), dice.choice(COMMANDS)),
    "repeat": lambda dice: (dice.randrange(30),),
    "give_up": lambda dice: (dice.choice(KEYS), dice.randint(0, 12)),
    "interrupt": lambda dice: (dice.choice(KEYS),),
    "write": lambda dice: (
        dice.choice(KEYS), dice.choice(["append", "rewind", "edit", "title", "accept"]),
    ),
    "wait": lambda dice: (dice.choice([0.01, 0.3, 2.0, 30.0, 700.0]),),
    "steps": lambda dice: (dice.randint(1, 15),),
    "fault": lambda dice: (dice.choice(["busy", "full", "unknown-absent", "unknown-present"]),),
    "crash": lambda dice: (),
    "passivate": lambda dice: (),
    "platform": lambda dice: (dice.choice(["early", "late", "wait"]), dice.randint(1, 3)),
    "set_clock": lambda dice: (dice.choice([-3600.0, -30.0, 30.0, 3600.0]),),
    "compressor": lambda dice: (dice.random() < 0.5,),
}  # fmt: skip
"""What can happen, and how its arguments are drawn."""


def script_of(dice: random.Random) -> list[tuple]:
    """Return operations. Which kinds occur, and how often, differs from seed to seed."""
    weights = {name: dice.choice([0, 0, 1, 1, 2, 5]) for name in DRAWS}
    weights |= {"say": dice.choice([5, 10, 20])}
    weights |= {name: dice.choice([1, 2, 5]) for name in ("steps", "wait")}  # else nothing happens
    names = dice.choices(list(weights), list(weights.values()), k=dice.randint(5, MOST_OPERATIONS))
    return [(name, *DRAWS[name](dice)) for name in names]


@contextlib.contextmanager
def everything_seeded(seed: int):
    """Let a seed decide all that is random: Trio's scheduling, `random`, `secrets` and `uuid4`."""
    entropy = random.Random(f"{seed} entropy")
    scheduler = trio._core._run
    before = (os.urandom, random._urandom, scheduler._ALLOW_DETERMINISTIC_SCHEDULING)
    state, scheduling = random.getstate(), scheduler._r.getstate()
    random.seed(seed)
    scheduler._r.seed(seed)
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    os.urandom = random._urandom = entropy.randbytes
    try:
        yield
    finally:
        os.urandom, random._urandom, scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before
        random.setstate(state)
        scheduler._r.setstate(scheduling)


# The runtime, and what happens to it


@attrs.define
class Agent:
    """An agent whose behaviour depends on the message, and on nothing else."""

    story: Story
    runs: int = 0
    open_turns: int = 0
    closed: int = 0

    async def run(self, turn):
        assert not self.open_turns, "two turns at once"
        assert is_valid(turn.messages()) is None
        self.open_turns += 1
        try:
            return await self._run(turn)
        finally:
            self.open_turns -= 1

    async def _run(self, turn):
        self.runs += 1
        dice = random.Random(turn.text)
        if dice.random() < 0.1:
            raise RuntimeError("the model is unwell")
        if dice.random() < 0.05 and len(turn.history) > 6:
            raise ContextOverflow("too long")
        for number in range(dice.randint(0, 2)):
            call = ToolCall(f"{turn.turn_id}-{number}-{self.runs}", "tool")
            turn.emit(ToolStarted(call))
            await trio.sleep(dice.choice([0, 0.1, 5]))
            turn.emit(ToolFinished(call.id, "done"))
            turn.steered()
        turn.emit(TextDelta("well, "))
        await trio.sleep(dice.choice([0, 0, 0.2, 3]))
        usage = [Usage(input_tokens=dice.choice([10, 10, 900]), output_tokens=5)]
        return TurnResult(text=f"well, {turn.text[-20:]}", usage=usage)

    async def aclose(self):
        assert not self.open_turns
        self.closed += 1
        assert self.closed == 1, "closed twice"
        await trio.lowlevel.checkpoint()


@attrs.define
class Story:
    """The state of a simulation outside of the runtime."""

    path: object
    world: World = attrs.Factory(World)
    said: list[Inbound] = attrs.Factory(list)
    log: list[Entry] = attrs.Factory(list)
    """What was acknowledged."""
    agents: list[Agent] = attrs.Factory(list)
    adapter: MemoryAdapter = attrs.Factory(lambda: MemoryAdapter(platform="sim"))
    faults: list[str] = attrs.Factory(list)
    compressor: DeterministicCompressor = attrs.Factory(lambda: DeterministicCompressor(delay=0.5))
    heard: list[tuple[str, str, int]] = attrs.Factory(list)
    starts: int = 0
    behind: Callable[[object], object] = lambda store: store
    """Wraps the store that the runtime gets."""

    @contextlib.asynccontextmanager
    async def open(self):
        """Open the runtime."""
        self.starts += 1
        async with (
            open_store(
                self.path,
                clock=self.world.clock,
                hooks={
                    "on_session_finalize": [self._hook("finalize")],
                    "on_session_reset": [self._hook("reset")],
                },
                open_worker=inline(lambda: self.faults.pop(0) if self.faults else None),
            ) as store,
            open_actors(
                self.behind(store),
                build=self.build,
                agent_spec=default_spec,
                compressor=self.compressor,
                adapters=[self.adapter],
                wall=self.world.clock.wall,
                config=CONFIG,
            ) as runtime,
        ):
            yield runtime

    def build(self, spec):
        agent = Agent(self)
        self.agents.append(agent)
        return agent

    def _hook(self, name):
        async def hook(session_id, platform, boundary_id):
            self.heard.append((name, session_id, boundary_id))

        return hook

    def inbound(self, session_key, text, **options):
        number = len(self.said)
        source = Source(platform="sim", chat_id=session_key, user_id=session_key)
        platform_id = str(number % PLATFORM_IDS)
        inbound = Inbound(
            session_key, f"e{number}", text, source, platform_message_id=platform_id, **options
        )
        self.said.append(inbound)
        return inbound

    def acknowledge(self, inbound, inbox_id):
        """Note a receipt in the log."""
        entry = Entry(
            inbound.event_id, inbound.session_key, inbox_id, inbound.command, inbound.when_busy
        )
        self.log.append(entry)

    def calm(self):
        """End all faults."""
        self.faults.clear()
        self.adapter.errors.clear()
        self.adapter.late_errors.clear()
        self.compressor.error = None


class Player:
    """Runs a script, and opens the runtime again after each crash."""

    def __init__(self, story):
        self.story = story

    async def play(self, script):
        left = list(script)
        while left:
            try:
                async with self.story.open() as runtime, trio.open_nursery() as nursery:
                    while left:
                        operation = left.pop(0)
                        if operation == ("crash",):
                            raise Crash  # noqa: TRY301
                        await self.do(runtime, nursery, *operation)
                    nursery.cancel_scope.cancel()
            except Crash:
                pass
            except BaseExceptionGroup as group:
                if (rest := group.split((Crash, StoreFailed))[1]) is not None:
                    raise rest from None
            except StoreFailed:
                pass
            self.story.calm()

    async def do(self, runtime, nursery, name, *arguments):
        await getattr(self, name)(runtime, nursery, *arguments)

    async def say(self, runtime, nursery, session_key, when_busy):
        number = len(self.story.said)
        inbound = self.story.inbound(
            session_key, f"{number:04} {'word ' * (number % 40)}", when_busy=when_busy
        )
        nursery.start_soon(self.submit, runtime, inbound)

    async def command(self, runtime, nursery, session_key, text):
        inbound = self.story.inbound(session_key, text, command=True)
        nursery.start_soon(self.submit, runtime, inbound)

    async def repeat(self, runtime, nursery, number):
        if self.story.said:
            inbound = self.story.said[number % len(self.story.said)]
            nursery.start_soon(self.submit, runtime, inbound)

    async def submit(self, runtime, inbound):
        try:
            receipt = await runtime.submit(inbound)
        except (HermesError, Overloaded):
            return
        self.story.acknowledge(inbound, receipt.inbox_id)

    async def give_up(self, runtime, nursery, session_key, steps):
        """Ask, and cancel the call after a number of steps."""
        number = len(self.story.said)
        text = f"{number:04} cancelled"
        inbound = self.story.inbound(session_key, text, per_conversation=True)

        async def ask():
            with contextlib.suppress(HermesError):
                await runtime.ask(
                    session_key, inbound.text, source=inbound.source, event_id=inbound.event_id
                )

        async with trio.open_nursery() as inner:
            inner.start_soon(ask)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            inner.cancel_scope.cancel()

    async def interrupt(self, runtime, nursery, session_key):
        await runtime.conversation(session_key).interrupt()

    async def write(self, runtime, nursery, session_key, what):
        with SessionStore(self.story.path, clock=self.story.world.clock) as store:
            route = store.get_route(session_key)
            if route is None or store.get_session(route.session_id) is None:
                return
            rows = store.load(route.session_id).messages
            try:
                match what:
                    case "append":
                        store.append_message(route.session_id, "user", "from elsewhere")
                    case "rewind" if rows:
                        store.rewind(route.session_id, rows[len(rows) // 2].id)
                    case "edit" if rows:
                        store.edit_message(route.session_id, rows[-1].id, "edited elsewhere")
                    case "title":
                        store.set_session_title(route.session_id, f"t{len(self.story.said)}")
                    case "accept":
                        number = len(self.story.said)
                        inbound = self.story.inbound(session_key, f"{number:04} from elsewhere")
                        self.story.acknowledge(inbound, store.accept(inbound).receipt.inbox_id)
            except (HermesError, ValueError):
                pass  # the session has just ended, or the title is in use

    async def wait(self, runtime, nursery, seconds):
        self.story.world.pass_time(seconds)
        await trio.sleep(seconds)

    async def steps(self, runtime, nursery, number):
        for _ in range(number):
            await trio.lowlevel.checkpoint()

    async def fault(self, runtime, nursery, kind):
        self.story.faults.append(kind)

    async def passivate(self, runtime, nursery):
        runtime.admin.passivate()

    async def platform(self, runtime, nursery, when, number):
        """Let the next calls of the platform fail."""
        adapter = self.story.adapter
        match when:
            case "early":
                adapter.errors += [ConnectionError("no route") for _ in range(number)]
            case "wait":
                adapter.errors += [RetryAfter("slow down", 7.0) for _ in range(number)]
            case "late":
                adapter.late_errors += [ConnectionError("lost") for _ in range(number)]

    async def set_clock(self, runtime, nursery, seconds):
        """Set the date, as an administrator would."""
        self.story.world.now += seconds

    async def compressor(self, runtime, nursery, fails):
        self.story.compressor.error = RuntimeError("no summary") if fails else None


class Crash(Exception):
    """The program of the host fails."""


async def finish(story):
    """Open the runtime without faults, until nothing is left to do."""
    story.calm()
    with trio.fail_after(PATIENCE):
        async with story.open() as runtime:
            while await unfinished(runtime):
                story.world.pass_time(1)
                await trio.sleep(1)
            await runtime.wait_hooks()
            await runtime.drain(PATIENCE)


async def unfinished(runtime):
    store = inspect(runtime).store
    return await store.open_inbox() or await store.pending_outbox()


# The result

TABLES = (
    "SELECT name FROM pragma_table_list "
    "WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
)
"""All tables, without the indexes of the search, which follow from them."""


@attrs.frozen
class Outcome:
    """What a seed led to."""

    violations: list[str]
    trace: str
    """A hash of the log, of all tables and of what the platform got."""
    messages: int


def simulate(path: Path, seed: int, behind: Callable = lambda store: store) -> Outcome:
    """Run the script of a seed, and check the file that it leaves."""
    story = Story(path, behind=behind)

    async def run():
        await Player(story).play(script_of(random.Random(seed)))
        await finish(story)

    with everything_seeded(seed):
        trio.run(run, clock=MockClock(autojump_threshold=0))
    found = [*violations(path, story.log), *platform_violations(story)]
    found += ["an agent was not closed" for agent in story.agents if agent.closed != 1]
    return Outcome(found, trace_of(story), len(story.log))


def platform_violations(story):
    """Yield replies that came too late, or again without saying so."""
    newest, seen = {}, set()
    for row in story.adapter.sent:
        if row.outbox_id in seen and not row.recovered:
            yield f"reply {row.outbox_id} was sent twice and does not say so"
        if row.outbox_id not in seen and row.outbox_id < newest.get(row.lane, 0):
            yield f"reply {row.outbox_id} was sent too late"
        seen.add(row.outbox_id)
        newest[row.lane] = max(newest.get(row.lane, 0), row.outbox_id)


def trace_of(story) -> str:
    """Return a hash of everything that can be observed."""
    digest = hashlib.sha256(repr(story.log).encode())
    digest.update(repr([(row, row.recovered) for row in story.adapter.sent]).encode())
    digest.update(repr(story.heard).encode())
    with contextlib.closing(apsw.Connection(str(story.path))) as db:
        for (table,) in db.execute(TABLES).fetchall():
            for row in db.execute(f'SELECT * FROM "{table}"'):
                digest.update(repr((table, row)).encode())
    return digest.hexdigest()


def main(seed: int, path: Path) -> None:
    """Run one seed and print what it led to, as JSON."""
    sys.stdout.write(json.dumps(attrs.asdict(simulate(path, seed))))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
