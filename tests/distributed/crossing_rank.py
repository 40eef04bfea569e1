# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Rank script of crossings.py: saves and loads as its plan says, and writes what rank 0 found as JSON."""

import contextlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from rank_end import end_rank

import nemo_sr.megatron

BEFORE, AFTER = 3, 10
MODEL = {"layers": 4, "query_groups": 2, "vocabulary": 257, "bucket_size": 5000}


@contextlib.contextmanager
def flags_of_transformer_engine():
    """Set Megatron's flags as they are where Transformer Engine is installed."""
    from megatron.core.optimizer import distrib_optimizer

    flags = {"HAVE_APEX_OR_TE": True, "USING_TE_OPTIMIZER": True}
    before = {name: getattr(distrib_optimizer, name) for name in flags}
    try:
        for name, value in flags.items():
            setattr(distrib_optimizer, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(distrib_optimizer, name, value)


def sharded(model, optimizer, *, is_loading, metadata=None):
    """Return the sharded state of model and optimizer, as Megatron-LM names its parts."""
    import tiny_gpt as gpt

    chunks = gpt.model_chunks(model)
    names = ["model"] if len(chunks) == 1 else [f"model{i}" for i in range(len(chunks))]
    state = {name: chunk.module.sharded_state_dict() for name, chunk in zip(names, chunks, strict=True)}
    metadata = metadata or nemo_sr.megatron.checkpoint_metadata()
    state["optimizer"] = optimizer.sharded_state_dict(dict(state), is_loading=is_loading, metadata=metadata)
    return state


def save(model, optimizer, directory, *, metadata=None, extra=None, **options):
    from megatron.core import dist_checkpointing

    if dist.get_rank() == 0:
        Path(directory).mkdir(parents=True)
    dist.barrier()
    state = {**sharded(model, optimizer, is_loading=False, metadata=metadata), **(extra or {})}
    dist_checkpointing.save(state, directory, **options)


def load(model, optimizer, directory, *, metadata=None, **options):
    import tiny_gpt as gpt
    from megatron.core import dist_checkpointing

    state = dist_checkpointing.load(sharded(model, optimizer, is_loading=True, metadata=metadata), directory, **options)
    chunks = gpt.model_chunks(model)
    for number, chunk in enumerate(chunks):
        chunk.module.load_state_dict(state["model" if len(chunks) == 1 else f"model{number}"])
    optimizer.load_state_dict(state["optimizer"])


def build(layout, seed=11):
    import tiny_gpt as gpt

    model = gpt.build_model(**MODEL, **layout)
    gpt.set_weights(model)
    return model, gpt.build_optimizer(model, sr_seed=seed)


def step(model, optimizer, first, last):
    import tiny_gpt as gpt

    for number in range(first, last):
        gpt.inject_gradients(model, number)
        assert optimizer.step()[0]


def digest(model, optimizer):
    import tiny_gpt as gpt

    return gpt.digest(gpt.gathered(model, optimizer))


def saved(layout, directory):
    """Save after a few steps, and go on."""
    import tiny_gpt as gpt

    model, optimizer = build(layout)
    step(model, optimizer, 0, BEFORE)
    save(model, optimizer, directory)
    step(model, optimizer, BEFORE, BEFORE + AFTER)
    return {
        "digest": digest(model, optimizer),
        "padding only": padding_only(optimizer),
        "shapes": gpt.whole_shapes(model),
        **sizes(directory),
    }


def crossed(layout, directory):
    """Load what another layout saved, into other weights and another seed, and go on."""
    import tiny_gpt as gpt

    model, optimizer = build(layout, seed=12)
    with torch.no_grad():
        for param in model.parameters():
            param.zero_()
    load(model, optimizer, directory)
    steps = [inner.state[param]["step"] for inner, param in gpt.inner_params(optimizer)]
    right = {(int(s), s.dtype) for s in steps} <= {(BEFORE, torch.int64)} and len({id(s) for s in steps}) == len(steps)
    step(model, optimizer, BEFORE, BEFORE + AFTER)
    steps = [inner.state[param]["step"] for inner, param in gpt.inner_params(optimizer)]
    right &= {int(s) for s in steps} <= {BEFORE + AFTER}
    return {"digest": digest(model, optimizer), "steps": everywhere(right)}


def everywhere(flag):
    """Whether a flag is set on all ranks."""
    flags = [None] * dist.get_world_size()
    dist.all_gather_object(flags, bool(flag))
    return all(flags)


def padding_only(optimizer):
    """Count the parts of buckets, over all ranks, that are nothing but padding."""
    ranges = [buffer for link in optimizer.chained_optimizers for buffer in getattr(link, "gbuf_ranges", [])]
    buckets = [bucket for buffer in ranges for buckets in buffer.values() for bucket in buckets]
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, sum(not bucket["param_map"] for bucket in buckets))
    return sum(counts)


def sizes(directory):
    """Return a checkpoint's bytes: of its tensors, and of all its files."""
    from nemo_sr.megatron.reading import read_plan

    metadata = read_plan(Path(directory)).state_dict_metadata.values()
    tensors = [entry for entry in metadata if hasattr(entry, "chunks")]
    return {
        "tensor bytes": sum(entry.size.numel() * entry.properties.dtype.itemsize for entry in tensors),
        "bytes": sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file()),
    }


def main(plan, directory, output):
    dist.init_process_group("gloo")
    nemo_sr.megatron.install()
    plan = json.loads(Path(plan).read_text())
    layouts = {name: layout for name, (_, layout) in plan["layouts"].items()}
    found = {"saves": {name: saved(layouts[name], f"{directory}/{name}") for name in plan["saves"]}, "loads": []}
    for number, (first, second) in enumerate(plan["loads"]):
        # Megatron's code differs with its flag, so every other load has it set.
        with flags_of_transformer_engine() if number % 2 else contextlib.nullcontext():
            found["loads"].append(crossed(layouts[second], f"{directory}/{first}"))
    if plan["cases"]:
        import checkpoint_cases

        found["cases"] = checkpoint_cases.run(f"{directory}/cases")
    if dist.get_rank() == 0:
        Path(output).write_text(json.dumps(found))
    end_rank()


if __name__ == "__main__":
    with nemo_sr.megatron.cpu_platform():
        main(*sys.argv[1:])
