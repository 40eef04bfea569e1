# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A tiny Megatron GPT on gloo ranks, its weights and gradients defined for the whole model and cut by layout."""

from __future__ import annotations

import gc
import hashlib
import zlib

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

from nemo_sr.megatron.naming import place_parameters

VOCABULARY, LENGTH, SAMPLES = 96, 16, 4
ODD_VOCABULARY, MOST_ROWS = 257, 264


def start_groups(*sizes, **options):
    """Start torch.distributed anew, with Megatron's groups for a layout.

    A gloo group has threads of its own, which poll: those of earlier layouts would take the time of the present one.
    """
    global _store, _starts
    _store = _store or dist.distributed_c10d._get_default_store()
    _starts += 1
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parallel_state.destroy_model_parallel()
    gc.collect()  # a model keeps its groups
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore(str(_starts), _store), rank=rank, world_size=world_size)
    parallel_state.initialize_model_parallel(*sizes, **options)


_store, _starts = None, 0


def build_model(
    *,
    tp=1,
    pp=1,
    distributed=True,
    grad_in_fp32=False,
    swiglu=False,
    fp32_norms=False,
    overlap=False,
    layers=2,
    vp=None,
    query_groups=None,
    vocabulary=VOCABULARY,
    bucket_size=None,
):
    """Set up Megatron's groups and build this rank's part of the model, in its DDP wrapper."""
    start_groups(tp, pp, vp)
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=layers,
        hidden_size=32,
        ffn_hidden_size=64,
        num_attention_heads=4,
        num_query_groups=query_groups,
        use_cpu_initialization=True,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vp,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gated_linear_unit=swiglu,
        activation_func=torch.nn.functional.silu if swiglu else torch.nn.functional.gelu,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        finalize_model_grads_func=finalize_model_grads,
    )
    ddp_config = DistributedDataParallelConfig(
        use_distributed_optimizer=distributed,
        grad_reduce_in_fp32=grad_in_fp32,
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap,
        bucket_size=bucket_size,
    )
    chunks = []
    for stage in range(vp or 1):
        where = {"ignore_virtual": False, "vp_stage": stage} if vp else {}
        gpt = GPTModel(
            config,
            get_gpt_layer_local_spec(),
            vocab_size=-(-vocabulary // (2 * tp)) * 2 * tp,
            max_sequence_length=LENGTH,
            pre_process=parallel_state.is_pipeline_first_stage(**where),
            post_process=parallel_state.is_pipeline_last_stage(**where),
            position_embedding_type="learned_absolute",
            share_embeddings_and_output_weights=True,
            vp_stage=stage if vp else None,
        ).bfloat16()
        if fp32_norms:
            for name, param in gpt.named_parameters():
                if "layernorm" in name:
                    param.data = param.data.float()
        chunks.append(DistributedDataParallel(config, ddp_config, gpt, disable_bucketing=stage > 0))
    return torch.nn.ModuleList(chunks) if vp else chunks[0]


def model_chunks(model):
    """Return what Megatron calls model chunks: a list, of one where there are no virtual stages."""
    return list(model) if isinstance(model, torch.nn.ModuleList) else [model]


def build_optimizer(model, **options):
    """Call Megatron's own factory."""
    settings = {"sr_seed": 11, "sr_exp_avg_rounding": "stochastic"}
    settings.update({name: options.pop(name) for name in list(options) if name.startswith("sr_")})
    config = OptimizerConfig(
        optimizer="adamw_sr",
        lr=3e-3,
        adam_beta2=0.95,
        weight_decay=0.1,
        clip_grad=options.pop("clip_grad", 1.0),
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=model_chunks(model)[0].ddp_config.use_distributed_optimizer,
        **options,
    )
    for name, value in settings.items():
        setattr(config, name, value)
    return get_megatron_optimizer(config, model_chunks(model))


def whole_tensor(name, shape, kind, step=0):
    """Make the whole model's weight or gradient of that name: a function of its arguments alone."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {kind} {step}".encode()))
    if is_vocabulary(name):  # padded to another number of rows in another layout
        values = torch.randn((MOST_ROWS, shape[1]), generator=generator)[: shape[0]] * 0.02
        if kind == "gradient":
            values[unpadded_rows(shape[0]) :] = 0
        return values.bfloat16()
    scale = 0.02 if kind == "weight" else 1e-2
    values = torch.randn(shape, generator=generator) * scale
    if kind == "weight" and is_norm(name) and name.endswith("weight"):
        values += 1
    return values.bfloat16()


def is_norm(name):
    """Tell a norm's parameter by its canonical name (Megatron files norms under the layer that they precede)."""
    return "layernorm" in name or "layer_norm" in name


def is_vocabulary(name):
    """Tell the parameter whose rows are the vocabulary by its canonical name."""
    return "word_embeddings" in name


def unpadded_rows(rows):
    """Return how many of the rows are tokens: the odd vocabulary is the one that gets padded."""
    return ODD_VOCABULARY if rows >= ODD_VOCABULARY else rows


def whole_shapes(model):
    """Return {name: global shape} of this rank's parameters."""
    return {place.name: place.pieces[0].global_shape for place in place_parameters(model_chunks(model)).values()}


def _cut(place, kind, step=0):
    pieces = place.pieces
    flat = whole_tensor(place.name, pieces[0].global_shape, kind, step).flatten()
    return torch.cat([flat[piece.index()] for piece in pieces])


def set_weights(model):
    """Give every rank its part of the same whole weights."""
    with torch.no_grad():
        for param, place in place_parameters(model_chunks(model)).items():
            param.copy_(_cut(place, "weight").view(param.shape))


def inject_gradients(model, step):
    """Give every rank its part of the same whole gradients, as if reduced already."""
    for param, place in place_parameters(model_chunks(model)).items():
        param.main_grad.copy_(_cut(place, "gradient", step).view(param.shape))


def gathered(model, optimizer=None):
    """Assemble the whole weights and moments from all ranks; two ranks that hold an element must hold the same bits.

    Returns:
        {"weight": {name: tensor}} on every rank, and with `optimizer` "exp_avg" and "exp_avg_sq" too.
    """
    places = place_parameters(model_chunks(model))
    mine = []
    for param, place in places.items():
        indices = torch.cat([piece.index() for piece in place.pieces])
        mine.append(("weight", place.name, place.pieces[0].global_shape, indices, param.detach().flatten()))
    inner = optimizer.optimizer if optimizer else None
    for group in inner.param_groups if optimizer else ():
        for param in group["params"]:
            binding = inner._bindings[param]
            indices = torch.cat([layout.index() for layout in binding.layouts])
            for moment in ("exp_avg", "exp_avg_sq"):
                value = inner.state[param][moment].flatten()
                mine.append((moment, binding.name, binding.layouts[0].global_shape, indices, value))
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    whole, seen = {}, {}
    for kind, name, shape, indices, values in (entry for rank in everyone for entry in rank):
        flat = whole.setdefault(kind, {}).setdefault(name, torch.zeros(shape, dtype=values.dtype)).view(-1)
        have = seen.setdefault((kind, name), torch.zeros(flat.numel(), dtype=torch.bool))
        again = have[indices]
        assert torch.equal(flat[indices][again], values[again]), f"{kind} of {name} differs between ranks"
        flat[indices] = values
        have[indices] = True
    assert all(have.all() for have in seen.values())
    return whole


def digest(whole):
    """SHA-256 of all names and bits."""
    sha = hashlib.sha256()
    for kind in sorted(whole):
        for name in sorted(whole[kind]):
            tensor = whole[kind][name].contiguous()
            if is_vocabulary(name):
                tensor = tensor[: unpadded_rows(tensor.shape[0])]
            sha.update(f"{kind} {name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            sha.update(tensor.view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def train(model, optimizer, steps, first_step=0):
    """Run real training steps on the same global batch in every layout; returns the mean loss of each step."""
    dp, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    run = get_forward_backward_func()
    losses = []
    for step in range(first_step, first_step + steps):
        generator = torch.Generator().manual_seed(step % 2)
        tokens = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator)
        batches = iter(tokens.chunk(dp)[rank].split(2))

        def forward_step(batches, chunk):
            batch = next(batches)
            inputs, labels = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
            mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
            output = chunk(inputs, torch.arange(LENGTH).expand_as(inputs), mask, labels=labels)

            def loss_func(losses):
                loss = losses.float().mean()
                return loss, {"loss": loss.detach().clone()}

            return output, loss_func

        model.zero_grad_buffer()
        optimizer.zero_grad()
        reports = run(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=[model],
            num_microbatches=SAMPLES // dp // 2,
            seq_length=LENGTH,
            micro_batch_size=2,
            forward_only=False,
        )
        assert optimizer.step()[0]
        mean = torch.tensor([sum(r["loss"].item() for r in reports), len(reports)], dtype=torch.float64)
        dist.all_reduce(mean)
        losses.append((mean[0] / mean[1]).item())
    return losses
