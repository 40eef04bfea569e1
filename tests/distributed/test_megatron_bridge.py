# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The configuration that builds adamw_sr under Megatron-Bridge."""

import ast
import inspect
import os
from pathlib import Path

import pytest
from gloo_ranks import run_ranks
from megatron.core.optimizer import OptimizerConfig

from lines import OVERRIDES
from nemo_sr.megatron.bridge import SROptimizerConfig

SCRIPT = Path(__file__).with_name("bridge_rank.py")
BRIDGE = os.environ.get("NEMO_SR_MEGATRON_BRIDGE")
needs_source = pytest.mark.skipif(
    not BRIDGE, reason="NEMO_SR_MEGATRON_BRIDGE must name a folder megatron/bridge, of Megatron-Bridge 0.4 or newer"
)


@OVERRIDES
def test_what_provide_makes_trains_to_the_bit_on_two_ranks(tmp_path):
    run_ranks(SCRIPT, 2, directory=tmp_path, timeout=120)


def test_it_is_a_configuration_of_megatrons_with_our_options():
    config = SROptimizerConfig(lr=1e-3, sr_seed=7)
    assert isinstance(config, OptimizerConfig)
    assert (config.optimizer, config.bf16, config.sr_seed, config.sr_grad_dtype) == ("adamw_sr", True, 7, None)


@needs_source
def test_bridge_calls_provide_with_the_arguments_that_it_takes():
    tree = ast.parse(Path(BRIDGE, "training/optim.py").read_text(encoding="utf-8"))
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "attr", 0) == "provide"
    ]
    (call,) = calls
    assert call.args == []
    assert [word.arg for word in call.keywords] == list(inspect.signature(SROptimizerConfig.provide).parameters)[1:]


@OVERRIDES
@needs_source
def test_bridges_own_setup_optimizer_makes_it(tmp_path):
    run_ranks(SCRIPT, 2, str(Path(BRIDGE).resolve()), directory=tmp_path, timeout=120)
