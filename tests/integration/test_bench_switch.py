"""The switching benchmark judges: ours is as good as the oracle, and broken policies are not."""

from __future__ import annotations

import pytest

from bench.harness.measurements import Ref
from bench.harness.process import open_drivers
from bench.switch import benchmark as switch, policies, workload
from bench.switch.figures import Prices
from bench.switch.policies import OURS

PLAN = switch.Plan(
    repetitions=1,
    work=workload.Plan(users=2, sessions=2, turns=14, writes=0.4, compressions=0.2),
    patterns=("zipf", workload.RESUME),
    sessions=(1, 2),
    lengths=(4,),
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A small run of all contenders but hermes-agent, which cannot always be installed."""
    folder = tmp_path_factory.mktemp("switch")
    modules = {name: switch.SWITCH.modules[name] for name in ("model", "ours")}
    with open_drivers(folder, modules) as drivers:
        return switch.Scripts(PLAN, Prices(), drivers, folder).run()


def outcomes(found, label):
    """Whether the goals about rebuilds, about writes by others and about tokens are met."""
    return [found.judge(goal).outcome for goal in switch.policy_goals(label)]


def figure(found, name, label=OURS.label, cell=switch.ALL):
    [value] = found.figures[Ref(cell, label, name)]
    return value


def test_ours_meets_all_goals(found):
    assert outcomes(found, OURS.label) == ["pass", "pass", "pass"]
    assert found.judge(switch.WHOLE).outcome == "pass"
    assert figure(found, "failed") == 0


def test_ours_equals_the_oracle_in_every_request(found):
    for cell in (switch.ALL, *PLAN.patterns, *switch.growing(PLAN)):
        for name in ("builds", "prompt", "cached", "cost"):
            assert figure(found, name, cell=cell) == figure(found, name, switch.ORACLE, cell)
        assert figure(found, "off", cell=cell) == figure(found, "damaged", cell=cell) == 0


@pytest.mark.parametrize(
    ("mutant", "expected"),
    [
        (policies.REUSE, ["FAIL", "FAIL", "pass"]),
        (policies.REBUILD, ["FAIL", "pass", "FAIL"]),
        (policies.BEFORE, ["FAIL", "FAIL", "FAIL"]),
    ],
    ids=["always reuse", "always rebuild", "before the fix"],
)
def test_a_broken_policy_fails_the_goals(found, mutant, expected):
    assert outcomes(found, mutant.label) == expected
    assert figure(found, "failed", mutant.label) == expected.count("FAIL")


def test_no_other_policy_meets_all_goals_and_kept_prompts_lose_no_tokens(found):
    for other in (policies.AFTER, policies.EVERY_SWITCH, *policies.KEPT):
        assert "FAIL" in outcomes(found, other.label)
    for other in policies.KEPT:
        assert figure(found, "share", other.label) == figure(found, "share")


def test_no_contender_loses_a_message_and_every_build_is_accounted_for(found):
    for each in policies.CONTENDERS:
        for name in ("hidden", "lost", "wrong", "spoilt", "forgotten"):
            assert figure(found, name, each.label) == 0
        kinds = [figure(found, k, each.label) for k in ("cold", "foreign", "returned", "extra")]
        assert sum(kinds) == figure(found, "builds", each.label)
    assert figure(found, "said cold") == figure(found, "cold")
    assert figure(found, "said foreign-write") == figure(found, "foreign")


def test_the_script_contains_what_the_goals_are_about(found):
    assert figure(found, "foreign") >= 4
    assert figure(found, "compressed") >= 4
    for pattern in PLAN.patterns:
        assert figure(found, "builds", cell=pattern) < figure(found, "turns", cell=pattern)


def test_goals_and_tables_show_what_is_measured(found):
    goals = [found.judge(goal) for goal in switch.GOALS]
    assert [goal.measured is None for goal in goals] == [False] * 4 + [True]  # hermes-agent's
    for table in switch.tables(PLAN):
        for column in table.columns:
            named = table.cell, column.figure
            measured = any((ref.cell, ref.figure) == named for ref in found.figures)
            assert measured or column.figure == "said built"  # hermes-agent's
