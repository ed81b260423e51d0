"""What a node can do with a conversation, and with a role, that it has lost."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio

from hermes.errors import NotOwner
from hermes.messages import Claim
from hermes.store import open_store
from hermes.store.cluster import claims, nodes, roles
from tests.support.cluster_nodes import claim, inbound, until

KEY = "key"


@asynccontextmanager
async def two_stores(url):
    """Two nodes with long leases."""
    async with open_store(url) as one, open_store(url) as two:
        yield one, two


async def declare_dead(store, node):
    await store.transact(lambda tx: nodes.leave(tx, node))


async def take_over(one, two):
    """Let the second node take a conversation of the first one; returns both claims."""
    old = await claim(one.cluster, KEY)
    await declare_dead(two, one.cluster.node)
    return old, await claim(two.cluster, KEY)


RUNNERS = ["transact", "transact_unflushed", "transact_deferred", "transact_alone"]


@pytest.mark.parametrize("runner", RUNNERS)
async def test_no_write_under_an_earlier_claim_changes_anything(postgres_url, runner):
    async with two_stores(postgres_url) as (one, two):
        old, new = await take_over(one, two)
        assert (old.node, new.node) == (one.cluster.node, two.cluster.node)
        lost = []
        late, current = one.held(old, lambda: lost.append(1)), two.held(new, lambda: None)

        def rename(tx):
            tx.run("UPDATE routes SET notice = 'changed' WHERE session_key = ?", KEY)

        with pytest.raises(NotOwner, match="served by another node"):
            await getattr(late, runner)(rename)
        assert lost == [1]
        assert (await one.get_route(KEY)).notice is None
        await getattr(current, runner)(rename)
        assert (await one.get_route(KEY)).notice == "changed"


async def test_every_verb_of_an_actor_is_refused_under_an_earlier_claim(postgres_url):
    async with two_stores(postgres_url) as (one, two):
        await one.accept(inbound(KEY, 1))
        old, _ = await take_over(one, two)
        before = await one.get_route(KEY)
        late = one.held(old, lambda: None)
        for call in (
            lambda: late.new_session(KEY),
            lambda: late.start_inbox([1]),
            lambda: late.park_inbox([1], "note"),
            lambda: late.withdraw(KEY, 1),
        ):
            with pytest.raises(NotOwner):
                await call()
        assert await one.get_route(KEY) == before
        assert [row.attempts for row in await one.open_inbox(KEY)] == [0]
        assert await late.get_route(KEY) == before  # it may read


async def test_reading_needs_no_claim_but_an_actor_does(postgres_url):
    async with two_stores(postgres_url) as (one, _):
        with pytest.raises(NotOwner):
            one.held(None, lambda: None)


async def test_a_fence_never_comes_back_even_if_the_route_was_deleted(postgres_url):
    async with two_stores(postgres_url) as (one, _):
        old = await claim(one.cluster, KEY)
        await one.transact(lambda tx: tx.run("DELETE FROM routes WHERE session_key = ?", KEY))
        new = await claim(one.cluster, KEY)
        assert new.fence > old.fence


async def test_a_node_whose_lease_has_run_out_claims_nothing(postgres_url):
    async with two_stores(postgres_url) as (one, two):
        await one.accept(inbound(KEY, 1))
        await one.transact(lambda tx: claims.hand_over(tx, one.cluster.node, [KEY]))
        await two.transact(lambda tx: claims.hand_over(tx, two.cluster.node, [KEY]))
        end = "UPDATE nodes SET lease_until = 0 WHERE id = ? RETURNING 1"

        def claim(tx):
            tx.all(end, one.cluster.node)
            taken = claims.claim(tx, one.cluster.node, [KEY])
            return taken, roles.claim_role(tx, "role", one.cluster.node)

        assert await one.transact(claim) == ([], None)
        other = two.cluster.node
        [taken] = await two.transact(lambda tx: claims.claim(tx, other, [KEY]))
        assert taken == Claim(KEY, other, taken.fence)


async def test_a_conversation_of_a_living_node_is_not_taken(postgres_url):
    async with two_stores(postgres_url) as (one, two):
        mine = await claim(one.cluster, KEY)
        assert await claim(two.cluster, KEY) == mine
        assert await two.cluster.owner_of(KEY) == mine
        assert await two.transact(lambda tx: claims.claim(tx, two.cluster.node, [KEY])) == []


async def test_a_conversation_with_an_open_message_is_not_released(postgres_url):
    async with two_stores(postgres_url) as (one, two):
        mine = await claim(one.cluster, KEY)
        await two.accept(inbound(KEY, 1))
        await one.transact(lambda tx: claims.release_idle(tx, [mine]))
        assert await two.cluster.owner_of(KEY) == mine
        await one.park_inbox([1], "done")
        await one.transact(lambda tx: claims.release_idle(tx, [mine]))
        assert await two.cluster.owner_of(KEY) is None


async def test_one_node_has_a_role_until_it_gives_it_up_or_is_dead(postgres_url):
    async with two_stores(postgres_url) as (one, two):
        seen = []

        async def work(store, name):
            async def function():
                seen.append(name)
                await trio.sleep_forever()

            await store.cluster.run_as("role", function)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, one, "one")
            await until(lambda: one.cluster.holds("role"))
            nursery.start_soon(work, two, "two")
            held = [each for each in await two.snapshot(roles.holders) if each.name == "role"]
            assert [claim.node for claim in held] == [one.cluster.node]
            other = two.cluster.node
            assert await two.transact(lambda tx: roles.claim_role(tx, "role", other)) is None
            assert not two.cluster.holds("role")
            await declare_dead(two, one.cluster.node)
            await until(lambda: two.cluster.holds("role"))
            new = two.cluster.claim_of("role")
            assert new.fence > held[0].fence
            with pytest.raises(NotOwner):
                await one.transact(lambda tx: roles.require_role(tx, held[0]))
            await two.transact(lambda tx: roles.require_role(tx, new))
            nursery.cancel_scope.cancel()
        assert seen[:2] == ["one", "two"]
