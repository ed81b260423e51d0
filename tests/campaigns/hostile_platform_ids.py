"""The program of test_hostile_platform_ids: a Telegram whose ids start again and again.

Several bots (tokens) serve the same people with the same database, one after another. Each counts
its messages and updates from the same numbers. Groups become supergroups, whose message ids start
at 1 again; after an idle week the update ids do. Messages are edited, some of them repeatedly.
Mutants are triggers in the database.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import apsw
import attrs
import trio

from hermes import AccessPolicy, PlatformRules, open_runtime
from hermes.adapters.telegram import GroupPolicy, Telegram
from hermes.config import RateLimit
from hermes.redaction.keys import Secret
from hermes.store import SessionStore
from hermes.testing.telegram import WEEK, open_telegram
from tests.support.telegram_bot import echo, fast_limiter

USERS = (7, 8)
GROUP = -5
TOKENS = [f"{number}:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw" for number in (101, 102, 103)]
PATIENCE = 60.0
_SAME = (
    "EXISTS (SELECT 1 FROM all_messages m WHERE m.id >> 32 = NEW.id >> 32 AND m.id <> NEW.id "
    "AND m.platform_message_id = NEW.platform_message_id AND m.role = 'user')"
)
MUTANTS = {
    "a platform id is an identity": f"BEFORE INSERT ON arrivals WHEN NEW.role = 'user' AND {_SAME} "
    "BEGIN SELECT RAISE(IGNORE); END",
    "an edit replaces the message": "AFTER INSERT ON arrivals WHEN NEW.extra ->> '$.edits' NOTNULL "
    "BEGIN DELETE FROM arrivals WHERE id <> NEW.id AND id >> 32 = NEW.id >> 32 "
    "AND platform_message_id = NEW.platform_message_id; END",
    "an edit is not marked": "AFTER INSERT ON arrivals WHEN NEW.extra ->> '$.edits' NOTNULL "
    "BEGIN UPDATE arrivals SET extra = json_remove(NEW.extra, '$.edits') WHERE id = NEW.id; END",
}


@attrs.define
class Platform:
    """One Telegram: a server, and the ids that its chats have used."""

    server: object
    dice: random.Random
    ids: Counter = attrs.Factory(Counter)
    group: int = GROUP

    def act(self, text, said):
        """Let somebody write a message or edit one. `said` gets the text and what it edits."""
        chat_id = self.dice.choice([*USERS, self.group])
        user_id = self.dice.choice(USERS) if chat_id == self.group else chat_id
        edited = None
        if self.ids[chat_id] and self.dice.random() < 0.3:
            edited = self.dice.randint(max(1, self.ids[chat_id] - 5), self.ids[chat_id])
        self.ids[chat_id] += edited is None
        self.server.post(
            chat_id,
            user_id=user_id,
            kind="message" if edited is None else "edited_message",
            message_id=edited or self.ids[chat_id],
            text=text,
            **({} if edited is None else {"edit_date": int(self.server.now)}),
        )
        said[text] = edited

    async def disturb(self):
        """Let something happen between two messages."""
        if self.group == GROUP and self.dice.random() < 0.05:
            await self.settle()
            self.server.migrate(GROUP, GROUP - 1000)
            self.group = GROUP - 1000
        if self.dice.random() < 0.05:
            await self.settle()
            self.server.pass_time(WEEK + 1)
        if self.dice.random() < 0.5:
            await trio.sleep(self.dice.random() * 0.02)

    async def settle(self):
        """Wait until the bot has confirmed all updates."""
        with trio.fail_after(PATIENCE):
            await self.server.wait_until(lambda: self.server.pending == 0)


@contextlib.asynccontextmanager
async def running_bot(path, server, policy):
    access = AccessPolicy(
        rules={"telegram": PlatformRules(users=USERS)},
        rates=RateLimit(per_minute=1e6, burst=1_000_000),
    )
    async with (
        Telegram(
            Secret(server.token), base_url=server.url, group_policy=policy, preview_interval=None,
            rate_limiter=fast_limiter(), retry_delay=0.05,
        ) as telegram,
        open_runtime(path, agent=echo, adapters=[telegram], access=access) as runtime,
        trio.open_nursery() as nursery,
    ):  # fmt: skip
        nursery.start_soon(telegram.run, runtime)
        yield
        nursery.cancel_scope.cancel()


def violations(path, said):
    """Yield the texts that are not in exactly one row, as what they are."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        rows = db.execute(
            "SELECT content, extra ->> '$.edits' FROM all_messages WHERE role = 'user'"
        ).fetchall()
        left = db.execute("SELECT id, state FROM inbox WHERE state <> 'done'").fetchall()
    yield from (f"message {row} was not answered" for row in left)
    for text, edited in said.items():
        found = [edits for content, edits in rows if text in content]
        if len(found) != 1:
            yield f"{text!r} is in {len(found)} rows"
        elif (None if edited is None else str(edited)) != found[0]:
            yield f"{text!r} edits {edited}, but its row says {found[0]}"


async def repeat_ids(path, seed, lives, messages, mutant=""):
    """Run one campaign. Returns how many texts were sent, and the violations."""
    dice, said = random.Random(seed), {}
    with SessionStore(path) as store:
        if mutant:
            store.transact(lambda tx: tx.run(f"CREATE TRIGGER mutant {MUTANTS[mutant]}"))
    policy = GroupPolicy(
        groups="all", shared=dice.random() < 0.5, edits=True,
        burst_seconds=dice.choice([0.0, 0.02]),
    )  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        platforms = []
        for token in TOKENS:  # with the same seed: the same update ids
            server = await stack.enter_async_context(open_telegram(token=token, seed=seed))
            server.group(GROUP, "group")
            platforms.append(Platform(server, dice))
        for life in range(lives):
            platform = platforms[life] if life < len(platforms) else dice.choice(platforms)
            async with running_bot(path, platform.server, policy):
                for number in range(messages):
                    platform.act(f"text {life}.{number}.", said)
                    await platform.disturb()
                await platform.settle()
    return len(said), list(violations(path, said))
