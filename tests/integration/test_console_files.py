"""Files in the console: at a real terminal, through real pipes, and attached to a running bot."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes import Attachment
from hermes.adapters.console import SOURCE
from hermes.adapters.console.files.commands import ATTACHED
from hermes.adapters.console.view import ConversationView
from hermes.events import TurnEnded
from hermes.messages import TurnResult
from hermes.store import SessionStore
from hermes.testing import MemoryAdapter
from tests.support.consoles import Piped, RecordingScreen
from tests.support.tty import END, ENTER, INTERRUPT, TAB, Tty

pytestmark = pytest.mark.usefixtures("measure_programs")
ROOT = Path(__file__).parents[2]
BOT = [sys.executable, "-W", "error", "-m", "tests.support.file_bot"]
HERMES = [sys.executable, "-W", "error", "-m", "hermes"]
EXPECTED = {"cat.png", "my file.pdf", "docs", "console_history"}
CAT = b"\x89PNG\r\n\x1a\n a cat"


def digest(content):
    return hashlib.sha256(content).hexdigest()[:8]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder of all programs, with some files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "cat.png").write_bytes(CAT)
    (tmp_path / "my file.pdf").write_bytes(b"%PDF-1.7")
    (tmp_path / "docs").mkdir()
    return tmp_path


@pytest.fixture
def bot():
    """A bot without a console, for attached ones."""
    with subprocess.Popen([*BOT, "chat.db"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.fixture(params=["local", "attached"])
def open_console(request):
    """Start a console at a terminal: of a bot in the same process, or attached to one."""
    begun = []

    def open_one(**environment):
        if request.param == "attached" and not begun:
            request.getfixturevalue("bot")
        command = [*HERMES, "--db"] if request.param == "attached" else BOT
        begun.append(Tty([*command, "chat.db"], columns=120, **environment))
        begun[-1].until("\n>")
        return begun[-1]

    yield open_one
    for each in begun:
        each.__exit__()


def piped(text, *command):
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


# At a terminal


def test_files_are_attached_by_command_or_by_path_and_reach_the_agent(open_console):
    console = open_console()
    console.type('/attach "my file.pdf"' + ENTER)
    console.until("Attached: my file.pdf, 8 bytes. /attach without a path lists the files")
    console.type("what is @cat.png?" + ENTER)
    shown = console.until(f"got cat.png, file, {digest(CAT)}")
    assert "> what is @cat.png?\n(with my file.pdf, 8 bytes; cat.png, 14 bytes)\n" in shown
    assert "said: what is cat.png?" in shown
    assert f"got my file.pdf, file, {digest(b'%PDF-1.7')}" in shown
    console.type("and bob@example.org, @bob?" + ENTER)
    console.until("said: and bob@example.org, @bob?")
    assert console.screen.text.count("got ") == 2
    console.type(END)
    assert console.wait() == 0
    assert console.restored


def test_a_message_whose_file_cannot_be_read_stays_in_the_input(open_console, folder):
    os.mkfifo(folder / "pipe")
    console = open_console()
    console.type("what is @pipe and @cat.png" + ENTER)
    console.until("Message not accepted: pipe is not a regular file; to send it as text, write @@")
    console.until(lambda text: text.endswith("> what is @pipe and @cat.png"))
    assert "said" not in console.screen.text
    console.type(INTERRUPT + "what is @docs" + ENTER)
    console.until("docs is a folder; only files can be attached")
    console.until(lambda text: text.endswith("> what is @docs"))
    console.type(INTERRUPT + "/attach nope" + ENTER)
    console.until("Not attached: nope cannot be read: no such file or directory.")
    console.type("hello" + ENTER)
    console.until("said: hello")


def test_a_file_that_the_bot_refuses_stays_attached(open_console, folder):
    (folder / "large.bin").write_bytes(b"x" * 5_000_000)
    console = open_console()
    console.type("/attach large.bin" + ENTER)
    console.until("Attached: large.bin, 5 MB.")
    console.type("see" + ENTER)
    console.until("Message not accepted: large.bin: ")
    console.until(lambda text: text.endswith("> see"))
    console.type(INTERRUPT + "/detach" + ENTER)
    console.until("Removed: large.bin.")
    console.type("see" + ENTER)
    console.until("said: see")
    assert "got" not in console.screen.text
    for number in range(4):
        (folder / f"{number}.txt").write_text(str(number))
    console.type("see @0.txt @1.txt @2.txt @3.txt" + ENTER)
    console.until("a message can have 3 files, not 4")


def test_a_reply_with_files_is_shown_once_and_saved_on_request(open_console, folder):
    console = open_console()
    console.type("draw two" + ENTER)
    shown = console.until("To keep it in the current folder: /save data.csv")
    assert "said: draw two\n[file chart.png, 5 bytes]\n[file data.csv, 6 bytes]\n" in shown
    assert not (folder / "chart.png").exists()
    console.type("/save" + ENTER)
    console.until("1. [file chart.png, 5 bytes]\n2. [file data.csv, 6 bytes]\n")
    console.type("/save chart.png" + ENTER)
    console.until("Saved: chart.png\n")
    console.type("/save 1" + ENTER)
    console.until("Saved: chart (1).png\n")
    console.type("/save data.csv docs" + ENTER)
    console.until("Saved: docs/data.csv\n")
    console.type("/save data.csv nope/x" + ENTER)
    console.until("Not saved: there is no folder nope.\n")
    assert (folder / "chart (1).png").read_bytes() == b"\x89PNG\r"
    assert (folder / "docs/data.csv").read_bytes() == b"1,2,3\n"
    console.type("draw quietly" + ENTER)
    console.until(lambda text: text.count("[file chart.png, 5 bytes]\nTo keep it") == 1)
    console.type("hello" + ENTER)
    console.until("said: hello")
    assert console.screen.text.count("To keep it in the current folder") == 2, (
        "nothing is shown twice"
    )


def test_hostile_names_neither_control_the_terminal_nor_leave_the_folder(open_console, folder):
    evil = "cat\x1b]0;owned\x07.png"
    (folder / evil).write_bytes(CAT)
    console = open_console()
    console.type("/attach cat*" + ENTER)  # no patterns: such a name cannot be typed at all
    console.until("Not attached: cat* cannot be read")
    console.type("draw hostile" + ENTER)
    console.until("To keep it in the current folder")
    console.type("/save 1" + ENTER)
    console.until("Saved: ")
    found = {path.name for path in folder.iterdir() if not path.name.startswith("chat.db")}
    assert found - {evil, *EXPECTED} == {"chart.png"}
    assert console.screen.titles == []


def test_resume_names_files_and_they_can_be_saved_after_a_restart(open_console):
    console = open_console()
    console.type("look at @cat.png and draw" + ENTER)
    console.until("To keep it in the current folder")
    console.type("/title Cats" + ENTER)
    console.until("The title is now: Cats")
    console.type("/new" + ENTER)
    console.until("New session.")
    console.type(END)
    console.wait()
    console = open_console()
    console.type("/resume Cats" + ENTER)
    shown = console.until("chart.png, 5 bytes]")
    assert "look at cat.png and draw [file cat.png, 14 bytes]" in shown
    console.type("/save cat.png copy.png" + ENTER)
    console.until("Saved: copy.png")


def test_a_long_paste_is_text_and_comes_back_in_its_short_form(open_console):
    console = open_console()
    console.paste("@cat.png\n" * 12)
    console.type(" and @docs" + ENTER)
    console.until("docs is a folder")
    console.until(lambda text: text.endswith("> [paste 1: 13 lines, 108 characters] and @docs"))
    console.type("\x7f" * len(" and @docs") + ENTER)  # backspace
    console.until("said: @cat.png\n@cat.png\n")
    assert "got" not in console.screen.text


def test_another_console_names_the_files_of_a_message():
    with Tty([*BOT, "chat.db"], columns=120) as bot:
        bot.until("\n>")
        with Tty([*HERMES, "--db", "chat.db"], columns=120) as client:
            client.until("\n>")
            client.type("/attach cat.png" + ENTER)
            client.until("Attached: ")
            client.type("look" + ENTER)
            client.until("got cat.png")
        bot.until("[other chat] look [file cat.png, 14 bytes]\n")


def test_paths_are_completed(open_console):
    console = open_console()
    console.type("see @ca" + TAB)
    console.until("> see @cat.png")
    console.type(INTERRUPT + "/attach my")
    console.until('"my file.pdf"')  # offered while typing
    console.type(TAB)
    console.until('> /attach "my file.pdf"')
    console.type(ENTER)
    console.until("Attached: my file.pdf, 8 bytes.")


def test_a_simple_terminal_has_the_same_commands(open_console):
    console = open_console(TERM="dumb")
    console.type("/attach cat.png" + ENTER)
    console.until("Attached: cat.png, 14 bytes.")
    console.type("what is @docs" + ENTER)
    console.until("Message not accepted: docs is a folder")
    console.type('what is @"my file.pdf"' + ENTER)
    console.until(f"got my file.pdf, file, {digest(b'%PDF-1.7')}")
    assert "got cat.png" in console.screen.text


def test_the_help_lists_the_commands_of_the_console(open_console):
    console = open_console()
    console.type("/help" + ENTER)
    shown = console.until(lambda text: "/whoami: " in text and "/quit: " in text)
    assert shown.count("/attach [paths]: ") == shown.count("/save [number or name] [path]: ") == 1


def test_a_file_of_a_background_task_can_be_saved(folder):
    with Tty([*BOT, "chat.db"], columns=120) as console:
        console.until("\n>")
        console.type("/background draw" + ENTER)
        console.until("To keep it in the current folder: /save chart.png")
        console.type("/save chart.png" + ENTER)
        console.until("Saved: chart.png\n")
    assert (folder / "chart.png").read_bytes() == b"\x89PNG\r"


# Everything is shown once


async def drawn(turn):
    put = [Attachment(data=b"xx", name="a.bin"), Attachment(data=b"yy", name="b.bin")]
    return TurnResult(text="done", files=tuple([await turn.put_file(each) for each in put]))


class FileAdapter(MemoryAdapter):
    """An adapter that gets files as rows of their own."""

    async def send_file(self, row, file):
        await self.send(row)


@pytest.mark.parametrize("position", range(4))
async def test_files_are_shown_once_wherever_the_event_comes_between_the_rows(start, position):
    adapter = FileAdapter("console")
    async with start(agent=drawn, adapters=[adapter]) as runtime:
        with runtime.subscribe("k") as events:
            await runtime.ask("k", "go", source=SOURCE)
            async for ended in events:
                if isinstance(ended.event, TurnEnded):
                    break
        await adapter.wait_sent(3)
    screen = RecordingScreen()
    view = ConversationView("k", screen)
    items = list(adapter.sent)
    items.insert(position, ended)
    for item in items:
        await (view.show_event if item is ended else view.show_row)(item)
    assert sorted(screen.texts) == ["[file a.bin, 2 bytes]", "[file b.bin, 2 bytes]", "done"]
    assert [each.part["name"] for each in view.files] == ["a.bin", "b.bin"]


async def test_files_that_could_not_be_shown_are_named_at_the_next_start(start):
    gone = Piped()
    with pytest.raises(RuntimeError, match="power"):
        async with start(agent=drawn, adapters=[gone]) as runtime:
            await runtime.ask("k", "hello", source=SOURCE)
            raise RuntimeError("power")  # before the console was run
    console = Piped().with_input("")
    async with start(agent=drawn, adapters=[console]) as runtime:
        assert await console.run(runtime)
    assert console.output() == "done\n[file a.bin, 2 bytes]\n[file b.bin, 2 bytes]\n"
    os.close(gone.to)
    assert gone.output() == ""


# Through pipes


@pytest.mark.parametrize("attached", [False, True])
def test_through_a_pipe_commands_work_and_at_signs_are_text(attached, request, folder):
    if attached:
        request.getfixturevalue("bot")
    command = [*HERMES, "--db", "chat.db"] if attached else [*BOT, "chat.db", "--pipe"]
    lines = ["/attach cat.png", "see @cat.png", "draw", "/save chart.png", "/attach docs"]
    code, out, _ = piped("\n".join(lines), *command)
    assert out.splitlines() == [
        ATTACHED.format(files="cat.png, 14 bytes"),
        "said: see @cat.png",
        f"got cat.png, file, {digest(CAT)}",
        "said: draw",
        "[file chart.png, 5 bytes]",
        "Saved: chart.png",
        "Not attached: docs is a folder; only files can be attached.",
    ]
    assert code == 1
    assert (folder / "chart.png").read_bytes() == b"\x89PNG\r"


# One question


def ask(*options):
    code, out, err = piped("", *HERMES, "--db", "chat.db", *options)
    return code, out, err


def test_a_question_sends_files_to_the_running_bot_and_saves_those_of_the_answer(bot, folder):
    files = ("--attach", "cat.png", "--attach", "my file.pdf")
    code, out, err = ask("-p", "see @cat.png", *files)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "said: see @cat.png",
        f"got cat.png, file, {digest(CAT)}",
        f"got my file.pdf, file, {digest(b'%PDF-1.7')}",
    ]
    code, out, err = ask("-p", "draw two", "--save", "docs")
    assert (code, out.splitlines()[1:]) == (
        0,
        ["[file chart.png, 5 bytes]", "[file data.csv, 6 bytes]"],
    )
    assert err == "Saved: docs/chart.png\nSaved: docs/data.csv\n"
    code, out, err = ask("-p", "draw", "--save", "docs", "--json")
    [file] = json.loads(out)["files"]
    assert file["path"] == "docs/chart (1).png"
    assert (file["type"], file["name"], file["size"]) == ("file", "chart.png", 5)
    assert (folder / file["path"]).read_bytes() == b"\x89PNG\r"
    assert json.loads(ask("-p", "draw", "--json")[1])["files"][0].keys() == file.keys() - {"path"}


def test_a_question_without_a_running_bot_stores_its_files():
    code, out, _ = ask("-p", "what is this?", "--attach", "cat.png")
    assert (code, out.splitlines()[0]) == (0, "You said: what is this? [file cat.png, 14 bytes]")
    with SessionStore("chat.db") as store:
        [summary] = store.list_sessions()
        [part] = store.get_messages(summary.session.id)[0].parts
        stored = store.read_file(part["file"], session_key=summary.session.session_key)
    assert (part["name"], stored) == ("cat.png", CAT)


def test_a_large_file_goes_to_the_running_bot_in_chunks(bot, folder):
    content = os.urandom(3_000_000)
    (folder / "large.bin").write_bytes(content)
    code, out, err = ask("-p", "look", "--attach", "large.bin", "--session", "s")
    assert (code, err) == (0, "")
    assert out.splitlines()[1:] == [f"got large.bin, file, {digest(content)}"]
    lines = "/attach large.bin\nlook\n/save large.bin copy.bin\n"
    code, out, _ = piped(lines, *HERMES, "--db", "chat.db")
    assert (code, out.splitlines()[-1]) == (0, "Saved: copy.bin")
    assert (folder / "copy.bin").read_bytes() == content
