"""Retries of API clients: which response they attach to, and how connections have ended."""

from __future__ import annotations

from collections.abc import Mapping

from hermes.actors.context import RuntimeContext
from hermes.actors.supervisor import Supervisor
from hermes.messages import StoredResponse, node_of


class ApiRetries:
    """Attaches retries to responses whose connection was lost."""

    def __init__(self, context: RuntimeContext, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor

    async def attach(
        self, credential: str, path: str, digest: str, process: str
    ) -> StoredResponse | None:
        """Attach a retry to the response of an equal request whose connection was lost.

        Returns None if there is none: the request is a new one then.
        """
        store = self._supervisor.store
        request = (credential, path, digest, process)
        if self._context.peers is None:
            return await store.attach_response(*request)
        return await store.attach_response(*request, (await store.cluster.leases()).keys())

    async def open_elsewhere(
        self, credential: str, path: str, digest: str, process: str
    ) -> Mapping[str, float]:
        """Return the processes of other nodes on which equal requests may be open.

        Each comes with the end of its lease, which grows with each sign of life.
        """
        store = self._supervisor.store
        if self._context.peers is None:
            return {}
        found = await store.open_processes(credential, path, digest)
        leases = await store.cluster.leases()
        nodes = {each: node_of(each) for each in found if each != process}
        return {each: leases[node] for each, node in nodes.items() if node in leases}

    async def begin_answer(self, response_id: str, process: str) -> bool:
        """Record that a response is about to be written while equal requests are open.

        If the process dies, their retries attach to the other responses first.
        """
        return await self._supervisor.store.begin_answer(response_id, process)

    async def end_connection(self, response_id: str, process: str, *, complete: bool) -> bool:
        """Record that a connection has ended; `complete` if the response was written in full.

        Returns False if another connection waits for the response now.
        """
        store = self._supervisor.store
        return await store.end_connection(response_id, process, complete=complete)
