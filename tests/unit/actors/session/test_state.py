"""`SessionState`: whatever order news arrives in, the highest epoch and revision win."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from hermes.actors.session.state import SessionState
from hermes.errors import StoreError
from hermes.messages import Accepted, Head, Inbound, Receipt, Route


def session_of(epoch):
    return f"session {epoch}"


def head(epoch, revision):
    return Head(session_of(epoch), revision, revision)


def route(epoch):
    """A route whose settings and notice depend on the epoch."""
    notice, settings = f"notice {epoch}", f"settings {epoch}"
    return Route("k", session_of(epoch), epoch, "p", "dm", None, None, notice, None, 0.0, settings)


def accepted(epoch, revision, *, duplicate=False):
    receipt = Receipt(1, "k", session_of(epoch), epoch, 0.0)
    known = None if duplicate else route(epoch)
    return Accepted(receipt, head(epoch, revision), Inbound("k", "e", "hi"), duplicate, route=known)


class FakeContext:
    """A context whose store knows one route."""

    def __init__(self, found):
        self.found = found
        self.asked = 0
        self.store = self

    async def route_head(self, key):
        assert key == "k"
        self.asked += 1
        return self.found


NEWS = st.tuples(st.sampled_from(["accepted", "route", "duplicate"]), *[st.integers(1, 4)] * 2)


@given(st.lists(NEWS, min_size=1, max_size=8))
def test_the_highest_epoch_and_its_highest_revision_win_in_any_order(news):
    state = SessionState("k", FakeContext(None))
    for kind, epoch, revision in news:
        if kind == "route":
            state.learn(epoch, head(epoch, revision), route(epoch))
        else:
            message = accepted(epoch, revision, duplicate=kind == "duplicate")
            state.learn(message.receipt.epoch, message.head, message.route)
    newest = max(epoch for _, epoch, _ in news)
    assert state.epoch == newest
    assert state.head == head(newest, max(r for _, epoch, r in news if epoch == newest))
    assert state.session_id == session_of(newest)
    if any(epoch == newest and kind != "duplicate" for kind, epoch, _ in news):
        assert (state.settings, state.notice) == (f"settings {newest}", f"notice {newest}")


def test_a_head_of_another_session_is_ignored():
    state = SessionState("k", FakeContext(None))
    state.learn(2, head(2, 3), route(2))
    state.learn(state.epoch, head(1, 9))
    assert state.head == head(2, 3)
    state.learn(state.epoch, head(2, 4))
    assert state.head == head(2, 4)
    state.learn(state.epoch, head(2, 3))
    assert state.head == head(2, 4)


def test_our_own_commit_replaces_everything():
    state = SessionState("k", FakeContext(None))
    state.learn(5, head(5, 9), route(5))
    state.moved(6, head(6, 0))
    assert (state.epoch, state.head) == (6, head(6, 0))


async def test_the_store_is_asked_only_if_the_head_is_unknown():
    context = FakeContext((route(3), head(3, 1)))
    state = SessionState("k", context)
    assert state.session_id is None
    assert await state.locate() == head(3, 1)
    assert await state.locate() == head(3, 1)
    assert context.asked == 1
    context.found = route(4), head(4, 0)
    assert await state.locate(refresh=True) == head(4, 0)
    state.forget()
    context.found = route(1), head(1, 7)  # the store was replaced by an older copy
    assert await state.locate() == head(1, 7)


async def test_a_key_without_a_route_is_an_error():
    with pytest.raises(StoreError, match="there is no route for k"):
        await SessionState("k", FakeContext(None)).locate()
