# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What Megatron-core's datasets need to know of GPT-2's byte-level BPE."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

from nemo_sr.data.vocabulary import Vocabulary
from nemo_sr.training.config import ConfigError


class GPT2BPETokenizer:
    """GPT-2's tokenizer from its two files, with the attributes that Megatron-core's datasets read.

    Args:
        vocab_file: JSON object from token to id.
        merge_file: GPT-2's merges.

    Raises:
        ConfigError: a file is not there or not what it should be, or the two do not belong together.
    """

    def __init__(self, vocab_file: Path, merge_file: Path) -> None:
        try:
            self.vocabulary = Vocabulary.read(vocab_file, merge_file)
        except (FileNotFoundError, ValueError) as error:
            raise ConfigError(
                f"model.tokenizer.vocab_file and model.tokenizer.merge_file must be those that the data was made with: "
                f"{error}"
            ) from None
        self.vocab_size = len(self.vocabulary)
        self.eod = self.vocabulary.end_of_text
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
            from nemo_sr.data.tokenizer import build_tokenizer

            self._tokenizer = build_tokenizer(self.vocabulary)
        return self._tokenizer
