"""Examples of services, as real server processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVERS = {
    "fastapi_app.py": ["-m", "uvicorn", "--port", "0", "fastapi_app:app"],
    "flask_app.py": [
        "-m", "gunicorn", "--bind", "127.0.0.1:0", "--workers", "1", "--threads", "20",
        "--no-control-socket", "flask_app:create_app()",
    ],
    "trio_service.py": ["trio_service.py", "{path}", "127.0.0.1:0"],
}  # fmt: skip
STOPPED = {0, -signal.SIGTERM}
"""Exit codes after SIGTERM: uvicorn raises the signal again when it has finished."""
SECONDS = 60


class Service:
    """A server process. Use it in a `with` block, which stops it."""

    def __init__(self, example: str, path: Path) -> None:
        arguments = [each.format(path=path) for each in SERVERS[example]]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", *arguments],
            cwd=EXAMPLES,
            env={**os.environ, "CHATS": str(path), "PYTHONPATH": str(EXAMPLES.parent)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self.port = self._read_port()
        self._reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self._reader.start()

    def _read_port(self) -> int:
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                return int(found[1])
        raise AssertionError("".join(self.log))

    def request(self, method, url, text=None, *, key=None):
        """Send a request and return the connection and the response, whose body is not read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        body = None if text is None else json.dumps({"text": text})
        connection.request(method, url, body, headers)
        return connection, connection.getresponse()

    def get(self, url):
        """Return what this address shows, which is JSON."""
        connection, response = self.request("GET", url)
        with contextlib.closing(connection):
            assert response.status == 200
            return json.loads(response.read())

    def ask(self, name, text, *, key=None):
        """Send a message and return the text of the reply."""
        connection, response = self.request("POST", f"/chats/{name}", text, key=key)
        with contextlib.closing(connection):
            assert response.status == 200
            return json.loads(response.read())["text"]

    def status(self, url, text, *, key=None):
        """Send a message and return the status of the response."""
        connection, response = self.request("POST", url, text, key=key)
        connection.close()
        return response.status

    def stream(self, name, text, *, key=None):
        """Send a message; iterate over the events, and close to disconnect."""
        return EventStream(*self.request("POST", f"/chats/{name}/stream", text, key=key))

    def texts(self, name):
        """Return the transcript of a chat."""
        return [row["text"] for row in self.get(f"/chats/{name}")]

    def stop(self):
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self):
        """Wait for the end; the log must not show an error."""
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        self.process.stderr.close()
        assert "Traceback" not in "".join(self.log), "".join(self.log)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()
        assert self.wait() in STOPPED


class EventStream:
    """Server-sent events."""

    def __init__(self, connection, response) -> None:
        self.connection = connection
        self.response = response
        self.status = response.status

    def __iter__(self):
        return self

    def __next__(self):
        name = None
        for line in self.response:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                return name, json.loads(value)
        raise StopIteration

    def close(self):
        """Disconnect."""
        self.response.close()
        self.connection.close()
