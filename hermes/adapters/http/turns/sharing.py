"""What clients have seen of a response on several nodes: one record, which each of them extends.

A record has the items by index, and the last block of numbers that is used. Nodes that stream the
same run of a turn build the same items, so it does not matter who records one first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from hermes.actors.admin import ApiRecords
from hermes.messages import JsonObject, StoredResponse


class ItemRecords(Protocol):
    """Records what clients have seen."""

    def record_items(self, response_id: str, items: Sequence[JsonObject], /) -> Awaitable[Any]:
        """Record the items of a response."""
        ...


class SharedRecords:
    """Records what the clients of this node have seen, and keeps what other nodes have recorded."""

    def __init__(self, api: ApiRecords) -> None:
        self._api = api

    async def record_items(self, response_id: str, items: Sequence[JsonObject]) -> None:
        """Record the items of a response."""
        while (stored := await self._api.get_response(response_id)) is not None:
            both = merged(stored.items, items)
            if await self._api.record_items(response_id, both, before=stored.items):
                return

    async def take_block(self, response: StoredResponse) -> StoredResponse | None:
        """Take a block of numbers that no other node uses: the last one of the record returned.

        The first block belongs to the connection that has created the response. Returns None if the
        response was deleted.
        """
        found: StoredResponse | None = response
        while found is not None:
            block = max((each["block"] for each in found.items if "block" in each), default=0)
            new = merged(found.items, [{"block": block + 1}])
            if await self._api.record_items(found.id, new, before=found.items):
                return replace(found, items=tuple(new))
            found = await self._api.get_response(response.id)
        return None


def merged(old: Sequence[JsonObject], new: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the items of two records; those of the later run count, and of the same run the new.

    What was recorded in an earlier run of the turn is lost. It stays, as far as the later run has
    no other item there.
    """
    first, second = sorted((old, new), key=_run)
    items = {each["index"]: each for each in (*first, *second) if "index" in each}
    block = max(each["block"] for each in (*old, *new) if "block" in each)
    run = _run(second)
    head = {"block": block, "run": run} if run else {"block": block}
    return [head, *(items[index] for index in sorted(items))]


def _run(record: Sequence[JsonObject]) -> float:
    """Return the run of a turn in which a record was written last; 0 if that is not known."""
    return max((each["run"] for each in record if "run" in each), default=0.0)
