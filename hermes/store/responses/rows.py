"""The rows of responses: who asked, which message it was, and what became of the connection."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from hermes.messages import ApiRequest, JsonObject, Receipt, Reply, StoredResponse, node_of
from hermes.store.transaction import Transaction

RETRY_SECONDS = 60.0
"""How long after the end of a connection a retry may attach to its response."""
_COLUMNS = (
    "id, credential, session_key, session_id, inbox_id, path, digest, idempotency_key, echo, "
    "stored, created_at, connection, items, closed_at, reply"
)
_decode_object = msgspec.json.Decoder(JsonObject).decode
_decode_items = msgspec.json.Decoder(tuple[JsonObject, ...]).decode
_decode_reply = msgspec.json.Decoder(Reply).decode
# A dead process has another id than the one that asks, and its last sign of life is stored. Retries
# of a request with an idempotency key have that key, and find it by that. What was cut comes first:
# its response was not written in full. A dead process may have written one without recording it. So
# those whose turn had not ended come next, then the others, those that ended last first; and last
# the one that was being written, which is recorded if equal requests are open (`begin_answer`).
_INTERRUPTED = (
    "SELECT r.id, r.connection, r.process "
    "FROM responses r LEFT JOIN api_processes p ON p.id = r.process "
    "WHERE r.credential = ?1 AND r.path = ?2 AND r.digest = ?3 AND r.idempotency_key IS NULL "
    "AND r.connection <> 'complete' AND CASE WHEN r.connection = 'cut' THEN r.cut_at >= ?4 "
    "ELSE r.process <> ?5 AND (p.alive_at >= ?4 OR r.created_at >= ?4) END "
    "ORDER BY CASE WHEN r.connection = 'cut' THEN 0 WHEN r.cut_at IS NOT NULL THEN 3 "
    "WHEN r.closed_at IS NOT NULL THEN 2 ELSE 1 END, "
    "CASE WHEN r.connection = 'open' THEN r.cut_at END, "
    "CASE WHEN r.connection = 'open' THEN -coalesce(r.closed_at, 0) END, "
    "CASE WHEN r.connection = 'open' AND r.closed_at IS NOT NULL THEN -r.inbox_id "
    "ELSE r.inbox_id END"
)
_ATTACH = (
    "UPDATE responses SET connection = 'open', process = ?, cut_at = NULL "
    "WHERE id = ? AND connection = ? AND process = ?"
)


def add(tx: Transaction, receipt: Receipt, request: ApiRequest) -> None:
    """Add the response to a message that is being accepted."""
    tx.run(
        "INSERT INTO responses (id, credential, session_key, session_id, inbox_id, path, digest, "
        "idempotency_key, echo, stored, created_at, connection, process) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'open', ?)",
        request.id, request.credential, receipt.session_key, receipt.session_id, receipt.inbox_id,
        request.path, request.digest, request.idempotency_key,
        msgspec.json.encode(request.echo).decode(), request.stored, tx.now, request.process,
    )  # fmt: skip


def get_response(tx: Transaction, response_id: str) -> StoredResponse | None:
    """Return a response; None if there is none with this id."""
    row = tx.one(f"SELECT {_COLUMNS} FROM responses WHERE id = ?", response_id)
    return None if row is None else _response(row)


def find_response(tx: Transaction, credential: str, idempotency_key: str) -> StoredResponse | None:
    """Return the response to the request of a credential with this idempotency key."""
    row = tx.one(
        f"SELECT {_COLUMNS} FROM responses WHERE credential = ? AND idempotency_key = ?",
        credential,
        idempotency_key,
    )
    return None if row is None else _response(row)


def response_to(tx: Transaction, inbox_id: int) -> StoredResponse | None:
    """Return the response to a message; None if no API client sent it."""
    row = tx.one(f"SELECT {_COLUMNS} FROM responses WHERE inbox_id = ?", inbox_id)
    return None if row is None else _response(row)


def attach_response(
    tx: Transaction,
    credential: str,
    path: str,
    digest: str,
    process: str,
    living: Collection[int] = (),
) -> StoredResponse | None:
    """Attach a retry to the response of an equal request whose connection was lost.

    That is the oldest one without an idempotency key that ended at most a minute ago, before its
    response was written in full, or else one whose process died at most a minute ago. (One whose
    turn has ended is chosen after the others, because its response may have been written, and one
    that was being written last.) No other retry can attach to it while this one waits. Returns None
    if there is none. The processes of the nodes that are `living` have not died.
    """
    request = (credential, path, digest, tx.now - RETRY_SECONDS, process)
    for found in tx.all(_INTERRUPTED, *request):
        if found[1] == "open" and node_of(found[2]) in living:
            continue
        if tx.run(_ATTACH, process, *found):  # no other retry was faster
            return get_response(tx, found[0])
    return None


def open_processes(tx: Transaction, credential: str, path: str, digest: str) -> list[str]:
    """Return the processes on which equal requests without an idempotency key may be open."""
    sql = (
        "SELECT DISTINCT process FROM responses WHERE credential = ? AND path = ? AND digest = ? "
        "AND idempotency_key IS NULL AND connection = 'open' ORDER BY process"
    )
    return [row[0] for row in tx.all(sql, credential, path, digest)]


def begin_answer(tx: Transaction, response_id: str, process: str) -> bool:
    """Record that a response is about to be written, while equal requests wait for theirs.

    If the process dies, their retries attach to the other responses first. The time is in `cut_at`,
    which is empty for open connections otherwise. Returns False if another connection waits for the
    response now.
    """
    sql = "UPDATE responses SET cut_at = ? WHERE id = ? AND connection = 'open' AND process = ?"
    return tx.run(sql, tx.now, response_id, process) == 1


def end_connection(tx: Transaction, response_id: str, process: str, *, complete: bool) -> bool:
    """Record that a connection has ended; `complete` if the response was written in full.

    Returns False if another connection waits for the response now.
    """
    changed = tx.run(
        "UPDATE responses SET connection = ?, cut_at = ? "
        "WHERE id = ? AND connection = 'open' AND process = ?",
        "complete" if complete else "cut",
        None if complete else tx.now,
        response_id,
        process,
    )
    return changed == 1


def record_process(tx: Transaction, process: str) -> None:
    """Record that a process that serves connections is alive, and forget those of long ago."""
    tx.run(
        "INSERT INTO api_processes (id, alive_at) VALUES (?, ?) "
        "ON CONFLICT (id) DO UPDATE SET alive_at = excluded.alive_at",
        process,
        tx.now,
    )
    tx.run("DELETE FROM api_processes WHERE alive_at < ?", tx.now - 10 * RETRY_SECONDS)


def record_items(
    tx: Transaction,
    response_id: str,
    items: Sequence[JsonObject],
    *,
    before: Sequence[JsonObject] | None = None,
) -> bool:
    """Replace the output items that clients have seen. Returns False if there is no response.

    With `before`, they are replaced only if they are these; else it also returns False.
    """
    sql, new = "UPDATE responses SET items = ? WHERE id = ?", msgspec.json.encode(items).decode()
    if before is None:
        return tx.run(sql, new, response_id) == 1
    known = msgspec.json.encode(before).decode()
    sql = f"{sql} AND coalesce(items, '[]') = ?"
    return tx.run(sql, new, response_id, known) == 1


def delete_response(tx: Transaction, response_id: str) -> bool:
    """Delete a response; its messages stay. Returns whether there was one."""
    return tx.run("DELETE FROM responses WHERE id = ?", response_id) == 1


def list_responses(tx: Transaction, session_key: str, path: str) -> list[StoredResponse]:
    """Return the responses of a key's current session that have ended, oldest first."""
    sql = (
        f"SELECT {_COLUMNS} FROM responses WHERE session_key = ?1 AND path = ?2 "
        "AND closed_at IS NOT NULL "
        "AND session_id = (SELECT session_id FROM routes WHERE session_key = ?1) ORDER BY inbox_id"
    )
    return [_response(row) for row in tx.all(sql, session_key, path)]


def delete_responses(tx: Transaction, session_key: str) -> int:
    """Delete the responses of a key's current session that have ended; returns how many.

    The session may have no messages: then nothing but the route names it.
    """
    return tx.run(
        "DELETE FROM responses WHERE session_key = ?1 AND closed_at IS NOT NULL "
        "AND session_id = (SELECT session_id FROM routes WHERE session_key = ?1)",
        session_key,
    )


def delete_of_session(tx: Transaction, session_id: str) -> None:
    """Delete the responses of a session. Messages that wait are answered in another session."""
    tx.run("DELETE FROM responses WHERE session_id = ? AND closed_at IS NOT NULL", session_id)


def _response(row: Sequence[Any]) -> StoredResponse:
    *facts, items, closed_at, reply = row
    names = StoredResponse.__struct_fields__[:12]
    values = dict(zip(names, facts, strict=True))
    values["echo"], values["stored"] = _decode_object(values["echo"]), bool(values["stored"])
    return StoredResponse(
        **values,
        items=() if items is None else _decode_items(items),
        closed_at=closed_at,
        reply=None if reply is None else _decode_reply(reply),
    )
