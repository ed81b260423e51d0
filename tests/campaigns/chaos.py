"""The campaign of test_chaos: nodes, clients, foreign writers and faults, all from one seed.

Three nodes are real processes, each behind a proxy and with a wrong wall clock. Clients send every
message until a node acknowledges it, through any node and sometimes again. Meanwhile faults happen
one after the other; at the end the nodes have time to finish what is left, and leave.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import attrs
import psycopg
import trio

from hermes.errors import HermesError
from hermes.messages import Message, Rotation
from hermes.store import SessionStore
from tests.campaigns import shim as shims
from tests.campaigns.chaos_checks import AUDIT, violations
from tests.campaigns.chaos_node import SLOW
from tests.support.cutting_proxy import CuttingProxy

ROOT = Path(__file__).parents[2]
NODES = 3
LEASE = 2.0
SKEWS = (-3600.0, 0.0, 3600.0)
"""Seconds by which the wall clocks of the nodes are wrong."""
ATTEMPT = 8.0
"""Seconds after which a client asks another node."""
PATIENCE = 90.0
"""Seconds without any progress after which the nodes count as hanging."""
FAULTS = ("kill", "pause", "verdict", "crash", "cut", "partition", "expire", "restart", "drain")
FORMS = ("submit", "submit", "ask", "stream")
COMMANDS = ("new", "new", "compress", "compress", "status", "title x")
VERBS = ("compress", "compress", "title", "status", "history", "post", "sessions")
WAITING = "SELECT count(*) FROM inbox WHERE state = 'open'"
UNSENT = "SELECT count(*) FROM outbox WHERE state IN ('pending', 'sending')"
UNNOTICED = "SELECT count(*) FROM boundaries WHERE closed_at IS NULL"
PROGRESS = "SELECT (SELECT count(*) FROM inbox WHERE state <> 'open'), count(*) FROM outbox"
OF_LABEL = "(SELECT max(node) FROM chaos_nodes WHERE label = %s)"
SERVED = (
    f"SELECT count(*) FROM nodes n WHERE id = {OF_LABEL} "
    "AND (dead = 0 OR EXISTS (SELECT 1 FROM inbox i JOIN routes r ON r.owner = n.id "
    "AND r.session_key = i.session_key WHERE i.state = 'open'))"
)
"""Whether a node is not declared dead yet, or nobody else has taken its open messages."""
DECLARE = f"UPDATE nodes SET dead = 1 WHERE id = {OF_LABEL}"
EXPIRE = "UPDATE nodes SET lease_until = extract(epoch FROM clock_timestamp()) - 1 WHERE dead = 0"
LONGEST = (
    "SELECT name, lease_until - extract(epoch FROM clock_timestamp()) FROM nodes "
    f"WHERE dead = 0 AND lease_until - extract(epoch FROM clock_timestamp()) > {LEASE}"
)
LOCKING = "hermes_lock_keys"
"""What the log says of a deadlock between batches. Others are rare, and the store tries again."""
BEING_COMPRESSED = (
    "SELECT session_id FROM leases WHERE holder IS NOT NULL ORDER BY random() LIMIT 1"
)
CREATE = "import sys; from hermes.store import SessionStore; SessionStore(sys.argv[1]).close()"
TRACEBACK = re.compile(r"^Traceback .*?^(?=[\w.]+(?:: |$))([^\n]*)", re.DOTALL | re.MULTILINE)
KNOWN = ("a fault", "OperationalError", "StoreBusy", "AdminShutdown")
"""What tracebacks of faults end with."""


class NodeGone(Exception):
    """A node did not answer."""


@attrs.define
class Size:
    """How much happens."""

    conversations: int
    messages: int
    faults: int


@attrs.define
class Story:
    """What the clients and the foreign writers know, which the database must agree with."""

    sent: Path
    """Where the adapters note what they send."""
    said: dict = attrs.Factory(dict)
    """The key of each event."""
    files: dict = attrs.Factory(dict)
    """The name of the file of an event."""
    steering: set = attrs.Factory(set)
    """Messages that may be passed to a running turn."""
    acknowledged: dict = attrs.Factory(partial(defaultdict, set))
    """The ids that clients were told, by event."""
    replies: dict = attrs.Factory(partial(defaultdict, set))
    """The replies that clients were told, by event."""
    foreign: dict = attrs.Factory(dict)
    """The key of each text that a foreign writer has appended."""
    problems: list = attrs.Factory(list)
    counts: Counter = attrs.Factory(Counter)
    faults: list = attrs.Factory(list)
    """The name, the place, the begin and the end of each fault, in seconds."""


# Nodes


@attrs.define(eq=False, slots=False)
class Node:
    """A running node."""

    label: str
    process: trio.Process
    proxy: CuttingProxy
    alive: bool = True
    """Whether it may be given commands: it is neither killed nor leaving."""
    ready: trio.Event = attrs.Factory(trio.Event)
    ended: trio.Event = attrs.Factory(trio.Event)
    _waiting: dict = attrs.Factory(dict)
    _numbers: int = 0

    def __attrs_post_init__(self):
        self._orders, self._written = trio.open_memory_channel(math.inf)

    async def call(self, do, **arguments):
        """Have a command carried out. Raises `NodeGone` if there is no answer soon."""
        if not self.alive:
            raise NodeGone
        self._numbers += 1
        order = {"id": self._numbers, "do": do, **arguments}
        arrived, found = self._waiting[order["id"]] = (trio.Event(), [])
        self._orders.send_nowait((json.dumps(order) + "\n").encode())
        with trio.move_on_after(ATTEMPT):
            await arrived.wait()
        del self._waiting[order["id"]]
        if not found:
            raise NodeGone
        return found[0]

    async def write(self):
        """Pass the commands on until the node ends."""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for order in self._written:
                await self.process.stdin.send_all(order)
        await self.process.stdin.aclose()

    def close_input(self):
        """Let the node leave."""
        self.alive = False
        self._orders.close()

    async def read(self):
        """Read the answers until the node ends."""
        rest = b""
        async for piece in self.process.stdout:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
        self.alive = False
        for arrived, _ in self._waiting.values():
            arrived.set()
        self.ready.set()
        await self.process.wait()
        self.ended.set()

    def _take(self, answer):
        if answer["id"] == 0:
            self.ready.set()
        elif answer["id"] in self._waiting:
            arrived, found = self._waiting[answer["id"]]
            found.append(answer)
            arrived.set()

    def signal(self, number):
        """Send a signal to the process, unless it has ended."""
        self.process.send_signal(number)


@attrs.define
class Nodes:
    """Starts nodes; each place has a proxy and a clock, and each life a label."""

    folder: Path
    root: Path
    server: object
    story: Story
    nursery: trio.Nursery
    proxies: list
    environments: list
    database: str = "postgres"
    running: list = attrs.Factory(lambda: [None] * NODES)
    _lives: int = 0

    async def start(self, place):
        """Start a node at a place."""
        self._lives += 1
        label, proxy = f"n{place}_{self._lives}", self.proxies[place]
        await self.execute(f"CREATE ROLE {label} LOGIN SUPERUSER")
        url = proxy.url(self.database).replace("postgres@", f"{label}@")
        log = (self.folder / f"{label}.log").open("wb")
        process = await trio.lowlevel.open_process(
            [
                sys.executable, "-m", "tests.campaigns.chaos_node",
                f"{url}?lease={LEASE}&wait=5", str(self.story.sent),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=self.root,
            env=self._environment(self.environments[place]),
        )  # fmt: skip
        log.close()
        node = self.running[place] = Node(label, process, proxy)
        self.nursery.start_soon(node.read)
        self.nursery.start_soon(node.write)
        return node

    async def started(self, node):
        """Wait until a node has opened its runtime."""
        with trio.move_on_after(PATIENCE):
            await node.ready.wait()
        if not node.ready.is_set() or not node.alive:
            self.story.problems.append(f"{node.label} did not start: {self.log(node)}")

    def log(self, node):
        return (self.folder / f"{node.label}.log").read_text()[-1500:]

    async def execute(self, sql, *values):
        """Run a statement on the server itself; repeated while the server is away."""

        def run():
            until = time.monotonic() + 60
            while True:
                try:
                    url = self.server.database_url(self.database)
                    with psycopg.connect(url, autocommit=True) as db:
                        found = db.execute(sql, values or None)
                        return found.fetchall() if found.description else []
                except psycopg.OperationalError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.1)

        return await trio.to_thread.run_sync(run)

    async def create_tables(self):
        """Create the tables, and what notes who changes them."""
        url = self.server.database_url(self.database)
        command = [sys.executable, "-c", CREATE, url]
        await trio.run_process(command, cwd=self.root, env=self._environment({}))
        await self.execute(AUDIT)

    def _environment(self, more):
        return {**os.environ, **more, "PYTHONPATH": f"{self.root}:{ROOT}"}

    async def leave(self, node):
        """End a node in good order."""
        node.close_input()
        with trio.move_on_after(PATIENCE):
            await node.ended.wait()
        if node.process.returncode != 0:
            code = node.process.returncode
            self.story.problems.append(f"{node.label} ended with {code}: {self.log(node)}")

    def kill_all(self):
        """End all processes that are left."""
        for node in self.running:
            if node is not None and node.process.returncode is None:
                node.signal(signal.SIGCONT)
                node.signal(signal.SIGKILL)

    def log_problems(self):
        """Yield the tracebacks in the logs, without those of faults that were made."""
        for path in sorted(self.folder.glob("n*.log")):
            text = path.read_text(errors="replace")
            for found in TRACEBACK.finditer(text):
                if not any(known in found[1] for known in KNOWN):
                    yield f"{path.stem}: {found[0][-1500:]}"


# Clients


@attrs.define
class Clients:
    """One client for each conversation, which sends all its messages through any node."""

    nodes: Nodes
    story: Story
    dice: random.Random
    _numbers: int = 1000
    _commands: int = 0

    async def talk(self, key, messages):
        """Send messages and commands: some at once, most one after the other."""
        dice = random.Random(f"{self.dice.random()} {key}")
        steers = key.endswith("3")
        while messages > 0:
            number = min(messages, dice.choice((1, 1, 1, 2, 4)))
            messages -= number
            async with trio.open_nursery() as nursery:
                for _ in range(number):
                    nursery.start_soon(self._send, key, self._message(key, dice, steers=steers))
                    await trio.sleep(dice.random() * 0.05)
                if dice.random() < 0.35:
                    nursery.start_soon(self._send, key, self._command(key, dice))
            if dice.random() < 0.25:
                await self.call_verb(key, dice.choice(VERBS), dice)
            await trio.sleep(dice.random() * 0.8)

    def _message(self, key, dice, *, steers, form=None):
        self._numbers += 1
        event = f"e{self._numbers}"
        slow = SLOW if dice.random() < 0.35 else ""
        text = f"{self._numbers} {slow} {'word ' * dice.randint(1, 40)}"
        busy = "steer" if steers and dice.random() < 0.5 else "queue"
        file = f"file {self._numbers}" if dice.random() < 0.15 else None
        if busy == "steer":
            self.story.steering.add(event)
        if file:
            self.story.files[event] = file
        self.story.said[event] = key
        self.story.counts["messages"] += 1
        return (
            form or dice.choice(FORMS),
            {"event": event, "text": text, "busy": busy, "file": file},
            dice,
        )

    def _command(self, key, dice):
        self._commands += 1
        text = dice.choice(COMMANDS)
        event = f"{text.split()[0]}{self._commands}"
        self.story.said[event] = key
        self.story.counts["commands"] += 1
        return "submit", {"event": event, "text": f"/{text}"}, dice

    async def _send(self, key, message):
        """Send a message until it is acknowledged, and sometimes once more."""
        form, arguments, dice = message
        again = dice.random() < 0.1
        while True:
            said = await self._try(form, key, arguments, dice)
            if said is None:
                await trio.sleep(0.1 + dice.random() * 0.3)
                continue
            self._note(arguments["event"], said)
            if not again:
                return
            again = False

    def _note(self, event, said):
        inbox_id, reply = said
        if inbox_id is not None:
            self.story.acknowledged[event].add(inbox_id)
        if reply is not None:
            self.story.replies[event].add(reply)

    async def _try(self, form, key, arguments, dice):
        """Send it through some node; None if it may not be stored."""
        node = dice.choice(self.nodes.running)
        if node is None or not node.alive or not node.ready.is_set():
            return None
        try:
            answer = await node.call(form, key=key, **arguments)
        except NodeGone:
            self.story.counts["unanswered"] += 1
            return None
        if "said" in answer:
            return answer["said"]
        self._refused(node, form, answer)
        return None

    def _refused(self, node, what, answer):
        if "violation" in answer:
            self.story.problems.append(f"{what} on {node.label}: {answer['violation']}")
        else:
            self.story.counts[answer["error"].partition(":")[0]] += 1

    async def burst(self, keys):
        """Send messages to all conversations at once, so that nodes write many at the same time."""
        async with trio.open_nursery() as nursery:
            for key in keys * 2:
                message = self._message(key, self.dice, steers=False, form="submit")
                nursery.start_soon(self._send, key, message)

    async def call_verb(self, key, name, dice):
        """Call a verb on some node; what becomes of it does not matter."""
        node = dice.choice(self.nodes.running)
        if node is not None and node.alive and node.ready.is_set():
            with contextlib.suppress(NodeGone):
                answer = await node.call("verb", key=key, name=name)
                if "said" in answer:
                    self.story.counts["verbs"] += 1
                else:
                    self._refused(node, name, answer)


# Foreign writers


@attrs.define
class ForeignWriter:
    """Writes to the sessions of the nodes as another program: appends, titles and compressions."""

    url: str
    story: Story
    keys: list
    dice: random.Random
    stopping: bool = False
    _appended: int = 0

    async def run(self):
        await trio.to_thread.run_sync(self._run)

    def _run(self):
        while not self.stopping:
            try:
                with SessionStore(self.url) as store:
                    while not self.stopping:
                        self._write(store)
                        time.sleep(self.dice.random() * 0.02)
            except HermesError as error:  # the server is away
                self.story.counts[f"foreign {type(error).__name__}"] += 1
                time.sleep(0.2)

    def _write(self, store):
        found = store.snapshot(lambda tx: tx.one(BEING_COMPRESSED))
        if found is not None:
            for _ in range(self.dice.randint(1, 8)):
                self._append(store, found[0])
        key = self.dice.choice(self.keys)
        route = store.get_route(key)
        if route is None:
            return
        what = self.dice.random()
        with contextlib.suppress(HermesError, ValueError):
            if what < 0.5:
                self._append(store, route.session_id)
            elif what < 0.6:
                store.set_session_title(route.session_id, f"{key} {self.dice.randrange(3)}")
            elif what < 0.63:
                self._rotate(store, route)

    def _append(self, store, session_id):
        self._appended += 1
        session = store.get_session(session_id)
        if session is None or session.ended_at is not None:
            return
        text = f"foreign {self.dice.random()} {self._appended}"
        with contextlib.suppress(HermesError):
            store.append_message(session_id, "user", text)
            self.story.foreign[text] = session.session_key
            self.story.counts["foreign rows"] += 1

    def _rotate(self, store, route):
        """Compress a session to its last rows, as another process does."""
        head = store.head(route.session_id)
        rows = store.get_messages(route.session_id)
        if len(rows) < 6:
            return
        kept = [Message(row.role, row.content) for row in rows[-4:]]
        rotation = Rotation(
            session_id=route.session_id,
            session_key=route.session_key,
            epoch=route.epoch,
            rewrites=head.rewrites,
            upto=rows[-1].id,
            messages=[Message("user", "a summary by another program"), *kept],
            rotation_id=f"foreign {self.dice.random()}",
        )
        store.rotate(rotation)
        self.story.counts["foreign rotations"] += 1


# Faults


@attrs.define
class Faults:
    """Lets one fault happen after the other."""

    nodes: Nodes
    clients: Clients
    keys: list
    story: Story
    dice: random.Random

    async def run(self, number):
        """Let this many faults happen: each kind once before any comes again."""
        plan = []
        while len(plan) < number:
            plan += self.dice.sample(FAULTS, len(FAULTS))
        for done, name in enumerate(plan[:number]):
            await trio.sleep(self.dice.random() * LEASE / 2)
            if done % 4 == 0:
                await self.clients.burst(self.keys)
            place = self.dice.randrange(NODES)
            node = self.nodes.running[place]
            begun = trio.current_time()
            await getattr(self, f"_{name}")(place, node)
            ended = trio.current_time()
            self.story.faults.append((name, place, round(begun, 1), round(ended, 1)))
            self.story.counts[name] += 1
        self.story.counts["faults"] += number

    async def _start(self, place):
        """Start a node while the others compress conversations, which it must leave alone."""
        node = await self.nodes.start(place)
        async with trio.open_nursery() as nursery:
            while not node.ready.is_set() and not node.ended.is_set():
                key = self.dice.choice(self.keys)
                nursery.start_soon(self.clients.call_verb, key, "compress", self.dice)
                await trio.sleep(0.1)
        await self.nodes.started(node)

    async def _kill(self, place, node):
        node.alive = False
        node.signal(signal.SIGKILL)
        await node.ended.wait()
        node.close_input()
        await trio.sleep(self.dice.random() * 1.5 * LEASE)
        await self._start(place)

    async def _pause(self, place, node):
        """Stop a process until others serve what it had, and a moment longer."""
        node.signal(signal.SIGSTOP)
        try:
            with trio.move_on_after(4 * LEASE):
                while (await self.nodes.execute(SERVED, node.label))[0][0]:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            await trio.sleep(self.dice.random() * 0.3)
        finally:
            node.signal(signal.SIGCONT)

    async def _verdict(self, place, node):
        """Declare a node dead that lives, as after a jump of the database's clock."""
        for _ in range(3):
            await self.nodes.execute(DECLARE, node.label)
            await trio.sleep(LEASE / 3)

    async def _expire(self, place, node):
        """End all leases, while conversations are free because a node was declared dead."""
        with trio.move_on_after(LEASE):
            while True:
                await self.nodes.execute(EXPIRE)
                await trio.sleep(0.03)

    async def _crash(self, place, node):
        await self._restart_server("immediate")

    async def _restart(self, place, node):
        await self._restart_server("fast")

    async def _restart_server(self, mode):
        server = self.nodes.server
        await trio.to_thread.run_sync(server.stop, mode)
        await trio.sleep(self.dice.random() * LEASE)
        await trio.to_thread.run_sync(server.start)

    async def _cut(self, place, node):
        """Cut connections of a node at COMMIT."""
        for _ in range(6):
            node.proxy.cut_next(self.dice.choice(("before", "during", "after")))
            await trio.sleep(self.dice.random() * 0.3)

    async def _partition(self, place, node):
        """Take the network from a node for longer than its lease."""
        await trio.to_thread.run_sync(node.proxy.refuse, True)
        await trio.sleep((1 + self.dice.random()) * LEASE)
        await trio.to_thread.run_sync(node.proxy.refuse, False)

    async def _drain(self, place, node):
        """A node leaves in good order, and another one comes."""
        await self.nodes.leave(node)
        await self._start(place)


# The campaign


async def watch_leases(nodes, story):
    """Note leases that end later than they may, and deadlocks, until cancelled."""
    while True:
        for name, seconds in await nodes.execute(LONGEST):
            story.problems.append(f"the lease of {name} ends in {seconds:.1f} seconds")
            return
        log = "".join(list(nodes.server.log))
        for found in log.split("deadlock detected")[1:]:
            if LOCKING in found[:2000]:
                story.problems.append(f"a deadlock: {found[:1500]}")
                return
        await trio.sleep(LEASE / 5)


async def settle(nodes, story):
    """Wait until everything is answered, sent and noticed; give up if nothing happens any more."""
    last, give_up = None, trio.current_time() + PATIENCE
    while True:
        left = [(await nodes.execute(sql))[0][0] for sql in (WAITING, UNSENT, UNNOTICED)]
        if not any(left):
            return
        now = [*left, *(await nodes.execute(PROGRESS))]
        if now != last:
            last, give_up = now, trio.current_time() + PATIENCE
        if trio.current_time() > give_up:
            story.problems.append(f"open messages, replies and boundaries at the end: {left}")
            return
        await trio.sleep(0.2)


async def run_nodes(nodes, story, size, dice):
    """Let clients talk while faults happen, and let the nodes finish."""
    keys = [f"k{number}" for number in range(size.conversations)]
    foreign = ForeignWriter(
        nodes.server.database_url(nodes.database), story, keys, random.Random(dice.random())
    )
    clients = Clients(nodes, story, random.Random(dice.random()))
    faults = Faults(nodes, clients, keys, story, random.Random(dice.random()))
    for node in [await nodes.start(place) for place in range(NODES)]:
        await nodes.started(node)
    if story.problems:
        return
    async with trio.open_nursery() as watching:
        watching.start_soon(watch_leases, nodes, story)
        watching.start_soon(foreign.run)
        try:
            async with trio.open_nursery() as nursery:
                for key in keys:
                    nursery.start_soon(clients.talk, key, size.messages)
                nursery.start_soon(faults.run, size.faults)
        finally:
            foreign.stopping = True
        if not story.problems:
            await settle(nodes, story)
        watching.cancel_scope.cancel()
    async with trio.open_nursery() as leaving:
        for node in nodes.running:
            leaving.start_soon(nodes.leave, node)


async def run(folder, server, seed, size, root=ROOT):
    """Carry out a campaign; return its story, with all violations in `problems`."""
    dice = random.Random(seed)
    story = Story(folder / "sent")
    story.sent.touch()
    clocks = [shims.build(folder)]
    library, controls = folder / "shim.so", [folder / f"clock{n}" for n in range(1, NODES)]
    clocks += [shims.Shim(library, control) for control in controls]
    for clock, skew in zip(clocks, dice.sample(SKEWS, NODES), strict=True):
        clock.move_clocks(skew)
    environments = [clock.environment for clock in clocks]
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(CuttingProxy(server.port)) for _ in range(NODES)]
        async with trio.open_nursery() as nursery:
            nodes = Nodes(folder, root, server, story, nursery, proxies, environments)
            try:
                await nodes.create_tables()
                await run_nodes(nodes, story, size, dice)
            finally:
                nodes.kill_all()
    story.problems += nodes.log_problems()
    url = server.database_url(nodes.database)
    with psycopg.connect(url, autocommit=True) as db:
        story.problems += violations(url, db, story)
    if story.problems:
        story.problems.append(f"the faults were {story.faults}")
    return story
