# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""GPT-2's tokenizer in the files of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

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
    return Vocabulary.read_json(file)


def write_tokenizer(folder: Path, vocabulary: Vocabulary, *, max_length: int) -> None:
    """Write GPT-2's tokenizer files as Hugging Face names them."""
    vocabulary.write(folder)
    (folder / VOCAB_NAME).rename(folder / "vocab.json")
    (folder / MERGES_NAME).rename(folder / "merges.txt")
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
    options = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "model_max_length": max_length}
    write_json(folder / "tokenizer_config.json", {**options, **special})
