# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Activations that are planned on the meta device, against what torch's allocator gives out when the model runs."""

from dataclasses import replace

import pytest
import torch
from live_tensors import AllocatedPeak

from nemo_sr.planning.activations import deepen, trace_pass
from nemo_sr.planning.planner import Planner
from nemo_sr.planning.stage import Layout, ModelFacts, build_stage
from nemo_sr.training.config import compose_config
from nemo_sr.training.regimes import REGIMES
from nemo_sr.training.weights import one_process

SMALL = ["model.hidden_size=128", "model.num_attention_heads=4", "model.encoder_seq_length=128"]
DROPOUT = ["model.hidden_dropout=0.1", "model.attention_dropout=0.1"]


def facts(*words, fused_attention=False):
    return ModelFacts(compose_config([*SMALL, *words]).model, 512, fused_attention)


def layout(recompute=None, *, micro_batch=4, tensor_parallel=1, pipeline_parallel=1):
    return Layout(tensor_parallel, pipeline_parallel, 1, micro_batch, tensor_parallel > 1, recompute)


def allocated(model, cut, *, num_layers, dtype, autocast):
    """Run a micro batch for real and return the most bytes that the allocator gave out."""
    with one_process(on_cpu=True):
        ddp = build_stage(model, cut, num_layers=num_layers, weights=dtype, grads=dtype, autocast=autocast)
        for param in ddp.parameters():
            torch.nn.init.normal_(param, std=0.02)
        length = model.model.encoder_seq_length
        ids = torch.randint(0, 512, (cut.micro_batch, length))
        positions = torch.arange(length).expand_as(ids)
        with AllocatedPeak() as peak:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                losses = ddp(ids, positions, None, labels=ids)
            torch.autograd.backward(losses.float().mean())
    return peak.bytes


@pytest.mark.parametrize("recompute", [None, "selective", "full"])
@pytest.mark.parametrize(
    ("words", "strategy"),
    [
        (["model.architecture=gpt2", *DROPOUT], "adamw_sr"),
        (["model.architecture=gpt2"], "adamw_amp"),
        (["model.architecture=gpt_neo"], "adamw_sr"),
        (["model.architecture=gpt_neo", *DROPOUT], "adamw_fp32"),
    ],
)
def test_planned_activations_are_within_a_tenth_of_those_of_a_cpu_run(words, recompute, strategy):
    regime = REGIMES[strategy]
    dtype = torch.bfloat16 if regime.weights == "bf16" else torch.float32
    model, cut = facts("model.num_layers=4", *words), layout(recompute)
    planned = Planner(model, 4).one_pass(cut, 0, regime)
    measured = allocated(model, cut, num_layers=4, dtype=dtype, autocast=regime.autocast)
    assert planned.peak + planned.buffers == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(
    ("cut", "stage", "num_layers"),
    [
        (layout(), 0, 8),
        (layout("full"), 0, 7),
        (layout(pipeline_parallel=3), 1, 7),
        (layout("selective", tensor_parallel=2, pipeline_parallel=2), 1, 8),
    ],
    ids=["whole", "recomputed", "middle", "last"],
)
def test_two_shallow_models_give_the_numbers_of_a_deep_one(cut, stage, num_layers):
    model = facts("model.architecture=gpt_neo", "model.window_size=32", fused_attention=True)
    num_stages = cut.pipeline_parallel

    def trace(layers):
        return trace_pass(
            model, cut, stage=stage, num_layers=layers * num_stages, weights=torch.bfloat16, autocast=False
        )

    few = 2 + num_layers % 2
    # Of a middle stage with an odd number of layers the first is local in one stage and not in the next.
    assert deepen(trace(few), trace(few + 2), (num_layers - few) // 2) == trace(num_layers)


def test_recomputation_sequence_parallelism_and_fused_attention_save_activations():
    def saved(*, fused=False, **options):
        cut = replace(layout(options.pop("recompute", None), tensor_parallel=2), **options)
        return (
            Planner(facts("model.num_layers=4", fused_attention=fused), 4).one_pass(cut, 0, REGIMES["adamw_sr"]).saved
        )

    assert saved(recompute="full") < saved(recompute="selective") < saved()
    assert saved() < saved(sequence_parallel=False)
    assert saved(fused=True) < saved()
