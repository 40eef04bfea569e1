# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Rank script: saves a tiny GPT, both pipeline stages writing, in every way that can go well or wrong.

Usage (by gloo_ranks.run_ranks): checkpoint_rank.py OUTPUT.json FOLDER SMALL_FILESYSTEM
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedObject

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))

from rank_end import end_rank

import nemo_sr.megatron
from nemo_sr.megatron.reading import load_as_data
from nemo_sr.megatron.saving import BackgroundSave
from nemo_sr.training.manifest import describe_file, read_manifest
from nemo_sr.training.run_folder import find_checkpoints
from nemo_sr.training.saving import About, CheckpointWriter


def about(step, val_loss=None):
    return About(step, 4 * step, val_loss, {"ranks": 2, "pipeline_model_parallel_size": 2}, {"format": 1, "step": step})


def sharded(model, optimizer, *, is_loading=False):
    model_state = model.module.sharded_state_dict()
    metadata = nemo_sr.megatron.checkpoint_metadata()
    state = optimizer.sharded_state_dict(model_state, is_loading=is_loading, metadata=metadata)
    return {"model": model_state, "optimizer": state}


def states(folder):
    return {one.path.name: one.state for one in find_checkpoints(folder)}


def failed(function):
    """Return the error that `function` ends with here, and the seconds it took."""
    began = time.monotonic()
    try:
        function()
    except (RuntimeError, ValueError) as error:
        return [type(error).__name__, str(error), time.monotonic() - began]
    return ["", "", time.monotonic() - began]


def trained(gpt):
    model = gpt.build_model(pp=2)
    gpt.set_weights(model)
    optimizer = gpt.build_optimizer(model)
    gpt.train(model, optimizer, 2)
    return model, optimizer


def both_ways(gpt, folder):
    """One state saved at once and in the background of three more steps; then loaded."""
    model, optimizer = trained(gpt)
    writers = {kind: CheckpointWriter(folder / kind, asynchronous=kind == "async", newest=2, best=1) for kind in KINDS}
    for writer in writers.values():
        writer.save(sharded(model, optimizer), about(2))
    saved = gpt.digest(gpt.gathered(model, optimizer))
    unpublished = states(folder / "async")
    gpt.train(model, optimizer, 3, first_step=2)
    later = gpt.digest(gpt.gathered(model, optimizer))
    writers["async"].finish(wait=True)
    loaded = {}
    for kind in KINDS:
        model = gpt.build_model(pp=2)
        optimizer = gpt.build_optimizer(model)
        checkpoint = writers[kind].newest
        state = load_as_data(sharded(model, optimizer, is_loading=True), checkpoint, read_manifest(checkpoint).files)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loaded[kind] = gpt.digest(gpt.gathered(model, optimizer))
    return {"saved": saved, "later": later, "loaded": loaded, "unpublished": unpublished}


KINDS = ("sync", "async")


def keeping(run, folder):
    """Six checkpoints, of which the two newest and the best are kept."""
    writer = CheckpointWriter(folder, asynchronous=False, newest=2, best=1)
    for step, loss in enumerate([None, 3.0, 2.0, 2.5, None, None], start=1):
        writer.save(sharded(*run), about(step, loss))
    return states(folder)


def a_file_that_cannot_grow(run, folder):
    """The kernel lets no file of rank 1 grow past some bytes."""
    found = {}
    for kind in KINDS:
        writer = CheckpointWriter(folder / kind, asynchronous=kind == "async", newest=2, best=0)
        writer.save(sharded(*run), about(1))
        writer.finish(wait=True)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

        def save(writer=writer):
            writer.save(sharded(*run), about(2))
            writer.finish(wait=True)

        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
        error = failed(save)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        between = states(folder / kind)
        dist.barrier()  # before another rank's save clears what is listed here
        save()
        found[kind] = {"error": error, "between": between, "after": states(folder / kind)}
    return found


def a_killed_process(run, folder, depth):
    """SIGKILL to a process of rank 1 that writes (depth 2) or waits for those that write (depth 1)."""
    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
    dist.barrier()
    save = BackgroundSave(sharded(*run), folder, slowly)
    if dist.get_rank() == 1:
        os.kill(_writers(depth)[0].pid, signal.SIGKILL)
    found = failed(lambda: save.is_done(wait=True))
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return found


def slowly(file):
    time.sleep(1 if dist.get_rank() == 0 else 20)
    return describe_file(file)


def _writers(depth):
    while True:
        processes = psutil.Process().children()
        if depth == 2:
            processes = [writer for process in processes for writer in process.children()]
        if processes:
            return processes
        time.sleep(0.05)


def no_room(run, folder):
    """A file system that is too small."""
    writer = CheckpointWriter(folder, asynchronous=False, newest=2, best=0)
    return failed(lambda: writer.save(sharded(*run), about(1)))


class Evil:
    """Something whose pickle makes a file when it is read."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


def hostile(run, folder):
    """Objects that run code when read as Megatron reads them; whether they did, and what was said."""
    found = {}
    for kind in ("object", "common"):
        mark, path = folder / f"{kind} was run", folder / kind
        where = {"global_shape": (2,), "global_offset": (dist.get_rank(),)}

        def wanted(mark=mark, kind=kind, where=where):
            return {"rng": ShardedObject("rng", Evil(mark) if kind == "object" else 1, **where), **sharded(*run)}

        if dist.get_rank() == 0:
            path.mkdir(parents=True)
        dist.barrier()
        BackgroundSave(wanted(), path, describe_file).is_done(wait=True)
        if kind == "common" and dist.get_rank() == 0:
            torch.save({"x": Evil(mark)}, path / "common.pt")
        dist.barrier()
        os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
        files = [file.name for file in path.iterdir()]
        error = failed(partial(load_as_data, wanted(), path, files))
        was_run = mark.exists()
        dist.barrier()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist_checkpointing.load(wanted(), str(path))
        found[kind] = {"error": error, "was run": was_run, "is run by Megatron": mark.exists()}
        del os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"]
    return found


def main(output, directory, small):
    import tiny_gpt as gpt

    dist.init_process_group("gloo")
    nemo_sr.megatron.install()
    folder = Path(directory)
    found = {"both ways": both_ways(gpt, folder / "ways")}
    run = trained(gpt)
    found |= {
        "keeping": keeping(run, folder / "keeping"),
        "file too large": a_file_that_cannot_grow(run, folder / "large"),
        "killed writer": a_killed_process(run, folder / "killed2", 2),
        "killed waiter": a_killed_process(run, folder / "killed1", 1),
        "hostile": hostile(run, folder / "hostile"),
        "no room": no_room(run, Path(small)) if small else None,
    }
    everyone = [None, None]
    dist.all_gather_object(everyone, found)
    if dist.get_rank() == 0:
        Path(output).write_text(json.dumps(everyone))
    end_rank()


if __name__ == "__main__":
    with nemo_sr.megatron.cpu_platform():
        main(*sys.argv[1:])
