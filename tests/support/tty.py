"""A program at a terminal: a real pty, and a model of its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata

_CODE = re.compile(
    r"\x1b\[([?>]?)([0-9;]*)([@-~])|\x1b\]([^\x07\x1b]*)(?:\x07|\x1b\\)|\x1b([=>78])"
)
TIMEOUT = 30.0


class Screen:
    """The screen with its scrollback; escape codes that it does not know raise an error.

    `styles` has the SGR codes of each character of `lines`, since the last reset.
    """

    def __init__(self, rows=24, columns=80):
        self.rows, self.columns = rows, columns
        self.lines, self.styles, self.style = [[]], [[]], ()
        self.y = self.x = 0  # y counts from the first line of the scrollback
        self.titles = []
        self._rest = ""

    @property
    def top(self):
        return max(len(self.lines) - self.rows, 0)

    @property
    def text(self):
        """The whole text, including the scrollback."""
        return "\n".join("".join(line).rstrip() for line in self.lines).rstrip("\n")

    def feed(self, text):
        text = self._rest + text
        index = 0
        while index < len(text):
            character = text[index]
            if character == "\x1b":
                found = _CODE.match(text, index)
                if found is None:
                    if len(text) - index < 30:
                        break
                    raise AssertionError(f"unknown code {text[index : index + 20]!r}")
                self._code(found)
                index = found.end()
            else:
                self._put(character)
                index += 1
        self._rest = text[index:]

    def _code(self, found):
        private, numbers, final, title, _ = found.groups()
        if title is not None:
            self.titles.append(title)
        elif final == "m" and not private:
            for number in map(int, (numbers or "0").split(";")):
                self.style = (*self.style, number) if number else ()
        elif final is None or private or final in "hlq":
            pass
        else:
            first = int(numbers.split(";")[0] or 0)
            getattr(self, f"_csi_{final}")(first)

    def _csi_A(self, n):  # noqa: N802
        self.y = max(self.y - max(n, 1), self.top)

    def _csi_B(self, n):  # noqa: N802
        self.y = min(self.y + max(n, 1), self.top + self.rows - 1)
        self._reach()

    def _csi_C(self, n):  # noqa: N802
        self.x = min(self.x + max(n, 1), self.columns - 1)

    def _csi_D(self, n):  # noqa: N802
        self.x = max(min(self.x, self.columns - 1) - max(n, 1), 0)

    def _csi_K(self, n):  # noqa: N802
        assert n in {0, 2}
        for each in (self.lines, self.styles):
            del each[self.y][0 if n else self.x :]

    def _csi_J(self, n):  # noqa: N802
        assert n == 0
        self._csi_K(0)
        for line in (*self.lines[self.y + 1 :], *self.styles[self.y + 1 :]):
            line.clear()

    def _reach(self):
        while self.y >= len(self.lines):
            self.lines.append([])
            self.styles.append([])

    def _put(self, character):
        if character == "\r":
            self.x = 0
        elif character == "\n":
            self.y += 1
            self._reach()
        elif character == "\b":
            self.x = max(self.x - 1, 0)
        elif character == "\x07":
            pass
        else:
            assert character.isprintable(), f"unprintable {character!r}"
            width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
            if self.x + width > self.columns:
                self.x = 0
                self.y += 1
                self._reach()
            line, styles = self.lines[self.y], self.styles[self.y]
            styles += [()] * (self.x + width - len(line))
            line += " " * (self.x + width - len(line))
            line[self.x], styles[self.x] = character, self.style
            if width == 2:
                line[self.x + 1] = ""
            self.x += width


class Tty:
    """A process at its own terminal."""

    def __init__(self, command, *, rows=24, columns=80, **environment):
        self.screen = Screen(rows, columns)
        self.ours, theirs = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs  # kept open, to read its settings after the process has ended
        self.stream = ""
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one thread
            env={**os.environ, "TERM": "xterm-256color", **environment},
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)

    def resize(self, rows, columns):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.rows, self.screen.columns = rows, columns

    def type(self, text):
        os.write(self.ours, text.encode())

    def paste(self, text):
        self.type(f"\x1b[200~{text}\x1b[201~")

    def signal(self, number):
        self.process.send_signal(number)

    def read(self, timeout=TIMEOUT):
        """Read the next output; returns whether there was any."""
        if not select.select([self.ours], [], [], timeout)[0]:
            return False
        piece = os.read(self.ours, 65536).decode(errors="replace")
        self.stream += piece
        self.screen.feed(piece)
        return True

    def until(self, wanted, timeout=TIMEOUT):
        """Read until the screen shows a text, or until a condition on its text is true."""
        met = wanted if callable(wanted) else lambda text: wanted in text
        deadline = time.monotonic() + timeout
        while not met(self.screen.text):
            assert time.monotonic() < deadline, f"{wanted!r} did not appear:\n{self.screen.text}"
            if not self.read(1) and self.process.poll() is not None:
                raise AssertionError(f"the process ended without {wanted!r}:\n{self.screen.text}")
        return self.screen.text

    def wait(self):
        """Wait for the process; returns its exit code after all its output was read."""
        deadline = time.monotonic() + TIMEOUT
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"the process does not end:\n{self.screen.text}"
            self.read(0.02)
        while self.read(0):
            pass
        return self.process.returncode

    @property
    def restored(self):
        return termios.tcgetattr(self.theirs) == self.before


INTERRUPT, END, UP, TAB, ALT_ENTER = "\x03", "\x04", "\x1b[A", "\t", "\x1b\r"
ENTER = "\r"
TERMINATE = signal.SIGTERM
