"""Conversations in one SQLite file.

`SessionStore` is synchronous, for scripts and tools; `open_store` is asynchronous, for a runtime.
Both have the same verbs (`verbs.StoreVerbs`), which are functions of a transaction.

To read the code, start with `schema`, `transaction` and `conversations.turns`, then follow one
request through `verbs`, `actor`, `worker` and `group_commit`.
"""

from __future__ import annotations

from hermes.messages import Rotation as Rotation
from hermes.store.async_store import Store as Store, open_store as open_store
from hermes.store.sync_store import SessionStore as SessionStore
from hermes.store.transaction import Clock as Clock
