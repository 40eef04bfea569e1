# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Training starts from an import, alike in every layout, and what was trained goes back to transformers."""

import json
import sys
from pathlib import Path

import pytest
import torch
from hugging_face import build, describe
from torch.nn.functional import cross_entropy

TRAINING = Path(__file__).parents[1] / "training"
sys.path.insert(0, str(TRAINING))

from toy import EOD, VOCAB_SIZE, overrides, run_python, write_toy_data  # noqa: E402

from nemo_sr.training.config import ConfigError, compose_config  # noqa: E402
from nemo_sr.training.convert_hf import export_checkpoint, import_folder  # noqa: E402
from nemo_sr.training.launch import free_port  # noqa: E402
from nemo_sr.training.resume import find_start  # noqa: E402

pytestmark = pytest.mark.slow
STEPS = 10
MODEL = ["model.architecture=gpt_neo", "model.window_size=8"]
# The vocabulary gets 64 rows of padding, and with two tensor-parallel ranks 256.
PADDING = "model.make_vocab_size_divisible_by=192"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported")
    prefix = write_toy_data(folder)
    description = describe(
        "gpt_neo", vocab_size=VOCAB_SIZE, num_layers=2, ffn_hidden_size=256, max_position_embeddings=64
    )
    model = build(description)
    model.save_pretrained(folder / "hf")
    for name, other in (("gpt2-vocab.json", "vocab.json"), ("gpt2-merges.txt", "merges.txt")):
        (folder / "hf" / other).write_bytes((folder / name).read_bytes())
    import_folder(folder / "hf", folder / "checkpoint")
    layouts = {
        "DP2": [],
        "TP2": ["model.tensor_model_parallel_size=2"],
        "masters": ["optim.name=adamw"],
    }
    jobs = {
        name: [
            *overrides(prefix, folder / name, max_steps=STEPS),
            *MODEL,
            PADDING,
            f"exp_manager.resume_from_checkpoint={folder / 'checkpoint'}",
            *words,
        ]
        for name, words in layouts.items()
    }
    for name in layouts:
        words = [word for word in jobs[name] if not word.startswith("exp_manager.")]
        run = f"exp_manager.explicit_log_dir={folder / f'{name} restored'}"
        jobs[f"{name} restored"] = [*words, run, f"model.restore_from_path={folder / 'hf'}"]
    (folder / "jobs.json").write_text(json.dumps({name: (free_port(), words) for name, words in jobs.items()}))
    done = run_python(TRAINING / "worker.py", str(folder / "jobs.json"), str(folder / "results.json"), torchrun=2)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, json.loads((folder / "results.json").read_text()), model, jobs


def mean_loss(model, folder):
    """Return transformers' loss on the beginning of the data."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    data = IndexedDataset(str(folder / "toy"))
    text = torch.cat([torch.from_numpy(data[number].astype("int64")) for number in range(100)])
    text = text[: len(text) // 65 * 65].view(-1, 65)
    with torch.no_grad():
        logits = model(text[:, :-1]).logits.float()
    return cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).item()


def test_the_first_loss_is_that_of_the_import_in_every_layout(runs):
    folder, results, model, _ = runs
    first = {name: result["losses"]["1"] for name, result in results.items()}
    expected = mean_loss(model, folder)
    assert expected > 6.8  # of random weights as large as these; newly initialized ones have 6.25
    # 1024 tokens of a batch, whose losses have a standard deviation of 2: a standard error of 0.07.
    assert first["DP2"] == pytest.approx(expected, abs=0.3)
    # The same samples: BF16 sums alone differ. Padding in the softmax would add 0.1 more under TP2.
    assert max(first.values()) - min(first.values()) < 0.002


def test_an_import_is_trained_by_every_strategy(runs):
    _, results, _, _ = runs
    for name, result in results.items():
        assert result["losses"][str(STEPS)] < result["losses"]["1"] - 0.5
        assert result["optimizer_class"] == ("AdamW" if name.startswith("masters") else "AdamWSR")


@pytest.mark.parametrize("name", ["DP2", "TP2", "masters"])
def test_a_hugging_face_folder_needs_no_import(runs, name):
    _, results, _, _ = runs
    assert results[f"{name} restored"]["losses"] == results[name]["losses"]
    assert results[f"{name} restored"]["weights"] == results[name]["weights"]


@pytest.mark.parametrize("name", ["TP2", "masters"])
def test_what_was_trained_loads_in_transformers_and_generates(runs, name):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, results, _, _ = runs
    export_checkpoint(folder / name, folder / f"{name} hf")
    model = AutoModelForCausalLM.from_pretrained(folder / f"{name} hf", dtype=torch.float32)
    # Validation is on other documents of the same kind, 2048 tokens: a standard error of 0.05.
    assert mean_loss(model, folder) == pytest.approx(results[name]["val_losses"][str(STEPS)], abs=0.3)
    tokenizer = AutoTokenizer.from_pretrained(folder / f"{name} hf")
    assert len(tokenizer) == VOCAB_SIZE
    tokens = tokenizer("Hello", return_tensors="pt")
    text = model.generate(**tokens, max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=EOD)
    assert text.shape == (1, tokens["input_ids"].shape[1] + 8)
    assert tokenizer.decode(text[0]).startswith("Hello")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.num_attention_heads=2"], r"model\.num_attention_heads is 4 there and 2 here"),
        (["model.window_size=9"], r"model\.window_size is 8 there and 9 here"),
        (["model.architecture=gpt2", "model.window_size=null"], r"architecture is gpt_neo there and gpt2 here, .*wind"),
        (["model.layernorm_epsilon=1e-6"], "layernorm_epsilon"),
    ],
)
@pytest.mark.parametrize("start", ["import", "own checkpoint"])
def test_a_run_that_would_go_on_with_another_model_is_refused(runs, words, message, start, tmp_path):
    folder, _, _, jobs = runs
    config = compose_config([*jobs["DP2"], *words])
    if start == "import":
        config.exp_manager.explicit_log_dir = str(tmp_path)
    with pytest.raises(ConfigError, match=message):
        find_start(config)
    assert (folder / "DP2").is_dir()
