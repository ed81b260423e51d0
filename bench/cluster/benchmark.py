"""The cluster benchmark: the store and the runtime on PostgreSQL, all on this machine."""

from __future__ import annotations

import attrs

from bench.harness.benchmark import Benchmark, Cell, Contender, Group, measure_cells
from bench.harness.measurements import Goal, Ref, ratio
from bench.report.results import Column

SQLITE_ONE, SQLITE_MANY = "ours, SQLite, one by one", "ours, SQLite, in batches"
VERBS_ONE, VERBS_MANY = "ours, general path, one by one", "ours, general path, in batches"
FAST_ONE, FAST_MANY = "ours, fast path, one by one", "ours, fast path, in batches"
SQLITE, ONE, THREE = "ours, SQLite", "ours, one node", "ours, three nodes"
AGNO, DBOS, DBOS_QUEUE = "agno's durable queue", "DBOS workflows", "DBOS queue"
KILLED, STOPPED = "ours, kill -9", "ours, SIGSTOP"
COMMITS, TURNS, RESUME = "commits", "turns", "resume"
BATCH = 8


@attrs.frozen(kw_only=True)
class Plan:
    """The amount of work; the defaults are a full run."""

    repetitions: int = 3
    seconds: float = 2.0
    callers: int = 24
    conversations: int = 30
    losses: int = 3


FULL = Plan()
QUICK = Plan(repetitions=2, seconds=0.5, losses=1)

RATE = Column("rate", "turns/s", 0, "higher", "Durable turns per second, all callers.")
COST = (
    Column("cpu_us", "Python us", 0, explains="Processor time of our processes for a turn."),
    Column("server_us", "server us", 0, explains="Processor time of PostgreSQL for a turn."),
)
CAPACITY = (
    Column("node_rate", "turns/s per node core", 0, "higher",
           "What one core of a node could do by its processor time alone, on its own machine."),
    Column("server_rate", "turns/s per server core", 0, "higher",
           "What one core of a database server could do by its processor time alone."),
)  # fmt: skip
LOST = (
    Column("seconds", "s", 2, explains="From the loss until the last message is answered."),
    Column("leases", "leases", 2, explains="The same in lengths of a lease."),
)


def groups(plan: Plan) -> list[Group]:
    """Transactions on one connection, whole turns, and the loss of a node."""
    return [
        Group(plan.repetitions, (_commits(plan),)),
        Group(plan.repetitions, (_turns(plan),)),
        Group(plan.losses, (_resume(plan),)),
    ]


def _commits(plan: Plan) -> Cell:
    sizes = {1: (SQLITE_ONE, VERBS_ONE, FAST_ONE), BATCH: (SQLITE_MANY, VERBS_MANY, FAST_MANY)}
    contenders = tuple(
        Contender(who, "ours", "commits", {"size": size, "seconds": plan.seconds, "by": by})
        for size, names in sizes.items()
        for who, by in zip(names, ("sqlite", "verbs", "functions"), strict=True)
    )
    return Cell(
        COMMITS, f"two transactions a turn, one connection, batches of {BATCH}", (RATE, *COST),
        "One transaction accepts messages of other conversations, the next one commits their "
        "turns: two rows, a model call, a reply. The general path runs the verbs as on SQLite; on "
        "the fast path, functions in the database do the usual case.",
        contenders, given=("path", "url"),
    )  # fmt: skip


def _turns(plan: Plan) -> Cell:
    work = {"callers": plan.callers, "seconds": plan.seconds}
    contenders = (
        Contender(SQLITE, "ours", "turns", {**work, "sqlite": True}),
        Contender(ONE, "ours", "turns", work),
        Contender(THREE, "ours", "turns", {**work, "nodes": 3}),
        Contender(AGNO, "agno", "turns", work),
        Contender(DBOS, "dbos", "turns", work),
        Contender(DBOS_QUEUE, "dbos", "turns", {**work, "queue": True}),
    )
    return Cell(
        TURNS, f"whole turns, {plan.callers} callers", (RATE, *COST, *CAPACITY),
        "Each caller waits for its answer; agents answer at once. With three nodes, each is asked "
        "for conversations that it serves, and all share the cores with the server. The capacity "
        "of separate machines is derived from processor time, not measured. Peers promise less: "
        "agno's queue runs a lost turn at most once by default, and its callers poll; DBOS has "
        "workflows, without conversations, order within them, transcripts or deliveries.",
        contenders, given=("url",),
    )  # fmt: skip


def _resume(plan: Plan) -> Cell:
    contenders = tuple(
        Contender(who, "ours", "resume", {"conversations": plan.conversations, "stop": stop})
        for who, stop in ((KILLED, False), (STOPPED, True))
    )
    return Cell(
        RESUME, f"one of three nodes is lost, {plan.conversations} conversations", LOST,
        "Every conversation has a message before the loss and one after it, turns take 0.3 s, and "
        "a lease 2 s. Then each message must be in the transcripts once.",
        contenders, given=("url",),
    )  # fmt: skip


def goals(_: Plan) -> tuple[Goal, ...]:
    return GOALS


def _within(who: str, leases: float) -> Goal:
    return Goal(f"{RESUME}: {who}", Ref(RESUME, who, "leases"), leases, unit="leases",
                explains="Time until all conversations of a lost node go on.")  # fmt: skip


GOALS = (
    ratio(COMMITS, "rate", FAST_MANY, SQLITE_MANY, 0.2,
          "Share of the speed of SQLite, which needs no other process."),
    ratio(COMMITS, "rate", FAST_MANY, VERBS_MANY, 3,
          "What the functions gain in batches over the verbs in batches."),
    ratio(COMMITS, "rate", VERBS_ONE, SQLITE_ONE, 0.1,
          "Share of the speed of SQLite by the general path, one transaction after the other."),
    ratio(TURNS, "rate", ONE, AGNO, 1, "Turns per second of one node, and of agno's worker."),
    ratio(TURNS, "rate", ONE, DBOS, 1, "The same compared with workflows that are called."),
    ratio(TURNS, "rate", ONE, DBOS_QUEUE, 1, "The same compared with workflows in a queue."),
    ratio(TURNS, "rate", THREE, ONE, 0.8,
          "Three nodes on the same two cores must not be much slower than one."),
    _within(KILLED, 2),
    _within(STOPPED, 3),
)  # fmt: skip

CLUSTER = Benchmark(
    name="cluster",
    about="Nodes on one PostgreSQL server, compared with SQLite and other durable queues.",
    modules={
        "ours": "bench.cluster.ours",
        "server": "tests.support.postgres_driver",
        "agno": "bench.peers.agno_queue",
        "dbos": "bench.peers.dbos_queue",
    },
    measure=measure_cells(FULL, QUICK, groups, goals),
)
