# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What tells GPT-2 and GPT-Neo apart. Imports no Megatron.

Both are pre-norm transformers with learned positions and GELU in its tanh form. GPT-Neo's attention has no bias on
queries, keys and values, does not scale its scores, and sees a window of the last tokens only in every second layer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """What one value of ``model.architecture`` means."""

    name: str
    has_qkv_bias: bool
    softmax_scale: float | None
    """What attention scores are multiplied with; None: one over the root of a head's width."""

    window_size: int | None
    """Tokens that layers 1, 3, 5 ... (counted from 0) see, their own included, unless ``model.window_size`` says; None:
    they see all."""

    needs: tuple[int, int]
    """The oldest line of Megatron-core that has all of it."""

    def check_megatron(self, version: str) -> None:
        """Check that a version of Megatron-core has what this architecture needs.

        Raises:
            RuntimeError: it is too old.
        """
        numbers = re.match(r"(\d+)\.(\d+)", version)
        if numbers is not None and (int(numbers[1]), int(numbers[2])) < self.needs:
            needed = ".".join(map(str, self.needs))
            raise RuntimeError(
                f"model.architecture={self.name} needs megatron-core {needed} or newer, whose own layers have windows; "
                f"{version} is installed. Install a newer one, or set model.architecture=gpt2."
            )


def check_transformer_engine(*, on_cpu: bool, is_installed: bool) -> None:
    """Check that ``model.transformer_engine=true`` can be had.

    Raises:
        RuntimeError: it cannot.
    """
    if on_cpu or not is_installed:
        raise RuntimeError(
            "model.transformer_engine must be false or null without a GPU or without the package transformer_engine; "
            f"it is true and {'the accelerator is the CPU' if on_cpu else 'the package is not installed'}. Set "
            "model.transformer_engine=false for Megatron-core's own layers."
        )


ARCHITECTURES = {
    "gpt2": Architecture("gpt2", has_qkv_bias=True, softmax_scale=None, window_size=None, needs=(0, 14)),
    "gpt_neo": Architecture("gpt_neo", has_qkv_bias=False, softmax_scale=1.0, window_size=256, needs=(0, 15)),
}
