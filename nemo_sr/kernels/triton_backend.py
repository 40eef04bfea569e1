# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The step on a GPU, through Triton. Importing this module does not import Triton."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch import Tensor

from nemo_sr.kernels.triton_table import CHUNK, Piece, chunk_table, piece_table, pieces_of
from nemo_sr.update import ParamShard, StepOptions

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
    together: dict[tuple[torch.device, torch.dtype, torch.dtype], list[ParamShard]] = {}
    for shard in shards:
        if shard.weight.numel():
            together.setdefault((shard.weight.device, shard.weight.dtype, shard.grad.dtype), []).append(shard)
    for device in {device for device, _, _ in together}:
        if (reason := why_not_triton(device)) is not None:
            raise RuntimeError(
                f'the Triton backend cannot run here: {reason} Or use backend="auto" or backend="reference": they '
                "give the same bits."
            )
    if together and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "AdamWSR's step must be taken outside a CUDA graph; one is being captured, and it would repeat this step's "
            "number, learning rate and noise. Capture the forward and backward pass alone."
        )
    for (device, _, _), members in together.items():
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            _launch(members, options, device)


@dataclass(frozen=True)
class _Plan:
    """Where the elements of some shards lie, and the tables for the addresses that they have had."""

    pieces: tuple[Piece, ...]
    plain: bool
    chunks: Tensor
    tables: dict[Any, Tensor] = field(default_factory=dict)


_plans: dict[Any, _Plan] = {}


def _launch(shards: Sequence[ParamShard], options: StepOptions, device: torch.device) -> None:
    float32 = shards[0].weight.dtype == torch.float32
    plan, pieces = _tables_of(shards, device)
    scalars = options.scalars
    scale = scalars.grad_scale
    on_device = isinstance(scale, Tensor)
    step = options.step & 0xFFFFFFFF
    kernel = import_module("nemo_sr.kernels.triton_kernel").step_kernel
    kernel[(len(plan.chunks),)](
        plan.chunks,
        pieces,
        scale.to(device) if isinstance(scale, Tensor) else pieces,
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
        SCALE_ON_DEVICE=on_device,
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
    where = (device, stream, sizes, tuple(shard.layouts for shard in shards), misalignments)
    plan = _remember(_plans, where, lambda: _make_plan(shards, misalignments, sizes, device))
    keys = tuple(shard.key for shard in shards)
    table = _remember(
        plan.tables, (keys, addresses), lambda: _send(piece_table(plan.pieces, keys, addresses, sizes), device)
    )
    return plan, table


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
