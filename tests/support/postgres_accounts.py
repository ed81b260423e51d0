"""A PostgreSQL server that asks for passwords, as those of other people do."""

from __future__ import annotations

import contextlib
from pathlib import Path

import attrs
import psycopg

from tests.support.postgres_server import running_server

SECRET = "s3cr3t-w0rd"
RULES = """\
local all postgres trust
host all postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
"""


@attrs.frozen
class Account:
    """The role `ann` of a server, who has databases and a password."""

    host: str
    admin: str
    """The URL of the superuser."""
    programs: Path
    """The folder with `psql` and `pg_dump`."""

    def url(self, database="chats", *, password=SECRET, host=None, **query):
        """Return the URL of a database."""
        options = "&".join(f"{name}={value}" for name, value in query.items())
        return f"postgresql://ann:{password}@{host or self.host}/{database}?{options}".rstrip("?")

    def label(self, database="chats"):
        """Return what people see of the URL."""
        return f"postgresql://{self.host}/{database}"

    def create(self, database):
        """Create an empty database, and return its URL."""
        with psycopg.connect(self.admin, autocommit=True) as db:
            db.execute(f'CREATE DATABASE "{database}" OWNER ann')
        return self.url(database)


@contextlib.contextmanager
def open_account():
    """Run a server with flushes that lets `ann` in with her password only."""
    with running_server(durable=True, tcp=True) as server:
        (server.data / "pg_hba.conf").write_text(RULES)
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(f"CREATE ROLE ann LOGIN PASSWORD '{SECRET}'")
            db.execute("SELECT pg_reload_conf()")
        programs = server.installation.programs / "bin"
        yield Account(f"127.0.0.1:{server.port}", server.url, programs)
