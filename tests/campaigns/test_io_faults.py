"""C2a: every call of the disk fails once or from then on, and the store reports it truthfully.

A case is named `kind/workload/operation:error:index:once|lasting/ending/after`, and is run alone
with HERMES_IO_CASE=<name>. See `io_driver` for the outcomes, and `io_workloads` for the requests.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from hermes.errors import (
    HermesError,
    StoreBusy,
    StoreError,
    StoreFailed,
)
from hermes.store import SessionStore
from hermes.store.sqlite.connection import BUSY_TRIES
from tests.campaigns.io_driver import Case, CaseResult, Driver, run_case, template
from tests.support.faulty_vfs import CAN_FAIL, Fault, FaultyVFS
from tests.support.folders import quick_folder
from tests.support.stores import World

SEED = 20261116


# The choice of cases


def every_fault(calls: Counter[str]) -> list[Fault]:
    """Return each error at each call, once and lasting, except for a lock that is never free."""
    return [
        Fault(operation, error, at, lasting)
        for operation, errors in CAN_FAIL.items()
        for error in errors
        for at in range(1, calls[operation] + 1)
        for lasting in (False, True)
        if not (error == "busy" and lasting)
    ]


def spread(faults: list[Fault], share: int, rng: random.Random) -> list[Fault]:
    """Choose up to `share` faults of all kinds, spread over the whole run."""
    kinds: dict[tuple[str, str, bool], list[Fault]] = {}
    for fault in faults:
        kinds.setdefault((fault.operation, fault.error, fault.lasting), []).append(fault)
    chosen: list[Fault] = []
    for n, alike in enumerate(sorted(kinds.values(), key=len)):
        room = min(max(1, (share - len(chosen)) // (len(kinds) - n)), len(alike))
        step = len(alike) / room
        start = rng.random() * step
        chosen += [alike[int(start + step * i)] for i in range(room)]
    return chosen


def choose(kind, workload, calls, share, rng) -> list[Case]:
    """Choose cases of one kind of store and workload."""
    endings = ("killed", "clean", "failing") if kind == "sync" else ("killed", "clean")
    faults = [
        fault
        for fault in every_fault(calls)
        if (fault.operation != "xDelete" or kind == "sync")
        and (fault.operation not in {"xOpen", "xLock", "xDelete"} or workload != "large")
    ]
    return [
        Case(
            kind,
            workload,
            fault,
            "failing" if fault.operation == "xDelete" else endings[n % len(endings)],
            ("leave", "retry")[n // 3 % 2],
        )
        for n, fault in enumerate(spread(faults, share, rng))
    ]


SHARES = {  # (kind, workload): cases in the short form, in the long form
    ("sync", "daily"): (75, 3300),
    ("sync", "upkeep"): (30, 700),
    ("sync", "large"): (9, 160),
    ("threads", "daily"): (25, 300),
    ("threads", "upkeep"): (15, 80),
    ("inline", "daily"): (25, 500),
    ("inline", "upkeep"): (15, 100),
    ("inline", "large"): (4, 40),
}


def all_cases(folder, origin, prove, seed) -> list[Case]:
    if name := os.environ.get("HERMES_IO_CASE"):
        return [Case.parse(name)]
    rng = random.Random(seed)
    cases: list[Case] = []
    for (kind, workload), shares in SHARES.items():
        ending = "failing" if kind == "sync" else "clean"
        healthy = run_case(Case(kind, workload, None, ending), folder / "healthy", origin)
        assert healthy.problems == []
        assert set(healthy.outcomes) == {"ok"}
        cases += choose(kind, workload, healthy.calls, shares[prove], rng)
    return cases


def report(results: list[CaseResult], began: float) -> str:
    fired = [ran for ran in results if ran.fired]
    outcomes = sum((ran.outcomes for ran in fired), Counter())
    kinds = Counter(f"{ran.case.kind} {ran.case.fault.operation}" for ran in fired)
    bad = [f"{ran.case}: {'; '.join(ran.problems)}" for ran in results if ran.problems]
    lines = [
        f"{len(results)} cases, {len(fired)} with a fault met, {len(bad)} violations, "
        f"{time.monotonic() - began:.0f} s; outcomes {dict(outcomes)}",
        f"by kind and operation: {dict(kinds)}",
        *bad[:40],
    ]
    return "\n".join(lines)


@pytest.fixture
def quick():
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def say(capsys):
    """Print figures, whether the test passes or not."""

    def print_now(text):
        with capsys.disabled():
            print(f"\n{text}")  # noqa: T201

    return print_now


def test_every_io_error_is_reported_correctly_and_nothing_acknowledged_is_lost(
    quick, prove, say, campaign
):
    began = time.monotonic()
    origin = template(quick)
    cases = all_cases(quick, origin, prove, campaign.seed(SEED))
    results = [run_case(case, quick / f"case{n}", origin) for n, case in enumerate(cases)]
    summary = report(results, began)
    say(summary)
    campaign.count(faults=sum(ran.fired for ran in results))
    campaign.check(f"{ran.case}: {ran.problems}" for ran in results if ran.problems)
    if len(cases) > 1:
        assert sum(ran.fired for ran in results) >= (4000 if prove else 150)


# Mutants


class SwallowsCommitErrors(SessionStore):
    """Mutant M6: it ignores errors of COMMIT."""

    def transact(self, work):
        done = []

        def keep(tx):
            done.append(work(tx))
            return done[0]

        try:
            return super().transact(keep)
        except (StoreError, StoreFailed):
            if not done:
                raise
            return done[0]


class TakesUnknownForFailed(SessionStore):
    """Mutant: it reports an unknown outcome as a failure."""

    def transact(self, work):
        try:
            return super().transact(work)
        except StoreFailed as error:
            raise StoreError("nothing was stored") from error


class NewKeyAfterUnknown(Driver):
    """Mutant: a client that retries an unknown request with another key."""

    retry_key = "{} again"


mutant = partial(pytest.param, marks=pytest.mark.mutant)


@pytest.mark.parametrize(
    ("driver", "store_class", "lasting", "finding"),
    [
        (Driver, SessionStore, False, None),
        (Driver, SessionStore, True, None),
        mutant(Driver, SwallowsCommitErrors, False, "was told ok and is there 0 times"),
        mutant(Driver, TakesUnknownForFailed, True, "was told fail and is there 1 times"),
        mutant(NewKeyAfterUnknown, SessionStore, False, "was told ok and is there 2 times"),
    ],
)
def test_the_campaign_finds_stores_and_clients_that_report_wrong_outcomes(
    quick, driver, store_class, lasting, finding
):
    origin = template(quick)
    cases = [
        Case("sync", "daily", Fault(operation, "io", at, lasting), "killed")
        for operation, step in (("xSync", 4), ("xWrite", 17))
        for at in range(12, 12 + 6 * step, step)
    ]
    found = [
        problem
        for n, case in enumerate(cases)
        for problem in run_case(case, quick / str(n), origin, driver, store_class).problems
    ]
    assert bool(found) is (finding is not None), found
    assert finding is None or any(finding in problem for problem in found), found


# Opening


STARTS = ("fresh", "closed", "left")


def lay_out(start: str, origin: Path, folder: Path) -> Path:
    """Create no file, a closed store, or the files of a killed process with rows in the WAL."""
    if start != "fresh":
        shutil.copyfile(origin, folder / "state.db")
    if start == "left":
        with SessionStore(folder / "state.db", clock=World().clock) as store:
            store.create_session("s1")
            store.append_message("s1", "user", "before")
            shutil.copyfile(folder / "state.db-wal", folder / "kept")
        # Closing has copied the WAL into the file; it is applied once more.
        (folder / "kept").rename(folder / "state.db-wal")
    return folder / "state.db"


def open_with(fault: Fault | None, start: str, origin: Path, folder: Path) -> tuple[str, Counter]:
    """Open with a fault, then without. Returns the violation, and the calls that were made."""
    folder.mkdir()
    path = lay_out(start, origin, folder)
    vfs = FaultyVFS()
    vfs.arm(fault)
    problem = ""
    try:
        store = SessionStore(path, clock=World().clock, vfs=vfs.name)
        calls = vfs.calls.copy()
        vfs.disarm()
        store.close()
    except HermesError:
        calls = vfs.calls.copy()
    except Exception as error:  # noqa: BLE001 - reported as a violation
        calls, problem = vfs.calls.copy(), f"raised {error!r}"
    vfs.disarm()
    problem = problem or opens_well(path, start)
    shutil.rmtree(folder)
    return problem, calls


def opens_well(path: Path, start: str) -> str:
    try:
        with SessionStore(path, clock=World().clock) as store:
            store.ensure_session("s1")
            store.append_message("s1", "user", "after")
            texts = [message.content for message in store.get_messages("s1")]
            whole = [*(["before"] if start == "left" else []), "after"]
            damage = store.integrity_check()
            return "" if texts == whole and not damage else f"holds {texts}, {damage}"
    except Exception as error:  # noqa: BLE001 - reported as a violation
        return f"afterwards: {error!r}"


def test_an_io_error_while_opening_raises_a_store_error_and_damages_nothing(
    quick, prove, say, campaign
):
    began = time.monotonic()
    origin = template(quick)
    rng = random.Random(campaign.seed(SEED))
    count, found = 0, []
    for start in STARTS:
        _, calls = open_with(None, start, origin, quick / "healthy")
        faults = every_fault(calls)
        for fault in faults if prove else spread(faults, 60, rng):
            problem, _ = open_with(fault, start, origin, quick / "case")
            count += 1
            if problem:
                found.append(f"{start}/{fault}: {problem}")
    say(f"opening: {count} cases, {len(found)} violations, {time.monotonic() - began:.0f} s")
    campaign.count(faults_while_opening=count)
    campaign.check(found)


def test_a_lock_that_is_never_free_is_tried_a_bounded_number_of_times(quick, prove):
    if not prove:
        pytest.skip("waits until the store gives up; part of make prove")
    path = template(quick)
    vfs = FaultyVFS()
    vfs.arm(Fault("xLock", "busy", 1, lasting=True))
    with pytest.raises(StoreBusy):
        SessionStore(path, vfs=vfs.name)
    assert vfs.calls["xLock"] == BUSY_TRIES + 1
