# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""AdamWSR in NeMo's real registry, and in a bare NeMo model trained by Lightning."""

import lightning.pytorch as pl
import pytest
import torch
from nemo.core.classes import ModelPT
from nemo.core.optim import get_optimizer, optimizer_with_main_params, parse_optimizer_args
from omegaconf import OmegaConf
from torch import nn

import nemo_sr
from nemo_sr import AdamWSR


@pytest.fixture(autouse=True)
def registered():
    nemo_sr.register()
    nemo_sr.register()


def test_get_optimizer_finds_the_class():
    partial = get_optimizer("adamw_sr", lr=1e-3, seed=3)
    optimizer = partial([nn.Parameter(torch.ones(3).bfloat16())])
    assert type(optimizer) is AdamWSR
    assert optimizer.param_groups[0]["seed"] == 3


@pytest.mark.parametrize("name", ["auto", "adamw_sr_params", "AdamWSR_params"])
def test_parse_optimizer_args_resolves_the_parameters(name):
    arguments = parse_optimizer_args("adamw_sr", OmegaConf.create({"name": name, "params": {"lr": 2e-3, "seed": 4}}))
    assert arguments["lr"] == 2e-3
    assert arguments["seed"] == 4
    assert arguments["exp_avg_sq_rounding"] == "stochastic"
    optimizer = get_optimizer("adamw_sr", **arguments)([nn.Parameter(torch.ones(3).bfloat16())])
    assert optimizer.param_groups[0]["lr"] == 2e-3


def test_the_parameters_are_those_of_the_class():
    import inspect

    arguments = parse_optimizer_args("adamw_sr", OmegaConf.create({"name": "auto", "params": {"lr": 1e-3}}))
    signature = inspect.signature(AdamWSR).parameters
    assert arguments == {name: parameter.default for name, parameter in signature.items() if name != "params"}


class TinyModel(ModelPT):
    """A linear model of y = x @ w, in BF16."""

    def __init__(self, cfg, trainer):
        super().__init__(cfg=cfg, trainer=trainer)
        self.linear = nn.Linear(8, 1).bfloat16()
        self.losses = []

    def training_step(self, batch, _):
        x, y = batch
        loss = ((self.linear(x.bfloat16()).float() - y) ** 2).mean()
        self.losses.append(loss.item())
        return loss

    def setup_training_data(self, train_data_config):
        x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
        data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
        self._train_dl = torch.utils.data.DataLoader(data, batch_size=32)

    def setup_validation_data(self, val_data_config):
        pass

    @classmethod
    def list_available_models(cls):
        return []


def test_a_bare_nemo_model_trains_with_it(tmp_path):
    cfg = OmegaConf.create(
        {
            "train_ds": {},
            "optim": {
                "name": "adamw_sr",
                "lr": 0.05,
                "seed": 7,
                "sched": {"name": "CosineAnnealing", "warmup_steps": 4, "min_lr": 1e-3},
            },
        }
    )
    trainer = pl.Trainer(
        max_steps=80,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
    )
    model = TinyModel(cfg, trainer)
    trainer.fit(model)
    optimizer = trainer.optimizers[0]
    assert type(optimizer) is AdamWSR
    assert optimizer.param_groups[0]["seed"] == 7
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)
    assert int(optimizer.state[model.linear.weight]["step"]) == 80
    assert model.losses[-1] < 0.05 * model.losses[0]


def test_nemo_1s_wrapper_with_fp32_masters_is_refused_before_it_trains(monkeypatch):
    # The wrapper of MegatronGPTModel under O2. It asks for a GPU and for Apex, and uses neither until it steps.
    monkeypatch.setattr(optimizer_with_main_params, "HAVE_APEX", True)
    weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    weight.type = lambda: "torch.cuda.BFloat16Tensor"
    torchs = torch.optim.AdamW([weight])
    optimizer_with_main_params.MainParamsOptimizerWrapper(torchs)
    assert torchs.param_groups[0]["params"][0].dtype == torch.float32
    with pytest.raises(ValueError, match=r"torch\.float32 \(8,\) is none.*NeMo 1\.x, O2"):
        optimizer_with_main_params.MainParamsOptimizerWrapper(AdamWSR([("weight", weight)], lr=1e-3))
