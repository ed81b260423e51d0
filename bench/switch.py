"""Session-switch cache reuse: how often an agent is built when people switch, and what it costs.

Users with several sessions each, all under one session_key, switch between them, while somebody
else writes to these sessions now and then. The runtime, the store, the agent and its model over
HTTP are real. Beside it: hermes-agent through its own gateway, other policies inside our runtime,
broken ones, and the oracle, which knows the script.

Read: workload for the script, oracle for the best that is possible, policies for who competes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import attrs

from bench import command, peers_env, policies, report, switch_figures, workload
from bench.board import Board, Goal, Ref
from bench.drivers import Driver, together
from bench.policies import OURS, Contender
from bench.progress import Steps
from bench.report import Axis, Column, Line, Measured, Plot, Sheet, Table
from bench.runtime import remove
from bench.switch_figures import SHARE_OF_BEST, Prices, Seen

ALL = "all patterns"
ORACLE = "the oracle: computed, not run"
THEIRS = "hermes-agent 0.19.0, its own gateway; prompt kept"
MODULES = {
    "model": "bench.peers.switch_model",
    "ours": "bench.peers.ours_switch",
    "hermes-agent": "bench.peers.hermes_switch",
}
GROWING = (OURS, policies.BEFORE, policies.SWITCH)


@attrs.frozen(kw_only=True)
class Plan:
    """How much of everything."""

    repetitions: int
    work: workload.Plan
    patterns: tuple[str, ...] = tuple(workload.PATTERNS)
    contenders: tuple[Contender, ...] = policies.CONTENDERS
    sessions: tuple[int, ...]
    """Sessions of a user, for the plot of how cost grows with them."""
    lengths: tuple[int, ...]
    """Turns of a user, for the plot of how cost grows with the length of a history."""


FULL = Plan(
    repetitions=3,
    work=workload.Plan(users=3, sessions=4, turns=32, writes=0.3),
    sessions=(1, 2, 4, 8),
    lengths=(10, 40, 160),
)
QUICK = Plan(
    repetitions=1,
    work=workload.Plan(users=2, sessions=2, turns=8, writes=0.4, restarts=1),
    patterns=("zipf", workload.RESUME),  # each start of hermes-agent takes seconds
    sessions=(1, 2),
    lengths=(8, 24),
)
PATTERN_OF_GROWTH = "zipf"


def goals(label: str = OURS.label) -> tuple[Goal, ...]:
    """What issue 6 asks of a guard; every row can be judged by it."""
    return (
        Goal(
            "rebuilds that are not the oracle's",
            Ref(ALL, label, "misjudged"),
            0,
            unit="turns",
            explains="Turns for which an agent was built without need, or not built although "
            "somebody else had written to the session at hand.",
            at_any_size=True,
        ),
        Goal(
            "messages from elsewhere that went unnoticed",
            Ref(ALL, label, "unnoticed"),
            0,
            unit="messages",
            explains="Not answered by a new agent where one was due, not shown to the model in the "
            "next turn, or not in the file at the end.",
            at_any_size=True,
        ),
        Goal(
            "cached tokens: share of the oracle's share",
            Ref(ALL, label, "share"),
            SHARE_OF_BEST,
            Ref(ALL, ORACLE, "share"),
            at_least=True,
            explains="How much of all prompts the provider had seen before, beside the most that "
            "is possible with this script.",
            at_any_size=True,
        ),
    )


WHOLE = Goal(
    "requests, answers and messages that are not what they should be",
    Ref(ALL, OURS.label, "damaged"),
    0,
    unit="",
    explains="Requests to the model that are not the oracle's token by token, answers that are not "
    "the model's, messages that are not in the file, or that a compression has dropped unsummed.",
    at_any_size=True,
)
OVERHEAD = Goal(
    "a turn: hermes-agent / ours",
    Ref(ALL, THEIRS, "p50_ms"),
    15,
    Ref(ALL, OURS.label, "p50_ms"),
    at_least=True,
    explains="How many times longer a turn takes in hermes-agent, with a model that answers at "
    "once; what the model takes is counted for both, which is kind to the slower one.",
)


def main(arguments: Sequence[str]) -> int:
    """Measure, print the tables and the goals, write the file."""
    own = command.Parser(prog="python -m bench switch", add_help=False)
    own.add_argument(
        "--prices", type=prices_of, default=Prices(), metavar="INPUT,CACHED,OUTPUT",
        help="dollars per million tokens (default: 2.5,0.25,10)",
    )  # fmt: skip
    prices = own.parse_known_args(arguments)[0].prices

    def measure(folder: Path, steps: Steps, *, quick: bool) -> Measured:
        return _measure(QUICK if quick else FULL, prices, folder, steps)

    return command.run("switch", __doc__ or "", arguments, measure, [own])


def prices_of(text: str) -> Prices:
    """A price list, as an option tells it."""
    try:
        return Prices.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@contextmanager
def fleet(folder: Path, peer: Path | None) -> Iterator[dict[str, Driver]]:
    """The model, we, and hermes-agent where there is an interpreter that has it."""
    pythons = {"model": Path(sys.executable), "ours": Path(sys.executable)}
    if peer is not None:
        pythons["hermes-agent"] = peer
    with together(folder, pythons, MODULES) as drivers:
        yield drivers


def _measure(plan: Plan, prices: Prices, folder: Path, steps: Steps) -> Measured:
    machine = report.machine(folder)
    with fleet(folder, peers_env.interpreter("hermes-agent")) as drivers:
        versions: dict[str, report.Json] = {name: dict(d.about) for name, d in drivers.items()}
        bench = Bench(plan, prices, drivers, folder, steps)
        steps.expect(bench.count())
        bench.patterns()
        bench.growth()
    machine["load_after"] = report.load()
    described = {**attrs.asdict(prices), **asdict(plan.work)}
    described["repetitions"] = plan.repetitions
    # All other rows run in our runtime, or were not run at all.
    return Measured(bench.board, sheet(plan), machine, versions, described, [THEIRS])


@attrs.define
class Bench:
    """Runs scripts: contenders take turns, and each repetition starts with another one."""

    plan: Plan
    prices: Prices
    drivers: Mapping[str, Driver]
    folder: Path
    steps: Steps
    board: Board = attrs.Factory(Board)

    @property
    def labels(self) -> list[str]:
        """Everybody who does the patterns."""
        peers = [THEIRS] if "hermes-agent" in self.drivers else []
        return [*(each.label for each in self.plan.contenders), *peers]

    def count(self) -> int:
        """How many steps there are."""
        patterns = self.plan.repetitions * len(self.labels) * len(self.plan.patterns)
        return patterns + len(growing(self.plan)) * len(GROWING)

    def patterns(self) -> None:
        """Every contender does every pattern."""
        labels = self.labels
        for repetition in range(self.plan.repetitions):
            runs: dict[str, list[Seen]] = {label: [] for label in labels}
            for pattern in self.plan.patterns:
                script = workload.script(self.plan.work, pattern)
                first = repetition % len(labels)
                for label in labels[first:] + labels[:first]:
                    self.steps.step(f"{pattern}: {label} ({repetition + 1})")
                    runs[label].append(self.run(label, script, workload.openings(self.plan.work)))
            for place, pattern in enumerate(self.plan.patterns):
                self.add(pattern, {label: [seen[place]] for label, seen in runs.items()})
            self.add(ALL, runs)

    def growth(self) -> None:
        """How the cost of a turn grows with sessions and with the length of their histories."""
        for cell, work in growing(self.plan).items():
            script = workload.script(work, PATTERN_OF_GROWTH)
            runs: dict[str, list[Seen]] = {}
            for each in GROWING:
                self.steps.step(f"{cell}: {each.label}")
                runs[each.label] = [self.run(each.label, script, workload.openings(work))]
            self.add(cell, runs)

    def run(self, label: str, script: list[workload.Step], timed_from: int) -> Seen:
        """Have one contender do a script, with a model that knows nothing yet."""
        path, file = self.folder / "fresh", self.folder / "script.json"
        workload.save(script, file)
        name = "hermes-agent" if label == THEIRS else "ours"
        url = self.drivers["model"].request("open")["url"]
        given = {"path": str(path), "url": url, "script": str(file), "label": label}
        record: dict[str, Any] = self.drivers[name].request("run", **given)
        requests = self.drivers["model"].request("close")["requests"]
        remove(path)
        return Seen(script, record, requests, timed_from)

    def add(self, cell: str, runs: Mapping[str, Sequence[Seen]]) -> None:
        """Everybody's figures for these scripts, and the oracle's."""
        best = switch_figures.best(runs[OURS.label], self.prices)
        self.board.add(cell, ORACLE, best)
        for label, seen in runs.items():
            figures = switch_figures.pooled(seen, self.prices)
            missed = switch_figures.missed_goals(figures, best)
            self.board.add(cell, label, {**figures, "failed": missed})


def growing(plan: Plan) -> dict[str, workload.Plan]:
    """The cells of the plots, and their work: as many turns for each session, then ever more."""
    work = plan.work
    each = work.turns // work.sessions
    many = {f"{n} sessions": replace(work, sessions=n, turns=n * each) for n in plan.sessions}
    long = {f"{n} turns": replace(work, users=1, sessions=2, turns=n) for n in plan.lengths}
    return {**many, **long}


def sheet(plan: Plan) -> Sheet:
    """How it is shown."""
    tables = [
        Table(ALL, "switching, all patterns: the agents", AGENTS, EXPLAINS),
        Table(ALL, "switching, all patterns: prompts and time", PROMPTS, EXPLAINS),
        Table(ALL, "switching, all patterns: the reasons given", REASONS, GIVEN),
        *(Table(name, f"switching, {name}", BRIEF, DOES[name]) for name in plan.patterns),
    ]
    tables += [Table(cell, f"switching, {cell}", GROWTH, GROWS) for cell in growing(plan)]
    whos = (*(each.label for each in GROWING), ORACLE)
    plots = (
        Plot(
            "prompt tokens that a provider had not seen, by sessions of a user",
            "fresh",
            Axis("sessions of each user"),
            Axis("new prompt tokens per turn"),
            tuple(Line(who, {n: f"{n} sessions" for n in plan.sessions}) for who in whos),
            "As many turns in each session. With one nobody switches; with more, who rebuilds and "
            "makes the prompt anew pays for a whole history with each switch.",
        ),
        Plot(
            "prompt tokens that a provider had not seen, by length of the conversation",
            "fresh",
            Axis("turns of the user, in two sessions"),
            Axis("new prompt tokens per turn"),
            tuple(Line(who, {n: f"{n} turns" for n in plan.lengths}) for who in whos),
            "What a turn adds is the same however long the history is; what a rebuilt prompt "
            "costs grows with it.",
        ),
    )
    return Sheet((*goals(), WHOLE, OVERHEAD), tables, plots)


EXPLAINS = (
    "Each row is a way to decide when a cached agent is built anew. 'Prompt rendered again' means "
    "that a rebuild makes the system prompt anew, with something in it that is true only then, as "
    "the time or what is remembered; 'kept' means that its bytes stay. hermes-agent 0.19.0 keeps "
    "them. All but its own row are policies inside of our runtime."
)
DOES = {
    "round robin": "Users go through their sessions one after the other: every turn is a switch.",
    "zipf": "Users have a favourite session, and others that they visit the more rarely.",
    "bursts": "Users stay in a session for two to eight turns before they switch.",
    workload.RESUME: "As in bursts, and the process is started anew on the way.",
}
MISSES = Column(
    "failed", "goals missed", 0,
    explains="Of the first three goals, how many this row would miss.",
)  # fmt: skip
BUILDS = Column("builds", "builds", 0, "neither", explains="How many agents were built.")
NEEDLESS = Column("extra", "needless", 0, explains="The others: agents built without any need.")
MISSED = Column(
    "missed", "missed", 0,
    explains="Turns with an agent that somebody else's writing had made stale.",
)  # fmt: skip
REUSED = Column(
    "reused", "reused", 3, "neither",
    explains="The share of turns for which an agent was there already.",
)  # fmt: skip
SHARE = Column("share", "cached share", 3, "higher", explains="Cached of all prompt tokens.")
COST = Column(
    "cost", "$ per 1,000 turns", 2,
    explains="What the turns cost by the price list, without summaries.",
)  # fmt: skip
P50 = Column(
    "p50_ms", "turn p50 ms", 2,
    explains="From the question to the answer, with a model that answers at once.",
)  # fmt: skip
MISJUDGED = Column(
    "misjudged", "not the oracle's", 0,
    explains="Turns for which an agent was built and should not have been, or the other way round.",
)  # fmt: skip
AGENTS = (
    MISJUDGED,
    BUILDS,
    Column("cold", "cold", 0, "neither",
           explains="Of these, how many at a user's first turn in a process."),
    Column("foreign", "foreign write", 0, "neither",
           explains="And how many where somebody else had written to the session at hand."),
    Column("returned", "on return", 0, "neither",
           explains="How many where somebody else had written while the user was elsewhere: the "
           "agent is shown such a session whole anyway, so the oracle builds none."),
    NEEDLESS,
    MISSED,
    Column("hidden", "not shown", 0,
           explains="Messages from elsewhere that the model did not see in the next turn."),
    Column("lost", "lost", 0, explains="Messages in no row of the file at the end."),
    Column("wrong", "wrong", 0, explains="Turns that were not answered with what the model said."),
    Column("spoilt", "spoilt", 0,
           explains="Requests in which the result of an earlier call was not there any more."),
    REUSED,
    Column("build_ms", "build p50 ms", 2, explains="How long it takes to make an agent."),
    Column("compressed", "compressions", 0, "neither",
           explains="How many sessions were compressed on the way."),
    MISSES,
)  # fmt: skip
PROMPTS = (
    COST,
    Column("prompt", "prompt tokens", 0, "neither", explains="Tokens sent per turn."),
    Column("cached", "cached tokens", 0, "higher",
           explains="Tokens per turn that the provider had read before."),
    SHARE,
    Column("other_tokens", "other tokens", 0,
           explains="Tokens sent for summaries and the like, spread over the turns."),
    P50,
    Column("p99_ms", "turn p99 ms", 1, explains="99 of 100 turns take no longer."),
    Column("switch_ms", "switch p50 ms", 2, explains="What /resume takes by itself."),
)  # fmt: skip
GROWS = "One point of the plots: the favourite-and-rarer-ones pattern, with more of something."
GROWTH = (
    Column("fresh", "new prompt tokens", 0,
           explains="Prompt tokens per turn that the provider had not read before."),
    COST,
)  # fmt: skip
GIVEN = (
    "Why each contender says it has built an agent. hermes-agent gives no reasons; 'evicted' is "
    "what a policy says that needs no reason."
)
REASONS = tuple(
    Column(f"said {reason}", reason, 0, "neither", explains=explains)
    for reason, explains in {
        "cold": "There was none.",
        "foreign-write": "Somebody else was said to have written.",
        "evicted": "It was given up.",
        "built": "No reason was given.",
    }.items()
)
BRIEF = (MISJUDGED, BUILDS, NEEDLESS, MISSED, REUSED, SHARE, COST, P50, MISSES)
