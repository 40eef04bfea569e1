# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Weights from Hugging Face and back keep every bit; what cannot be converted is refused, and leaves nothing behind."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hugging_face import LENGTH, build, describe
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nemo_sr.data.vocabulary import END_OF_TEXT, Vocabulary, byte_symbols
from nemo_sr.models import hf_folder
from nemo_sr.training.convert_hf import export_checkpoint, import_folder, main
from nemo_sr.training.generate import choose, continue_tokens
from nemo_sr.training.generate import main as generate
from nemo_sr.training.model_file import read_description
from nemo_sr.training.weights import load_model, one_process

ROOT = Path(__file__).parents[2]
VOCABULARY = Vocabulary({**{symbol: i for i, symbol in enumerate(byte_symbols())}, END_OF_TEXT: 256}, [])
KINDS = {
    "gpt2": ("gpt2", {}),
    "gpt_neo": ("gpt_neo", {}),
    "three layers": ("gpt_neo", {"num_layers": 3}),
    "untied": ("gpt2", {"share_embeddings_and_output_weights": False}),
}


def write(folder, kind, dtype=torch.bfloat16, **options):
    """Write a model as transformers does, with GPT-2's tokenizer files; return the model."""
    architecture, changes = KINDS[kind]
    model = build(describe(architecture, **changes)).to(dtype)
    model.save_pretrained(folder, **options)
    VOCABULARY.write(folder)
    (folder / "gpt2-vocab.json").rename(folder / "vocab.json")
    (folder / "gpt2-merges.txt").rename(folder / "merges.txt")
    return model


def read(folder):
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def bits(tensor):
    return tensor.view(torch.uint8)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Every kind as a folder, its import, and the export of that."""
    found = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp("hf")
        write(folder / "theirs", kind)
        import_folder(folder / "theirs", folder / "ours")
        export_checkpoint(folder / "ours", folder / "back")
        found[kind] = folder
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_keeps_every_bit(converted, kind):
    before, after = (read(converted[kind] / name) for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype == torch.bfloat16
        assert torch.equal(bits(tensor), bits(after[name])), name


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_loads_as_transformers_own(converted, kind):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs, back = (
        AutoModelForCausalLM.from_pretrained(converted[kind] / name, attn_implementation="eager")
        for name in ("theirs", "back")
    )
    assert type(theirs) is type(back)
    assert theirs.dtype == back.dtype == torch.bfloat16
    tokens = torch.arange(LENGTH)[None]
    with torch.no_grad():
        assert torch.equal(theirs(tokens).logits, back(tokens).logits)
    assert back.config.eos_token_id == 256
    tokenizer = AutoTokenizer.from_pretrained(converted[kind] / "back")
    text = "Déjà vu\n"
    assert tokenizer(text)["input_ids"] == AutoTokenizer.from_pretrained(converted[kind] / "theirs")(text)["input_ids"]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer) == 257
    for name in ("vocab.json", "merges.txt"):
        assert (converted[kind] / "back" / name).read_text() == (converted[kind] / "theirs" / name).read_text()


def test_fp32_weights_are_kept_or_rounded_to_nearest(tmp_path):
    model = write(tmp_path / "hf", "gpt_neo", torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        import_folder(tmp_path / "hf", tmp_path / name, dtype=name)
        export_checkpoint(tmp_path / name, tmp_path / f"back {name}")
        after = read(tmp_path / f"back {name}")
        assert all(torch.equal(after[key], model.state_dict()[key].to(dtype)) for key in after)


def test_other_files_of_the_same_model_are_read(converted, tmp_path, monkeypatch):
    """Several files, the base model's names, buffers, the tied embedding once more, tokenizer.json alone."""
    from transformers import AutoTokenizer

    write(tmp_path / "several", "gpt2", max_shard_size="100KB")
    assert len(list((tmp_path / "several").glob("*.safetensors"))) > 2
    base = tmp_path / "base"
    write(base, "gpt2")
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in read(base).items()}
    extra = {"h.0.attn.bias": torch.ones(1), "h.0.attn.masked_bias": torch.ones(1)}
    save_file({**tensors, **extra, "lm_head.weight": tensors["wte.weight"].clone()}, base / "model.safetensors")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "json")
    shutil.copy(tmp_path / "json" / "tokenizer.json", base)
    (base / "vocab.json").unlink()
    (base / "merges.txt").unlink()
    monkeypatch.setattr(hf_folder, "MAX_FILE_BYTES", 100_000)
    for name in ("several", "base"):
        import_folder(tmp_path / name, tmp_path / f"{name} ours")
        export_checkpoint(tmp_path / f"{name} ours", tmp_path / f"{name} back")
        assert len(list((tmp_path / f"{name} back").glob("*-of-*.safetensors"))) > 2
        expected, found = read(converted["gpt2"] / "back"), read(tmp_path / f"{name} back")
        assert expected.keys() == found.keys()
        assert all(torch.equal(tensor, found[key]) for key, tensor in expected.items())
        assert json.loads((tmp_path / f"{name} back/vocab.json").read_text()) == VOCABULARY.ids
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(tmp_path / "base back")


def change_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_weights(folder, change):
    tensors = read(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


def index_elsewhere(folder):
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../model.safetensors"}}')


NORM = "transformer.ln_f.weight"
REFUSALS = {
    "no folder": (lambda folder: shutil.rmtree(folder), r"has no config\.json"),
    "not JSON": (lambda folder: (folder / "config.json").write_text("{"), r"config\.json must be JSON"),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), "has None"),
    "architecture": (lambda folder: change_config(folder, model_type="llama"), "one of gpt2, gpt_neo .* 'llama'"),
    "activation": (lambda folder: change_config(folder, activation_function="relu"), "gelu_new or .* 'relu'"),
    "attention": (lambda folder: change_config(folder, attention_layers=["global"] * 4), "global and local in turn"),
    "layers": (lambda folder: change_config(folder, num_layers="4"), "num_layers must be .* '4'"),
    "heads": (lambda folder: change_config(folder, num_heads=5), "multiple of the number of heads"),
    "window": (lambda folder: change_config(folder, window_size=0), "window_size must be"),
    "epsilon": (lambda folder: change_config(folder, layer_norm_epsilon="x"), "layer_norm_epsilon must be"),
    "fewer layers": (lambda folder: change_config(folder, num_layers=2), r"attention_types must be"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"has no model\.safetensors and no"),
    "pickle": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        r"It has pytorch_model\.bin, which may run code",
    ),
    "truncated": (lambda folder: truncate(folder / "model.safetensors"), "a whole safetensors file"),
    "no tensors": (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "a whole safetensors file"),
    "missing": (lambda folder: change_weights(folder, lambda t: t.pop(NORM)), rf"1 are missing, {NORM}"),
    "foreign": (lambda folder: change_weights(folder, lambda t: t.update(x=t[NORM].clone())), "does not have: x"),
    "shape": (
        lambda folder: change_weights(folder, lambda t: t.update({NORM: torch.ones(3)})),
        r"the shape \(64,\) .* it has \(3,\)",
    ),
    "integers": (
        lambda folder: change_weights(folder, lambda t: t.update({NORM: t[NORM].int()})),
        "one of BF16, F16, F32, F64",
    ),
    "index": (index_elsewhere, "must list files of its folder"),
    "half a tokenizer": (lambda folder: (folder / "merges.txt").unlink(), "a merges file"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_folder_that_is_something_else_is_refused(converted, case, tmp_path, capsys):
    damage, message = REFUSALS[case]
    folder = tmp_path / "hf"
    shutil.copytree(converted["gpt_neo"] / "theirs", folder)
    damage(folder)
    assert main(["import", str(folder), str(tmp_path / "ours")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    _matches(error, message)
    assert [path.name for path in tmp_path.iterdir() if path != folder] == []


def _matches(text, pattern):
    assert re.search(pattern, text), text


def test_a_target_that_exists_is_left_alone(converted, tmp_path, capsys):
    target = tmp_path / "there"
    target.mkdir()
    for words in (
        ["import", str(converted["gpt2"] / "theirs"), str(target)],
        ["export", str(converted["gpt2"] / "ours"), str(target)],
    ):
        assert main(words) == 1
        assert "must be a new folder" in capsys.readouterr().err
    assert list(target.iterdir()) == []


EXPORT_REFUSALS = {
    "no checkpoint": (lambda folder: (folder / "metadata.json").unlink(), "is neither, or has no complete checkpoint"),
    "no description": (lambda folder: (folder / "model.json").unlink(), "must say which model it holds"),
    "foreign description": (lambda folder: (folder / "model.json").write_text('{"model": 1}'), "must say which model"),
    "truncated": (lambda folder: truncate(folder / "__0_0.distcp"), "truncated"),
    "no tokenizer": (lambda folder: (folder / "gpt2-vocab.json").unlink(), "a vocabulary file"),
}


@pytest.mark.parametrize("case", EXPORT_REFUSALS)
def test_a_damaged_checkpoint_is_refused(converted, case, tmp_path, capsys):
    damage, message = EXPORT_REFUSALS[case]
    folder = tmp_path / "ours"
    shutil.copytree(converted["gpt_neo"] / "ours", folder)
    damage(folder)
    assert main(["export", str(folder), str(tmp_path / "back")]) == 1
    _matches(capsys.readouterr().err, message)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_another_models_tokenizer_is_refused(converted, tmp_path, capsys):
    more = Vocabulary({**VOCABULARY.ids, "<more>": 257}, [])
    more.write(tmp_path)
    words = ["--vocab", str(tmp_path / "gpt2-vocab.json"), "--merges", str(tmp_path / "gpt2-merges.txt")]
    assert main(["export", str(converted["gpt2"] / "ours"), str(tmp_path / "back"), *words]) == 1
    assert "of 257 tokens" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["export", "a", "b", *words[:2]])


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neo"])
def test_greedy_text_is_that_of_transformers(tmp_path, kind):
    model = write(tmp_path / "hf", kind, torch.float32)
    import_folder(tmp_path / "hf", tmp_path / "ours", dtype="float32")
    begin = [1, 2, 3]
    expected = model.generate(torch.tensor([begin]), max_new_tokens=30, do_sample=False, eos_token_id=None)[0, 3:]
    options = {"num_tokens": 30, "end": None, "max_length": 48}
    with one_process(on_cpu=True):
        gpt = load_model(tmp_path / "ours", read_description(tmp_path / "ours")[0], on_cpu=True)
        assert list(continue_tokens(gpt, begin, temperature=0, top_k=None, seed=0, **options)) == expected.tolist()
        drawn = [list(continue_tokens(gpt, begin, temperature=2, top_k=9, seed=s, **options)) for s in (1, 1, 2)]
        longer = list(continue_tokens(gpt, begin, temperature=1, top_k=None, seed=0, **{**options, "num_tokens": 60}))
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(longer) == 60  # past the last position


def test_draws_follow_temperature_and_top_k():
    logits = torch.tensor([0.0, 3.0, 1.0, 2.0])
    generator = torch.Generator().manual_seed(0)

    def shares(**options):
        drawn = [choose(logits, generator=generator, **options) for _ in range(4000)]
        return torch.bincount(torch.tensor(drawn), minlength=4) / 4000

    assert choose(logits, temperature=0, top_k=None, generator=generator) == 1
    # 4000 draws: a standard error of at most 0.008; false alarm 4e-7 for each of the eight values.
    torch.testing.assert_close(shares(temperature=2.0, top_k=None), torch.softmax(logits / 2, -1), atol=0.04, rtol=0)
    best = torch.softmax(torch.tensor([-torch.inf, 3.0, -torch.inf, 2.0]), -1)
    torch.testing.assert_close(shares(temperature=1.0, top_k=2), best, atol=0.04, rtol=0)
    assert choose(logits, temperature=1e-300, top_k=None, generator=generator) == 1


def test_the_command_lines(converted):
    checkpoint = str(converted["gpt_neo"] / "ours")

    def run(script, *words):
        return subprocess.run(
            [sys.executable, str(ROOT / "scripts" / script), *words],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            timeout=120,
        )

    done = run("generate.py", checkpoint, "--prompt", "Hello", "--tokens", "5", "--temperature", "0")
    assert (done.returncode, done.stdout[:5]) == (0, "Hello"), done.stderr
    assert len(done.stdout) > len("Hello\n")
    assert "from_pretrained" in run("convert_hf.py", "--help").stdout
    for words in (["--top-k", "0"], ["--temperature", "-1"], ["--tokens", "x"]):
        with pytest.raises(SystemExit):
            generate([checkpoint, *words])


def test_files_hold_no_more_than_their_limit(tmp_path):
    tensors = {str(number): torch.ones(10) for number in range(5)}
    hf_folder.MAX_FILE_BYTES, before = 80, hf_folder.MAX_FILE_BYTES
    try:
        hf_folder.write_weights(tmp_path, tensors.items())
    finally:
        hf_folder.MAX_FILE_BYTES = before
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 200}
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / file, framework="pt") as opened:
            assert name in opened.keys()  # noqa: SIM118
            assert len(opened.keys()) <= 2
