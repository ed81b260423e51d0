"""Nodes as processes: killed, stopped for longer than their lease, and drained."""

from __future__ import annotations

import time

from tests.support.cluster_processes import processes

KEYS = [f"key {number}" for number in range(8)]
LEASE = 1.0


def test_conversations_of_a_killed_node_go_on_within_two_leases(postgres_url):
    with processes(postgres_url, LEASE) as cluster:
        first, second = cluster.start("first"), cluster.start("second")
        while {cluster.owner(key) for key in KEYS} != {first.node, second.node}:
            for key in KEYS:
                cluster.send(key)
            cluster.all_answered()
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
    with processes(postgres_url, lease=20.0) as cluster:
        leaves, stays = cluster.start("leaves", 0.3), cluster.start("stays")
        cluster.until(lambda: knows_both(cluster))
        for key in KEYS:
            cluster.send(key)
        leaves.wait_for("begun")
        began = time.monotonic()
        leaves.drain()
        for key in KEYS:
            cluster.send(key)
        cluster.all_answered()
        assert time.monotonic() - began < 10.0
        assert {cluster.owner(key) for key in KEYS} == {stays.node}
        cluster.check()


def knows_both(cluster):
    return len(cluster.sql("SELECT 1 FROM nodes WHERE dead = 0")) == 2
