"""Tools that a user has allowed in a conversation for good: their calls need no approval."""

from __future__ import annotations

from hermes.messages import InboxReply
from hermes.store.conversations import inbox
from hermes.store.transaction import Transaction


def allow(tx: Transaction, session_key: str, tool: str) -> None:
    """Allow a tool in a conversation."""
    tx.run(
        "INSERT INTO allowed_tools (session_key, tool, allowed_at) VALUES (?, ?, ?) "
        "ON CONFLICT (session_key, tool) DO NOTHING",
        session_key, tool, tx.now,
    )  # fmt: skip


def is_allowed(tx: Transaction, session_key: str, tool: str) -> bool:
    """Whether a tool is allowed in a conversation."""
    sql = "SELECT 1 FROM allowed_tools WHERE session_key = ? AND tool = ?"
    return tx.one(sql, session_key, tool) is not None


def allowed_tools(tx: Transaction, session_key: str) -> list[str]:
    """Return the tools that are allowed in a conversation, by name."""
    sql = "SELECT tool FROM allowed_tools WHERE session_key = ? ORDER BY tool"
    return [tool for (tool,) in tx.all(sql, session_key)]


def revoke_tool(
    tx: Transaction, session_key: str, tool: str, *, answer: InboxReply | None = None
) -> bool:
    """Ask again for each call of a tool. Return False, and store nothing, if it was not allowed."""
    revoked = tx.run(
        "DELETE FROM allowed_tools WHERE session_key = ? AND tool = ?", session_key, tool
    )
    if revoked != 1:
        return False
    inbox.close(tx, answer)
    return True
