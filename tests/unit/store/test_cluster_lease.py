"""The lease of a node, as the node itself sees it."""

from __future__ import annotations

from hypothesis import given, strategies as st

from hermes.store.cluster.lease import Lease, boot_time


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self):
        return self.now


def test_a_node_trusts_its_lease_from_when_it_sent_the_heartbeat():
    clock = Clock()
    lease = Lease(6.0, clock)
    assert not lease.valid
    heartbeat = lease.begin()
    clock.now += 2.0  # the database was slow; it counts from now on
    lease.renew(heartbeat)
    assert lease.remaining == 4.0
    clock.now += 4.0
    assert not lease.valid


def test_an_answer_that_comes_late_does_not_shorten_the_lease():
    clock = Clock()
    lease = Lease(6.0, clock)
    first = lease.begin()
    clock.now += 1.0
    lease.renew(lease.begin())
    lease.renew(first)
    assert lease.remaining == 6.0


def test_only_a_node_whose_lease_runs_may_declare_others_dead():
    clock = Clock()
    lease = Lease(6.0, clock)
    assert not lease.begin().alive
    lease.renew(lease.begin())
    assert lease.begin().alive
    clock.now += 6.0
    assert not lease.begin().alive
    lease.renew(lease.begin())
    lease.end()
    assert not lease.valid


@given(steps=st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 5.0)), max_size=10))
def test_a_node_never_trusts_its_lease_longer_than_the_database_does(steps):
    clock = Clock()
    lease, until = Lease(6.0, clock), 0.0
    for sending, answering in steps:
        heartbeat = lease.begin()
        clock.now += sending
        until = clock.now + 6.0  # the database prolongs it
        clock.now += answering
        lease.renew(heartbeat)
        assert clock.now + lease.remaining <= until


def test_the_clock_goes_on():
    assert boot_time() <= boot_time()
