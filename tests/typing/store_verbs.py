"""Checked by mypy, not run: what a type checker knows about the verbs of both stores.

`type: ignore` marks errors that mypy must find: it reports an ignore that is not needed.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import assert_type

from hermes.messages import (
    Accepted,
    Appended,
    Approval,
    Committed,
    Discarded,
    Head,
    Imported,
    Inbound,
    Pruned,
    SearchHit,
    Session,
    SessionSummary,
    TurnCommit,
)
from hermes.protocols import Store as StoreProtocol
from hermes.store import SessionStore, Store
from hermes.store.transaction import Transaction


def count(tx: Transaction) -> int:
    return len(tx.all("SELECT 1"))


def synchronous(store: SessionStore, inbound: Inbound, turn: TurnCommit) -> None:
    assert_type(store.create_session("a", "x", model="m"), str)
    assert_type(store.append_message("a", "user", "hi", token_count=3), Appended)
    assert_type(store.get_session("a"), Session | None)
    assert_type(store.head("a"), Head)
    assert_type(store.list_sessions(limit=3), list[SessionSummary])
    assert_type(store.search_messages("plum"), list[SearchHit])
    assert_type(store.prune_sessions(30, dry_run=True), Pruned)
    assert_type(store.import_sessions(["{}"]), Imported)
    assert_type(store.accept(inbound, max_queued=3), Accepted)
    assert_type(store.commit_turn(turn), Committed | Discarded)
    assert_type(store.decide_approval("k", 1, approve=True), Approval | None)
    assert_type(store.transact(count), int)
    assert_type(store.snapshot(count), int)

    store.append_message("a")  # type: ignore[call-arg]
    store.append_message("a", "user", tokens=3)  # type: ignore[call-arg]
    store.head(7)  # type: ignore[arg-type]
    store.decide_approval("k", 1)  # type: ignore[call-arg]
    store.no_such_verb()  # type: ignore[attr-defined]


async def asynchronous(store: Store, inbound: Inbound, turn: TurnCommit) -> None:
    head = assert_type(store.head("a"), Coroutine[object, object, Head])
    assert_type(await head, Head)
    assert_type(await store.create_session("a", "x", model="m"), str)
    assert_type(await store.append_message("a", "user", "hi", token_count=3), Appended)
    assert_type(await store.get_session("a"), Session | None)
    assert_type(await store.list_sessions(limit=3), list[SessionSummary])
    assert_type(await store.search_messages("plum"), list[SearchHit])
    assert_type(await store.prune_sessions(30, dry_run=True), Pruned)
    assert_type(await store.import_sessions(["{}"]), Imported)
    assert_type(await store.accept(inbound, max_queued=3), Accepted)
    assert_type(await store.commit_turn(turn), Committed | Discarded)
    assert_type(await store.decide_approval("k", 1, approve=True), Approval | None)
    assert_type(await store.transact(count), int)
    assert_type(await store.browse(count), int)
    numbers: list[int] = []
    with store.subscribe(on_accepted=lambda accepted: numbers.append(accepted.receipt.inbox_id)):
        pass

    await store.append_message("a")  # type: ignore[call-arg]
    await store.append_message("a", "user", tokens=3)  # type: ignore[call-arg]
    await store.head(7)  # type: ignore[arg-type]
    store.head("a")  # type: ignore[unused-coroutine]
    await store.no_such_verb()  # type: ignore[attr-defined]


def protocols(sync_store: SessionStore, async_store: Store) -> None:
    fits: StoreProtocol = async_store
    does_not: StoreProtocol = sync_store  # type: ignore[assignment]
    assert fits is not does_not
