"""Nodes as processes: killed, stopped for longer than their lease, and drained."""

from __future__ import annotations

from tests.support.cluster_processes import processes

KEYS = [f"key {number}" for number in range(8)]
LEASE = 1.0


def test_conversations_of_a_killed_node_go_on_within_two_leases(postgres_url):
    with processes(postgres_url, LEASE) as cluster:
        first, second = cluster.start("first"), cluster.start("second")
        cluster.spread(KEYS, first, second)
        for key in KEYS:
            cluster.send(key)
        first.kill()
        assert cluster.all_answered() < 2 * LEASE
        assert {cluster.owner(key) for key in KEYS} == {second.node}
        cluster.check()


def test_a_node_that_is_stopped_for_longer_than_its_lease_commits_nothing_late(postgres_url):
    with processes(postgres_url, LEASE) as cluster:
        stopped = cluster.start("stopped", seconds=0.3)
        cluster.send("key")
        cluster.all_answered()
        other = cluster.start("other", seconds=0.01)
        text = cluster.send("key")
        stopped.wait_for(f"begun {text}")
        stopped.stop()
        assert cluster.all_answered() < 3 * LEASE
        assert cluster.history("key", "assistant")[-1] == f"other: {text}"
        stopped.go_on()
        stopped.wait_for("node")  # it was declared dead, and is another one now
        for _ in range(3):
            cluster.send("key")
        cluster.all_answered()
        cluster.check()
        assert cluster.owner("key") == other.node
        # It serves conversations again.
        other.drain()
        text = cluster.send("key")
        stopped.wait_for(f"ended {text}")
        cluster.all_answered()
        cluster.check()


def test_a_drain_does_not_wait_for_a_lease(postgres_url):
    lease = 8.0
    with processes(postgres_url, lease) as cluster:
        leaves, stays = cluster.start("leaves", seconds=0.3), cluster.start("stays")
        for key in KEYS:
            cluster.send(key)
        leaves.wait_for("begun")
        leaves.drain()
        for key in KEYS:
            cluster.send(key)
        assert cluster.all_answered() < lease
        assert {cluster.owner(key) for key in KEYS} == {stays.node}
        cluster.check()


def test_a_wrong_clock_of_a_node_does_no_harm(postgres_url):
    with processes(postgres_url, LEASE) as cluster:
        ahead = cluster.start("ahead", wrong_by=86400.0)
        behind = cluster.start("behind", wrong_by=-86400.0)
        cluster.spread(KEYS, ahead, behind)
        cluster.until(lambda: beats(cluster) > 2 * LEASE)
        assert cluster.sql("SELECT id FROM nodes WHERE dead = 1") == []
        behind.kill()
        for key in KEYS:
            cluster.send(key)
        assert cluster.all_answered() < 2 * LEASE
        cluster.check()


def beats(cluster):
    """Return for how many seconds the nodes have renewed their leases."""
    [(seconds,)] = cluster.sql(
        "SELECT max(lease_until) - (SELECT min(accepted_at) FROM inbox) FROM nodes"
    )
    return seconds
