"""The HTTP benchmark: bare apps do what they are compared with, and wrong answers stop the run."""

from __future__ import annotations

import re
import socket
import threading

import pytest

from bench.harness.process import DriverFailed, open_drivers
from bench.http import client
from bench.http.benchmark import HTTP
from bench.http.client import Address

FEW = {"count": 2, "what": "whole"}


@pytest.fixture(scope="module")
def drivers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("http")
    modules = {name: HTTP.modules[name] for name in ("ours", "bare")}
    with open_drivers(folder, modules) as drivers:
        yield drivers


def measure(driver, path, server):
    driver.ask("begin", who="x", path=str(path), server=server, **FEW)
    driver.ask("go_on", who="x")
    return driver.ask("end", who="x")


def test_bare_routes_return_as_much_as_our_server(drivers, tmp_path):
    ours = measure(drivers["ours"], tmp_path / "x", "server")["bytes"]
    for server in ("ours", "hypercorn"):
        bare = measure(drivers["bare"], "", server)["bytes"]
        assert bare == pytest.approx(ours, rel=0.02)


def test_a_wrong_number_of_stored_answers_stops_the_run(drivers, tmp_path):
    measure(drivers["ours"], tmp_path / "x", "embedded")
    with pytest.raises(DriverFailed, match="8 answers are stored, not 4"):
        measure(drivers["ours"], tmp_path / "x", "server")


def test_a_server_that_does_not_start_stops_the_run(drivers, tmp_path):
    with pytest.raises(DriverFailed, match=r"this process has ended: .*server"):
        measure(drivers["ours"], tmp_path / "no" / "x", "server")


def respond(response):
    """Send the bytes to the next client. Returns where."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        with listening, listening.accept()[0] as connection:
            connection.recv(10_000)
            connection.sendall(response)

    threading.Thread(target=serve, daemon=True).start()
    return Address(listening.getsockname()[1], token="piece", answer="Paris")


def read(response, what="whole"):
    address = respond(response)
    with address.connect() as connection, connection.makefile("rb") as file:
        connection.sendall(address.request(stream=what == "first"))
        return {"whole": client.whole, "first": client.first}[what](address, file, 0.0)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_whole_and_streamed_answers_are_read_to_their_end():
    assert read(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nParis!!")[1] == 7
    assert read(CHUNKED + b"3\r\nPar\r\n2\r\nis\r\n0\r\n\r\n")[1] == 5
    assert read(CHUNKED + b"3\r\npie\r\n4\r\nce 1\r\n0\r\n\r\n", "first")[1] == 7


@pytest.mark.parametrize(
    ("response", "what", "told"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\n\r\nno", "whole", "401"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nLyon", "whole", "not the answer: b'Lyon'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nParis", "whole", "ended too early"),
        (CHUNKED + b"5\r\nParis\r\n", "whole", "ended too early"),
        (CHUNKED + b"5\r\nParis\r\n0\r\n", "whole", "ended too early"),
        (CHUNKED + b"5\r\nParis\r\n0\r\n\r\n", "first", "no text came"),
    ],
)
def test_a_wrong_or_incomplete_answer_is_an_error(response, what, told):
    with pytest.raises(AssertionError, match=re.escape(told)):
        read(response, what)


def test_forms_and_json_ask_the_same():
    asked = Address(1).request(stream=False).decode()
    assert asked.endswith('"input": "What is the capital of France?", "stream": false}')
    head, _, body = Address(1, form=True).request(stream=True).decode().partition("\r\n\r\n")
    assert body == "message=What+is+the+capital+of+France%3F&stream=true"
    assert f"Content-Length: {len(body)}" in head
