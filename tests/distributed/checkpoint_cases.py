# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What crossing_rank.py runs on two ranks beside its pairs: mixed precision, refusals, parallel strategies."""

import contextlib
import hashlib
import json
import warnings
from pathlib import Path

import crossing_rank as ranks
import tiny_gpt as gpt
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.serialization import (
    get_default_load_sharded_strategy,
    get_default_save_sharded_strategy,
)
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelLoadStrategyWrapper,
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from nemo_sr.megatron.boxes import HeldState
from nemo_sr.megatron.fitting import check_checkpoint
from nemo_sr.megatron.masters import add_masters
from nemo_sr.megatron.stock import _held, _make_state, describe_stock_state, load_stock_state
from nemo_sr.megatron.versions import is_since
from nemo_sr.rounding import round_nearest

FULLY, BY_BUCKETS = "fully_reshardable", "dp_reshardable"
FORMATS = {FULLY: "0.15", BY_BUCKETS: "0.16"}
SMALL = {"layers": 2}
BUCKETS = {**ranks.MODEL, "bucket_size": 5000}


def build_stock(**options):
    """Build the model with Megatron's own mixed-precision Adam."""
    model = gpt.build_model(grad_in_fp32=True, **options)
    gpt.set_weights(model)
    config = OptimizerConfig(
        optimizer="adam",
        lr=3e-3,
        adam_beta2=0.95,
        weight_decay=0.1,
        clip_grad=1.0,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=options.get("distributed", True),
    )
    optimizer = get_megatron_optimizer(config, [model])
    for group in optimizer.param_groups:
        group["lr"] = config.lr
    return model, optimizer


def build_sr(**options):
    """Build the model with adamw_sr, its weights and state other than in any checkpoint."""
    model = gpt.build_model(**options)
    return model, gpt.build_optimizer(model)


def state_by_name(model, held):
    """Return {name: (start, tensors)} of what a rank holds."""
    names = {id(param): name for name, param in model.module.named_parameters()}
    return {names[id(state.param)]: (state.start, dict(state.tensors)) for state in held}


def stock_state(model, optimizer):
    """Return masters and moments of Megatron's own Adam, distributed or not."""
    (link,) = optimizer.chained_optimizers
    if hasattr(link, "gbuf_ranges"):
        return state_by_name(model, _held(link, "param"))
    held = [
        HeldState(param, 0, {"param": main.flatten(), **{k: link.optimizer.state[main][k].flatten() for k in MOMENTS}})
        for params, mains in zip(link.float16_groups, link.fp32_from_float16_groups, strict=True)
        for param, main in zip(params, mains, strict=True)
    ]
    return state_by_name(model, held)


MOMENTS = ("exp_avg", "exp_avg_sq")


def from_masters(directory, stock_options, sr_options, kind):
    """Start adamw_sr from what Megatron's own Adam saved with Megatron's own methods."""
    model, optimizer = build_stock(**stock_options)
    ranks.step(model, optimizer, 0, 3)
    ranks.save(model, optimizer, directory, metadata={"distrib_optim_sharding_type": kind})
    expected = stock_state(model, optimizer)
    model, optimizer = build_sr(**sr_options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ranks.load(model, optimizer, directory, metadata={"distrib_optim_sharding_type": kind})
    (link,) = optimizer.chained_optimizers
    weights = {name: param.detach().flatten() for name, param in model.module.named_parameters()}
    right = bool(expected)
    for name, (start, moments) in state_by_name(model, link._held()).items():
        first, masters = expected[name]
        for moment in MOMENTS:
            mine = moments[moment].flatten()
            theirs = round_nearest(masters[moment])
            low, high = max(start, first), min(start + mine.numel(), first + theirs.numel())
            right &= torch.equal(mine[low - start : high - start], theirs[low - first : high - first])
        # The weights that Megatron saved are the masters, rounded to nearest already.
        rounded = round_nearest(masters["param"])
        right &= torch.equal(weights[name][first : first + rounded.numel()], rounded)
    right &= {int(state["step"]) for state in link.optimizer.state.values()} == {3}
    right &= link.optimizer.param_groups[0]["seed"] == 11
    ranks.step(model, optimizer, 3, 6)
    right &= {int(state["step"]) for state in link.optimizer.state.values()} == {6}
    advice = [str(warning.message) for warning in caught if "learning rate" in str(warning.message)]
    return {"right": ranks.everywhere(right), "advice": advice}


@contextlib.contextmanager
def stock_step_repaired(optimizer):
    """Have Megatron's distributed optimizer load by its own method around torch's AdamW.

    Without Transformer Engine and Apex it copies each parameter's step from tensors that do not have it.
    """
    links = [link for link in optimizer.chained_optimizers if type(link) is DistributedOptimizer]
    for link in links:
        stock = link._set_main_param_and_optimizer_states

        def set_states(param, tensors, link=link, stock=stock):
            group, order = link.model_param_group_index_map[param]
            main = link.optimizer.param_groups[group]["params"][order]
            stock(param, {**tensors, "step": link.optimizer.state[main]["step"].clone()})

        link._set_main_param_and_optimizer_states = set_states
    try:
        yield
    finally:
        for link in links:
            del link._set_main_param_and_optimizer_states


def to_masters(directory):
    """Go on in Megatron's own Adam from what adamw_sr saved."""
    model, optimizer = build_sr(**BUCKETS)
    gpt.set_weights(model)
    ranks.step(model, optimizer, 0, 3)
    ranks.save(model, optimizer, directory)
    (link,) = optimizer.chained_optimizers
    expected = state_by_name(model, link._held())
    weights = {name: param.detach().clone() for name, param in model.module.named_parameters()}
    model, optimizer = build_stock(**BUCKETS)
    load_stock(model, optimizer, directory, masters=None)
    right = True
    for name, (start, tensors) in stock_state(model, optimizer).items():
        first, moments = expected[name]
        right &= first == start
        right &= all(torch.equal(tensors[moment], moments[moment].float()) for moment in MOMENTS)
        right &= torch.equal(
            tensors["param"], weights[name].flatten()[start : start + tensors["param"].numel()].float()
        )
    steps = {state["step"].item() for state in optimizer.optimizer.state.values()}
    ranks.step(model, optimizer, 3, 6)
    steps |= {state["step"].item() for state in optimizer.optimizer.state.values()}
    moved = any(not torch.equal(param, weights[name]) for name, param in model.module.named_parameters())
    return ranks.everywhere(right and moved and steps == {3, 6})


def masters_added(source, target, **options):
    """Go on in Megatron's own Adam, loaded by Megatron's own methods, from what add_masters made."""
    if dist.get_rank() == 0 and not Path(target).exists():
        add_masters(Path(source), Path(target))
    dist.barrier()
    model, optimizer = build_stock(**BUCKETS, **options)
    (link,) = optimizer.chained_optimizers
    if hasattr(link, "gbuf_ranges"):
        _make_state(link)
    with stock_step_repaired(optimizer):
        ranks.load(model, optimizer, target, metadata={"distrib_optim_sharding_type": FULLY})
    for state in link.optimizer.state.values():
        state["step"] = state["step"].clone()
    weights = {name: param.detach().flatten() for name, param in model.module.named_parameters()}
    right = True
    for name, (start, tensors) in stock_state(model, optimizer).items():
        master = tensors["param"]
        right &= torch.equal(master, weights[name][start : start + master.numel()].float())
        right &= bool(tensors["exp_avg_sq"].any())
    ranks.step(model, optimizer, 3, 6)
    return ranks.everywhere(right and {state["step"].item() for state in link.optimizer.state.values()} == {6})


def masters_refused():
    """What is said of masters where checkpoints take no boxes."""
    model, optimizer = build_stock(**SMALL)
    try:
        describe_stock_state(optimizer, model.module.sharded_state_dict())
    except RuntimeError as error:
        return str(error)


def masters_resumed(directory):
    """Resume Megatron's own Adam with several buckets, which its own format does not survive."""
    model, optimizer = build_stock(**BUCKETS)
    ranks.step(model, optimizer, 0, 3)
    model_state = model.module.sharded_state_dict()
    if dist.get_rank() == 0:
        Path(directory).mkdir()
    dist.barrier()
    dist_checkpointing.save(
        {"model": model_state, "optimizer": describe_stock_state(optimizer, model_state)}, directory
    )
    ranks.step(model, optimizer, 3, 6)
    expected = digest_of(model, optimizer)
    model, optimizer = build_stock(**BUCKETS)
    load_stock(model, optimizer, directory, masters="param")
    ranks.step(model, optimizer, 3, 6)
    return ranks.everywhere(digest_of(model, optimizer) == expected)


def load_stock(model, optimizer, directory, masters):
    model_state = model.module.sharded_state_dict()
    wanted = describe_stock_state(optimizer, model_state, is_loading=True, masters=masters)
    wanted = {"model": model_state, "optimizer": wanted}
    check_checkpoint(wanted, directory)
    state = dist_checkpointing.load(wanted, directory)
    model.module.load_state_dict(state["model"])
    load_stock_state(optimizer, state["optimizer"], masters=masters)


def digest_of(model, optimizer):
    """SHA-256 of this rank's weights and of all that its optimizer holds."""
    (link,) = optimizer.chained_optimizers
    sha = hashlib.sha256()
    tensors = [param.detach() for param in model.parameters()]
    for state in link.optimizer.state.values():
        tensors += [state[key] for key in sorted(state)]
    tensors += [param.detach() for group in link.optimizer.param_groups for param in group["params"]]
    for tensor in tensors:
        sha.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def parallel_strategies(directory):
    """Save and load through Megatron's wrappers that divide the work among data-parallel ranks."""
    model, optimizer = ranks.build({})
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    ranks.step(model, optimizer, 0, 3)
    strategy = FullyParallelSaveStrategyWrapper(get_default_save_sharded_strategy(), group)
    ranks.save(model, optimizer, directory, sharded_strategy=strategy)
    ranks.step(model, optimizer, 3, 6)
    expected = ranks.digest(model, optimizer)
    model, optimizer = ranks.build({}, seed=12)
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    strategy = FullyParallelLoadStrategyWrapper(get_default_load_sharded_strategy(directory), group)
    ranks.load(model, optimizer, directory, sharded_strategy=strategy)
    ranks.step(model, optimizer, 3, 6)
    return ranks.digest(model, optimizer) == expected


def refusals(directory):
    """Checkpoints that do not fit: every rank gets the same error, and nothing has changed."""
    model, optimizer = build_sr(**SMALL)
    gpt.set_weights(model)
    ranks.step(model, optimizer, 0, 2)
    ranks.save(model, optimizer, f"{directory}/fits", extra={"vocab_size": gpt.VOCABULARY})
    found = {"fits": attempt(model, optimizer, f"{directory}/fits", gpt.VOCABULARY)}
    found["vocabulary"] = attempt(model, optimizer, f"{directory}/fits", gpt.VOCABULARY - 1)
    for name, options in {
        "deeper": {"layers": 3},
        "larger vocabulary": {"layers": 2, "vocabulary": 257},
        "gated": {"layers": 2, "swiglu": True},
        "grouped": {"layers": 2, "query_groups": 2},
    }.items():
        other, state = build_sr(**options)
        found[name] = attempt(other, state, f"{directory}/fits", options.get("vocabulary", gpt.VOCABULARY))
        ranks.step(other, state, 0, 1)
        ranks.save(other, state, f"{directory}/{name}")
        model, optimizer = build_sr(**SMALL)
        gpt.set_weights(model)
        ranks.step(model, optimizer, 0, 2)
        found[f"from {name}"] = attempt(model, optimizer, f"{directory}/{name}", gpt.VOCABULARY)
    for name, damage in {"missing file": Path.unlink, "truncated file": lambda path: truncate(path)}.items():
        ranks.save(model, optimizer, f"{directory}/{name}")
        if dist.get_rank() == 0:
            damage(max(Path(f"{directory}/{name}").glob("*.distcp")))
        dist.barrier()
        found[name] = attempt(model, optimizer, f"{directory}/{name}", gpt.VOCABULARY)
    found["nothing there"] = attempt(model, optimizer, f"{directory}/nowhere", gpt.VOCABULARY)
    return found


def truncate(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


def attempt(model, optimizer, directory, vocab_size):
    """Return the error that all ranks got, if they got one alike, and whether anything changed."""
    for group in optimizer.optimizer.param_groups:
        for param in group["params"]:
            optimizer.optimizer.initialize_state(param)
    before = digest_of(model, optimizer)
    message = None
    try:
        check_checkpoint(ranks.sharded(model, optimizer, is_loading=True), directory, vocab_size=vocab_size)
    except ValueError as error:
        message = str(error).replace(str(directory), "IT")
    messages = [None] * dist.get_world_size()
    dist.all_gather_object(messages, message)
    same = ranks.everywhere(digest_of(model, optimizer) == before)
    return {"message": message if len(set(messages)) == 1 else messages, "unchanged": same}


def run(directory):
    """Run all cases."""
    one_way = {
        "fully_reshardable": (SMALL, SMALL, FULLY),
        "dp_reshardable": (SMALL, {**SMALL, "grad_in_fp32": True}, BY_BUCKETS),
        "not distributed": ({**SMALL, "distributed": False}, {**SMALL, "distributed": False}, FULLY),
        "not distributed, loaded distributed": ({**SMALL, "distributed": False}, SMALL, FULLY),
    }
    # Of Megatron's own optimizer, around torch's AdamW, the one format came with 0.15, the other with 0.16.
    one_way = {name: case for name, case in one_way.items() if is_since(FORMATS.get(name, "0.14"))}
    found = {f"from masters, {name}": from_masters(f"{directory}/{name}", *case) for name, case in one_way.items()}
    if is_since("0.15"):
        found["to masters"] = to_masters(f"{directory}/to")
        for name, options in {"distributed": {}, "not distributed": {"distributed": False}}.items():
            found[f"masters added, {name}"] = masters_added(f"{directory}/to", f"{directory}/added", **options)
        found["masters resumed"] = masters_resumed(f"{directory}/masters")
    else:
        found["masters refused"] = masters_refused()
    found["parallel strategies"] = parallel_strategies(f"{directory}/parallel")
    found["refusals"] = refusals(f"{directory}/refusals")
    return json.loads(json.dumps(found))
