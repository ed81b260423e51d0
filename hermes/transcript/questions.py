"""How a tool call that needs approval is shown: its exact arguments, in one code block.

The block holds a single line of characters that can be seen (see `visible`), between fences that
are longer than any run of backticks in it. So it reads the same as Markdown and as plain text. The
message is never longer than the platform allows, so that the block is not split.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from hermes.messages import Approval
from hermes.sanitize import is_mark, visible
from hermes.texts import Texts

MAX_ARGUMENTS = 10_000
"""Arguments longer than this cannot be shown to a user, so such a call cannot be approved."""
PAGE = 1500
"""How many characters of the arguments one message shows at most."""
MIN_PAGE = 40
"""If a message has room for fewer characters beside the question itself, nobody would read it."""
MAX_LISTED = 80
"""How many characters of the arguments a list shows."""
_NO_LIMIT = 1 << 30
_MAX_PAGES = 99_999
_MAX_NUMBER = 999_999_999
_ARGUMENTS = "{arguments}"
_TICKS = re.compile("`+")
_MANY_TICKS = re.compile("`{4,}")
"""They are written as escapes: the fences around them would take more room than the arguments."""
_TICK = r"\u0060"
_LONGEST_ESCAPE = len(_TICK)


def question(approval: Approval, texts: Texts, page: int = 1, *, limit: int | None = None) -> str:
    """Return the question to the user. If the arguments have several pages, it shows one."""
    return described(approval, texts.approval_question, texts, page, limit=limit)


def described(
    approval: Approval, template: str, texts: Texts, page: int = 1, *, limit: int | None = None
) -> str:
    """Return a sentence about a call, with its arguments as a code block.

    `limit` is the maximum length in UTF-16 code units. Of long arguments one page is shown, for a
    high number the last one. Then it says so, with a digest of all and how to see them.
    """
    shown = shown_arguments(approval.arguments)
    whole = _filled(template, approval, shown)
    if len(shown) <= PAGE and _size(whole) <= (limit or _NO_LIMIT):
        return whole
    pages = _pages(shown, max(MIN_PAGE, _room(approval, template, texts, limit)))
    page = min(max(1, page), len(pages))
    text = _filled(template, approval, pages[page - 1])
    return f"{text}\n{_note(approval, texts, page, len(pages))}"


def can_be_asked(tool: str, arguments: str, texts: Texts, limit: int | None) -> bool:
    """Whether the arguments can be shown, in messages of at most this length."""
    if len(arguments) > MAX_ARGUMENTS:
        return False
    longest = Approval(_MAX_NUMBER, "", "", tool, arguments, "pending", 0.0, 0.0)
    return limit is None or _size(question(longest, texts, limit=limit)) <= limit


def shown_arguments(arguments: str) -> str:
    """Return the arguments as they are shown: as JSON on one line."""
    return _MANY_TICKS.sub(lambda ticks: _TICK * len(ticks[0]), visible(arguments))


def listing(approvals: Sequence[Approval]) -> str:
    """Return a code block with one line for each call: its number, tool and arguments."""
    lines = [
        f"{each.approval_id}: {visible(each.tool)} {_shorten(shown_arguments(each.arguments))}"
        for each in approvals
    ]
    return _block("\n".join(lines))


def _room(approval: Approval, template: str, texts: Texts, limit: int | None) -> int:
    """Return how much of the arguments fits into a message with a note about the page."""
    note = _note(approval, texts, _MAX_PAGES, _MAX_PAGES)
    return (limit or _NO_LIMIT) - _size(f"{_filled(template, approval, '```')}\n{note}")


def _pages(shown: str, room: int) -> list[str]:
    """Split the arguments, but no escape, and no letter from its marks."""
    pages, start = [], 0
    while start < len(shown):
        end = start + min(PAGE, room)
        while (excess := _size(shown[start:end]) - room) > 0:
            end -= (excess + 1) // 2
        if end < len(shown):
            end = _between_characters(shown, start, end)
        pages.append(shown[start:end])
        start = end
    return pages


def _between_characters(shown: str, start: int, end: int) -> int:
    """Return the end of a page, moved to the left if it is inside of an escape or a letter."""
    last = shown.rfind("\\", max(start, end - _LONGEST_ESCAPE + 1), end)
    if last >= 0 and _begins_escape(shown, start, last):
        length = _LONGEST_ESCAPE if shown[last + 1] == "u" else 2
        end = end if last + length <= end else last
    while is_mark(shown[end]) and end > start + 1:
        end -= 1
    return end


def _begins_escape(shown: str, start: int, index: int) -> bool:
    """Whether a backslash begins an escape. If not, it is the second half of one."""
    before = shown[start:index]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 0


def _note(approval: Approval, texts: Texts, page: int, pages: int) -> str:
    digest = hashlib.sha256(approval.arguments.encode(errors="surrogatepass")).hexdigest()
    number = approval.approval_id
    return texts.approval_page.format(page=page, pages=pages, number=number, digest=digest)


def _filled(template: str, approval: Approval, shown: str) -> str:
    """Fill in a template. The block is on lines of its own, and never left out."""
    tool = "`" + visible(approval.tool).replace("`", _TICK) + "`"
    values = {"tool": tool, "number": approval.approval_id, "arguments": ""}
    before, _, after = template.partition(_ARGUMENTS)
    parts = (before.format(**values).rstrip(), _block(shown), after.format(**values).strip())
    return "\n".join(part for part in parts if part)


def _block(text: str) -> str:
    ticks = max(map(len, _TICKS.findall(text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}\n{text or '(empty)'}\n{fence}"


def _size(text: str) -> int:
    """Return the length in UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LISTED else text[: MAX_LISTED - 1] + "…"
