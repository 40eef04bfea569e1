# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
import json
import re
import shutil

import pytest
from omegaconf import OmegaConf
from toy import overrides

from nemo_sr.data.vocabulary import Vocabulary
from nemo_sr.experiments.strategies.sweep import STRATEGIES, read_sweep
from nemo_sr.models.description import ModelDescription
from nemo_sr.training.config import ConfigError, compose_config, find_conf, rewrite_argv
from nemo_sr.training.regimes import REGIMES, describe_regimes, find_regime
from nemo_sr.training.validate import check_config, check_data, check_layout, check_schedule, prefixes
from nemo_sr.training.values import SCHEDULES, check_values

CONF = find_conf()
PRIMARY = sorted(path.stem for path in CONF.glob("*.yaml"))
CHOICES = sorted((path.parent.name, path.stem) for path in CONF.glob("*/*.yaml") if path.parent.name != "experiment")
EXPERIMENTS = sorted(path.stem for path in CONF.glob("experiment/*.yaml"))


def instantiate(config):
    """Make of a configuration what can be made of it without ranks and data, after the checks."""
    import torch

    from nemo_sr.models.gpt import transformer_config
    from nemo_sr.training.optim import build_schedule, optimizer_config

    check_values(config)
    check_schedule(config.optim, config.trainer.max_steps)
    check_layout(config)
    regime = find_regime(config.optim)
    dtype = torch.bfloat16 if regime.weights == "bf16" else torch.float32
    built = transformer_config(config.model, on_cpu=True, params_dtype=dtype, autocast=regime.autocast)
    model = ModelDescription.from_config(config.model, vocab_size=4096)
    assert (built.num_layers, built.hidden_size) == (model.num_layers, model.hidden_size)
    optimizer = optimizer_config(config.optim, clip_grad=config.trainer.gradient_clip_val, default_seed=1)
    assert (optimizer.optimizer == "adamw_sr") == regime.has_own_optimizer
    parameter = torch.nn.Parameter(torch.zeros(1))
    rates = torch.optim.SGD([{"params": [parameter], "lr": optimizer.lr}])
    build_schedule(rates, config.optim.sched, config.trainer.max_steps)
    warmup = config.optim.sched.warmup_steps
    assert rates.param_groups[0]["lr"] == pytest.approx(optimizer.lr / (warmup + 1))


NEEDS = {
    "adamw_amp": {"sequence_parallel": False},  # refused together, see below
    "gpt_tiny": {"global_batch_size": 64},  # its 16 samples do not divide over eight ranks
}


def check_choice(primary, group, choice):
    needs = NEEDS.get(choice, {})
    more = [f"model.{key}={value}" for key, value in needs.items()]
    config = compose_config([f"--config-name={primary}", f"{group}={choice}", *more])
    chosen = OmegaConf.load(CONF / group / f"{choice}.yaml")
    own = OmegaConf.load(CONF / f"{primary}.yaml").get(group) or {}
    arrived = {key: config[group][key] for key in chosen if key not in (*own, *needs)}
    assert arrived == {key: chosen[key] for key in arrived}
    assert len(arrived) > 0
    instantiate(config)


@pytest.mark.parametrize("name", PRIMARY)
def test_every_primary_config_instantiates(name):
    config = compose_config([f"--config-name={name}"])
    assert find_regime(config.optim).name == "adamw_sr"
    instantiate(config)


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_group_file_instantiates_with_the_smallest_and_the_largest_config(group, choice):
    for primary in ("gpt_tiny_cpu", "gpt_neo_6.7b"):
        check_choice(primary, group, choice)


@pytest.mark.slow
@pytest.mark.parametrize("primary", PRIMARY)
def test_every_group_file_instantiates_with_every_config(primary):
    for group, choice in CHOICES:
        check_choice(primary, group, choice)


def test_every_file_of_conf_is_a_primary_config_or_a_groups():
    found = {path.relative_to(CONF).with_suffix("").as_posix() for path in CONF.rglob("*.yaml")}
    assert found == {*PRIMARY, *("/".join(choice) for choice in CHOICES), *(f"experiment/{n}" for n in EXPERIMENTS)}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_instantiates_with_every_strategy(name):
    points = [point for point in read_sweep(name) if point.settings["model.seed"] == "1"]
    assert {point.settings["optim"] for point in points} == set(STRATEGIES)
    primary = (CONF / "experiment" / f"{name}.yaml").read_text().partition("--config-name=")[2].split()[0].rstrip(".")
    for point in [*points[: len(STRATEGIES)], points[-1]]:
        config = compose_config([f"--config-name={primary}", f"+experiment={name}", *point.words])
        assert (config.optim.lr, config.optim.sr_lr_scale) == (float(point.settings["optim.lr"]), 1.0)
        assert config.optim.sched.min_lr < config.optim.lr
        instantiate(config)


def test_the_softmax_is_fused_on_a_gpu_only_where_the_kernels_are():
    import importlib.util

    import torch

    from nemo_sr.models.gpt import transformer_config

    names = ("scaled_upper_triang_masked_softmax_cuda", "scaled_masked_softmax_cuda")
    kernels = [importlib.util.find_spec(name) for name in names]
    built = transformer_config(compose_config([]).model, on_cpu=False, params_dtype=torch.bfloat16)
    assert built.masked_softmax_fusion == (None not in kernels)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("model.optim.lr=1", "optim.lr=1"),
        ("+model.optim.lr=1", "optim.lr=1"),
        ("++model.optim.sched.min_lr=1", "optim.sched.min_lr=1"),
        ("~model.optim.lr", "~optim.lr"),
        ("model.optim=adamw", "optim=adamw"),
        ("model.data.data_prefix=x", "data.data_prefix=x"),
        ("model.optimal=1", "model.optimal=1"),
        ("optim.lr=1", "optim.lr=1"),
        ("exp_manager.name=model.optim.lr", "exp_manager.name=model.optim.lr"),
        ("--config-name=gpt_tiny_cpu", "--config-name=gpt_tiny_cpu"),
    ],
)
def test_nemos_older_spelling_is_rewritten(given, expected):
    assert rewrite_argv([given]) == [expected]


def test_model_optim_name_picks_the_strategy():
    assert compose_config(rewrite_argv(["+model.optim.name=adamw"])).optim.name == "adamw"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optim.lrr=1"], r"'optim\.lrr' is none of them\. Near it: optim\.lr\b"),
        (["+optim.lrr=1"], r"'optim\.lrr' is none of them\. Near it: optim\.lr\b"),
        (["model.optim.lrr=1"], r"'optim\.lrr' is none of them"),
        (["optmi.lr=1"], r"'optmi\.lr' is none of them\. Near it: optim\.lr\b"),
        (["optimizer=adamw"], r"'optimizer' is none of them\. Near it: optim\b"),
        (
            ["optim=adam_sr"],
            r"'adam_sr' is not there\. Use one of: adamw, adamw_amp, adamw_bf16, adamw_fp32, adamw_sr, ",
        ),
        (["--config-name=gpt_neo"], r"'gpt_neo' is not there\. Use one of: gpt2_350m, .*, gpt_tiny_cpu\.$"),
        (["trainer=1"], r"'1' is not there\. Use one of: cpu, gpu\."),
        (["trainer=[1]"], r"'\[1\]' is not there\. Use one of: cpu, gpu\."),
        (["optim.sched=3"], r"optim\.sched must be a group of keys; it is '3'"),
        (["optim.sched={nam: 3}"], r"'optim\.sched\.nam' is none of them\. Near it: optim\.sched\.name\b"),
        (["trainer.max_steps=${optim.name}"], "trainer.max_steps must be a whole number; it is 'adamw_sr'"),
        (["data.splits_string=9,1"], r"""Write 'data\.splits_string="9,1"' for a text"""),
        (["optim.lr =1"], r"without spaces around '='"),
    ],
)
def test_what_hydra_refuses_is_reworded(words, message):
    with pytest.raises(ConfigError, match=message):
        compose_config(rewrite_argv(words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optim.name=adam"], "one of adamw_sr, adamw_bf16, adamw, adamw_amp, adamw_fp32; it is 'adam'"),
        (["optim.name=adamw", "optim.exp_avg_sq_rounding=nearest"], "belongs to optim.name=adamw_sr"),
        (
            ["optim.name=adamw_amp", "model.tensor_model_parallel_size=2", "model.sequence_parallel=true"],
            "must be false with optim.name=adamw_amp",
        ),
        (["optim=adamw_sr_paper", "optim.name=adamw"], "belongs to optim.name=adamw_sr"),
        (["optim.name=adamw", "optim.grad_dtype=bf16"], "must be fp32 with optim.name=adamw; it is 'bf16'"),
        (["model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2"], r"2 \* 2 = 4 and .* = 2"),
        (["model.sequence_parallel=7"], r"sequence_parallel must be true or false; it is '7'\. Give"),
        (["trainer.max_time='12:00:00'"], r"max_time must be a time above 0 as DD:HH:MM:SS.* it is '12:00:00'"),
        (["model.rampup_batch_size=[8,4,64]"], r"multiples of .* = 4 \* 2 = 8; it is \[8, 4, 64\]"),
        (["model.rampup_batch_size=[16,8,64]"], r"must begin below model.global_batch_size=16"),
        (["model.rampup_batch_size=[8,16,64]"], r"reach it in whole increments"),
        (
            ["model.activations_checkpoint_method=block"],
            r"unless model.activations_checkpoint_granularity is full;",
        ),
        (
            ["model.activations_checkpoint_granularity=full", "model.activations_checkpoint_num_layers=3"],
            r"at most the layers of a pipeline stage; they are 3 and 2",
        ),
        (["trainer.devices=3"], r"model.global_batch_size must be a multiple .* 4 \* 3 = 12"),
        (["trainer.devices=4", "model.tensor_model_parallel_size=4", "model.num_attention_heads=2"], "are 2 and 4"),
        (["trainer.devices=4", "model.pipeline_model_parallel_size=4"], "model.num_layers .* are 2 and 4"),
        (["model.hidden_size=65"], "are 65 and 4"),
        (["model.sequence_parallel=true"], "it is true and model.tensor_model_parallel_size=1"),
        (
            ["model.sequence_parallel=true", "model.tensor_model_parallel_size=2", "model.encoder_seq_length=63"],
            "model.encoder_seq_length must be a multiple .* are 63 and 2",
        ),
        (["optim.sched.min_lr=1"], "below optim.lr"),
        (["optim.sched.warmup_steps=20"], r"20 \+ 0 and 20"),
        (["trainer.val_check_interval=0"], r"at least 1; it is 0\. Give .* \(the default is 100\)"),
        (["trainer.accelerator=gpu", "trainer.devices=64", "model.global_batch_size=256"], "=64 visible GPUs .* sees"),
        (["model.ffn_hidden_size=129", "model.tensor_model_parallel_size=2"], "are 129 and 2"),
        (["model.seed=-1"], r"below 2\*\*32; it is -1"),
        (["optim.seed=-1"], r"below 2\*\*64; it is -1"),
        (["optim.eps=nan"], "at least 0; it is nan"),
        (["optim.lr=inf"], "above 0; it is inf"),
        (["optim.betas=[0.9]"], r"two numbers.*; it is \[0\.9\]"),
        (["optim.sched.min_lr=3e-3"], r"below optim\.lr; they are 0\.003 and 0\.003"),
        (["optim.decoupled_min_lr=3e-3"], r"decoupled_min_lr must be below optim\.lr; they are 0\.003 and 0\.003"),
        (
            ["optim.decoupled_lr=1e-4", "optim.decoupled_min_lr=1e-3"],
            r"below optim\.decoupled_lr; they are 0\.001 and 0\.0001",
        ),
        (["optim.sched.name=Cosine"], "one of CosineAnnealing, .*; it is 'Cosine'"),
        (["optim.sched.name=WarmupPolicy", "optim.sched.constant_steps=1"], "belongs to optim.sched.name=CosineAnn"),
        (["data.splits_string=abc"], "up to three shares, .*; it is 'abc'"),
        (["data.splits_string='1,1,1,1'"], "up to three shares"),
        (["data.splits_string='0,0'"], "not all 0"),
    ],
)
def test_a_config_that_cannot_run_is_refused(words, message, toy_prefix, tmp_path):
    valid = overrides(toy_prefix, tmp_path, max_steps=20)
    with pytest.raises(ConfigError, match=message):
        check_config(compose_config([*valid, *words]))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/a", (["/a"], None)),
        (["/a", "/b"], (["/a", "/b"], None)),
        ([0.3, "/a", 0.7, "/b"], (["/a", "/b"], [0.3, 0.7])),
        (["1", "/a"], (["/a"], [1.0])),
    ],
)
def test_data_prefix_takes_nemos_forms(given, expected):
    assert prefixes(given) == expected


def test_a_weight_without_a_path_is_refused():
    with pytest.raises(ConfigError, match="weights above 0 and paths in turn"):
        prefixes([0.3, "/a", 0.7])


def test_the_help_table_names_every_strategy():
    table = describe_regimes()
    assert all(re.search(rf"^  {name} ", table, re.MULTILINE) for name in REGIMES)


def test_a_folder_of_ones_own_configurations_is_found(tmp_path):
    for name in ("mine", "mine_1.5b"):
        (tmp_path / f"{name}.yaml").write_text("defaults: [gpt_tiny_cpu, _self_]\noptim: {lr: 0.5}\n")
        for given in (name, f"{name}.yaml"):
            config = compose_config([f"--config-dir={tmp_path}", f"--config-name={given}"])
            assert (config.optim.lr, config.model.num_layers) == (0.5, 4)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_nemos_and_a_function_of_the_step(name):
    import torch
    from nemo.core.optim import prepare_lr_scheduler

    from nemo_sr.training.checkpoint import _set_schedule

    def make():
        groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1e-3, 4e-3)]
        optimizer = torch.optim.SGD(groups)
        sched = {"name": name, "warmup_steps": 3, "min_lr": 1e-4, "max_steps": 20}
        return optimizer, prepare_lr_scheduler(optimizer, sched)["scheduler"]

    optimizer, scheduler = make()
    rates = []
    for _ in range(20):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    assert rates[0] == [1e-3 / 4, 1e-3]
    for step in (2, 11):
        resumed, scheduler = make()
        _set_schedule(scheduler, step)
        assert [group["lr"] for group in resumed.param_groups] == rates[step]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: [gpt_tiny_cpu, _self_]\noptim: {lrr: 1}", r"'optim\.lrr' \(in mine\.yaml\) is none"),
        ("defaults: [gpt_tiny_cpu, _self_]\noptim: {lr: fast}", r"must be a number; it is 'fast' in mine\.yaml"),
        ("optim: {lr: fast}", r"optim\.lr must be a number; it is 'fast'"),  # without the schema
        ("optim: {lrr: 1}", r"'optim\.lrr' is none of them\. Near it: optim\.lr\b"),
        ("optim: {lr: 1}", r"need a value and have none: trainer\.max_steps, model\.num_layers, "),
        ("optim: {lr: 1", r"must be YAML; .*mine\.yaml"),
        ("defaults: [gpt_tiny_cpu, _self_]\noptim: 3", r"^optim must be a group of keys; it is '3' in mine\.yaml\."),
        ("defaults: [gpt_tiny_cpu, _self_]\noptim: {sched: on}", r"^optim\.sched must be a group of keys; it is "),
        ("defaults: [gpt_tiny_cpu, optim: adam]", r"'adam' is not there\. Use one of: adamw, "),
    ],
)
def test_a_fault_in_a_configuration_of_ones_own_is_named(text, message, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        compose_config([f"--config-dir={tmp_path}", "--config-name=mine"])


def test_multirun_is_refused():
    with pytest.raises(ConfigError, match="One start trains one run"):
        compose_config(["--multirun", "optim.lr=1,2"])


def test_data_of_another_vocabulary_are_refused(toy_prefix, tmp_path):
    folder = shutil.copytree(toy_prefix.parent, tmp_path / "data")
    data = OmegaConf.create({"data_prefix": str(folder / toy_prefix.name), "validation_sets": None})
    model = OmegaConf.create({"tokenizer": {"vocab_file": None, "merge_file": None}})
    vocabulary = Vocabulary.read(folder / "gpt2-vocab.json", folder / "gpt2-merges.txt")
    check_data(data, model)  # nothing says what made them
    for fingerprint, is_right in ((vocabulary.fingerprint, True), ("0" * 64, False)):
        (folder / "report.json").write_text(json.dumps({"tokenizer": {"fingerprint": fingerprint}}))
        if is_right:
            check_data(data, model)
    with pytest.raises(
        ConfigError, match=r"toy must be tokenized with the vocabulary of the run, .*gpt2-vocab\.json; "
    ):
        check_data(data, model)
