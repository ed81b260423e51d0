"""How a tool call that needs approval is shown: its exact arguments, in one code block.

The block holds a single line of printable characters (see `visible`), between fences that are
longer than any run of backticks in it. So it reads the same as Markdown and as plain text. Long
runs of backticks are escaped: fences that are as long would not fit into one message.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from hermes.messages import Approval
from hermes.sanitize import visible
from hermes.texts import Texts

PAGE = 1500
"""How many characters of the arguments one message shows. Even if each takes two UTF-16 code units,
the message fits into one of Telegram."""
MAX_LISTED = 80
"""How many characters of the arguments a list shows."""
_ARGUMENTS = "{arguments}"
_TICKS = re.compile("`+")
_MANY_TICKS = re.compile("`{10,}")


def question(approval: Approval, texts: Texts, page: int = 1) -> str:
    """Return the question to the user. If the arguments have several pages, it shows one."""
    return described(approval, texts.approval_question, texts, page)


def described(approval: Approval, template: str, texts: Texts, page: int = 1) -> str:
    """Return a sentence about a call, with its arguments as a code block.

    Of long arguments one page is shown, for a high number the last one. Then it says so, with a
    digest of all and how to see them.
    """
    shown = literal(approval.arguments)
    pages = max(1, -(-len(shown) // PAGE))
    page = min(max(1, page), pages)
    text = _filled(template, approval, shown[(page - 1) * PAGE : page * PAGE])
    if pages == 1:
        return text
    digest = hashlib.sha256(approval.arguments.encode(errors="surrogatepass")).hexdigest()
    number = approval.approval_id
    note = texts.approval_page.format(page=page, pages=pages, number=number, digest=digest)
    return f"{text}\n{note}"


def literal(arguments: str) -> str:
    """Return the JSON text of the arguments as a code block can show it, with the same value."""
    return _MANY_TICKS.sub(lambda ticks: r"\u0060" * len(ticks[0]), visible(arguments))


def listing(approvals: Sequence[Approval]) -> str:
    """Return a code block with one line for each call: its number, tool and arguments."""
    lines = [
        f"{each.approval_id}: {visible(each.tool)} {_shorten(literal(each.arguments))}"
        for each in approvals
    ]
    return _block("\n".join(lines))


def _filled(template: str, approval: Approval, shown: str) -> str:
    """Fill in a template. The block is on lines of its own, and never left out."""
    tool = "`" + visible(approval.tool).replace("`", r"\u0060") + "`"
    values = {"tool": tool, "number": approval.approval_id, "arguments": ""}
    before, _, after = template.partition(_ARGUMENTS)
    parts = (before.format(**values).rstrip(), _block(shown), after.format(**values).strip())
    return "\n".join(part for part in parts if part)


def _block(text: str) -> str:
    ticks = max(map(len, _TICKS.findall(text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}\n{text or '(empty)'}\n{fence}"


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LISTED else text[: MAX_LISTED - 1] + "…"
