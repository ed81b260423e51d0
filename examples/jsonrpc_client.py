"""A client of the JSON-RPC server in about 30 lines: it asks, and shows the answer as it comes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SERVER = [sys.executable, str(Path(__file__).with_name("jsonrpc_server.py"))]


class Client:
    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.last = 0
        self.events = []

    def call(self, method, **params):
        self.last += 1
        frame = {"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}
        self.process.stdin.write(json.dumps(frame).encode() + b"\n")
        self.process.stdin.flush()
        while (answer := self.read()).get("id") != self.last:
            self.events.append(answer["params"])
        if "error" in answer:
            raise RuntimeError(answer["error"]["message"])
        return answer["result"]

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
    client.process.stdin.close()  # the end of the input ends the server
    client.process.stdout.close()
    return client.process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "example.db"))
