"""C4b, on the real bot: a pause beyond its lease undoes nothing of others, and forks nothing.

The bot is stopped with SIGSTOP while it waits for a summary, until its lease has expired. Another
process then changes the session: it compresses, resets, edits or appends. Then the bot goes on.
"""

from __future__ import annotations

import contextlib
import random
import signal
from functools import partial

import apsw
import attrs
import pytest
import trio

from hermes.errors import HermesError
from hermes.messages import Message
from hermes.store import Rotation, SessionStore
from tests.campaigns.invariants import NUMBERED
from tests.campaigns.run_checks import violations
from tests.campaigns.run_driver import PATIENCE, ROOT, Prompt, Users, open_bots
from tests.campaigns.run_mutants import mutate

LEASE = 0.3
ACTIONS = ("compress", "reset", "edit", "append", "take the lease")


def talk(dice, number, chat):
    """Return the next prompt: long messages, and some compressions."""
    if dice.random() < 0.2:
        return Prompt(number, chat, "/compress", "compress", None)
    return Prompt(number, chat, f"{number:04} " + "word " * dice.randint(20, 60), None, None)


@attrs.define
class Other:
    """Pauses the bot, and works on its database meanwhile."""

    bots: object
    dice: random.Random
    actions: tuple[str, ...]
    bot: object
    paused: trio.Event = attrs.Factory(trio.Event)
    done: list = attrs.Factory(list)
    """The actions that were done."""
    resets: dict = attrs.Factory(dict)
    """The session that the last reset of each key began."""
    edits: list = attrs.Factory(list)
    """The texts of messages before they were edited, and their ids."""

    def pause(self):
        """Stop the bot, which has just asked for a summary."""
        if not self.paused.is_set():
            self.bot.signal(signal.SIGSTOP)
            self.paused.set()

    async def work(self):
        """Act whenever the bot is paused, and let it go on."""
        while True:
            await self.paused.wait()
            for session_id in await self.expired():
                action = self.dice.choice(self.actions)
                act = partial(self.act, action, session_id)
                with contextlib.suppress(HermesError):  # the bot was paused in a transaction
                    if await trio.to_thread.run_sync(act):
                        self.done.append(action)
            self.paused = trio.Event()
            self.bot.signal(signal.SIGCONT)

    async def expired(self):
        """Wait until all leases of the bot have expired, and return their sessions."""
        with SessionStore(self.bots.path) as store:
            sql = "SELECT session_id FROM leases WHERE holder IS NOT NULL"
            held = [row[0] for row in store.snapshot(lambda tx: tx.all(sql))]
            for session_id in held:
                while store.get_compression_lock_holder(session_id) is not None:  # noqa: ASYNC110
                    await trio.sleep(0.02)  # there is no event for it
        return held

    def act(self, action, session_id):
        """Change a session; returns whether it did."""
        with SessionStore(self.bots.path) as store:
            session, rows = store.get_session(session_id), store.get_messages(session_id)
            if session is None or session.ended_at is not None or not rows:
                return False
            route = store.get_route(session.session_key)
            match action:
                case "compress":
                    rotation = Rotation(
                        session_id=session_id, messages=[Message("user", "a summary")],
                        rotation_id=f"other {len(self.done)}", upto=rows[-1].id,
                        rewrites=store.head(session_id).rewrites,
                        session_key=route.session_key, epoch=route.epoch,
                    )  # fmt: skip
                    store.rotate(rotation)
                case "reset":
                    changed = store.new_session(route.session_key)
                    self.resets[route.session_key] = changed.session_id
                case "edit":
                    said = [row for row in rows if NUMBERED.match(row.content or "")]
                    if not said:
                        return False
                    store.edit_message(session_id, said[-1].id, f"edited {said[-1].content}")
                    self.edits.append((said[-1].content, said[-1].id))
                case "append":
                    store.append_message(session_id, "user", "news")
                case "take the lease":
                    store.acquire_lease(session_id, "other", LEASE)
                    store.release_compression_lock(session_id, "other")
        return True


async def pause_repeatedly(folder, seed, prompts, actions=ACTIONS, root=ROOT, patience=PATIENCE):
    """Run a bot that is paused again and again; returns the actions, the users and violations."""
    dice = random.Random(seed)
    users = Users(
        dice, chats=("chat/1", "chat/2"), in_flight=2, budget=prompts, next_prompt=talk,
        patience=patience,
    )  # fmt: skip
    async with open_bots(folder, root=root, seed=seed) as bots:
        bots.configure(lease_timeout=LEASE)
        other = Other(bots, dice, actions, await bots.start())
        bots.on_summary = other.pause
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.work)
            code = await users.life(other.bot)
            nursery.cancel_scope.cancel()
        bots.on_summary = None
        if code:
            users.violations.append(f"it ended with {code}: {other.bot.errors.read_text()}")
        if code := await users.life(await bots.start(), everything=True):
            users.violations.append(f"the last bot ended with {code}")
    found = [*users.violations, *(f"refused: {error}" for error in users.refused)]
    found += [*undone(bots.path, other), *violations(bots.path, users.acknowledged)]
    return other, users, found


def undone(path, other):
    """Yield resets and edits of the other process that the bot has undone."""
    with SessionStore(path) as store, contextlib.closing(apsw.Connection(str(path))) as db:
        for key, session_id in other.resets.items():
            now = store.get_route(key).session_id
            if session_id not in {now, *store.get_compression_lineage(now)}:
                yield f"{key} is back in {now}, although {session_id} was begun"
        for edit in other.edits:
            copies = "SELECT id FROM all_messages WHERE live AND content = ? AND id >= ?"
            yield from (
                f"{edit} was edited, but {row} is there" for row in db.execute(copies, edit)
            )


def test_a_bot_that_slept_beyond_its_lease_undoes_nothing(tmp_path, prove, campaign):
    done = []
    for seed in campaign.seeds(range(25) if prove else [1]):
        folder = tmp_path / str(seed)
        folder.mkdir()
        other, users, found = trio.run(pause_repeatedly, folder, seed, 120 if prove else 30)
        campaign.count(pauses=len(other.done), messages=len(users.acknowledged))
        campaign.check(found)
        done += other.done
    assert done
    assert not prove or set(done) == set(ACTIONS)


@pytest.mark.mutant
def test_the_campaign_finds_a_compression_that_ignores_changes(tmp_path):
    root = mutate(tmp_path, "a compression is only stored if nothing has changed")
    for seed in range(5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        if trio.run(pause_repeatedly, folder, seed, 30, ("edit",), root, 20.0)[2]:
            return
    raise AssertionError("it was not found")
