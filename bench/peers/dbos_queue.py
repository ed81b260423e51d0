"""Driver of DBOS: durable workflows with one step, started directly and through a queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.metadata import version

from dbos import DBOS

from bench.harness.driver import Figures, serve
from bench.harness.postgres import Database, Timing, new_database
from bench.harness.sample_text import text

WARM_UP = 10


@DBOS.step()
def answer(question: str) -> str:
    assert question
    return text(0, 0)


@DBOS.workflow()
def turn(question: str) -> str:
    return answer(question)


def _ask(number: int) -> str:
    return turn(text(0, number))


def _ask_by_queue(number: int) -> str:
    return DBOS.enqueue_workflow("turns", turn, text(0, number)).get_result()


def turns(url: str, callers: int, seconds: float, *, queue: bool = False) -> Figures:
    """Concurrent callers in threads, each waits for its answer before it asks again."""
    ask = _ask_by_queue if queue else _ask
    with new_database(url) as database:
        settings = {"log_level": "ERROR", "sys_db_pool_size": 20}
        DBOS(config={"name": "bench", "system_database_url": database.url, **settings})
        DBOS.launch()
        try:
            if queue:
                DBOS.register_queue("turns", polling_interval_sec=0.01)
            for number in range(WARM_UP):
                ask(number)
            return _time(ask, callers, seconds, database)
        finally:
            DBOS.destroy()


def _time(ask: Callable[[int], str], callers: int, seconds: float, database: Database) -> Figures:
    counts = [0] * callers
    timing = Timing(database)

    def work(caller: int) -> None:
        while timing.seconds < seconds:
            if ask(counts[caller]) != text(0, 0):
                raise AssertionError("the answer was wrong")
            counts[caller] += 1

    threads = [threading.Thread(target=work, args=[caller]) for caller in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return timing.figures(sum(counts))


if __name__ == "__main__":
    serve({"dbos": version("dbos")}, turns)
