# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for Megatron-LM's own tests: the CPU for the GPUs they are written for, adamw_sr for their Adam.

run_megatron_tests.py loads it. Beside the stand-ins of nemo_sr.megatron.run_cpu it has those that the tests need:

- torch.cuda.device_count is the number of ranks, and process groups asked for on nccl are of gloo. gloo's threads poll:
  groups of the same ranks are one, and all end with their layout;
- without Transformer Engine, is_te_min_version is False (Megatron-core compares None) and models are built from
  Megatron-core's local layers, their norms those of nemo_sr.models.norms, which know sequence parallelism;
- tests that set no learning rate get 1e-3: torch's AdamW needs one as adamw_sr does;
- FP32 models of tests whose matter is something else are said to be BF16: adamw_sr steps their weights in FP32;
- the optimizer and DDP, where a test of resharding has only one of them distributed, are made to agree, as adamw_sr
  needs it;
- what get_parameter_state_dp_zero gathers has zeros for the FP32 masters that adamw_sr does not have;
- an optimizer has state when it is made, filled at random, as the tests fill that of Megatron's own Adam.

ADAM=1 leaves Megatron's own Adam in place, to tell what the CPU breaks from what adamw_sr does.
"""

import contextlib
import copy
import gc
import json
import os
import sys
import types
from datetime import timedelta
from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from nemo_sr.megatron.run_cpu import megatron_lm_on_cpu
from nemo_sr.megatron.substitution import adam_replaced

OWN_ADAM = os.environ.get("ADAM") == "1"
WORLD = int(os.environ["WORLD_SIZE"])
FP32_MODELS = ("test_get_megatron_optimizer_with_custom_process_groups",)
_stack = contextlib.ExitStack()
_starts = 0
_groups = {}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests():  # which import names that are replaced here
    _stack.enter_context(megatron_lm_on_cpu())
    import megatron.core.optimizer as target
    import megatron.core.utils
    import megatron.training.checkpointing
    import megatron.training.training  # before names of Transformer Engine can be seen
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    put = partial(_put, _stack)
    if not OWN_ADAM:
        from nemo_sr.megatron.distributed import SRDistributedOptimizer

        gather = _with_masters(SRDistributedOptimizer.get_parameter_state_dp_zero)
        put(SRDistributedOptimizer, "get_parameter_state_dp_zero", gather)
        _stack.enter_context(adam_replaced())
        put(target, "get_megatron_optimizer", _with_state(target.get_megatron_optimizer))
    put(target, "get_megatron_optimizer", _with_lr(target.get_megatron_optimizer))
    put(torch.cuda, "device_count", lambda: WORLD)
    put(dist, "init_process_group", _on_gloo(dist.init_process_group))
    put(dist, "new_group", _shared(dist.new_group))
    put(dist, "destroy_process_group", _only_all(dist.destroy_process_group))
    put(dist, "init_device_mesh", lambda device, *args, **kw: dist.device_mesh.init_device_mesh("cpu", *args, **kw))
    put(megatron.core.utils, "is_te_min_version", lambda version, check_equality=True: False)
    put(WrappedTorchNorm, "__new__", _norm)
    _import_tests()


def pytest_unconfigure(config):
    _stack.close()


def _put(stack, owner, name, stand_in):
    stack.enter_context(mock.patch.object(owner, name, stand_in))


def _with_lr(stock):
    def get_megatron_optimizer(config, *args, **kwargs):
        if config.lr is None:
            config.lr = 1e-3
        return stock(config, *args, **kwargs)

    return get_megatron_optimizer


def _with_state(stock):
    def get_megatron_optimizer(config, model_chunks, **kwargs):
        if any(name in os.environ["PYTEST_CURRENT_TEST"] for name in FP32_MODELS):
            config = copy.copy(config)
            config.bf16 = config.use_distributed_optimizer = True
        if "TestOptimizerResharding" in os.environ["PYTEST_CURRENT_TEST"]:
            for chunk in model_chunks:
                chunk.ddp_config.use_distributed_optimizer = config.use_distributed_optimizer
        optimizer = stock(config, model_chunks, **kwargs)
        for link in optimizer.chained_optimizers:
            for group in link.param_groups:
                for param in group["params"]:
                    link.optimizer.initialize_state(param)
                    for moment in ("exp_avg", "exp_avg_sq"):
                        link.optimizer.state[param][moment].copy_(torch.rand(param.shape))
        return optimizer

    return get_megatron_optimizer


def _with_masters(stock):
    def get_parameter_state_dp_zero(self, **kwargs):
        def with_zeros(param):
            moments = type(self)._get_main_param_and_optimizer_states(self, param)
            return {"param": torch.zeros_like(moments["exp_avg"]), **moments}

        with mock.patch.object(self, "_get_main_param_and_optimizer_states", with_zeros):
            return stock(self, **kwargs)

    return get_parameter_state_dp_zero


def _norm(cls, config, hidden_size, eps=1e-5):
    from nemo_sr.models.norms import TorchNorm

    return TorchNorm(config, hidden_size, eps)


def _on_gloo(stock):
    def init_process_group(backend=None, *args, store=None, **kwargs):
        global _starts
        _starts += 1
        _groups.clear()
        kwargs["timeout"] = timedelta(seconds=45)  # for the other ranks, where one has failed
        prefix = f"{os.environ['PYTEST_CURRENT_TEST']} {_starts}"
        return stock("gloo", *args, store=dist.PrefixStore(prefix, store), **kwargs)

    return init_process_group


def _shared(stock):
    def new_group(ranks=None, *args, **kwargs):
        key = None if ranks is None else tuple(ranks)
        if key not in _groups:
            _groups[key] = stock(ranks)
        return _groups[key]

    return new_group


def _only_all(stock):
    def destroy_process_group(group=None):
        if group is None:  # one alone may be of several uses
            _groups.clear()
            stock()

    return destroy_process_group


def _import_tests():
    """Import the two test modules, one of which needs names of Transformer Engine to be imported at all."""
    names = ["transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.fp8"]
    sys.modules.update({name: types.ModuleType(name) for name in names})
    sys.modules[names[-1]].fp8_autocast = None
    sys.path.insert(0, os.getcwd())
    import tests.unit_tests.test_optimizer  # noqa: F401

    for name in names:
        del sys.modules[name]
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from tests.test_utils.python_scripts import download_unit_tests_dataset
    from tests.unit_tests.dist_checkpointing import test_optimizer as checkpointing
    from tests.unit_tests.test_utilities import Utils

    def block_spec(config, use_transformer_engine, **kwargs):
        return specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False, **kwargs)

    _put(_stack, download_unit_tests_dataset, "download_and_extract_asset", lambda assets_dir: None)
    _put(_stack, Utils, "destroy_model_parallel", staticmethod(_destroy_groups))
    _put(_stack, checkpointing, "gpt_te_spec", specs.get_gpt_layer_local_spec)
    _put(_stack, checkpointing, "get_gpt_decoder_block_spec", block_spec)


def _destroy_groups(*, wait=True):
    from megatron.core import parallel_state

    if dist.is_initialized():
        if wait:
            dist.barrier()
        parallel_state.destroy_model_parallel()
        gc.collect()
        dist.destroy_process_group()


@pytest.fixture(autouse=True)
def _groups_end_with_their_test():
    global _starts
    _starts = 0
    yield
    _destroy_groups(wait=False)


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
        if report.failed:
            reason = (
                report.longrepr.reprcrash.message if hasattr(report.longrepr, "reprcrash") else str(report.longrepr)
            )
        entry = {"test": report.nodeid, "outcome": report.outcome, "when": report.when, "reason": reason}
        with open(os.environ["OUTCOMES"] + "." + os.environ["RANK"], "a", encoding="utf-8") as file:
            print(json.dumps(entry), file=file)
