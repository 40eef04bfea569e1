# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Rank script: builds the optimizer as Megatron-Bridge does, and trains with it; any failed assertion ends the rank.

Megatron-Bridge imports Transformer Engine, which needs a GPU. So its setup_optimizer is taken from its source alone,
where that is given, and run on the real Megatron-core.

Usage (by gloo_ranks.run_ranks): bridge_rank.py [FOLDER OF THE PACKAGE megatron/bridge]
"""

import __future__

import ast
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import megatron.core.optimizer as target
import pytest
import torch
import torch.distributed as dist
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.utils import get_model_config
from rank_end import end_rank
from tiny_gpt import build_model, digest, gathered, inject_gradients, set_weights, single_process, whole_shapes

import nemo_sr.megatron
from nemo_sr.megatron.bridge import SROptimizerConfig

SCHEDULE = SimpleNamespace(
    lr_warmup_init=0.0,
    lr_warmup_steps=0,
    lr_decay_steps=100,
    lr_decay_style="constant",
    start_weight_decay=0.1,
    end_weight_decay=0.1,
    wd_incr_steps=100,
    weight_decay_incr_style="constant",
    use_checkpoint_opt_param_scheduler=False,
    override_opt_param_scheduler=True,
    wsd_decay_steps=None,
    lr_wsd_decay_style="exponential",
)


def load_definitions(file, names, namespace):
    """Define functions and classes of a source file in a namespace that has what they refer to."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    assert len(tree.body) == len(names), file
    flags = __future__.annotations.compiler_flag
    exec(compile(tree, str(file), "exec", flags, dont_inherit=True), namespace)


def setup_as_bridge(folder, config, model):
    """Run Bridge's own setup_optimizer; returns optimizer and scheduler."""
    namespace = {**vars(target), "dataclass": dataclass, "G_LOGGER": logging.getLogger("bridge")}
    namespace.update(OptimizerParamScheduler=OptimizerParamScheduler, get_model_config=get_model_config)
    namespace["__name__"] = __name__
    contexts = ["OptimizerConfigOverrideProviderContext", "OptimizerConfigOverrideProvider"]
    load_definitions(folder / "training/config.py", contexts, namespace)
    load_definitions(folder / "training/optim.py", ["setup_optimizer", "_get_scheduler"], namespace)
    return namespace["setup_optimizer"](config, SCHEDULE, model)


def provide(config, model, **changes):
    """Call provide as setup_optimizer of Bridge 0.4 to 0.6 does."""
    arguments = {"model_chunks": model, "config_overrides": None, "use_gloo_process_groups": False}
    return config.provide(**{**arguments, "pg_collection": None, **changes})


def configure(**changes):
    options = {"lr": 3e-3, "adam_beta2": 0.95, "weight_decay": 0.1, "clip_grad": 1.0, "min_lr": 0.0}
    options.update(params_dtype=torch.bfloat16, use_distributed_optimizer=True)
    options.update(sr_seed=11, sr_exp_avg_rounding="stochastic")
    return SROptimizerConfig(**{**options, **changes})


def main():
    dist.init_process_group("gloo")
    model = build_model()
    set_weights(model)
    config = configure()
    before = dict(vars(config))
    if len(sys.argv) > 1:
        optimizer, scheduler = setup_as_bridge(Path(sys.argv[1]), config, model)
        assert scheduler.optimizer is optimizer
        assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.1}
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.1  # as it was before the schedule, for the comparison
    else:
        optimizer = provide(config, model)
        with pytest.raises(ValueError, match="SROptimizerConfig builds 'adamw_sr'; optimizer='adam' is asked for"):
            provide(configure(optimizer="adam"), [model])
        with pytest.raises(ValueError, match="does not support fp16;"):
            provide(configure(fp16=True, bf16=False), [model])
    assert vars(config) == before
    assert {group["wd_mult"] for group in optimizer.param_groups} == {0.0, 1.0}
    for step in range(10):
        inject_gradients(model, step)
        optimizer.step()
    assert digest(gathered(model, optimizer)) == single_process(whole_shapes(model))[0]
    nemo_sr.megatron.uninstall()
    end_rank()


if __name__ == "__main__":
    with nemo_sr.megatron.cpu_platform():
        main()
