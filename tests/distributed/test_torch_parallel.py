# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""AdamWSR under torch's own parallelism, on real gloo ranks: DDP, FSDP2, and DCP into another world size."""

from pathlib import Path

from gloo_ranks import run_ranks

SCRIPT = Path(__file__).parent / "torch_rank.py"


def test_ddp_fsdp2_and_dcp(tmp_path):
    folder = tmp_path / "checkpoint"
    run_ranks(SCRIPT, 2, str(folder), directory=tmp_path, timeout=120)
    run_ranks(SCRIPT, 1, str(folder), directory=tmp_path, timeout=120)
