# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A tiny Megatron GPT on gloo ranks, its weights and gradients defined for the whole model and cut by layout."""

from __future__ import annotations

import gc
import hashlib
import math
import zlib

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

import nemo_sr
from nemo_sr.megatron.naming import place_parameters
from nemo_sr.models.norms import local_block_spec

VOCABULARY, LENGTH, SAMPLES = 96, 16, 4
ODD_VOCABULARY, MOST_ROWS = 257, 264


_started = {"store": None, "times": 0, "layout": None}


def start_groups(*sizes, **options):
    """Start torch.distributed anew, with Megatron's groups for a layout, unless the present ones are for the same.

    Every gloo group has threads, which poll: those of earlier layouts would take the time of the present one.
    """
    wanted = (sizes, tuple(options.items()))
    if _started["layout"] == wanted:
        return
    store = _started["store"] or dist.distributed_c10d._get_default_store()
    times = _started["times"] + 1
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parallel_state.destroy_model_parallel()  # which only forgets the groups
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore(str(times), store), rank=rank, world_size=world_size)
    parallel_state.initialize_model_parallel(*sizes, **options)
    _started.update(store=store, times=times, layout=wanted)


def build_model(
    *,
    tp=1,
    pp=1,
    distributed=True,
    grad_in_fp32=False,
    swiglu=False,
    fp32_params=(),
    overlap=False,
    instances=1,
    layers=2,
    vp=None,
    query_groups=None,
    vocabulary=VOCABULARY,
    bucket_size=None,
    normalization="LayerNorm",
    sequence_parallel=False,
    experts=None,
    grouped_gemm=False,
    ep=1,
    etp=None,
    bias=True,
    dtype=torch.bfloat16,
    autocast=False,
    recompute=False,
    divisible_by=2,
    train="",
):
    """Set up Megatron's groups and build this rank's part of the model, in its DDP wrapper."""
    start_groups(
        tp,
        pp,
        vp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
        num_distributed_optimizer_instances=instances,
    )
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=layers,
        hidden_size=32,
        ffn_hidden_size=64,
        num_attention_heads=4,
        num_query_groups=query_groups,
        use_cpu_initialization=True,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        enable_autocast=autocast,
        autocast_dtype=torch.bfloat16,
        add_bias_linear=bias,
        recompute_granularity="full" if recompute else None,
        recompute_method="uniform" if recompute else None,
        recompute_num_layers=1 if recompute else None,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vp,
        sequence_parallel=sequence_parallel,
        normalization=normalization,
        qk_layernorm=normalization == "RMSNorm",
        num_moe_experts=experts,
        moe_router_topk=2,
        moe_token_dispatcher_type="allgather",
        moe_grouped_gemm=grouped_gemm,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
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
        overlap_grad_reduce=overlap or bucket_size is not None,  # Megatron makes one bucket otherwise
        overlap_param_gather=overlap,
        num_distributed_optimizer_instances=instances,
        bucket_size=bucket_size,
    )
    chunks = []
    for stage in range(vp or 1):
        where = {"ignore_virtual": False, "vp_stage": stage} if vp else {}
        gpt = GPTModel(
            config,
            local_block_spec(config, on_cpu=True, vp_stage=stage if vp else None),
            vocab_size=-(-vocabulary // (divisible_by * tp)) * divisible_by * tp,
            max_sequence_length=LENGTH,
            pre_process=parallel_state.is_pipeline_first_stage(**where),
            post_process=parallel_state.is_pipeline_last_stage(**where),
            position_embedding_type="learned_absolute",
            share_embeddings_and_output_weights=True,
            vp_stage=stage if vp else None,
        ).to(dtype)
        for name, param in gpt.named_parameters():
            param.requires_grad_(train in name)
            if any(part in name for part in fp32_params):
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


def single_process(shapes, *, fp32=(), steps=10):
    """Some steps of AdamWSR on whole parameters: what every layout must give.

    Args:
        shapes: {name: shape} of the whole model.
        fp32: Parts of the names of the parameters that are in FP32.
        steps: How many.

    Returns:
        The digest of weights and moments, that of the weights alone, and the gradients' norms.
    """
    params = {}
    for name, shape in shapes.items():
        weight = whole_tensor(name, shape, "weight")
        params[name] = torch.nn.Parameter(weight.float() if any(part in name for part in fp32) else weight)
    optimizer = nemo_sr.AdamWSR(
        params.items(),
        lr=3e-3,
        betas=(0.9, 0.95),
        weight_decay=0.1,
        seed=11,
        exp_avg_rounding="stochastic",
        fp32_params="plain",
    )
    norms = []
    for step in range(steps):
        for name, param in params.items():
            param.decoupled_grad = whole_tensor(name, param.shape, "gradient", step)
        norms.append(math.sqrt(sum(p.decoupled_grad.double().square().sum().item() for p in params.values())))
        optimizer.grad_scale = min(1.0, 1.0 / (norms[-1] + 1e-6))
        optimizer.step()
    whole = {"weight": {name: param.detach() for name, param in params.items()}}
    for moment in ("exp_avg", "exp_avg_sq"):
        whole[moment] = {name: optimizer.state[param][moment] for name, param in params.items()}
    return digest(whole), digest({"weight": whole["weight"]}), norms


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


def inner_params(optimizer):
    """Return every parameter that is stepped on this rank, with the AdamWSR that steps it."""
    inner = [part.optimizer for part in optimizer.chained_optimizers if part.optimizer is not None]
    return [(each, param) for each in inner for group in each.param_groups for param in group["params"]]


def gathered(model, optimizer=None, *, gradients=False):
    """Assemble the whole weights and moments from all ranks; two ranks that hold an element must hold the same bits.

    Returns:
        {"weight": {name: tensor}} on every rank, with `gradients` "gradient" too (which data-parallel ranks do not
        share with the distributed optimizer), and with `optimizer` "exp_avg" and "exp_avg_sq".
    """
    places = place_parameters(model_chunks(model))
    mine = []
    for param, place in places.items():
        indices = torch.cat([piece.index() for piece in place.pieces])
        mine.append(("weight", place.name, place.pieces[0].global_shape, indices, param.detach().flatten()))
        if gradients:
            mine.append(("gradient", place.name, place.pieces[0].global_shape, indices, param.main_grad.flatten()))
    for inner, param in inner_params(optimizer) if optimizer else ():
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


def accumulate_gradients(model, step):
    """Run the schedule on the same global batch in every layout, forward and backward; returns the mean loss."""
    dp, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
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
    reports = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=batches,
        model=[model],
        num_microbatches=SAMPLES // dp // 2,
        seq_length=LENGTH,
        micro_batch_size=2,
        forward_only=False,
    )
    mean = torch.tensor([sum(r["loss"].item() for r in reports), len(reports)], dtype=torch.float64)
    dist.all_reduce(mean)
    return (mean[0] / mean[1]).item()


def train(model, optimizer, steps, first_step=0):
    """Run real training steps; returns the mean loss and the gradients' norm of each step."""
    losses, norms = [], []
    for step in range(first_step, first_step + steps):
        optimizer.zero_grad()
        losses.append(accumulate_gradients(model, step))
        updated, norm, _ = optimizer.step()
        assert updated
        norms.append(norm)
    return losses, norms
