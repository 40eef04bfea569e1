# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What the ranks do with a tiny Megatron GPT; each case returns what the tests look at."""

import hashlib
import inspect
import logging
import math
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode


def injected(gpt, layout, options):
    """Ten steps from injected gradients: the digest, and the first norm."""
    model = gpt.build_model(**layout, **options)
    gpt.set_weights(model)
    optimizer = gpt.build_optimizer(model)
    norms = []
    for step in range(10):
        gpt.inject_gradients(model, step)
        before = [p.main_grad.clone() for p in model.parameters()]
        updated, norm, zeros = optimizer.step()
        assert updated
        assert zeros is None
        assert all(torch.equal(a, p.main_grad) for a, p in zip(before, model.parameters(), strict=True))
        norms.append(norm)
    whole = gpt.gathered(model, optimizer)
    return {
        "digest": gpt.digest(whole),
        "weights": gpt.digest({"weight": whole["weight"]}),
        "norms": norms,
        "shapes": gpt.whole_shapes(model),
        "buckets": [len(buffer.buckets) for chunk in gpt.model_chunks(model) for buffer in chunk.buffers],
    }


def skipped(gpt, layout, options):
    """One infinite and one NaN gradient element on one rank: nothing moves, on any rank."""
    model = gpt.build_model(**layout, **options)
    gpt.set_weights(model)
    optimizer = gpt.build_optimizer(model)
    gpt.inject_gradients(model, 0)
    optimizer.step()
    before = gpt.digest(gpt.gathered(model, optimizer))
    results = []
    for value in (math.inf, math.nan):
        gpt.inject_gradients(model, 1)
        for param in model.parameters():
            # The norm's own filters decide who counts a replica; a reduced gradient is alike on all its holders.
            if param.dim() == 2 or dist.get_rank() == 0:
                param.main_grad.view(-1)[0] = value
        updated, norm, zeros = optimizer.step()
        results.append([updated, math.isfinite(norm), zeros])
    same = gpt.digest(gpt.gathered(model, optimizer)) == before
    gpt.inject_gradients(model, 1)
    steps = {int(inner.state[param]["step"]) for inner, param in gpt.inner_params(optimizer)}
    return {"results": results, "same": same, "steps": sorted(steps), "after": optimizer.step()[0]}


def skipped_by_one_expert(gpt, layout, options):
    """One infinite gradient element in one expert of the last rank: what every rank says of the step."""
    model = gpt.build_model(**layout, **options)
    gpt.set_weights(model)
    optimizer = gpt.build_optimizer(model)
    gpt.inject_gradients(model, 0)
    if dist.get_rank() == dist.get_world_size() - 1:
        next(p for p in model.parameters() if not getattr(p, "allreduce", True)).main_grad.view(-1)[0] = math.inf
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, list(optimizer.step()[:2]))
    return everyone


def losses(gpt, layout, options):
    """Twenty real steps: losses, and the gradients' norms."""
    model = gpt.build_model(**layout, **options)
    gpt.set_weights(model)
    return gpt.train(model, gpt.build_optimizer(model), 20)


def sharded(model, optimizer, is_loading, metadata):
    model_state = model.module.sharded_state_dict()
    state = optimizer.sharded_state_dict(model_state, is_loading=is_loading, metadata=metadata)
    return {"model": model_state, "optimizer": state}


def save(model, optimizer, directory, metadata):
    from megatron.core import dist_checkpointing

    if dist.get_rank() == 0:
        Path(directory).mkdir(parents=True)
    dist.barrier()
    dist_checkpointing.save(sharded(model, optimizer, False, metadata), directory)


def load(model, optimizer, directory, metadata):
    from megatron.core import dist_checkpointing

    state = dist_checkpointing.load(sharded(model, optimizer, True, metadata), directory)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def as_with_transformer_engine(gpt, directory):
    """Resume with Megatron's flags set as they are where Transformer Engine is installed."""
    from megatron.core.optimizer import distrib_optimizer

    flags = {"HAVE_APEX_OR_TE": True, "USING_TE_OPTIMIZER": True}
    before = {name: getattr(distrib_optimizer, name) for name in flags}
    try:
        for name, value in flags.items():
            setattr(distrib_optimizer, name, value)
        return resumed(gpt, {}, {}, "fully_reshardable", directory)
    finally:
        for name, value in before.items():
            setattr(distrib_optimizer, name, value)


def resumed(gpt, layout, options, sharding_type, directory):
    """Save after three steps, go on for three; load into new objects, go on for three."""
    metadata = {"distrib_optim_sharding_type": sharding_type}
    model = gpt.build_model(**layout, **options)
    gpt.set_weights(model)
    optimizer = gpt.build_optimizer(model, sr_seed=5)
    gpt.train(model, optimizer, 3)
    save(model, optimizer, directory, metadata)
    gpt.train(model, optimizer, 3, first_step=3)
    expected = gpt.digest(gpt.gathered(model, optimizer))

    model = gpt.build_model(**layout, **options)
    optimizer = gpt.build_optimizer(model, sr_seed=6)  # the saved seed wins
    load(model, optimizer, directory, metadata)
    steps = [inner.state[param]["step"] for inner, param in gpt.inner_params(optimizer)]
    assert {(int(s), s.dtype) for s in steps} == {(3, torch.int64)}
    assert len({s.data_ptr() for s in steps}) == len(steps)
    gpt.train(model, optimizer, 3, first_step=3)
    return {"expected": expected, "found": gpt.digest(gpt.gathered(model, optimizer))}


def storage_noise(gpt, layout, options):
    """The same ten steps with noise tied to the place in storage, as a plain optimizer over shards would draw it."""
    from nemo_sr.layout import ShardLayout
    from nemo_sr.megatron.naming import ParameterPlace

    true_layouts = ParameterPlace.layouts
    ParameterPlace.layouts = lambda self, start, stop: (ShardLayout.whole((stop - start,)),)
    try:
        model = gpt.build_model(**layout, **options)
        gpt.set_weights(model)
        optimizer = gpt.build_optimizer(model)
        for step in range(10):
            gpt.inject_gradients(model, step)
            optimizer.step()
    finally:
        ParameterPlace.layouts = true_layouts
    return gpt.digest(gpt.gathered(model))


def factory(gpt):
    """What get_megatron_optimizer returns, for adamw_sr, for another name, and for what is refused."""
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.optimizer import ChainedOptimizer, MegatronOptimizer

    model = gpt.build_model()
    optimizer = gpt.build_optimizer(model, sr_seed=3)
    inner = optimizer.optimizer
    buffer = model.buffers[0].param_data
    begin, end = buffer.data_ptr(), buffer.data_ptr() + buffer.numel() * buffer.element_size()
    shards = [param for _, param in gpt.inner_params(optimizer)]
    found = {
        "chain": type(optimizer).__name__,
        "megatron": isinstance(optimizer, MegatronOptimizer),
        "inner": type(inner).__name__,
        "views": all(begin <= shard.data_ptr() < end and shard.dtype == torch.bfloat16 for shard in shards),
        "names": sorted(inner.name_of(shard) for shard in shards),
        "options": {k: inner.param_groups[0][k] for k in ("seed", "exp_avg_rounding", "exp_avg_sq_rounding", "betas")},
    }
    gpt.inject_gradients(model, 0)
    optimizer.step()
    kinds = {str(value.dtype) for state in inner.state.values() for value in state.values() if value.dim()}
    found["state"] = sorted(kinds)

    gpt.inject_gradients(model, 1)
    optimizer.prepare_grads()
    norm = optimizer.clip_grad_norm(0.25)
    found["clip_grad_norm"] = [norm, inner.grad_scale]
    model.zero_grad_buffer()
    found["zeros"] = [optimizer.count_zeros(), sum(param.numel() for param in model.parameters())]
    try:
        optimizer.save_parameter_state("legacy.pt")
    except RuntimeError as error:
        found["legacy"] = str(error)
    saved = optimizer.chained_optimizers[0].state_dict()
    saved["optimizer"]["param_groups"][0]["nemo_sr_names"][0] = "other"
    try:
        optimizer.load_state_dict(saved)
    except ValueError as error:
        found["renamed"] = str(error)

    model.module.decoder.config.hetereogenous_dist_checkpoint = True
    other = gpt.build_optimizer(model)
    found["names of keys per layer"] = sorted(
        other.optimizer.name_of(shard) for shard in [param for _, param in gpt.inner_params(other)]
    )

    adam = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, use_distributed_optimizer=True)
    stock = get_megatron_optimizer(adam, [gpt.build_model()])
    found["adam"] = [type(stock) is ChainedOptimizer, type(stock.chained_optimizers[0]).__name__]
    try:
        gpt.build_optimizer(gpt.build_model(), optimizer_cpu_offload=True)
    except ValueError as error:
        found["refused"] = str(error)
    return found


def formats(gpt, layout, options):
    """What is saved for each sharding type that a program may ask for, and what is said of it."""
    import nemo_sr.megatron

    model = gpt.build_model(**layout, **options)
    optimizer = gpt.build_optimizer(model)
    gpt.inject_gradients(model, 0)
    optimizer.step()
    asked = {
        "own": nemo_sr.megatron.checkpoint_metadata(),
        "none": None,
        "empty": {},
        **{
            kind: {"distrib_optim_sharding_type": kind}
            for kind in ("fully_sharded_model_space", "dp_zero_gather_scatter", "fsdp_dtensor")
        },
    }
    found = {"names": list(inspect.signature(optimizer.sharded_state_dict).parameters)}
    for kind, metadata in asked.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                saved = described(sharded(model, optimizer, False, metadata)["optimizer"])
            except ValueError as error:
                saved = str(error)
        said = [str(warning.message) for warning in caught if "adamw_sr" in str(warning.message)]
        found[kind] = {"saved": saved, "said": said}
    return found


def described(state):
    """Return what a sharded state dict is saved as: every entry's key, place and bytes."""
    from megatron.core.dist_checkpointing.dict_utils import nested_items_iter
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    lines = []
    for _, label, value in nested_items_iter(state):
        if isinstance(value, ShardedTensor):
            value = [
                value.key,
                value.global_shape,
                value.global_offset,
                value.local_shape,
                value.dtype,
                value.replica_id,
            ]
        lines.append(f"{label} {value}")
    return sorted(lines)


def options_apart(gpt):
    """What every rank says when the last one has another seed, and when it has one that is not allowed."""
    model = gpt.build_model()

    def say(seed):
        try:
            gpt.build_optimizer(model, sr_seed=seed if dist.get_rank() == dist.get_world_size() - 1 else 11)
        except ValueError as error:
            return str(error)

    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [say(12), say("twelve")])
    return everyone


def options_logged(gpt):
    """What every rank logs when two optimizers are built with the same options."""
    from nemo_sr.megatron import options

    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger(options.__name__)
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        for _ in range(2):
            gpt.build_optimizer(gpt.build_model(), sr_seed=13)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, lines)
    return everyone


def names(gpt, options):
    """The canonical names of a model, from both forms of Megatron's keys."""
    model = gpt.build_model(**options)
    forms = {}
    for form, one_key_each in (("prepended axes", False), ("keys per layer", True)):
        model.module.decoder.config.hetereogenous_dist_checkpoint = one_key_each
        forms[form] = sorted(gpt.whole_shapes(model))
    return forms


def grouped(gpt):
    """What is said of Megatron's legacy GroupedMLP, which can be built here but not run: it needs a CUDA package."""
    from megatron.core.transformer.moe import grouped_gemm_util

    true_check = grouped_gemm_util.assert_grouped_gemm_is_available
    grouped_gemm_util.assert_grouped_gemm_is_available = lambda: None
    try:
        model = gpt.build_model(experts=4, grouped_gemm=True, bias=False)
    finally:
        grouped_gemm_util.assert_grouped_gemm_is_available = true_check
    try:
        gpt.build_optimizer(model)
    except ValueError as error:
        return str(error)


def autocast(gpt, **options):
    """The types that matrix products take and give with FP32 weights, under Megatron's autocast and without it.

    Forward and backward.
    """
    products = {name: set() for name in ("mm", "addmm", "bmm", "baddbmm")}

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            if name in products:
                tensors = [value for value in (*args, result) if isinstance(value, torch.Tensor)]
                products[name].add(tuple(str(tensor.dtype) for tensor in tensors))
            return result

    found = {}
    for enabled in (True, False):
        model = gpt.build_model(dtype=torch.float32, autocast=enabled, distributed=False, **options)
        with Recorder():
            gpt.accumulate_gradients(model, 0)
        found[str(enabled)] = {name: sorted(seen) for name, seen in products.items() if seen}
        found[f"{enabled} gradients"] = sorted({str(buffer.grad_dtype) for buffer in model.buffers})
        for seen in products.values():
            seen.clear()
    return found


def uniform(gpt, layout, options):
    """One step from equal weights and gradients in every element: what each rank has then, by name."""
    model = gpt.build_model(**layout, **options)
    optimizer = gpt.build_optimizer(model)
    mine = {}
    for param in model.parameters():
        param.data.fill_(1.0)
        param.main_grad.fill_(0.01)
    optimizer.step()
    for param, place in gpt.place_parameters([model]).items():
        bits = param.detach().flatten().view(torch.int16)
        mine[place.name] = {
            "whole": hashlib.sha256(bits.numpy().tobytes()).hexdigest(),
            "halves": [hashlib.sha256(half.numpy().tobytes()).hexdigest() for half in bits.chunk(2)],
            "values": sorted(set(param.detach().flatten().tolist())),
        }
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def gradients(gpt, layout, options):
    """The gradients of one real global batch, after all reductions; replicas must agree to the bit."""
    model = gpt.build_model(**layout, **options)
    gpt.set_weights(model)
    gpt.accumulate_gradients(model, 0)
    return gpt.gathered(model, gradients=True)["gradient"]


def apart(gpt, layout, other, options):
    """How far the gradients in two layouts are apart, by name: the 2-norm of the difference, relative."""
    first, second = gradients(gpt, layout, options), gradients(gpt, other, options)
    return {
        name: (torch.dist(first[name].double(), second[name].double()) / second[name].double().norm()).item()
        for name in first.keys() | second.keys()
    }
