# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What Megatron-core's datasets need to know of GPT-2's byte-level BPE."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

from nemo_sr.training.config import ConfigError

END_OF_TEXT = "<|endoftext|>"


class GPT2BPETokenizer:
    """GPT-2's tokenizer from its two files, with the attributes that Megatron-core's datasets read.

    Args:
        vocab_file: JSON object from token to id; it must hold ``<|endoftext|>``.
        merge_file: GPT-2's merges, a header line and one merge a line.

    Raises:
        ConfigError: the vocabulary is not such an object, or the ids are not 0 to n-1.
    """

    def __init__(self, vocab_file: Path, merge_file: Path) -> None:
        self.vocab_file = vocab_file
        self.merge_file = merge_file
        try:
            vocab = json.loads(vocab_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(
                f"model.tokenizer.vocab_file must be a JSON object from token to id; {vocab_file} is not ({error}). "
                "Set it to the vocabulary that the data was made with."
            ) from None
        if not isinstance(vocab, dict) or sorted(vocab.values()) != list(range(len(vocab))) or END_OF_TEXT not in vocab:
            raise ConfigError(
                f"model.tokenizer.vocab_file must map tokens to the ids 0 to n-1 and hold {END_OF_TEXT}; {vocab_file} "
                "does not. Set it to the vocabulary that the data was made with."
            )
        self.vocab_size = len(vocab)
        self.eod: int = vocab[END_OF_TEXT]
        # Megatron-core puts this into the name of its cached indices.
        self.unique_identifiers = OrderedDict(
            {"class": type(self).__name__, "vocab_size": self.vocab_size, "eod": self.eod}
        )
        self._tokenizer: Any = None

    @property
    def eos(self) -> int:
        """Id of the end-of-document token."""
        return self.eod

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        return list(self._load().encode(text).ids)

    def detokenize(self, ids: list[int]) -> str:
        """Return the text of `ids`."""
        return str(self._load().decode(ids))

    def _load(self) -> Any:
        if self._tokenizer is None:
            from tokenizers import ByteLevelBPETokenizer

            self._tokenizer = ByteLevelBPETokenizer(str(self.vocab_file), str(self.merge_file))
        return self._tokenizer


def pad_vocab_size(vocab_size: int, *, divisible_by: int, tensor_parallel_size: int) -> int:
    """Return `vocab_size` rounded up to a multiple of `divisible_by` * `tensor_parallel_size`."""
    multiple = divisible_by * tensor_parallel_size
    return -(-vocab_size // multiple) * multiple
