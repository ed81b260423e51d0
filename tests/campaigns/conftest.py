"""The scoreboard: each campaign reports its size, its seeds and its violations to one table."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest

from tools.scoreboard import Form, Result, Scoreboard, section, write


@attrs.define
class Campaign:
    """The tests of one module, and what they report."""

    name: str
    promise: str
    wanted: int | None
    """The seed that the command line asks for."""
    form: Form
    size: Counter[str] = attrs.Factory(Counter)
    used: set[int] = attrs.Factory(set)
    seed_now: int | None = None
    """The seed that the current test runs with."""
    violations: int = 0
    failures: int = 0
    tests: int = 0
    mutants: int = 0
    found: int = 0
    seconds: float = 0.0

    def seeds(self, numbers: Iterable[int]) -> Iterator[int]:
        """Yield the seeds to run with: these, or the one of `--seed`."""
        for number in numbers if self.wanted is None else (self.wanted,):
            self.seed_now = number
            self.used.add(number)
            yield number
        self.seed_now = None

    def seed(self, default: int) -> int:
        """Return the only seed of a test."""
        return next(self.seeds([default]))

    def count(self, **sizes: int) -> None:
        """Add to the size of the campaign."""
        self.size.update(sizes)

    def check(self, violations: Iterable[object]) -> None:
        """Report violations; fail if there are any."""
        found = list(violations)
        self.violations += len(found)
        assert found == [], f"{len(found)} violations, seed {self.seed_now}"

    def result(self) -> Result:
        return Result(
            campaign=self.name,
            promise=self.promise,
            size=dict(self.size) or {"tests": self.tests},
            violations=max(self.violations, self.failures),
            mutants=self.mutants,
            found=self.found,
            seconds=round(self.seconds, 1),
            seeds=sorted(self.used),
            form=self.form,
        )


CAMPAIGNS = pytest.StashKey[dict[str, Campaign]]()


def campaign_of(item: pytest.Item) -> Campaign:
    """Return the campaign that a test belongs to."""
    campaigns = item.config.stash.setdefault(CAMPAIGNS, {})
    module = item.getparent(pytest.Module)
    name = module.path.stem.removeprefix("test_").replace("_", " ")
    if name not in campaigns:
        summary = inspect.getdoc(module.obj).split("\n\n")[0].replace("\n", " ")
        promise = summary.partition(": ")[2] or summary
        form: Form = "long" if item.config.getoption("--prove") else "short"
        seed = item.config.getoption("--seed")
        campaigns[name] = Campaign(name, promise.rstrip("."), seed, form)
    return campaigns[name]


@pytest.fixture
def campaign(request):
    """Where a test reports its size and its violations, and gets its seeds from."""
    found = campaign_of(request.node)
    found.seed_now = None
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    campaign = campaign_of(item)
    campaign.seconds += report.duration
    mutant = item.get_closest_marker("mutant") is not None
    if report.when == "call" and not report.skipped:
        campaign.tests += 1
        campaign.mutants += mutant
        campaign.found += mutant and report.passed
    if report.failed:
        campaign.failures += not mutant
        report.sections.append(("replay", replay(item, campaign.seed_now)))
    return report


def replay(item: pytest.Item, seed: int | None) -> str:
    """Return the command that runs a test again with the same seed."""
    long = " --prove" if item.config.getoption("--prove") else ""
    seeded = "" if seed is None else f" --seed {seed}"
    return f"python -m pytest '{item.nodeid}'{long}{seeded}"


def pytest_terminal_summary(terminalreporter, config):
    folder, campaigns = config.getoption("--scoreboard"), config.stash.get(CAMPAIGNS, {})
    if folder is None or not campaigns:
        return
    board = Scoreboard(
        date=datetime.now(UTC).date().isoformat(),
        results=[campaigns[name].result() for name in sorted(campaigns)],
    )
    write(board, Path(folder))
    terminalreporter.section("scoreboard")
    terminalreporter.write_line(section(board))
