"""Recognize context overflows in the error messages of providers."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

LONG_HISTORY = 50
"""In a longer conversation, a refusal without a reason is probably an overflow."""

# A longer text repeats the request, or is an error page of a proxy.
_MAX_LENGTH = 5000


def is_overflow(error: str | None, history_len: int) -> bool:
    """Return whether a provider refused a request because of its length.

    Errors about credentials, rates and quotas are never an overflow, even if they mention too many
    tokens: a shorter conversation does not help. A bare 400 counts as an overflow in a conversation
    of more than `LONG_HISTORY` messages, because some providers say no more than that.
    """
    text = (error or "")[:_MAX_LENGTH]
    if _other_reason().search(text):
        return False
    if _too_long().search(text):
        return True
    return history_len > LONG_HISTORY and _is_bare_400(text)


def _any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    # A space in a pattern matches any separator of words: "context length exceeded",
    # context_length_exceeded, ContextLengthExceeded.
    return re.compile("|".join(patterns).replace(" ", r"[\s_-]*"), re.IGNORECASE)


# These texts are full of numbers, so a status code counts only where a status is expected.
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
    # Explicit separators: with optional ones, a long number would match in too many ways.
    r"(?:prompt|input)(?:[\s_-]+(?:tokens?|length|size|count|text|of|\(?[\d,]+\)?))*[\s_-]+exceed",
    r"exceed\w* (?:the )?model'?s? (?:maximum )?token limit",
    r"request (?:size )?exceeds the maximum (?:allowed )?(?:size|number of bytes)",
    r"too many (?:input|prompt) tokens|too many tokens:|too many total text bytes",
    r"too many tokens in (?:the |your |this )?(?:prompt|input|request|messages|conversation)",
    r"reduce the length of (?:the|your) (?:input |chat )?(?:messages|prompt|input|conversation)",
    r"range of input length",
    r"inputs\W{1,2}(?:tokens \+ \W?max new tokens\W? must be|must have less than)",
)


# Compiled on first use: it takes five milliseconds, which would slow down the import.
@functools.cache
def _other_reason() -> re.Pattern[str]:
    return _any_of(_OTHER_REASON)


@functools.cache
def _too_long() -> re.Pattern[str]:
    return _any_of(_TOO_LONG)


# The words of a refusal that gives no reason.
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
