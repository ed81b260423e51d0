"""The files of API clients."""

from __future__ import annotations

from hermes.actors.context import RuntimeContext
from hermes.actors.intake import Intake
from hermes.actors.session.files import principal_of
from hermes.actors.supervisor import Supervisor
from hermes.config import AttachmentLimits
from hermes.messages import ConversationSettings, FileRecord, Source, StoredFile
from hermes.protocols import AgentChoice
from hermes.sanitize import scrub


class ApiFiles:
    """What an agent takes, and files that clients upload before a message names them."""

    def __init__(self, context: RuntimeContext, supervisor: Supervisor, intake: Intake) -> None:
        self._context = context
        self._supervisor = supervisor
        self._intake = intake

    def current_agent(self, settings: ConversationSettings, source: Source) -> AgentChoice | None:
        """Return the agent that answers a sender in a conversation with these settings.

        None if the host has no catalog of its agents.
        """
        self._supervisor.require_running()
        catalog = self._context.catalog
        return None if catalog is None else catalog.current(settings, source)

    def attachment_limits(self) -> AttachmentLimits:
        """Return what may be attached to messages."""
        self._supervisor.require_running()
        return self._context.config.attachments

    async def find_file(self, file_id: str) -> FileRecord | None:
        """Return a file with the keys that can read it; None if there is none with this id."""
        return await self._supervisor.store.find_file(scrub(file_id))

    async def list_files(
        self,
        session_key: str,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 100,
        oldest_first: bool = False,
    ) -> list[FileRecord]:
        """Return the files that `keep_file` keeps for this key, newest first.

        `after` is the id of the last file of the page before.
        """
        return await self._supervisor.store.list_files(
            session_key, purpose=purpose, after=after, limit=limit, oldest_first=oldest_first
        )

    async def keep_file(self, file_id: str, *, session_key: str, purpose: str) -> bool:
        """Keep a file of `Conversation.put_file` until it is deleted, although no message names it.

        Returns whether it was uploaded for this key.
        """
        store = self._supervisor.store
        return await store.keep_file(file_id, session_key=session_key, purpose=scrub(purpose))

    async def copy_file(
        self, file_id: str, *, session_key: str, to: str, source: Source | None = None
    ) -> StoredFile:
        """Return a file of the key `to` with the content of a file that `session_key` can read.

        It counts for the user of the source. Raises `UnknownFile`, `AttachmentRefused`, and
        `NotAdmitted` if the access policy refuses the source.
        """
        self._intake.require_running()
        await self._intake.require_access(source)
        return await self._supervisor.store.copy_file(
            scrub(file_id), session_key=session_key, to=to, principal=principal_of(source)
        )

    async def delete_file(self, file_id: str, *, session_key: str) -> bool:
        """Delete a file that was uploaded for this key, unless a message names it.

        Returns whether it was deleted.
        """
        return await self._supervisor.store.discard_file(scrub(file_id), session_key=session_key)
