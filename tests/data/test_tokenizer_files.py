# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Vocabularies, and text to ids and back."""

import json

import pytest
from tokenizers import pre_tokenizers

from nemo_sr.data.tokenizer import build_tokenizer, train_vocabulary
from nemo_sr.data.vocabulary import END_OF_TEXT, MERGES_NAME, VOCAB_NAME, Vocabulary, byte_symbols, read_vocab_size

TEXTS = ["the cat sat on the mat and the rat sat on the cat"] * 3 + ["naïve café 北京 \U0001f600 # #version"]
EVERY_BYTE = "".join(map(chr, range(0x180))) + "\u0800\uffff\U00010000\U0010ffff\n\n  x\t"


@pytest.fixture
def vocabulary():
    return train_vocabulary(TEXTS, size=280, num_threads=1)


def test_byte_symbols_are_those_of_the_library():
    assert sorted(byte_symbols()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = build_tokenizer(Vocabulary({**{s: i for i, s in enumerate(byte_symbols())}, END_OF_TEXT: 256}, []))
    assert tokenizer.encode("é\n").ids == list("é\n".encode())


def test_trained_vocabulary_is_laid_out_as_gpt2s(vocabulary):
    assert len(vocabulary) == 280
    assert vocabulary.end_of_text == 279
    assert sorted(vocabulary.ids.values()) == list(range(280))
    assert [vocabulary.ids[left + right] for left, right in vocabulary.merges] == list(range(256, 279))


def test_training_does_not_depend_on_threads(run_script, vocabulary):
    for threads in (2, 3):
        assert train_vocabulary(TEXTS, size=280, num_threads=threads) == vocabulary


def test_little_text_yields_fewer_tokens():
    vocabulary = train_vocabulary(["aa"], size=1000, num_threads=1)
    assert len(vocabulary) == 258
    assert vocabulary.merges == [("a", "a")]


def test_smallest_vocabulary_has_no_merges(tmp_path):
    vocabulary = train_vocabulary(TEXTS, size=257, num_threads=1)
    vocabulary.write(tmp_path)
    assert Vocabulary.read(tmp_path / VOCAB_NAME, tmp_path / MERGES_NAME) == vocabulary
    assert vocabulary.merges == []
    with pytest.raises(ValueError, match="257 tokens; got 256"):
        train_vocabulary(TEXTS, size=256, num_threads=1)


@pytest.mark.parametrize("text", [*TEXTS, EVERY_BYTE, "", " ", END_OF_TEXT, f"a{END_OF_TEXT}b"])
def test_round_trip(vocabulary, text):
    tokenizer = build_tokenizer(vocabulary)
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert vocabulary.end_of_text not in ids  # a quoted end of text ends nothing


def test_files_round_trip(vocabulary, tmp_path):
    vocabulary.write(tmp_path)
    assert Vocabulary.read(tmp_path / VOCAB_NAME, tmp_path / MERGES_NAME) == vocabulary
    assert read_vocab_size(tmp_path) == read_vocab_size(tmp_path / VOCAB_NAME) == 280


def test_merge_of_number_signs_is_no_comment(tmp_path):
    vocabulary = train_vocabulary(["## ## ##"], size=258, num_threads=1)
    vocabulary.write(tmp_path)
    assert vocabulary.merges == [("#", "#")]
    assert Vocabulary.read(tmp_path / VOCAB_NAME, tmp_path / MERGES_NAME) == vocabulary


def _drop(ids, token):
    del ids[token]
    return {name: number for number, name in enumerate(ids)}


BREAKS = {
    "not JSON": (lambda ids, merges: ("{", merges), "must be JSON"),
    "a list": (lambda ids, merges: ("[1]", merges), "one JSON object"),
    "an id that is no number": (lambda ids, merges: ({**ids, "a": "1"}, merges), "one JSON object"),
    "an id that is a truth value": (lambda ids, merges: ({**ids, "a": True}, merges), "one JSON object"),
    "empty": (lambda ids, merges: ({}, merges), "ids 0 to"),
    "a gap": (lambda ids, merges: ({**ids, "a": 1000}, merges), "ids 0 to 279, each once"),
    "no end of text": (lambda ids, merges: (_drop(ids, END_OF_TEXT), merges), "must hold <|endoftext|>"),
    "no byte": (lambda ids, merges: (_drop(ids, "Ā"), []), "lacks 1, 'Ā' first"),
    "foreign merge": (lambda ids, merges: (ids, [*merges, "q q"]), "needs the token 'qq'"),
    "merges of a smaller vocabulary": (lambda ids, merges: (ids, merges[:-3]), "3 tokens of .* come from no merge"),
    "three tokens a line": (lambda ids, merges: (ids, [*merges, "a b c"]), "line 25 .* is 'a b c'"),
    "one token a line": (lambda ids, merges: (ids, ["", *merges, "ab"]), "line 26 .* is 'ab'"),
}


@pytest.mark.parametrize(("change", "message"), BREAKS.values(), ids=BREAKS.keys())
def test_bad_files_are_refused(vocabulary, tmp_path, change, message):
    merges = [f"{left} {right}" for left, right in vocabulary.merges]
    ids, lines = change(dict(vocabulary.ids), merges)
    (tmp_path / VOCAB_NAME).write_text(ids if isinstance(ids, str) else json.dumps(ids), encoding="utf-8")
    (tmp_path / MERGES_NAME).write_text("\n".join(["#version: 0.2", *lines]), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Vocabulary.read(tmp_path / VOCAB_NAME, tmp_path / MERGES_NAME)


def test_missing_and_binary_files_are_refused(vocabulary, tmp_path):
    vocabulary.write(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is none at"):
        Vocabulary.read(tmp_path / VOCAB_NAME, tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="there is none at"):
        read_vocab_size(tmp_path / "missing.json")
    (tmp_path / MERGES_NAME).write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not UTF-8"):
        Vocabulary.read(tmp_path / VOCAB_NAME, tmp_path / MERGES_NAME)


def test_extra_special_tokens_are_allowed(vocabulary, tmp_path):
    Vocabulary({**vocabulary.ids, "<|pad|>": 280}, vocabulary.merges).write(tmp_path)
    assert len(Vocabulary.read(tmp_path / VOCAB_NAME, tmp_path / MERGES_NAME)) == 281


@pytest.fixture
def tokenizer_json(vocabulary, tmp_path):
    """A tokenizer.json as transformers writes GPT-2's, and a function that changes it."""
    from transformers import GPT2TokenizerFast

    vocabulary.write(tmp_path)
    GPT2TokenizerFast(str(tmp_path / VOCAB_NAME), str(tmp_path / MERGES_NAME)).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"

    def change(**changes):
        raw = json.loads(path.read_text(encoding="utf-8"))
        for key, value in changes.items():
            part, _, name = key.partition("__")
            (raw[part] if name else raw)[name or part] = value
        path.write_text(json.dumps(raw), encoding="utf-8")
        return path

    return change


def test_tokenizer_json_is_the_same_vocabulary(vocabulary, tokenizer_json):
    read = Vocabulary.read_json(tokenizer_json())
    assert (dict(read.ids), list(read.merges)) == (dict(vocabulary.ids), list(vocabulary.merges))
    assert read.fingerprint == vocabulary.fingerprint


def test_fingerprint_is_of_the_content(vocabulary, tmp_path):
    shuffled = dict(sorted(vocabulary.ids.items()))
    assert Vocabulary(shuffled, vocabulary.merges).fingerprint == vocabulary.fingerprint
    assert Vocabulary(vocabulary.ids, vocabulary.merges[::-1]).fingerprint != vocabulary.fingerprint
    swapped = {**vocabulary.ids, "a": vocabulary.ids["b"], "b": vocabulary.ids["a"]}
    assert Vocabulary(swapped, vocabulary.merges).fingerprint != vocabulary.fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__type": "WordPiece"}, "its model is WordPiece"),
        ({"normalizer": {"type": "NFC"}}, "it changes the text before"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "it splits words in another way"),
        ({"pre_tokenizer__use_regex": False}, "it splits words in another way"),
        ({"pre_tokenizer__add_prefix_space": True}, "it puts a space before"),
        ({"model__ignore_merges": True}, "takes whole words before merges"),
        ({"model__merges": None}, "something else or damaged"),
        ({"model__merges": [["q", "q"]]}, "needs the token 'qq'"),
    ],
)
def test_other_tokenizers_are_refused(tokenizer_json, changes, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary.read_json(tokenizer_json(**changes))
