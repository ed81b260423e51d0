"""Walk through the README as a new user would, and record what the terminal shows.

    python docs/walk.py            walks, and fails at the first step that shows something else
    python docs/walk.py --check    fails also if README.md or docs/chat.svg shows something else
    python docs/walk.py --write    writes the recordings into README.md and docs/chat.svg
    ... --installed                uses the packages of this environment instead of installing them

The steps run in a fresh clone with an empty home, in one shell at a pty. Its environment has
nothing but HOME, PATH, TERM, PS1 and the variables of pip. Models are those of `hermes.testing`.
tests/integration/test_installing.py installs with pip, pipx and uv.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for tests.support

from picture import draw  # noqa: E402
from sessions import stable, update  # noqa: E402

from hermes.messages import ToolCall  # noqa: E402
from hermes.testing import ModelAnswer  # noqa: E402
from hermes.testing.model import ModelRequest  # noqa: E402
from tests.support.served_model import served  # noqa: E402
from tests.support.tty import END, ENTER, Tty  # noqa: E402

PICTURE = ROOT / "docs" / "chat.svg"
TITLE = "A conversation with examples/bot_with_tools.py: a price, an order, and its approval"
COLUMNS, PICTURE_COLUMNS = 160, 80
TIMEOUT, INSTALLING = 60.0, 600.0
PROMPT = r"^\[(\d+)\]\$$"  # with the exit code of the command before it
CHAT = r"^>$"
CHAT_COMMAND = ".venv/bin/python examples/bot_with_tools.py"
BIRDS = [
    ModelAnswer(calls=[ToolCall("1", "price", '{"bird": "heron"}')]),
    "A heron costs 12.50 francs.",
    ModelAnswer(calls=[ToolCall("2", "order", '{"bird": "heron", "number": 2}')]),
    "Please approve the order.",
    "Two herons are on their way.",
]


def answer(request: ModelRequest) -> str:
    """Answer as the model of `hermes setup`, from what the conversation has."""
    if "bees" in request.text:
        known = "bees dance" in request.body.decode()
        return "You said that bees dance." if known else "You said nothing about bees."
    return "Hello! Nice to meet you."


class Shell:
    """A shell at a terminal."""

    def __init__(self, tty: Tty) -> None:
        self.tty, self.screen = tty, tty.screen
        self.expect(0, [PROMPT])

    def expect(self, first: int, wanted: list[str], timeout: float = TIMEOUT) -> re.Match[str]:
        """Wait until the lines from `first` on show all that is wanted, in this order.

        The console draws lines again at another place, so earlier matches are searched again.
        """
        pattern = re.compile(".*?".join(f"(?:{each})" for each in wanted), re.MULTILINE | re.DOTALL)
        found = None

        def shown(_: str) -> bool:
            nonlocal found
            rows = "\n".join("".join(line).rstrip() for line in self.screen.lines[first:])
            found = pattern.search(rows)
            return found is not None or re.search(PROMPT, rows, re.MULTILINE) is not None

        with suppress(AssertionError):  # it has no readable name for the condition
            self.tty.until(shown, timeout)
        if found is None:
            raise AssertionError(f"no {wanted[-1]!r} in:\n{self.screen.text}")
        return found

    def run(
        self, command: str, *dialogue: tuple[str, str], code: int = 0, timeout: float = TIMEOUT
    ) -> range:
        """Type a command and the answers to its questions; returns the rows that it filled."""
        first = self.screen.y
        self.tty.type(f"{command}{ENTER}")
        before: list[str] = []
        for question, reply in dialogue:
            self.expect(first + 1, [*before, question], timeout)
            self.tty.type(reply)
            before.append("^>" if question == CHAT else question)
        found = self.expect(first + 1, [*before, PROMPT])
        if int(found[1]) != code:
            raise AssertionError(f"exit code {found[1]} instead of {code}:\n{self.screen.text}")
        return range(first, self.screen.y)

    def text(self, rows: range) -> str:
        """The lines as a user would copy them, without the exit code in the prompt."""
        lines = ["".join(self.screen.lines[row]).rstrip() for row in rows]
        return "\n".join([re.sub(r"^\[\d+\]\$", "$", lines[0]), *lines[1:]])


class Walk:
    """The steps of the README, in its order, and their recordings."""

    def __init__(self, home: Path, shell: Shell, commands: list[str], *, installed: bool) -> None:
        self.home, self.shell, self.commands, self.installed = home, shell, commands, installed
        self.listings: list[str] = []
        self.picture = ""

    def command(self, beginning: str) -> str:
        """Return the next command of the README."""
        command = self.commands.pop(0)
        assert command.startswith(beginning), f"the README has {command!r} here: write its step"
        return command

    def first_chat(self) -> None:
        """`make run` opens a chat without a model, after installing Hermes unless --installed"""
        installing = (
            []
            if self.installed
            else [("^Installing Hermes into .venv; ", ""), ("^Successfully installed ", "")]
        )
        self.shell.run(
            self.command("make run"),
            *installing,
            (r"^To connect a model: \.venv/bin/hermes setup$", ""),
            (CHAT, f"remember that bees dance{ENTER}"),
            ("^I will remember: bees dance$", ""),
            (CHAT, f"/title About bees{ENTER}"),
            ("^The title is now: About bees$", ""),
            (CHAT, END),
            timeout=INSTALLING,
        )

    def setup(self, url: str) -> None:
        """`hermes setup` connects a model and continues the chat"""
        rows = self.shell.run(
            self.command(".venv/bin/hermes setup"),
            (r"^Number \[\d\]:", f"6{ENTER}"),
            ("^URL, up to and including /v1:", f"{url}{ENTER}"),
            ("^API key, not shown", f"sk-typed-at-a-terminal{ENTER}"),
            ("^Model:", f"little{ENTER}"),
            (r"^ *It answered in ", ""),
            ("^Hermes .* little at .* answers, as configured", ""),
            (r"^This continues About bees \(2 messages\)", ""),
            (CHAT, f"hello{ENTER}"),
            ("^Hello! Nice to meet you.$", ""),
            (CHAT, END),
        )
        text = self.shell.text(rows)
        assert "sk-typed" not in self.shell.screen.text, "the key is shown"
        self.listings.append(text.removesuffix("\n>"))

    def doctor(self) -> None:
        """`hermes doctor` finds no problem"""
        rows = self.shell.run(
            self.command(".venv/bin/hermes doctor"),
            (r"^ok +configuration +/.*/hermes\.toml$", ""),
            ("^ok +model +little at .* answered in ", ""),
        )
        assert "PROBLEM" not in self.shell.text(rows), self.shell.text(rows)

    def status(self) -> None:
        """`hermes status` says that no bot is running, and which model is configured"""
        self.shell.run(
            self.command(".venv/bin/hermes status"),
            ("^Hermes is not running on /", ""),
            (r"^model +little \(configured\)$", ""),
            code=1,
        )

    def question(self) -> None:
        """`hermes -p` asks one question in the same conversation"""
        rows = self.shell.run(
            self.command(".venv/bin/hermes -p "), ("^You said that bees dance.$", "")
        )
        self.listings.append(self.shell.text(rows))

    def tools(self, url: str) -> None:
        """The example with tools asks before it orders"""
        self.shell.run(f"export OPENAI_BASE_URL={url} OPENAI_API_KEY=sk-none")
        self.shell.tty.resize(24, PICTURE_COLUMNS)
        rows = self.shell.run(
            self.command(CHAT_COMMAND),
            (CHAT, f"what does a heron cost?{ENTER}"),
            ("^A heron costs 12.50 francs.$", ""),
            (CHAT, f"two of them, please{ENTER}"),
            ("^Please approve the order.$", ""),
            (CHAT, f"/approve{ENTER}"),
            ("^Two herons are on their way.$", ""),
            (CHAT, END),
        )
        screen = self.shell.screen
        prompt = len("[0]")
        lines = [screen.lines[row][prompt if row == rows[0] else 0 :] for row in rows[:-1]]
        styles = [screen.styles[row][prompt if row == rows[0] else 0 :] for row in rows[:-1]]
        self.picture = draw(lines, styles, PICTURE_COLUMNS, TITLE)

    def recordings(self) -> str:
        """Return the listings as Markdown, with the same paths and ports in each run."""
        text = "\n".join(self.listings).replace(str(self.home), "/home/you")
        text = re.sub(r"127\.0\.0\.1:\d{4,5}/", "127.0.0.1:8000/", text)
        text = re.sub(r"(little at 127\.0\.0\.1):\d+", r"\1:8000", text)
        text = re.sub(r"answered in [\d.]+ seconds", "answered in 0.1 seconds", text)
        # An Ollama of whoever runs this is not part of the recording.
        text = re.sub(r"Ollama \(.*\)", "Ollama (not running at 127.0.0.1:11434)", text)
        text = re.sub(r"^Number \[\d\]", "Number [1]", text, flags=re.MULTILINE)
        return f"```console\n{text}\n```\n"


def commands_of_readme() -> list[str]:
    """Return what a user types: the first steps, and the example with tools."""
    readme = (ROOT / "README.md").read_text()
    block = readme.split("```sh\n")[1].split("```")[0]
    steps = [re.split(r"\s+# ", line)[0] for line in block.splitlines()]
    assert f"`{CHAT_COMMAND}`" in readme
    return [*steps, CHAT_COMMAND]


def clone(folder: Path) -> None:
    """Clone this repository, with the changes that are not committed yet."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    diff = ["git", "-C", ROOT, "diff", "--binary", "HEAD"]
    changes = subprocess.run(diff, check=True, capture_output=True).stdout
    if changes:
        subprocess.run(["git", "-C", folder, "apply"], input=changes, check=True)


def link_packages(folder: Path) -> None:
    """Make the `.venv` of a clone that uses the packages of this environment."""
    venv.create(folder / ".venv", symlinks=True)
    [site] = (folder / ".venv" / "lib").glob("python*/site-packages")
    (site / "walk.pth").write_text(f"{folder}\n{sysconfig.get_path('purelib')}\n")
    script = folder / ".venv" / "bin" / "hermes"
    script.write_text(
        f"#!{script.with_name('python')}\nimport sys\n"
        "from hermes.cli.main import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    (folder / ".venv" / "bot").touch()


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a new user, with the registry and the package cache of ours."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pip"
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {
        "HOME": str(home),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TERM": "xterm-256color",
        "PS1": "[$?]$ ",
        **({"PIP_CACHE_DIR": str(cache)} if cache.exists() else {}),
        **pip,
    }


@contextmanager
def opened(*, installed: bool) -> Iterator[Walk]:
    """Open a shell in a fresh clone."""
    with tempfile.TemporaryDirectory(prefix="walk-") as folder:
        home = Path(folder).resolve()
        clone(home / "hermes")
        if installed:
            link_packages(home / "hermes")
        variables = [f"{name}={value}" for name, value in environment(home).items()]
        start = ["env", "-i", "-C", home / "hermes", *variables, "bash", "--norc", "--noprofile"]
        with Tty(start, columns=COLUMNS) as tty:
            yield Walk(home, Shell(tty), commands_of_readme(), installed=installed)
            tty.type(END)
            tty.wait()


def walk(each: Walk) -> None:
    """Take every step, and print a line for each."""
    with served(script=answer) as model, served(script=BIRDS) as birds:
        steps = [
            (each.first_chat,),
            (each.setup, model.openai_url),
            (each.doctor,),
            (each.status,),
            (each.question,),
            (each.tools, birds.openai_url),
        ]
        for step, *arguments in steps:
            began = time.monotonic()
            try:
                step(*arguments)
            except AssertionError as error:
                raise SystemExit(f"FAILED  {step.__doc__}\n{error}") from None
            sys.stdout.write(f"ok {time.monotonic() - began:6.1f} s  {step.__doc__}\n")
            sys.stdout.flush()
    assert each.commands == [], f"no step runs {each.commands}"


def unplaced(picture: str) -> list[str]:
    """Return the lines of a picture as `stable` does, whatever their order on the screen is."""
    return stable(re.sub(r' y="\d+"', "", picture))


def keep(each: Walk, *, check: bool) -> bool:
    """Write or compare the recordings; returns whether they were up to date."""
    current = update("README.md", [each.recordings()], by="walk.py", check=check)
    if not check:
        PICTURE.write_text(each.picture)
    elif unplaced(PICTURE.read_text()) != unplaced(each.picture):
        sys.stderr.write(f"{PICTURE.name} shows another screen than this:\n{each.picture}")
        return False
    return current


def main() -> int:
    options = set(sys.argv[1:])
    if options - {"--check", "--write", "--installed"}:
        raise SystemExit(__doc__)
    with opened(installed="--installed" in options) as each:
        walk(each)
    if not options & {"--check", "--write"}:
        return 0
    check = "--check" in options
    return int(not keep(each, check=check) and check)


if __name__ == "__main__":
    sys.exit(main())
