"""A chat platform in front of a runtime with access control, and its users."""

from __future__ import annotations

import contextlib
import re

import pytest

from hermes import Inbound, Source
from hermes.actors.admission.access import AccessPolicy, PlatformRules
from hermes.actors.admission.rate_limit import RateLimit
from hermes.errors import NotAdmitted
from hermes.session_keys import session_key
from hermes.testing import inspect

CODE = re.compile(r"/pair ([0-9A-Z]{4}-[0-9A-Z]{4})")
CONSOLE = Source("console", chat_id="console", user_id="operator")
TABLES = ("inbox", "sessions", "routes", "all_messages", "boundaries", "approvals", "usage")


def user(user_id, **fields):
    """A user of the platform, by default in a direct chat."""
    fields = {"chat_id": user_id, "account": "bot", **fields}
    return Source(platform="telegram", user_id=user_id, **fields)


ALICE, BOB, MALLORY = user("1"), user("2"), user("666")


def access_for(*, rates=None, **rules):
    """An access policy with rules for the platform, and by default no effective rate limit."""
    return AccessPolicy(
        rules={"telegram": PlatformRules(**rules)},
        rates=rates or RateLimit(per_minute=600, burst=600),
    )


class Chat:
    """A runtime and the adapter of the platform."""

    def __init__(self, runtime, adapter):
        self.runtime = runtime
        self.adapter = adapter
        self.store = inspect(runtime).store
        self.number = 0

    def inbound(self, source, text):
        """A new message of a user."""
        self.number += 1
        command = text.startswith("/")
        return Inbound(session_key(source), f"e{self.number}", text, source, command=command)

    async def submit(self, source, text):
        """Send a message."""
        return await self.runtime.submit(self.inbound(source, text))

    async def say(self, source, text):
        """Send a message and return the text of the reply."""
        return (await self.runtime.ask(session_key(source), text, source=source)).text

    async def refused(self, source, text="let me in"):
        """Send a message that is refused without a trace, and return the reason."""
        before = await self.traces()
        with pytest.raises(NotAdmitted) as refusal:
            await self.submit(source, text)
        assert await self.traces() == before
        return str(refusal.value)

    async def flood(self, source, number, text="hello"):
        """Send a message many times, and return how many were accepted."""
        accepted = 0
        for _ in range(number):
            with contextlib.suppress(NotAdmitted):
                await self.submit(source, text)
                accepted += 1
        return accepted

    async def traces(self):
        """The sizes of all tables that an accepted message could have changed."""
        return [await self.count(table) for table in TABLES]

    async def count(self, table):
        """The number of rows in a table."""
        return await self.store.snapshot(lambda tx: tx.one(f"SELECT count(*) FROM {table}")[0])

    async def sent(self, number):
        """The texts that were sent to the platform: exactly `number`, after waiting for them."""
        await self.adapter.wait_sent(number)
        await inspect(self.runtime).wait_sent()
        assert len(self.adapter.sent) == number
        return self.adapter.texts

    async def code(self, source=MALLORY, number=1):
        """The pairing code that an unknown user gets, as message `number` of the platform."""
        await self.refused(source)
        return CODE.search((await self.sent(number))[-1])[1]

    async def pair(self, source=MALLORY, role=""):
        """Pair a user, and return the answer to the operator."""
        code = await self.code(source, len(self.adapter.sent) + 1)
        answer = await self.say(CONSOLE, f"/pair {code} {role}")
        await self.sent(len(self.adapter.sent) + 1)
        return answer
