# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Rank script: runs every case in every layout of its ranks, and writes the findings of rank 0 as JSON.

Usage (by gloo_ranks.run_ranks): megatron_rank.py OUTPUT.json CHECKPOINT_DIRECTORY
"""

import json
import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import nemo_sr.megatron

LAYOUTS = {
    1: {"one": {}},
    2: {"dp2": {}, "tp2": {"tp": 2}, "pp2": {"pp": 2}},
    4: {
        "dp4": {},
        "tp4": {"tp": 4},
        "pp4": {"pp": 4},
        "tp2pp2": {"tp": 2, "pp": 2},
        "dp2tp2": {"tp": 2},
        "dp2pp2": {"pp": 2},
    },
}
WIDE = {"layers": 4, "query_groups": 2, "vocabulary": 257, "bucket_size": 5000}
VARIANTS = {
    "plain": {},
    "replicated": {"distributed": False},
    # SwiGLU's first matrix is two pieces on every rank; FP32 parameters get a plain step beside the others.
    "mixed": {"swiglu": True, "grad_in_fp32": True, "fp32_norms": True},
}
RESUMES = [("plain", "dp_reshardable"), ("plain", "fully_reshardable"), ("replicated", "dp_reshardable")]


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
    steps = {int(state["step"]) for state in optimizer.optimizer.state.values()}
    return {"results": results, "same": same, "steps": sorted(steps), "after": optimizer.step()[0]}


def losses(gpt, layout, options):
    """Twenty real steps."""
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


def crossed(gpt, first, second, directory):
    """Five injected steps in one layout, then five in another from its checkpoint."""
    metadata = nemo_sr.megatron.checkpoint_metadata()
    model = gpt.build_model(**first)
    gpt.set_weights(model)
    optimizer = gpt.build_optimizer(model)
    for step in range(5):
        gpt.inject_gradients(model, step)
        optimizer.step()
    save(model, optimizer, directory, metadata)
    model = gpt.build_model(**second)
    optimizer = gpt.build_optimizer(model)
    load(model, optimizer, directory, metadata)
    for step in range(5, 10):
        gpt.inject_gradients(model, step)
        optimizer.step()
    return gpt.digest(gpt.gathered(model, optimizer))


def as_with_transformer_engine(gpt, directory):
    """Resume with Megatron's flags set as they are where Transformer Engine is installed."""
    from megatron.core.optimizer import distrib_optimizer

    flags = {"HAVE_APEX_OR_TE": True, "USING_TE_OPTIMIZER": True}
    before = {name: getattr(distrib_optimizer, name) for name in flags}
    try:
        for name, value in flags.items():
            setattr(distrib_optimizer, name, value)
        return resumed(gpt, {}, {}, "dp_reshardable", directory)
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
    steps = [s["step"] for s in optimizer.optimizer.state.values()]
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
    shards = _shards(optimizer)
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
    found["names of keys per layer"] = sorted(other.optimizer.name_of(shard) for shard in _shards(other))

    adam = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, use_distributed_optimizer=True)
    stock = get_megatron_optimizer(adam, [gpt.build_model()])
    found["adam"] = [type(stock) is ChainedOptimizer, type(stock.chained_optimizers[0]).__name__]
    try:
        gpt.build_optimizer(gpt.build_model(), optimizer_cpu_offload=True)
    except ValueError as error:
        found["refused"] = str(error)
    try:
        optimizer.sharded_state_dict({}, metadata=None)
    except ValueError as error:
        found["no metadata"] = str(error)
    return found


def _shards(optimizer):
    return [param for group in optimizer.optimizer.param_groups for param in group["params"]]


def main(output, directory):
    import tiny_gpt as gpt

    dist.init_process_group("gloo")
    nemo_sr.megatron.install()
    found = {"factory": factory(gpt)} if dist.get_world_size() == 1 else {}
    for name, layout in LAYOUTS[dist.get_world_size()].items():
        wide = WIDE if layout.get("tp") != 4 else {**WIDE, "query_groups": 4}
        cases = found[name] = {"injected wide": injected(gpt, layout, wide)}
        if dist.get_world_size() == 4:
            continue
        for variant, options in VARIANTS.items():
            cases[f"injected {variant}"] = injected(gpt, layout, options)
        cases["storage noise"] = storage_noise(gpt, layout, {})
        cases["losses"] = losses(gpt, layout, {})
        for variant in ("plain", "replicated"):
            cases[f"skipped {variant}"] = skipped(gpt, layout, VARIANTS[variant])
        for variant, kind in RESUMES:
            path = f"{directory}/{name}-{variant}-{kind}"
            cases[f"resumed {variant} {kind}"] = resumed(gpt, layout, VARIANTS[variant], kind, path)
    if dist.get_world_size() == 1:
        found["one"]["injected wide, four groups"] = injected(gpt, {}, {**WIDE, "query_groups": 4})
        found["one"]["injected deep"] = injected(gpt, {}, {"layers": 4})
        found["one"]["resumed with flags of TE"] = as_with_transformer_engine(gpt, f"{directory}/te")
    elif dist.get_world_size() == 2:
        found["dp2"]["losses overlapped"] = losses(gpt, {}, {"overlap": True})
        found["pp2"]["injected deep"] = injected(gpt, {"pp": 2, "vp": 2}, {"layers": 4})
        layouts = LAYOUTS[2]
        for first, second in (("dp2", "tp2"), ("tp2", "pp2"), ("pp2", "dp2")):
            digest = crossed(gpt, layouts[first], layouts[second], f"{directory}/{first}-{second}")
            found[second][f"crossed from {first}"] = digest
    if dist.get_rank() == 0:
        Path(output).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with nemo_sr.megatron.cpu_platform():
        main(*sys.argv[1:])
