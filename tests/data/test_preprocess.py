# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""From a dump to training data, end to end."""

import bz2
import hashlib
import json
from collections import Counter

import numpy as np
from megatron.core.datasets.indexed_dataset import IndexedDataset

from nemo_sr.data.indexed import check_prefix, read_vocab_size
from nemo_sr.data.preprocess import main
from nemo_sr.data.sample_corpus import sample_pages, write_sample_corpus
from nemo_sr.data.tokenizer import build_tokenizer
from nemo_sr.data.vocabulary import END_OF_TEXT, MERGES_NAME, VOCAB_NAME, Vocabulary

NAMES = ["gpt2-merges.txt", "gpt2-vocab.json", "report.json", "sample_text_document.bin", "sample_text_document.idx"]
NAMES.append("train_data.jsonl")


def run(*arguments):
    return main([str(argument) for argument in arguments])


def read_articles(folder):
    return [json.loads(line) for line in (folder / "train_data.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]


def check_tokens(folder, name):
    """Check that the documents are exactly the articles, each ended by one end of text; returns the ids' type."""
    vocabulary = Vocabulary.read(folder / VOCAB_NAME, folder / MERGES_NAME)
    tokenizer = build_tokenizer(vocabulary)
    check_prefix(folder / f"{name}_text_document")
    data = IndexedDataset(str(folder / f"{name}_text_document"))
    texts = []
    for i in range(len(data)):
        ids = data[i].tolist()
        assert ids[-1] == vocabulary.end_of_text
        assert vocabulary.end_of_text not in ids[:-1]
        texts.append(tokenizer.decode(ids[:-1]))
    assert texts == [article["text"] for article in read_articles(folder)]
    assert data.document_indices.tolist() == list(range(len(data) + 1))
    return data.index.dtype


def contents(folder):
    """Read every output but the report, which holds times."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "report.json"}


def test_sample_corpus_becomes_documents(sample_data):
    expected = [page for page in sample_pages() if page.text]
    articles = read_articles(sample_data)
    assert [article["title"] for article in articles] == [page.title for page in expected]
    assert [article["text"] for article in articles] == [page.text for page in expected]
    assert articles[0].keys() == {"text", "title", "id", "url"}
    assert articles[0]["url"].startswith("https://wiki.example.org/wiki/")
    assert check_tokens(sample_data, "sample") == np.uint16
    assert sorted(path.name for path in sample_data.iterdir()) == NAMES
    assert read_vocab_size(sample_data) == 2048


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_report_counts_everything(sample_data, sample_dump):
    report = json.loads((sample_data / "report.json").read_text())
    pages = list(sample_pages())
    articles = [page for page in pages if page.namespace == 0 and page.redirect is None]
    kept = [page for page in articles if page.text]
    assert report["pages"] == {
        "pages": len(pages),
        "redirects": sum(page.redirect is not None for page in pages),
        "other_namespaces": sum(page.namespace != 0 for page in pages),
        "other_models": 0,
        "articles": len(articles),
        "disambiguations": 0,
        "empty": len(articles) - len(kept),
        "kept": len(kept),
        "skipped": 0,
        "markup_characters": sum(len(page.wikitext) for page in kept),
        "text_characters": sum(len(page.text) for page in kept),
    }
    data = IndexedDataset(str(sample_data / "sample_text_document"))
    lengths = sorted(data.sequence_lengths.tolist())
    per_document = report["tokens"].pop("per_document")
    assert report["tokens"] == {
        "lines": len(kept), "documents": len(kept), "empty": 0, "skipped": 0, "tokens": sum(lengths)
    }  # fmt: skip
    assert (per_document["0%"], per_document["100%"]) == (lengths[0], lengths[-1])
    assert per_document["50%"] == lengths[(len(lengths) - 1) // 2]
    vocabulary = Vocabulary.read(sample_data / VOCAB_NAME, sample_data / MERGES_NAME)
    assert report["tokenizer"] == {
        "size": 2048, "trained": True, "end_of_text": 2047, "append_eod": True, "fingerprint": vocabulary.fingerprint
    }  # fmt: skip
    assert report["inputs"] == [
        {"name": str(sample_dump), "size": sample_dump.stat().st_size, "sha256": sha256(sample_dump)}
    ]


def test_output_does_not_depend_on_the_number_of_workers(tmp_path):
    dump = tmp_path / "dump.xml.bz2"
    write_sample_corpus(dump, megabytes=1.5, seed=3)  # several batches for each worker
    outputs = []
    for workers in (1, 2, 3):
        folder = tmp_path / str(workers)
        arguments = ["--input", dump, "--output", folder / "x", "--train-tokenizer", 1024]
        assert run(*arguments, "--workers", workers) == 0
        outputs.append(contents(folder))
    assert outputs[0].keys() == {name.replace("sample", "x") for name in NAMES} - {"report.json"}
    assert outputs[0] == outputs[1] == outputs[2]


def test_given_tokenizer_is_copied(write_dump, sample_data, tmp_path):
    vocab, merges = sample_data / VOCAB_NAME, sample_data / MERGES_NAME
    dump = write_dump([("A", f"Ä ''b'' {END_OF_TEXT}"), ("B", "{{x}}"), ("C", "c")])
    out = tmp_path / "new" / "deep"
    assert run("--input", dump, "--output", out / "x", "--vocab", vocab, "--merges", merges, "--workers", 2) == 0
    assert (out / VOCAB_NAME).read_bytes() == vocab.read_bytes()
    assert (out / MERGES_NAME).read_bytes() == merges.read_bytes()
    assert [article["text"] for article in read_articles(out)] == [f"Ä b {END_OF_TEXT}", "c"]
    assert check_tokens(out, "x") == np.uint16


def test_tokenizer_json_gives_the_same_data(write_dump, sample_data, tmp_path):
    from transformers import GPT2TokenizerFast

    vocab, merges = sample_data / VOCAB_NAME, sample_data / MERGES_NAME
    GPT2TokenizerFast(str(vocab), str(merges)).save_pretrained(tmp_path)
    dump = write_dump([("A", "Ä ''b'' words"), ("C", "c")])
    assert run("--input", dump, "--output", tmp_path / "1/x", "--vocab", vocab, "--merges", merges) == 0
    assert run("--input", dump, "--output", tmp_path / "2/x", "--tokenizer", tmp_path / "tokenizer.json") == 0
    check_tokens(tmp_path / "2", "x")
    assert (tmp_path / "1/x_text_document.bin").read_bytes() == (tmp_path / "2/x_text_document.bin").read_bytes()


def test_lines_of_json_need_no_dump(sample_data, tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": ""}\n')
    (tmp_path / "b.jsonl.bz2").write_bytes(bz2.compress(b'{"text": "two"}\nno\n'))
    words = ["--vocab", sample_data / VOCAB_NAME, "--merges", sample_data / MERGES_NAME, "--output", tmp_path / "out/x"]
    inputs = ["--input-jsonl", tmp_path / "a.jsonl", tmp_path / "b.jsonl.bz2"]
    assert run(*inputs, *words) == 3
    assert "1 are not and were left out, the first: {'file': " in capsys.readouterr().err
    assert run(*inputs, *words) == 3  # it is done, and still not all of it
    assert run(*inputs, *words, "--allow-skipped") == 0
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert (report["tokens"]["documents"], report["tokens"]["empty"], report["tokens"]["skipped"]) == (2, 1, 1)
    assert [(entry["file"], entry["line"]) for entry in report["skipped"]] == [(str(tmp_path / "b.jsonl.bz2"), 2)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "gpt2-merges.txt", "gpt2-vocab.json", "report.json", "x_text_document.bin", "x_text_document.idx"
    ]  # fmt: skip


def test_disambiguations_are_left_out_unless_wanted(write_dump, tmp_path):
    dump = write_dump([("A", "abc"), ("B", "''B'' may be:\n* b\n{{Disambig|geo}}"), ("C (disambiguation)", "c")])
    for words, count in (([], 1), (["--keep-disambiguations"], 3)):
        assert run("--input", dump, "--output", tmp_path / "out/x", "--train-tokenizer", 257, *words) == 0
        assert len(read_articles(tmp_path / "out")) == count
    assert json.loads((tmp_path / "out/report.json").read_text())["pages"]["articles"] == 3


def test_pages_that_cannot_be_read_are_counted_and_named(write_dump, tmp_path, capsys):
    """A broken page, and one whose markup would keep the parser for hours."""
    dump = write_dump(
        [("A", "abc"), ("B", "word"), ("D", "{{a|[[b|" * 100_000), ("E", "[[" * 10_000 + "{{" * 10_000)], "d.xml"
    )
    dump.write_bytes(dump.read_bytes().replace(b"word", b"w\xffrd"))
    for workers in (1, 2):
        out = tmp_path / str(workers)
        assert run("--input", dump, "--output", out / "x", "--train-tokenizer", 257, "--workers", workers) == 3
        assert "2 are not and were left out" in capsys.readouterr().err
        report = json.loads((out / "report.json").read_text())
        assert (report["pages"]["kept"], report["pages"]["skipped"]) == (2, 2)
        assert [entry["id"] for entry in report["skipped"]] == ["2", "3"]
        assert "UTF-8" in report["skipped"][0]["reason"]
        assert (
            report["skipped"][1]["reason"] == "its markup opens 200000 templates, links or tags that it does not close"
        )


def test_large_vocabulary_takes_four_bytes(write_dump, sample_data, tmp_path):
    small = Vocabulary.read(sample_data / VOCAB_NAME, sample_data / MERGES_NAME)
    ids = dict(small.ids)
    del ids[END_OF_TEXT]
    fillers = {f"<|filler {number}|>": number for number in range(len(ids), 70_000)}
    (tmp_path / "in").mkdir()
    Vocabulary({**ids, **fillers, END_OF_TEXT: 70_000}, small.merges).write(tmp_path / "in")
    files = ["--vocab", tmp_path / "in" / VOCAB_NAME, "--merges", tmp_path / "in" / MERGES_NAME]
    assert run("--input", write_dump([("A", "a b"), ("B", "c")]), "--output", tmp_path / "out/x", *files) == 0
    assert check_tokens(tmp_path / "out", "x") == np.int32  # in two bytes the end of text would become 4464


def test_finished_data_are_kept(write_dump, tmp_path, capsys):
    dump = write_dump([("A", "abc abc")])
    arguments = ["--input", dump, "--output", tmp_path / "out/x", "--train-tokenizer", 258, "--workers", 1]
    out = tmp_path / "out"

    def stamps():
        return {path.name: path.stat().st_mtime_ns for path in out.iterdir()}

    assert run(*arguments) == 0
    first = stamps()
    capsys.readouterr()
    assert run(*arguments[:-1], 2) == 0  # the number of workers changes nothing
    assert "are done" in capsys.readouterr().out
    assert stamps() == first
    changes = Counter()
    for change in (["--force"], ["--train-tokenizer", 259], []):
        before = stamps()
        assert run(*arguments, *change) == 0
        changes[stamps()["x_text_document.idx"] > before["x_text_document.idx"]] += 1
    assert changes == {True: 3}
    (out / "x_text_document.bin").write_bytes(b"")
    assert run(*arguments) == 0
    check_tokens(out, "x")
    write_dump([("A", "other text")])
    assert run(*arguments) == 0
    assert read_articles(out)[0]["text"] == "other text"


def test_tokenizer_of_other_data_is_not_replaced(write_dump, tmp_path, capsys):
    dump = write_dump([("A", "abc abc")])
    assert run("--input", dump, "--output", tmp_path / "out/x", "--train-tokenizer", 258) == 0
    before = contents(tmp_path / "out")
    assert run("--input", dump, "--output", tmp_path / "out/y", "--train-tokenizer", 257) == 2
    assert "one folder must hold data of one tokenizer" in capsys.readouterr().err
    assert contents(tmp_path / "out") == before


def test_progress_is_a_line_per_stage_without_a_terminal(write_dump, run_script, tmp_path):
    dump = write_dump([("A", "abc"), ("B", ""), ("T", "t", 10), ("R", "#REDIRECT [[A]]")])
    result = run_script(
        "preprocess_wikipedia.py", "--input", dump, "--output", tmp_path / "out/x", "--train-tokenizer", 257
    )
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("articles: 1 of 4 pages (1 redirects, 1 in other namespaces, 1 empty), 3 characters")
    assert lines[1].startswith("tokenizer: 257 tokens (trained)")
    assert lines[2].startswith("tokens: 4 in 1 documents")
    assert len(lines) == 3
