# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A run's model and optimizer in a checkpoint, whichever strategy wrote it and whichever goes on from it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from nemo_sr.megatron import checkpoint_metadata
from nemo_sr.megatron.fitting import VOCABULARY_KEY, check_checkpoint, find_masters
from nemo_sr.megatron.reading import load_as_data, read_plan
from nemo_sr.megatron.stock import MASTER, describe_stock_state, load_stock_state
from nemo_sr.training.config import ConfigError
from nemo_sr.training.model_file import holds_weights_alone
from nemo_sr.training.regimes import find_regime
from nemo_sr.training.restoring import is_hugging_face, load_hugging_face
from nemo_sr.words import LR_ADVICE


def describe_training(pl_module: Any) -> dict[str, Any]:
    """Return model and optimizer of a GPTModule for dist_checkpointing.save."""
    masters = MASTER if find_regime(pl_module.config.optim).master != "none" else None
    return {VOCABULARY_KEY: pl_module.vocab_size, **_describe(pl_module, is_loading=False, masters=masters)}


def load_training(
    pl_module: Any,
    checkpoint: Path,
    others: dict[str, Any],
    files: Collection[str] | None = None,
    *,
    weights_alone: bool = False,
) -> dict[str, Any]:
    """Load model and optimizer into a GPTModule, from a checkpoint of any strategy, or weights alone.

    Args:
        pl_module: The module, its optimizer made.
        checkpoint: The checkpoint.
        others: What else to load from it.
        files: Names of the files that may be read; None: all in the folder.
        weights_alone: Leave the optimizer as it is; `checkpoint` may be a Hugging Face folder then.

    Returns:
        What was loaded.

    Raises:
        ConfigError: the checkpoint does not fit. Nothing has been loaded then.
    """
    alone = weights_alone or holds_weights_alone(checkpoint)
    megatron = pl_module._optimizer.megatron
    if alone and is_hugging_face(checkpoint):
        load_hugging_face(pl_module, checkpoint)
        if _has_stock_optimizer(pl_module):
            megatron.reload_model_params()
        return {}
    try:
        if alone:
            masters, wanted = None, {"model": pl_module.chunks[0].module.sharded_state_dict(), **others}
        else:
            has_masters = find_regime(pl_module.config.optim).master != "none"
            masters = find_masters(read_plan(checkpoint, files)) if has_masters else None
            wanted = {**_describe(pl_module, is_loading=True, masters=masters), **others}
        check_checkpoint(wanted, checkpoint, vocab_size=pl_module.vocab_size)
        loaded = load_as_data(wanted, checkpoint, files)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    pl_module.chunks[0].module.load_state_dict(loaded["model"])
    if alone:
        if _has_stock_optimizer(pl_module):
            megatron.reload_model_params()
    elif _has_stock_optimizer(pl_module):
        load_stock_state(megatron, loaded["optimizer"], masters=masters)
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=f".*{re.escape(LR_ADVICE)}")  # a note of the start, see resume
            megatron.load_state_dict(loaded["optimizer"])
    return loaded


def _describe(pl_module: Any, *, is_loading: bool, masters: str | None) -> dict[str, Any]:
    model = pl_module.chunks[0].module.sharded_state_dict()
    megatron = pl_module._optimizer.megatron
    if _has_stock_optimizer(pl_module):
        optimizer = describe_stock_state(megatron, model, is_loading=is_loading, masters=masters)
    else:
        optimizer = megatron.sharded_state_dict(model, is_loading=is_loading, metadata=checkpoint_metadata())
    return {"model": model, "optimizer": optimizer}


def _has_stock_optimizer(pl_module: Any) -> bool:
    return not find_regime(pl_module.config.optim).has_own_optimizer
