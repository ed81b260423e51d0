"""Conversations in one SQLite file.

Read: schema, tx, transact, transcripts, routes, inbox, turns, rotation, actor, face.

`SessionStore` blocks, `open_store` is awaited; both are the same functions of a transaction.
"""

from __future__ import annotations

from hermes.messages import Rotation as Rotation
from hermes.store.async_store import Store as Store, open_store as open_store
from hermes.store.sync_store import SessionStore as SessionStore
from hermes.store.transaction import Clock as Clock
from hermes.store.worker import inline as inline
