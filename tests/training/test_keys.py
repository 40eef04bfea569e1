# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Every key of the schema: refused where its value is wrong, documented, and printed."""

import copy
import dataclasses
import inspect
import re
import sys

import pytest
import yaml
from omegaconf import OmegaConf
from toy import overrides

import make_configuration_page
from nemo_sr.training.config import ConfigError, compose_config
from nemo_sr.training.guidance import help_text, show_config
from nemo_sr.training.keys import schema_keys
from nemo_sr.training.pretrain import main
from nemo_sr.training.resume import find_start
from nemo_sr.training.validate import check_config
from nemo_sr.training.values import RULES

KEYS = {name: key for name, key in schema_keys().items() if not key.is_group}
NO_RANGE = object()
WRONG = {  # a value of another type, on the command line, and one that is out of range
    "trainer.accelerator": ("[cpu]", "tpu"),
    "trainer.devices": ("two", 0),
    "trainer.num_nodes": ("1.5", 0),
    "trainer.max_steps": ("many", 0),
    "trainer.stop_after_steps": ("1.5", 0),
    "trainer.max_time": ("[a]", "12h"),
    "trainer.val_check_interval": ("0.25", 0),
    "trainer.limit_val_batches": ("0.5", -1),
    "trainer.log_every_n_steps": ("null", 0),
    "trainer.max_skipped_steps": ("null", 0),
    "trainer.heartbeat_timeout": ("2min", -1.0),
    "trainer.check_replicas_every_n_steps": ("[5]", 0),
    "trainer.telemetry_every_n_steps": ("[5]", 0),
    "trainer.peak_tflops_per_gpu": ("fast", 0.0),
    "trainer.gradient_clip_val": ("null", float("inf")),
    "exp_manager.name": ("null", ""),
    "exp_manager.explicit_log_dir": ("[a]", __file__),
    "exp_manager.resume_from_checkpoint": ("[a]", "/nowhere"),
    "exp_manager.create_tensorboard_logger": ("maybe", NO_RANGE),
    "exp_manager.create_wandb_logger": ("maybe", True),
    "exp_manager.wandb_logger_kwargs.project": ("[a]", ""),
    "exp_manager.wandb_logger_kwargs.name": ("null", ""),
    "exp_manager.wandb_logger_kwargs.entity": ("[a]", ""),
    "exp_manager.wandb_logger_kwargs.group": ("[a]", ""),
    "exp_manager.wandb_logger_kwargs.offline": ("maybe", NO_RANGE),
    "exp_manager.wandb_logger_kwargs.id": ("[a]", ""),
    "exp_manager.create_csv_logger": ("maybe", NO_RANGE),
    "exp_manager.verify_checksums": ("sometimes", NO_RANGE),
    "exp_manager.checkpoint_callback_params.every_n_train_steps": ("often", 0),
    "exp_manager.checkpoint_callback_params.save_top_k": ("all", -2),
    "exp_manager.checkpoint_callback_params.save_last_n": ("all", 0),
    "exp_manager.checkpoint_callback_params.async_save": ("null", NO_RANGE),
    "model.architecture": ("null", "gpt3"),
    "model.window_size": ("wide", 0),
    "model.num_layers": ("2.5", 0),
    "model.hidden_size": ("wide", 0),
    "model.num_attention_heads": ("null", -4),
    "model.ffn_hidden_size": ("4x", 0),
    "model.encoder_seq_length": ("long", 0),
    "model.max_position_embeddings": ("null", 63),
    "model.hidden_dropout": ("some", 2.0),
    "model.attention_dropout": ("null", 1.0),
    "model.layernorm_epsilon": ("1e-5x", 0.0),
    "model.init_method_std": ("null", 0.0),
    "model.make_vocab_size_divisible_by": ("0.5", 0),
    "model.share_embeddings_and_output_weights": ("both", NO_RANGE),
    "model.micro_batch_size": ("auto", 0),
    "model.global_batch_size": ("2M", 0),
    "model.rampup_batch_size": ("16", [8, 8]),
    "model.tensor_model_parallel_size": ("two", 0),
    "model.pipeline_model_parallel_size": ("null", 0),
    "model.sequence_parallel": ("maybe", True),
    "model.activations_checkpoint_granularity": ("[full]", "half"),
    "model.activations_checkpoint_method": ("[block]", "balanced"),
    "model.activations_checkpoint_num_layers": ("all", 0),
    "model.transformer_engine": ("auto", True),
    "model.restore_from_path": ("[a]", "/nowhere"),
    "model.seed": ("null", 1 << 32),
    "model.nsys_profile.enabled": ("maybe", True),
    "model.nsys_profile.start_step": ("null", -1),
    "model.nsys_profile.end_step": ("null", -1),
    "model.nsys_profile.ranks": ("all", []),
    "model.nsys_profile.gen_shape": ("maybe", NO_RANGE),
    "model.torch_profile.enabled": ("maybe", NO_RANGE),
    "model.torch_profile.start_step": ("null", 0),
    "model.torch_profile.end_step": ("null", 0),
    "model.torch_profile.ranks": ("all", [-1]),
    "model.tokenizer.vocab_file": ("[a]", "/nowhere/vocab"),
    "model.tokenizer.merge_file": ("[a]", "/nowhere/merges"),
    "optim.name": ("null", "adam"),
    "optim.lr": ("1e-3x", float("nan")),
    "optim.sr_lr_scale": ("null", 0.0),
    "optim.decoupled_lr": ("high", 0.0),
    "optim.decoupled_min_lr": ("low", -1e-3),
    "optim.weight_decay": ("null", -0.1),
    "optim.betas": ("0.9", [0.9, 1.0]),
    "optim.eps": ("tiny", float("nan")),
    "optim.grad_dtype": ("[fp32]", "fp16"),
    "optim.seed": ("now", 1 << 64),
    "optim.exp_avg_rounding": ("[up]", "up"),
    "optim.exp_avg_sq_rounding": ("[up]", "down"),
    "optim.sched.name": ("null", "StepLR"),
    "optim.sched.warmup_steps": ("0.01", -1),
    "optim.sched.constant_steps": ("null", -1),
    "optim.sched.min_lr": ("null", -1e-5),
    "data.data_prefix": ("5", "/nowhere/data"),
    "data.splits_string": ("[1]", "980;20"),
    "data.validation_sets": ("wiki", ["wiki"]),
    "data.index_mapping_dir": ("[a]", __file__),
    "data.num_workers": ("null", -1),
    "data.eod_mask_loss": ("maybe", NO_RANGE),
}


@pytest.fixture(scope="module")
def valid(toy_prefix, tmp_path_factory):
    words = overrides(toy_prefix, tmp_path_factory.mktemp("keys") / "run", max_steps=20)
    config = compose_config(words)
    check_config(config)
    return words, config


def refusal(config):
    """Return what is said before any rank starts."""
    try:
        check_config(config)
        find_start(config)
    except ConfigError as error:
        return str(error)
    return "nothing"


def test_every_key_has_a_wrong_value():
    assert list(WRONG) == list(KEYS)


@pytest.mark.parametrize("name", WRONG)
def test_a_value_of_another_type_is_refused(name, valid):
    given = WRONG[name][0]
    with pytest.raises(ConfigError) as refused:
        check_config(compose_config([*valid[0], f"{name}={given}"]))
    message = str(refused.value)
    shown = "null" if given == "null" else r"of type \w+" if "in []" in KEYS[name].kind else f"'?{re.escape(given)}'?"
    if given.startswith("["):
        shown = rf"'\['{given[1:-1]}'\]'|'{re.escape(given)}'"
    form = rf"{name} must be {re.escape(KEYS[name].kind)}; it is ({shown})\. (Give {name}|Write for example) .+\."
    assert re.fullmatch(form, message), message


@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong[1] is not NO_RANGE])
def test_a_value_out_of_range_is_refused(name, valid):
    config, given = copy.deepcopy(valid[1]), WRONG[name][1]
    OmegaConf.update(config, name, given)
    message = refusal(config)
    shown = "true" if given is True else f"'{given}'" if given == "" else str(given)
    for part in (name, " must ", shown):
        assert part in message
    assert re.search(r"\. (Give|Set|Correct|Change|Choose|Make|Pass)\b", message), message


def test_every_number_and_every_choice_has_a_rule():
    free = {"data.data_prefix"}  # validate.prefixes has it
    assert {name for name, key in KEYS.items() if not key.kind.startswith("true")} - free == set(RULES)


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if key.unit not in (None, "probability")])
def test_no_count_is_beyond_what_counters_hold(name, valid):
    config = copy.deepcopy(valid[1])
    OmegaConf.update(config, name, 1 << 31)
    assert f"{name} must be below 2**31; it is 2147483648" in refusal(config)


def test_every_whole_number_but_seeds_has_a_unit_and_every_key_a_meaning():
    counts = [key for name, key in KEYS.items() if key.kind.startswith("a whole") and not name.endswith("seed")]
    assert [key.name for key in counts if key.unit is None] == []
    assert [name for name, key in schema_keys().items() if not re.fullmatch(r"[A-Z\"].*\.", key.text)] == []


def test_a_key_that_is_not_marked_as_ours_is_nemos():
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import WandbLogger
    from nemo.core.config.optimizers import AdamWParams
    from nemo.core.config.schedulers import CosineAnnealingParams
    from nemo.utils.exp_manager import CallbackParams, ExpManagerConfig

    known = {"trainer": set(inspect.signature(Trainer).parameters), "optim": {"name", "sched"}, "optim.sched": {"name"}}
    # Its logger hands these two on to wandb.init.
    wandb = {*inspect.signature(WandbLogger).parameters, "entity", "group"}
    known["exp_manager.wandb_logger_kwargs"] = wandb
    for group, owner in {
        "exp_manager": ExpManagerConfig,
        "exp_manager.checkpoint_callback_params": CallbackParams,
        "optim": AdamWParams,
        "optim.sched": CosineAnnealingParams,
    }.items():
        known.setdefault(group, set()).update(field.name for field in dataclasses.fields(owner))
    for key in schema_keys().values():
        group, _, leaf = key.name.rpartition(".")
        if group in known:
            assert (leaf in known[group]) == (key.origin == "NeMo 1.x"), key.name


def test_the_page_is_what_the_schema_gives():
    assert make_configuration_page.TARGET.read_text(encoding="utf-8") == make_configuration_page.page()
    for name in KEYS:
        assert f"| `{name}` |" in make_configuration_page.page()


def test_cfg_job_is_the_configuration_in_yaml_with_what_each_key_means():
    config = compose_config(["data.data_prefix=[0.3,/data/a,0.7,/data/b]", "exp_manager.name='a: b #c'", "optim=adamw"])
    shown = show_config(config)
    assert yaml.safe_load(shown) == OmegaConf.to_container(config)
    assert max(map(len, shown.splitlines())) <= 120
    assert re.search(r"^  devices: 2 +# Processes on each node, one per GPU$", shown, re.MULTILINE)
    assert yaml.safe_load(show_config(config, "optim.sched"))["name"] == "CosineAnnealing"
    with pytest.raises(ConfigError, match=r"--package must be one of trainer, .*; it is optimizer\. Correct"):
        show_config(config, "optimizer")


def test_cfg_job_prints_a_part_with_overrides_in_nemos_older_spelling(monkeypatch, capsys):
    words = ["pretrain_gpt.py", "--cfg", "job", "--package=optim", "model.optim.lr=0.5"]
    monkeypatch.setattr(sys, "argv", words)
    main()
    assert yaml.safe_load(capsys.readouterr().out)["lr"] == 0.5


def test_the_help_fits_a_terminal_and_says_what_each_configuration_and_key_is():
    text = help_text()
    assert max(map(len, text.splitlines())) <= 120
    assert re.search(r"^  gpt_neo_6\.7b +GPT-Neo 6\.7B on Wikipedia, in BF16 with stochastic", text, re.MULTILINE)
    assert re.search(r"^  optim\.sched\.warmup_steps=0 +Steps of linear warm-up$", text, re.MULTILINE)
