"""The HTTP benchmark: what our server adds to a turn, and other servers on the same model."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from bench.harness.benchmark import Benchmark, Cell, Contender, Group, measure_cells
from bench.harness.measurements import Goal, Ref, ratio
from bench.report.results import Column

EMBEDDED, RESPONSES = "ours, embedded", "ours, /v1/responses"
SAME_ROUTE, ROUTE = "ours, bare route", "plain hypercorn, bare route"
STREAM, SAME_ECHO, ECHO = "ours, streamed", "ours, bare stream", "plain hypercorn, bare stream"
STORING = "plain hypercorn, bare stream that stores"
EVENTS, SAME_IDLE, IDLE_BARE = (
    "ours, /api/events", "ours, bare streams", "plain hypercorn, bare streams",
)  # fmt: skip
OURS, HERMES_AGENT, AGNO = "ours", "hermes-agent API server", "agno AgentOS"
LEAST = {HERMES_AGENT: 10, AGNO: 1}
"""How many times as much as ours a peer needs at least."""
TURN, FIRST, IDLE = "turn", "first token", "idle streams"
ANSWER, TOKEN, CROWD = "with a model", "first token with a model", "clients with a model"

CPU = Column("cpu_us", "CPU µs", 0, explains="Processor time of the server for each request.")
P50 = Column("p50_ms", "p50 ms", 2, explains="Median time, as the client sees it.")
P99 = Column("p99_ms", "p99 ms", 1, explains="99th percentile of that time.")
RATE = Column("rate", "requests/s", 1, "higher", "Answers per second, from all clients.")
SIZE = Column("bytes", "bytes", 0, "neither", "Size of an answer, without the headers.")
MEMORY = (
    Column("kib", "KiB", 1, explains="Memory of the server for each stream."),
    Column("mib", "all MiB", 1, explains="Memory of the whole process with all streams open."),
)
SAME_MODEL = (
    "Every server is a process of its own, on the same model, which replies at once; every request "
    "begins a conversation and has a bearer token. All of them store in SQLite with WAL and "
    "synchronous=FULL, as read back, but not the same things. Ours stores the message before the "
    "model is asked, so that the turn survives a crash, then the reply, and indexes both. "
    "hermes-agent also stores the message first, then the reply, and then the response, of which "
    "it keeps the last 100. agno stores nothing before the answer, and is asked by its own API. No "
    "agent has tools, but hermes-agent has a prompt of 1,900 characters, and builds a new agent "
    "for every request. A real model takes seconds, which these figures are without: they say how "
    "many users a machine can serve, not how long a user waits."
)


@attrs.frozen(kw_only=True)
class Plan:
    """The amount of work; the defaults are a full run."""

    repetitions: int = 7
    rounds: int = 10
    requests: int = 25
    """In each round."""
    stream_repetitions: int = 3
    streams: int = 500
    peer_repetitions: int = 3
    asked: int = 20
    asked_slow: int = 4
    """The same in each round with a model, the second one of a slow peer."""
    clients: int = 4


FULL = Plan()
QUICK = Plan(repetitions=2, rounds=4, stream_repetitions=1, streams=200, peer_repetitions=1)


def groups(plan: Plan) -> list[Group]:
    """Our server beside bare apps, then beside peers."""
    return [
        Group(plan.repetitions, (_turn(plan), _first(plan))),
        Group(plan.stream_repetitions, (_idle(plan),)),
        Group(plan.peer_repetitions, _peers(plan)),
    ]


def _turn(plan: Plan) -> Cell:
    asked = {"count": plan.requests, "what": "whole"}
    return Cell(
        TURN, "a turn in a new conversation", (CPU, P50, P99, SIZE),
        "One client sends one request after the other, and the agent answers with a fixed text. "
        "The bare route, an app of Starlette, decodes the same body and returns JSON of the same "
        "size: on the server that Hermes serves with, and on plain hypercorn, which has no limits. "
        "It checks no token and stores nothing.",
        (Contender(EMBEDDED, "ours", "begin", {**asked, "server": "embedded"}),
         Contender(RESPONSES, "ours", "begin", {**asked, "server": "server"}),
         Contender(SAME_ROUTE, "bare", "begin", {**asked, "server": "ours"}),
         Contender(ROUTE, "bare", "begin", {**asked, "server": "hypercorn"})),
        rounds=plan.rounds,
    )  # fmt: skip


def _first(plan: Plan) -> Cell:
    asked = {"count": plan.requests, "what": "first"}
    return Cell(
        FIRST, "the first token of a streamed response", (P50, P99, CPU),
        "From the request to the first piece of text. Ours has then stored the message, with a "
        "flush of the disk, and sent four other events; the bare app stores nothing, and has sent "
        "one other event, as large as a whole response. The one that stores first commits the text "
        "of the request to a table of its own, with the same flush, in a thread.",
        (Contender(STREAM, "ours", "begin", {**asked, "server": "server"}),
         Contender(SAME_ECHO, "bare", "begin", {**asked, "server": "ours"}),
         Contender(ECHO, "bare", "begin", {**asked, "server": "hypercorn"}),
         Contender(STORING, "bare", "begin", {**asked, "server": "storing"})),
        rounds=plan.rounds,
    )  # fmt: skip


def _idle(plan: Plan) -> Cell:
    held = {"count": plan.streams}
    return Cell(
        IDLE, f"{plan.streams} event streams without events", MEMORY,
        "The resident memory of the server before and after another process opens the streams, "
        "each time after a garbage collection.",
        (Contender(EVENTS, "ours", "streams", {**held, "server": "server"}),
         Contender(SAME_IDLE, "bare", "streams", {**held, "server": "ours"}),
         Contender(IDLE_BARE, "bare", "streams", {**held, "server": "hypercorn"})),
    )  # fmt: skip


def _peers(plan: Plan) -> tuple[Cell, ...]:
    whole, crowd = {"what": "whole"}, {"what": "whole", "clients": plan.clients}
    return (
        _peer_cell(plan, ANSWER, "a whole answer of a model", (CPU, P50, P99, SIZE), whole,
                   SAME_MODEL),
        _peer_cell(plan, TOKEN, "the first token of a model", (P50, P99, CPU), {"what": "first"},
                   "From the request to the first piece of text, on the same servers. "
                   "hermes-agent waits 50 ms for more text before it sends the first."),
        _peer_cell(plan, CROWD, f"{plan.clients} clients at once", (RATE, P50, CPU), crowd,
                   "Whole answers on the same servers. The clients, the model and the server "
                   "share the processors, so this is not the most that a server can do."),
    )  # fmt: skip


def _peer_cell(
    plan: Plan,
    name: str,
    title: str,
    columns: tuple[Column, ...],
    work: Mapping[str, object],
    explains: str,
) -> Cell:
    rows = (OURS, "ours", plan.asked), (AGNO, "agno", plan.asked), (
        HERMES_AGENT, "hermes-agent", plan.asked_slow,
    )  # fmt: skip
    contenders = tuple(
        Contender(who, driver, "begin", {"server": "server", "count": count, **work})
        for who, driver, count in rows
    )
    return Cell(name, title, columns, explains, contenders, ("path", "url"), plan.rounds)


def goals(_: Plan) -> list[Goal]:
    """What the server may cost, compared with bare apps and with other servers."""
    return [
        Goal("turn: added by the server / bare route", Ref(TURN, RESPONSES, "cpu_us"), 2,
             Ref(TURN, ROUTE, "cpu_us"), less=Ref(TURN, EMBEDDED, "cpu_us"),
             explains="Processor time that a turn through /v1/responses takes more than the same "
             "turn embedded, compared with a bare route on plain hypercorn."),
        Goal("turn: added by the server / bare route on our server",
             Ref(TURN, RESPONSES, "cpu_us"), 2,
             Ref(TURN, SAME_ROUTE, "cpu_us"), less=Ref(TURN, EMBEDDED, "cpu_us"),
             explains="The same, compared with a bare route on the server that Hermes serves with, "
             "which takes less time than hypercorn's own."),
        Goal("first token: ours / bare stream", Ref(FIRST, STREAM, "p50_ms"), 1.5,
             Ref(FIRST, ECHO, "p50_ms"),
             explains="Time to the first token with one client, compared with plain hypercorn."),
        Goal("first token: ours / bare stream that stores", Ref(FIRST, STREAM, "p50_ms"), 2,
             Ref(FIRST, STORING, "p50_ms"),
             explains="Time to the first token with one client, compared with plain hypercorn that "
             "commits the text of the request first."),
        Goal("idle streams: ours / bare streams", Ref(IDLE, EVENTS, "kib"), 1.5,
             Ref(IDLE, IDLE_BARE, "kib"),
             explains="Memory of an event stream that waits, compared with plain hypercorn."),
        *(goal for peer, least in LEAST.items() for goal in _peer_goals(peer, least)),
    ]  # fmt: skip


def _peer_goals(peer: str, least: int) -> list[Goal]:
    return [
        ratio(ANSWER, "cpu_us", peer, OURS, least, "Processor time of the server for a request.",
              f"with a model, processor time: {peer} / ours"),
        ratio(ANSWER, "p50_ms", peer, OURS, least, "Time to a whole answer with one client.",
              f"with a model, whole answer: {peer} / ours"),
        ratio(TOKEN, "p50_ms", peer, OURS, least, "Time to the first streamed text.",
              f"with a model, first token: {peer} / ours"),
        ratio(CROWD, "rate", OURS, peer, least, "Answers per second with a few clients at once.",
              f"with a model, requests per second: ours / {peer}"),
    ]  # fmt: skip


HTTP = Benchmark(
    name="http",
    about="The HTTP server: what it adds to a turn, compared with bare apps, and other servers on "
    "the same model.",
    modules={
        "ours": "bench.http.ours",
        "bare": "bench.http.bare",
        "hermes-agent": "bench.peers.hermes_http",
        "agno": "bench.peers.agno_http",
        "model": "bench.agents.model",
    },
    measure=measure_cells(FULL, QUICK, groups, goals),
)
