# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What nemo_sr.planning says of a run, against what the run held."""

from dataclasses import asdict

import pytest
from toy import VOCAB_SIZE

from nemo_sr.planning.planner import Planner
from nemo_sr.planning.stage import Layout, ModelFacts
from nemo_sr.training.config import compose_config
from nemo_sr.training.regimes import find_regime


def check_planned_bytes(words, ranks, *, rel=0.1):
    """Check every rank of a run on the toy data: state to the byte, activations and communication within `rel`."""
    config = compose_config(words)
    layout, regime = Layout.from_config(config), find_regime(config.optim)
    planner = Planner(ModelFacts(config.model, VOCAB_SIZE, fused_attention=False), config.model.global_batch_size)
    for rank, held in enumerate(ranks):
        # Ranks are numbered TP first, then DP, then PP.
        data_rank = rank // layout.tensor_parallel % layout.data_parallel
        stage = rank // (layout.tensor_parallel * layout.data_parallel)
        planned = planner.rank_bytes(layout, stage, regime, regime.grad_dtypes[0], data_rank)
        assert asdict(planned.state) == {kind: size for kind, size in held.items() if kind != "peak"}
        assert planned.activations + planned.communication == pytest.approx(held["peak"], rel=rel)
