"""Prices of model calls, and budgets that are checked before each call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, Self, TypeAlias

from msgspec.structs import replace

from hermes.agents.providers.base import FileBody, ProviderError
from hermes.config import Budgets as Budgets, Price as Price
from hermes.messages import CostTotals, Usage
from hermes.protocols import SpentSoFar
from hermes.texts import ENGLISH, Texts

BYTES_PER_TOKEN = 4
Budget: TypeAlias = Literal["session", "principal", "day"]
"""What a budget limits: the cost of a conversation, of a user, or of a day."""


class BudgetSpent(ProviderError):
    """A budget is used up: `spent` has reached `limit`."""

    def __init__(self, budget: Budget, spent: float, limit: float) -> None:
        self.budget = budget
        self.spent = spent
        self.limit = limit
        super().__init__(self.text(ENGLISH))

    def text(self, texts: Texts) -> str:
        """Return which budget is used up, for the user."""
        sentences = {
            "session": texts.session_budget,
            "principal": texts.principal_budget,
            "day": texts.day_budget,
        }
        spent, limit = f"{self.spent:.4f}", f"{self.limit:.4f}"
        return sentences[self.budget].format(spent=spent, limit=limit)

    def __reduce__(self) -> tuple[type[Self], tuple[Budget, float, float]]:
        return type(self), (self.budget, self.spent, self.limit)


class Spending:
    """Prices and budgets of an agent.

    Args:
        prices: The price of each model, by model name. A call whose model is not listed has no
            cost, unless the provider reports one.
        budgets: The limits; without them nothing is refused.
    """

    def __init__(
        self, prices: Mapping[str, Price] | None = None, budgets: Budgets | None = None
    ) -> None:
        self._prices = prices or {}
        self._budgets = budgets or Budgets()
        self._in_flight: defaultdict[str, float] = defaultdict(float)
        """The expected cost of running calls by payer; the key "" is the sum of all."""

    def change(self, prices: Mapping[str, Price], budgets: Budgets) -> None:
        """Replace the prices and the limits, for the calls from now on."""
        self._prices, self._budgets = prices, budgets

    def priced(self, usage: Usage) -> Usage:
        """Return the usage with its cost, if the model has a price and no cost was reported.

        A call without any tokens has no cost: the provider has not reported them.
        """
        price = self._prices.get(usage.model or "")
        if price is None or usage.cost is not None or not _has_tokens(usage):
            return usage
        return replace(usage, cost=price.of(usage))

    def expected(self, model: str, body: bytes | FileBody, max_tokens: int | None) -> Usage:
        """Return an estimate of the usage of a call, from its request body."""
        if isinstance(body, bytes):
            tokens = len(body) // BYTES_PER_TOKEN
        else:
            tokens = len(body.encoded) // BYTES_PER_TOKEN + body.tokens
        return self.priced(Usage(model=model, input_tokens=tokens, output_tokens=max_tokens or 0))

    @asynccontextmanager
    async def allowed(self, spent_so_far: SpentSoFar, expected: Usage) -> AsyncIterator[None]:
        """Reserve the expected cost of a call while the block runs.

        Raises `BudgetSpent` if a budget is used up. Reservations of other running calls count as
        spent, so that many calls that start together cannot each find the budget untouched.
        """
        if self._budgets == Budgets():
            yield
            return
        spent = await spent_so_far()
        self._check(spent)
        cost = expected.cost or 0.0
        for payer in ("", spent.payer):
            self._in_flight[payer] += cost
        try:
            yield
        finally:
            for payer in ("", spent.payer):
                self._in_flight[payer] -= cost

    def _check(self, spent: CostTotals) -> None:
        budgets, in_flight = self._budgets, self._in_flight
        checks: Sequence[tuple[Budget, float | None, float]] = (
            ("session", budgets.session, spent.session),
            ("principal", budgets.principal, spent.principal + in_flight[spent.payer]),
            ("day", budgets.day, spent.day + in_flight[""]),
        )
        for budget, limit, used in checks:
            if limit is not None and used >= limit:
                raise BudgetSpent(budget, used, limit)


def _has_tokens(usage: Usage) -> bool:
    cached = usage.cache_read_tokens or usage.cache_write_tokens
    return bool(usage.input_tokens or usage.output_tokens or cached)
