"""`hermes run --http`, as a user starts it."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import httpx2
import openai
import pytest
import trio

from hermes.adapters.http.credentials import digest_of, new_id, new_secret
from hermes.messages import Token
from hermes.store import SessionStore

COMMAND = (sys.executable, "-W", "error", "-m", "hermes")


def refused(*arguments):
    """Run the command; returns its one line of error."""
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


async def line_with(stream, text):
    """Return the first line of a process that contains a text."""
    data = b""
    with trio.fail_after(60):
        while True:
            piece = await stream.receive_some()
            assert piece, data
            data += piece
            for line in data.decode().splitlines(keepends=True):
                if text in line and line.endswith("\n"):
                    return line


def store_token(path):
    """Store a token in the database; returns its secret."""
    secret = new_secret()
    token = Token(id=new_id("tok"), name="ann", namespace="ann", roles=("user",), created_at=0.0)
    with SessionStore(path) as store:
        store.add_token(token, digest_of(secret))
    return secret


async def test_the_bot_serves_http_alone_and_says_where(tmp_path):
    path = tmp_path / "chat.db"
    secret = store_token(path)
    command = [*COMMAND, "run", "--db", str(path), "--http", "127.0.0.1:0"]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(start, command)
        line = await line_with(process.stderr, "HTTP: ")
        assert "tokens create NAME" in line
        url = line.partition("HTTP: ")[2].partition("/v1")[0]
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=secret, max_retries=0
        ) as client:
            answer = await client.responses.create(model="hermes", input="hello")
        assert answer.output_text.startswith("You said: hello\n")
        status = None
        with trio.fail_after(60):  # it is written every few seconds
            while status is None or url not in status:
                asked = [*COMMAND, "status", "--db", str(path)]
                done = await trio.run_process(asked, capture_stdout=True, check=False)
                status = done.stdout.decode()
        assert f"http      {url}\n" in status
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(60):
            assert await process.wait() == 0
    async with httpx2.AsyncClient() as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get(url)


async def test_connections_leave_descriptors_for_everything_else(tmp_path):
    path = tmp_path / "chat.db"
    secret = store_token(path)
    config = tmp_path / "hermes.toml"
    config.write_text("[http]\nport = 0\nheader_timeout = 3600.0\n")
    bot = shlex.join([*COMMAND, "run", "--config", str(config), "--db", str(path)])
    async with trio.open_nursery() as nursery, AsyncExitStack() as streams:
        command = ["sh", "-c", f"ulimit -n 80; exec {bot}"]
        process = await nursery.start(start, command)
        line = await line_with(process.stderr, "HTTP: ")
        url = line.partition("HTTP: ")[2].partition("/v1")[0]
        for _ in range(100):  # all of them are idle
            address = urlsplit(url)
            stream = await trio.open_tcp_stream(address.hostname, address.port)
            await streams.enter_async_context(stream)
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=secret, max_retries=0, timeout=30
        ) as client:
            answer = await client.responses.create(model="hermes", input="hello")
        assert answer.output_text.startswith("You said: hello\n")
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(60):
            assert await process.wait() == 0


async def start(command, *, task_status):
    """Run a process as a task."""
    pipe = subprocess.PIPE
    await trio.run_process(command, stdout=pipe, stderr=pipe, check=False, task_status=task_status)


def test_an_address_that_others_can_reach_needs_a_setting(tmp_path):
    error = refused("run", "--db", str(tmp_path / "chat.db"), "--http", "0.0.0.0:8420")
    assert error == (
        "configuration: http: 0.0.0.0 can be reached from other machines; if that is intended, "
        "set public = true in [http]\n"
    )


def test_an_address_that_cannot_be_used_is_refused_in_one_sentence(tmp_path):
    path = str(tmp_path / "chat.db")
    error = refused("run", "--db", path, "--log", "json", "--http", "127.0.0.1")
    assert error.endswith(
        "error: argument --http: expected HOST:PORT, as in 127.0.0.1:8420, not 127.0.0.1\n"
    )
    error = refused("run", "--db", path, "--http", "127.0.0.1:70000")
    assert error.endswith("error: argument --http: a port is a number from 0 to 65535, not 70000\n")
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        error = refused("run", "--db", path, "--http", f"127.0.0.1:{port}").splitlines()[-1]
    assert error == f"http.port: port {port} of 127.0.0.1 is in use; choose another one"


def test_a_question_serves_nothing(tmp_path):
    path = str(tmp_path / "chat.db")
    error = refused("chat", "--db", path, "-p", "hello", "--http")
    assert error.endswith("error: --http has no effect with -p; remove it\n")


def test_without_the_extra_it_says_what_to_install(tmp_path):
    program = (
        "import sys; sys.modules['hypercorn'] = None\n"
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name: None if name == 'hypercorn' else find(name)\n"
        "from hermes.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "run", "--db", str(tmp_path / "chat.db"), "--http"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("configuration: http: [http] is not installed; to install it: ")
    assert done.stderr.count("\n") == 1
