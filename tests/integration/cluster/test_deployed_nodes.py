"""deploy/cluster: two nodes behind a proxy, started as its files say."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from tests.support.cluster_nodes import with_lease
from tests.support.folders import quick_folder

DEPLOY = Path(__file__).parents[3] / "deploy"
FOLDER = DEPLOY / "cluster"
UNIT = (FOLDER / "hermes@.service").read_text()
NAME = "chat.example.com"
CADDY = shutil.which("caddy", path=Path(sys.executable).parent)
SECONDS = 60


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


class Site:
    """Two nodes and their proxy; each is a process that a test can kill."""

    def __init__(self, url, folder, stack):
        self.url = with_lease(url, 2)
        self.folder = folder
        self.stack = stack
        self.ports = {number: free_port() for number in (1, 2)}
        self.nodes = {}
        self.log = stack.enter_context((folder / "log").open("wb"))
        self.environment = {"HOME": str(folder), "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"}

    def start(self, number):
        """Start a node with the command of its unit."""
        [line] = re.findall(r"^ExecStart=\S+ (.+)$", UNIT, re.MULTILINE)
        database = re.search(r"--db (\S+)\?node=%i", line).group(1)
        line = line.replace(f"{database}?", f"{self.url}&").replace(
            "842%i", str(self.ports[number])
        )
        line = line.replace("/etc/hermes.toml", str(FOLDER / "hermes.toml")).replace(
            "%i", str(number)
        )
        self.nodes[number] = self.process(sys.executable, *shlex.split(line))

    def process(self, *command):
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=self.log,
        )  # fmt: skip
        self.stack.callback(process.wait, SECONDS)
        self.stack.callback(process.kill)
        return process

    def start_proxy(self):
        """Start the proxy; it listens without TLS, and any name leads to it."""
        port = free_port()
        text = (FOLDER / "Caddyfile").read_text().replace(f"\n{NAME} {{", f"\nhttp://:{port} {{")
        for number, each in self.ports.items():
            text = text.replace(f"127.0.0.1:842{number}", f"127.0.0.1:{each}")
        config = self.folder / "Caddyfile"
        config.write_text("{\n\tadmin off\n}\n" + text)
        self.process(CADDY, "run", "--adapter", "caddyfile", "--config", str(config))
        return port

    def kill(self, number):
        self.nodes[number].kill()
        self.nodes[number].wait(SECONDS)


@pytest.fixture
def site(empty_database):
    if CADDY is None:
        pytest.skip("caddy is not installed")
    with quick_folder() as folder, ExitStack() as stack:
        yield Site(empty_database, folder, stack)


def ready(client):
    """Wait until a node can be reached through the proxy."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx2.TransportError:
            time.sleep(0.1)
    raise AssertionError("no node is ready")


def test_each_of_two_nodes_behind_the_proxy_may_be_killed(site):
    command = [sys.executable, "-m", "hermes", "tokens", "create", "ann", "--db", site.url]
    created = subprocess.run(
        command, env=site.environment, cwd=site.folder, capture_output=True, text=True, check=True,
        timeout=SECONDS,
    )  # fmt: skip
    headers = {"Authorization": f"Bearer {created.stdout.strip()}", "Host": NAME}
    site.start(1)
    site.start(2)
    port = site.start_proxy()
    with httpx2.Client(
        base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=SECONDS
    ) as client:
        ready(client)

        def ask(text):
            body = {"model": "hermes", "input": text, "conversation": talk}
            answer = client.post("/v1/responses", json=body)
            assert answer.status_code == 200, answer.text
            [part] = answer.json()["output"][-1]["content"]
            return part["text"]

        talk = client.post("/v1/conversations", json={}).json()["id"]
        assert "one" in ask("one")
        site.kill(1)
        assert "two" in ask("two")
        site.start(1)
        until_listening(site.ports[1])
        site.kill(2)
        assert "three" in ask("three")
        items = client.get(f"/v1/conversations/{talk}/items", params={"limit": 50}).json()["data"]
        asked = [each["content"][0]["text"] for each in items if each.get("role") == "user"]
        assert sorted(asked) == ["one", "three", "two"]


def until_listening(port):
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"nothing listens on {port}")


def test_the_unit_of_a_node_is_that_of_a_bot_with_a_name():
    ours = (DEPLOY / "hermes.service").read_text()

    def settings(text):
        return {line for line in text.partition("[Unit]")[2].splitlines() if "=" in line}

    different = {line.partition("=")[0] for line in settings(ours) ^ settings(UNIT)}
    assert different == {
        "Description", "ExecStart", "User", "StateDirectory", "WorkingDirectory", "Environment",
    }  # fmt: skip
    assert signal.SIGTERM.name in UNIT


def test_systemd_accepts_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "hermes@1.service"
    unit.write_text(UNIT.replace("/opt/hermes/bin/python", sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
