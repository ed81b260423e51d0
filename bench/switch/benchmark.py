"""The switching benchmark: how often agents are rebuilt when users switch sessions, and the cost.

The runtime, the store, the agent and its model over HTTP are real; README.md describes the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import attrs

from bench.harness.benchmark import Benchmark, Measured, Run, progress, remove, rotate
from bench.harness.measurements import Goal, Measurements, Ref, ratio
from bench.harness.process import Driver
from bench.report.results import Column, Table
from bench.switch import figures, workload
from bench.switch.figures import SHARE_OF_BEST, Performance, Prices
from bench.switch.policies import BEFORE, CONTENDERS, EVERY_SWITCH, OURS

ALL = "all patterns"
ORACLE = "the oracle: computed, not run"
THEIRS = "hermes-agent 0.19.0, its own gateway; prompt kept"
GROWING = (OURS, BEFORE, EVERY_SWITCH)
WORK = workload.Plan(users=3, sessions=4, turns=32, writes=0.3)


@attrs.frozen(kw_only=True)
class Plan:
    """The amount of work; the defaults are a full run."""

    repetitions: int = 3
    work: workload.Plan = WORK
    patterns: tuple[str, ...] = tuple(workload.PATTERNS)
    sessions: tuple[int, ...] = (1, 2, 4, 8)
    """Sessions per user, to show how the cost grows with them."""
    lengths: tuple[int, ...] = (10, 40, 160)
    """Turns of a user, to show how the cost grows with the length of a history."""


FULL = Plan()
QUICK = Plan(
    repetitions=1,
    work=workload.Plan(users=2, sessions=2, turns=8, writes=0.4, restarts=1),
    patterns=("zipf", workload.RESUME),  # each start of hermes-agent takes seconds
    sessions=(1, 2),
    lengths=(8, 24),
)


def growing(plan: Plan) -> dict[str, workload.Plan]:
    """The cells that show growth: more sessions with equally many turns each, then longer ones."""
    work = plan.work
    each = work.turns // work.sessions
    many = {f"{n} sessions": replace(work, sessions=n, turns=n * each) for n in plan.sessions}
    long = {f"{n} turns": replace(work, users=1, sessions=2, turns=n) for n in plan.lengths}
    return {**many, **long}


@attrs.frozen
class Scripts:
    """Lets the contenders perform scripts in turn; each repetition starts with another one."""

    plan: Plan
    prices: Prices
    drivers: Mapping[str, Driver]
    folder: Path
    measurements: Measurements = attrs.Factory(Measurements)

    def run(self) -> Measurements:
        peers = [THEIRS] if "hermes-agent" in self.drivers else []
        labels = [*(each.label for each in CONTENDERS), *peers]
        for repetition in range(self.plan.repetitions):
            everything: dict[str, list[Performance]] = {label: [] for label in labels}
            for pattern in self.plan.patterns:
                text, order = f"repetition {repetition + 1}, {pattern}", rotate(labels, repetition)
                runs = {each: self._perform(text, each, self.plan.work, pattern) for each in order}
                self._add(pattern, {label: [run] for label, run in runs.items()})
                for label, run in runs.items():
                    everything[label].append(run)
            self._add(ALL, everything)
        for cell, work in growing(self.plan).items():
            names = [each.label for each in GROWING]
            self._add(cell, {name: [self._perform(cell, name, work, "zipf")] for name in names})
        return self.measurements

    def _perform(self, text: str, label: str, work: workload.Plan, pattern: str) -> Performance:
        """Let one contender perform a script; the model's cache is empty at the start."""
        progress(f"{text}: {label}")
        path, model = self.folder / "fresh", self.drivers["model"]
        driver = self.drivers["hermes-agent" if label == THEIRS else "ours"]
        script = {"plan": asdict(work), "pattern": pattern, "label": label}
        record = driver.ask("run", path=str(path), url=model.about["url"], **script)
        requests = model.ask("take")["requests"]
        remove(path)
        steps = workload.script(work, pattern)
        return Performance(steps, record, requests, workload.opening_turns(work))

    def _add(self, cell: str, runs: Mapping[str, Sequence[Performance]]) -> None:
        """Add the figures of all contenders and of the oracle."""
        best = figures.best(runs[OURS.label], self.prices)
        self.measurements.add(cell, ORACLE, best)
        for label, performances in runs.items():
            found = figures.pooled(performances, self.prices)
            failed = figures.failed_goals(found, best)
            self.measurements.add(cell, label, {**found, "failed": failed})


def policy_goals(label: str = OURS.label) -> tuple[Goal, ...]:
    """The goals that every policy can be judged by; `label` names its row."""
    share, best = Ref(ALL, label, "share"), Ref(ALL, ORACLE, "share")
    return (
        Goal("rebuilds that are not the oracle's", Ref(ALL, label, "misjudged"), 0, unit="turns",
             explains="Turns for which an agent was built unnecessarily, or not built although "
             "another writer had written to the current session.", at_any_size=True),
        Goal("messages from elsewhere that went unnoticed", Ref(ALL, label, "unnoticed"), 0,
             unit="messages", explains="Messages of another writer without a required rebuild, "
             "not shown to the model in the next turn, or missing at the end.", at_any_size=True),
        Goal("cached tokens: share of the oracle's share", share, SHARE_OF_BEST, best,
             at_least=True, explains="Cached share of all prompt tokens compared with the "
             "greatest possible share.", at_any_size=True),
    )  # fmt: skip


WHOLE = Goal(
    "requests, answers and messages that are not what they should be",
    Ref(ALL, OURS.label, "damaged"), 0, unit="",
    explains="Model requests that differ from the oracle's in a token, replies that are not the "
    "model's, messages missing in the file, or dropped by a compression without a summary.",
    at_any_size=True,
)  # fmt: skip
OVERHEAD = ratio(
    ALL, "p50_ms", THEIRS, OURS.label, 15,
    "Time of a turn with a model that replies at once; its time is included for both.",
    text="a turn: hermes-agent / ours",
)  # fmt: skip
GOALS = (*policy_goals(), WHOLE, OVERHEAD)

MISJUDGED = Column(
    "misjudged", "not the oracle's", 0,
    explains="Turns with an unnecessary build, or without a necessary one.",
)  # fmt: skip
BUILDS = Column("builds", "builds", 0, "neither", "Agents built.")
NEEDLESS = Column("extra", "needless", 0, explains="Agents built without any reason.")
MISSED = Column("missed", "missed", 0, explains="Turns without a rebuild after another's write.")
REUSED = Column("reused", "reused", 3, "neither", "Share of turns with a cached agent.")
SHARE = Column("share", "cached share", 3, "higher", "Cached share of all prompt tokens.")
COST = Column("cost", "$ per 1,000 turns", 2, explains="Price of the requests, without summaries.")
P50 = Column("p50_ms", "turn p50 ms", 2, explains="Median time from the message to the reply.")
FAILED = Column("failed", "goals missed", 0, explains="Failed goals, of the first three.")
AGENTS = (
    MISJUDGED,
    BUILDS,
    Column("cold", "cold", 0, "neither", "Builds at a user's first turn in a process."),
    Column("foreign", "foreign write", 0, "neither", "Builds after a write to this session."),
    Column("returned", "on return", 0, "neither",
           "Builds after a write to the session while its user was in another one: not needed, "
           "because the agent is shown the whole session anyway."),
    NEEDLESS,
    MISSED,
    Column("hidden", "not shown", 0,
           explains="Messages of another writer that the model did not see in the next turn."),
    Column("lost", "lost", 0, explains="Messages missing in the file at the end."),
    Column("wrong", "wrong", 0, explains="Turns whose reply was not what the model said."),
    Column("spoilt", "spoilt", 0, explains="Requests without the result of an earlier tool call."),
    REUSED,
    Column("build_ms", "build p50 ms", 2, explains="Median time to build an agent."),
    Column("compressed", "compressions", 0, "neither", "Compressions that took place."),
    FAILED,
)  # fmt: skip
PROMPTS = (
    COST,
    Column("prompt", "prompt tokens", 0, "neither", "Prompt tokens per turn."),
    Column("cached", "cached tokens", 0, "higher", "Cached prompt tokens per turn."),
    SHARE,
    Column("other_tokens", "other tokens", 0, explains="Tokens of summaries and such, per turn."),
    P50,
    Column("p99_ms", "turn p99 ms", 1, explains="99th percentile of the time of a turn."),
    Column("switch_ms", "switch p50 ms", 2, explains="Median time of /resume alone."),
)
REASONS = (
    Column("said cold", "cold", 0, "neither", "There was no agent."),
    Column("said foreign-write", "foreign-write", 0, "neither", "Another writer had written."),
    Column("said evicted", "evicted", 0, "neither", "The policy dropped the agent."),
    Column("said built", "built", 0, "neither", "No reason was given."),
)
BRIEF = (MISJUDGED, BUILDS, NEEDLESS, MISSED, REUSED, SHARE, COST, P50, FAILED)
GROWTH = (Column("fresh", "new prompt tokens", 0, explains="Uncached tokens per turn."), COST)
ROWS = (
    "Each row is a policy that decides when a cached agent is rebuilt. 'Prompt rendered again' "
    "means that a rebuild creates the system prompt again, with content that changes, such as the "
    "time; 'prompt kept' means that it stays the same, as in hermes-agent 0.19.0. All rows but "
    "hermes-agent's own are policies inside our runtime."
)
GIVEN = "The reasons that the contenders give for a build; hermes-agent gives none."
PATTERNS = {
    "round robin": "Users visit their sessions one after the other: every turn is a switch.",
    "zipf": "Users have a favourite session and visit the others less often.",
    "bursts": "Users stay in a session for two to eight turns before they switch.",
    workload.RESUME: "Like bursts, with restarts of the process.",
}
POINT = "How the cost grows with sessions or turns, with the zipf pattern."


def tables(plan: Plan) -> list[Table]:
    return [
        Table(ALL, "switching, all patterns: the agents", AGENTS, ROWS),
        Table(ALL, "switching, all patterns: prompts and time", PROMPTS, ROWS),
        Table(ALL, "switching, all patterns: the reasons given", REASONS, GIVEN),
        *(Table(name, f"switching, {name}", BRIEF, PATTERNS[name]) for name in plan.patterns),
        *(Table(cell, f"switching, {cell}", GROWTH, POINT) for cell in growing(plan)),
    ]


def measure(run: Run) -> Measured:
    plan, prices = QUICK if run.options.quick else FULL, run.options.prices
    return Measured(
        plan={**attrs.asdict(prices), **asdict(plan.work), "repetitions": plan.repetitions},
        measurements=Scripts(plan, prices, run.drivers, run.folder).run(),
        goals=GOALS,
        tables=tables(plan),
        foreign=[THEIRS],  # all other rows run inside our runtime, or do not run at all
    )


SWITCH = Benchmark(
    name="switch",
    about="Switching sessions: how often agents are rebuilt, what is cached, and what it costs.",
    modules={
        "model": "bench.switch.model",
        "ours": "bench.switch.ours",
        "hermes-agent": "bench.peers.hermes_switch",
    },
    measure=measure,
)
