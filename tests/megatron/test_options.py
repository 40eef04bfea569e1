# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Options of adamw_sr by attributes of OptimizerConfig, and by environment variables."""

import pytest
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig

from nemo_sr.megatron.options import VARIABLES, SROptions, check_gradients, read_options

ALLOWED = {
    "sr_seed": ("a whole number in", [0, 1, (1 << 64) - 1], ["-1", str(1 << 64), "1.0", "1e3", "0x1", "", "1_0", "²"]),
    "sr_exp_avg_rounding": ("nearest, stochastic", ["nearest", "stochastic"], ["", "up", "Nearest", "nearest "]),
    "sr_exp_avg_sq_rounding": ("nearest, stochastic", ["nearest", "stochastic"], ["", "up", "SR"]),
    "sr_grad_dtype": ("bf16, fp32", ["bf16", "fp32"], ["", "float32", "fp16", "BF16"]),
}


def config(**attributes):
    made = OptimizerConfig(optimizer="adamw_sr", lr=1e-3, bf16=True)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def value_of(attribute, options):
    return getattr(options, attribute.removeprefix("sr_"))


def test_every_option_has_a_case_and_a_default():
    assert ALLOWED.keys() == VARIABLES.keys()
    options = read_options(config(), {VARIABLES["sr_seed"]: "0"})
    assert options == read_options(config(), {}) == SROptions(0, "nearest", "stochastic", None)
    assert options.sources[:2] == (
        "seed=0 (the environment variable NEMO_SR_SEED)",
        "exp_avg_rounding=nearest (default)",
    )
    assert read_options(config(**dict.fromkeys(VARIABLES)), {}) == read_options(config(), {})


@pytest.mark.parametrize("attribute", VARIABLES)
def test_attribute_and_variable_say_the_same_and_the_attribute_wins(attribute):
    _, good, bad = ALLOWED[attribute]
    variable = VARIABLES[attribute]
    for value in good:
        assert value_of(attribute, read_options(config(**{attribute: value}), {})) == value
        assert value_of(attribute, read_options(config(), {variable: str(value)})) == value
    for lost in (str(good[0]), bad[0]):
        assert value_of(attribute, read_options(config(**{attribute: good[-1]}), {variable: lost})) == good[-1]


@pytest.mark.parametrize("attribute", VARIABLES)
def test_a_bad_value_is_refused_with_its_name_what_is_allowed_and_what_was_given(attribute):
    allowed, _, bad = ALLOWED[attribute]
    for value in bad:
        for source, given in ((VARIABLES[attribute], {}), (attribute, {attribute: value})):
            with pytest.raises(ValueError) as refusal:
                read_options(config(**given), {} if given else {VARIABLES[attribute]: value})
            assert all(part in str(refusal.value) for part in (source, allowed, repr(value))), refusal.value


@pytest.mark.parametrize("value", [1.0, True, [1]])
def test_a_seed_of_another_type_is_refused(value):
    with pytest.raises(ValueError, match=r"OptimizerConfig\.sr_seed must be a whole number"):
        read_options(config(sr_seed=value), {})


def test_a_misspelt_attribute_is_refused():
    with pytest.raises(ValueError, match="it has sr_exp_avg_roundin"):
        read_options(config(sr_exp_avg_roundin="nearest"), {})


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_gradients_of_another_type_are_refused(dtype):
    for in_fp32 in (False, True):
        ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=in_fp32)
        check_gradients(read_options(config(), {}), ddp_config)
        if in_fp32 == (dtype == "fp32"):
            check_gradients(read_options(config(sr_grad_dtype=dtype), {}), ddp_config)
            continue
        with pytest.raises(ValueError, match=rf"must be {dtype}, .*\(grad_reduce_in_fp32={not in_fp32}\)"):
            check_gradients(read_options(config(sr_grad_dtype=dtype), {}), ddp_config)
