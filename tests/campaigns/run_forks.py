"""Forks bots for `run_driver`: `python -m tests.campaigns.run_forks DESCRIPTOR`.

Each is `python -m hermes.run`, forked from this process, which has imported everything, so that a
start takes milliseconds. The socket with this descriptor receives the arguments of a bot and its
three standard streams. It answers with the process id, and with the exit code after the end.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from hermes.adapters import jsonrpc
from hermes.agents import factory
from hermes.run.__main__ import main

IMPORTED = (jsonrpc, factory)
"""Modules that the bot imports when it needs them."""


def serve(connection: socket.socket) -> None:
    """Fork bots, one at a time, until the connection ends."""
    while True:
        message, streams, _, _ = socket.recv_fds(connection, 65536, 3)
        if not message:
            return
        pid = os.fork()
        if not pid:
            connection.close()
            run(json.loads(message), streams)
        for stream in streams:
            os.close(stream)
        connection.sendall(f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.sendall(f"{code}\n".encode())


def run(arguments: list[str], streams: list[int]) -> None:
    """Run a bot on these standard streams; does not return."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    code = 1
    try:
        code = main(arguments)
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
