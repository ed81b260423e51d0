"""Which request a retry attaches to, in any sequence of events, agrees with a simple model.

The model knows what the issue says: a retry without an idempotency key attaches to an equal request
of the same credential whose connection was lost, or whose process died, at most a minute ago, and
to which no other retry is attached. If several are, those come first that were certainly lost. It
has no SQL, and remembers every request of the run.
"""

from __future__ import annotations

from pathlib import Path

import attrs
from hypothesis import HealthCheck, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hermes.messages import ApiRequest, Committed, Inbound, Message, Reply, Source, TurnCommit
from hermes.store import Clock, SessionStore
from tests.support.examples import examples
from tests.support.folders import quick_directory

MINUTE = 60.0
STORED = (
    "SELECT r.id, r.connection, r.inbox_id, r.reply ->> '$.text', "
    "r.closed_at IS NOT NULL AND EXISTS (SELECT 1 FROM sessions s WHERE s.id = r.session_id) "
    "FROM responses r ORDER BY r.inbox_id"
)
REQUESTS = [("tok_1", "/v1/responses", "yes"), ("tok_2", "/v1/responses", "yes")]
OTHER = {"credential": "tok_3", "path": "/v1/chat/completions", "body": "no"}
"""What a retry may have instead; no request was sent with it."""
conversations = st.sampled_from(["one", "two"])
choices = st.integers(0, 20)


@attrs.define(eq=False)
class Sent:
    """A request that was accepted."""

    id: str
    credential: str
    path: str
    body: str
    key: str | None
    inbox_id: int
    session_key: str
    process: int
    created_at: float
    state: str = "open"
    begun_at: float | None = None
    ended_at: float = 0.0
    answered: bool = False
    answered_at: float = 0.0
    deleted: bool = False

    def may_be_retried(self, now, process, alive_at):
        """Whether its client lost its connection at most a minute ago, and nobody else waits."""
        if self.key is not None or self.deleted:
            return False
        if self.state == "cut":
            return self.ended_at >= now - MINUTE
        died_at = max(alive_at[self.process], self.created_at)
        return self.state == "open" and self.process != process and died_at >= now - MINUTE

    def order(self):
        """What was certainly not written comes first, then what may have been."""
        if self.state == "cut":
            return (0, self.inbox_id)
        if self.begun_at is not None:
            last = (-self.answered_at, -self.inbox_id) if self.answered else (0, self.inbox_id)
            return (3, self.begun_at, *last)
        if self.answered:
            return (2, -self.answered_at, -self.inbox_id)
        return (1, self.inbox_id)


class Retries(RuleBasedStateMachine):
    """Clients whose connections are cut, servers that die, and retries of both."""

    @initialize()
    def begin(self):
        self.folder = quick_directory()
        self.now = 1_800_000_000.0
        self.sent: list[Sent] = []
        self.alive_at = {}
        self.process = 0
        clock = Clock(wall=lambda: self.now, steady=lambda: self.now)
        self.store = SessionStore(Path(self.folder.name) / "state.db", clock=clock)
        self.beat()

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()
            self.folder.cleanup()

    def kept(self):
        return [each for each in self.sent if not each.deleted]

    def may_be_retried(self, request):
        return request.may_be_retried(self.now, self.process, self.alive_at)

    def one_of(self, choice, requests):
        return requests[choice % len(requests)] if requests else None

    # The server

    @rule()
    def beat(self):
        self.store.record_process(f"p{self.process}")
        self.alive_at[self.process] = self.now

    @rule(silent=st.sampled_from([0.0, 0.0, 4.0, 60.0, 60.5, 700.0]))
    def die(self, silent):
        """The process is killed; another one starts after some time, and gets retries."""
        self.now += silent
        self.process += 1
        self.beat()
        self.retry_all()

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0, 60.5]), beats=st.booleans())
    def wait(self, seconds, beats):
        self.now += seconds
        if beats:
            self.beat()

    # Requests

    @rule(
        request=st.sampled_from(REQUESTS),
        conversation=conversations,
        key=st.sampled_from([None, None, None, "k1", "k2"]),
        fate=st.sampled_from(["wait", "cut", "cut", "complete", "answer"]),
    )
    def send(self, request, conversation, key, fate):
        """A new request, whose connection may end at once, or whose turn may."""
        number = len(self.sent)
        self.accept(*request, conversation, key)
        if len(self.sent) > number:
            if fate == "answer":
                self.reply(self.sent[-1])
            elif fate != "wait":
                self.end_of(self.sent[-1], complete=fate == "complete")

    def accept(self, credential, path, body, conversation, key):
        """One with a known key gets the first response."""
        known = next(
            (each for each in self.kept() if (each.credential, each.key) == (credential, key)), None
        )
        if key is not None and (found := self.store.find_response(credential, key)) is not None:
            assert known is not None
            assert found.id == known.id
            return
        assert key is None or known is None
        name = f"resp_{len(self.sent)}"
        session_key = f"agent:main:http:dm:{credential}:{conversation}"
        request = ApiRequest(
            id=name,
            credential=credential,
            path=path,
            digest=body,
            idempotency_key=key,
            process=f"p{self.process}",
        )
        source = Source("http", credential, credential, thread_id=conversation, user_id=credential)
        accepted = self.store.accept(Inbound(session_key, name, body, source, request=request))
        receipt = accepted.receipt
        self.sent.append(
            Sent(
                id=name,
                credential=credential,
                path=path,
                body=body,
                key=key,
                inbox_id=receipt.inbox_id,
                session_key=session_key,
                process=self.process,
                created_at=self.now,
            )
        )

    @rule(choice=choices, after=st.sampled_from([0.0, 60.0, 60.5]))
    def retry(self, choice, after):
        """A request with a retry count, and others that differ from it in one respect."""
        lost = [each for each in self.kept() if self.may_be_retried(each)]
        sent = self.one_of(choice, lost or self.sent)
        if sent is not None:
            self.now += after
            request = {"credential": sent.credential, "path": sent.path, "body": sent.body}
            for name, value in OTHER.items():
                self.attach(**{**request, name: value})
            self.attach(**request)

    @rule()
    def retry_all(self):
        """A retry of each request: equal ones are attached to different requests."""
        for each in self.sent:
            self.attach(each.credential, each.path, each.body)

    def attach(self, credential, path, body):
        """A retry is attached to the oldest request that was lost, or to the last that may be."""
        same = [
            each
            for each in self.sent
            if (each.credential, each.path, each.body) == (credential, path, body)
            and self.may_be_retried(each)
        ]
        expected = min(same, key=Sent.order, default=None)
        found = self.store.attach_response(credential, path, body, f"p{self.process}")
        assert (found and found.id) == (expected and expected.id)
        if expected is not None:
            assert found.connection == "open"
            assert (found.reply is not None) == expected.answered
            expected.state, expected.process = "open", self.process
            expected.begun_at = None

    @rule(choice=choices, late=st.booleans())
    def begin_answer(self, choice, late):
        """A response is about to be written; with `late`, a process that has died claims so."""
        request = self.one_of(choice, self.kept())
        if request is not None:
            process = self.process - late
            begun = self.store.begin_answer(request.id, f"p{process}")
            assert begun == (request.state == "open" and request.process == process)
            if begun:
                request.begun_at = self.now

    @rule(choice=choices, complete=st.booleans(), late=st.booleans())
    def end(self, choice, complete, late):
        """A connection ends; with `late`, a process that has died claims so."""
        request = self.one_of(choice, self.kept())
        if request is not None:
            self.end_of(request, complete=complete, late=late)

    def end_of(self, request, *, complete, late=False):
        process = self.process - late
        ended = self.store.end_connection(request.id, f"p{process}", complete=complete)
        assert ended == (request.state == "open" and request.process == process)
        if ended:
            request.state, request.ended_at = "complete" if complete else "cut", self.now

    @rule()
    def cut_all(self):
        """All connections are lost at once."""
        for each in self.kept():
            self.end_of(each, complete=False)

    # Turns and sessions

    @rule(choice=choices)
    def answer(self, choice):
        request = self.one_of(choice, [each for each in self.sent if not each.answered])
        if request is not None:
            self.reply(request)

    def reply(self, request):
        """Commit the turn of a request."""
        route, head = self.store.route_head(request.session_key)
        reply = Reply(text=request.id, session_id=route.session_id, turn_id=request.inbox_id)
        turn = TurnCommit(
            session_key=request.session_key,
            session_id=route.session_id,
            epoch=route.epoch,
            revision=head.revision,
            inbox_ids=[request.inbox_id],
            rows=(Message("user", request.body), Message("assistant", request.id)),
            reply=reply,
        )
        assert isinstance(self.store.commit_turn(turn), Committed)
        request.answered, request.answered_at = True, self.now

    @rule(choice=choices, what=st.sampled_from(["renew", "delete", "delete session", "prune"]))
    def maintain(self, choice, what):
        request = self.one_of(choice, self.kept())
        if what == "prune":
            self.prune()
        elif request is not None and what == "renew":
            self.store.new_session(request.session_key)
        elif request is not None and what == "delete":
            assert self.store.delete_response(request.id)
            request.deleted = True
        elif request is not None:
            self.delete_session(self.session_of(request))

    def delete_session(self, session_id):
        """What was answered in the session is deleted; what waits is answered in the next one."""
        inside = [each for each in self.kept() if self.session_of(each) == session_id]
        self.store.delete_session(session_id)
        for each in inside:
            each.deleted = each.answered

    def session_of(self, request):
        return self.store.get_response(request.id).session_id

    def prune(self):
        """Receipts are forgotten, and sessions without a route: what was answered in them goes."""
        self.now += 86400
        self.store.prune_sessions(older_than_days=0.5)
        self.store.forget_closed(0.5)
        for each in self.kept():
            each.deleted = each.answered and self.store.get_response(each.id) is None

    # What is always true

    @invariant()
    def every_response_is_as_it_was_left(self):
        if not hasattr(self, "store"):
            return
        rows = self.store.snapshot(lambda tx: tx.all(STORED))
        assert rows == [
            (each.id, each.state, each.inbox_id, each.id if each.answered else None, each.answered)
            for each in self.kept()
        ]


TestRetries = Retries.TestCase
TestRetries.settings = examples(
    150, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow]
)
