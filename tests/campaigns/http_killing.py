"""The program of test_http_kills: the stock SDK, and a server that is killed at named points.

Each case is a request, or two, and a point at which the server is killed: a call or a return of a
function, or the last of several in this order. The SDK retries by itself, without knowing of it,
and the next server on the same port and database answers. A stream that breaks after its first
event is resumed as the documentation says, with `starting_after`.

The server is the command `hermes run --http` with a model, or `serve_http` in a program. A case has
its own processes: a client, and one server after the other, forked from this one so that a start
costs milliseconds. Some of the commands are new processes. Mutants are triggers in the database.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

import attrs
import httpx2
import openai
import trio

from hermes import Config, TextDelta, open_runtime
from hermes.adapters.http import HttpConfig, serve_http
from hermes.adapters.http.credentials import digest_of, new_id, new_secret
from hermes.agents import factory
from hermes.cli.main import main as hermes
from hermes.messages import Token
from hermes.run import __main__ as run_module
from hermes.store import SessionStore
from hermes.testing import open_model
from hermes.user_code import contained
from tests.support.folders import quick_folder

IMPORTED = (factory, run_module)
"""Modules that the command imports when it needs them."""
CONFIG = Config(max_attempts=100)
SETTINGS = """
data = "{path}"
socket = false
[agent]
kind = "openai"
model = "m"
base_url = "{model}"
[runtime]
max_attempts = 100
"""
"""The configuration of the command."""
LISTENS = b"HTTP: "
"""What the command logs when it listens."""
PATIENCE = 60.0
RETRIES = 20
"""Enough for a machine on which a start takes a minute."""
ACCEPT = ("responses/rows.py", "add", "call")
COMMITTED = ("group_commit.py", "commit_group", "return")
TURN = ("conversations/turns.py", "commit_turn", "call")
ENDED = ("responses/rows.py", "end_connection", "call")
SENT = ("http/socket_connections.py", "_write", "call")
ANSWER = ("session/turn.py", "_run_agent", "call")
EMIT = ("session/running_turn.py", "emit", "return")
POINTS = {
    "before the body is read": [("http/endpoints.py", "body", "call")],
    "before the accept": [("openai/acceptance.py", "accept", "call")],
    "in the accept": [ACCEPT],
    "after the accept": [ACCEPT, COMMITTED],
    "in the turn": [ANSWER],
    "late in the turn": [ANSWER, EMIT],
    "in the commit of the turn": [TURN],
    "after the commit of the turn": [TURN, COMMITTED],
    "before the response is written": [TURN, COMMITTED, SENT],
    "while the response is written": [TURN, COMMITTED, SENT, SENT],
    "before the connection is recorded": [ENDED],
    "after the connection is recorded": [ENDED, COMMITTED],
}
"""Where a server is killed: functions by the end of their file's name, in this order."""
MODES = (
    "plain", "stream", "background", "history", "chat", "plain with a key", "stream with a key",
    "background with a key", "history with a key", "chat with a key", "chat stream with a key",
)  # fmt: skip
TWICE = ("plain", "stream", "chat", "history with a key", "stream with a key")
SAID = [{"role": "user", "content": "before"}, {"role": "assistant", "content": "well"}]
"""The history that a client brings."""
SERVERS = ("command", "program")
NEW_PROCESS = "new command"
MUTANTS = {
    "forgets bodies": "AFTER INSERT ON responses "
    "BEGIN UPDATE responses SET digest = NEW.id WHERE id = NEW.id; END",
    "forgets keys": "AFTER INSERT ON responses WHEN NEW.idempotency_key IS NOT NULL BEGIN "
    "UPDATE responses SET idempotency_key = NULL WHERE id = NEW.id; "
    "UPDATE inbox SET event_id = NEW.id WHERE id = NEW.inbox_id; END",
    "never complete": "AFTER UPDATE OF connection ON responses WHEN NEW.connection = 'complete' "
    "BEGIN UPDATE responses SET connection = 'open' WHERE id = NEW.id; END",
    "attaches twice": "AFTER UPDATE OF connection ON responses WHEN NEW.connection = 'open' "
    "BEGIN UPDATE responses SET connection = 'cut', cut_at = 9e9 WHERE id = NEW.id; END",
    "loses replies": "AFTER UPDATE OF reply ON responses WHEN NEW.reply IS NOT NULL "
    "BEGIN UPDATE responses SET reply = json_set(NEW.reply, '$.text', 'no') "
    "WHERE id = NEW.id; END",
    "writes twice": "AFTER UPDATE OF cut_at ON responses "
    "WHEN NEW.connection = 'open' AND NEW.cut_at IS NOT NULL "
    "BEGIN UPDATE responses SET connection = 'cut' WHERE id = NEW.id; END",
}


# The server


class Switch:
    """Kills the process once its steps have been seen in this order."""

    def __init__(self, steps):
        self.steps = list(steps)

    def __call__(self, frame, event, _):
        file, function, wanted = self.steps[0]
        code = frame.f_code
        if event == wanted and code.co_name == function and code.co_filename.endswith(file):
            del self.steps[0]
            if not self.steps:
                os.kill(os.getpid(), signal.SIGKILL)

    def arm(self):
        threading.setprofile(self)  # for the threads of the store
        sys.setprofile(self)


async def answer(turn):
    turn.emit(TextDelta("echo"))
    await trio.sleep(0.01)
    turn.emit(TextDelta(": "))
    await trio.lowlevel.checkpoint()
    return f"echo: {turn.text}"


async def serve(path, port, ready):
    """Serve until the process is killed or terminated."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with (
            open_runtime(path, agent=answer, config=CONFIG) as runtime,
            serve_http(runtime, HttpConfig(port=port)),
        ):
            os.write(ready, LISTENS)
            await anext(signals)


def run_command(arguments, steps, errors):
    """Be the command `hermes run`, with its standard error at a descriptor."""
    os.dup2(errors, 2)
    if steps:
        Switch(steps).arm()
    if code := hermes(["run", *arguments]):
        raise AssertionError(f"hermes run ended with {code}")


async def serve_model(ready):
    """Be the model, until the process is killed."""
    async with open_model(lambda _: "echo: yes", keep=1) as model:
        os.write(ready, f"{model.openai_url}\n".encode())
        await trio.sleep_forever()


# The client


@attrs.define
class Client:
    """Sends requests with the stock SDK, and reports what it got."""

    port: int
    secret: str
    got: list = attrs.Factory(list)

    def run(self, mode, text, name):
        """Send one request, and get its answer."""
        with openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key=self.secret, max_retries=RETRIES
        ) as client:
            headers = {"Idempotency-Key": name} if "key" in mode else {}
            if mode.startswith("stream"):
                self.stream(client, text, headers)
            elif mode.startswith("chat stream"):
                self.chat_stream(client, text, headers)
            elif mode.startswith("chat"):
                got = client.chat.completions.create(
                    model="hermes", messages=user(text), extra_headers=headers
                )
                text = got.choices[0].message.content
                self.got.append({"id": got.id, "text": text, "status": "completed"})
            else:
                background = mode.startswith("background")
                given = [*SAID, *user(text)] if mode.startswith("history") else text
                got = client.responses.create(
                    model="hermes", input=given, background=background, extra_headers=headers
                )
                while got.status in {"queued", "in_progress"}:
                    got = client.responses.retrieve(got.id)
                self.got.append({"id": got.id, "text": got.output_text, "status": got.status})

    def chat_stream(self, client, text, headers):
        """Read the chunks of a completion to their end; it is asked for again if they break."""
        ids, seen = set(), None
        while seen is None:
            with contextlib.suppress(openai.APIConnectionError, httpx2.HTTPError):
                stream = client.chat.completions.create(
                    model="hermes", messages=user(text), stream=True, extra_headers=headers
                )
                with stream:
                    chunks = list(stream)
                ids |= {each.id for each in chunks}
                if chunks and chunks[-1].choices[0].finish_reason == "stop":
                    seen = "".join(each.choices[0].delta.content or "" for each in chunks)
        if len(ids) > 1:
            self.got.append({"error": f"one completion has the ids {ids}"})
        self.got.append({"id": ids.pop(), "text": seen, "status": "completed"})

    def stream(self, client, text, headers):
        """Read a stream to its end; it is resumed if it breaks."""
        seen = {"id": None, "after": -1, "text": None, "status": None}
        while seen["text"] is None:
            with contextlib.suppress(openai.APIConnectionError, httpx2.HTTPError):
                if seen["id"] is None:
                    stream = client.responses.create(
                        model="hermes", input=text, stream=True, extra_headers=headers
                    )
                else:
                    stream = client.responses.retrieve(
                        seen["id"], stream=True, starting_after=seen["after"]
                    )
                self.read(stream, seen)
            if seen["id"] is None and not headers:
                seen["text"] = "unknown"  # nothing was seen: only a person can repeat it
        self.got.append(seen)

    def read(self, stream, seen):
        with stream:
            for event in stream:
                if event.sequence_number <= seen["after"]:
                    self.got.append({"error": f"{event.sequence_number} came again: {seen}"})
                seen["after"] = event.sequence_number
                if event.type == "response.created":
                    if seen["id"] not in {None, event.response.id}:
                        self.got.append({"error": f"{event.response.id} after {seen}"})
                    seen["id"] = event.response.id
                if event.type in {"response.completed", "response.failed", "response.incomplete"}:
                    seen["text"] = event.response.output_text
                    seen["status"] = event.response.status


def user(text):
    return [{"role": "user", "content": text}]


# One case


def free_port():
    """A port that no outgoing connection takes between two servers."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@attrs.frozen
class Case:
    """Requests that are sent at once or one after the other, and where the servers are killed."""

    point: str
    mode: str
    kills: int = 1
    requests: int = 1
    together: bool = True
    """Whether equal requests are sent at once; if not, the first one ends before any kill."""
    server: str = "program"

    @property
    def steps(self):
        """Of two requests at once, both are accepted before a later point.

        A retry of one that was lost before may get the response to the other, as documented.
        """
        later = list(POINTS).index(self.point) > list(POINTS).index("after the accept")
        both = [ACCEPT, ACCEPT, COMMITTED] if self.together and self.requests > 1 else []
        return [*(both if later else []), *POINTS[self.point]]

    @property
    def name(self):
        of = f"{self.kills}x, {self.requests} requests, {self.server}"
        return f"{self.point}, {self.mode}, {of}"


@attrs.define
class Trial:
    """A case that is tried in a folder of its own."""

    case: Case
    path: Path
    mutant: str
    model: str
    """The URL of the model."""
    secret: str = attrs.Factory(new_secret)
    port: int = attrs.Factory(free_port)
    killed: int = 0
    server: int = 0
    log: int | None = None
    """What the server writes to standard error."""

    def prepare(self):
        with SessionStore(self.path) as store:
            token = Token(
                id=new_id("tok"), name="ann", namespace="ann", roles=("user",), created_at=0.0
            )
            store.add_token(token, digest_of(self.secret))
            if self.mutant:
                store.transact(lambda tx: tx.run(f"CREATE TRIGGER mutant {MUTANTS[self.mutant]}"))

    def start(self, steps=()):
        """Start a server, and wait until it listens or was killed."""
        reading, writing = os.pipe()
        if self.case.server == NEW_PROCESS:
            self.server = self.new_process(steps, writing)
        else:
            self.server = fork(lambda: self.serve(steps, writing))
        os.close(writing)
        self.close_log()
        self.log, seen = reading, b""
        while LISTENS not in seen and (piece := os.read(reading, 4096)):
            seen += piece

    def serve(self, steps, writing):
        if self.case.server == "command":
            run_command(self.arguments(), steps, writing)
            return
        if steps:
            Switch(steps).arm()
        trio.run(serve, self.path, self.port, writing)

    def new_process(self, steps, writing):
        """Start `python -m hermes run`, or the same with a switch. Returns the process id."""
        module = ["tests.campaigns.http_killing", "serve", json.dumps(steps)] if steps else []
        command = [sys.executable, "-m", *(module or ["hermes", "run"]), *self.arguments()]
        errors = [(os.POSIX_SPAWN_DUP2, writing, 2)]
        return os.posix_spawn(sys.executable, command, os.environ, file_actions=errors)

    def arguments(self):
        settings = self.path.with_name("hermes.toml")
        settings.write_text(SETTINGS.format(path=self.path, model=self.model))
        return ["--config", str(settings), "--http", f"127.0.0.1:{self.port}"]

    def close_log(self):
        if self.log is not None:
            os.close(self.log)
        self.log = None

    def stop(self):
        os.kill(self.server, signal.SIGTERM)
        if code := exit_code(self.server):
            raise AssertionError(f"a server ended with {code}")
        self.close_log()

    def ask(self, modes, steps=()):
        """Send requests at once, and kill servers. Returns what the clients got."""
        self.start(steps)
        reading, writing = os.pipe()
        client = fork(lambda: self.send(modes, writing))
        os.close(writing)
        watched, left = os.pidfd_open(self.server), self.case.kills - 1
        while select.select([reading, watched], [], [], PATIENCE)[0] != [reading]:
            if not select.select([watched], [], [], 0)[0]:
                os.kill(client, signal.SIGKILL)
                raise AssertionError(f"no answer after {PATIENCE} s")
            os.close(watched)
            if (code := exit_code(self.server)) != -signal.SIGKILL:
                raise AssertionError(f"a server ended with {code}: {os.read(self.log, 10_000)}")
            self.killed += 1
            self.start(steps if left > 0 else ())
            watched, left = os.pidfd_open(self.server), left - 1
        os.close(watched)
        with os.fdopen(reading, "rb") as report:
            got = json.loads(report.read() or b'[{"error": "the client died"}]')
        exit_code(client)
        self.stop_or_reap()
        return got

    def stop_or_reap(self):
        """Stop the server; it may have been killed after the last answer."""
        os.kill(self.server, signal.SIGTERM)
        code = exit_code(self.server)
        self.killed += code == -signal.SIGKILL
        if code not in {0, -signal.SIGKILL}:
            raise AssertionError(f"a server ended with {code}")

    def send(self, modes, writing):
        client = Client(self.port, self.secret)
        threads = [
            threading.Thread(target=report_errors, args=(client, mode, f"key {number}"))
            for number, mode in enumerate(modes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.write(writing, json.dumps(client.got).encode())

    def run(self):
        """Try the case. Yields violations."""
        case, got = self.case, []
        self.prepare()
        modes = [case.mode] * case.requests
        if not case.together:
            got += self.ask([modes.pop()])
        got += self.ask(modes, case.steps)
        self.start()  # what is left is answered, and a stop is clean
        self.stop()
        if not self.killed:
            yield "no server was killed"
        yield from self.violations(got)

    def violations(self, got):
        yield from (each["error"] for each in got if "error" in each)
        answers = [each for each in got if "error" not in each]
        with SessionStore(self.path) as store:

            def ask(sql):
                return store.snapshot(lambda tx: tx.all(sql))

            stored = dict(ask("SELECT id, reply ->> '$.text' FROM responses"))
            messages = ask("SELECT id FROM inbox")
            left = ask("SELECT id FROM inbox WHERE state <> 'done'")
            said = ask("SELECT id FROM all_messages WHERE role = 'user'")
            yield from store.integrity_check()
        unknown = sum(each["text"] == "unknown" for each in answers)
        rows = {"chat": 0, "history": 2}.get(self.case.mode.split()[0], 1)
        counts = {
            "responses": (stored, self.case.requests),
            "messages": (messages, self.case.requests),
            "messages of users": (said, self.case.requests * rows),
            "answers": (answers, self.case.requests),
        }
        for name, (found, wanted) in counts.items():
            if not wanted - unknown <= len(found) <= wanted:
                yield f"{len(found)} {name} instead of {wanted}"
        yield from (f"message {row[0]} was not answered" for row in left)
        seen = [each for each in answers if each["text"] != "unknown"]
        if len({each["id"] for each in seen}) < len(seen):
            yield f"two requests got one response: {seen}"
        for each in seen:
            if (each["text"], each["status"]) != ("echo: yes", "completed"):
                yield f"the answer is {each}"
            if stored.get(each["id"]) != each["text"]:
                yield f"{each['id']} is not stored: {stored}"


def report_errors(client, mode, name):
    with contained() as caught:
        client.run(mode, "yes", name)
    if caught.error is not None:
        client.got.append(
            {"error": f"{mode}: {traceback.format_exception(caught.error, limit=-3)}"}
        )


def fork(function):
    """Call a function in a new process. Returns its id."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)
    return pid


def exit_code(pid):
    """Wait for a process; it is killed if it does not end."""
    watched = os.pidfd_open(pid)
    if not select.select([watched], [], [], PATIENCE)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(watched)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# All cases

KEYED = ("plain", "plain with a key")
CASES_OF_MUTANTS = {
    "never complete": [Case("before the accept", "plain", requests=2, together=False)],
    "attaches twice": [Case("after the accept", "plain", requests=2)],
    "writes twice": [Case("before the connection is recorded", "plain", requests=2)],
}
"""Others are tried with one request that is accepted."""


def cases(short, seed):
    """Every point in every mode; in the short form, every point in one mode."""
    points = list(POINTS)
    for number, point in enumerate(points):
        modes = [MODES[(number + seed) % len(MODES)]] if short else MODES
        yield from (Case(point, mode) for mode in modes)
    for point in points[3:4] if short else points:
        modes = ("plain",) if short else TWICE
        yield from (Case(point, mode, requests=2) for mode in modes)
    yield Case("before the accept", "plain", requests=2, together=False)
    if not short:
        yield from (Case(point, mode, kills=2) for point in points for mode in TWICE)
        yield Case("before the body is read", "plain", requests=2, together=False)
        yield Case("before the accept", "plain", kills=2, requests=2, together=False)


def with_servers(wanted, seed):
    """Let the command and the program serve by turns; one command of ten is a new process."""
    for number, case in enumerate(wanted, seed):
        server = SERVERS[number % len(SERVERS)]
        if number % (10 * len(SERVERS)) == 0:
            server = NEW_PROCESS
        yield attrs.evolve(case, server=server)


def try_case(case, mutant, model, writing):
    """Try a case in this process, and report its violations."""
    with quick_folder() as folder:
        trial = Trial(case, folder / "state.db", mutant, model)
        found = []
        with contained() as caught:
            found += [f"{case.name}: {each}" for each in trial.run()]
        if caught.error is not None:
            found.append(f"{case.name}: {traceback.format_exception(caught.error, limit=-3)}")
        os.write(writing, json.dumps({"kills": trial.killed, "violations": found}).encode())


def run(wanted, mutant, model, workers):
    """Try cases, some at a time. Returns their number, the kills and the violations."""
    waiting, running = list(wanted), {}
    kills, violations = 0, []
    while waiting or running:
        while waiting and len(running) < workers:
            case = waiting.pop(0)
            reading, writing = os.pipe()
            pid = fork(lambda case=case, writing=writing: try_case(case, mutant, model, writing))
            os.close(writing)
            running[reading] = pid
        for reading in select.select(list(running), [], [])[0]:
            with os.fdopen(reading, "rb") as report:
                found = json.loads(report.read() or b'{"kills": 0, "violations": ["it died"]}')
            exit_code(running.pop(reading))
            kills += found["kills"]
            violations += found["violations"]
    return {"kills": kills, "violations": violations}


def main(form, seed, mutant=""):
    """Run one form of the campaign, and print the results as JSON."""
    started = time.monotonic()
    wanted = list(cases(form != "long", int(seed)))
    if mutant:
        wanted = CASES_OF_MUTANTS.get(mutant, [Case("after the accept", mode) for mode in KEYED])
    reading, writing = os.pipe()
    model = fork(lambda: trio.run(serve_model, writing))
    with os.fdopen(reading) as url:
        address = url.readline().strip()
    report = run(with_servers(wanted, int(seed)), mutant, address, workers=6)
    os.kill(model, signal.SIGKILL)
    exit_code(model)
    report |= {"cases": len(wanted), "seconds": round(time.monotonic() - started, 1)}
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    os.environ["OPENAI_API_KEY"] = "sk-campaign"
    if sys.argv[1] == "serve":
        run_command(sys.argv[3:], json.loads(sys.argv[2]), errors=2)
    else:
        main(*sys.argv[1:])
