# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Steps that were skipped because their gradient norm was not finite, and when there are too many of them."""

from __future__ import annotations

from collections.abc import Mapping

DIVERGED = "The norm of the gradients must be finite"
"""How the message of :class:`DivergedError` begins."""


class DivergedError(RuntimeError):
    """A run that no longer learns; the message says since when and what to do."""


class SkippedSteps:
    """Counts skipped steps.

    Args:
        max_in_a_row: ``trainer.max_skipped_steps``.
    """

    def __init__(self, max_in_a_row: int) -> None:
        self.max_in_a_row = max_in_a_row
        self.in_a_row = 0
        self.total = 0

    def count(self, step: int, *, updated: bool, grad_norm: float, found: str = "") -> str | None:
        """Count a step.

        Args:
            step: Its number, 1 for the first.
            updated: Whether it changed the weights.
            grad_norm: Norm of its gradients.
            found: Where gradients are not finite.

        Returns:
            What the user should know, or None.

        Raises:
            DivergedError: as many steps in a row were skipped as are allowed.
        """
        if updated:
            self.in_a_row = 0
            return None
        self.in_a_row += 1
        self.total += 1
        where = f" ({found})" if found else ""
        if self.in_a_row >= self.max_in_a_row:
            self.in_a_row = 0  # who goes on from here has as many steps again
            raise DivergedError(
                f"{DIVERGED}; it was not in the last {self.max_in_a_row} steps (at step "
                f"{step} it is {grad_norm}){where}, each of which was skipped, and trainer.max_skipped_steps is "
                f"{self.max_in_a_row}. What the last good step left is saved as the checkpoint of step {step}, from "
                "which the same command goes on; move that away to go on from the one before it. Lower optim.lr or "
                "lengthen optim.sched.warmup_steps; if the first step already fails, look at the data and at "
                "model.init_method_std."
            )
        return f"step {step}: skipped, since the norm of its gradients is {grad_norm}{where}"

    def state_dict(self) -> dict[str, int]:
        """Return both counts, for a checkpoint."""
        return {"in_a_row": self.in_a_row, "total": self.total}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on with the counts of a checkpoint."""
        self.in_a_row, self.total = state["in_a_row"], state["total"]
