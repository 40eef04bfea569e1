# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""GPT-2's byte-level BPE: training a vocabulary, turning text into ids."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from nemo_sr.data.vocabulary import END_OF_TEXT, MIN_SIZE, Vocabulary, byte_symbols


def build_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """Build the tokenizer of a vocabulary.

    The end of text is deliberately not a special token of it: a text that quotes "<|endoftext|>" is encoded as those
    characters, and only the end of a document is that token.
    """
    tokenizer = Tokenizer(models.BPE(dict(vocabulary.ids), list(vocabulary.merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_vocabulary(texts: Iterable[str], *, size: int, num_threads: int) -> Vocabulary:
    """Learn a vocabulary from texts; the same one for any number of threads.

    Args:
        texts: Documents.
        size: Number of tokens wanted, at least 257. Little text may yield fewer.
        num_threads: Threads of the trainer, if it has not run in this process before.

    Returns:
        The bytes' symbols first, then the merges' results, the end of text last, as in GPT-2.

    Raises:
        ValueError: ``size`` is too small.
    """
    if size < MIN_SIZE:
        raise ValueError(
            f"a vocabulary must have room for 256 bytes and {END_OF_TEXT}, {MIN_SIZE} tokens; got {size}. "
            "Raise --train-tokenizer."
        )
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)
    # Set, whatever the value, it also keeps the library from warning about the worker processes forked later.
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if num_threads > 1 else "false"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size - 1, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with TemporaryDirectory() as folder:
        vocab_file, merges_file = tokenizer.model.save(folder)
        ids = json.loads(Path(vocab_file).read_text(encoding="utf-8"))
        lines = Path(merges_file).read_text(encoding="utf-8").split("\n")
    assert set(byte_symbols()) <= ids.keys()
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    return Vocabulary({**ids, END_OF_TEXT: len(ids)}, [(left, right) for left, right in pairs])
