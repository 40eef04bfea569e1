# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""GPT-2's tokenizer in the files of a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from nemo_sr.data.vocabulary import END_OF_TEXT, MERGES_NAME, VOCAB_NAME, Vocabulary
from nemo_sr.models.hf_folder import write_json


def read_tokenizer(folder: Path) -> Vocabulary | None:
    """Return the folder's byte-level BPE, from vocab.json and merges.txt or from tokenizer.json; None without any.

    Raises:
        FileNotFoundError: one of the two files is there alone.
        ValueError: it is another kind of tokenizer, or damaged.
    """
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    if vocab.exists() or merges.exists():
        return Vocabulary.read(vocab, merges)
    file = folder / "tokenizer.json"
    if not file.exists():
        return None
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        model = raw["model"]
        ids = {**model["vocab"], **{token["content"]: token["id"] for token in raw.get("added_tokens", [])}}
        lines = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
        is_bpe = model.get("type") == "BPE"
    except (ValueError, KeyError, TypeError, AttributeError):
        is_bpe = False
    if not is_bpe:
        raise ValueError(f"the tokenizer must be GPT-2's byte-level BPE; {file} is something else or damaged.")
    with TemporaryDirectory() as scratch:
        vocab, merges = Path(scratch) / VOCAB_NAME, Path(scratch) / MERGES_NAME
        write_json(vocab, ids)
        merges.write_text("\n".join([*lines, ""]), encoding="utf-8")
        return Vocabulary.read(vocab, merges)


def write_tokenizer(folder: Path, vocabulary: Vocabulary, *, max_length: int) -> None:
    """Write GPT-2's tokenizer files as Hugging Face names them."""
    vocabulary.write(folder)
    (folder / VOCAB_NAME).rename(folder / "vocab.json")
    (folder / MERGES_NAME).rename(folder / "merges.txt")
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
    options = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "model_max_length": max_length}
    write_json(folder / "tokenizer_config.json", {**options, **special})
