"""Consoles and single questions that are attached to a running bot, as users start them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path

import pytest

from hermes.adapters.jsonrpc.socket_server import MAX_CLIENTS, TOO_MANY_CLIENTS
from hermes.messages import ToolCall
from hermes.store.sqlite import runtime_lock
from hermes.testing import ModelAnswer
from tests.support.served_model import served
from tests.support.tty import END, ENTER, INTERRUPT, Tty

pytestmark = pytest.mark.usefixtures("measure_programs")
ROOT = Path(__file__).parents[2]
HERMES = [sys.executable, "-W", "error", "-m", "hermes"]
APPROVING = [sys.executable, "-W", "error", "-m", "tests.support.approving_bot"]
NOBODY = 65534


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chat.db"


@pytest.fixture
def address(path):
    return path.with_name("chat.db.socket")


@pytest.fixture
def tty(path):
    """Start `hermes` on the database at a terminal, and wait for its prompt."""
    begun = []

    def start(*options, prompt="\n>", **environment):
        command = [*HERMES, "--db", str(path), *options]
        begun.append(Tty(command, columns=120, PYTHONPATH=str(ROOT), **environment))
        begun[-1].until(prompt)
        return begun[-1]

    yield start
    for each in begun:
        each.__exit__()


def hermes(path, *options, text=""):
    return subprocess.run(
        [*HERMES, "--db", str(path), *options],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def piped_bot(path):
    """A bot whose console is a pipe; it has answered one message."""
    bot = subprocess.Popen(
        [*HERMES, "--db", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        bot.stdin.write("count to 3\n")
        bot.stdin.flush()
        assert bot.stdout.readline() == "1 2 3\n"
        yield bot
    finally:
        bot.stdin.close()
        bot.stdout.read()
        bot.stdout.close()
        bot.wait(30)


# Attached consoles


def test_a_second_chat_attaches_to_the_running_bot_and_leaves_it_running(tty, address):
    bot = tty()
    client = tty()
    assert f"Attached to the running bot (pid {bot.process.pid})" in client.screen.text
    client.type("count the words in one two" + ENTER)
    assert '✓ count_words(text="one two") → ' in client.until("Words: 2")
    bot.until("Words: 2")  # it is one conversation
    bot.type("count to 4" + ENTER)
    client.until("1 2 3 4")
    client.type("/status" + ENTER)
    client.until("6 messages, 0 waiting")
    client.type(END)
    assert client.wait() == 0
    assert client.restored
    bot.type("count to 5" + ENTER)
    bot.until("1 2 3 4 5")
    bot.type(END)
    assert bot.wait() == 0
    assert not address.exists()


def test_a_plain_chat_has_its_prompt_again_after_something_from_elsewhere(tty):
    bot, client = tty(TERM="dumb"), tty()
    client.type("count to 3" + ENTER)
    bot.until("\n>\n[other chat] count to 3\n1 2 3\n>")
    bot.type(INTERRUPT)
    bot.until("\nPress Ctrl-C again or Ctrl-D to quit.\n>")
    bot.type("count to 2" + ENTER)
    bot.until("\n> count to 2\n1 2\n>")
    client.until("[other chat] count to 2\n1 2\n")


def test_ctrl_c_in_an_attached_chat_interrupts_the_answer_and_queued_messages_follow(tty):
    tty()
    client = tty()
    client.type("count to 900 slowly" + ENTER)
    client.until("1 2 3")
    client.type("count to 2" + ENTER)
    client.until("queued: count to 2")
    client.type(INTERRUPT)
    client.until("(interrupted)")
    client.until(lambda text: "\n1 2\n" in text and "queued" not in text)
    client.type(INTERRUPT)
    client.until("Press Ctrl-C again")
    client.type(INTERRUPT)
    assert client.wait() == 130


def test_a_client_that_attaches_during_an_answer_shows_all_of_it_once(tty):
    bot = tty()
    bot.type("count to 60 slowly" + ENTER)
    bot.until("1 2 3")
    client = tty(prompt="1 2 3")
    shown = client.until("58 59 60")
    assert shown.count("1 2 3") == 1


def test_two_clients_have_the_same_conversation_and_another_key_has_its_own(tty):
    tty()
    first, second, other = tty(), tty(), tty("--session", "work")
    first.type("count to 6" + ENTER)
    first.until("1 2 3 4 5 6")
    second.until("1 2 3 4 5 6")
    other.type("count to 2" + ENTER)
    assert "3 4 5" not in other.until("1 2\n")
    second.type("/status" + ENTER)
    second.until("2 messages, 0 waiting")


def test_an_attached_chat_says_that_the_bot_was_killed(tty, address, path):
    bot = tty()
    client = tty()
    bot.signal(signal.SIGKILL)
    bot.process.wait()
    assert client.wait() == 7
    assert f"The bot (pid {bot.process.pid}) has ended.\n" in client.stream.replace("\r", "")
    assert client.restored
    assert "Traceback" not in client.stream
    assert address.exists()  # it is stale, and the next bot replaces it
    again = tty()
    attached = tty()
    assert f"Attached to the running bot (pid {again.process.pid})" in attached.screen.text


def test_an_attached_chat_shows_the_end_of_its_answer_when_the_bot_is_stopped(tty):
    bot = tty()
    client = tty()
    client.type("count to 30 slowly" + ENTER)
    client.until("1 2 3")
    bot.signal(signal.SIGTERM)
    client.until("28 29 30")
    assert client.wait() == 7
    assert bot.wait() == 0


def test_sessions_are_completed_in_an_attached_chat(tty):
    tty()
    client = tty()
    client.type("count to 2" + ENTER)
    client.until("1 2\n")
    client.type("/title Herons" + ENTER)
    client.until("The title is now: Herons")
    client.type("/new" + ENTER)
    client.until("New session")
    client.type("/resume He\t")
    client.until("Herons  20")  # with the id of the session


def test_piped_lines_are_answered_by_the_running_bot(path):
    with piped_bot(path) as bot:
        done = hermes(path, text="count to 2\n/title A talk\n")
    assert (done.returncode, done.stdout) == (0, "1 2\nThe title is now: A talk\n")
    assert done.stderr == f"Attached to the running bot (pid {bot.pid}).\n"


def test_a_question_for_approval_that_an_attached_chat_shows_can_be_decided(path, tty):
    bot = subprocess.Popen(
        [*APPROVING, str(path)],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        while runtime_lock.owner(path) is None:
            os.sched_yield()
        client = tty()
        client.type("please" + ENTER)
        client.until("I have asked.")
        assert "notes.txt" in client.screen.text
        client.type("/approve" + ENTER)
        client.until("It is done.")
    finally:
        bot.kill()
        bot.wait()


def test_the_console_of_the_bot_shows_questions_of_attached_chats_and_can_decide(path, tty):
    with Tty([*APPROVING, str(path)], PYTHONPATH=str(ROOT)) as bot:
        bot.until(">")
        client = tty()
        client.type("please" + ENTER)
        assert client.until("I have asked.").count("May erase run") == 1
        assert bot.until("I have asked.").count("May erase run") == 1
        bot.type("/approve" + ENTER)
        client.until("It is done.")


SHOP = """
[agent]
kind = 'openai'
model = 'tiny-1'
base_url = '{url}'
tools = ['tests.support.shop_tools:order']
[titles]
enabled = false
"""


def shop(request):
    """Order what the user asks for; say what became of it."""
    if request.json["messages"][-1]["role"] == "tool" or "refused" in request.text:
        return "That is all."
    birds = [bird for bird in ("heron", "crane") if bird in request.text]
    calls = [ToolCall(f"{n}", "order", json.dumps({"bird": bird})) for n, bird in enumerate(birds)]
    return ModelAnswer(calls=calls)


def asked(number, bird):
    return (
        f'? order(bird="{bird}") waits for your approval\n'
        "May order run with this?\n"
        f'{{"bird":"{bird}"}}\n'
        f"Reply /approve {number} to allow it once, /approve always {number} for this tool here, or"
        f" /deny {number}.\n"
    )


@pytest.fixture
def shop_options(tmp_path):
    with served(script=shop) as model:
        (tmp_path / "hermes.toml").write_text(SHOP.format(url=model.openai_url))
        yield "--config", str(tmp_path / "hermes.toml")


def test_all_consoles_show_messages_questions_and_decisions_in_the_same_order(tty, shop_options):
    bot, client, witness = consoles = [tty(*shop_options) for _ in range(3)]
    client.type("a heron" + ENTER)
    for each in consoles:
        each.until(asked(1, "heron") + "That is all.")
    bot.type("/approve" + ENTER)
    for each in consoles:
        each.until("ordered heron\nThat is all.")
    bot.type("a crane" + ENTER)
    for each in consoles:
        each.until(asked(2, "crane") + "That is all.")
    client.type("/deny 2" + ENTER)
    for each in consoles:
        each.until(lambda text: text.count("That is all.") == 4)
    client.type("/title Birds" + ENTER)
    for each in consoles:
        each.until("The title is now: Birds")
    approved = '* /approve: Approved: order with {"bird":"heron"}'
    denied = '* /deny 2: Denied: order with {"bird":"crane"}'
    for each, messages in (
        (bot, ["* a heron", "> /approve", "> a crane", denied, "* /title Birds"]),
        (client, ["> a heron", approved, "* a crane", "> /deny 2", "> /title Birds"]),
        (witness, ["* a heron", approved, "* a crane", denied, "* /title Birds"]),
    ):
        shown = each.screen.text.replace("[other chat]", "*")
        assert [line for line in shown.splitlines() if line.startswith(("* ", "> "))] == messages
        assert shown.count("May order run") == 2
        assert "✗" not in shown


def test_two_questions_at_once_are_shown_each_after_its_call(tty, shop_options):
    consoles = [tty(*shop_options) for _ in range(2)]
    for first, each in zip((1, 3), consoles, strict=True):
        each.type("a heron and a crane" + ENTER)
        numbers = (first, first + 1)  # both are asked at the same time, in any order
        for shown in consoles:
            shown.until(
                lambda text, numbers=numbers: any(
                    asked(one, "heron") in text and asked(two, "crane") in text
                    for one, two in permutations(numbers)
                )
            )
        for number in numbers:
            ends = number + (number - 1) // 2  # of turns: those of messages and of decisions
            for shown in consoles:
                shown.until(lambda text, ends=ends: text.count("That is all.") == ends)
            each.type(f"/deny {number}" + ENTER)
        done = 3 * numbers[1] // 2  # a turn for the message, and one for each decision
        for shown in consoles:
            shown.until(lambda text, done=done: text.count("That is all.") == done)
    assert all("✗" not in shown.screen.text for shown in consoles)


def test_a_call_that_waits_already_is_asked_for_again(path, tty, shop_options):
    """No adapter sends its question again."""
    assert "That is all." in hermes(path, "-p", "a heron", *shop_options).stdout
    console = tty(*shop_options)
    console.type("a heron" + ENTER)
    console.until(asked(1, "heron") + "That is all.")
    console.type("/approve" + ENTER)
    console.until("ordered heron\nThat is all.")
    assert console.screen.text.count("That is all.") == 2


# The socket


def test_only_the_user_of_the_bot_can_open_the_socket(path, address):
    address.write_text("in the way")  # a file that is no socket is replaced, too
    with piped_bot(path):
        mode = address.stat().st_mode
        assert (mode & 0o170000, mode & 0o777) == (0o140000, 0o600)
    assert not address.exists()


def test_a_bot_without_a_socket_refuses_a_second_chat(tmp_path, path, address):
    (tmp_path / "hermes.toml").write_text("socket = false\n")
    options = ["--config", str(tmp_path / "hermes.toml")]
    bot = subprocess.Popen(
        [*HERMES, "--db", str(path), *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        bot.stdin.write("count to 3\n")
        bot.stdin.flush()
        assert bot.stdout.readline() == "1 2 3\n"
        assert not address.exists()
        done = hermes(path, "-p", "hello")
        assert done.returncode == 3
        assert "already in use" in done.stderr
    finally:
        bot.communicate()


def test_a_path_that_is_too_long_for_a_socket_does_not_stop_the_bot(tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    done = hermes(folder / "chat.db", "-p", "count to 2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 2\n", "")


def test_the_number_of_clients_is_bounded(path, address):
    with piped_bot(path):
        with ExitStack() as clients:
            for _ in range(MAX_CLIENTS):
                clients.enter_context(connected(address))
            for options, code in ((["-p", "hello"], 1), ([], 75)):
                done = hermes(path, *options)
                assert (done.returncode, done.stderr) == (code, f"{TOO_MANY_CLIENTS}\n")


def connected(address):
    """Connect, and wait until the client is served."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(address))
    assert b"gateway.ready" in client.recv(65536)
    return client


AS_ANOTHER_USER = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
client = socket.socket(socket.AF_UNIX)
try:
    client.connect(sys.argv[1])
    print(client.recv(1000))
except PermissionError:
    print("refused")
"""


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_another_user_is_refused(path, address, tmp_path, mode):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # so that nothing but the socket itself refuses
    with piped_bot(path):
        address.chmod(mode)
        done = subprocess.run(
            [sys.executable, "-I", "-c", AS_ANOTHER_USER, str(address)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.stdout == ("refused\n" if mode == 0o600 else "b''\n"), done.stderr
