"""`hermes web` and `--open`: a browser is opened, signed in, and no token can be seen."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx2
import pytest

from hermes.adapters.http.credentials import digest_of
from hermes.adapters.http.web.people import OPERATOR
from hermes.cli.main import main
from hermes.messages import Source, Token
from hermes.run import page
from hermes.store import SessionStore

HERMES = [sys.executable, "-P", "-W", "error", "-m", "hermes"]
SECONDS = 60
LINK = re.compile(r'href="([^"]+)"')
BROWSER = """\
#!/bin/sh
# What a browser is given, what everybody sees of it, and the file that it opens.
printf '%s' "$1" > {folder}/argument.part && mv {folder}/argument.part {folder}/argument
"""


class Machine:
    """A folder with a database, and a browser that only notes what it is given."""

    def __init__(self, folder):
        self.folder = folder
        self.path = folder / "chat.db"
        self.bots = []
        script = folder / "browser"
        script.write_text(BROWSER.format(folder=folder))
        script.chmod(0o700)
        self.environment = {**os.environ, "BROWSER": f"{script} %s"}

    def run(self, *arguments, **options):
        """Start the command; its output goes to a file."""
        log = (self.folder / f"log{len(self.bots)}").open("wb+")
        bot = subprocess.Popen(
            [*HERMES, *arguments, "--db", str(self.path)], stdin=subprocess.PIPE, stdout=log,
            stderr=log, env=self.environment, **options,
        )  # fmt: skip
        self.bots.append((bot, log))
        return bot

    def log(self):
        """What all commands have printed."""
        return "".join(Path(log.name).read_text() for _, log in self.bots)

    def until(self, find):
        """Wait until something is found while the last command runs."""

        def alive():
            bot, _ = self.bots[-1]
            assert bot.poll() in {None, 0, -signal.SIGKILL}, self.log()
            return find()

        return until(alive)

    def opened(self):
        """Wait for the browser; returns its argument, the file and the link in it."""
        argument = self.until(lambda: read(self.folder / "argument"))
        file = Path(unquote(urlsplit(argument).path))
        return argument, file, LINK.search(file.read_text())[1].replace("&#x27;", "'")

    def url(self):
        """Wait until a bot serves HTTP; returns its URL."""
        return self.until(lambda: re.search(r"HTTP: (\S+)/v1", self.log()))[1]

    def end(self):
        for bot, log in self.bots:
            if bot.poll() is None:
                bot.kill()
            bot.communicate(timeout=SECONDS)
            log.close()


def read(path):
    return path.read_text() if path.exists() else None


def until(find):
    """Wait until something is found, and return it."""
    deadline = time.monotonic() + SECONDS
    while not (found := find()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def sign_in(link):
    """Do what the page does with a link; returns the status, the body, and that of /api/status."""
    url, _, token = link.partition("/#token=")
    with httpx2.Client(base_url=url, headers={"Origin": url}, timeout=SECONDS) as client:
        answer = client.post("/api/sign-in", json={"token": token})
        return answer.status_code, answer.json(), client.get("/api/status").status_code


@pytest.fixture
def machine(tmp_path):
    opened = Machine(tmp_path)
    yield opened
    opened.end()


@pytest.fixture
def web(path, capsys):
    """Run `hermes web` in this process; returns the exit code, stdout and stderr."""

    def run(*arguments):
        try:
            code = main(["web", *arguments, "--db", str(path)])
        except SystemExit as usage_error:
            code = usage_error.code
        return code, *capsys.readouterr()

    return run


def processes():
    """The arguments of all processes."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(each.read_bytes())
        except OSError:  # it has ended
            continue
    return b"\n".join(found)


def test_open_starts_a_browser_that_is_signed_in_and_shows_no_token(machine):
    bot = machine.run("run", "--http", "127.0.0.1:0", "--open")
    argument, file, link = machine.opened()
    token = link.partition("#token=")[2]
    assert link.startswith(machine.url())
    assert argument.startswith("file:///")
    assert token not in argument
    assert token.encode() not in processes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert '<meta name="referrer" content="no-referrer">' in file.read_text()
    assert f'http-equiv="refresh" content="0; url={link}"' in file.read_text()
    status, me, operators = sign_in(link)
    assert (status, me["roles"], operators) == (200, ["operator"], 200)
    until(lambda: not file.exists())  # as soon as it was used
    until(lambda: not file.parent.exists())
    assert sign_in(link)[0] == 403
    bot.send_signal(signal.SIGTERM)
    assert bot.wait(SECONDS) == 0
    assert token not in machine.log()
    for each in machine.folder.iterdir():
        assert not each.is_file() or token.encode() not in each.read_bytes()


def test_what_a_killed_bot_has_left_is_removed_at_the_next_start(machine):
    bot = machine.run("run", "--http", "127.0.0.1:0", "--open")
    _, file, link = machine.opened()
    bot.kill()
    bot.wait(SECONDS)
    assert file.exists()
    machine.environment["BROWSER"] = "false %s"
    machine.run("run", "--http", "127.0.0.1:0")
    machine.until(lambda: machine.log().count("HTTP: ") == 2)
    until(lambda: not file.parent.exists())
    url = re.findall(r"HTTP: (\S+)/v1", machine.log())[1]
    _, _, token = link.partition("/#token=")
    assert sign_in(f"{url}/#token={token}")[0] == 403


def test_without_a_browser_one_sentence_says_what_to_do(machine):
    machine.environment |= {"BROWSER": "/nonexistent/browser %s"}
    machine.run("run", "--open", "--http", "127.0.0.1:0")
    machine.until(lambda: "no browser can be opened on this machine" in machine.log())
    assert re.search(r"to print a link that signs in: .*hermes.* web --print", machine.log())
    assert "Traceback" not in machine.log()
    assert "hml_" not in machine.log()


def test_web_signs_in_to_a_bot_that_runs(machine):
    bot = machine.run("run", "--http", "127.0.0.1:0")
    url = machine.url()
    web = machine.run("web")
    argument, file, link = machine.opened()
    token = link.partition("#token=")[2]
    assert link.startswith(f"{url}/#token=hml_")
    assert token not in argument
    assert token.encode() not in processes()
    assert sign_in(link)[0] == 200
    assert web.wait(SECONDS) == 0
    assert f"Signed in at {url}." in machine.log()
    assert not file.exists()
    printed = subprocess.run(
        [*HERMES, "web", "--print", "--db", str(machine.path)], capture_output=True, text=True,
        check=True, timeout=SECONDS,
    )  # fmt: skip
    assert re.fullmatch(rf"{url}/#token=hml_[\w-]+\n", printed.stdout)
    assert sign_in(printed.stdout.strip())[0] == 200
    assert token not in machine.log()
    assert bot.poll() is None


def test_without_a_bot_or_its_page_one_sentence_says_what_to_do(path, web):
    code, out, err = web()
    assert (code, out) == (3, "")
    assert "does not exist" in err
    with SessionStore(path):
        pass
    code, out, err = web()
    assert (code, out) == (1, "")
    assert re.fullmatch(r"No bot is running on .*; to start one .*hermes.* run --open\n", err)


def open_session(path, person=OPERATOR, number=1):
    session = Token(id=f"web_{number}", name="", namespace="", roles=(), created_at=0.0)
    with SessionStore(path) as store:
        store.add_sign_in("once", person)
        return store.sign_in("once", session, digest_of(f"secret {number}"))


def test_sessions_are_listed_and_revoked(path, web):
    with SessionStore(path):
        pass
    assert web("sessions") == (0, "", "Nobody is signed in.\n")
    session = open_session(path)
    code, out, _ = web("sessions")
    assert code == 0
    assert "Operator" in out
    _, out, _ = web("sessions", "--json")
    assert json.loads(out)["id"] == session.id
    assert web("revoke", "Operator")[0] == 1
    assert web("revoke", session.id) == (0, "Revoked the session of Operator.\n", "")
    code, _, err = web("revoke", session.id)
    assert (code, err) == (1, f"There is no session {session.id!r} that is valid.\n")
    with SessionStore(path) as store:
        assert store.find_token(digest_of("secret 1")) is None


def test_tokens_are_no_sessions_and_sessions_no_tokens(path, web, capsys):
    session = open_session(path)
    main(["tokens", "list", "--db", str(path)])
    assert capsys.readouterr() == ("", "There are no tokens.\n")
    with SessionStore(path) as store:
        token = Token(id="tok_1", name="ann", namespace="ann", roles=("user",), created_at=0.0)
        store.add_token(token, "digest")
    for name in ("ann", "tok_1"):
        assert web("revoke", name)[0] == 1
    assert main(["tokens", "revoke", session.id, "--db", str(path)]) == 1


def test_a_visitor_is_let_in_by_its_code(path, web):
    source = Source("web", chat_id="usr_1", user_id="usr_1", user_name="Carl")
    with SessionStore(path) as store:
        store.request_pairing(source, "key", "AAAA-0001", salt="00")
    assert web("pair", "nonsense") == (1, "", "No visitor has this code.\n")
    assert web("pair", "BBBB-0002") == (1, "", "No visitor has this code.\n")
    assert web("pair", "aaaa0001", "--role", "operator") == (0, "Let in Carl as operator.\n", "")
    with SessionStore(path) as store:
        assert store.find_principal("web", "", "usr_1") == "operator"
        assert store.pending_outbox() == []


@pytest.mark.parametrize(
    ("url", "link"),
    [
        ("http://127.0.0.1:8420", "http://127.0.0.1:8420/#token=t"),
        ("http://0.0.0.0:8420", "http://127.0.0.1:8420/#token=t"),
        ("http://[::]:8420", "http://[::1]:8420/#token=t"),
        ("http://[::1]:80", "http://[::1]:80/#token=t"),
        ("http://10.0.0.5:1", "http://10.0.0.5:1/#token=t"),
    ],
)
def test_a_link_leads_to_an_address_that_a_browser_can_open(url, link):
    assert page.link_to(url, "t") == link


def test_a_page_is_not_opened_for_a_question():
    done = subprocess.run(
        [*HERMES, "-p", "hello", "--open"], capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--open has no effect with -p" in done.stderr
