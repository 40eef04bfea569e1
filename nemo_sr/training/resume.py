# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Where a run stands and how it goes on: its newest checkpoint and the order of its data. Imports no NeMo."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_sr.training.batch import BatchSchedule
from nemo_sr.training.config import ConfigError
from nemo_sr.training.manifest import STATE_FILE, DamagedError, Manifest, find_altered, share_of
from nemo_sr.training.model_file import MODEL_FILE, check_same_model, holds_weights_alone
from nemo_sr.training.regimes import REGIMES
from nemo_sr.training.restoring import KEY, find_weights
from nemo_sr.training.run_folder import Checkpoint, find_checkpoints, read_whole
from nemo_sr.training.validate import prefixes
from nemo_sr.words import LR_ADVICE

STATE_FORMAT = 1
_STATE_KEYS = {"step", "consumed_samples", "data", "optim_name", "layout", "skipped_steps"}


@dataclass(frozen=True)
class Start:
    """Where a run starts."""

    step: int
    """Steps that are done."""

    consumed_samples: int
    """Training samples that they used."""

    plan: dict[str, Any]
    """What decides the order of the samples."""

    checkpoint: Path | None
    """The checkpoint to load."""

    notes: tuple[str, ...]
    """What the user should know."""

    keeps_random_state: bool = True
    """Whether the checkpoint's random states fit the present layout."""

    manifest: Manifest | None = None
    """The checkpoint's manifest."""

    skipped_steps: Mapping[str, int] | None = None
    """How many steps were skipped; see :class:`~nemo_sr.training.skipping.SkippedSteps`."""

    loss_spikes: Mapping[str, Any] | None = None
    """What is known of the loss; see :class:`~nemo_sr.training.spikes.LossSpikes`."""

    takes_weights_alone: bool = False
    """Whether the optimizer begins anew, whatever the checkpoint has of it."""


def find_start(config: DictConfig, altered: Mapping[Path, str] | None = None) -> Start:
    """Return where the run of `config` starts: at its newest complete checkpoint, at another's, or at the beginning.

    What is not complete is left alone and named in the notes.

    Args:
        config: The whole configuration.
        altered: Checkpoints that seem complete and are not, with the reason.

    Raises:
        ConfigError: the checkpoint cannot be continued under this configuration, or none of several is complete.
    """
    folder = checkpoint_folder(config)
    found = [_as_altered(one, altered) if altered and one.path in altered else one for one in find_checkpoints(folder)]
    newest = next((one for one in reversed(found) if one.state == "complete"), None)
    wanted = plan_data(config)
    passed_over = tuple(_describe_incomplete(one, newest) for one in found if one.state != "complete")
    given = config.exp_manager.resume_from_checkpoint
    if newest is None:
        if any(one.state == "damaged" for one in found):
            raise ConfigError(
                f"A run that has checkpoints must go on from one of them, and none in {folder} is complete. "
                f"{' '.join(passed_over)} Restore one, or move them away to begin anew, or start a new run with "
                "another exp_manager.name."
            )
        if config.model.restore_from_path is not None:
            return _start_from_weights(config, wanted, passed_over, altered)
        if given is None:
            return Start(0, 0, wanted, None, passed_over)
        checkpoint = Path(given)
        if holds_weights_alone(checkpoint):
            check_same_model(checkpoint, config.model)
            note = _WEIGHTS_ALONE.format(checkpoint)
            return Start(0, 0, wanted, checkpoint, (*passed_over, note), keeps_random_state=False)
        if not (checkpoint / STATE_FILE).is_file():
            return _start_from_megatron(checkpoint, wanted, config.optim.name, passed_over)
        manifest: Manifest | None = _read_given("exp_manager.resume_from_checkpoint", checkpoint, altered)
    else:
        checkpoint, manifest = newest.path, newest.manifest
    if newest is not None and read_state(checkpoint)["optim_name"] != config.optim.name:
        raise ConfigError(
            f"A resumed run must keep its optim.name; {checkpoint} has {read_state(checkpoint)['optim_name']}, the "
            f"configuration {config.optim.name}. Set it back, or go on from it in a new run: another exp_manager.name "
            f"and exp_manager.resume_from_checkpoint={checkpoint}."
        )
    state = read_state(checkpoint)
    if "model" in state:  # since it is saved
        check_same_model(checkpoint, config.model)
    plan, notes = keep_order(wanted, state["data"])
    notes += describe_change(state["optim_name"], config.optim.name)
    layout = plan_layout(config)
    keeps_random_state = layout == state["layout"]
    if not keeps_random_state:
        saved, present = (
            ", ".join(f"{key}={size}" for key, size in part.items()) for part in (state["layout"], layout)
        )
        notes.append(
            f"The checkpoint was written with {saved}, and this run has {present}: weights and optimizer go on, the "
            "random states of dropout, one for each part of the model, begin anew. So do rows that pad the vocabulary, "
            "unless model.make_vocab_size_divisible_by * tensor_model_parallel_size is what it was."
        )
    resuming = f"Resuming from {checkpoint}: step {state['step']} of {config.trainer.max_steps}."
    return Start(
        state["step"],
        state["consumed_samples"],
        plan,
        checkpoint,
        (*passed_over, resuming, *notes),
        keeps_random_state,
        manifest,
        state["skipped_steps"],
        state.get("loss_spikes"),  # since it is saved
    )


def find_unaltered_start(
    config: DictConfig, start: Start, *, rank: int, num_ranks: int, gather: Callable[[list[str]], list[list[str]]]
) -> Start:
    """Return `start`, or a start at an older checkpoint where the files of the newer ones are not what was written.

    Collective: every rank reads its share of a checkpoint's files to their end.

    Args:
        config: The whole configuration.
        start: What :func:`find_start` returned on every rank.
        rank: This rank.
        num_ranks: Ranks in all.
        gather: Returns what it is given on every rank.

    Raises:
        ConfigError: as :func:`find_start`.
    """
    altered: dict[Path, str] = {}
    while start.checkpoint is not None and start.manifest is not None:
        mine = find_altered(start.checkpoint, start.manifest, share_of(start.manifest, rank, num_ranks))
        problems = [problem for everyones in gather(mine) for problem in everyones]
        if not problems:
            break
        altered[start.checkpoint] = problems[0]
        start = find_start(config, altered)
    return start


def _as_altered(found: Checkpoint, altered: Mapping[Path, str]) -> Checkpoint:
    return replace(found, state="damaged", reason=altered[found.path])


def _describe_incomplete(found: Checkpoint, newest: Checkpoint | None) -> str:
    if found.state == "partial":
        return f"Left alone: {found.path} is unfinished; {found.reason}."
    lost = ""
    if newest is not None and found.step > newest.step:
        lost = f" The run goes on from {newest.path.name}, {found.step - newest.step} steps earlier."
    return f"WARNING: {found.path} is damaged and left alone: {found.reason}.{lost}"


_WEIGHTS_ALONE = "Starting from the weights of {}: everything else begins at its beginning."


def _start_from_weights(
    config: DictConfig, plan: dict[str, Any], passed_over: tuple[str, ...], altered: Mapping[Path, str] | None
) -> Start:
    if config.exp_manager.resume_from_checkpoint is not None:
        raise ConfigError(
            f"A new run must begin from one thing; {KEY} is {config.model.restore_from_path} and "
            f"exp_manager.resume_from_checkpoint {config.exp_manager.resume_from_checkpoint}. Give the former to begin "
            "with weights alone, or the latter to go on with optimizer, schedule and data."
        )
    folder = find_weights(Path(config.model.restore_from_path), config.model)
    return Start(
        0,
        0,
        plan,
        folder,
        (*passed_over, _WEIGHTS_ALONE.format(folder)),
        keeps_random_state=False,
        manifest=_read_given(KEY, folder, altered) if (folder / STATE_FILE).is_file() else None,
        takes_weights_alone=True,
    )


def _read_given(key: str, checkpoint: Path, altered: Mapping[Path, str] | None) -> Manifest:
    try:
        if altered and checkpoint in altered:
            raise DamagedError(altered[checkpoint])
        return read_whole(checkpoint)
    except DamagedError as error:
        raise ConfigError(
            f"{key} must be a complete checkpoint; {checkpoint} is damaged: {error}. Restore it, or give another."
        ) from None


def _start_from_megatron(
    checkpoint: Path, plan: dict[str, Any], optim_name: str, passed_over: tuple[str, ...]
) -> Start:
    if not (checkpoint / "metadata.json").is_file():
        raise ConfigError(
            f"exp_manager.resume_from_checkpoint must be a checkpoint's own folder, with {STATE_FILE} (of a run here), "
            f"{MODEL_FILE} (of scripts/convert_hf.py) or metadata.json (of Megatron-core); {checkpoint} has none of "
            "them. Correct it."
        )
    notes = (
        *passed_over,
        f"Starting from {checkpoint}, which another program saved: weights, moments and the optimizer's step go on, "
        "data and schedule begin at their beginning.",
        *describe_change("adamw", optim_name),
    )
    return Start(0, 0, plan, checkpoint, notes, keeps_random_state=False)


def describe_change(saved: str, present: str) -> list[str]:
    """Return what the user should know where one strategy goes on from another's checkpoint."""
    before, now = REGIMES[saved], REGIMES[present]
    if before.has_own_optimizer == now.has_own_optimizer:
        if before.weights == now.weights:
            return []
        return [f"From {saved} to {present}: weights were cast from {before.weights.upper()} to {now.weights.upper()}."]
    if now.has_own_optimizer:
        weights = (
            "weights and" if before.weights == "fp32" else "the BF16 weights go on without their FP32 masters, and"
        )
        advice = f" {LR_ADVICE} optim.sr_lr_scale does both." if now.rounds_stochastically else ""
        return [f"From {saved} to {present}: {weights} moments were cast to BF16 (nearest).{advice}"]
    made = "weights and" if now.weights == "fp32" else "FP32 masters were made of the BF16 weights, and"
    advice = ""
    if before.rounds_stochastically:
        advice = (
            " Mixed precision takes a half to a quarter of the maximum learning rate of stochastic rounding: lower "
            "optim.lr."
        )
    return [f"From {saved} to {present}: {made} moments were cast to FP32.{advice}"]


def checkpoint_folder(config: DictConfig) -> Path:
    """Return the folder of a run's checkpoints."""
    return Path(config.exp_manager.explicit_log_dir) / "checkpoints"


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return what a checkpoint says about its run: step, consumed samples, data order, optimizer, layout.

    Raises:
        ConfigError: the file is damaged, or of a format that this version does not read.
    """
    file = checkpoint / STATE_FILE
    try:
        state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        found = state["format"]
    except (ValueError, KeyError, TypeError):  # a JSONDecodeError is a ValueError, and so is text that is not UTF-8
        found = None
    if found is not None and found != STATE_FORMAT:
        raise ConfigError(
            f"A checkpoint must be of format {STATE_FORMAT}; {file} has format {found}. Resume it with the version of "
            "nemo_sr that wrote it, or start a new run with another exp_manager.name."
        )
    if found is None or not state.keys() >= _STATE_KEYS:
        raise ConfigError(
            f"A checkpoint's {STATE_FILE} must be the JSON object that was saved with it; {file} is damaged. Restore "
            f"it, or delete or move {checkpoint} to resume from the checkpoint before it."
        )
    return state


def plan_layout(config: DictConfig) -> dict[str, int]:
    """Return how the model is cut into parts, each with random states of its own."""
    keys = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
    return {key: config.model[key] for key in keys}


def plan_data(config: DictConfig) -> dict[str, Any]:
    """Return what decides the order of the samples; it is saved with every checkpoint."""
    batch, ramp = config.model.global_batch_size, config.model.rampup_batch_size
    paths, weights = prefixes(config.data.data_prefix)
    return {
        "train_samples": BatchSchedule.of(config.model).consumed_after(config.trainer.max_steps),
        "valid_samples": config.trainer.limit_val_batches * batch,
        "global_batch_size": batch,
        "rampup_batch_size": None if ramp is None else list(ramp),
        "data_fingerprint": fingerprint_data(paths),
        "blend_weights": weights,
        "splits_string": config.data.splits_string,
        "encoder_seq_length": config.model.encoder_seq_length,
        "seed": config.model.seed,
    }


def fingerprint_data(paths: Sequence[str]) -> str:
    """Return a hash of the data sets' .idx files and of the sizes of their .bin files.

    Megatron-core files its cached sample orders under the data's path: other data under the same path would get them.
    """
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        with open(f"{path}.idx", "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        digest.update(str(os.path.getsize(f"{path}.bin")).encode())
    return digest.hexdigest()


def keep_order(wanted: dict[str, Any], saved: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the plan that continues the saved order, and what the user should know about it.

    The order of a GPTDataset depends on the number of samples asked for, so the saved numbers are kept where they
    suffice.

    Args:
        wanted: What the present configuration asks for.
        saved: What the checkpoint was trained with.

    Raises:
        ConfigError: the saved order cannot serve.
    """
    keys = {
        "global_batch_size": "model.global_batch_size",
        "rampup_batch_size": "model.rampup_batch_size",
        "data_fingerprint": "the contents of data.data_prefix",
        "blend_weights": "the weights in data.data_prefix",
        "splits_string": "data.splits_string",
        "encoder_seq_length": "model.encoder_seq_length",
        "seed": "model.seed",
    }
    for key, name in keys.items():
        if wanted[key] != saved.get(key):
            raise ConfigError(
                f"A resumed run must read the data in the order it began with, which depends on {name}; the checkpoint "
                f"has {saved.get(key)}, the configuration {wanted[key]}. Set it back, or start a new run with another "
                "exp_manager.name."
            )
    plan, notes = dict(saved), []
    for key, cause in {"train_samples": "trainer.max_steps", "valid_samples": "trainer.limit_val_batches"}.items():
        if wanted[key] > saved[key]:
            raise ConfigError(
                f"A resumed run must read the data in the order it began with, which depends on the number of samples "
                f"asked for; the checkpoint asked for {saved[key]} ({key}), the configuration needs {wanted[key]}. Set "
                f"{cause} (times model.global_batch_size) back, or start a new run with another exp_manager.name."
            )
        if wanted[key] < saved[key]:
            notes.append(
                f"{key}: kept the checkpoint's {saved[key]}, where {wanted[key]} would do, for the same order."
            )
    return plan, notes
