"""`hermes run` with the web page, as a process that tests kill, stop and start again."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading

from hermes.adapters.http.credentials import digest_of, new_secret
from hermes.adapters.http.web.people import LINK_PREFIX
from hermes.messages import Person
from hermes.store import SessionStore
from tests.support.killed_programs import ROOT

CONFIG = """
[agent]
kind = "openai"
model = "m"
base_url = "{url}"
key = "env:HOME"
[titles]
enabled = false
"""


def free_port():
    """Return a port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class BotProcess:
    """A bot at one address. Use it as a context manager, so that its process ends."""

    def __init__(self, folder, model_url):
        self.path = folder / "state.db"
        self.url = f"http://127.0.0.1:{free_port()}"
        self._config = folder / "hermes.toml"
        self._config.write_text(CONFIG.format(url=model_url))
        self._process = self._reader = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc_info):
        self.kill()

    def start(self):
        """Start it, and wait until it serves the page."""
        host = self.url.removeprefix("http://")
        options = ["--config", str(self._config), "--db", str(self.path), "--http", host]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hermes", "run", *options],
            cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        said = []
        for line in self._process.stderr:
            said.append(line)
            if "HTTP: " in line:
                break
        else:
            raise AssertionError("".join(said))
        self._reader = threading.Thread(target=self._process.stderr.read)
        self._reader.start()

    def kill(self):
        """End it with `kill -9`."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stderr.close()

    def stop(self):
        """Stop it with SIGSTOP: it keeps its connections, and says nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self):
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def sign_in_token(self, name="ann", role="user"):
        """Return a one-time token with which a person can sign in."""
        secret = new_secret(LINK_PREFIX)
        with SessionStore(self.path) as store:
            person = Person(namespace=name, name=name, role=role)
            store.add_sign_in(digest_of(secret), person)
        return secret
