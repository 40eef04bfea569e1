# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Words that command lines share with the optimizer; importing them takes no torch, which takes seconds."""

ROUNDINGS = ("nearest", "stochastic")
"""How a moment can be rounded."""

LR_ADVICE = (
    "Stochastic rounding takes 2 to 4 times the maximum learning rate of mixed precision: raise the maximum, and keep "
    "the minimum."
)
"""What whoever goes over to stochastic rounding should know (arXiv 2502.20566, its advice on the learning rate)."""
