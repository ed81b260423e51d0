"""The verbs of one conversation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from msgspec import UNSET, UnsetType

from hermes.actors.admission.options import MessageOptions, make_inbound, takes_options
from hermes.actors.cluster.verbs import (
    Branch,
    Close,
    Compress,
    Configure,
    New,
    ReadStatus,
    SetAgent,
    SetTitle,
    Switch,
    Undo,
)
from hermes.actors.context import RuntimeContext
from hermes.actors.event_bus import Subscription
from hermes.actors.intake import Intake
from hermes.actors.session.files import principal_of, save_file
from hermes.actors.session.following import Follower, open_rows
from hermes.actors.stream import Stream
from hermes.actors.supervisor import Supervisor
from hermes.messages import (
    Attachment,
    ConversationSettings,
    Receipt,
    Reply,
    SearchHit,
    SessionChange,
    SessionSummary,
    Snapshot,
    Source,
    Status,
    StoredFile,
    StoredMessage,
    Title,
)
from hermes.protocols import FileReader
from hermes.sanitize import scrub
from hermes.session_keys import require_encodable
from hermes.validation import require_instance, require_string, require_whole


class Conversation:
    """A handle to the conversation of one session_key. It holds no state.

    Get one from `Runtime.conversation`. Verbs that change the current session wait for a running
    turn and return a `SessionChange`. They raise:

    - `Draining` while the runtime drains;
    - `Overloaded` while the conversation is paused after repeated failures;
    - `WaitCircle` inside a turn of this conversation, or one for which it waits;
    - `ActorStopped` if the runtime ends before the change is made.

    After a drain these verbs raise `ActorStopped`. After the end of the runtime all verbs do, or
    raise `StoreFailed` if the store has failed.
    """

    def __init__(
        self,
        session_key: str,
        source: Source | None,
        context: RuntimeContext,
        intake: Intake,
        supervisor: Supervisor,
    ) -> None:
        self.session_key = session_key
        self._source = source
        self._context = context
        self._intake = intake
        self._supervisor = supervisor

    # Messages

    @takes_options
    async def ask(self, text: str = "", **options: Unpack[MessageOptions]) -> Reply:
        """Send a message and wait for the reply. See `Runtime.ask`."""
        return await self._intake.ask(self.session_key, text, self._with_source(options))

    @takes_options
    def stream(
        self, text: str = "", *, interrupt_on_exit: bool = False, **options: Unpack[MessageOptions]
    ) -> Stream:
        """Send a message and iterate over the events until the reply. See `Runtime.stream`."""
        return self._intake.stream(
            self.session_key, text, self._with_source(options), interrupt_on_exit=interrupt_on_exit
        )

    def _with_source(self, options: MessageOptions) -> MessageOptions:
        return {**options, "source": options.get("source") or self._source}

    async def steer(
        self,
        text: str = "",
        *,
        attachments: Sequence[Attachment] | None = None,
        source: Source | None = None,
    ) -> Receipt:
        """Send a message into the running answer; if none is running, it is a normal message.

        A text that starts with a command is no command.
        """
        options: MessageOptions = {
            "source": source or self._source, "when_busy": "steer", "commands": False,
            "attachments": attachments,
        }  # fmt: skip
        inbound = make_inbound(self.session_key, text, options)
        return (await self._intake.submit(inbound, files=attachments)).receipt

    async def reply_of(self, event_id: str, *, source: Source | None = None) -> Reply | None:
        """Return the reply to the message with this event id. See `Runtime.reply_of`."""
        source = source or self._source or Source()
        return await self._intake.reply_of(self.session_key, event_id, source)

    async def post(
        self,
        text: str = "",
        *,
        attachments: Sequence[Attachment] | None = None,
        source: Source | None = None,
    ) -> StoredMessage:
        """Send a message of the agent that nobody asked for. See `Runtime.post`."""
        return await self._intake.post(self.session_key, text, source or self._source, attachments)

    async def interrupt(self) -> bool:
        """Stop the running turn. What it said so far is kept. Returns False if none is running."""
        self._supervisor.require_running()
        return await self._intake.interrupt(self.session_key)

    async def retry(self, *, source: Source | None = None) -> Reply:
        """Answer the last message again."""
        return await self.ask("/retry", source=source)

    # Files

    async def put_file(self, attachment: Attachment) -> StoredFile:
        """Store a file for a message of this conversation; it is on disk when this returns.

        Pass its `part` to `ask` or `stream` within an hour, as in `parts=[stored.part]`; then it is
        deleted unless a message names it. It counts for the user of the handle's source. Raises
        `AttachmentRefused` if it cannot be stored, `NotAdmitted` if the access policy refuses the
        source, and `Draining` while the runtime ends.
        """
        require_instance("attachment", attachment, Attachment)
        self._intake.require_running()
        await self._intake.require_access(self._source)
        return await self._supervisor.store.put_file(
            attachment, session_key=self.session_key, principal=principal_of(self._source)
        )

    async def open_file(self, file_id: str) -> FileReader:
        """Return a reader of a file that a message of this conversation names.

        It reads in pieces: `await reader.read(offset, size)`. Raises `UnknownFile` if this
        conversation has no such file.
        """
        require_string("file_id", file_id)
        return await self._supervisor.store.open_file(file_id, session_key=self.session_key)

    async def read_file(self, file_id: str) -> bytes:
        """Return the whole content of a file. Raises `UnknownFile`, as `open_file` does."""
        return await (await self.open_file(file_id)).read()

    async def save_file(self, file_id: str, path: str | os.PathLike[str]) -> Path:
        """Write a file to a new file that only its owner can read, and return its path.

        The content is never in memory as a whole. Raises `UnknownFile`, as `open_file` does, and
        `FileExistsError`: nothing is overwritten.
        """
        return await save_file(await self.open_file(file_id), path)

    # The current session

    async def new(self, title: str | None = None) -> SessionChange:
        """End the current session and start a new one.

        Raises `TitleTooLong`, or `TitleTaken` if another conversation of this key has the title.
        Both are also a `ValueError`.
        """
        return await self._intake.request(self.session_key, New(title))

    async def switch(self, target: str) -> SessionChange:
        """Continue with another session of this key, given by id, unique id prefix or title.

        Raises `UnknownSession` if this key has no such session. `Admin.switch` reaches the sessions
        of all keys.
        """
        return await self._intake.request(self.session_key, Switch(scrub(target)))

    async def branch(
        self, title: str | None = None, *, to: str | None = None, before: int | None = None
    ) -> SessionChange:
        """Copy the conversation and continue in the copy.

        With `to`, another session_key, that key is pointed at the copy, and this conversation stays
        where it is. With `before`, the id of a message, only what precedes it is copied. Without a
        title, the copy gets the title of the original with a number. Raises `TitleTooLong`,
        `TitleTaken` if a conversation of the key already has the title, or `ValueError` if the
        current session has no message `before`.
        """
        if to is not None:
            require_encodable(to)
        return await self._intake.request(self.session_key, Branch(title, to, before))

    async def undo(self, exchanges: int = 1) -> SessionChange:
        """Take back the last messages of the user and their replies.

        The rows are hidden, not deleted; `removed` says how many.
        """
        return await self._intake.request(self.session_key, Undo(exchanges))

    async def compress(
        self, focus: str | None = None, *, keep_exchanges: int | None = None
    ) -> SessionChange:
        """Summarize the older part of the conversation and continue in a child session.

        `focus` tells the compressor what matters. With `keep_exchanges`, that many of the last
        exchanges are kept as they are. If nothing was compressed, `changed` is False and `detail`
        says why; for example if another call or a turn compressed it while this call waited.
        """
        return await self._intake.request(self.session_key, Compress(focus, keep_exchanges))

    async def close(self, *, reason: str = "closed") -> SessionChange:
        """End the current session and run its finalize hooks. The next message starts a new one."""
        return await self._intake.request(self.session_key, Close(scrub(reason)))

    async def set_agent(self, snapshot: Snapshot) -> None:
        """Use an agent that the host has built.

        Raises `NotOwner` if another node of a cluster serves the conversation.
        """
        await self._intake.request(self.session_key, SetAgent(snapshot))

    # Information and settings; nothing here waits for a running turn

    async def settings(self) -> ConversationSettings:
        """Return the settings of the conversation."""
        route = await self._supervisor.store.get_route(self.session_key)
        return ConversationSettings.from_json(None if route is None else route.settings)

    async def configure(
        self,
        *,
        agent: str | UnsetType | None = UNSET,
        model: str | UnsetType | None = UNSET,
        metadata: Mapping[str, Any] | UnsetType | None = UNSET,
    ) -> ConversationSettings:
        """Change the settings of the conversation, and return all of them.

        What is not passed stays as it is; None restores the default. The settings are kept in the
        store and apply from the next turn on, in every session of this key. They reach
        `build_agent` in `AgentSpec.conversation`, with `model` in `AgentSpec.model`, and agents in
        `Turn.settings`. `metadata` is a dict of JSON values, of at most 4096 bytes as JSON, as in
        `ask`. Raises `ValueError` if a value cannot be stored, and `Draining` while the runtime
        ends.
        """
        self._intake.require_running()
        return await self._intake.run(self.session_key, Configure(agent, model, metadata))

    async def title(self) -> Title:
        """Return the title; `pending` until the session has a row to store it in."""
        return await self._supervisor.store.get_title(self.session_key)

    async def set_title(self, title: str) -> None:
        """Set the title, also while a turn runs.

        Raises `TitleTooLong`, `TitleTaken` if another conversation of this key has the title, and
        `Draining` while the runtime ends.
        """
        self._intake.require_running()
        await self._intake.run(self.session_key, SetTitle(title))

    async def status(self) -> Status:
        """Return the state of the conversation."""
        self._supervisor.require_running()
        return await self._intake.run(self.session_key, ReadStatus())

    def snapshot(self) -> Snapshot | None:
        """Return the cached agent and the state it was last used on; None if there is none."""
        self._supervisor.require_running()
        actor = self._supervisor.find(self.session_key)
        return None if actor is None else actor.state.cache.snapshot

    def follow(self) -> Subscription:
        """Receive the events of this conversation, beginning with what is going on.

        See `Runtime.follow`.
        """
        self._supervisor.require_running()
        bus, key = self._context.bus, self.session_key
        actor, turn = self._supervisor.find(key), self._supervisor.turn(key)
        waiting = [] if actor is None else open_rows(actor.inbox, actor.runner.latest)
        said = [] if turn is None else [(turn.turn_id, event) for event in turn.said]
        return bus.follow(key, Follower(bus, key, self._context.store, waiting), said)

    async def history(
        self,
        *,
        limit: int | None = None,
        before: int | None = None,
        after: int | None = None,
        lineage: bool = False,
        include_rewound: bool = False,
        include_waiting: bool = True,
    ) -> list[StoredMessage]:
        """Return the transcript of the current session, or a page of it, oldest message first.

        Messages that are accepted but not answered come last, each as a `WaitingMessage`. With
        `include_waiting=False` they are left out.

        With `limit`, the latest messages are returned; those before the id `before` for the page
        before that, or those after the id `after`. Pages stay the same while messages are added; a
        message that is answered between two pages is a stored message from then on. With `lineage`,
        the sessions before a compression come first; a session after one begins with a summary and
        copies of the messages that were kept. `include_rewound` also returns rows that were taken
        back.

        Raises `ValueError` for a `limit` below 1, if both `before` and `after` are given, and if
        `after` is the id of a message that does not wait any more.
        """
        for name, value in (("limit", limit), ("before", before), ("after", after)):
            require_whole(name, value)
        return await self._supervisor.store.get_history(
            self.session_key, limit=limit, before=before, after=after, lineage=lineage,
            include_rewound=include_rewound, include_waiting=include_waiting,
        )  # fmt: skip

    async def sessions(
        self,
        *,
        include_subagents: bool = False,
        include_archived: bool = False,
        limit: int = 20,
        offset: int = 0,
    ) -> list[SessionSummary]:
        """Return the sessions that belong to this key, latest activity first.

        Sessions of subagents and archived ones are left out unless they are asked for.
        """
        return await self._supervisor.store.list_sessions(
            session_key=self.session_key, include_subagents=include_subagents,
            include_archived=include_archived, limit=limit, offset=offset,
        )  # fmt: skip

    async def archive(self, session_id: str) -> None:
        """Hide a conversation of this key from lists, with all its compressed sessions.

        It is not ended, and can be continued as before. Raises `UnknownSession` if this key has no
        such session.
        """
        store = self._supervisor.store
        await store.archive_session(scrub(session_id), session_key=self.session_key)

    async def unarchive(self, session_id: str) -> None:
        """List an archived conversation again. Raises `UnknownSession`, as `archive` does."""
        store = self._supervisor.store
        await store.unarchive_session(scrub(session_id), session_key=self.session_key)

    async def search(
        self, query: str, *, role: str | None = None, limit: int = 20
    ) -> list[SearchHit]:
        """Search the messages of this key's sessions, best match first.

        With `role`, only messages of that role are searched, such as "user".
        """
        return await self._supervisor.store.search_messages(
            query,
            session_key=self.session_key,
            role=None if role is None else scrub(role),
            limit=limit,
        )
