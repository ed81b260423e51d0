"""Nodes of two schema versions do not share a database."""

from __future__ import annotations

import pytest

from hermes.errors import StoreRefused
from hermes.store import SessionStore, open_store
from hermes.store.postgres.address import parse
from hermes.store.postgres.driver import connect
from hermes.store.postgres.schema import MIGRATIONS, migrate

NEWER = (*MIGRATIONS, "CREATE TABLE more (id bigint)")


async def test_a_newer_version_does_not_migrate_while_nodes_of_an_older_one_run(empty_database):
    with connect(parse(empty_database)) as db:
        async with open_store(empty_database):
            with pytest.raises(
                StoreRefused, match=r"used by an older version of Hermes .*stop all"
            ):
                migrate(db, "the database", NEWER)
        migrate(db, "the database", NEWER)  # the node has left
    with pytest.raises(StoreRefused, match="use the newer version"):
        SessionStore(empty_database)
