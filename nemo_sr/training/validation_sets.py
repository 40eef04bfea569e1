# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Which sets a run validates on beside its own."""

from __future__ import annotations

from omegaconf import DictConfig


def validation_sets(data: DictConfig) -> dict[str, str]:
    """Return the paths of the sets of ``data.validation_sets`` by their names, which ``check_values`` has checked."""
    given = list(data.validation_sets or [])
    return dict(zip(given[0::2], given[1::2], strict=True))
