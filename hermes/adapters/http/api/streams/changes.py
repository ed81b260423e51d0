"""What differs between the stored state of a conversation and what its listeners know."""

from __future__ import annotations

import attrs
from msgspec import UNSET, UnsetType

from hermes.adapters.http.api.streams.state import Changes, History, Snapshot
from hermes.adapters.jsonrpc.rows import to_row
from hermes.events import MessageAccepted, RuntimeEvent, TurnEnded, TurnStarted
from hermes.messages import (
    Approval,
    ConversationSettings,
    ConversationView,
    KnownRows,
    TurnProgress,
)

NOTHING = Changes()


@attrs.define
class Known:
    """What the listeners of a conversation know of it: enough to tell what changes."""

    rows: KnownRows
    title: str | None
    archived: bool
    settings: ConversationSettings
    approvals: tuple[Approval, ...]
    waiting: set[int]
    turn_id: int | None

    @classmethod
    def of(cls, view: ConversationView, turn: TurnProgress | None) -> Known:
        """Return what a client knows that has received this state."""
        return cls(
            rows=_known_rows(view, 0),
            title=view.title,
            archived=view.archived,
            settings=view.settings,
            approvals=view.approvals,
            waiting={message.inbox_id for message in view.waiting},
            turn_id=None if turn is None else turn.turn_id,
        )

    def receive(self, event: RuntimeEvent) -> None:
        """Take an event that the listeners receive."""
        match event:
            case MessageAccepted(_, inbox_id):
                self.waiting.add(inbox_id)
            case TurnStarted(turn_id):
                self.turn_id = turn_id
            case TurnEnded(reply, inbox_ids):
                self.waiting.difference_update(inbox_ids)
                if self.turn_id == reply.turn_id:
                    self.turn_id = None

    def update(self, view: ConversationView) -> Changes:
        """Take over the stored state, and return what is new in it."""
        waiting = {message.inbox_id for message in view.waiting}
        settings = view.settings if view.settings != self.settings else UNSET
        changes = Changes(
            session_id=view.session_id if view.session_id != self.rows.session_id else UNSET,
            title=view.title if view.title != self.title else UNSET,
            archived=view.archived if view.archived != self.archived else UNSET,
            settings=settings,
            history=self._history(view),
            waiting=[*view.waiting] if waiting != self.waiting else UNSET,
            approvals=[*view.approvals] if view.approvals != self.approvals else UNSET,
        )
        self.rows = _known_rows(view, self.rows.last if view.appended else 0)
        self.title, self.archived, self.settings = view.title, view.archived, view.settings
        self.approvals, self.waiting = view.approvals, waiting
        return changes

    def _history(self, view: ConversationView) -> History | UnsetType:
        """Return the messages that the listeners do not have."""
        known, rows = self.rows, view.rows
        if known.last == 0 and not rows:
            return UNSET
        same = (view.session_id, _rewrites(view)) == (known.session_id, known.rewrites)
        new = [row for row in rows if row.id > known.last]
        misses = not view.appended and view.earlier and len(new) == len(rows)
        if same and not misses:
            return History([to_row(row) for row in new], earlier=True) if new else UNSET
        return History([to_row(row) for row in rows], replace=True, earlier=view.earlier)

    def update_turn(self, turn: TurnProgress | None) -> TurnProgress | UnsetType | None:
        """Take over the running turn, and return it if the listeners believe something else.

        A turn that was discarded ends without an event.
        """
        turn_id = None if turn is None else turn.turn_id
        if turn_id == self.turn_id:
            return UNSET
        self.turn_id = turn_id
        return turn


def snapshot(event_id: str, view: ConversationView, turn: TurnProgress | None) -> Snapshot:
    """Return the state of a conversation for a client."""
    return Snapshot(
        id=event_id,
        session_key=view.session_key,
        session_id=view.session_id,
        title=view.title,
        archived=view.archived,
        settings=view.settings,
        history=History([to_row(row) for row in view.rows], replace=True, earlier=view.earlier),
        waiting=[*view.waiting],
        turn=turn,
        approvals=[*view.approvals],
    )


def _known_rows(view: ConversationView, last: int) -> KnownRows:
    return KnownRows(view.session_id, _rewrites(view), view.rows[-1].id if view.rows else last)


def _rewrites(view: ConversationView) -> int:
    return 0 if view.head is None else view.head.rewrites
