"""The program of test_jsonrpc_kills: a JSON-RPC client, and a bot that is killed over and over.

The client sends each prompt until it has the answer, and some of them again afterwards. The bot is
`python -m hermes.run --stdio`, forked from this process so that a kill costs milliseconds. It is
killed at a random moment, and what it has written may be lost, too. Before it sends prompts, the
client opens its conversations again, by name or by any id that it has ever been told. Between them,
conversations are reset and expire. The last two bots answer what is left, and end by themselves;
they get every prompt again that was answered before. Some prompts have a file inside, whose name
belongs to no other. Mutants are triggers in the database.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import selectors
import signal
import sys
import time
from pathlib import Path

import attrs

from hermes.adapters import jsonrpc
from hermes.run.__main__ import main as run_bot
from hermes.store import SessionStore

CONVERSATIONS = 4
IN_FLIGHT = 3
WINDOW = 20
"""Requests of a conversation without a response; further prompts wait."""
MOST_SECONDS = 0.5
PATIENCE = 60.0
SETTINGS = """
data = "{path}"
[agent]
kind = "offline"
[runtime]
merge_messages = false
max_attempts = 1000000
[expiry]
mode = "idle"
idle_minutes = 0.003
"""
MUTANTS = {
    "forgets events": "AFTER INSERT ON inbox "
    "BEGIN UPDATE inbox SET event_id = event_id || '@' || id WHERE id = NEW.id; END",
    "stores another reply": "AFTER UPDATE OF reply ON inbox WHEN NEW.reply IS NOT NULL "
    "BEGIN UPDATE inbox SET reply = json_set(NEW.reply, '$.text', 'no') WHERE id = NEW.id; END",
    "loses a message": "AFTER INSERT ON arrivals WHEN NEW.role = 'user' AND NEW.n % 5 = 0 "
    "BEGIN DELETE FROM arrivals WHERE id = NEW.id; END",
    "loses a file": "AFTER INSERT ON session_files "
    "BEGIN DELETE FROM session_files WHERE file_id = NEW.file_id; END",
}
assert jsonrpc  # imported before the fork


@attrs.define
class Prompt:
    """A prompt, and the answer once the client has it."""

    event_id: str
    text: str
    file: str | None = None
    """The name of its file."""
    answer: dict | None = None

    @property
    def complete(self):
        return self.answer is not None and self.answer["status"] == "complete"

    @property
    def parts(self):
        if self.file is None:
            return []
        return [{"data": base64.b64encode(content_of(self.file)).decode(), "name": self.file}]


def content_of(name):
    return f"the content of {name} ".encode() * 1000


@attrs.define
class Chat:
    """What the client knows about a conversation. Without a name, it has not been opened yet."""

    name: str | None
    prompts: list = attrs.Factory(list)
    told: list = attrs.Factory(list)
    """The stored ids that were announced."""
    handle: str | None = None
    waiting: dict = attrs.Factory(dict)
    """Prompts that were accepted in this life, by message id."""
    unsent: list = attrs.Factory(list)
    """Prompts that are to be sent in this life."""
    sent: int = 0
    """How many of them have no response yet."""

    @property
    def open(self):
        return [prompt for prompt in self.prompts if prompt.answer is None]


@attrs.define
class Client:
    """A client that survives the bot."""

    path: Path
    dice: random.Random
    chats: list
    counter: itertools.count = attrs.Factory(itertools.count)
    violations: list = attrs.Factory(list)
    repeated: int = 0
    requests: dict = attrs.Factory(dict)
    writing: int = -1
    last: bool = False

    # Requests

    def send(self, method, then, **params):
        """Send a request; `then` is called with its response."""
        number = next(self.counter)
        self.requests[number] = then
        frame = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        os.write(self.writing, json.dumps(frame).encode() + b"\n")

    def reopen(self, chat):
        chat.handle, chat.waiting, chat.unsent, chat.sent = None, {}, [], 0

        def opened(frame):
            if "error" in frame or chat.name not in {None, frame["result"]["conversation"]}:
                self.violations.append(f"{chat.name} was opened as {frame}")
                return
            chat.handle, chat.name = frame["result"]["session_id"], frame["result"]["conversation"]
            done = [prompt for prompt in chat.prompts if prompt.answer is not None]
            again = done if self.last else self.dice.sample(done, min(len(done), 2))
            chat.unsent = self.dice.sample(chat.open + again, len(chat.open + again))
            self.submit_more(chat)

        if chat.told and self.dice.random() < 0.4:
            self.send("session.resume", opened, session_id=self.dice.choice(chat.told))
        else:
            name = {} if chat.name is None else {"conversation": chat.name}
            self.send("session.create", opened, **name)

    def submit_more(self, chat):
        while len(chat.open) < IN_FLIGHT and not self.last:
            number = len(chat.prompts)
            text = "/new" if self.dice.random() < 0.1 else f"{chat.name} says {number}"
            has_file = text != "/new" and self.dice.random() < 0.3
            file = f"{text.replace('/', '-')}.txt" if has_file else None
            chat.prompts.append(Prompt(f"e{number}", text, file))
            chat.unsent.append(chat.prompts[-1])
        while chat.unsent and chat.sent < WINDOW:
            self.submit(chat, chat.unsent.pop(0))

    def submit(self, chat, prompt):
        chat.sent += 1

        def submitted(frame):
            chat.sent -= 1
            self.submit_more(chat)
            if "error" in frame:
                self.violations.append(f"{prompt} was refused: {frame}")
            elif frame["result"]["status"] != "answered":
                chat.waiting[frame["result"]["message_id"]] = prompt
            elif "reply" not in frame["result"]:
                self.violations.append(f"{prompt} has no reply: {frame}")
            else:
                self.answered(chat, prompt, frame["result"]["reply"])

        self.send(
            "prompt.submit", submitted,
            session_id=chat.handle, text=prompt.text, event_id=prompt.event_id, parts=prompt.parts,
        )  # fmt: skip

    def answered(self, chat, prompt, answer):
        known = prompt.answer
        prompt.answer = {key: answer[key] for key in ("turn_id", "text", "status")}
        if prompt.answer["status"] == "interrupted":  # only the event itself has the text so far
            prompt.answer["text"] = ""
        if known is not None:
            self.repeated += 1
            if known != prompt.answer:
                self.violations.append(f"{prompt} had another answer: {known}")
        self.submit_more(chat)

    # Frames

    def receive(self, line):
        frame = json.loads(line)
        if "id" in frame:
            self.requests.pop(frame["id"])(frame)
            return
        event = frame["params"]
        chat = next((each for each in self.chats if each.handle == event["session_id"]), None)
        if event["type"] == "session.info" and chat is not None:
            chat.told.append(event["payload"]["stored_session_id"])
        if event["type"] == "message.complete" and chat is not None:
            for message_id in event["payload"]["message_ids"]:
                # An answer that comes before its response is in the response.
                if message_id in chat.waiting:
                    self.answered(chat, chat.waiting.pop(message_id), event["payload"])

    # Lives

    def fork(self):
        theirs_in, self.writing = os.pipe()
        reading, theirs_out = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(self.writing)
            os.close(reading)
            os.dup2(theirs_in, 0)
            os.dup2(theirs_out, 1)
            code = run_bot(["--stdio", "--config", str(self.path.with_suffix(".toml"))])
            os._exit(code)
        os.close(theirs_in)
        os.close(theirs_out)
        return pid, reading

    def life(self, *, last=False):
        """Run a bot until it is killed; the last ones until everything is answered."""
        self.last, self.requests = last, {}
        pid, reading = self.fork()
        for chat in self.chats:
            self.reopen(chat)
        partial, death = b"", time.monotonic() + PATIENCE
        doomed = False
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            while self.requests or any(chat.open for chat in self.chats) or not last:
                if not selector.select(max(0.0, death - time.monotonic())):
                    break
                *lines, partial = (partial + os.read(reading, 65536)).split(b"\n")
                for line in lines:
                    self.receive(line)
                if not doomed and not last and any(chat.handle for chat in self.chats):
                    doomed, death = True, time.monotonic() + self.dice.random() * MOST_SECONDS
                if doomed and time.monotonic() > death:
                    break
        if not last:
            os.kill(pid, signal.SIGKILL)
        os.close(self.writing)
        os.close(reading)  # what was written but not read is lost
        self.check_exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def check_exit(self, code):
        if code != (0 if self.last else -signal.SIGKILL):
            self.violations.append(f"a bot ended with {code}")


# Violations in the file


def violations(client):
    """Yield all violations."""
    yield from client.violations
    with SessionStore(client.path) as store:

        def ask(sql):
            return store.snapshot(lambda tx: tx.all(sql))

        said = dict(
            ask("SELECT content, count(*) FROM all_messages WHERE role = 'user' GROUP BY 1")
        )
        events = dict(ask("SELECT event_id, count(*) FROM inbox GROUP BY 1"))
        files = ask("SELECT f.name, f.hash FROM session_files u JOIN files f ON f.id = u.file_id")
        yield from (
            f"{row} is not done" for row in ask("SELECT id FROM inbox WHERE state <> 'done'")
        )
    for chat in client.chats:
        for prompt in chat.prompts:
            times = said.get(prompt.text, 0)
            yield from prompt_violations(
                prompt, events.get(f"{chat.name}:{prompt.event_id}", 0), times
            )
            found = [hash_ for name, hash_ in files if name == prompt.file]
            if prompt.file is not None and contents(client.path, found) != [prompt.file] * times:
                yield f"{prompt} was said {times} times, but has the files {found}"
    done = [prompt for chat in client.chats for prompt in chat.prompts if prompt.complete]
    resets = sum(prompt.text == "/new" for prompt in done)  # a later command may cancel one
    if changes(client.path).get("session_reset", 0) != resets:
        yield f"there were {resets} resets, but {changes(client.path)}"


def contents(path, hashes):
    """The names of the files with these hashes, as their content has them."""
    folder = path.with_name(f"{path.name}.blobs")
    blobs = [(folder / hash_[:2] / hash_).read_text() for hash_ in hashes]
    return [blob.partition("the content of ")[2].partition(" the content")[0] for blob in blobs]


def prompt_violations(prompt, accepted, said):
    if prompt.answer is None:
        yield f"{prompt} has no answer"
    if accepted != 1:
        yield f"{prompt} was accepted {accepted} times"
    if prompt.text == "/new":
        return
    if said > 1 or (prompt.complete and (not said or prompt.text not in prompt.answer["text"])):
        yield f"{prompt} was said {said} times"


def changes(path):
    """How often conversations began a new session, by reason."""
    sql = "SELECT reason, count(*) FROM boundaries WHERE event = 'on_session_reset' GROUP BY 1"
    with SessionStore(path) as store:
        return dict(store.snapshot(lambda tx: tx.all(sql)))


def main(path, kills, seed, mutant=""):
    """Kill the bot this many times, and print the results as JSON."""
    if mutant:
        with SessionStore(path) as store:
            store.transact(lambda tx: tx.run(f"CREATE TRIGGER mutant {MUTANTS[mutant]}"))
    path.with_suffix(".toml").write_text(SETTINGS.format(path=path))
    names = [None, *(f"chat/{number}" for number in range(1, CONVERSATIONS))]
    client = Client(path, random.Random(seed), [Chat(name) for name in names])
    for _ in range(kills):
        client.life()
    for _ in range(2):
        client.life(last=True)
    prompts = [prompt for chat in client.chats for prompt in chat.prompts]
    report = {
        "prompts": len(prompts),
        "complete": sum(prompt.complete for prompt in prompts),
        "repeated": client.repeated,
        "announced": sum(len(chat.told) for chat in client.chats),
        "changes": changes(client.path),
        "violations": list(violations(client))[:20],
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
