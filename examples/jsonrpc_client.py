"""A client for jsonrpc_server.py: sends a message and prints the answer while it is streamed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SERVER = [sys.executable, str(Path(__file__).with_name("jsonrpc_server.py"))]


class Client:
    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.last_id = 0
        self.events = []

    def call(self, method, **params):
        self.last_id += 1
        frame = {"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}
        self.process.stdin.write(json.dumps(frame).encode() + b"\n")
        self.process.stdin.flush()
        while (response := self.read()).get("id") != self.last_id:
            self.events.append(response["params"])
        if "error" in response:
            raise RuntimeError(response["error"]["message"])
        return response["result"]

    def read(self):
        return json.loads(self.process.stdout.readline())

    def event(self):
        return self.events.pop(0) if self.events else self.read()["params"]


def main(path):
    client = Client(*SERVER, path)
    session = client.call("session.create")["session_id"]
    client.call("prompt.submit", session_id=session, text="hello over there")
    while (event := client.event())["type"] != "message.complete":
        if event["type"] == "message.delta":
            print(event["payload"]["text"], end="", flush=True)
    print(f"\n{event['payload']['status']}: {event['payload']['text']}")
    client.process.stdin.close()  # at the end of its input, the server ends
    client.process.stdout.close()
    return client.process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "example.db"))
