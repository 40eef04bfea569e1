# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a set of runs says of each strategy: best learning rate, loss with its interval, differences, stable range."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nemo_sr.experiments.strategies.results import Result
from nemo_sr.experiments.strategies.statistics import Interval, interval, stable_range
from nemo_sr.experiments.strategies.sweep import STRATEGIES


@dataclass(frozen=True)
class Comparison:
    """The runs of one corpus.

    Args:
        corpus: Name of the text.
        results: Its runs; those that are not finished are left out of all numbers.
    """

    corpus: str
    results: Sequence[Result]

    @property
    def strategies(self) -> list[str]:
        """Those with a run that has a loss, in the order of tables."""
        found = {one.strategy for one in self.results if one.loss is not None}
        return [name for name in STRATEGIES if name in found]

    @property
    def rates(self) -> list[float]:
        """All learning rates, rising."""
        return sorted({one.lr for one in self.results})

    def losses(self, strategy: str, lr: float) -> dict[int, float]:
        """Return the final losses by seed."""
        return {
            one.seed: one.loss
            for one in self.results
            if one.strategy == strategy and one.lr == lr and one.loss is not None
        }

    def first_losses(self, strategy: str) -> dict[float, float | None]:
        """Return the final loss of the first seed by learning rate, None where the run diverged."""
        own = [one for one in self.results if one.strategy == strategy and (one.loss is not None or one.diverged)]
        first = min(one.seed for one in own)
        return {one.lr: one.loss for one in own if one.seed == first}

    def best_rate(self, strategy: str) -> float:
        """Return the learning rate with the lowest loss of the first seed, which alone ran at all of them."""
        losses = {lr: loss for lr, loss in self.first_losses(strategy).items() if loss is not None}
        return min(losses, key=lambda lr: losses[lr])

    def stable(self, strategy: str) -> tuple[float, float] | None:
        """Return the stable range of the learning rate, see ``statistics.stable_range``."""
        return stable_range(self.first_losses(strategy))

    def loss(self, strategy: str, lr: float) -> Interval:
        """Return the mean final loss over seeds."""
        return interval(list(self.losses(strategy, lr).values()))

    def difference(self, strategy: str, lr: float, against: str, against_lr: float) -> Interval | None:
        """Return the mean difference of final losses, paired by seed; None where no seed has both."""
        own, other = self.losses(strategy, lr), self.losses(against, against_lr)
        pairs = [own[seed] - other[seed] for seed in sorted(own.keys() & other.keys())]
        return interval(pairs) if pairs else None

    def best_difference(self, strategy: str, against: str) -> Interval | None:
        """Return the difference of two strategies, each at its own best learning rate."""
        return self.difference(strategy, self.best_rate(strategy), against, self.best_rate(against))


def compare(results: Iterable[Result]) -> list[Comparison]:
    """Sort runs by corpus; a corpus without a finished run is left out."""
    by_corpus: dict[str, list[Result]] = {}
    for one in results:
        by_corpus.setdefault(one.corpus, []).append(one)
    found = [Comparison(corpus, runs) for corpus, runs in by_corpus.items()]
    return [one for one in found if one.strategies]
