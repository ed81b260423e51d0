"""What differs between two lists of nodes, for blocks that grow at their end."""

from __future__ import annotations

import msgspec

from hermes.adapters.http.markdown.nodes import Element, Node


class Patch(msgspec.Struct, array_like=True, frozen=True):
    """Changes a list of nodes: keeps its first nodes, changes the next one, replaces the others.

    `change` is a text to append if that node is a text, a patch of its children if it is an
    element, and null if it is replaced, too.
    """

    keep: int
    change: Patch | str | None
    rest: list[str | Element]


def difference(old: list[Node], new: list[Node]) -> Patch:
    """Return the patch that makes `new` of `old`."""
    keep = 0
    for before, after in zip(old, new, strict=False):
        if before != after:
            break
        keep += 1
    change = _change(old[keep], new[keep]) if keep < min(len(old), len(new)) else None
    return Patch(keep, change, new[keep + (change is not None) :])


def _change(before: Node, after: Node) -> Patch | str | None:
    if isinstance(before, str) or isinstance(after, str):
        if isinstance(before, str) and isinstance(after, str) and after.startswith(before):
            return after[len(before) :]
        return None
    if (before.tag, before.attributes) != (after.tag, after.attributes):
        return None
    return difference(before.children, after.children)
