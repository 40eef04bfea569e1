# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Blends of data sets keep their shares, and named validation sets are read whole, beside the run's own."""

import numpy as np
import pytest
from omegaconf import OmegaConf
from toy import overrides, write_toy_data

from nemo_sr.training.config import ConfigError, compose_config
from nemo_sr.training.datamodule import GPTDataModule
from nemo_sr.training.resume import plan_data
from nemo_sr.training.tokenizer import GPT2BPETokenizer
from nemo_sr.training.validate import check_config, tokenizer_files
from nemo_sr.training.weights import one_process


@pytest.fixture(scope="module", autouse=True)
def ranks():
    with one_process(on_cpu=True):
        yield


@pytest.fixture(scope="module")
def other_prefix(tmp_path_factory):
    return write_toy_data(tmp_path_factory.mktemp("other"), num_documents=60)


def datasets(toy_prefix, folder, *words):
    config = compose_config([*overrides(toy_prefix, folder / "run", max_steps=100), *words])
    check_config(config)
    tokenizer = GPT2BPETokenizer(*tokenizer_files(config.data, config.model).values())
    module = GPTDataModule(config, tokenizer, plan_data(config), 0)
    module.setup()
    return module.datasets


@pytest.mark.parametrize("share", [0.3, 0.75])
def test_a_blend_has_its_shares_in_every_stretch(share, toy_prefix, other_prefix, tmp_path):
    blend = f"data.data_prefix=[{share},{toy_prefix},{1 - share},{other_prefix}]"
    train, valid = datasets(toy_prefix, tmp_path, blend)
    for dataset in (train, valid):
        assert len(dataset) >= 32
        of_first = np.cumsum(np.asarray(dataset.dataset_index) == 0)
        expected = share * np.arange(1, len(of_first) + 1)
        assert np.abs(of_first - expected).max() <= 1


def test_paths_alone_are_blended_by_their_sizes(toy_prefix, other_prefix, tmp_path):
    train, _ = datasets(toy_prefix, tmp_path, f"data.data_prefix=[{toy_prefix},{other_prefix}]")
    share = (np.asarray(train.dataset_index) == 0).mean()
    assert share == pytest.approx(300 / 360, abs=0.05)  # documents, whose lengths vary


def test_named_sets_are_read_whole_beside_the_runs_own(toy_prefix, other_prefix, tmp_path):
    words = f"data.validation_sets=[same,{toy_prefix},other,{other_prefix}]"
    plain = datasets(toy_prefix, tmp_path)
    train, valid, same, other = datasets(toy_prefix, tmp_path, words)
    for dataset, expected in zip((train, valid), plain, strict=True):
        assert np.array_equal(dataset[5]["tokens"], expected[5]["tokens"])
    assert [len(dataset.indices) for dataset in (valid, same, other)] == [15, 300, 60]
    assert not np.array_equal(same[5]["tokens"], other[5]["tokens"])


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("[a/b,PREFIX]", r"names \(of letters, .* it is \['a/b', "),
        ("[a,PREFIX,a,PREFIX]", r"each once\) and paths in turn; it is "),
        ("[a,PREFIX,b]", r"and paths in turn; it is "),
        ("[a,/nowhere/set]", r"^data\.validation_sets: .*/nowhere/set\.idx"),
    ],
)
def test_sets_that_cannot_be_read_are_refused(sets, message, toy_prefix, tmp_path):
    words = overrides(toy_prefix, tmp_path, max_steps=20)
    with pytest.raises(ConfigError, match=message):
        check_config(compose_config([*words, f"data.validation_sets={sets.replace('PREFIX', str(toy_prefix))}"]))


def test_a_configuration_keeps_the_form_of_its_sets(toy_prefix, tmp_path):
    words = overrides(toy_prefix, tmp_path, max_steps=20)
    config = compose_config([*words, f"data.validation_sets=[a,{toy_prefix}]"])
    assert OmegaConf.to_container(config.data)["validation_sets"] == ["a", str(toy_prefix)]
