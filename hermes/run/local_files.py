"""The files of a bot on its machine: its lock, status, log, socket and others.

Their names begin with the path of the database. A bot on PostgreSQL has them in the folder of the
default database; several on one machine need names, such as `postgresql://…?node=a`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from hermes.config import data_path, is_database_url, shown_database
from hermes.errors import StoreInUse, StoreRefused
from hermes.store.sqlite import runtime_lock
from hermes.store.sqlite.file_lock import resolve
from hermes.store.sqlite.runtime_lock import RuntimeLock

MAX_NAME: Final = 40
_IN_USE: Final = (
    "{database} is in use on this machine by another Hermes runtime ({owner}); stop that one, or "
    "give this one a name, as in postgresql://HOST/DATABASE?node=NAME"
)


def local_path(database: Path | str) -> Path:
    """Return what the names of the local files of a bot begin with."""
    if not is_database_url(database):
        return Path(database)
    address, _, query = str(database).partition("?")
    shown = shown_database(address)
    node = parse_qs(query).get("node", [])
    digest = hashlib.sha256("?".join([shown, *node]).encode()).hexdigest()[:8]
    name = re.sub(r"[^\w-]", "_", shown.rpartition("/")[2], flags=re.ASCII)[:MAX_NAME]
    return data_path().with_name(f"{name or 'postgresql'}-{digest}")


def create_folder(database: Path | str) -> None:
    """Create the default folder if it is used; one that the user has chosen must exist."""
    folder = data_path().parent
    if not is_database_url(database) and database != data_path():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        message = f"cannot create the directory {folder}: {error.strerror}; use --db FILE"
        raise StoreRefused(message) from None


def require_free(database: Path | str) -> None:
    """Raise `StoreInUse` if a bot on this machine uses the database under the same name."""
    path = local_path(database)
    if not is_database_url(database):
        runtime_lock.require_free(path)
    elif (owner := runtime_lock.owner(resolve(path))) is not None:
        raise _in_use(database, owner)


@contextmanager
def owned(database: Path | str) -> Iterator[None]:
    """Own the local files of a bot on PostgreSQL; with SQLite, the store's own lock does that.

    Raises `StoreInUse`.
    """
    if not is_database_url(database):
        yield
        return
    path = local_path(database)
    try:
        lock = RuntimeLock(path)
    except StoreInUse:
        raise _in_use(database, runtime_lock.owner(path) or "unknown process") from None
    try:
        yield
    finally:
        lock.close()


def _in_use(database: Path | str, owner: str) -> StoreInUse:
    return StoreInUse(_IN_USE.format(database=shown_database(database), owner=owner))
