# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A model without its training, in one process: built, loaded, its parameters by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from nemo_sr.models.description import ModelDescription
from nemo_sr.training.model_file import holds_weights_alone
from nemo_sr.training.run_folder import find_checkpoints, read_whole
from nemo_sr.training.schema import ModelConfig

PADDED = {"embedding.word_embeddings.weight", "output_layer.weight"}
"""Parameters whose rows are the vocabulary's."""


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint that `path` is, or the newest complete one of the run that it is.

    Raises:
        FileNotFoundError: it is neither.
    """
    if (path / "metadata.json").is_file():
        return path
    complete = [one.path for one in find_checkpoints(path / "checkpoints") if one.state == "complete"]
    if not complete:
        raise FileNotFoundError(
            f"a checkpoint is a folder with metadata.json, and a run one with checkpoints/; {path} is neither, or has "
            "no complete checkpoint. Give another path."
        )
    return complete[-1]


@contextlib.contextmanager
def one_process(*, on_cpu: bool) -> Iterator[None]:
    """Run Megatron-core in this process alone, with groups of one rank.

    Args:
        on_cpu: Whether the model is on the CPU.
    """
    with contextlib.ExitStack() as stack:
        if on_cpu:
            from nemo_sr.megatron import cpu_platform

            stack.enter_context(cpu_platform())
        from megatron.core import parallel_state, tensor_parallel

        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        backend = "gloo" if on_cpu else "nccl"
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
        stack.callback(torch.distributed.destroy_process_group)
        parallel_state.initialize_model_parallel()
        stack.callback(parallel_state.destroy_model_parallel)
        tensor_parallel.model_parallel_cuda_manual_seed(0)
        yield


def build_model(description: ModelDescription, *, dtype: torch.dtype, on_cpu: bool) -> Any:
    """Return the model inside :func:`one_process`; its matrices hold anything, its padding zeros."""
    from nemo_sr.models.gpt import build_gpt, transformer_config

    keys = {key: value for key, value in asdict(description).items() if key != "vocab_size"}
    model = DictConfig(OmegaConf.merge(OmegaConf.structured(ModelConfig), keys))
    gpt = build_gpt(
        transformer_config(model, on_cpu=on_cpu, params_dtype=dtype),
        model,
        vocab_size=description.vocab_size,
        on_cpu=on_cpu,
        is_initialized=False,
    )
    params = whole_parameters(gpt)
    with torch.no_grad():
        for name in PADDED & params.keys():
            params[name][description.vocab_size :].zero_()
    return gpt.eval()


def whole_parameters(gpt: Any) -> dict[str, torch.Tensor]:
    """Return the parameters of a model on one rank by their names in checkpoints, padding included."""
    from nemo_sr.megatron.naming import place_parameters

    return {place.name: param for param, place in place_parameters([gpt]).items()}


def load_model(checkpoint: Path, description: ModelDescription, *, on_cpu: bool) -> Any:
    """Return the model with a checkpoint's weights, in their type, inside :func:`one_process`.

    Raises:
        ValueError: the checkpoint is damaged, or does not fit.
    """
    from nemo_sr.megatron.fitting import check_checkpoint
    from nemo_sr.megatron.reading import load_as_data, read_plan

    files = None if holds_weights_alone(checkpoint) else read_whole(checkpoint).files
    entry = read_plan(checkpoint, files).state_dict_metadata.get("embedding.word_embeddings.weight")
    dtype = getattr(getattr(entry, "properties", None), "dtype", torch.bfloat16)
    gpt = build_model(description, dtype=dtype, on_cpu=on_cpu)
    wanted = {"model": gpt.sharded_state_dict()}
    check_checkpoint(wanted, checkpoint, vocab_size=description.vocab_size)
    gpt.load_state_dict(load_as_data(wanted, checkpoint, files)["model"])
    return gpt
