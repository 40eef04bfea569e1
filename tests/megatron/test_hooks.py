# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""install(), uninstall(), the refusals, and the names of layers."""

import re
import subprocess
import sys
from types import SimpleNamespace

import megatron.core
import megatron.core.optimizer as target
import pytest
import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.optimizer import ChainedOptimizer, FP32Optimizer
from megatron.core.transformer.transformer_config import TransformerConfig

import nemo_sr.megatron
from lines import EMERGING_OPTIMIZERS
from nemo_sr.megatron import versions
from nemo_sr.megatron.naming import ParameterPlace, canonical_name
from nemo_sr.megatron.refusals import REFUSALS, refuse_unsupported
from nemo_sr.megatron.versions import check_megatron


@pytest.fixture(autouse=True)
def _uninstalled():
    yield
    nemo_sr.megatron.uninstall()


def test_install_and_uninstall_may_be_repeated_and_leave_no_trace():
    before = dict(vars(target))
    nemo_sr.megatron.uninstall()
    nemo_sr.megatron.install()
    once = dict(vars(target))
    nemo_sr.megatron.install()
    assert dict(vars(target)) == once
    changed = {name for name in once if once[name] is not before[name]}
    emerging = {"_get_megatron_emerging_optimizer"} if versions.is_since("0.18") else set()
    assert changed == {"_get_megatron_optimizer_based_on_param_groups", "ChainedOptimizer"} | emerging
    nemo_sr.megatron.uninstall()
    nemo_sr.megatron.uninstall()
    assert all(vars(target)[name] is before[name] for name in before)


def test_the_hooked_chain_stays_megatrons_for_other_links():
    nemo_sr.megatron.install()
    assert type(target.ChainedOptimizer([])) is ChainedOptimizer
    assert isinstance(ChainedOptimizer([]), target.ChainedOptimizer)
    assert issubclass(ChainedOptimizer, target.ChainedOptimizer)
    assert not issubclass(FP32Optimizer, target.ChainedOptimizer)
    assert not issubclass(FP32Optimizer, ChainedOptimizer)

    class Derived(target.ChainedOptimizer):
        pass

    assert type(Derived([])) is Derived
    assert not isinstance(ChainedOptimizer([]), Derived)


def test_uninstall_refuses_to_undo_somebody_elses_hook(monkeypatch):
    nemo_sr.megatron.install()
    with monkeypatch.context() as patch:
        patch.setattr(target, "ChainedOptimizer", ChainedOptimizer)
        with pytest.raises(RuntimeError, match=r"its own hook in megatron\.core\.optimizer\.ChainedOptimizer"):
            nemo_sr.megatron.uninstall()


def test_an_older_megatron_is_refused():
    with pytest.raises(RuntimeError, match=r"supports megatron-core 0\.14 to 0\.19; 0\.13\.2 is installed"):
        check_megatron("0.13.2", target)


@pytest.mark.parametrize("version", ["99.1.0", "1.0", "99.0rc1", "99.0.dev3+g1234"])
def test_a_newer_megatron_with_the_same_functions_is_warned_of(version, monkeypatch):
    monkeypatch.setattr(versions, "_LINES", tuple(line for line in versions._LINES if versions.is_since(line)))
    with pytest.warns(UserWarning, match=f"megatron-core {re.escape(version)} is newer"):
        check_megatron(version, target)


@pytest.mark.parametrize("line", versions._LINES)
def test_the_functions_of_another_line_are_refused_by_name(line):
    expected = versions._signatures(line)
    mine = versions._signatures(versions._line_of(megatron.core.__version__))
    if expected == mine:
        check_megatron(f"{line}.0", target)
        return
    with pytest.raises(RuntimeError, match=r"needs megatron\.core\.optimizer\.\w+ as in megatron-core") as refusal:
        check_megatron(f"{line}.0", target)
    assert any(f"optimizer.{name} " in str(refusal.value) for name in mine if mine[name] != expected[name])


def test_a_changed_function_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(target, "_get_megatron_optimizer_based_on_param_groups", lambda config, model: None)
    before = dict(vars(target))
    with pytest.raises(RuntimeError, match="_get_megatron_optimizer_based_on_param_groups"):
        nemo_sr.megatron.install()
    assert dict(vars(target)) == before


def test_a_changed_method_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(target.DistributedOptimizer, "sharded_state_dict", lambda self, metadata: None)
    with pytest.raises(
        RuntimeError, match=r"needs megatron\.core\.optimizer\.DistributedOptimizer\.sharded_state_dict"
    ):
        nemo_sr.megatron.install()


def test_a_missing_method_is_refused_by_name(monkeypatch):
    monkeypatch.delattr(target.DistributedOptimizer, "_set_main_param_and_optimizer_states")
    with pytest.raises(RuntimeError, match=r"_set_main_param_and_optimizer_states .* it is there not at all"):
        nemo_sr.megatron.install()


@EMERGING_OPTIMIZERS
def test_emerging_optimizers_of_other_names_go_to_megatrons_own_factory():
    nemo_sr.megatron.install()
    with pytest.raises(ImportError, match="emerging-optimizers"):
        target._get_megatron_emerging_optimizer(config(optimizer="muon"), [])


def test_importing_nemo_sr_does_not_import_megatron():
    program = "import sys, nemo_sr; assert not any(name.split('.')[0] == 'megatron' for name in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def config(**options):
    return OptimizerConfig(
        **{"optimizer": "adamw_sr", "lr": 1e-3, "bf16": True, "use_distributed_optimizer": True, **options}
    )


def with_attributes(made, **attributes):
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


UNSUPPORTED = {
    "fp16": (with_attributes(config(), fp16=True, bf16=False), {}),
    "FP32 training": (with_attributes(config(), bf16=False), {}),
    "a loss scale": (config(loss_scale=1024.0), {}),
    "an unset learning rate": (config(lr=None), {}),
    "L2 regularisation": (with_attributes(config(), decoupled_weight_decay=False), {}),
    "FP8 parameter gather": (config(), {"fp8_param_gather": True}),
    "FP4 parameter gather": (config(), {"fp4_param_gather": True}),
    "generalized tensor parallelism": (config(), {}),
    "a gradient norm of its own for the heads of multi-token prediction": (config(), {}),
    "Megatron-FSDP": (config(), {"use_megatron_fsdp": True}),
    "torch's FSDP2": (config(), {"reshard_after_forward": True}),
    "optimizer CPU offload": (config(optimizer_cpu_offload=True), {}),
    "optimizer CUDA graphs": (with_attributes(config(), optimizer_cuda_graph=True), {}),
    "the layer-wise optimizer": (with_attributes(config(), use_layer_wise_distributed_optimizer=True), {}),
    "the precision-aware optimizer": (with_attributes(config(), use_precision_aware_optimizer=True), {}),
    "overlap_param_gather_with_optimizer_step": (config(overlap_param_gather_with_optimizer_step=True), {}),
    "two settings of use_distributed_optimizer": (config(), {"use_distributed_optimizer": False}),
}


MODELS = {
    "generalized tensor parallelism": SimpleNamespace(gtp_weight_remat_size=2),
    "a gradient norm of its own for the heads of multi-token prediction": SimpleNamespace(mtp_detach_heads=True),
}
PLAIN = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)


def ddp_config(**options):
    return with_attributes(DistributedDataParallelConfig(use_distributed_optimizer=True), **options)


def test_every_refusal_has_a_case():
    assert UNSUPPORTED.keys() == REFUSALS.keys()
    refuse_unsupported(config(), ddp_config(), PLAIN)


@pytest.mark.parametrize("what", REFUSALS)
def test_refused_by_name(what):
    asked, ddp = UNSUPPORTED[what]
    with pytest.raises(ValueError, match=f"does not support {what};"):
        refuse_unsupported(asked, ddp_config(**ddp), MODELS.get(what, PLAIN))


def test_both_forms_of_keys_give_one_name():
    name = "decoder.layers.3.mlp.linear_fc1.weight"
    assert canonical_name("decoder.layers.mlp.linear_fc1.weight", (3,)) == name
    assert canonical_name(name, ()) == name
    assert canonical_name("embedding.word_embeddings.weight", ()) == "embedding.word_embeddings.weight"


def test_every_form_of_an_experts_key_gives_one_name():
    name = "decoder.layers.3.mlp.experts.experts.1.linear_fc1.weight"
    assert canonical_name("decoder.layers.mlp.experts.experts.linear_fc1.weight", (3, 1)) == name
    assert canonical_name("decoder.layers.3.mlp.experts.experts.linear_fc1.weight", (1,)) == name
    assert canonical_name(name, ()) == name
    shared = "decoder.layers.3.mlp.shared_experts.linear_fc1.weight"
    assert canonical_name("decoder.layers.mlp.shared_experts.linear_fc1.weight", (3,)) == shared


@pytest.mark.parametrize(
    ("key", "axes"),
    [
        ("decoder.layers.mlp.experts.experts.linear_fc1.weight", (3,)),
        ("decoder.layers.3.mlp.linear_fc1.weight", (3,)),
        ("decoder.layers.weight", (3, 1)),
        ("decoder.weight", (3,)),
    ],
)
def test_unknown_prepended_axes_are_refused(key, axes):
    with pytest.raises(ValueError, match=f"'{key}' has {len(axes)}"):
        canonical_name(key, axes)


def test_a_range_across_two_pieces_is_cut_at_their_border():
    layout = nemo_sr.ShardLayout
    whole = (8, 3)
    place = ParameterPlace("fc1", (layout(whole, (2, 0), (2, 3), 0, 6), layout(whole, (6, 0), (2, 3), 0, 6)))
    index = torch.cat([piece.index() for piece in place.pieces])
    for start in range(13):
        for stop in range(start, 13):
            found = [piece.index() for piece in place.layouts(start, stop)]
            assert torch.equal(torch.cat([torch.empty(0, dtype=torch.int64), *found]), index[start:stop])


def test_the_installed_megatron_is_a_supported_one():
    check_megatron(megatron.core.__version__, target)
