# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Rank script: compares the Megatron models with transformers' in every layout, and writes the distances as JSON.

Usage (by gloo_ranks.run_ranks, on two ranks or four): parity_rank.py REFERENCES.pt OUTPUT.json
"""

import contextlib
import json
import math
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))

import hugging_face
from rank_end import end_rank

import nemo_sr.megatron
from nemo_sr.training.config import compose_config, find_conf

LAYOUTS = {"TP1": (1, 1), "TP2": (2, 1), "PP2": (1, 2), "TP2xPP2": (2, 2)}
"""Tensor- and pipeline-parallel ranks; the others are data-parallel and get the same samples."""

VARIANTS = {
    "gpt2": ("gpt2", {}),
    "gpt_neo": ("gpt_neo", {}),
    "gpt_neo, fused GELU": ("gpt_neo", {}),
    "gpt2, untied": ("gpt2", {"share_embeddings_and_output_weights": False}),
}
CONFIGS = [path.stem for path in sorted(find_conf().glob("*.yaml"))]
GPT2_TOKENS = 50257
PADDING = 3.0
"""Weights of the rows that pad the vocabulary: their logits would count for much."""


def configure(description, tp, pp):
    words = [f"model.{key}={value}" for key, value in vars(description).items() if value is not None]
    words = [word for word in words if not word.startswith("model.vocab_size")]
    parallel = [f"model.tensor_model_parallel_size={tp}", f"model.pipeline_model_parallel_size={pp}"]
    return compose_config([*words, *parallel, f"model.encoder_seq_length={hugging_face.LENGTH}"]).model


def build(description, weights, layout, *, fused):
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from tiny_gpt import start_groups

    from nemo_sr.megatron.naming import place_parameters
    from nemo_sr.models.gpt import build_gpt, transformer_config

    start_groups(*layout)
    model_parallel_cuda_manual_seed(1)
    model = configure(description, *layout)
    config = transformer_config(model, on_cpu=True, params_dtype=torch.float32)
    config.finalize_model_grads_func = finalize_model_grads
    if fused:
        config.bias_activation_fusion, config.activation_func = True, torch.nn.functional.gelu
    gpt = build_gpt(config, model, vocab_size=description.vocab_size, on_cpu=True)
    gpt = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=False), gpt)
    places = place_parameters([gpt])
    check_initial(places)
    with torch.no_grad():
        for param, place in places.items():
            whole, shape = weights[place.name], place.pieces[0].global_shape
            if whole.shape != shape:  # the vocabulary's
                whole = torch.cat([whole, torch.full((shape[0] - whole.shape[0], *shape[1:]), PADDING)])
            param.copy_(whole.flatten()[place.pieces[0].index()].view(param.shape))
    return gpt


def check_initial(places):
    """Check what build_gpt leaves: biases of 0, norms of 1, and Megatron's mark on what tensor-parallel ranks share."""
    for param, place in places.items():
        if param.dim() == 1:
            assert (param == (0.0 if place.name.endswith("bias") else 1.0)).all(), place.name
        is_cut = tuple(param.shape) != tuple(place.pieces[0].global_shape)
        assert getattr(param, "tensor_model_parallel", False) >= is_cut, place.name


def forward_step(batches, chunk, *, with_labels):
    tokens, labels = next(batches)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    output = chunk(tokens, positions, None, labels=labels if with_labels else None)

    def loss_func(output, non_loss_data=False):
        if non_loss_data:
            return output
        loss = output.mean()
        return loss, {"loss": loss.detach().clone()}

    return output, loss_func


def run(model, description, *, with_labels):
    from megatron.core.pipeline_parallel import get_forward_backward_func

    tokens, labels = hugging_face.batch(description)
    return get_forward_backward_func()(
        forward_step_func=partial(forward_step, with_labels=with_labels),
        data_iterator=iter(zip(tokens.split(2), labels.split(2), strict=True)),
        model=[model],
        num_microbatches=hugging_face.SAMPLES // 2,
        seq_length=hugging_face.LENGTH,
        micro_batch_size=2,
        forward_only=not with_labels,
        collect_non_loss_data=not with_labels,
    )


def from_last_stage(value):
    """Return on every rank what the ranks of the last stage have, which must be one and the same."""
    from megatron.core import parallel_state

    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value if parallel_state.is_pipeline_last_stage() else None)
    first, *others = (each for each in everyone if each is not None)
    assert all(torch.equal(first, other) for other in others)
    return first


def distance(found, expected):
    """Largest difference over the largest value."""
    assert found.shape == expected.shape
    return ((found - expected).abs().max() / expected.abs().max()).item()


def compare(variant, layout, reference):
    import tiny_gpt

    architecture, changes = VARIANTS[variant]
    description = hugging_face.describe(architecture, **changes)
    weights, logits, loss, gradients = (reference[key] for key in ("weights", "logits", "loss", "gradients"))
    fused = variant.endswith("fused GELU")
    # Compiled on a GPU; here the same function runs as it is written.
    with torch.compiler.set_stance("force_eager") if fused else contextlib.nullcontext():
        ours = build(description, weights, layout, fused=fused)
        found_logits = from_last_stage(torch.cat(run(ours, description, with_labels=False) or [torch.zeros(0)]))
        ours.zero_grad_buffer()
        reports = run(ours, description, with_labels=True)
    found_loss = from_last_stage(torch.stack([report["loss"] for report in reports] or [torch.zeros(())]).mean())
    found = tiny_gpt.gathered(ours, gradients=True)["gradient"]
    distances = {}
    padding = 0.0
    for name, expected in gradients.items():
        rows = found[name][: len(expected)]
        distances[name] = distance(rows, expected)
        padding = max(padding, found[name][len(expected) :].abs().sum().item())
    worst = max(distances, key=distances.get)
    return {
        "logits": (found_logits - logits).abs().max().item(),
        "loss": abs(found_loss.item() - loss),
        "gradients": distances[worst],
        "worst": worst,
        "names": sorted(distances) == sorted(found),
        "gradient of padding": padding,
        "largest logit": logits.abs().max().item(),
    }


def count(name):
    """Return the parameters of this rank's part of a configured model, which is never given memory."""
    from nemo_sr.models.gpt import build_gpt, transformer_config

    model = compose_config([f"--config-name={name}"]).model
    model.tensor_model_parallel_size, model.sequence_parallel, model.make_vocab_size_divisible_by = 1, False, 1
    config = transformer_config(model, on_cpu=True, params_dtype=torch.bfloat16)
    with torch.device("meta"):
        gpt = build_gpt(config, model, vocab_size=GPT2_TOKENS, on_cpu=True, is_initialized=False)
    return sum(param.numel() for param in gpt.parameters())


def count_all():
    """Return the number of parameters of every configuration; building takes no communication, so ranks share them."""
    from tiny_gpt import start_groups

    start_groups(1, 1)
    mine = {name: count(name) for name in CONFIGS[dist.get_rank() :: dist.get_world_size()]}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return {name: number for counted in everyone for name, number in counted.items()}


def main(references, output):
    dist.init_process_group("gloo")
    references = torch.load(references)
    found = {
        name: {variant: compare(variant, layout, references[variant]) for variant in VARIANTS}
        for name, layout in LAYOUTS.items()
        if math.prod(layout) <= dist.get_world_size()
    }
    found["parameters"] = count_all()
    if dist.get_rank() == 0:
        Path(output).write_text(json.dumps(found, indent=1))
    end_rank()


if __name__ == "__main__":
    with nemo_sr.megatron.cpu_platform():
        main(*sys.argv[1:])
