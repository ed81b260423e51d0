"""The switching benchmark judges: ours is as good as the oracle, and broken guards are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import policies, switch, workload
from bench.board import Board, Ref
from bench.policies import OURS, Contender
from bench.progress import Counter
from bench.switch_figures import Prices

PLAN = switch.Plan(
    repetitions=1,
    work=workload.Plan(users=2, sessions=2, turns=16, writes=0.4, compressions=0.15),
    sessions=(1, 2),
    lengths=(4,),
)


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """One small run of everybody but hermes-agent, which cannot always be installed."""
    folder = tmp_path_factory.mktemp("switch")
    with switch.fleet(folder, None) as drivers:
        steps = Counter()
        bench = switch.Bench(PLAN, Prices(), drivers, folder, steps)
        bench.patterns()
        bench.growth()
        assert steps.steps == bench.count()
        yield bench.board


def test_the_goals_need_what_is_said_to_be_whole(board: Board):
    assert switch.WHOLE.outcome(board.measured(switch.WHOLE)) == "pass"


def outcomes(board: Board, label: str) -> list[str]:
    """Whether the goals about rebuilds, about foreign writes and about tokens are met."""
    return [goal.outcome(board.measured(goal)) for goal in switch.goals(label)]


def figure(board: Board, name: str, label: str = OURS.label, cell: str = switch.ALL) -> float:
    spread = board.spread(Ref(cell, label, name))
    assert spread is not None
    return spread.median


def test_ours_meets_the_goals(board: Board):
    assert outcomes(board, OURS.label) == ["pass", "pass", "pass"]
    assert figure(board, "failed") == 0


def test_ours_is_the_oracle_token_by_token(board: Board):
    for cell in (switch.ALL, *workload.PATTERNS, *switch.growing(PLAN)):
        for name in ("builds", "prompt", "cached", "cost"):
            assert figure(board, name, cell=cell) == figure(board, name, switch.ORACLE, cell)
        assert figure(board, "damaged", cell=cell) == 0


@pytest.mark.parametrize(
    ("mutant", "expected"),
    [
        (policies.REUSE, ["FAIL", "FAIL", "pass"]),
        (policies.REBUILD, ["FAIL", "pass", "FAIL"]),
        (policies.BEFORE, ["FAIL", "FAIL", "FAIL"]),
    ],
    ids=lambda value: value.name if isinstance(value, Contender) else "",
)
def test_a_broken_guard_visibly_misses_the_goals(
    board: Board, mutant: Contender, expected: list[str]
):
    assert outcomes(board, mutant.label) == expected
    assert figure(board, "failed", mutant.label) == expected.count("FAIL")


@pytest.mark.parametrize("other", [policies.AFTER, policies.SWITCH, *policies.KEPT])
def test_no_other_policy_meets_all_of_them(board: Board, other: Contender):
    assert "FAIL" in outcomes(board, other.label)


def test_who_keeps_the_prompt_loses_no_tokens_by_a_rebuild(board: Board):
    for other in policies.KEPT:
        assert figure(board, "share", other.label) == figure(board, "share")


def test_nobody_loses_a_message_and_the_model_is_shown_all(board: Board):
    for each in policies.CONTENDERS:
        for name in ("hidden", "lost", "wrong", "spoilt", "forgotten"):
            assert figure(board, name, each.label) == 0


def test_every_rebuild_of_ours_has_its_reason(board: Board):
    for reason, name in (("cold", "cold"), ("foreign-write", "foreign")):
        assert figure(board, f"said {reason}") == figure(board, name)
    for each in policies.CONTENDERS:
        parts = [
            figure(board, name, each.label) for name in ("cold", "foreign", "returned", "extra")
        ]
        assert sum(parts) == figure(board, "builds", each.label)


def test_there_is_something_to_notice(board: Board):
    assert figure(board, "foreign") >= 4
    assert figure(board, "compressed") >= 4
    for pattern in workload.PATTERNS:
        assert figure(board, "builds", cell=pattern) < figure(board, "turns", cell=pattern)


def test_every_goal_table_and_plot_is_about_what_is_measured(board: Board):
    shown = switch.sheet(PLAN)
    for goal in shown.goals[:-1]:  # the last one needs hermes-agent
        assert board.measured(goal) is not None
    for table in shown.tables:
        for column in table.columns:
            rows = [
                board.spread(Ref(table.cell, who, column.figure)) for who in board.who(table.cell)
            ]
            assert any(rows) or column.figure == "said built"  # that is hermes-agent's
    for plot in shown.plots:
        for line in plot.lines:
            for cell in line.cells.values():
                assert board.spread(Ref(cell, line.who, plot.figure)) is not None


def test_prices_that_cannot_be_read_are_told_in_a_sentence(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        switch.main(["--prices", "1,2"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "three numbers, such as 2.5,0.25,10, not '1,2'" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("text", ["", "1", "a,b,c", "1,2,3,4", "-1,0,0", "1,2,", "nan,1,1"])
def test_prices_that_are_none_are_refused(text: str):
    with pytest.raises(ValueError, match="three numbers"):
        Prices.parse(text)


def test_cost_is_what_the_list_says():
    prices = Prices.parse("2.5, 0.25, 10")
    assert prices.cost(3_000_000, 1_000_000, 1_000_000) == 5.0 + 0.25 + 10.0
