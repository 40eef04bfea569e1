# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Rank script: what happens to gradients in every layout of its ranks; rank 0 writes the findings.

Usage (by gloo_ranks.run_ranks): gradient_rank.py treatment|agreement OUTPUT.pt CHECKPOINT_DIRECTORY
"""

import math
import sys

import torch
import torch.distributed as dist
from megatron_cases import load, save
from rank_end import end_rank

import nemo_sr.megatron
from nemo_sr.megatron.versions import is_since
from nemo_sr.replicas import ReplicaError

LAYOUTS = {
    1: {"one": {}},
    2: {"dp2": {}, "tp2": {"tp": 2}, "pp2": {"pp": 2}},
    4: {"dp4": {}, "tp2pp2": {"tp": 2, "pp": 2}, "dp2tp2": {"tp": 2}},
}
SEQUENCE = {"tp": 2, "sequence_parallel": True}
# Each against one process: the layouts above, and those of models of their own.
AGREEING = {
    1: {"one": {}, "experts": {"ep": 1}},
    2: {**LAYOUTS[2], "tp2 sequence": SEQUENCE, "ep2": {"ep": 2}, "tp2ep2": {**SEQUENCE, "ep": 2, "etp": 1}},
    4: {**LAYOUTS[4], "dp2ep2": {"ep": 2}, "dp2tp2ep2": {**SEQUENCE, "ep": 2, "etp": 1}},
}
EXPERTS = {"experts": 4, "bias": False}
# Ranks and the parameters of which they flip a bit.
FLIPS = {
    "dp2": [(1, "mlp.linear_fc2.weight")],
    "tp2": [(1, "decoder.final_layernorm.weight")],
    "pp2": [(1, "output_layer.weight")],
    "dp4": [(2, "embedding.position_embeddings.weight")],
    "tp2pp2": [(3, "output_layer.weight"), (2, "self_attention.linear_proj.bias")],
    "dp2tp2": [(3, "mlp.linear_fc1.weight"), (0, "decoder.final_layernorm.bias")],
}
SAMPLES, MICRO, STEPS = 8, 2, 50
GRAD_DTYPES = {"bf16": {}, "fp32": {"grad_in_fp32": True}}
KINDS = {**GRAD_DTYPES, "fp32 model": {"grad_in_fp32": True, "dtype": torch.float32}}


def backward(gpt, model, step):
    """Run the schedule on the step's global batch, the same in every layout; returns the mean loss.

    One process accumulates four micro batches. Data-parallel ranks share the same four among them.
    """
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    dp, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    tokens = batch(gpt, step).chunk(dp)[rank]
    model.zero_grad_buffer()
    reports = get_forward_backward_func()(
        forward_step_func=lambda batches, chunk: forward_step(gpt, next(batches), chunk),
        data_iterator=iter(tokens.split(MICRO)),
        model=[model],
        num_microbatches=SAMPLES // dp // MICRO,
        seq_length=gpt.LENGTH,
        micro_batch_size=MICRO,
        forward_only=False,
    )
    mean = torch.tensor([sum(report["loss"].item() for report in reports), len(reports)], dtype=torch.float64)
    dist.all_reduce(mean)
    return (mean[0] / mean[1]).item()


def batch(gpt, step):
    """Return the tokens of a step: four batches in turn."""
    generator = torch.Generator().manual_seed(step % 4)
    return torch.randint(0, gpt.VOCABULARY, (SAMPLES, gpt.LENGTH + 1), generator=generator)


def forward_step(gpt, tokens, chunk):
    """Return the output of a micro batch, and the function that makes a loss of it."""
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    mask = torch.triu(torch.ones(1, 1, gpt.LENGTH, gpt.LENGTH, dtype=torch.bool), 1)
    output = chunk(inputs, torch.arange(gpt.LENGTH).expand_as(inputs), mask, labels=labels)

    def loss_func(losses):
        loss = losses.float().mean()
        return loss, {"loss": loss.detach().clone()}

    return output, loss_func


def everywhere(mine):
    """Assemble whole tensors from every rank's (name, shape, indices, values); who holds an element holds its bits."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    whole, seen = {}, {}
    for name, shape, indices, values in (entry for rank in everyone for entry in rank):
        flat = whole.setdefault(name, torch.zeros(shape, dtype=values.dtype)).view(-1)
        have = seen.setdefault(name, torch.zeros(flat.numel(), dtype=torch.bool))
        assert torch.equal(flat[indices][have[indices]], values[have[indices]]), name
        flat[indices] = values
        have[indices] = True
    assert all(have.all() for have in seen.values())
    return whole


def whole_gradients(optimizer):
    """Assemble what the optimizers of all ranks are about to step with."""
    optimizer.prepare_grads()
    inner = optimizer.optimizer
    mine = []
    for group in inner.param_groups:
        for param in group["params"]:
            layouts = inner._bindings[param].layouts
            indices = torch.cat([layout.index() for layout in layouts])
            shape = layouts[0].global_shape
            mine.append((inner.name_of(param), shape, indices, param.decoupled_grad.detach().flatten()))
    return everywhere(mine)


def model_gradients(gpt, model):
    """Assemble the gradients of a model that is not sharded over its data-parallel ranks."""
    mine = [
        (
            place.name,
            place.pieces[0].global_shape,
            torch.cat([piece.index() for piece in place.pieces]),
            param.main_grad.flatten().clone(),
        )
        for param, place in gpt.place_parameters(gpt.model_chunks(model)).items()
    ]
    return everywhere(mine)


def norms(gpt, layout, options):
    """The norm of real gradients, and the norm of the same gradients put together in one process."""
    model = gpt.build_model(**layout, **options)
    gpt.set_weights(model)
    optimizer = gpt.build_optimizer(model)
    pairs = []
    for step in range(2):
        backward(gpt, model, step)
        whole = whole_gradients(optimizer)
        expected = math.sqrt(sum(grad.double().square().sum().item() for grad in whole.values()))
        pairs.append((optimizer.step()[1], expected))
    return pairs


def skipped(gpt, layout, options):
    """One rank's own gradient of one matrix is not finite, before it is reduced: nothing moves on any rank."""
    model = gpt.build_model(**layout, **options)
    gpt.set_weights(model)
    optimizer = gpt.build_optimizer(model)
    backward(gpt, model, 0)
    optimizer.step()
    before = gpt.digest(gpt.gathered(model, optimizer))
    results = []
    for value in (math.inf, -math.inf, math.nan):
        gpt.inject_gradients(model, 1)
        if dist.get_rank() == dist.get_world_size() - 1:
            matrix = next(p for n, p in model.named_parameters() if n.endswith("linear_fc2.weight"))
            matrix.main_grad.view(-1)[7] = value
        model.finish_grad_sync()
        updated, norm, zeros = optimizer.step()
        results.append((updated, math.isfinite(norm), zeros))
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, results)
    unmoved = gpt.digest(gpt.gathered(model, optimizer)) == before
    steps = {int(state["step"]) for state in optimizer.optimizer.state.values()}
    backward(gpt, model, 1)
    return {"results": everyone, "unmoved": unmoved, "steps": steps, "after": optimizer.step()[0]}


def accumulated(gpt, options):
    """Whether the schedule's four micro batches are the sum of the four alone, in the buffer's type, to the bit."""
    model = gpt.build_model(distributed=False, **options)
    gpt.set_weights(model)
    alone = []
    for tokens in batch(gpt, 0).split(MICRO):
        model.zero_grad_buffer()
        output, loss_func = forward_step(gpt, tokens, model)
        (loss_func(output)[0] / (SAMPLES // MICRO)).backward()
        alone.append([param.main_grad.clone() for param in model.parameters()])
    backward(gpt, model, 0)
    same = True
    for param, *parts in zip(model.parameters(), *alone, strict=True):
        total = torch.zeros_like(param.main_grad)
        for part in parts:
            total += part
        same = same and torch.equal(param.main_grad, total)
        assert not torch.equal(total, parts[-1])
    return same


def injected(gpt, layout, options):
    """Ten steps from injected gradients that went through the reduction."""
    model = gpt.build_model(**layout, **options)
    gpt.set_weights(model)
    optimizer = gpt.build_optimizer(model)
    for step in range(10):
        gpt.inject_gradients(model, step)
        model.finish_grad_sync()
        optimizer.step()
    return gpt.digest(gpt.gathered(model, optimizer))


def with_multipliers(gpt, layout, options, directory, sharding_type):
    """Decoupled learning rates and multipliers under Megatron's own scheduler; resumed after three of six steps."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    def build():
        model = gpt.build_model(**layout, **options)
        optimizer = build_with_overrides(gpt, model)
        scheduler = OptimizerParamScheduler(optimizer, 0.0, 3e-3, 3e-4, 2, 10, "cosine", 0.1, 0.1, 10, "constant")
        return model, optimizer, scheduler

    def train(model, optimizer, scheduler, steps):
        for step in steps:
            gpt.inject_gradients(model, step)
            model.finish_grad_sync()
            scheduler.step(1)
            optimizer.step()

    metadata = {"distrib_optim_sharding_type": sharding_type}
    whole = build()
    gpt.set_weights(whole[0])
    train(*whole, range(3))
    save(whole[0], whole[1], directory, metadata)
    train(*whole, range(3, 6))
    again = build()
    load(again[0], again[1], directory, metadata)
    # The saved rates come back with the groups, and the scheduler sets them anew.
    again[2].num_steps = 3
    train(*again, range(3, 6))
    keys = ("wd_mult", "lr_mult", "max_lr", "min_lr", "lr", "weight_decay")
    groups = [
        [{key: group[key] for key in keys} for group in optimizer.param_groups] for _, optimizer, _ in (whole, again)
    ]
    digests = [gpt.digest(gpt.gathered(model, optimizer)) for model, optimizer, _ in (whole, again)]
    return {"digests": digests, "groups": groups}


def build_with_overrides(gpt, model):
    """Build the optimizer with Megatron's decoupled_lr and an override of a matrix's rate and decay."""
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
    from megatron.core.optimizer.optimizer_config import ParamKey

    config = OptimizerConfig(
        optimizer="adamw_sr",
        lr=3e-3,
        min_lr=3e-4,
        decoupled_lr=6e-3,
        decoupled_min_lr=1e-3,
        adam_beta2=0.95,
        weight_decay=0.1,
        clip_grad=1.0,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=gpt.model_chunks(model)[0].ddp_config.use_distributed_optimizer,
    )
    overrides = get_standard_config_overrides(config)
    overrides[ParamKey(name="*linear_fc2.weight")] = {"max_lr": 1e-3, "min_lr": 0.0, "wd_mult": 0.5}
    overrides[ParamKey(name="*linear_proj.weight")] = {"lr_mult": 0.5}
    return get_megatron_optimizer(config, gpt.model_chunks(model), overrides)


def first_gradients(gpt, layout, options):
    """The gradients of the first step."""
    model = gpt.build_model(**layout, **options, distributed=False)
    gpt.set_weights(model)
    backward(gpt, model, 0)
    return model_gradients(gpt, model)


def trained(gpt, layout, options, rate, **settings):
    """Train for 50 steps; the loss of each, and the weights after the first, the fifth and the last."""
    model = gpt.build_model(**layout, **options)
    gpt.set_weights(model)
    optimizer = gpt.build_optimizer(model, **settings)
    losses, weights = [], {}
    for group in optimizer.param_groups:
        group["lr"] = rate
    for step in range(1, STEPS + 1):
        losses.append(backward(gpt, model, step))
        optimizer.step()
        if step in (1, 5, STEPS):
            weights[step] = gpt.gathered(model)["weight"]
    return {"losses": losses, "weights": weights}


def drifted(gpt, name, layout):
    """What each rank says when one bit of one rank is flipped; a sound model before and after."""
    from nemo_sr.megatron.replicas import ModelReplicas

    model = gpt.build_model(**layout)
    gpt.set_weights(model)
    replicas = ModelReplicas(gpt.model_chunks(model))
    replicas.check()
    messages = []
    for rank, ending in FLIPS.get(name, ()):
        flipped = None
        if dist.get_rank() == rank:
            flipped = next(p for n, p in model.named_parameters() if n.endswith(ending)).data.view(torch.int16).view(-1)
            flipped[flipped.numel() // 2] ^= 1
        mine = ""
        try:
            replicas.check()
        except ReplicaError as error:
            mine = str(error)
        if flipped is not None:
            flipped[flipped.numel() // 2] ^= 1
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        messages.append(everyone)
        replicas.check()
    return messages


def treatment(gpt, directory):
    """Everything but agreement."""
    found = {}
    for name, layout in LAYOUTS[dist.get_world_size()].items():
        found[name] = {
            "norms": {
                "bf16": norms(gpt, layout, {}),
                "fp32": norms(gpt, layout, {"grad_in_fp32": True}),
                "fp32 replicated": norms(gpt, layout, {"grad_in_fp32": True, "distributed": False}),
            },
            "skipped": skipped(gpt, layout, {"grad_in_fp32": True}),
            "injected": injected(gpt, layout, {}),
            "drifted": drifted(gpt, name, layout),
        }
    if "tp2" in found:
        found["tp2"]["accumulated"] = {
            kind: accumulated(gpt, {"tp": 2, **options}) for kind, options in GRAD_DTYPES.items()
        }
    two = {"instances": 2}
    if "dp4" in found:
        found["two instances"] = {
            "norms": {kind: norms(gpt, two, options) for kind, options in GRAD_DTYPES.items()},
            "skipped": skipped(gpt, two, {}),
            "injected": injected(gpt, two, {}),
        }
    if is_since("0.16"):  # overrides of parameter groups
        for name, layout in ({"two instances": two} if "dp4" in found else LAYOUTS[2]).items():
            found[name]["multipliers"] = with_multipliers(gpt, layout, {}, f"{directory}/{name}", "fully_reshardable")
        if "tp2" in found:
            found["tp2"]["multipliers replicated"] = with_multipliers(
                gpt, {"tp": 2}, {"distributed": False}, f"{directory}/replicated", "fully_reshardable"
            )
    return found


def agreement(gpt):
    """How far layouts are from each other: the gradients of the first step, and 50 steps of training."""
    found = {}
    for name, layout in AGREEING[dist.get_world_size()].items():
        model, rate = ({**layout, **EXPERTS}, 5e-4) if "ep" in layout else (layout, 1e-3)
        found[name] = {}
        for kind, options in KINDS.items():
            found[name][f"first {kind}"] = first_gradients(gpt, model, options)
            found[name][f"trained {kind}"] = trained(gpt, model, options, rate)
        if dist.get_world_size() == 1:
            found[name]["trained with another seed"] = trained(gpt, model, {}, rate, sr_seed=12)
    return found


def main(what, output, directory):
    import tiny_gpt as gpt

    dist.init_process_group("gloo")
    nemo_sr.megatron.install()
    found = agreement(gpt) if what == "agreement" else treatment(gpt, directory)
    if dist.get_rank() == 0:
        torch.save(found, output)
    end_rank()


if __name__ == "__main__":
    with nemo_sr.megatron.cpu_platform():
        main(*sys.argv[1:])
