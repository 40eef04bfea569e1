# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Dumps and tokenizers from the network, resumed where a download broke off and checked before they get their names.

Nothing is fetched unless it is asked for. The addresses are those of Wikimedia and of GPT-2's files at Hugging Face;
the variables NEMO_SR_DUMPS_URL and NEMO_SR_TOKENIZERS_URL name mirrors with the same layout.
"""

from __future__ import annotations

import http.client
import os
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from nemo_sr.data.progress import say, stage_bar
from nemo_sr.data.report import hash_file
from nemo_sr.data.vocabulary import MERGES_NAME, VOCAB_NAME

DUMPS_URL = "https://dumps.wikimedia.org"
TOKENIZERS_URL = "https://huggingface.co/openai-community"
TOKENIZERS = {
    "gpt2": {
        VOCAB_NAME: ("vocab.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
        MERGES_NAME: ("merges.txt", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
    }
}
"""Name -> file here -> file there and its SHA-256."""

_READ = 1 << 20
_ATTEMPTS = 5
_TIMEOUT = 60.0  # seconds without a byte
_PAUSE = 2.0  # seconds before the second attempt, doubled for each further one


def download_dump(wiki: str, folder: Path) -> Path:
    """Fetch a wiki's multistream dump of pages and articles, unless it is there, and check its SHA-1.

    Args:
        wiki: Database name and date, "enwiki/20260101", or the name alone for the newest dump.
        folder: Where to put it.

    Returns:
        The file.

    Raises:
        ValueError: there is no such dump.
        OSError: it cannot be fetched or written; what has arrived is kept for the next call.
    """
    name, _, date = wiki.partition("/")
    base = os.environ.get("NEMO_SR_DUMPS_URL", DUMPS_URL).rstrip("/")
    file = f"{name}-{date}-pages-articles-multistream.xml.bz2"
    if date and (folder / file).exists():
        return folder / file
    listing = f"{base}/{name}/{date or 'latest'}/{name}-{date or 'latest'}-sha1sums.txt"
    sums = {entry[1]: entry[0] for line in _fetch_text(listing).splitlines() if len(entry := line.split()) == 2}
    found = [entry for entry in sums if re.fullmatch(rf"{name}-\d+-pages-articles-multistream\.xml\.bz2", entry)]
    if len(found) != 1:
        raise ValueError(
            f"a dump must have one pages-articles-multistream.xml.bz2; {listing} names {len(found)}. Choose another "
            "date: a dump may not be finished yet."
        )
    date = found[0].split("-")[1]
    return fetch(f"{base}/{name}/{date}/{found[0]}", folder / found[0], algorithm="sha1", digest=sums[found[0]])


def download_tokenizer(name: str, folder: Path) -> tuple[Path, Path]:
    """Fetch the vocabulary and the merges of a tokenizer, unless they are there, and check their SHA-256.

    Args:
        name: One of ``TOKENIZERS``.
        folder: Where to put them.

    Raises:
        OSError: they cannot be fetched or written.
    """
    base = os.environ.get("NEMO_SR_TOKENIZERS_URL", TOKENIZERS_URL).rstrip("/")
    paths = {}
    for here, (there, digest) in TOKENIZERS[name].items():
        paths[here] = fetch(f"{base}/{name}/resolve/main/{there}", folder / here, algorithm="sha256", digest=digest)
    return paths[VOCAB_NAME], paths[MERGES_NAME]


def fetch(url: str, path: Path, *, algorithm: str, digest: str) -> Path:
    """Fetch a file, going on where an earlier call stopped; it gets its name when its checksum is right.

    Args:
        url: Its address.
        path: Its name. If that is taken, the file there must have the checksum.
        algorithm: Of the checksum, as hashlib names it.
        digest: The checksum, in hexadecimal digits.

    Returns:
        ``path``.

    Raises:
        ValueError: there is nothing at the address, or another file has the name.
        OSError: it cannot be fetched or written, or is damaged; what has arrived well is kept.
    """
    if path.exists():
        if hash_file(path, algorithm) != digest:
            raise ValueError(
                f"{path} must have the {algorithm} {digest} to be used in place of {url}; it has not. Move it."
            )
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    for attempt in range(_ATTEMPTS):
        try:
            _append(url, partial)
            break
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (408, 429):  # else it is busy
                raise ValueError(
                    f"there must be a file at {url}; the server says {error.code} {error.reason}."
                ) from error
            problem: Exception = error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno == 28:  # no space left
                raise
            problem = error
        if attempt == _ATTEMPTS - 1:
            raise ConnectionError(f"{url} could not be fetched ({problem}).") from problem
        time.sleep(_PAUSE * 2**attempt)
    found = hash_file(partial, algorithm)
    if found != digest:
        partial.unlink()
        raise OSError(f"{url} must have the {algorithm} {digest}; what arrived has {found} and was removed.")
    os.replace(partial, path)
    say(f"{path}: {path.stat().st_size} bytes, {algorithm} {digest} as published")
    return path


def _append(url: str, partial: Path) -> None:
    """Fetch what is missing of a file."""
    start = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response: Any = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing is missing, which the checksum tells
            return
        raise
    with response:
        if response.status != 206:
            start = 0  # the server sends all of it
        length = response.headers.get("Content-Length")
        expected = None if length is None else start + int(length)
        with partial.open("r+b" if start else "wb") as file, stage_bar(partial.stem, expected or 0) as bar:
            file.seek(start)
            bar.update(start)
            while data := response.read(_READ):
                file.write(data)
                bar.update(len(data))
            if expected is not None and file.tell() < expected:
                raise ConnectionError(f"the connection broke off at byte {file.tell()} of {expected}")


def _fetch_text(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        raise ValueError(f"there must be a list of checksums at {url}; the server says {error.code}.") from error
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(f"{url} could not be fetched ({error}).") from error
