"""The files benchmark: storing and sending an attached file, compared with plain copies."""

from __future__ import annotations

import attrs

from bench.harness.benchmark import Benchmark, Cell, Contender, Group, measure_cells
from bench.harness.measurements import Goal, Ref
from bench.report.results import Column

ACTOR, BLOCKING = "ours, actor", "ours, blocking"
COPY = "plain copy, same flushes"
COPY_IN_THREAD = "plain copy in a thread of Trio"
BODY, ENCODED = "ours, body of a request", "plain base64"
STORING, SENDING = "storing", "sending"
TIMES = (
    Column("ms", "ms", 1, explains="Median time for one file."),
    Column("worst_ms", "worst ms", 1, explains="The slowest file of a repetition."),
)


@attrs.frozen(kw_only=True)
class Plan:
    """The amount of work; the defaults are a full run."""

    repetitions: int = 7
    megabytes: float = 10.0
    times: int = 10


FULL = Plan()
QUICK = Plan(repetitions=2, times=3)


def groups(plan: Plan) -> list[Group]:
    """Storing a file, and sending one that is stored."""
    work = {"megabytes": plan.megabytes, "times": plan.times}

    def contenders(**commands: str) -> tuple[Contender, ...]:
        names = {"actor": ACTOR, "blocking": BLOCKING, "copy": COPY,
                 "copy_in_thread": COPY_IN_THREAD, "body": BODY, "encoded": ENCODED}  # fmt: skip
        return tuple(Contender(names[key], "ours", do, work) for key, do in commands.items())

    storing = Cell(
        STORING, f"storing a file of {plan.megabytes:g} MB", TIMES,
        "From a path to a file that is on disk with its row. The plain copy reads and writes the "
        "same chunks, flushes the file, its new subfolder, the folder, and a log of the size of a "
        "commit; it hashes nothing and has no database. The actor is compared with a copy that "
        "a Trio program makes in a thread, as it must.",
        contenders(actor="store_awaited", copy_in_thread="copy_awaited", blocking="store_blocking",
                   copy="copy_plainly"),
    )  # fmt: skip
    sending = Cell(
        SENDING, f"sending a stored file of {plan.megabytes:g} MB", TIMES,
        "The body of a request to a model, through a socket on this machine. Plain base64 reads, "
        "encodes and sends chunks of the same size.",
        contenders(body="send_body", encoded="send_plainly"),
    )  # fmt: skip
    return [Group(plan.repetitions, (storing, sending))]


def goals(plan: Plan) -> list[Goal]:
    """At most one and a half times a plain copy."""
    explains = "Time for one file; 1 means that our code around the copy costs nothing."
    return [
        Goal(f"{cell} {plan.megabytes:g} MB: {who} / {beside}", Ref(cell, who, "ms"), 1.5,
             Ref(cell, beside, "ms"), explains=explains)
        for cell, who, beside in (
            (STORING, ACTOR, COPY_IN_THREAD), (STORING, BLOCKING, COPY), (SENDING, BODY, ENCODED)
        )
    ]  # fmt: skip


FILES = Benchmark(
    name="files",
    about="Attached files: storing and sending one, compared with plain copies in one run.",
    modules={"ours": "bench.files.ours"},
    measure=measure_cells(FULL, QUICK, groups, goals),
)
