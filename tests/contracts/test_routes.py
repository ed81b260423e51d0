"""Routes and the boundaries that moving them writes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hermes.store
from hermes.messages import Inbound, Message, TurnCommit
from hermes.store import Rotation


async def say(store, key="k", event=None):
    """One whole turn on the key; returns the session."""
    accepted = await store.accept(Inbound(key, event or f"{key}-event", "hi"))
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


async def told(store):
    """Every boundary there ever was, delivered or not."""
    return await store.snapshot(
        lambda tx: [
            (event.removeprefix("on_session_"), session_id, reason)
            for event, session_id, reason in tx.all(
                "SELECT event, session_id, reason FROM boundaries ORDER BY id"
            )
        ]
    )


async def test_a_new_session_finalizes_the_old_one_before_it_begins(store):
    old = await say(store)
    before = await store.get_route("k")
    route = await store.new_session("k", title=" Fresh  start ")
    assert route.session_id != old
    assert route.epoch == before.epoch + 1
    assert route.pending_title == "Fresh start"
    assert await told(store) == [
        ("finalize", old, "session_reset"),
        ("reset", route.session_id, "session_reset"),
    ]
    assert (await store.get_session(old)).end_reason == "session_reset"
    assert await store.get_session(route.session_id) is None
    both = await store.snapshot(
        lambda tx: tx.all("SELECT DISTINCT old_session_id, new_session_id FROM boundaries")
    )
    assert both == [(old, route.session_id)]


async def test_a_key_that_never_spoke_only_begins(store):
    route = await store.new_session("k", platform="cli")
    assert await told(store) == [("reset", route.session_id, "session_reset")]
    assert route.platform == "cli"


async def test_closing_finalizes_and_ends_the_session_of_now(store):
    old = await say(store)
    await store.rotate(
        Rotation(
            session_id=old,
            messages=[],
            rotation_id="r",
            rewrites=0,
            upto=0,
            session_key="k",
            epoch=1,
            child_session_id="child",
        )
    )
    assert await store.close_session("k", reason="tui_close") == "child"
    assert (await store.get_session("child")).end_reason == "tui_close"
    assert (await store.get_session(old)).end_reason == "compression"
    assert await told(store) == [("finalize", "child", "tui_close")]
    assert (await store.get_route("k")).session_id not in {old, "child"}
    assert await store.close_session("nobody") is None


async def test_closing_a_session_that_has_no_row_finalizes_it_all_the_same(store):
    named = (await store.accept(Inbound("k", "e", "hi"))).receipt.session_id
    assert await store.close_session("k") == named
    assert await told(store) == [("finalize", named, "closed")]


async def test_a_shutdown_finalizes_and_ends_nothing(store):
    session_id = await say(store)
    before = await store.get_route("k")
    assert await store.finalize("k") == session_id
    assert await store.finalize("nobody") is None
    assert await told(store) == [("finalize", session_id, "shutdown")]
    assert (await store.get_session(session_id)).ended_at is None
    assert await store.get_route("k") == before


async def test_a_switch_neither_ends_nor_finalizes_what_it_leaves(store):
    first = await say(store)
    await store.create_session("other", "tui")
    await store.end_session("other", "user_exit")
    route = await store.switch("k", "other")
    assert (route.session_id, route.epoch) == ("other", 2)
    assert (await store.get_session(first)).ended_at is None
    assert (await store.get_session("other")).ended_at is None
    assert await told(store) == [("switch", "other", "session_switch")]
    assert await store.switch("k", "other") == route
    assert len(await told(store)) == 1


async def test_a_switch_to_the_session_that_ended_here_opens_it_again(store):
    session_id = await say(store)
    await store.end_session(session_id, "user_exit")
    assert (await store.switch("k", session_id)).session_id == session_id
    assert (await store.accept(Inbound("k", "next", "hi"))).receipt.session_id == session_id


async def test_an_exact_title_comes_before_the_beginning_of_an_id(store):
    for session_id in ("abc-1", "other"):
        await store.create_session(session_id, "x")
    await store.set_session_title("other", "abc")
    assert (await store.switch("k", "abc")).session_id == "other"
    assert (await store.switch("k", "abc-")).session_id == "abc-1"


async def test_a_waiting_title_is_given_to_the_session_after_its_first_turn(store):
    await store.set_pending_title("k", "Mine")
    assert await store.apply_pending_title("k") is None  # no row yet: it goes on waiting
    assert (await store.get_route("k")).pending_title == "Mine"
    session_id = await say(store)
    assert await store.apply_pending_title("k") == "Mine"
    assert (await store.get_session(session_id)).title == "Mine"
    assert (await store.get_route("k")).pending_title is None
    assert await store.apply_pending_title("k") is None
    assert await store.apply_pending_title("nobody") is None


async def test_a_refused_title_is_dropped(store):
    await store.create_session("holder", "tui")
    await store.set_session_title("holder", "Mine")
    await store.set_pending_title("k", "Mine")
    session_id = await say(store)
    assert await store.apply_pending_title("k") is None
    assert (await store.get_route("k")).pending_title is None
    assert (await store.get_session(session_id)).title is None


async def test_a_waiting_title_goes_to_the_tip_after_a_rotation(store):
    await store.set_pending_title("k", "Mine")
    session_id = await say(store)
    await store.rotate(
        Rotation(
            session_id=session_id,
            messages=[],
            rotation_id="r",
            rewrites=0,
            upto=0,
            child_session_id="child",
        )
    )
    assert await store.apply_pending_title("k") == "Mine"
    assert (await store.get_session("child")).title == "Mine"


async def test_a_waiting_title_must_be_a_title(store):
    with pytest.raises(ValueError, match="too long"):
        await store.set_pending_title("k", "x" * 101)
    with pytest.raises(ValueError, match="too long"):
        await store.new_session("k", title="x" * 101)
    assert await store.get_route("k") is None


async def test_a_route_and_its_head_come_from_one_moment(store):
    assert await store.route_head("k") is None
    session_id = await say(store)
    route, head = await store.route_head("k")
    assert (route.session_id, head.session_id, head.message_count) == (session_id, session_id, 1)


def test_a_heard_boundary_is_closed_once(blocking):
    blocking.new_session("k")
    [boundary] = blocking.pending_boundaries()
    assert blocking.close_boundary(boundary.boundary_id, "boom") is True
    assert blocking.close_boundary(boundary.boundary_id) is False
    assert blocking.pending_boundaries() == []


def test_one_function_alone_writes_a_routes_session_id():
    """Every SQL text in the store that writes `routes.session_id` stands in `routes.point`."""
    writers = []
    for file in Path(hermes.store.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    text = " ".join(node.value.split())
                    if "INSERT INTO routes" in text or (
                        "UPDATE routes" in text and "session_id =" in text
                    ):
                        writers.append(f"{file.stem}.{function.name}")
    assert writers == ["routes.point"]


async def test_a_conversation_is_found_at_its_tip_by_every_name_it_has(store):
    parent = await say(store)
    await store.set_session_title(parent, "Plans")
    head = await store.head(parent)
    rotation = Rotation(
        session_id=parent,
        messages=[Message("user", "summed up")],
        rotation_id="r",
        rewrites=head.rewrites,
        upto=0,
        session_key="k",
        epoch=(await store.get_route("k")).epoch,
    )
    tip = (await store.rotate(rotation)).session_id
    for name in (parent, tip, "Plans"):
        found = await store.find(name)
        assert (found.session_id, found.session.id) == (tip, tip)
        assert (found.lineage, found.session_keys) == ((parent, tip), ("k",))
    assert await store.find("nothing") is None


async def test_a_conversation_without_a_row_is_found_by_its_whole_id(store):
    receipt = (await store.accept(Inbound("k", "e", "hi"))).receipt
    found = await store.find(receipt.session_id)
    assert (found.session, found.lineage) == (None, (receipt.session_id,))
    assert found.session_keys == ("k",)
    assert await store.find(receipt.session_id[:-1]) is None


async def test_a_branch_belongs_to_the_key_that_is_led_there(store):
    session_id = await say(store)
    child = await store.branch(session_id, session_key="other")
    assert (await store.get_session(child)).session_key == "other"
    assert (await store.find(child)).session_keys == ("other",)
    unled = await store.branch(session_id)
    assert (await store.get_session(unled)).session_key == "k"
