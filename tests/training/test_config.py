# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
import re

import pytest
from omegaconf import OmegaConf
from toy import overrides

from nemo_sr.training.config import ConfigError, compose_config, find_conf, rewrite_argv
from nemo_sr.training.regimes import REGIMES, describe_regimes, find_regime
from nemo_sr.training.schema import PretrainConfig
from nemo_sr.training.validate import check_config, check_layout, prefixes
from nemo_sr.training.values import SCHEDULES

CONF = find_conf()
PRIMARY = sorted(path.stem for path in CONF.glob("*.yaml"))
CHOICES = sorted((path.parent.name, path.stem) for path in CONF.glob("*/*.yaml"))


@pytest.mark.parametrize("name", PRIMARY)
def test_every_primary_config_composes_and_divides(name):
    config = compose_config([f"--config-name={name}"])
    check_layout(config)
    assert find_regime(config.optim).name == "adamw_sr"


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_group_file_composes_and_names_a_known_strategy(group, choice):
    config = compose_config([f"{group}={choice}"])
    check_layout(config)
    find_regime(config.optim)
    chosen = OmegaConf.load(CONF / group / f"{choice}.yaml")
    # The primary config may set a key of the group again; the rest must have arrived.
    arrived = [key for key in chosen if config[group][key] == chosen[key]]
    assert arrived


@pytest.mark.parametrize("name", PRIMARY)
def test_every_primary_config_instantiates_a_transformer_config(name):
    import torch

    from nemo_sr.models.gpt import transformer_config

    config = compose_config([f"--config-name={name}"])
    built = transformer_config(config.model, on_cpu=True, params_dtype=torch.bfloat16)
    assert (built.num_layers, built.hidden_size) == (config.model.num_layers, config.model.hidden_size)


def test_the_softmax_is_fused_on_a_gpu_only_where_the_kernels_are():
    import importlib.util

    import torch

    from nemo_sr.models.gpt import transformer_config

    names = ("scaled_upper_triang_masked_softmax_cuda", "scaled_masked_softmax_cuda")
    kernels = [importlib.util.find_spec(name) for name in names]
    built = transformer_config(compose_config([]).model, on_cpu=False, params_dtype=torch.bfloat16)
    assert built.masked_softmax_fusion == (None not in kernels)


def test_every_key_of_the_schema_has_a_docstring():
    import ast
    import inspect

    from nemo_sr.training import schema

    undocumented = []
    for node in ast.parse(inspect.getsource(schema)).body:
        if isinstance(node, ast.ClassDef):
            for field, follower in zip(node.body, [*node.body[1:], None], strict=True):
                documented = isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant)
                if isinstance(field, ast.AnnAssign) and not documented and node.name != PretrainConfig.__name__:
                    undocumented.append(f"{node.name}.{field.target.id}")
    assert undocumented == []


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
        (["trainer.max_steps=many"], r"'many' of type 'str' could not be converted to Integer"),
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
        (["optim.exp_avg_rounding=up"], "must be nearest or stochastic; it is 'up'"),
        (["model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2"], r"2 \* 2 = 4 and .* = 2"),
        (["trainer.devices=3"], r"model.global_batch_size must be a multiple .* 4 \* 3 = 12"),
        (["trainer.devices=4", "model.tensor_model_parallel_size=4", "model.num_attention_heads=2"], "are 2 and 4"),
        (["trainer.devices=4", "model.pipeline_model_parallel_size=4"], "model.num_layers .* are 2 and 4"),
        (["model.hidden_size=65"], "are 65 and 4"),
        (["model.sequence_parallel=true"], "needs model.tensor_model_parallel_size of 2 or more.* it is 1"),
        (
            ["model.sequence_parallel=true", "model.tensor_model_parallel_size=2", "model.encoder_seq_length=63"],
            "model.encoder_seq_length must be a multiple .* are 63 and 2",
        ),
        (["model.sequence_parallel=maybe"], "is not a valid bool"),
        (["optim.sched.min_lr=1"], "below optim.lr"),
        (["optim.sched.warmup_steps=20"], r"20 \+ 0 and 20"),
        (["trainer.val_check_interval=0"], r"at least 1; it is 0\. Give .* \(the default is 100\)"),
        (["trainer.accelerator=tpu"], "one of cpu, gpu; it is 'tpu'"),
        (["trainer.accelerator=gpu", "trainer.devices=64", "model.global_batch_size=256"], "=64 visible GPUs .* sees"),
        (["exp_manager.checkpoint_callback_params.every_n_train_steps=0"], "at least 1; it is 0"),
        (["exp_manager.checkpoint_callback_params.save_top_k=-2"], "at least 0, or -1 for all; it is -2"),
        (["exp_manager.checkpoint_callback_params.save_last_n=0"], "at least 1, or -1 for all; it is 0"),
        (["trainer.limit_val_batches=-1"], "at least 0; it is -1"),
        (["trainer.gradient_clip_val=-1"], "at least 0; it is -1"),
        (["trainer.max_skipped_steps=0"], "at least 1; it is 0"),
        (["trainer.stop_after_steps=0"], "at least 1; it is 0"),
        (["trainer.heartbeat_timeout=-1"], r"at least 0; it is -1\.0\. .* \(the default is 120\.0\)"),
        (["model.ffn_hidden_size=129", "model.tensor_model_parallel_size=2"], "are 129 and 2"),
        (["model.hidden_dropout=2"], r"below 1; it is 2\.0"),
        (["model.attention_dropout=1"], r"below 1; it is 1\.0"),
        (["model.seed=-1"], r"below 2\*\*32; it is -1"),
        (["model.seed=4294967296"], r"below 2\*\*32; it is 4294967296"),
        (["optim.seed=-1"], r"below 2\*\*64; it is -1"),
        (["trainer.check_replicas_every_n_steps=0"], "at least 1; it is 0"),
        (["optim.eps=-1e-8"], "at least 0; it is -1e-08"),
        (["optim.eps=nan"], "at least 0; it is nan"),
        (["optim.weight_decay=-0.1"], r"at least 0; it is -0\.1"),
        (["optim.lr=inf"], "above 0; it is inf"),
        (["optim.betas=[0.9,1.0]"], r"below 1; it is \[0\.9, 1\.0\]"),
        (["optim.betas=[0.9]"], r"two numbers.*; it is \[0\.9\]"),
        (["optim.sched.min_lr=3e-3"], r"below optim\.lr; they are 0\.003 and 0\.003"),
        (["optim.decoupled_min_lr=3e-3"], r"decoupled_min_lr must be below optim\.lr; they are 0\.003 and 0\.003"),
        (
            ["optim.decoupled_lr=1e-4", "optim.decoupled_min_lr=1e-3"],
            r"below optim\.decoupled_lr; they are 0\.001 and 0\.0001",
        ),
        (["optim.sched.name=Cosine"], "one of CosineAnnealing, .*; it is 'Cosine'"),
        (["optim.sched.name=StepLR"], "one of CosineAnnealing, .*; it is 'StepLR'"),
        (["optim.sched.name=WarmupPolicy", "optim.sched.constant_steps=1"], "belongs to optim.sched.name=CosineAnn"),
        (["data.splits_string=abc"], "up to three shares, .*; it is 'abc'"),
        (["data.splits_string='1,1,1,1'"], "up to three shares"),
        (["data.splits_string='0,0'"], "not all 0"),
        (["data.data_prefix=/nowhere/data"], r"/nowhere/data\.idx"),
        (["model.tokenizer.merge_file=/nowhere/merges"], "/nowhere/merges"),
    ],
)
def test_a_config_that_cannot_run_is_refused(words, message, toy_prefix, tmp_path):
    valid = overrides(toy_prefix, tmp_path, max_steps=20)
    check_config(compose_config(valid))
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
    with pytest.raises(ConfigError, match="weights and paths in turn"):
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


def test_every_number_and_every_choice_of_the_schema_has_a_rule():
    from nemo_sr.training.config import _flatten
    from nemo_sr.training.values import _RULES

    free = {"exp_manager.name", "exp_manager.explicit_log_dir", "model.tokenizer.vocab_file", "data.data_prefix"}
    free |= {"model.tokenizer.merge_file", "data.index_mapping_dir", "exp_manager.resume_from_checkpoint"}
    # validate and regimes check these against other keys.
    free |= {"model.max_position_embeddings", "optim.name", "optim.grad_dtype"}
    free |= {"optim.exp_avg_rounding", "optim.exp_avg_sq_rounding"}
    config = compose_config([])
    leaves = {key for key in _flatten(config) if not OmegaConf.is_dict(OmegaConf.select(config, key))}
    flags = {key for key in leaves if isinstance(OmegaConf.select(config, key), bool)} | {"model.transformer_engine"}
    assert leaves - flags - free == set(_RULES)


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


def test_multirun_is_refused():
    with pytest.raises(ConfigError, match="One start trains one run"):
        compose_config(["--multirun", "optim.lr=1,2"])
