# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks that compare the Megatron models with transformers'."""

import json
from pathlib import Path

import torch
from gloo_ranks import run_ranks
from hugging_face import compute, describe
from parity_rank import VARIANTS


def run_parity(num_ranks, directory):
    """Return the distances by layout and variant, and under "parameters" the number of every configuration's."""
    references, output = directory / "references.pt", directory / "found.json"
    torch.save({name: compute(describe(kind, **changes)) for name, (kind, changes) in VARIANTS.items()}, references)
    script = Path(__file__).with_name("parity_rank.py")
    run_ranks(script, num_ranks, str(references), str(output), directory=directory, timeout=300)
    return json.loads(output.read_text())
