# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""NeMo 2's Trainer, MegatronStrategy and MegatronOptimizerModule, in an environment that has NeMo 2."""

import json
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from gloo_ranks import run_ranks

from nemo_sr.data.indexed import choose_type, write_index
from nemo_sr.megatron.versions import is_since

PROGRAM = Path(__file__).with_name("nemo2_program.py")
try:
    VERSION = metadata.version("nemo_toolkit")
except metadata.PackageNotFoundError:
    VERSION = "none"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not VERSION.startswith("2."),
        reason=f"needs an environment of nemo_toolkit 2 (docs/programs.md); {VERSION} here",
    ),
]
# The form of the optimizer's state that NeMo does not take by itself.
OTHER = {"ckpt_optim_fully_reshardable": True} if is_since("2.7", VERSION) else {"ckpt_parallel_save_optim": False}
CASES = {
    "one rank": (1, {}, True),
    "DP 2": (2, {}, True),
    "DP 2, the other form": (2, OTHER, True),
    "DP 2, every rank steps all": (2, {}, False),
    "TP 2": (2, {"tensor_model_parallel_size": 2}, True),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Documents in which a byte mostly follows from the one before; none is one of the tokenizer's special ids."""
    prefix = tmp_path_factory.mktemp("corpus") / "steps"
    draw = np.random.default_rng(0)
    documents = np.stack([draw.integers(200) + np.cumsum(draw.integers(1, 3, size=500)) for _ in range(40)])
    dtype = choose_type(256)
    (32 + documents % 200).astype(dtype).tofile(f"{prefix}.bin")
    write_index(prefix.with_suffix(".idx"), np.full(40, 500, np.int32), dtype)
    return prefix


def run(num_ranks, corpus, folder, directory, **options):
    """Return what each rank has found."""
    directory.mkdir()
    output = directory / "found.json"
    run_ranks(
        PROGRAM,
        num_ranks,
        *map(str, (corpus, folder, output, json.dumps(options))),
        directory=directory,
        timeout=200,
    )
    return json.loads(output.read_text())


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_in_the_bits_of_one_that_did_not_stop(corpus, tmp_path, case):
    num_ranks, strategy, distributed = CASES[case]
    options = {"steps": 10, "strategy": strategy, "distributed": distributed}
    folder = tmp_path / "checkpoint"
    whole = run(num_ranks, corpus, folder, tmp_path / "whole", **options, save_at=5, resume=False)
    resumed = run(num_ranks, corpus, folder, tmp_path / "resumed", **options, save_at=None, resume=True)
    assert whole[0]["losses"][-1] < whole[0]["losses"][0] - 0.2
    for first, second in zip(whole, resumed, strict=True):
        assert first["chain"] == "SRChainedOptimizer"
        assert first["types"] == ["torch.bfloat16"]
        assert second["losses"] == first["losses"][5:]
        assert {key: second[key] for key in second if key != "losses"} == {k: first[k] for k in first if k != "losses"}
        assert second["steps"] == [10]
        assert second["seeds"] == [3]
