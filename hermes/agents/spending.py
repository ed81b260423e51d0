"""What calls cost, and how much may be spent: checked before each call, refused visibly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from msgspec.structs import replace

from hermes.agents.provider import ProviderError
from hermes.messages import Spent, Usage
from hermes.protocols import SpentSoFar

MILLION = 1_000_000


class BudgetSpent(ProviderError):
    """Nothing more may be spent for now; the text says of what."""


@attrs.frozen(kw_only=True)
class Price:
    """What a million tokens of a model cost, by bucket; a cached one costs as one of input."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float | None = None
    cache_write: float | None = None

    def of(self, usage: Usage) -> float:
        """The cost of a call."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        return (
            usage.input_tokens * self.input
            + usage.output_tokens * self.output
            + usage.cache_read_tokens * read
            + usage.cache_write_tokens * write
        ) / MILLION


@attrs.frozen(kw_only=True)
class Budgets:
    """How much may be spent, in the currency of the prices; None is no limit."""

    session: float | None = None
    principal: float | None = None
    day: float | None = None


_SENTENCES = {
    "session": "this conversation has used up its budget ({spent:.4f} of {limit:.4f}); "
    "/new begins another",
    "principal": "your budget is used up ({spent:.4f} of {limit:.4f}); ask the operator for more",
    "day": "the budget of this day is used up ({spent:.4f} of {limit:.4f}); try again tomorrow",
}


class Spending:
    """Prices and budgets of an agent."""

    def __init__(
        self, prices: Mapping[str, Price] | None = None, budgets: Budgets | None = None
    ) -> None:
        self._prices = prices or {}
        self._budgets = budgets or Budgets()

    def priced(self, usage: Usage) -> Usage:
        """The usage with its cost, where a price is known and the provider has told none."""
        price = self._prices.get(usage.model or "")
        if price is None or usage.cost is not None:
            return usage
        return replace(usage, cost=price.of(usage))

    async def check(self, spent_so_far: SpentSoFar, running: Sequence[Usage]) -> None:
        """Refuse another call where a budget is used up; `running` is not in the ledger yet."""
        if self._budgets == Budgets():
            return
        spent: Spent = await spent_so_far()
        more = sum(usage.cost or 0.0 for usage in running)
        for name, sentence in _SENTENCES.items():
            limit = getattr(self._budgets, name)
            used = getattr(spent, name) + more
            if limit is not None and used >= limit:
                raise BudgetSpent(sentence.format(spent=used, limit=limit))
