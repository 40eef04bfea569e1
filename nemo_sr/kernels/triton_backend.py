# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The step on a GPU, through Triton. Importing this module does not import Triton."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch import Tensor

from nemo_sr.kernels.triton_table import CHUNK, Piece, chunk_table, piece_table, pieces_of
from nemo_sr.update import CapturableOptions, ParamShard, StepOptions, StepScalars, to_float32

BLOCK = 1024
"""Elements that a program takes at once: eight for each of its 128 threads."""

LAUNCH = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}
"""How the kernel is compiled: without fused multiply-add, and without staging in shared memory."""

_OLDEST = (3, 6)
_REMEMBERED = 64

_T = TypeVar("_T")


def why_not_triton(device: torch.device | str | None = None) -> str | None:
    """Say why the Triton backend cannot run.

    Args:
        device: Where the parameters are; None asks about this machine.

    Returns:
        The reason and what to do about it, or None if it can run. Under Triton's interpreter (``TRITON_INTERPRET=1``,
        for tests) it can run everywhere.
    """
    interpreted = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
    # Triton comes last: it takes a while to import.
    if not interpreted and (reason := _why_not_cuda(device)) is not None:
        return reason
    try:
        triton = import_module("triton")
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        return "the package triton is not installed. Install triton 3.6 or newer."
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < _OLDEST:
        return (
            f"Triton {triton.__version__} flushes subnormal numbers in its correctly rounded root and division. "
            "Install triton 3.6 or newer."
        )
    return None


def _why_not_cuda(device: torch.device | str | None) -> str | None:
    where = torch.device("cuda" if device is None else device)
    if where.type != "cuda":
        return f"the parameters are on {where.type}, not on a CUDA device. Move the model to a GPU."
    if torch.version.hip is not None:
        return "the kernel is for NVIDIA GPUs, and this torch is built for ROCm. Install a torch for CUDA."
    if not torch.cuda.is_available():
        return "torch finds no CUDA device. Run on a machine with an NVIDIA GPU, with a torch built for CUDA."
    if (capability := torch.cuda.get_device_capability(where)) < (8, 0):
        given = ".".join(map(str, capability))
        return f"the kernel needs compute capability 8.0 (Ampere) or newer; {where} has {given}. Run on a newer GPU."
    return None


def is_capturing() -> bool:
    """Tell whether the current stream is being captured into a CUDA graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def adamw_sr_triton_(shards: Sequence[ParamShard], options: StepOptions) -> None:
    """Take one AdamW-SR step in place on a GPU: one launch for all shards of one device and one pair of dtypes.

    It runs on the device's current stream and does not wait for it. The tables that describe the shards stay on the
    device, and are sent again only when an address, a size, a layout or a key changes.

    Args:
        shards: The parameters.
        options: What they have in common.

    Raises:
        RuntimeError: the backend cannot run here, or a CUDA graph is being captured: it would repeat one step's number
            and learning rate.

    Source:
        arXiv 2502.20566; the bits are those of :func:`nemo_sr.update.adamw_sr_`.
    """
    together = _together(shards)
    if together and is_capturing():
        raise RuntimeError(
            "a step whose number and learning rate are the host's cannot be captured into a CUDA graph, which would "
            "repeat them and the noise. Make the optimizer with capturable=True, or step outside the graph."
        )
    for device, numbers in together:
        with _current(device):
            _launch([shards[number] for number in numbers], options, device)


def adamw_sr_triton_capturable_(
    shards: Sequence[ParamShard], steps: Sequence[Tensor], options: CapturableOptions
) -> None:
    """Take one AdamW-SR step in place as :func:`adamw_sr_triton_` does, its number and learning rate on the device.

    The host reads nothing, and a CUDA graph can capture it, once a step like it has been taken: nothing may be sent to
    the device during a capture.

    Args:
        shards: The parameters.
        steps: Number of steps that each has taken, 0-dimensional int64 on its device. Not changed.
        options: What they have in common. A graph repeats what is a float here and reads what is a tensor anew.

    Raises:
        RuntimeError: the backend cannot run here, or a graph is being captured and no step like this one was taken
            before, or a tensor is on another device.

    Source:
        arXiv 2502.20566; the bits are those of :func:`nemo_sr.update.adamw_sr_`.
    """
    for device, numbers in _together(shards):
        with _current(device):
            scale = _on_device("grad_scale", options.grad_scale, torch.float32, device)
            rows = _scalars([steps[number] for number in numbers], options, device)
            # The kernel reads neither the step nor what depends on it.
            rest = StepScalars.of_step(
                1, lr=0.0, betas=options.betas, eps=options.eps, weight_decay=0.0, grad_scale=scale
            )
            constant = StepOptions(
                1, rest, options.exp_avg_rounding, options.exp_avg_sq_rounding, maximize=options.maximize
            )
            _launch([shards[number] for number in numbers], constant, device, rows)


def _together(shards: Sequence[ParamShard]) -> list[tuple[torch.device, list[int]]]:
    """Say which shards a launch takes, after checking that their devices can."""
    together: dict[tuple[torch.device, torch.dtype, torch.dtype], list[int]] = {}
    for number, shard in enumerate(shards):
        if shard.weight.numel():
            together.setdefault((shard.weight.device, shard.weight.dtype, shard.grad.dtype), []).append(number)
    for device in {device for device, _, _ in together}:
        if (reason := why_not_triton(device)) is not None:
            raise RuntimeError(
                f'the Triton backend cannot run here: {reason} Or use backend="auto" or backend="reference": they '
                "give the same bits."
            )
    return [(device, numbers) for (device, _, _), numbers in together.items()]


def _current(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _on_device(name: str, value: float | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.full((), to_float32(float(value)) if dtype == torch.float32 else value, dtype=dtype, device=device)
    if value.device != device and is_capturing():
        raise RuntimeError(
            f"a CUDA graph can only read {name} on the parameters' device, {device}; it is a tensor on {value.device}. "
            f"Make it with device={str(device)!r}."
        )
    return value.to(device, dtype)


def _scalars(steps: Sequence[Tensor], options: CapturableOptions, device: torch.device) -> Tensor:
    """Compute the scalars of each parameter's next step. Shape (number of parameters, 4), int32; see step_kernel."""
    module = import_module("nemo_sr.kernels.triton_scalars")
    rows = torch.empty((len(steps), module.SCALARS), dtype=torch.int32, device=device)
    # FP64 numbers travel as two halves: Triton passes Python's floats as FP32.
    halves = struct.unpack("<6i", struct.pack("<3d", *options.betas, options.weight_decay))
    block = 128
    module.scalars_kernel[(-(-len(steps) // block),)](
        rows,
        torch.stack(list(steps)),
        _on_device("lr", options.lr, torch.float64, device),
        len(steps),
        *(half for low, high in zip(halves[::2], halves[1::2], strict=True) for half in (high, low)),
        BLOCK=block,
        **LAUNCH,
    )
    return rows


@dataclass(frozen=True)
class _Plan:
    """Where the elements of some shards lie, and the tables for the addresses that they have had."""

    pieces: tuple[Piece, ...]
    plain: bool
    chunks: Tensor
    tables: dict[Any, Tensor] = field(default_factory=dict)


_plans: dict[Any, _Plan] = {}

_in_graphs: list[Tensor] = []
"""Tables that a CUDA graph may read as long as the process lives."""


def _launch(
    shards: Sequence[ParamShard], options: StepOptions, device: torch.device, rows: Tensor | None = None
) -> None:
    float32 = shards[0].weight.dtype == torch.float32
    plan, pieces = _tables_of(shards, device)
    scalars = options.scalars
    scale = scalars.grad_scale
    step = options.step & 0xFFFFFFFF
    kernel = import_module("nemo_sr.kernels.triton_kernel").step_kernel
    kernel[(len(plan.chunks),)](
        plan.chunks,
        pieces,
        scale.to(device) if isinstance(scale, Tensor) else pieces,
        pieces if rows is None else rows,
        scalars.beta1,
        scalars.one_minus_beta1,
        scalars.beta2,
        scalars.one_minus_beta2,
        scalars.inverse_root_correction2,
        scalars.eps,
        scalars.decay,
        scalars.step_size,
        0.0 if isinstance(scale, Tensor) else scale,
        step - (1 << 32) if step >> 31 else step,
        OPTIONS=(
            float32,
            shards[0].grad.dtype == torch.float32,
            not float32 and options.exp_avg_rounding == "stochastic",
            not float32 and options.exp_avg_sq_rounding == "stochastic",
            options.maximize,
        ),
        SCALE_ON_DEVICE=isinstance(scale, Tensor),
        CAPTURABLE=rows is not None,
        PLAIN=plan.plain,
        CHUNK=CHUNK,
        BLOCK=BLOCK,
        **LAUNCH,
    )


def _tables_of(shards: Sequence[ParamShard], device: torch.device) -> tuple[_Plan, Tensor]:
    tensors = [(shard.weight, shard.grad, shard.exp_avg, shard.exp_avg_sq) for shard in shards]
    sizes = tuple(tensor.element_size() for tensor in tensors[0])
    addresses = tuple(tuple(tensor.data_ptr() for tensor in four) for four in tensors)
    # A table is used on the stream that it was sent on, so that nothing has to wait.
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    misalignments = tuple(tuple(address % 16 for address in four) for four in addresses)
    where = (stream, device, sizes, tuple(shard.layouts for shard in shards), misalignments)
    keys = tuple(shard.key for shard in shards)
    if is_capturing():
        return _tables_in_graph(where, keys, addresses)
    plan = _remember(_plans, where, lambda: _make_plan(shards, misalignments, sizes, device))
    table = _remember(
        plan.tables, (keys, addresses), lambda: _send(piece_table(plan.pieces, keys, addresses, sizes), device)
    )
    return plan, table


def _tables_in_graph(
    where: tuple[Any, ...], keys: tuple[int, ...], addresses: Sequence[Sequence[int]]
) -> tuple[_Plan, Tensor]:
    """Find tables that an earlier step has sent, on whatever stream: it came before the graph's steps in any case."""
    for known, plan in reversed(_plans.items()):
        if known[1:] != where[1:]:
            continue
        for (its_keys, its_addresses), table in reversed(plan.tables.items()):
            if its_keys == keys:
                _in_graphs.extend((plan.chunks, table))
                return plan, _move(table, plan.pieces, its_addresses, addresses)
    raise RuntimeError(
        "nothing may be sent to the GPU while a CUDA graph is captured, and no earlier step has sent the tables for "
        "this one. Take a few steps before the capture, as for torch's optimizers, with gradients for the same "
        "parameters, of the same dtype and alignment."
    )


def _move(table: Tensor, pieces: Sequence[Piece], old: Sequence[Sequence[int]], new: Sequence[Sequence[int]]) -> Tensor:
    """Copy a table of pieces for other addresses: a backward pass that is captured too allocates its gradients anew."""
    if new == old:
        return table
    moved = table.clone()
    cells, distances = [], []
    for row, piece in zip(moved.unbind(), pieces, strict=True):
        for cell, before, after in zip(row[:4].unbind(), old[piece.shard], new[piece.shard], strict=True):
            if after != before:
                cells.append(cell)
                distances.append(after - before)
    # The distances travel as arguments of its kernels, which a graph keeps.
    torch._foreach_add_(cells, distances)
    return moved


def _make_plan(
    shards: Sequence[ParamShard],
    misalignments: Sequence[Sequence[int]],
    sizes: Sequence[int],
    device: torch.device,
) -> _Plan:
    rounds = shards[0].weight.dtype != torch.float32
    pieces = tuple(
        piece
        for number, shard in enumerate(shards)
        for piece in pieces_of(number, shard.layouts, misalignments[number], sizes, rounds=rounds)
    )
    plain = all(piece.fast and piece.rows.length == piece.rows.distance for piece in pieces)
    return _Plan(pieces, plain, _send(chunk_table(pieces), device))


def _send(table: Tensor, device: torch.device) -> Tensor:
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table


def _remember(known: dict[Any, _T], key: Any, make: Callable[[], _T]) -> _T:
    """Look a value up, or make it and forget the oldest: hashing the layouts is most of the work on the host."""
    value = known.get(key)
    if value is None:
        value = known[key] = make()
        if len(known) > _REMEMBERED:
            del known[next(iter(known))]
    return value
