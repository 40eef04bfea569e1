# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""How a rank leaves its process groups."""

import pytest
import torch.distributed as dist

import nemo_sr.megatron
from nemo_sr.training.config import compose_config


@pytest.mark.parametrize("failed", [False, True])
def test_all_ranks_meet_before_the_process_groups_go_unless_one_failed(failed, monkeypatch):
    from lightning.pytorch.accelerators import CPUAccelerator
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from megatron.core import parallel_state

    from nemo_sr.training.strategy import MegatronStrategy

    called = []

    def watch(name):
        original = getattr(dist, name)
        monkeypatch.setattr(dist, name, lambda *args: (called.append(name), original(*args)))

    with nemo_sr.megatron.cpu_platform():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            parallel_state.initialize_model_parallel()
            strategy = MegatronStrategy(compose_config([]).model)
            strategy.cluster_environment, strategy.accelerator = LightningEnvironment(), CPUAccelerator()
            watch("barrier")
            watch("destroy_process_group")
            if failed:
                strategy.on_exception(RuntimeError())
            strategy.teardown()
            assert called[:2] == ([] if failed else ["barrier", "destroy_process_group"])
        finally:
            if dist.is_initialized():
                parallel_state.destroy_model_parallel()
                dist.destroy_process_group()
