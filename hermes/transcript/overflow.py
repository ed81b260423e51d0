"""What a person reads when a turn ends without words."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from hermes.messages import TurnResult

LONG_HISTORY = 50
"""A conversation of more messages than this is the likely cause of a refusal without a reason."""

OVERFLOW = (
    "This conversation no longer fits into the model's context window. "
    "/compact shortens it and goes on, /reset starts a new one."
)
FAILED = "The request failed: {error}\n/retry sends it once more, /reset starts a new conversation."
NOT_BEGUN = "This was interrupted before the work on it began. Please send it again."
STOPPED = "The work stopped before its end: {error}\n/retry begins it once more."
SPEECHLESS = "The work is finished, but the model said nothing about it. Ask for more, or /retry."
NOT_PROCESSED = "This message was not worked on. Please send it again."

# A longer error repeats the request, or is a page of a proxy.
_READ = 5000
# Of an agent that gave up asking for the rest of a reply: nothing that a person could act on.
_UNFINISHED = "remained incomplete after"


def normalize(result: TurnResult, history_len: int) -> str:
    """The text shown for a result: its own, or a notice, or "" where silence is right.

    Text of nothing but blanks counts as none, since no platform delivers it.
    """
    if result.text and result.text.strip():
        return result.text
    if result.failed:
        return _failure(result.error, history_len)
    if result.interrupted:
        return "" if result.api_calls > 0 else NOT_BEGUN
    if result.api_calls > 0:
        return _speechless(result)
    return "" if result.partial else NOT_PROCESSED


def _failure(error: str | None, history_len: int) -> str:
    if is_overflow(error, history_len):
        return OVERFLOW
    return FAILED.format(error=_cut(error, 300))


def _speechless(result: TurnResult) -> str:
    if not result.partial:
        return SPEECHLESS
    if _UNFINISHED in (result.error or ""):
        return ""
    return STOPPED.format(error=_cut(result.error, 200))


def _cut(error: str | None, length: int) -> str:
    return error[:length] if error and error.strip() else "unknown error"


def is_overflow(error: str | None, history_len: int) -> bool:
    """Whether a provider refused a request because of its length, and for no other reason.

    What is said of credentials, rates and quotas is never an overflow, even if it also tells of
    too many tokens: a shorter conversation does not help there. A bare 400 is one in a long
    conversation, because some providers say no more than that.
    """
    said = (error or "")[:_READ]
    if _other_reason().search(said):
        return False
    if _too_long().search(said):
        return True
    return history_len > LONG_HISTORY and _is_bare_400(said)


def _any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    # A blank in a pattern stands for what separates words in a sentence, in a code or in the name
    # of a class: "context length exceeded", context_length_exceeded, ContextLengthExceeded.
    return re.compile("|".join(patterns).replace(" ", r"[\s_-]*"), re.IGNORECASE)


# Numbers are all over these texts, so a status counts only where a status stands.
_STATUS = r"(?:\A\W*|(?:http(?:/[\d.]+)?|status|code|error)\W{0,4})"

_OTHER_REASON = (
    rf"{_STATUS}(?:401|402|403|407|429)\b",
    r"unauthori[sz]ed|unauthenticated|authenticat|forbidden|permission|credential|api key",
    r"(?:access|auth|bearer|refresh) token",
    r"(?:invalid|expired|missing) token\b|token (?:has |is )?(?:expired|invalid|revoked)",
    r"rate limit|too many requests|throttl|resource exhausted|please wait|quota(?!t)",
    r"\b[rt]p[md]\b|(?:tokens?|requests?) (?:per|/) (?:sec|min|hour|day|month)",
    r"billing|payment|\bcredits?\b|can only afford|usage limit|spend(?:ing)? limit",
)

_TOO_LONG = (
    rf"{_STATUS}413\b",
    r"context (?:length|window|size|limit).{0,40}exceed",
    r"exceed.{0,60}context (?:length|window|size|limit)",
    r"max(?:imum)? (?:context|prompt|input|model) length",
    r"(?:long|great|larg)er than the (?:model'?s? )?(?:maximum )?(?:context|model) length",
    r"context length of only|context (?:the )?overflow",
    r"(?:prompt|inputs?|request|payload|messages|conversation|context)"
    r"(?: entity)?(?: \([^)]{0,80}\))? (?:is |are |was )?too (?:long|large|big)",
    # Not with the blank that may be nothing: a long number could be read in too many ways.
    r"(?:prompt|input)(?:[\s_-]+(?:tokens?|length|size|count|text|of|\(?[\d,]+\)?))*[\s_-]+exceed",
    r"exceed\w* (?:the )?model'?s? (?:maximum )?token limit",
    r"request (?:size )?exceeds the maximum (?:allowed )?(?:size|number of bytes)",
    r"too many (?:input|prompt) tokens|too many tokens:|too many total text bytes",
    r"too many tokens in (?:the |your |this )?(?:prompt|input|request|messages|conversation)",
    r"reduce the length of (?:the|your) (?:input |chat )?(?:messages|prompt|input|conversation)",
    r"range of input length",
    r"inputs\W{1,2}(?:tokens \+ \W?max new tokens\W? must be|must have less than)",
)


# Compiled when they are first needed: that takes five milliseconds, which an import need not.
@functools.cache
def _other_reason() -> re.Pattern[str]:
    return _any_of(_OTHER_REASON)


@functools.cache
def _too_long() -> re.Pattern[str]:
    return _any_of(_TOO_LONG)


# All the words of a refusal that gives no reason.
_EMPTY_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an api apierror apistatuserror bad badrequest badrequesterror body check client code "
        "detail details error exception failed for from http httperror id information is message "
        "more no none null openai param provider request response returned server status "
        "statuscode the to type upstream url was with",
    )
)
_NO_WORDS = re.compile(r"https?://\S+|\breq_\w+|\binvalid[\s_]request", re.IGNORECASE)


def _is_bare_400(error: str) -> bool:
    if not re.search(r"\b400\b", error):
        return False
    words = re.findall(r"[^\W\d_]+", _NO_WORDS.sub(" ", error).lower())
    return _EMPTY_WORDS.issuperset(words)
