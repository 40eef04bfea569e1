# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The configured models: of the published sizes, and with a source for every value."""

import re

import pytest
import torch
from hugging_face import configure
from omegaconf import OmegaConf

from nemo_sr.models.description import ModelDescription
from nemo_sr.training.config import compose_config, find_conf
from nemo_sr.training.regimes import scaled_rates

CONF = find_conf()
SIZES = {
    # transformers counts these of the published models.
    "gpt2_350m": 354_823_168,
    "gpt2_770m": 774_030_080,
    "gpt_neo_125m": 125_198_592,
    "gpt_neo_350m": 355_798_016,
    "gpt_neo_1.3b": 1_315_575_808,
    "gpt_neo_2.7b": 2_651_307_520,
    "gpt_neo_6.7b": 6_658_011_136,
}
SOURCE = r"\[(paper|HF|GPT-3|ours)\]"


@pytest.mark.parametrize("name", SIZES)
def test_a_configured_model_has_the_parameters_of_hugging_faces(name):
    from transformers import AutoModelForCausalLM

    config = compose_config([f"--config-name={name}"])
    description = ModelDescription.from_config(config.model, vocab_size=50257)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(configure(description))
    assert description.num_parameters == sum(param.numel() for param in model.parameters()) == SIZES[name]


@pytest.mark.parametrize("name", SIZES)
def test_every_value_has_a_source(name):
    for file in (CONF / f"{name}.yaml", CONF / "model" / f"{name}.yaml"):
        assert _unsourced(file) == []
    model = OmegaConf.load(CONF / "model" / f"{name}.yaml")
    keys = {"architecture", "num_layers", "hidden_size", "num_attention_heads", "encoder_seq_length"}
    keys |= {"micro_batch_size", "global_batch_size"} | ({"window_size"} if name.startswith("gpt_neo") else set())
    assert set(model) == keys
    optim = OmegaConf.load(CONF / f"{name}.yaml").optim
    assert set(optim) == {"lr", "sr_lr_scale", "betas", "eps", "weight_decay", "sched"}
    assert set(optim.sched) == {"name", "warmup_steps", "min_lr"}


def _unsourced(file):
    """Return the lines that set a value and name no source, on the same line or in a comment above it."""
    found, comment = [], ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if re.match(r"\s*(?!name: gpt)\w+: ", line) and not re.search(SOURCE, comment + line):
            found.append(line)
        comment = line if line.startswith("  #") else ""
    return found


@pytest.mark.parametrize("name", SIZES)
def test_sr_gets_two_to_four_times_the_learning_rate_of_mixed_precision_and_the_same_minimum(name):
    ours, mixed = (compose_config([f"--config-name={name}", f"optim.name={n}"]).optim for n in ("adamw_sr", "adamw"))
    assert 2 <= scaled_rates(ours)[0] / scaled_rates(mixed)[0] <= 4
    assert ours.sched.min_lr == mixed.sched.min_lr == pytest.approx(scaled_rates(mixed)[0] / 10)


def test_the_350m_models_have_the_papers_learning_rates():
    for name in ("gpt2_350m", "gpt_neo_350m"):
        for optimizer, rate in {"adamw_sr": 7e-4, "adamw": 3e-4, "adamw_amp": 3e-4}.items():
            optim = compose_config([f"--config-name={name}", f"optim.name={optimizer}"]).optim
            assert scaled_rates(optim)[0] == pytest.approx(rate, rel=1e-6)
