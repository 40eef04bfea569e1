# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The native CPU backend: one pass over all shards of a call, in C, with the bits of :mod:`nemo_sr.update`.

The library is a plain shared object that setup.py compiles from ``cpu/``; tensors travel as addresses. It is loaded
when first needed, and chooses its instruction set when it runs: AVX-512, AVX2 or neither.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from nemo_sr.layout import ShardLayout
from nemo_sr.update import ParamShard, StepOptions

LIBRARY = Path(__file__).with_name("_cpu.so")
SOURCES = Path(__file__).with_name("cpu")
PATHS = ("portable", "avx2", "avx512")
"""The instruction sets, slowest first, in the library's numbering."""

_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


# A forked child has none of OpenMP's threads, and would wait for them.
os.register_at_fork(after_in_child=_after_fork)


class _Options(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_float)
            for name in (
                "beta1",
                "one_minus_beta1",
                "beta2",
                "one_minus_beta2",
                "inverse_root_correction2",
                "eps",
                "decay",
                "step_size",
                "grad_scale",
            )
        ),
        ("step", ctypes.c_uint32),
        ("stochastic_exp_avg", ctypes.c_int32),
        ("stochastic_exp_avg_sq", ctypes.c_int32),
    ]


@dataclass(frozen=True)
class _Library:
    step: ctypes._CFuncPtr  # type: ignore[name-defined]
    paths: tuple[str, ...]
    """What this processor can run, slowest first."""


def why_not_cpu() -> str | None:
    """Say why the native CPU backend cannot run here; None if it can."""
    library = load(LIBRARY)
    return library if isinstance(library, str) else None


@cache
def load(path: Path) -> _Library | str:
    """Load a build of the library, or say why that is impossible."""
    advice = "Install nemo_sr again on a machine that has a C compiler (gcc or clang)."
    if not path.is_file():
        return f"the C library of nemo_sr was not built when nemo_sr was installed. {advice}"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"the C library of nemo_sr cannot be loaded: {error}. {advice}"
    library.nemo_sr_sources.restype = library.nemo_sr_path.restype = ctypes.c_char_p
    built_from = library.nemo_sr_sources().decode()
    if SOURCES.is_dir() and built_from != digest_of_sources():
        return f"the C library of nemo_sr was built from other sources than those in {SOURCES}. {advice}"
    step = library.nemo_sr_step
    step.restype = None
    step.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.POINTER(_Options),
        ctypes.c_int,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    return _Library(step, tuple(name for number, name in enumerate(PATHS) if library.nemo_sr_path(number)))


def digest_of_sources() -> str:
    """Digest of the C sources, which setup.py compiles into the library: an editable install may fall behind them."""
    files = sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h"))
    return blake2b(b"".join(path.read_bytes() for path in files), digest_size=8).hexdigest()


@cache
def _thread_pool() -> int | None:
    """Address of GOMP_parallel in the OpenMP that torch itself runs on, whose threads are awake already."""
    try:
        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(torch_cpu.GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


@lru_cache(maxsize=1 << 14)
def _pieces(layouts: tuple[ShardLayout, ...]) -> tuple[array[int], int]:
    """Lay the layouts out for C (see struct shard in step.c); with the number of their elements."""
    words = array("q")
    for layout in layouts:
        offset, levels = layout.levels()
        words.extend((layout.start, layout.numel, offset, len(levels), *(word for level in levels for word in level)))
    return words, sum(layout.numel for layout in layouts)


def adamw_sr_cpu_(shards: Sequence[ParamShard], options: StepOptions) -> None:
    """Take one AdamW-SR step in place: the native CPU backend.

    Args:
        shards: The parameters, all on the CPU.
        options: What they have in common.

    Raises:
        RuntimeError: the backend cannot run here.
        TypeError: a dtype is not one of those of :class:`nemo_sr.update.ParamShard`.
        ValueError: a tensor is not contiguous, not on the CPU, or of another size than its layouts.

    Source:
        :func:`nemo_sr.update.adamw_sr_`: the same bits.
    """
    step_on(shards, options)


def step_on(
    shards: Sequence[ParamShard],
    options: StepOptions,
    *,
    path: str | None = None,
    trace: Sequence[tuple[Tensor, Tensor, Tensor]] | None = None,
    own_threads: bool = False,
    library: Path = LIBRARY,
) -> None:
    """Take a step as :func:`adamw_sr_cpu_` does, with a say in how; for tests and benchmarks.

    Args:
        shards: The parameters.
        options: What they have in common.
        path: One of PATHS; the fastest by default.
        trace: Three FP32 tensors for each shard, which receive weight, exp_avg and exp_avg_sq before they are rounded
            (BF16 parameters only).
        own_threads: Start threads even where those of torch are at hand.
        library: The build to use.

    Raises:
        RuntimeError, TypeError, ValueError: as :func:`adamw_sr_cpu_`.
    """
    loaded = load(library)
    if isinstance(loaded, str):
        raise RuntimeError(f'the native CPU backend cannot run: {loaded} backend="reference" gives the same bits.')
    path = path or loaded.paths[-1]
    if path not in loaded.paths:
        raise RuntimeError(f"path must be one that this processor runs, {loaded.paths}; got {path!r}.")
    words: list[int] = []
    first = 0
    alive = []  # what the addresses below point to
    for number, shard in enumerate(shards):
        float32, float32_grad = _check(shard)
        pieces, numel = _pieces(shard.layouts)
        if numel != shard.weight.numel():
            raise ValueError(
                f"a shard must hold as many elements as its layouts; got {shard.weight.numel()} and {numel}. "
                "Correct start and stop."
            )
        alive.append(pieces)
        words += (
            first,
            numel,
            shard.weight.data_ptr(),
            shard.grad.data_ptr(),
            shard.exp_avg.data_ptr(),
            shard.exp_avg_sq.data_ptr(),
            shard.key,
            pieces.buffer_info()[0],
            float32,
            float32_grad,
            *((0, 0, 0) if trace is None else (tensor.data_ptr() for tensor in trace[number])),
        )
        first += numel
    table = array("Q", words)
    pool = None if own_threads or _forked else _thread_pool()
    loaded.step(
        table.buffer_info()[0],
        len(shards),
        _options(options),
        PATHS.index(path),
        torch.get_num_threads(),
        pool,
    )


def _options(options: StepOptions) -> _Options:
    s = options.scalars
    scale = float(s.grad_scale)
    return _Options(
        s.beta1,
        s.one_minus_beta1,
        s.beta2,
        s.one_minus_beta2,
        s.inverse_root_correction2,
        s.eps,
        s.decay,
        s.step_size,
        -scale if options.maximize else scale,
        options.step & 0xFFFFFFFF,
        options.exp_avg_rounding == "stochastic",
        options.exp_avg_sq_rounding == "stochastic",
    )


def _check(shard: ParamShard) -> tuple[bool, bool]:
    """Check what the library takes on trust; tell whether the weight is FP32, and whether the gradient is."""
    weight, grad = shard.weight, shard.grad
    dtype, numel = weight.dtype, weight.numel()
    for tensor in (weight, grad, shard.exp_avg, shard.exp_avg_sq):
        if not (tensor.is_cpu and tensor.is_contiguous() and tensor.numel() == numel):
            raise ValueError(
                f'backend="cpu" needs contiguous tensors of one size on the CPU; got one of {tensor.numel()} elements '
                f"on {tensor.device} with strides {tensor.stride()} beside a weight of {numel}. "
                'Use backend="auto" for parameters on other devices.'
            )
    if (
        dtype not in (torch.bfloat16, torch.float32)
        or not dtype == shard.exp_avg.dtype == shard.exp_avg_sq.dtype
        or grad.dtype not in (torch.bfloat16, torch.float32)
    ):
        raise TypeError(
            "weight and moments must be of one dtype, bfloat16 or float32, and so must the gradient be either; got "
            f"{dtype}, {shard.exp_avg.dtype}, {shard.exp_avg_sq.dtype} and {grad.dtype}. Convert them."
        )
    return dtype == torch.float32, grad.dtype == torch.float32
