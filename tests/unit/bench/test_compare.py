"""Two results compared: what is flagged, what is noise, and how often that is wrong."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from bench.__main__ import main
from bench.command import RESULTS
from bench.compare import NO_PEERS, Noise, Row, compare, student
from bench.report import results
from bench.report.results import Column, Figure, GoalResult, Result, Spread, Table

MACHINE = {"processor": "one", "cores": 2, "file_system": "ext4", "commit": "c", "when": "now"}
STEADY = [10.0, 10.1, 9.9, 10.0, 10.05]


def goal(name, values, target=">= 1 x"):
    least, spread = float(target.split()[1]), Spread.of(values)
    at_least, unit = target.startswith(">="), target.partition(" ")[2].partition(" ")[2]
    met = spread.median >= least if at_least else spread.median <= least
    better, outcome = "higher" if at_least else "lower", "pass" if met else "FAIL"
    return GoalResult(name, "", target, better, unit, outcome, spread)


def figures(who, values_of):
    return [
        Figure(**structs.asdict(Spread.of(values)), cell="cell", who=who, figure=name)
        for name, values in values_of.items()
    ]


def result(goals=(), figures=(), better="lower", **other):
    """A result in which every figure has a column."""
    columns = [Column(name, f"{name} ms", 1, better) for name in {each.figure for each in figures}]
    given = {
        "benchmark": "store", "about": "", "quick": False, "seconds": 1, "machine": MACHINE,
        "versions": {}, "plan": {"repetitions": 5, "asks": 10}, "foreign": None,
        "tables": (Table("cell", "", tuple(columns)),),
    }  # fmt: skip
    return Result(goals=tuple(goals), figures=tuple(figures), **{**given, **other})


def times(factor, values=STEADY):
    return [factor * value for value in values]


def flagged(found, verdict="regression"):
    return {row.what for row in found.rows if row.verdict == verdict}


class Machine:
    """Runs of the same code: noise of each figure's own size, and a drift of all absolute ones."""

    def __init__(self, seed, noises=(0.05, 0.25), drift=0.15, outliers=0.0):
        self.random = random.Random(seed)
        self.goals = [self.random.uniform(*noises) for _ in range(16)]
        self.ours = [self.random.uniform(*noises) for _ in range(40)]
        self.peers = [self.random.uniform(*noises) for _ in range(60)]
        self.drift = drift
        self.outliers = outliers

    def run(self, repetitions, slower=1.0):
        """A result; `slower` changes the first goal and the first of our figures."""
        drift = self.random.lognormvariate(0, self.drift)

        def values(noise, factor):
            return [
                factor
                * self.random.lognormvariate(0, noise)
                * (3 if self.random.random() < self.outliers else 1)
                for _ in range(repetitions)
            ]

        def measured(noises, factor):
            return [values(each, factor * (1 if at else slower)) for at, each in enumerate(noises)]

        goals = [goal(f"goal {at}", v, "<= 1 x") for at, v in enumerate(measured(self.goals, 1))]
        ours = {f"{at}": each for at, each in enumerate(measured(self.ours, drift))}
        peers = {f"{at}": values(each, drift) for at, each in enumerate(self.peers)}
        return result(goals, figures("ours", ours) + figures("peer", peers))


def alarms(machines, repetitions):
    """The shares of ratios and of figures that are flagged although nothing changed."""
    rows = [row for m in machines for row in compare(m.run(repetitions), m.run(repetitions)).rows]
    wrong = [row.ratio for row in rows if row.verdict in {"regression", "improvement"}]
    ratios = sum(row.ratio for row in rows)
    return wrong.count(True) / ratios, wrong.count(False) / (len(rows) - ratios)


@pytest.mark.parametrize("outliers", [0.0, 0.1], ids=["lognormal", "with outliers"])
def test_the_same_code_raises_next_to_no_false_alarm(outliers):
    counts = (3, 4, 5, 8, 15)
    seen = [alarms([Machine(seed, outliers=outliers) for seed in range(25)], n) for n in counts]
    ratios, absolute = zip(*seen, strict=True)
    assert sum(ratios) / len(seen) <= 1 / 200
    assert sum(absolute) / len(seen) <= 1 / 500


def test_a_machine_that_is_half_as_fast_raises_next_to_no_false_alarm():
    assert alarms([Machine(seed, drift=0.7) for seed in range(25)], 5)[1] <= 1 / 500


def found(slower, repetitions=5, count=60):
    """How often a slower goal and a slower figure are flagged, with 10 % noise."""
    seen = []
    for seed in range(count):
        machine = Machine(seed, noises=(0.1, 0.1))
        new = compare(machine.run(repetitions), machine.run(repetitions, slower))
        seen.append({"goal 0", "cell: ours, 0 ms"} & flagged(new))
    ratios = sum("goal 0" in each for each in seen)
    return ratios / count, (sum(map(len, seen)) - ratios) / count


def test_half_the_speed_is_always_found_and_30_percent_mostly():
    ratio, absolute = found(2.0)
    assert ratio == 1
    assert absolute > 0.9
    assert found(1.3)[0] > 0.6
    assert found(1.3, repetitions=15)[0] > 0.9


@pytest.mark.parametrize(
    ("probability", "freedom", "table"),
    [(0.005, 3, 7.453), (0.01, 5, 4.032), (0.005, 8, 3.833), (0.001, 10, 4.587), (0.01, 60, 2.660)],
)
def test_quantiles_of_students_t_match_the_tables(probability, freedom, table):
    assert student(probability, freedom) == pytest.approx(table, rel=0.012)


def test_limits_narrow_with_repetitions_but_not_below_a_bound():
    def of(count):
        run = tuple(1 + (at % 3) / 10 for at in range(count))
        return Noise(0.1, 0.003).limit(Row("", run, run, "lower"))

    assert of(3) > of(6) > of(9)
    assert of(30) > 0.8 * of(9)


def test_a_count_is_flagged_when_it_is_half_a_percent_worse():
    old = result(figures=figures("ours", {"a": [1000.0] * 3, "b": [1000.0] * 3, "c": [0.0] * 3}))
    new = result(figures=figures("ours", {"a": [1004.0] * 3, "b": [1006.0] * 3, "c": [1.0] * 3}))
    assert flagged(compare(old, new)) == {"cell: ours, b ms", "cell: ours, c ms"}
    assert flagged(compare(new, old), "improvement") == {"cell: ours, b ms", "cell: ours, c ms"}


def test_a_single_repetition_is_judged_only_if_it_is_a_count():
    goals = [goal("once", [2.5]), goal("count", [0.0], "<= 0 turns")]
    worse = [goal("once", [1.5]), goal("count", [3.0], "<= 0 turns")]
    seen = compare(result(goals), result(worse))
    assert flagged(seen, "not comparable") == {"once"}
    assert flagged(seen) == {"count"}


def test_peers_are_not_judged_but_show_what_the_machine_did():
    names = [f"{at}" for at in range(8)]
    peers = figures("x", dict.fromkeys(names, STEADY))
    old = result(figures=[*figures("ours", {"0": STEADY}), *peers])

    def later(ours, theirs):
        slow = figures("x", dict.fromkeys(names, times(theirs)))
        return compare(old, result(figures=[*figures("ours", {"0": times(ours)}), *slow]))

    assert flagged(later(1.5, 1.0)) == {"cell: ours, 0 ms"}
    assert not flagged(later(1.5, 1.5))
    assert not flagged(later(1.0, 1.5), "improvement")
    assert flagged(later(3.0, 1.5)) == {"cell: ours, 0 ms"}
    assert any("the median peer is 50% worse" in each for each in later(3.0, 1.5).remarks)


def test_one_peer_that_moved_widens_the_limits_of_figures_but_not_of_ratios():
    names = [f"{at}" for at in range(8)]
    peers = figures("x", dict.fromkeys(names, STEADY))
    moved = figures("x", {**dict.fromkeys(names, STEADY), "7": times(2)})
    old = result([goal("ratio", times(2))], [*figures("ours", {"0": STEADY}), *peers])
    new = result([goal("ratio", times(1))], [*figures("ours", {"0": times(1.8)}), *moved])
    assert flagged(compare(old, new)) == {"ratio"}


def test_rows_that_run_our_code_under_another_name_are_not_peers():
    """In `switch`, policies are rows of their own: if we are slow, they are slow, too."""
    fast, slow = times(0.1), times(0.2)

    def run(values, **other):
        rows = [each for who in ("ours", "mutant") for each in figures(who, {"ms": values})]
        return result(figures=[*rows, *figures("hermes-agent", {"ms": fast})], **other)

    judged = [run(values, foreign=("hermes-agent",)) for values in (fast, slow)]
    assert flagged(compare(*judged)) == {"cell: ours, ms ms"}
    assert not flagged(compare(run(fast), run(slow)))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"machine": {**MACHINE, "processor": "two"}}, "The processor differs (one, then two)"),
        ({"machine": {**MACHINE, "file_system": "x"}}, "The file system differs (ext4, then x)"),
        ({"plan": {"repetitions": 5, "asks": 11}}, "The plans differ (asks)"),
    ],
)
def test_on_another_machine_only_ratios_are_judged(other, said):
    absolute = "100 sessions, worst"

    def run(ratio, ms):
        goals = [goal("ratio", times(ratio)), goal(absolute, times(ms), "<= 15 ms")]
        return result(goals, figures("ours", {"a": times(ms)}))

    old, new = run(2, 1), run(1, 2)
    assert flagged(compare(old, new)) == {"ratio", absolute, "cell: ours, a ms"}
    apart = compare(old, structs.replace(new, **other))
    assert flagged(apart) == {"ratio"}
    assert flagged(apart, "not comparable") == {absolute, "cell: ours, a ms"}
    assert f"{said}: only ratios are judged." in apart.remarks


def test_remarks_name_versions_missing_peers_and_what_is_in_one_file_only():
    old = result([goal("gone", STEADY)], figures("ours", {"a": STEADY}),
                 versions={"model": {"url": "a"}, "peer": {"pykka": "4.4"}})  # fmt: skip
    more = [*figures("ours", {"a": STEADY}), *figures("peer", {"a": STEADY})]
    versions = {"model": {"url": "b"}, "peer": {"pykka": "4.5"}}
    remarks = compare(old, result([], more, versions=versions)).remarks[1:]
    only = (
        "Only in old: gone; peer with pykka 4.4.",
        "Only in new: cell: peer; peer with pykka 4.5.",
    )
    assert remarks == (*only, NO_PEERS)


# Any result: zeros, negative values, great and small ones, one repetition or many.
numbers = st.one_of(st.floats(-1e100, 1e100), st.sampled_from([0.0, 1.0, 1e-100]))
runs = st.lists(numbers, min_size=1, max_size=5)


@st.composite
def any_results(draw):
    targets = st.sampled_from([">= 1 x", "<= 1 x", "<= 3.4 KiB", ">= 1 "])
    names = st.sampled_from("abcd")
    goals = draw(st.dictionaries(names, st.tuples(runs, targets), max_size=3))
    found = [
        each
        for who in ("ours", "ours, too", "peer")
        for each in figures(who, draw(st.dictionaries(names, runs, max_size=3)))
    ]
    return result([goal(name, *each) for name, each in goals.items()], found)


@given(any_results(), any_results())
def test_any_two_results_can_be_compared_and_shown(old, new):
    assert compare(old, new).text(show_all=True)


def verdicts(old, new):
    return {row.what: row.verdict for row in compare(old, new).rows}


def test_zeros_in_runs_of_different_length_are_no_change():
    old, new = (result(figures=figures("ours", {"a": values})) for values in ([0.0], [0.0, 0.0]))
    assert set(verdicts(old, new).values()) == {"within noise"}


@given(any_results(), any_results())
def test_backwards_a_regression_is_an_improvement(old, new):
    known = {each.goal: each for each in old.goals}
    goals = [
        structs.replace(g, better=known[g.goal].better, unit=known[g.goal].unit)
        if g.goal in known else g
        for g in new.goals
    ]  # fmt: skip
    new = structs.replace(new, tables=old.tables, goals=tuple(goals))
    swapped = {"regression": "improvement", "improvement": "regression"}
    there, back = verdicts(old, new), verdicts(new, old)
    assert there == {what: swapped.get(verdict, verdict) for what, verdict in back.items()}


@given(any_results())
def test_a_result_compared_with_itself_flags_nothing(same):
    assert not {"regression", "improvement"} & set(verdicts(same, same).values())


def test_the_command_shows_the_worst_first_and_exits_with_1(tmp_path, capsys):
    def run(name, a, b, c):
        goals = [goal("a", times(a)), goal("b", times(b)), goal("c", times(c)), goal("d", STEADY)]
        results.write(tmp_path / name, result(goals))
        return str(tmp_path / name)

    files = [run("old.json", 2, 3, 1), run("new.json", 1, 1, 2)]
    assert main(["compare", *files]) == 1
    shown = capsys.readouterr().out.splitlines()
    rows = [line for line in shown if line.endswith(("regression", "improvement"))]
    assert [row.split()[0] for row in rows] == ["b", "a", "c"]
    assert rows[0].split()[1:6] == ["30.03", "x", "10.01", "x", "-67"]
    assert shown[-1] == "2 regression, 1 improvement, 1 within noise, 0 not comparable"
    assert main(["compare", *files, "--all"]) == 1
    assert "d " in capsys.readouterr().out
    assert main(["compare", files[0], files[0]]) == 0


def test_a_goal_that_is_lost_within_noise_is_listed_but_not_a_regression(tmp_path, capsys):
    noisy = [0.8, 1.2, 1.01, 0.9, 1.1]
    for name, factor in (("old.json", 1), ("new.json", 0.98)):
        results.write(tmp_path / name, result([goal("near", times(factor, noisy))]))
    assert main(["compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")]) == 0
    shown = capsys.readouterr().out
    assert "pass -> FAIL (medians 1.01, then 0.9898; target >= 1 x), within noise" in shown


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"benchmark": "runtime"}, "The benchmarks differ: store and runtime.\n"),
        ({"quick": True}, "Only the new result is of a quick run.\n"),
    ],
)
def test_results_of_different_work_are_refused(tmp_path, capsys, other, why):
    results.write(tmp_path / "old.json", result())
    results.write(tmp_path / "new.json", result(**other))
    assert main(["compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")]) == 2
    assert capsys.readouterr().err == why


@pytest.mark.parametrize("name", ["switch", "runtime", "agents", "store", "hosts"])
def test_the_committed_results_can_be_compared(name, capsys):
    assert main(["compare", *[str(RESULTS / f"{name}.json")] * 2]) == 0
    assert "0 regression, 0 improvement" in capsys.readouterr().out
