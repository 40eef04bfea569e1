# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The step's backends, behind one signature (:data:`nemo_sr.update.Backend`): a predicate and a choice."""

from __future__ import annotations

from nemo_sr.update import Backend, adamw_sr_

BACKENDS = ("auto", "reference", "cpu", "triton")


def choose_backend(name: str) -> Backend:
    """Return the step of the backend of that name.

    Args:
        name: One of "auto", "reference", "cpu" (native C) and "triton". "auto" takes the fastest that can run.

    Returns:
        The step's function.

    Raises:
        ValueError: no backend has that name.
        RuntimeError: the backend cannot run here; never a silent fallback.
    """
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {name!r}. Choose one of them.")
    if name in ("cpu", "triton"):
        raise RuntimeError(
            f"backend={name!r} was asked for, but this version of nemo_sr has no {name} kernel. "
            'Use backend="auto" or backend="reference": they give the same bits.'
        )
    return adamw_sr_
