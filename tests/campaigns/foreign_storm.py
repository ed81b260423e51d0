"""The program of test_foreign_verbs: processes that call every verb of a store beside a bot.

The callers, the bot and the checker are processes of their own. The checker reads SQL only, while
the others write and after they have ended. Mutants are triggers in the database.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import attrs
import trio

from hermes import CompressionConfig, Config, Inbound, Source, open_runtime
from hermes.errors import HermesError
from hermes.store import SessionStore
from hermes.testing import DeterministicCompressor
from tests.campaigns.foreign_calls import CALLS, KEYS, World
from tests.campaigns.foreign_checks import ALWAYS, LATER, lost, violations

CALLERS = 3
PATIENCE = 60.0
OFTEN = ["accept", "append_message", "ask_approval", "commit_turn", "rotate", "switch"]
CONFIG = Config(
    max_queued=1_000_000,
    drain_timeout=60,
    max_attempts=1_000,
    compression=CompressionConfig(window=700, max_output=0, share=0.5, tail_share=0.2),
)
COMMANDS = ("/new", "/compress", "/undo", "/retry", "/title x", "/sessions", "/status")
MUTANTS = {
    "counts wrongly": "AFTER INSERT ON arrivals WHEN NEW.id % 4 = 0 BEGIN "
    "UPDATE sessions SET message_count = message_count + 1 WHERE no = NEW.id >> 32; END",
    "keeps the text": "AFTER UPDATE OF state ON inbox WHEN NEW.state = 'done' BEGIN "
    "UPDATE inbox SET body = '{}' WHERE id = NEW.id; END",
    "loses a receipt": "AFTER UPDATE OF state ON inbox WHEN NEW.id % 10 = 0 BEGIN "
    "DELETE FROM inbox WHERE id = NEW.id; END",
    "does not share": "AFTER INSERT ON shared_sessions BEGIN DELETE FROM shared_sessions "
    "WHERE session_no = NEW.session_no AND session_key = NEW.session_key; END",
}


# The callers


def call(path, seed, calls, who):
    """Call verbs at random: in each round all of them once, and some more often."""
    dice = random.Random(f"{seed}/{who}")
    world = World(path, f"{seed}.{who}", dice, SessionStore(path))
    done, refused, errors = Counter(), Counter(), []
    while calls > 0:
        names = sorted(CALLS) + OFTEN * 4
        for name in dice.sample(names, min(calls, len(names))):
            calls -= 1
            try:
                CALLS[name](world)
            except (HermesError, ValueError):
                refused[name] += 1
            except Exception:  # noqa: BLE001 - whatever it is, it is reported
                errors.append(f"{name}: {traceback.format_exc()[-700:]}")
            else:
                done[name] += 1
    world.store.close()
    accepted = [(inbound.event_id, inbox_id) for inbound, inbox_id in world.accepted]
    report = {"done": done, "refused": refused, "errors": errors, "accepted": accepted}
    Path(f"{path}.{who}").write_text(json.dumps(report))


# The bot


@attrs.frozen
class Wire:
    """An adapter that takes everything."""

    platform: str = "wire"
    local: bool = True

    async def send(self, row, /):
        await trio.lowlevel.checkpoint()


async def bot(path, seed, stop):
    """Answer messages, its own and those of others, until the pipe is closed."""
    dice, accepted = random.Random(f"{seed}/bot"), []

    async def answer(turn):
        await trio.sleep(dice.random() * 0.01)
        return f"well, {turn.text[:20]}"

    async def talk(runtime):
        for number in range(10**9):
            key = dice.choice(KEYS)
            text = dice.choice(COMMANDS) if dice.random() < 0.3 else f"{number} " + "word " * 20
            source = Source("wire", chat_id=key, user_id="u1")
            inbound = Inbound(key, f"bot {number}", text, source, command=text.startswith("/"))
            receipt = await runtime.submit(inbound)
            accepted.append((inbound.event_id, receipt.inbox_id))
            await trio.sleep(dice.random() * 0.05)

    async with (
        open_runtime(
            path, agent=answer, config=CONFIG, compressor=DeterministicCompressor(),
            adapters=[Wire()], sweep_interval=0.5,
        ) as runtime,
        trio.open_nursery() as nursery,
    ):  # fmt: skip
        if seed is not None:
            nursery.start_soon(talk, runtime)
        await trio.lowlevel.wait_readable(stop)
        os.read(stop, 1)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            if accepted:
                await trio.Path(f"{path}.bot").write_text(json.dumps({"accepted": accepted}))
            await trio.lowlevel.wait_readable(stop)


def start_bot(path, seed):
    """Fork a bot. Returns its process id, and the pipe that stops it."""
    theirs, ours = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(ours)
        run_child(trio.run, bot, path, seed, theirs)
    os.close(theirs)
    return pid, ours


def run_child(function, *arguments):
    """Run a function in a forked process, and end the process."""
    try:
        function(*arguments)
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it is
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


# The campaign


def settle(path, queries):
    """Wait until the queries find nothing. Returns what they find when patience ends."""
    give_up = time.monotonic() + PATIENCE
    while (found := violations(path, queries)) and time.monotonic() < give_up:
        time.sleep(0.05)
    return found


def storm(path, seed, calls):
    """Let callers and a bot run. Returns what the checker found, and how often it looked."""
    bot_id, stop = start_bot(path, seed)
    callers = []
    for who in range(CALLERS):
        if (child := os.fork()) == 0:
            run_child(call, path, seed, calls, who)
        callers.append(child)
    found, checks = [], 0
    while callers and not found:
        found += violations(path, ALWAYS)
        checks += 1
        gone, status = os.waitpid(-1, os.WNOHANG)
        if gone == bot_id or status:
            found.append(f"{'the bot' if gone == bot_id else 'a caller'} ended with {status}")
        alive = [process_id for process_id in (bot_id, *callers) if process_id != gone]
        callers = [process_id for process_id in callers if process_id != gone]
    if found:
        for process_id in alive:
            os.kill(process_id, signal.SIGKILL)
            os.waitpid(process_id, 0)
        return found, checks
    return finish(path, bot_id, stop), checks


def finish(path, bot_id, stop):
    """Let the bot answer what is left, and another one send it. Returns what was not done."""
    os.write(stop, b"x")  # no more messages
    found = settle(path, {"not answered": LATER["not answered"]})
    os.close(stop)
    found += ended(bot_id)
    bot_id, stop = start_bot(path, None)
    found += settle(path, LATER)
    os.write(stop, b"x")
    os.close(stop)
    return found + ended(bot_id)


def ended(bot_id):
    """Wait for the end of a bot. Returns what is wrong with it."""
    code = os.waitstatus_to_exitcode(os.waitpid(bot_id, 0)[1])
    return [f"a bot ended with {code}"] if code else []


def main(path, seed, calls, mutant=""):
    """Run one storm, and print the results as JSON."""
    with SessionStore(path) as store:
        if mutant:
            store.transact(lambda tx: tx.run(f"CREATE TRIGGER mutant {MUTANTS[mutant]}"))
    found, checks = storm(path, seed, calls)
    done, refused, accepted = Counter(), Counter(), []
    for who in [*range(CALLERS), "bot"]:
        file = Path(f"{path}.{who}")
        report = json.loads(file.read_text()) if file.exists() else {}
        done.update(report.get("done", {}))
        refused.update(report.get("refused", {}))
        accepted += report.get("accepted", [])
        found += report.get("errors", [])
    found += violations(path, ALWAYS | LATER) + lost(path, accepted)
    with SessionStore(path) as store:
        found += store.integrity_check()
        found += [f"search: {wrong}"] if (wrong := store.check_search()) else []
    report = {
        "done": done, "refused": refused, "accepted": len(accepted), "checks": checks,
        "violations": found[:20],
    }  # fmt: skip
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
