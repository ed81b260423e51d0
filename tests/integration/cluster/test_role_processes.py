"""The holder of a role as a process: killed in the middle of a send, and drained."""

from __future__ import annotations

from hermes import Source
from tests.support.cluster_processes import processes

LEASE = 1.0


def to(chat):
    return Source("wire", chat_id=chat, user_id="u")


def test_only_what_a_killed_holder_had_in_flight_is_sent_again_as_recovered(postgres_url):
    with processes(postgres_url, LEASE) as cluster:
        first = cluster.start("first", "wire")
        first.wait_for("receiving")
        second = cluster.start("second", "wire")
        cluster.send("calm", source=to("calm"))
        first.wait_for("sending 1 new")
        cluster.send("stuck", source=to("stuck"), text="hang")
        first.wait_for("sending 2 new")
        cluster.until(lambda: cluster.sql("SELECT 1 FROM outbox WHERE id = 1 AND state = 'sent'"))
        cluster.send("stuck", source=to("stuck"))
        cluster.all_answered()
        cluster.send("calm", source=to("calm"))
        first.wait_for("sending 4 new")
        cluster.until(lambda: cluster.sql("SELECT 1 FROM outbox WHERE id = 4 AND state = 'sent'"))
        first.kill()
        second.wait_for("receiving", 2 * LEASE)
        again = second.wait_for("sending")
        assert again.startswith("sending 2 recovered")
        assert cluster.sql("SELECT id, state, recovered FROM outbox ORDER BY id") == [
            (1, "sent", 0),
            (2, "sending", 1),
            (3, "pending", 0),
            (4, "sent", 0),
        ]
        cluster.send("calm", source=to("calm"))
        second.wait_for("sending 5 new")
        assert not [line for line in second.lines if line.startswith("sending 3")]


def test_a_drain_moves_the_receiver_without_waiting_for_a_lease(postgres_url):
    with processes(postgres_url, lease=20.0) as cluster:
        leaves = cluster.start("leaves", "wire")
        leaves.wait_for("receiving")
        stays = cluster.start("stays", "wire")
        cluster.send("key", source=to("chat"))
        leaves.wait_for("sending 1 new")
        leaves.drain()
        stays.wait_for("receiving", 10)  # half a lease
        cluster.send("key", source=to("chat"))
        stays.wait_for("sending 2 new")
        assert [line for line in leaves.lines if line == "receiving"] == ["receiving"]
