"""The capacity of a node: where its costs come from, what contradicts them, and the page."""

from __future__ import annotations

import json
import re

import attrs
import pytest

from bench.__main__ import main
from bench.command import RESULTS
from bench.report.results import CommandError
from bench.report.tables import fill
from bench.scale import PAGE, Medians, unit_costs

COSTS = unit_costs(Medians(RESULTS))


def copy(folder, name, where, **changed):
    """The committed results, with one figure (cell, who, figure) or field changed."""
    for each in ("store", "runtime", "agents"):
        content = json.loads((RESULTS / f"{each}.json").read_text())
        if each == name:
            for figure in content["figures"]:
                if (figure["cell"], figure["who"], figure["figure"]) == where:
                    figure.update(changed)
            content.update({} if where else changed)
        (folder / f"{each}.json").write_text(json.dumps(content))
    return folder


RATE = "10 messages, one session", "ours", "rate"


@pytest.mark.parametrize(
    ("name", "where", "changed", "why"),
    [
        ("store", ("loading", "ours, blocking", "ms"), {}, None),
        ("store", ("one session", "ours, actor", "rate"), {"figure": "x"},
         'There is no rate of "ours, actor" in "one session" from a full run: run '
         "`python -m bench store`."),
        ("agents", None, {"quick": True}, "from a full run: run `python -m bench agents`."),
        ("store", ("one session", "ours, actor", "rate"), {"median": 1e6},
         "The results contradict each other: commit is -0.000223."),
        ("runtime", RATE, {"median": 5_000.0},
         "With 1 sessions at once, 539 turns/s are derived, but 5,000 were measured."),
    ],
)  # fmt: skip
def test_figures_that_are_missing_or_contradict_are_named(
    tmp_path, capsys, name, where, changed, why
):
    code = main(["scale", "--results", str(copy(tmp_path, name, where, **changed))])
    assert code == (2 if why else 0)
    assert capsys.readouterr().err.strip().endswith(why or "")


def test_costs_are_read_from_where_they_were_measured(tmp_path):
    copy(tmp_path, "runtime", ("a warm session", "ours", "kib"), median=20.0)
    assert unit_costs(Medians(tmp_path)) == attrs.evolve(COSTS, warm=20 * 1024.0)


def test_the_page_shows_the_tables_of_the_committed_results(capsys):
    """`python -m bench scale --write` updates it."""
    assert main(["scale"]) == 0
    shown = re.findall(
        r"<!-- scale: \w+ -->\n```\n(.*?)\n```\n<!-- end -->", PAGE.read_text(), re.DOTALL
    )
    assert "\n\n".join(shown) + "\n" == capsys.readouterr().out
    with pytest.raises(CommandError, match="no place for the scale of costs"):
        fill("nothing", "scale", {"costs": "x"})
