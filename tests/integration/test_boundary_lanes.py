"""Boundaries are delivered to the hooks: in order, isolated, with a deadline, and after a crash."""

from __future__ import annotations

import logging
import threading

import pytest
import trio

from hermes.messages import ExpiryPolicy, Inbound, Message, TurnCommit
from hermes.store import Clock, SessionStore, open_store
from hermes.store.hooks import MAX_RUNNING
from hermes.testing import inline
from tests.support.stores import World

IDLE = ExpiryPolicy(mode="idle", idle_minutes=1)


class Recorder:
    """Hooks that record their calls."""

    def __init__(self):
        self.heard = []

    @property
    def hooks(self):
        return {
            "on_session_finalize": [self.finalize],
            "on_session_reset": [self.reset],
            "on_session_switch": [self.switch],
        }

    async def finalize(self, session_id, platform):
        self.heard.append(("finalize", session_id, platform))

    async def reset(self, session_id, platform):
        self.heard.append(("reset", session_id, platform))

    async def switch(self, session_id, platform, old_session_id, new_session_id):
        self.heard.append(("switch", old_session_id, new_session_id))


async def say(store, key="k", event="e", policy=None):
    options = {} if policy is None else {"policy": policy}
    accepted = await store.accept(Inbound(key, event, "hi"), **options)
    receipt = accepted.receipt
    await store.commit_turn(
        TurnCommit(
            session_key=key,
            session_id=receipt.session_id,
            epoch=receipt.epoch,
            revision=accepted.head.revision,
            inbox_ids=[receipt.inbox_id],
            rows=[Message("user", "hi")],
        )
    )
    return receipt.session_id


def virtual():
    """A clock that follows Trio's, so that a virtual hour is an hour for the store too."""
    world = World()
    now = trio.current_time
    return Clock(wall=lambda: 1e9 + now(), steady=now, hex8=world.hex8)


async def test_the_old_session_is_finalized_before_the_new_one_is_reset(path):
    recorder = Recorder()
    async with open_store(path, hooks=recorder.hooks) as store:
        old = await say(store)
        new = (await store.new_session("k", platform="telegram")).session_id
        await store.wait_hooks()
        assert recorder.heard == [("finalize", old, "telegram"), ("reset", new, "telegram")]
        assert await store.pending_boundaries() == []


async def test_a_switch_has_both_ids(path):
    recorder = Recorder()
    async with open_store(path, hooks=recorder.hooks) as store:
        old = await say(store)
        await store.create_session("other", "x")
        await store.switch("k", "other", any_key=True)
        await store.wait_hooks()
        assert recorder.heard == [("switch", old, "other")]


async def test_a_hook_gets_the_arguments_it_names_or_all_of_them(path):
    heard = {}

    async def two(session_id, platform):
        heard["two"] = (session_id, platform)

    async def some(session_id, platform, reason, boundary_id, transcript):
        loaded = await transcript()
        heard["some"] = (reason, boundary_id, [m.content for m in loaded.messages])

    async def greedy(**everything):
        heard["greedy"] = set(everything)

    async with open_store(path, hooks={"on_session_finalize": [two, some, greedy]}) as store:
        old = await say(store)
        await store.new_session("k")
        await store.wait_hooks()
    assert heard["two"] == (old, "embedded")
    assert heard["some"] == ("session_reset", 1, ["hi"])
    assert heard["greedy"] >= {"session_id", "platform", "reason", "boundary_id", "transcript"}


@pytest.mark.parametrize("how", ["raises", "hangs", "returns garbage", "wrong arguments"])
async def test_a_failing_hook_does_not_affect_the_others(path, autojump_clock, caplog, how):
    recorder = Recorder()

    async def bad(session_id, platform):
        if how == "raises":
            raise RuntimeError("boom")
        if how == "hangs":
            await trio.sleep_forever()
        return object()

    async def wrong(nothing_we_have):
        raise AssertionError

    hooks = recorder.hooks
    hooks["on_session_finalize"] = [wrong if how == "wrong arguments" else bad, recorder.finalize]
    caplog.set_level(logging.WARNING)
    async with open_store(
        path, hooks=hooks, clock=virtual(), open_worker=inline(), hook_timeout=5
    ) as store:
        await say(store)
        with trio.fail_after(1):  # nobody waits for the hook
            await store.new_session("k")
            await say(store, event="e2")
        await store.wait_hooks()
        assert [kind for kind, *_ in recorder.heard] == ["finalize", "reset"]
        assert await store.pending_boundaries() == []
        [(error,)] = await store.snapshot(
            lambda tx: tx.all("SELECT error FROM boundaries WHERE event = 'on_session_finalize'")
        )
    assert (error is None) == (how == "returns garbage")
    assert (len(caplog.records) == 0) == (how == "returns garbage")


async def test_a_hanging_hook_delays_its_own_lane_only(path, autojump_clock):
    recorder = Recorder()
    stuck = trio.Event()

    async def finalize(session_id, platform, session_key):
        if session_key == "slow":
            await stuck.wait()
        recorder.heard.append(session_key)

    hooks = {"on_session_finalize": [finalize]}
    async with open_store(path, hooks=hooks, clock=virtual(), open_worker=inline()) as store:
        for key in ("slow", "k1", "k2"):
            await say(store, key, key)
            await store.new_session(key)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert sorted(recorder.heard) == ["k1", "k2"]
        stuck.set()
        await store.wait_hooks()
        assert recorder.heard[-1] == "slow"


async def test_a_hook_may_use_the_store(path):
    titles, stores = [], []

    async def title(session_id, **_):
        [store] = stores
        await store.set_session_title(session_id, "Finished")
        await store.new_session("another key")
        titles.append((await store.get_session(session_id)).title)

    async with open_store(path, hooks={"on_session_finalize": [title]}) as store:
        stores.append(store)
        await say(store)
        await store.new_session("k")
        await store.wait_hooks()
    assert titles == ["Finished"]


async def test_a_plain_hook_runs_in_a_thread_and_may_block(path):
    main = threading.get_ident()
    seen = []

    def finalize(session_id, platform):
        seen.append((session_id, threading.get_ident() != main))

    async with open_store(path, hooks={"on_session_finalize": [finalize]}) as store:
        old = await say(store)
        await store.new_session("k")
        await store.wait_hooks()
    assert seen == [(old, True)]


async def test_boundaries_left_open_by_a_crash_are_delivered_at_the_next_start(path):
    with SessionStore(path) as store:  # no hooks run for this store
        store.new_session("k")
        old = store.get_route("k").session_id
        new = store.new_session("k").session_id
    recorder = Recorder()
    async with open_store(path, hooks=recorder.hooks) as store:
        await store.wait_hooks()
        assert recorder.heard == [
            ("reset", old, "embedded"),
            ("finalize", old, "embedded"),
            ("reset", new, "embedded"),
        ]
    async with open_store(path, hooks=recorder.hooks) as store:
        await store.wait_hooks()
    assert len(recorder.heard) == 3


async def test_a_boundary_whose_hook_was_interrupted_is_delivered_again(path):
    begun = trio.Event()

    async def hang(session_id, platform):
        begun.set()
        await trio.sleep_forever()

    async with open_store(path, hooks={"on_session_reset": [hang]}) as store:
        await store.new_session("k")
        await begun.wait()
    recorder = Recorder()
    async with open_store(path, hooks=recorder.hooks) as store:
        await store.wait_hooks()
    assert [kind for kind, *_ in recorder.heard] == ["reset"]


async def test_the_sweep_expires_an_idle_session_once_and_calls_the_hooks(path, autojump_clock):
    recorder = Recorder()
    options = {"hooks": recorder.hooks, "open_worker": inline(), "sweep_interval": 10}
    async with open_store(path, clock=virtual(), **options) as store:
        old = await say(store, policy=IDLE)
        await trio.sleep(59)
        assert recorder.heard == []
        await trio.sleep(60)
        await store.wait_hooks()
        assert recorder.heard[0][:2] == ("finalize", old)
        assert (await store.get_session(old)).end_reason == "session_expired"
        await trio.sleep(600)
    async with open_store(path, clock=virtual(), **options) as store:
        await trio.sleep(600)
        await store.wait_hooks()
    assert [kind for kind, *_ in recorder.heard] == ["finalize", "reset"]


async def test_many_boundaries_of_one_key_keep_their_order(path, autojump_clock):
    order = []

    async def note(boundary_id, **_):
        await trio.sleep(0.001)
        order.append(boundary_id)

    hooks = {"on_session_finalize": [note], "on_session_reset": [note]}
    async with open_store(path, hooks=hooks, clock=virtual(), open_worker=inline()) as store:
        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(store.new_session, "k")
        await store.wait_hooks()
    assert order == sorted(order)
    assert len(order) == 79


@pytest.mark.parametrize(
    ("hooks", "sentence"),
    [
        ({"on_session_finalise": [print]}, "unknown event"),
        ({"on_session_finalize": print}, "must be a list of callables"),
        ({"on_session_finalize": ["print"]}, "must be a list of callables"),
    ],
)
async def test_hooks_that_cannot_be_called_are_refused(path, hooks, sentence):
    with pytest.raises(ValueError, match=sentence):
        async with open_store(path, hooks=hooks):
            raise AssertionError


@pytest.mark.parametrize("plain", [False, True])
async def test_a_hook_that_raises_system_exit_does_not_end_the_program(path, plain):
    async def leave(session_id, platform):
        raise SystemExit(3)

    def leave_plainly(session_id, platform):
        raise SystemExit(3)

    hooks = {"on_session_reset": [leave_plainly if plain else leave]}
    async with open_store(path, hooks=hooks) as store:
        await store.new_session("k")
        await store.wait_hooks()
        assert await store.pending_boundaries() == []


async def test_hooks_that_never_end_lose_no_boundary(path, caplog):
    """All threads are blocked: undelivered boundaries stay open until the next start."""
    release = threading.Event()

    def hang(session_id, platform):
        assert release.wait(60)

    async with open_store(path, hooks={"on_session_reset": [hang]}, hook_timeout=0.05) as store:
        for n in range(MAX_RUNNING + 3):
            await store.new_session(f"k{n}")
        await store.wait_hooks()
        assert len(await store.pending_boundaries()) == 3
        assert "was not delivered" in caplog.text
    release.set()
    recorder = Recorder()
    async with open_store(path, hooks=recorder.hooks) as store:
        await store.wait_hooks()
    assert len(recorder.heard) == 3
