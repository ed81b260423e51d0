"""Random sequences of pairing operations agree with a simple model."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import trio
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hermes.actors.admission import pairing
from hermes.actors.admission.access import AccessPolicy, PlatformRules
from hermes.actors.admission.gate import Admission
from hermes.actors.admission.rate_limit import RateLimit, RateLimiter
from hermes.errors import NotAdmitted
from hermes.messages import Inbound, InboxReply, Source
from hermes.store import Clock, SessionStore
from hermes.texts import ENGLISH
from tests.support.folders import quick_directory
from tests.support.stores import AwaitedStore

HOUR = 3600.0
WAITING, WRONG, FRESH = 3, 5, 300.0
CODE = re.compile(r"/pair (\S{9})")
NAMED = {"named": "user", "boss": "operator"}
STRANGERS = ["1", "１", "2", "3", "4"]
PEOPLE = [
    Source("telegram", account, user_id, "dm", None, user_id, user_name="boss")
    for account in ("a", "b")
    for user_id in (*STRANGERS, *NAMED)
]
OPERATORS = [Source("console", user_id="operator"), Source("telegram", "a", user_id="boss")]

people = st.sampled_from(PEOPLE)
operators = st.sampled_from(OPERATORS)
roles = st.sampled_from(["user", "operator"])


@attrs.define
class Waiting:
    code: str
    until: float


class Door(RuleBasedStateMachine):
    """The model: paired principals, pending codes, and wrong guesses of each operator."""

    @initialize()
    def begin(self):
        self.folder = quick_directory()
        self.now = 1_800_000_000.0
        self.paired = {}
        self.waiting = {}
        self.guessed = {}
        self.spent = []
        self.number = 0
        self.open()

    def open(self):
        clock = Clock(wall=lambda: self.now, steady=lambda: self.now)
        self.store = SessionStore(Path(self.folder.name) / "state.db", clock=clock)
        access = AccessPolicy(
            rules={"telegram": PlatformRules(users=["named"], operators=["boss"])}
        )
        buckets = RateLimiter(RateLimit(per_minute=1e9, burst=10**9), lambda: self.now)
        self.admission = Admission(AwaitedStore(self.store), access, buckets)

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()

    # Expectations

    def key(self, who):
        return who.account, who.user_id

    def role_of(self, who):
        return NAMED.get(who.user_id) or self.paired.get(self.key(who))

    def alive(self):
        self.waiting = {k: each for k, each in self.waiting.items() if each.until > self.now}
        return self.waiting

    def said(self):
        rows = self.store.pending_outbox()
        self.store.mark_sent([row.outbox_id for row in rows])
        return [row.body["text"] for row in rows]

    def wrong_of(self, operator):
        number, latest = self.guessed.get(operator, (0, 0.0))
        return number if latest + HOUR > self.now else 0

    # Operations

    @rule(who=people)
    def speak(self, who):
        self.number += 1
        inbound = Inbound("k", f"e{self.number}", "hello", who)
        expected = self.role_of(who)
        try:
            got = trio.run(self.admission.admit, inbound)
        except NotAdmitted:
            got = None
        assert got == expected
        texts = self.said()
        at = {key: each for key, each in self.alive().items() if key[0] == who.account}
        fresh = [each for each in at.values() if each.until - HOUR > self.now - FRESH]
        if expected is None and self.key(who) not in at and len(fresh) < WAITING:
            [text] = texts
            self.waiting[self.key(who)] = Waiting(CODE.search(text)[1], self.now + HOUR)
        else:
            assert texts == []

    def pair(self, operator, code, role):
        def answer(text):
            return InboxReply(session_key="op", inbox_ids=())

        async def pair():
            store = AwaitedStore(self.store)
            return await pairing.pair(store, operator, f"{code} {role}", answer, ENGLISH)

        return trio.run(pair)

    @precondition(lambda self: self.alive())
    @rule(operator=operators, role=roles, choice=st.integers(0, 9))
    def approve(self, operator, role, choice):
        who = sorted(self.waiting)[choice % len(self.waiting)]
        text = self.pair(operator, self.waiting[who].code, role)
        if self.wrong_of(operator) >= WRONG:
            assert text.startswith("There were too many wrong codes")
            assert self.said() == []
            return
        assert text.endswith(f"as {role}.")
        assert self.said() == [ENGLISH.pairing_welcome]
        self.guessed.pop(operator, None)
        self.spent.append(self.waiting.pop(who).code)
        self.paired[who] = role

    @rule(operator=operators, role=roles, choice=st.integers(0, 9))
    def guess(self, operator, role, choice):
        """A code that is unknown, used or expired."""
        code = [*self.spent, "0000-0000"][choice % (len(self.spent) + 1)]
        if code in {each.code for each in self.alive().values()}:
            return
        before = self.wrong_of(operator)
        text = self.pair(operator, code, role)
        if before >= WRONG - 1:
            assert text.startswith("There were too many wrong codes")
        else:
            assert text.startswith("No request has this code")
        if before < WRONG:
            self.guessed[operator] = (before + 1, self.now)
        assert self.said() == []

    @rule(user_id=st.sampled_from([*STRANGERS, *NAMED, "nobody"]))
    def send_away(self, user_id):
        gone = [
            (table, key)
            for table in (self.paired, self.alive())
            for key in list(table)
            if key[1] == user_id
        ]
        found = trio.run(
            lambda: pairing.unpair(
                AwaitedStore(self.store),
                f"telegram {user_id}",
                lambda text: InboxReply(session_key="op", inbox_ids=()),
                ENGLISH,
            )
        )
        for table, key in gone:
            each = table.pop(key)
            if isinstance(each, Waiting):
                self.spent.append(each.code)
        if gone:
            assert found.endswith("has been removed.")
        elif user_id == "nobody":
            assert found.endswith("is not a paired user.")

    @rule(seconds=st.sampled_from([1.0, 299.0, 300.0, HOUR - 1, HOUR, 2 * HOUR]))
    def wait(self, seconds):
        self.now += seconds
        gone = [each.code for each in self.waiting.values() if each.until <= self.now]
        self.alive()
        self.spent += gone

    @rule()
    def restart(self):
        self.store.close()
        self.open()

    @invariant()
    def the_lists_agree(self):
        if not hasattr(self, "store"):
            return
        listed = {(each.account, each.user_id): each.role for each in self.store.principals()}
        assert listed == self.paired
        waiting = {(each.source.account, each.source.user_id) for each in self.store.pairings()}
        assert waiting == set(self.alive())


TestDoor = Door.TestCase
TestDoor.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
