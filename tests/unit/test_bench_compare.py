"""Two results compared: what is flagged, what is noise, and how often that is wrong."""

from __future__ import annotations

import json
import random
from pathlib import Path

import attrs
import msgspec
import pytest
from hypothesis import given, strategies as st

from bench.__main__ import main as bench_main
from bench.board import Board, Goal, Ref
from bench.changes import ALONE, Comparison, compare
from bench.compare import as_json, main, text
from bench.noise import Pair, chance, floor, limit, student
from bench.report import Column, Measured, Sheet, Table, document, machine, write as write_file
from bench.result_files import Figure, Heading, Judged, Repetitions, Result, Shown

RESULTS = Path(__file__).parents[2] / "bench" / "results"

MACHINE = {"processor": "one", "cores": 2, "file_system": "ext4", "commit": "c", "when": "now"}


def goal(text, values, target=">= 1 x"):
    least = float(target.split()[1])
    median = sorted(values)[len(values) // 2]
    met = median >= least if target.startswith(">=") else median <= least
    return Judged(text, target, "pass" if met else "FAIL", Repetitions(tuple(values)))


def figures(who, values_of, cell="cell"):
    return [Figure(cell, who, name, tuple(values)) for name, values in values_of.items()]


def result(goals=(), figures=(), better="lower", **other):
    """A file of results in which every figure has a column."""
    columns = [Heading(name, f"{name} ms", better) for name in {each.figure for each in figures}]
    given = {
        "benchmark": "store",
        "quick": False,
        "machine": MACHINE,
        "plan": {"repetitions": 5, "asks": 10},
        "tables": (Shown("cell", tuple(columns)),),
    }
    return Result(goals=tuple(goals), figures=tuple(figures), **{**given, **other})


def flagged(found: Comparison, verdict="regression"):
    return {row.what for row in found.rows if row.verdict == verdict}


class Machine:
    """Runs of the same code: noise of each figure's own size, and a drift of all absolute ones."""

    def __init__(self, seed, noises=(0.05, 0.25), drift=0.15, spikes=0.0):
        self.random = random.Random(seed)
        self.goals = [self.random.uniform(*noises) for _ in range(16)]
        self.ours = [self.random.uniform(*noises) for _ in range(40)]
        self.peers = [self.random.uniform(*noises) for _ in range(60)]
        self.drift = drift
        self.spikes = spikes

    def run(self, repetitions, slower=1.0):
        """A result in which the first goal and the first figure are slower than they are."""
        drift = self.random.lognormvariate(0, self.drift)

        def values(noise, factor):
            return [
                factor
                * self.random.lognormvariate(0, noise)
                * (3 if self.random.random() < self.spikes else 1)
                for _ in range(repetitions)
            ]

        def measured(noises, factor):
            return [values(each, factor * (1 if at else slower)) for at, each in enumerate(noises)]

        goals = [
            goal(f"goal {at}", each, "<= 1 x") for at, each in enumerate(measured(self.goals, 1))
        ]
        ours = {f"{at}": each for at, each in enumerate(measured(self.ours, drift))}
        peers = {f"{at}": values(each, drift) for at, each in enumerate(self.peers)}
        return result(goals, figures("ours", ours) + figures("peer", peers))


def alarms(machines, repetitions):
    """The shares of ratios and of figures that were flagged though nothing changed."""
    rows = [
        row
        for machine in machines
        for row in compare(machine.run(repetitions), machine.run(repetitions)).rows
    ]
    wrong = [row.ratio for row in rows if row.verdict in {"regression", "improvement"}]
    ratios = sum(row.ratio for row in rows)
    return wrong.count(True) / ratios, wrong.count(False) / (len(rows) - ratios)


REPETITIONS = (3, 4, 5, 8, 15)


@pytest.mark.parametrize("spikes", [0.0, 0.1], ids=["lognormal", "with spikes"])
def test_the_same_code_raises_next_to_no_alarm(spikes):
    seen = [alarms([Machine(seed, spikes=spikes) for seed in range(40)], n) for n in REPETITIONS]
    ratios, absolute = zip(*seen, strict=True)
    assert sum(ratios) / len(seen) <= 1 / 200
    assert sum(absolute) / len(seen) <= 1 / 500


def test_a_machine_that_is_half_as_fast_raises_next_to_no_alarm():
    machines = [Machine(seed, drift=0.7) for seed in range(40)]
    assert alarms(machines, 5)[1] <= 1 / 500


def found(slower, repetitions=5, count=60):
    """How often a slower goal and a slower figure are flagged, with noise of 10 %."""
    seen = []
    for seed in range(count):
        machine = Machine(seed, noises=(0.1, 0.1))
        new = compare(machine.run(repetitions), machine.run(repetitions, slower))
        seen.append({"goal 0", "cell: ours, 0 ms"} & flagged(new))
    ratios = sum("goal 0" in each for each in seen)
    return ratios / count, (sum(map(len, seen)) - ratios) / count


def test_half_the_speed_is_always_found_and_a_third_less_mostly():
    ratio, absolute = found(2.0)
    assert ratio == 1
    assert absolute > 0.9
    assert found(1.3)[0] > 0.6
    assert found(1.3, repetitions=15)[0] > 0.9


@pytest.mark.parametrize(
    ("chance", "freedom", "table"),
    [(0.005, 3, 7.453), (0.01, 5, 4.032), (0.005, 8, 3.833), (0.001, 10, 4.587), (0.01, 60, 2.660)],
)
def test_students_limit_is_that_of_the_tables(chance, freedom, table):
    assert student(chance, freedom) == pytest.approx(table, rel=0.012)


def test_more_repetitions_make_a_limit_narrower_but_not_without_end():
    def of(count):
        run = tuple(1 + (at % 3) / 10 for at in range(count))
        limit_ = limit(Pair(run, run), 0.1, 0.003)
        assert limit_ is not None
        return limit_

    assert of(3) > of(6) > of(9)
    assert of(30) > 0.8 * of(9)


def test_the_chance_of_an_alarm_is_shared():
    assert (chance(0), chance(1), chance(10), chance(50)) == (0.005, 0.005, 0.005, 0.001)


def test_what_never_varies_does_not_lower_the_floor():
    noisy, count = Pair((1.0, 1.2), (1.1, 1.3)), Pair((5.0, 5.0), (5.0, 5.0))
    assert floor([noisy, count, count]) == floor([noisy]) > 0.1


STEADY = [10.0, 10.1, 9.9, 10.0, 10.05]


def times(factor, values=STEADY):
    return [factor * value for value in values]


def test_a_count_is_flagged_when_it_is_half_a_percent_worse():
    old = result(figures=figures("ours", {"a": [1000.0] * 3, "b": [1000.0] * 3, "c": [0.0] * 3}))
    new = result(figures=figures("ours", {"a": [1004.0] * 3, "b": [1006.0] * 3, "c": [1.0] * 3}))
    assert flagged(compare(old, new)) == {"cell: ours, b ms", "cell: ours, c ms"}
    assert flagged(compare(new, old), "improvement") == {"cell: ours, b ms", "cell: ours, c ms"}


def test_what_was_measured_once_is_not_judged_where_nothing_tells_the_noise():
    old = result([goal("once", [2.5])], figures("ours", {"a": [1.5], "b": [5.5, 5.5]}))
    new = result([goal("once", [1.5])], figures("ours", {"a": [9.0], "b": [5.5, 5.5]}))
    seen = compare(old, new)
    assert flagged(seen, "not comparable") == {"once", "cell: ours, a ms"}
    assert flagged(seen, "within noise") == {"cell: ours, b ms"}
    assert "No figure varied in its repetitions, so the noise of most is unknown." in seen.remarks


def test_a_count_needs_no_repetition():
    old, new = (result([goal("missed", [count], "<= 0 turns")]) for count in (0.0, 3.0))
    assert flagged(compare(old, new)) == {"missed"}
    assert flagged(compare(new, old), "improvement") == {"missed"}


def test_peers_are_not_judged_but_tell_what_the_machine_did():
    names = [f"{at}" for at in range(8)]
    old = result(
        figures=[*figures("ours", {"0": STEADY}), *figures("x", dict.fromkeys(names, STEADY))]
    )

    def later(ours, theirs):
        peers = figures("x", dict.fromkeys(names, times(theirs)))
        return compare(old, result(figures=[*figures("ours", {"0": times(ours)}), *peers]))

    assert flagged(later(1.5, 1.0)) == {"cell: ours, 0 ms"}
    assert not flagged(later(1.5, 1.5))
    assert not flagged(later(1.0, 1.5), "improvement")
    assert flagged(later(3.0, 1.5)) == {"cell: ours, 0 ms"}
    assert any("50% worse in the middle" in each for each in later(3.0, 1.5).remarks)


def test_a_slow_machine_lowers_what_a_rate_may_be_and_excuses_no_count():
    def run(speed, count):
        ours = figures("ours", {"rate": times(speed), "count": [count] * 5})
        return result(figures=[*ours, *figures("x", {"rate": times(speed)})], better="higher")

    seen = compare(run(1.0, 100.0), run(0.5, 98.0))
    rate = next(row for row in seen.rows if row.what == "cell: ours, rate ms")
    assert rate.noise is not None
    assert rate.change == pytest.approx(-0.5)
    assert rate.noise[0] < -0.5 < 0 < rate.noise[1] < 0.1
    assert flagged(seen) == {"cell: ours, count ms"}


def test_one_restless_peer_widens_the_limits_of_all_figures():
    names = [f"{at}" for at in range(8)]
    peers = figures("x", dict.fromkeys(names, STEADY))
    restless = [*figures("x", {**dict.fromkeys(names, STEADY), "7": times(2)})]
    old = result([goal("ratio", times(2))], [*figures("ours", {"0": STEADY}), *peers])
    new = result([goal("ratio", times(1))], [*figures("ours", {"0": times(1.8)}), *restless])
    assert flagged(compare(old, new)) == {"ratio"}


def test_where_nobody_is_called_ours_everybody_is_judged():
    old = result(figures=figures("round robin", {"a": STEADY}))
    new = result(figures=figures("round robin", {"a": times(2)}))
    assert flagged(compare(old, new)) == {"cell: round robin, a ms"}
    assert ALONE in compare(old, new).remarks


ABSOLUTE = "100 sessions, worst"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"machine": {**MACHINE, "processor": "two"}}, "The processor differs (one, then two)"),
        (
            {"machine": {**MACHINE, "file_system": "xfs"}},
            "The file system differs (ext4, then xfs)",
        ),
        ({"plan": {"repetitions": 5, "asks": 11}}, "The plans differ (asks)"),
    ],
)
def test_elsewhere_only_ratios_are_judged(other, said):
    old = result(
        [goal("ratio", times(2)), goal(ABSOLUTE, times(1), "<= 15 ms")],
        figures("ours", {"a": STEADY}),
    )
    new = result(
        [goal("ratio", times(1)), goal(ABSOLUTE, times(2), "<= 15 ms")],
        figures("ours", {"a": times(2)}),
    )
    assert flagged(compare(old, new)) == {"ratio", ABSOLUTE, "cell: ours, a ms"}
    apart = compare(old, attrs.evolve(new, **other))
    assert flagged(apart) == {"ratio"}
    assert flagged(apart, "not comparable") == {ABSOLUTE, "cell: ours, a ms"}
    assert f"{said}: only ratios are judged." in apart.remarks
    assert [row.what for row in apart.rows if row.lost] == [ABSOLUTE]


def test_more_repetitions_are_no_other_plan():
    old = result(figures=figures("ours", {"a": STEADY}))
    new = result(figures=figures("ours", {"a": times(2)}), plan={"repetitions": 15, "asks": 10})
    assert flagged(compare(old, new)) == {"cell: ours, a ms"}


def test_other_versions_are_told():
    old = result(versions={"model": {"url": "a"}, "peer": {"pykka": "4.4"}})
    new = result(versions={"model": {"url": "b"}, "peer": {"pykka": "4.5"}})
    assert compare(old, new).remarks[0] == "peer: pykka was 4.4, is 4.5."


def test_a_file_without_tables_takes_directions_from_the_other():
    slow, fast = (result(figures=figures("ours", {"a": times(k)})) for k in (2, 1))
    rates = result(figures=figures("ours", {"a": times(2)}), better="higher")
    bare = attrs.evolve(fast, tables=())
    assert flagged(compare(bare, slow)) == {"cell: ours, a ms"}
    assert flagged(compare(slow, bare), "improvement") == {"cell: ours, a ms"}
    assert flagged(compare(bare, rates), "improvement") == {"cell: ours, a ms"}
    neither = compare(bare, attrs.evolve(slow, tables=()))
    assert not neither.rows
    assert neither.remarks[0].startswith("Neither file says which way")


def test_what_is_neither_better_nor_worse_is_not_compared():
    old = result(figures=figures("ours", {"a": STEADY}), better="neither")
    new = result(figures=figures("ours", {"a": times(9)}), better="neither")
    seen = compare(old, new)
    assert not seen.rows
    assert "1 of our figures have no better direction and are not compared." in seen.remarks


def test_what_is_only_in_one_file_is_listed():
    old = result([goal("gone", STEADY)], figures("ours", {"a": STEADY, "b": STEADY}))
    new = result(
        [], [*figures("ours", {"a": STEADY}), *figures("peer", {"a": STEADY, "b": STEADY})]
    )
    seen = compare(old, new)
    assert seen.only_old == ("gone", "cell: ours, b")
    assert seen.only_new == ("cell: peer",)


# Any result: zeros, negative values, the greatest and the smallest, one repetition or many.
numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.0, 1.0, 5e-324, 1.7e308])
)
runs = st.lists(numbers, min_size=1, max_size=5)


@st.composite
def results(draw):
    targets = st.sampled_from([">= 1 x", "<= 1 x", "<= 3.4 KiB", ">= 1"])
    names = st.sampled_from("abcd")
    goals = draw(st.dictionaries(names, st.tuples(runs, targets), max_size=3))
    figures_ = [
        each
        for who in ("ours", "ours, too", "peer")
        for each in figures(who, draw(st.dictionaries(names, runs, max_size=3)))
    ]
    return result([goal(name, *each) for name, each in goals.items()], figures_)


@given(results(), results())
def test_any_two_results_can_be_compared_and_shown(old, new):
    seen = compare(old, new)
    assert text(old, new, seen, all_=True)
    assert json.loads(as_json(old, new, seen), parse_constant=pytest.fail)


def directions(old, new):
    """The verdicts of what both files look at in the same way."""
    return {row.what: row.verdict for row in compare(old, new).rows}


@given(results(), results())
def test_backwards_a_regression_is_an_improvement(old, new):
    new = attrs.evolve(new, tables=old.tables)
    targets = {each.goal: each.target for each in old.goals}
    new = attrs.evolve(
        new,
        goals=tuple(attrs.evolve(g, target=targets.get(g.goal, g.target)) for g in new.goals),
    )
    swapped = {"regression": "improvement", "improvement": "regression"}
    there, back = directions(old, new), directions(new, old)
    assert there == {what: swapped.get(verdict, verdict) for what, verdict in back.items()}


@given(results())
def test_a_result_beside_itself_flags_nothing(same):
    assert not {"regression", "improvement"} & set(directions(same, same).values())


@given(
    st.floats(3, 1e6),
    st.floats(1e-6, 1e6),
    st.lists(st.floats(0.9, 1.1), min_size=3, max_size=9),
    st.sampled_from(["lower", "higher"]),
)
def test_three_times_as_much_is_always_seen(factor, size, values, better):
    old = result(figures=figures("ours", {"a": times(size, values)}), better=better)
    new = result(figures=figures("ours", {"a": times(size * factor, values)}), better=better)
    verdict = "regression" if better == "lower" else "improvement"
    assert directions(old, new) == {"cell: ours, a ms": verdict}


def written(path, given):
    path.write_bytes(msgspec.json.encode(given))
    return str(path)


def test_the_command_shows_the_worst_first_and_ends_with_1(tmp_path, capsys):
    a, b, c = "ratio a", "ratio b", "ratio c"
    old = result([goal(a, times(2)), goal(b, times(3)), goal(c, STEADY), goal("same", STEADY)])
    new = result([goal(a, times(1)), goal(b, times(1)), goal(c, times(2)), goal("same", STEADY)])
    files = [written(tmp_path / "old.json", old), written(tmp_path / "new.json", new)]
    assert main(files) == 1
    shown = capsys.readouterr().out
    assert shown.index(b) < shown.index(a) < shown.index(c)
    assert "same" not in shown
    assert "30.03 x" in shown
    assert "-67 %" in shown
    assert shown.splitlines()[-1] == "2 regressions, 1 improvement, 1 within noise"
    assert main([*files, "--all"]) == 1
    assert "same" in capsys.readouterr().out
    assert main([*files, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["counts"]["regression"] == 2
    assert [row["what"] for row in told["rows"]] == [b, a, c, "same"]
    assert main([files[0], files[0]]) == 0


def test_a_goal_that_is_lost_within_noise_is_listed_and_no_regression(tmp_path, capsys):
    noisy = [0.8, 1.2, 1.01, 0.9, 1.1]
    files = [
        written(tmp_path / "old.json", result([goal("near", noisy)])),
        written(tmp_path / "new.json", result([goal("near", times(0.98, noisy))])),
    ]
    assert main(files) == 0
    shown = capsys.readouterr().out
    assert "pass -> FAIL (medians 1.01, then 0.9898; target >= 1 x), within noise" in shown
    assert "1 goal lost without a regression" in shown
    worse = written(tmp_path / "worse.json", result([goal("near", times(0.01, noisy))]))
    assert main([files[0], worse]) == 1
    shown = capsys.readouterr().out
    assert "target >= 1 x), regression" in shown
    assert shown.splitlines()[-1] == "1 regression, 0 improvements, 0 within noise"


BAD = {
    "not JSON": b"{",
    "not UTF-8": b'{"benchmark": "\xff"}',
    "not a result": b'{"benchmark": "store"}',
    "a list": b"[]",
    "another benchmark": msgspec.json.encode(result(benchmark="runtime")),
    "a quick one": msgspec.json.encode(result(quick=True)),
    "no repetition": msgspec.json.encode(result(figures=figures("ours", {"a": []}))),
    "no direction": msgspec.json.encode(result([goal("a", [1.0], ">= 1 x")])).replace(b">=", b"=="),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_what_cannot_be_compared_is_told_in_a_sentence(tmp_path, capsys, content):
    (tmp_path / "bad.json").write_bytes(content)
    good = written(tmp_path / "good.json", result())
    assert main([good, str(tmp_path / "bad.json")]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert len(said.err.splitlines()) == 1
    assert said.err.endswith(".\n")


def test_a_file_that_is_not_there_is_told(tmp_path, capsys):
    assert main([str(tmp_path / "none.json"), str(tmp_path)]) == 2
    assert "none.json cannot be read: No such file or directory." in capsys.readouterr().err


def test_what_a_benchmark_writes_can_be_read(tmp_path, capsys):
    def write(name, factor):
        board = Board()
        for value in STEADY:
            board.add("loading", "ours", {"ms": factor * value, "rate": 1 / factor})
            board.add("loading", "peer", {"ms": value})
        ratio = Goal("loading", Ref("loading", "ours", "ms"), 3, Ref("loading", "peer", "ms"))
        columns = (Column("ms", "ms"), Column("rate", "per s", better="higher"))
        sheet = Sheet([ratio], [Table("loading", "loading", columns)])
        measured = Measured(board, sheet, machine(tmp_path), {}, {})
        about = {"benchmark": "store", "quick": True, "seconds": 1}
        write_file(tmp_path / name, {**about, **document(measured)})
        return str(tmp_path / name)

    assert bench_main(["compare", write("old.json", 1), write("new.json", 2)]) == 1
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1] == "3 regressions, 0 improvements, 0 within noise"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_our_own_results_can_be_compared(path, capsys):
    assert main([str(path), str(path)]) == 0
    assert "0 regressions, 0 improvements" in capsys.readouterr().out


def test_the_command_explains_itself(capsys):
    with pytest.raises(SystemExit):
        bench_main(["compare", "--help"])
    assert "Exit code: 0 without regressions, 1 with" in " ".join(capsys.readouterr().out.split())


def test_what_runs_our_code_under_another_name_is_no_peer():
    """In `switch`, policies are rows of their own: when we are slow, they are slow, too."""
    slow = [2.0, 2.02, 1.98, 2.01, 1.99]
    fast = [value / 2 for value in slow]
    rows = ("ours", "mutant", "restated")

    def run(values):
        each = [figure for who in rows for figure in figures(who, {"ms": values})]
        return [*each, *figures("hermes-agent", {"ms": fast})]

    seen = [result(figures=run(values), foreign=("hermes-agent",)) for values in (fast, slow)]
    assert flagged(compare(*seen)) == {"cell: ours, ms ms"}
    alike = [result(figures=run(values)) for values in (fast, slow)]
    assert flagged(compare(*alike)) == set()
