# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The two files of a byte-level BPE tokenizer, under GPT-2's names: reading, checking, writing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCAB_NAME = "gpt2-vocab.json"
MERGES_NAME = "gpt2-merges.txt"
END_OF_TEXT = "<|endoftext|>"
MIN_SIZE = 257
"""Size of the smallest vocabulary: 256 bytes and the end of text."""

_VERSION_LINE = "#version: 0.2"
_SPECIAL = re.compile("<.*>")


def byte_symbols() -> list[str]:
    """List the characters that stand for the bytes 0 to 255 in GPT-2's files: printable ones for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


@dataclass(frozen=True)
class Vocabulary:
    """A checked pair of vocabulary and merges.

    Attributes:
        ids: Token -> id; the ids are 0, 1, ... without a gap.
        merges: Pairs in order of priority.
    """

    ids: Mapping[str, int]
    merges: Sequence[tuple[str, str]]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def end_of_text(self) -> int:
        """Id of the token that ends every document."""
        return self.ids[END_OF_TEXT]

    def write(self, folder: Path) -> None:
        """Write both files into a folder, under GPT-2's names."""
        ordered = dict(sorted(self.ids.items(), key=lambda entry: entry[1]))
        (folder / VOCAB_NAME).write_text(json.dumps(ordered), encoding="utf-8")
        lines = [_VERSION_LINE, *(f"{left} {right}" for left, right in self.merges), ""]
        (folder / MERGES_NAME).write_text("\n".join(lines), encoding="utf-8")

    @classmethod
    def read(cls, vocab: Path, merges: Path) -> Vocabulary:
        """Read the two files and check that they belong together.

        Raises:
            FileNotFoundError: one of them is not there.
            ValueError: one of them is not what it should be, or they belong to different tokenizers.
        """
        return cls._checked(_read_ids(vocab), _read_merges(merges), vocab, merges)

    @classmethod
    def read_json(cls, path: Path) -> Vocabulary:
        """Read a Hugging Face tokenizer.json that does what GPT-2's tokenizer does.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: it is another kind of tokenizer, or damaged.
        """
        text = _read(path, "a tokenizer.json")
        try:
            raw = json.loads(text)
            problem = _find_difference(raw)
            if problem:
                raise ValueError(problem)
            model = raw["model"]
            ids = {**model["vocab"], **{token["content"]: token["id"] for token in raw.get("added_tokens") or []}}
            pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
            merges = [(left, right) for left, right in pairs]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"the tokenizer must be GPT-2's byte-level BPE; {path} is something else or damaged: {error}. Pass the "
                "tokenizer.json of a GPT-2 or GPT-Neo model, or train one with --train-tokenizer."
            ) from error
        _check_ids(ids, path)
        return cls._checked(ids, merges, path, path)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of tokens, ids and merges, however the files are laid out."""
        content = json.dumps([sorted(self.ids.items(), key=lambda entry: entry[1]), list(map(list, self.merges))])
        return hashlib.sha256(content.encode()).hexdigest()

    @classmethod
    def _checked(cls, ids: dict[str, int], pairs: list[tuple[str, str]], vocab: Path, merges: Path) -> Vocabulary:
        """Check that ids and merges belong together; the paths are for messages."""
        if END_OF_TEXT not in ids:
            raise ValueError(f"a vocabulary must hold {END_OF_TEXT}, which ends documents; {vocab} does not. {_PAIR}")
        missing_bytes = [symbol for symbol in byte_symbols() if symbol not in ids]
        if missing_bytes:
            raise ValueError(
                f"a byte-level vocabulary must hold all 256 byte symbols; {vocab} lacks {len(missing_bytes)}, "
                f"{missing_bytes[0]!r} first. {_PAIR}"
            )
        for line, (left, right) in enumerate(pairs, start=1):
            for token in (left, right, left + right):
                if token not in ids:
                    raise ValueError(
                        f"vocabulary and merges must belong together; merge {line} of {merges}, {left!r} {right!r}, "
                        f"needs the token {token!r}, which {vocab} lacks. {_PAIR}"
                    )
        reachable = {*byte_symbols(), *(left + right for left, right in pairs)}
        stray = [token for token in ids if token not in reachable and not _SPECIAL.fullmatch(token)]
        if stray:
            raise ValueError(
                f"vocabulary and merges must belong together; {len(stray)} tokens of {vocab}, {stray[0]!r} first, "
                f"come from no merge of {merges}. {_PAIR}"
            )
        return cls(ids, pairs)


_PAIR = f"Pass the two files of one tokenizer, as {VOCAB_NAME} and {MERGES_NAME} are."


def read_vocab_size(path: Path | str) -> int:
    """Count the tokens of a vocabulary.

    Args:
        path: A vocabulary file, or the folder that holds gpt2-vocab.json.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is not a vocabulary.
    """
    path = Path(path)
    return len(_read_ids(path / VOCAB_NAME if path.is_dir() else path))


def _read_ids(path: Path) -> dict[str, int]:
    text = _read(path, "a vocabulary file, JSON")
    try:
        ids = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"a vocabulary must be JSON; {path} is not: {error}. {_PAIR}") from error
    if not isinstance(ids, dict):
        raise ValueError(f"a vocabulary must be one JSON object, token -> id; {path} is something else. {_PAIR}")
    _check_ids(ids, path)
    return ids


def _check_ids(ids: dict[str, Any], path: Path) -> None:
    if not all(type(value) is int for value in ids.values()):
        raise ValueError(f"a vocabulary must be one JSON object, token -> id; {path} is something else. {_PAIR}")
    if sorted(ids.values()) != list(range(len(ids))) or not ids:
        raise ValueError(
            f"the {len(ids)} tokens of a vocabulary must have the ids 0 to {len(ids) - 1}, each once; "
            f"in {path} they have others. {_PAIR}"
        )


def _find_difference(raw: dict[str, Any]) -> str | None:
    """Say in what a tokenizer.json departs from GPT-2's byte-level BPE, None if in nothing."""
    model, splitter = raw["model"], raw.get("pre_tokenizer") or {}
    if splitter.get("type") == "Sequence" and len(splitter["pretokenizers"]) == 1:
        splitter = splitter["pretokenizers"][0]
    differences = {
        f"its model is {model.get('type')}": model.get("type") != "BPE",
        "it changes the text before (normalizer)": bool(raw.get("normalizer")),
        "it splits words in another way (pre_tokenizer)": splitter.get("type") != "ByteLevel"
        or not splitter.get("use_regex", True),
        "it puts a space before the text": splitter.get("add_prefix_space", False),
        "it drops merges at random": bool(model.get("dropout")),
        "it marks parts of words": bool(model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")),
        "it takes whole words before merges": bool(model.get("ignore_merges")),
    }
    return next((text for text, holds in differences.items() if holds), None)


def _read_merges(path: Path) -> list[tuple[str, str]]:
    lines = _read(path, "a merges file, text with two tokens a line").split("\n")
    pairs = []
    for number, line in enumerate(lines, start=1):
        if (number == 1 and line.startswith("#version")) or not line.strip():
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2 or not all(parts):
            raise ValueError(
                f"a merges file must hold two tokens a line; line {number} of {path} is {line[:60]!r}. {_PAIR}"
            )
        pairs.append((parts[0], parts[1]))
    return pairs


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise FileNotFoundError(f"{what}, is needed; there is none at {path}. {_PAIR}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{what}, is needed; {path} is not UTF-8 text. {_PAIR}") from error
