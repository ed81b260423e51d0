"""What calls cost, and how much may be spent: checked before each call, refused visibly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import attrs
from msgspec.structs import replace

from hermes.agents.providers.base import ProviderError
from hermes.messages import CostTotals, Usage
from hermes.protocols import SpentSoFar

MILLION = 1_000_000
BYTES_PER_TOKEN = 4


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
        self._flying: defaultdict[str, float] = defaultdict(float)

    def priced(self, usage: Usage) -> Usage:
        """The usage with its cost, where a price is known and the provider has told none."""
        price = self._prices.get(usage.model or "")
        if price is None or usage.cost is not None:
            return usage
        return replace(usage, cost=price.of(usage))

    def expected(self, model: str, body: bytes, max_tokens: int | None) -> Usage:
        """What a call will cost at least, as far as it can be told before it is answered."""
        tokens = len(body) // BYTES_PER_TOKEN
        return self.priced(Usage(model=model, input_tokens=tokens, output_tokens=max_tokens or 0))

    @asynccontextmanager
    async def allowed(self, spent_so_far: SpentSoFar, expected: Usage) -> AsyncIterator[None]:
        """A call during the block; refused where a budget is used up.

        What other calls are expected to cost that are not answered yet counts as spent: else a
        hundred that begin at once would each find the budget untouched.
        """
        if self._budgets == Budgets():
            yield
            return
        spent: CostTotals = await spent_so_far()
        self._check(spent)
        cost = expected.cost or 0.0
        for payer in ("", spent.payer):
            self._flying[payer] += cost
        try:
            yield
        finally:
            for payer in ("", spent.payer):
                self._flying[payer] -= cost

    def _check(self, spent: CostTotals) -> None:
        flying = {"principal": self._flying[spent.payer], "day": self._flying[""]}
        for name, sentence in _SENTENCES.items():
            limit = getattr(self._budgets, name)
            used = getattr(spent, name) + flying.get(name, 0.0)
            if limit is not None and used >= limit:
                raise BudgetSpent(sentence.format(spent=used, limit=limit))
