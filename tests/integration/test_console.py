"""The console at a real terminal, and through real pipes."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio

from hermes import Config, Inbound
from hermes.adapters.console import SOURCE
from hermes.adapters.console.adapter import HOW_TO_QUIT, LINE_TOO_LONG, STILL_RUNNING
from hermes.adapters.console.view import ConversationView
from hermes.events import TextDelta, ToolFinished, ToolStarted, TurnEnded, TurnStarted
from hermes.messages import ToolCall, TurnResult
from hermes.outbound import outbox_rows
from hermes.testing import MemoryAdapter, ScriptedAgent, forever
from tests.support.consoles import Piped, RecordingScreen
from tests.support.offline_answers import answer_to
from tests.support.tty import ALT_ENTER, END, ENTER, INTERRUPT, TAB, UP, Tty

pytestmark = pytest.mark.usefixtures("measure_programs")
ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-W", "error", "-m", "tests.support.console_program"]
HERMES = [sys.executable, "-W", "error", "-m", "hermes.run"]
LOOKING = [ToolStarted(ToolCall("c1", "look")), ToolFinished("c1", "seen")]


# Through pipes


@pytest.fixture
def piped(tmp_path):
    """Pipe some bytes through Hermes; returns its exit code, stdout and stderr."""

    def run(content):
        done = subprocess.run(
            [*HERMES, "--db", tmp_path / "chat.db"],
            input=content,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return run


def test_empty_input_gives_empty_output(piped):
    assert piped(b"") == (0, "", "")


def test_lines_may_have_any_line_ends_and_any_bytes(piped):
    code, out, err = piped(b"one\r\n\r\n  \ntwo \xff\xfe \x1b]0;owned\x07\x9b\n/title three")
    assert (code, err) == (0, "")
    owned = "two �� ␛]0;owned␇�"
    assert out == f"{answer_to('one')}{answer_to(owned)}The title is now: three\n"


def test_a_line_that_is_too_long_is_reported_and_skipped(piped):
    code, out, _ = piped(b"/title A\n" + b"x" * 3_000_000 + b"\n/title B\n")
    assert out == f"The title is now: A\n{LINE_TOO_LONG}\nThe title is now: B\n"
    assert code == 1


def test_the_result_of_a_background_task_is_shown_before_the_end(piped):
    code, out, _ = piped(b"/background count to 3\n")
    assert out == "It is running in the background.\n1 2 3\n"
    assert code == 0


def started(tmp_path, **options):
    return subprocess.Popen(
        [*HERMES, "--db", tmp_path / "chat.db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_it_ends_quietly_when_its_reader_closes(tmp_path):
    with started(tmp_path) as process:
        process.stdout.close()
        process.stdin.write(b"hello\n")
        process.stdin.flush()  # stdin stays open: the closed stdout ends the process
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("question", [[], ["-p", "hello"]])
def test_an_output_that_cannot_be_written_is_reported_and_fails(tmp_path, question):
    program = [sys.executable, "-W", "error", "-m", "hermes"] if question else HERMES
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*program, "--db", tmp_path / "chat.db", *question], input=b"hello\n", stdout=full,
            stderr=subprocess.PIPE, timeout=60, check=False, cwd=ROOT,
        )  # fmt: skip
    assert done.stderr == b"Cannot write the output: no space left on device.\n"
    assert done.returncode == 1


def test_after_sigterm_the_running_answer_is_shown_once(tmp_path):
    with started(tmp_path) as process:
        process.stdin.write(b"count to 9 slowly\nhello\n")
        process.stdin.flush()
        begun = process.stdout.read(3)
        process.send_signal(signal.SIGTERM)
        said = begun + process.stdout.read()
        assert said.replace(b"\n", b"") == b"1 2 3 4 5 6 7 8 9"
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


def test_stop_reports_once_what_a_killed_process_left_behind(tmp_path, piped):
    with started(tmp_path) as process:
        process.stdin.write(b"count to 9 slowly\n")
        process.stdin.flush()
        assert process.stdout.read(3)
        process.kill()
    _, out, err = piped(b"/stop\n")
    assert out.count("Stopped.") == 1
    assert out.count("queued message") <= 1, "it may have started again before"
    assert err == ""


def test_a_pipe_does_not_import_prompt_toolkit(tmp_path):
    code = (
        "import sys; from hermes.run.__main__ import main; main(['--db', 'chat.db']);"
        "sys.exit('prompt_toolkit' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"hello\n", cwd=tmp_path, timeout=60, check=False,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert done.stdout.startswith(b"You said: hello")
    assert done.returncode == 0


# Everything is shown once


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        (["done"], "done"),
        ([TextDelta("do"), "done"], "done"),
        ([TextDelta("do"), TextDelta("ne\n"), "done\n"], "done"),
        ([TextDelta("done "), "done"], "done "),
        ([TextDelta("let me see; "), *LOOKING, TextDelta("done"), "done"], "let me see; \ndone"),
        ([TextDelta("let me see; "), *LOOKING, TextDelta("do"), "done"], "let me see; \ndone"),
        ([TextDelta("do"), "something else"], "do\nsomething else"),
        ([TextDelta("x\x1b[2J"), "x\x1b[2J"], "x␛[2J"),
    ],
)
async def test_an_answer_is_shown_once_however_it_is_streamed(start, steps, shown):
    console = Piped().with_input("hello\n")
    async with start(build_agent=lambda _: ScriptedAgent([steps]), adapters=[console]) as runtime:
        assert await console.run(runtime)
    assert console.output() == f"{shown}\n"


async def test_a_failed_turn_is_reported_and_the_next_one_is_answered(start):
    console = Piped().with_input("one\ntwo\n")
    agent = ScriptedAgent([[TextDelta("well"), RuntimeError("no")], "yes"])
    async with start(build_agent=lambda _: agent, adapters=[console]) as runtime:
        assert not await console.run(runtime)
    well, failed, retry, yes = console.output().splitlines()
    assert (well, yes) == ("well", "yes")
    assert failed.startswith("Something went wrong (reference ")
    assert "/retry" in retry


async def test_many_answers_are_shown_in_order_and_once(start):
    console = Piped().with_input("".join(f"{n}\n" for n in range(30)))
    async with start(build_agent=lambda _: ScriptedAgent(), adapters=[console]) as runtime:
        assert await console.run(runtime)
    assert console.output().splitlines() == [f"echo: {n}" for n in range(30)]


@pytest.mark.parametrize("burst", [0, 3000, 5000])
async def test_a_long_answer_in_many_pieces_is_complete_and_shown_once(start, burst):
    pieces = [f"{n} " for n in range(5000)]  # more than a subscription holds
    text = "".join(pieces)

    async def say(turn):
        for number, piece in enumerate(pieces):
            turn.emit(TextDelta(piece))
            if number >= burst:
                await trio.lowlevel.checkpoint()
        return TurnResult(text=text)

    console = Piped().with_input("go\n")
    async with start(build_agent=lambda _: ScriptedAgent([[say]]), adapters=[console]) as runtime:
        assert await console.run(runtime)
    assert console.output() == f"{text}\n"


async def test_approvals_and_background_results_are_shown_once(start):
    async def ask(turn):
        if "background" in turn.session_key:
            return TurnResult(text="done beside")
        await turn.records.ask_approval(
            turn.session_key, "rm", "{}",
            say=lambda asked: outbox_rows(SOURCE, "k", turn.session_id, "May I?\x1b", "notice"),
        )  # fmt: skip
        return TurnResult(text="I have asked.")

    console = Piped().with_input("please\n/background and this\n")
    agent = ScriptedAgent([[ask]] * 2)
    async with start(build_agent=lambda _: agent, adapters=[console]) as runtime:
        assert await console.run(runtime)
    said = console.output().splitlines()
    assert sorted(said) == sorted(
        ["May I?␛", "I have asked.", "It is running in the background.", "done beside"]
    )


async def stop_two(start):
    """Two events and an outbox row: a command drops two messages."""
    adapter, ended = MemoryAdapter("console"), []
    agent = ScriptedAgent([[forever()]])
    with trio.fail_after(30):
        async with start(build_agent=lambda _: agent, adapters=[adapter]) as runtime:
            with runtime.subscribe("k") as events:
                await runtime.submit(Inbound("k", "0", "zero", SOURCE))
                async for envelope in events:
                    if isinstance(envelope.event, TurnStarted):
                        break
                for text in ("one", "two", "/stop"):
                    command = text == "/stop"
                    await runtime.submit(Inbound("k", text, text, SOURCE, command=command))
                async for envelope in events:
                    ended += [envelope] if isinstance(envelope.event, TurnEnded) else []
                    if len(ended) == 3:
                        break
                await adapter.wait_sent(1)
    return [*ended[1:], *adapter.sent]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_dropped_messages_are_reported_once_in_any_order_of_events(start, order):
    items = await stop_two(start)
    statuses = [each.event.reply.status for each in items[:2]]
    assert statuses == ["command", "refused"], "a waiter for any of them gets a reply"
    screen = RecordingScreen()
    view = ConversationView("k", screen)
    for index in order:
        await (view.show_row if index == 2 else view.show_event)(items[index])
    assert screen.texts == ["Stopped. 2 queued messages were cancelled."]
    assert view.failed


async def test_a_row_that_could_not_be_shown_is_shown_at_the_next_start(start):
    gone = Piped()
    with pytest.raises(RuntimeError, match="power"):
        async with start(build_agent=lambda _: ScriptedAgent(["late"]), adapters=[gone]) as runtime:
            await runtime.ask("k", "hello", source=SOURCE)
            raise RuntimeError("power")  # before the console was run
    console = Piped().with_input("")
    async with start(adapters=[console]) as runtime:
        assert await console.run(runtime)
    assert console.output() == "late\n"
    os.close(gone.to)
    assert gone.output() == ""


async def test_rows_that_wait_when_the_chat_is_cancelled_are_still_shown(start):
    console = Piped()
    read = []

    def reader():
        with os.fdopen(os.dup(console.read_from), "rb") as file:
            read.append(file.read())

    async with start(config=Config(drain_timeout=5), adapters=[console]) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(console.run, runtime)
            await runtime.ask("k", "x" * 200_000, source=SOURCE)  # more than a pipe holds
            await runtime.ask("other", "small", source=SOURCE)
            nursery.cancel_scope.cancel()
        reading = threading.Thread(target=reader)
        reading.start()
    os.close(console.to)
    os.close(console.stdout)
    reading.join()
    os.close(console.stdin)
    os.close(console.read_from)
    assert b"echo: small\n" in read[0]


# At a terminal


@pytest.fixture
def tty(tmp_path):
    """Start Hermes at a terminal; with a script, a program whose agent follows it."""
    begun = []

    def start(script=None, command=HERMES, **options):
        path = str(tmp_path / "chat.db")
        command = (
            [*command, "--db", path] if script is None else [*PROGRAM, path, json.dumps(script)]
        )
        begun.append(Tty(command, PYTHONPATH=str(ROOT), **options))
        begun[-1].until("\n>")
        return begun[-1]

    yield start
    for each in begun:
        each.__exit__()


def test_ctrl_c_clears_the_line_then_interrupts_the_answer_then_quits(tty):
    term = tty()
    term.type("count to 900 slowly" + ENTER)
    term.until("1 2 3")
    term.type("half a lin" + INTERRUPT)  # clears the line; the answer continues
    term.until(lambda text: "half" not in text and "1 2 3 4 5" in text)
    term.type(INTERRUPT)
    term.until("(interrupted)")
    term.type("count the words in one two" + ENTER)
    shown = term.until("Words: 2")
    assert '✓ count_words(text="one two") → ' in shown
    term.type(INTERRUPT)
    term.until(HOW_TO_QUIT)
    term.type(INTERRUPT)
    assert term.wait() == 130
    assert term.restored
    assert "Traceback" not in term.stream


@pytest.mark.parametrize("how", ["end", "interrupt", "error"])
def test_the_terminal_is_restored(tty, how):
    term = tty({"text": "never"})
    term.type("something typed" + INTERRUPT)
    term.until(lambda text: "typed" not in text)
    assert not term.restored
    match how:
        case "end":
            term.type(END)
            assert term.wait() == 0
        case "interrupt":
            term.signal(signal.SIGINT)
            term.until(HOW_TO_QUIT)
            term.signal(signal.SIGINT)
            assert term.wait() == 130
        case "error":
            term.type("raise" + ENTER)
            assert term.wait() == 1
            assert "as the test says" in term.screen.text
    assert term.restored


@pytest.mark.parametrize("how", ["key", "signal"])
def test_at_the_end_hermes_drains_and_restores_the_terminal(tty, how):
    term = tty()
    term.type("count to 9 slowly" + ENTER)
    term.until("1 2 3")
    if how == "key":
        term.type(END)
        term.until(STILL_RUNNING)
    else:
        term.signal(signal.SIGTERM)
    assert term.wait() == 0
    assert term.restored
    said = term.screen.text.split("slowly\n")[1].replace(STILL_RUNNING, "").strip("\n> ")
    assert said == "1 2 3 4 5 6 7 8 9"


def test_lines_can_be_typed_while_an_answer_is_running(tty):
    term = tty()
    term.type("count to 6 slowly" + ENTER)
    term.until("1 2")
    term.type("/title Bees" + ENTER + "count the words in to be" + ENTER)
    shown = term.until("Words: 2")
    assert shown.index("The title is now: Bees\n1 2 3 4 5 6") < shown.index("\nWords: 2")
    assert shown.count("The title is now: Bees") == 1
    assert shown.count("1 2 3 4 5 6") == 1


def test_several_lines_are_one_message_whether_pasted_or_typed(tty):
    term = tty({"text": "heard"})
    term.paste("first\nsecond\r\nthird")
    term.type(ALT_ENTER + "fourth\\" + ENTER + "fifth")
    term.until("  fifth")
    term.type(ENTER)
    shown = term.until("heard\n>")
    assert "> first\n  second\n  third\n  fourth\n  fifth\nheard\n" in shown
    term.type(END)
    assert term.wait() == 0


def test_the_history_is_available_after_a_restart(tty, tmp_path):
    term = tty({"text": "well"})
    for number, text in enumerate(["first", " secret", "second\\" + ENTER + "line"], 1):
        term.type(text + ENTER)
        term.until(lambda shown, n=number: shown.count("well") == n and shown.endswith("\n>"))
    look_back(term)
    term.type(INTERRUPT + END)
    assert term.wait() == 0
    assert stat.S_IMODE((tmp_path / "history").stat().st_mode) == 0o600
    look_back(tty({"text": "well"}))


def look_back(term):
    term.type(UP)
    term.until(lambda shown: shown.endswith("> second\n  line"))
    term.type(UP + UP)
    term.until(lambda shown: shown.endswith("\n> first"))


def test_commands_and_sessions_are_completed(tty):
    term = tty()
    term.type("hello" + ENTER)
    term.until("hermes setup\n>")
    term.type("/titl")
    term.until("show or set the title")
    term.type(TAB + " Honey bees" + ENTER)
    term.until("The title is now: Honey bees")
    term.type("/resume h")
    term.until("  Honey bees  2")
    term.type(TAB)
    term.until("> /resume Honey bees")
    term.type(ENTER)
    term.until("Back in Honey bees.")


MARKDOWN = """# The bees

They are *many*, and **busy**:

- one
- two

  with more

| who | what |
|-----|------|
| bee | honey |

```python
def fly(bee):

    return bee + 1
```

{filler}

The end of \x1b]0;owned\x07it\x1b[2J.
"""
FILLER = "\n\n".join(f"paragraph {n} " + "word " * 30 for n in range(20))


@pytest.mark.parametrize("piece", [1, 50, 100_000])
def test_an_answer_is_rendered_as_markdown_and_each_block_once(tty, piece):
    text = MARKDOWN.format(filler=FILLER)
    term = tty({"text": text, "piece": piece, "tool": "t\x1b]0;owned\x07"}, rows=20, columns=60)
    term.type("go" + ENTER)
    shown = term.until("The end of ␛]0;owned␇it␛[2J.\n>")
    assert "Welcome.\n> go\n✓ t␛]0;owned␇(t␛]0;owned␇) → t␛]0;owned␇\n" in shown
    answer = shown.split("owned␇\nThe bees")[1]
    for once in ["They are many, and busy:", "• one",
                 " who  what", " bee  honey", "def fly(bee):",
                 "    return bee + 1", *(f"paragraph {n} " for n in range(20))]:  # fmt: skip
        assert answer.count(once) == 1, once
    assert answer.count("word") == 600
    assert re.search(r"\x1b\[[349][4;90]*mdef", term.stream), "highlighted"
    assert term.screen.titles == []
    term.type(END)
    assert term.wait() == 0


def test_a_block_longer_than_the_screen_is_finally_shown_completely(tty):
    code = "```\n" + "\n".join(f"line {n}." for n in range(100)) + "\n```"
    term = tty({"text": code, "pause": 0.02}, rows=10, columns=40)
    term.type("go" + ENTER)
    term.until(
        lambda text: "line 50." in text and "line 99." not in text
    )  # the preview shows its end
    shown = term.until(lambda text: "line 0." in text and "line 99." in text)
    assert [shown.count(f"line {n}.") for n in range(100)] == [1] * 100


def test_a_terminal_can_be_resized(tty):
    term = tty({"text": "word " * 40})
    term.type("one" + ENTER)
    term.until(lambda text: text.count("word") == 40 and text.endswith("\n>"))
    term.resize(30, 40)
    term.type("two" + ENTER)
    shown = term.until(lambda text: text.count("word") == 80 and text.endswith("\n>"))
    assert all(len(line) <= 40 for line in shown.split("> two\n")[1].split("\n"))


def test_log_lines_are_printed_above_the_input_line(tty):
    term = tty({"text": "well", "pause": 1})
    term.type("oops" + ENTER + "half a line")
    assert "LOGGED" not in term.until("\n> half a line")
    shown = term.until(lambda text: "went wrong (reference" in text and "\nUse /retry" in text)
    shown = term.until(lambda text: text.endswith("\n> half a line"))
    assert "> oops\nLOGGED turn 1 of" in shown
    assert shown.count("half a line") == 1
    assert "\nTraceback (most recent call last):\n  File" in shown
    term.type(ENTER)
    term.until("well\n>")
    term.type(END)
    assert term.wait() == 0


def test_no_color_removes_colour_and_nothing_else(tty):
    term = tty({"text": "# Head\n\n```python\ndef f(): pass\n```"}, NO_COLOR="1")
    term.type("go" + ENTER)
    term.until("def f(): pass\n>")
    term.type("/titl")
    term.until("show or set the title")
    term.type(INTERRUPT)
    term.until(lambda text: text.endswith("\n>"))
    colours = set(re.findall(r"\x1b\[([0-9;]*)m", term.stream))
    numbers = {int(n) for each in colours for n in each.split(";") if n}
    assert not numbers & {*range(30, 50), *range(90, 108)}
    assert 1 in numbers, "headings are still bold"
    term.type(UP)
    term.until(lambda text: text.endswith("\n> go"))


def test_a_simple_terminal_gets_no_escape_codes(tty):
    term = tty(TERM="dumb")
    term.type("count to 900 slowly\n")
    term.until("1 2 3")
    term.type(INTERRUPT)
    term.until("(interrupted)\n>")
    term.type("count to 5\n")
    term.until("1 2 3 4 5\n>")
    term.type(INTERRUPT)
    term.until(HOW_TO_QUIT)
    term.type(INTERRUPT)
    assert term.wait() == 130
    assert "\x1b" not in term.stream
    assert term.restored


def test_without_prompt_toolkit_the_chat_is_plain(tty):
    code = "import sys; sys.modules['prompt_toolkit'] = None; from hermes.run.__main__ import main;"
    term = tty(command=[sys.executable, "-c", f"{code} sys.exit(main(sys.argv[1:]))"])
    term.type("count to 5\n")
    term.until("1 2 3 4 5\n>")
    term.type(END)
    assert term.wait() == 0
    assert "\x1b" not in term.stream


def test_a_message_typed_during_an_answer_is_shown_as_queued_and_moves_into_the_chat(tty):
    term = tty({"text": "one two three four five six", "piece": 4, "pause": 0.3})
    term.type("first" + ENTER)
    term.until("one")
    term.type("second" + ENTER)
    shown = term.until("queued: second")
    assert "> second" not in shown
    shown = term.until(lambda text: text.count("six") == 2 and text.endswith("\n>"))
    assert "queued" not in shown
    first, second = shown.split("> second\n")
    assert first.count("six") == second.count("six") == 1
    assert shown.count("second") == 1


def test_the_spinner_shows_what_the_agent_does_and_for_how_long(tty):
    term = tty({"text": "well", "pause": 2, "wait": 2})
    term.type("hello" + ENTER)
    term.until(lambda text: re.search(r". thinking 1 s\n>", text))
    term.until("writing 2 s")
    shown = term.until(lambda text: "writing" not in text and text.endswith("well\n>"))
    assert "thinking" not in shown


def test_the_end_of_the_input_lets_the_answer_finish_visibly(tty):
    term = tty({"text": "one two three four five six", "piece": 4, "pause": 0.2})
    term.type("go" + ENTER)
    term.until("one")
    term.type(END)
    term.until(STILL_RUNNING)
    assert "six" not in term.screen.text
    assert term.wait() == 0
    assert "six" in term.screen.text


def test_a_long_paste_is_collapsed_and_sent_whole(tty):
    term = tty()
    term.paste("count the words in " + "\n".join(["bee"] * 50))
    term.until("> [paste 1: 50 lines, ")
    term.type(ENTER)
    shown = term.until("Words: 50")
    assert shown.count("bee") < 20, "only in the answer's card"


@pytest.mark.parametrize("command", ["/quit", "/exit"])
def test_quit_ends_the_chat(tty, command):
    term = tty()
    term.type(command + ENTER)
    assert term.wait() == 0
    assert term.restored


def test_a_typo_in_a_command_is_not_sent_to_the_agent(tty):
    term = tty()
    term.type("/stauts" + ENTER)
    term.until("Unknown command /stauts, did you mean /status?")
    term.type("//stauts" + ENTER)
    term.until("You said: /stauts")


def test_the_next_start_says_which_conversation_continues(tty):
    term = tty()
    term.type("hello" + ENTER)
    term.until("You said: hello")
    term.type("/title Bees" + ENTER)
    term.until("The title is now")
    term.type("/quit" + ENTER)
    assert term.wait() == 0
    term = tty()
    term.until("This continues Bees (2 messages); /new starts another conversation.")
