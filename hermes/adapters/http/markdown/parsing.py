"""Parse Markdown: a whole text, or an answer while it arrives.

Both give the same blocks. An answer is parsed by its top-level blocks, each when it is complete:
when a complete line after it begins another block, or when no line can change it any more. A
line is complete when its line break has arrived. Two rules make this exact:

- Link reference definitions are text, so that no block depends on another.
- A block that is larger than the limit is cut. If the lines from its beginning that fit into the
  limit contain no end of it, they are one plain block, and the next line begins a new block. Code
  between fences stays code: it becomes several blocks without highlighting. So does a line that is
  larger than the limit, as plain text. A block in which a fence is nested may so be cut within the
  code; then the rest of this code is parsed as Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hermes.adapters.http.markdown.addresses import is_own_file
from hermes.adapters.http.markdown.elements import Builder, language
from hermes.adapters.http.markdown.grammar import TopBlock, top_blocks
from hermes.adapters.http.markdown.limits import STANDARD, Limits
from hermes.adapters.http.markdown.nodes import Element, code_block, plain

_EMPTY_LINES = re.compile(r"(?:[ \t]*\n)+")
_LIKELY_END = re.compile(r"\n[ \t]*\n[^\s\d*+>|-]|\n {0,3}(?:```|~~~)")
"""Lines that end most lists, and those that end code."""
_GOES_ON = frozenset("-*+0123456789 \t`~")
"""How blocks begin that may go on after an empty line."""
_GROWTH = 4
_UNSAFE = re.compile("[\0\ud800-\udfff]")
_MAX_FENCE = 100


def parse(
    text: str,
    *,
    is_own_file: Callable[[str], bool] = is_own_file,
    limits: Limits = STANDARD,
) -> list[Element]:
    """Return the blocks of a text.

    `is_own_file` tells which addresses of images are shown; others become links or text.
    """
    answer = GrowingText(is_own_file=is_own_file, limits=limits)
    answer.feed(text)
    return answer.end()


class GrowingText:
    """A text that arrives in pieces.

    After each piece, or less often, `take_finished` returns the blocks that are new and will not
    change, and `open_blocks` what follows them for now. `end` returns the blocks of the rest. How
    the text is divided into pieces and when the methods are called makes no difference to the
    blocks. `open_blocks` parses all that is open, up to `Limits.block` characters, each time.
    """

    def __init__(
        self,
        *,
        is_own_file: Callable[[str], bool] = is_own_file,
        limits: Limits = STANDARD,
    ) -> None:
        self.parsed: int = 0
        """Characters that were given to the parser until now."""
        self._limits = limits
        self._builder = Builder(is_own_file, limits.depth)
        self._pieces: list[str] = []
        self._finished: list[Element] = []
        self._rest = ""
        """The text after the last finished block."""
        self._seen = 0
        """How much of the rest was searched for finished blocks."""
        self._after_return = False
        """Whether the last character was a carriage return, which may have a line feed."""
        self._fence = ""
        """The opening line of a block of code that was cut."""
        self._in_line = False
        """Whether the rest begins within a line that was cut."""

    def feed(self, delta: str) -> None:
        """Append text."""
        if self._after_return and delta:
            delta = "\r" + delta
        self._after_return = delta.endswith("\r")
        delta = delta.removesuffix("\r") if self._after_return else delta
        if delta:
            lines = delta.replace("\r\n", "\n").replace("\r", "\n")
            self._pieces.append(_UNSAFE.sub("\ufffd", lines))

    def take_finished(self) -> list[Element]:
        """Return the blocks that are finished; each is returned once.

        The end of a large block may be found a few lines late.
        """
        self._advance()
        finished, self._finished = self._finished, []
        return finished

    def open_blocks(self) -> list[Element]:
        """Return the blocks after the finished ones, as if the text ended here.

        Mostly it is one block. Code is not highlighted, because it would be again and again. What
        `take_finished` returns at the same time is not included.
        """
        self._advance()
        return self._remaining(highlighted=False)

    def end(self) -> list[Element]:
        """Return the remaining blocks. Nothing can be appended afterwards."""
        if self._after_return:
            self._after_return = False
            self._pieces.append("\n")
        self._join()
        if self._rest and not self._rest.endswith("\n"):
            self._rest += "\n"
        self._seen = 0
        blocks = [*self.take_finished(), *self._remaining(highlighted=True)]
        self._rest = ""
        return blocks

    def _join(self) -> None:
        if self._pieces:
            self._rest = "".join([self._rest, *self._pieces])
            self._pieces.clear()

    def _advance(self) -> None:
        """Finish what can be finished."""
        self._join()
        while self._step():
            pass

    def _step(self) -> bool:
        """Finish blocks at the beginning of the rest; False if none is complete."""
        if self._in_line:
            return self._finish_line()
        if not self._fence and (empty := _EMPTY_LINES.match(self._rest)):
            self._drop(empty.end())
        is_full = len(self._rest) > self._limits.block
        end = self._rest.rfind("\n", 0, self._limits.block) + 1
        if not is_full and not self._is_due(end):
            return False
        if end == 0:
            self._in_line = True
            self._finish_line()
            return True
        self._seen = end
        blocks = self._blocks(self._rest[:end])
        complete = blocks if blocks[-1].is_complete else blocks[:-1]
        if complete:
            self._finish(complete)
        elif is_full:
            self._cut(blocks[-1])
        return bool(complete) or is_full

    def _is_due(self, end: int) -> bool:
        """Whether to search the complete lines for finished blocks.

        If nothing hints at an end, it is worth it only after some growth: then all the searches
        together cost a multiple of the text, however often they are asked for.
        """
        if end <= self._seen or (end - self._seen) * _GROWTH > self._seen:
            return end > self._seen
        new = self._rest[max(self._seen - 2, 0) : end]
        if _LIKELY_END.search(new):
            return True
        return "\n\n" in new and self._rest[0] not in _GOES_ON

    def _blocks(self, text: str) -> list[TopBlock]:
        self.parsed += len(text)
        return top_blocks(self._fence + text, self._limits.depth)

    def _finish(self, complete: list[TopBlock]) -> None:
        size = sum(len(block.source) for block in complete) - len(self._fence)
        highlighted = [not self._fence, *(True for _ in complete[1:])]
        self.parsed += size
        self._finished.extend(
            self._builder.build(block, highlighted=each)
            for block, each in zip(complete, highlighted, strict=True)
        )
        self._fence = ""
        self._drop(size)

    def _cut(self, block: TopBlock) -> None:
        """Finish a block that is larger than the limit, as far as the limit goes."""
        size = len(block.source) - len(self._fence)
        opening = block.source.partition("\n")[0]
        token = block.tokens[0]
        if block.is_fence and len(token.markup) <= _MAX_FENCE:
            self._finished.append(self._builder.build(block, highlighted=False))
            indent = " " * (len(opening) - len(opening.lstrip(" ")))
            self._fence = f"{indent}{token.markup}{language(token.info) or ''}\n"
        else:
            self._finished.append(plain(block.source))
        self._drop(size)

    def _finish_line(self) -> bool:
        """Finish a piece of a line that is larger than the limit; False if it is not complete."""
        end = self._rest.find("\n", 0, self._limits.block) + 1
        if end == 0 and len(self._rest) <= self._limits.block:
            return False
        size = end or self._limits.block
        self._finished.extend(self._pieces_of_line(self._rest[:size]))
        self._in_line = end == 0
        self._drop(size)
        return True

    def _pieces_of_line(self, text: str) -> list[Element]:
        """Return a piece of a line that is larger than the limit; none if it shows nothing.

        Outside of code, a line of spaces may turn out to be an empty line.
        """
        if self._fence:
            return [code_block([text.removesuffix("\n")], None)] if text not in {"", "\n"} else []
        return [plain(text)] if text.strip(" \t\n") else []

    def _remaining(self, *, highlighted: bool) -> list[Element]:
        text = self._rest
        if self._in_line:
            return self._pieces_of_line(text)
        if not text.strip(" \t\n"):
            return []
        blocks = self._blocks(text if text.endswith("\n") else text + "\n")
        self.parsed += len(text)
        highlighted = highlighted and not self._fence
        return [self._builder.build(block, highlighted=highlighted) for block in blocks]

    def _drop(self, size: int) -> None:
        self._rest = self._rest[size:]
        self._seen = 0
