"""What the live view knows of the nodes of a cluster."""

from __future__ import annotations

from hermes.adapters.http.api.live.cluster import MAX_KNOWN, ClusterWatch
from hermes.messages import Claim, ClusterView, NodeInfo, RoleClaim


def view(*claims, nodes=(1, 2)):
    return ClusterView(
        nodes=tuple(NodeInfo(node, f"n{node}", lease_until=9.0) for node in nodes),
        roles=(RoleClaim("sweep", 2, 1),),
        claims=tuple(Claim(key, node, 7) for key, node in claims),
        owned={1: sum(node == 1 for _, node in claims)},
    )


def test_a_conversation_that_another_node_serves_has_moved():
    watch = ClusterWatch()
    changed, gone = watch.look(view(("a", 1), ("b", 2)), 1, 10.0)
    assert [(each.session_key, each.node, each.before) for each in changed] == [
        ("a", 1, None), ("b", 2, None),
    ]  # fmt: skip
    assert gone == []
    assert watch.look(view(("a", 1), ("b", 2)), 1, 11.0) == ([], [])
    [moved], gone = watch.look(view(("a", 2), ("b", 2)), 1, 12.0)
    assert (moved.session_key, moved.node, moved.before, moved.moved_at) == ("a", 2, 1, 12.0)
    assert gone == []


def test_a_hand_over_is_noticed_also_if_nobody_served_the_conversation_meanwhile():
    watch = ClusterWatch()
    watch.look(view(("a", 1)), 1, 10.0)
    assert watch.look(view(), 1, 11.0) == ([], ["a"])
    [moved], _ = watch.look(view(("a", 2)), 1, 12.0)
    assert (moved.before, moved.moved_at) == (1, 12.0)
    watch.look(view(), 1, 13.0)
    [back], _ = watch.look(view(("a", 2)), 1, 14.0)
    assert (back.before, back.moved_at) == (None, None)


def test_nodes_have_their_roles_and_conversations():
    watch = ClusterWatch()
    watch.look(view(("a", 1), nodes=(2, 1)), 2, 10.0)
    assert [(n.node, n.here, n.owned, n.roles) for n in watch.nodes] == [
        (1, False, 1, []), (2, True, 0, ["sweep"]),
    ]  # fmt: skip


def test_a_bounded_number_of_conversations_is_remembered():
    watch = ClusterWatch()
    watch.look(view(("old", 1)), 1, 10.0)
    watch.look(view(*((f"k{n}", 1) for n in range(MAX_KNOWN))), 1, 11.0)
    [again], _ = watch.look(view(("old", 2)), 1, 12.0)
    assert again.before is None
