# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Downloads from a loopback server: resumed, checked, and never under a final name before that."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nemo_sr.data import download
from nemo_sr.data.download import download_dump, fetch
from nemo_sr.data.preprocess import main
from nemo_sr.data.vocabulary import MERGES_NAME, VOCAB_NAME

DATA = bytes(i * i % 251 for i in range(300_000))
SHA1 = hashlib.sha1(DATA).hexdigest()


class Server:
    """Serves files; `breaks` are numbers of bytes after which the next answers break off."""

    def __init__(self):
        self.files = {}
        self.requests = []
        self.breaks = []
        self.takes_ranges = True
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                start = int(re.match(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])
                server.requests.append((self.path, start))
                data = server.files.get(self.path)
                if data is None:
                    return self.send_error(404)
                if not server.takes_ranges:
                    start = 0
                if start and start >= len(data):
                    return self.send_error(416)
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                length = server.breaks.pop(0) if server.breaks else len(data)
                self.wfile.write(data[start : start + length])
                return None

            def log_message(self, *args):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "_PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.close()


def fetch_file(server, path, digest=SHA1):
    server.files.setdefault("/f", DATA)
    return fetch(server.url + "/f", path, algorithm="sha1", digest=digest)


def test_connections_that_break_off_are_resumed(server, tmp_path):
    server.breaks = [100_000, 0, 50_000]
    assert fetch_file(server, tmp_path / "f").read_bytes() == DATA
    assert server.requests == [("/f", 0), ("/f", 100_000), ("/f", 100_000), ("/f", 150_000)]
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_later_call_goes_on(server, tmp_path):
    server.breaks = [10_000] * download._ATTEMPTS
    with pytest.raises(
        ConnectionError, match=r"could not be fetched .the connection broke off at byte 50000 of 300000"
    ):
        fetch_file(server, tmp_path / "f")
    assert [path.name for path in tmp_path.iterdir()] == ["f.part"]
    fetch_file(server, tmp_path / "f")
    assert server.requests[-1] == ("/f", 50_000)


def test_what_is_whole_already_is_only_checked(server, tmp_path):
    (tmp_path / "f.part").write_bytes(DATA)
    assert fetch_file(server, tmp_path / "f").read_bytes() == DATA
    server.requests.clear()
    fetch_file(server, tmp_path / "f")
    assert server.requests == []
    (tmp_path / "f").write_bytes(b"other")
    with pytest.raises(ValueError, match="Move it"):
        fetch_file(server, tmp_path / "f")


def test_servers_without_ranges_send_all_again(server, tmp_path):
    server.takes_ranges = False
    server.breaks = [100_000]
    assert fetch_file(server, tmp_path / "f").read_bytes() == DATA


def test_damaged_data_get_no_name(server, tmp_path):
    with pytest.raises(OSError, match=f"must have the sha1 {'0' * 40}; what arrived has {SHA1}"):
        fetch_file(server, tmp_path / "f", digest="0" * 40)
    assert list(tmp_path.iterdir()) == []


def test_nothing_there(server, tmp_path):
    with pytest.raises(ValueError, match="the server says 404"):
        fetch(server.url + "/none", tmp_path / "f", algorithm="sha1", digest=SHA1)
    assert server.requests == [("/none", 0)]


@pytest.fixture
def mirror(server, write_dump, sample_data, monkeypatch):
    """A mirror of Wikimedia with one small dump, and one of GPT-2's files."""
    monkeypatch.setenv("NEMO_SR_DUMPS_URL", server.url + "/")
    monkeypatch.setenv("NEMO_SR_TOKENIZERS_URL", server.url)
    name = "xxwiki-20260101-pages-articles-multistream.xml.bz2"
    data = write_dump([("A", "some text")]).read_bytes()
    server.files[f"/xxwiki/20260101/{name}"] = data
    sums = f"{SHA1}  xxwiki-20260101-pages-meta-history.xml.bz2\n{hashlib.sha1(data).hexdigest()}  {name}\n".encode()
    server.files["/xxwiki/latest/xxwiki-latest-sha1sums.txt"] = sums
    server.files["/xxwiki/20260101/xxwiki-20260101-sha1sums.txt"] = sums
    server.files["/xxwiki/20260201/xxwiki-20260201-sha1sums.txt"] = b""
    files = {}
    for here, there in ((VOCAB_NAME, "vocab.json"), (MERGES_NAME, "merges.txt")):
        data = server.files[f"/gpt2/resolve/main/{there}"] = (sample_data / here).read_bytes()
        files[here] = (there, hashlib.sha256(data).hexdigest())
    monkeypatch.setitem(download.TOKENIZERS, "gpt2", files)
    return server


@pytest.mark.parametrize("wiki", ["xxwiki", "xxwiki/20260101"])
def test_one_command_from_the_network_to_the_data(mirror, tmp_path, wiki):
    words = ["--download", wiki, "--download-tokenizer", "gpt2", "--output", str(tmp_path / "out/x"), "--workers", "1"]
    assert main(words) == 0
    assert (tmp_path / "out/x_text_document.idx").exists()
    assert (tmp_path / "out/xxwiki-20260101-pages-articles-multistream.xml.bz2").exists()
    mirror.requests.clear()
    assert main(words) == 0
    assert [path for path, _ in mirror.requests] == (
        ["/xxwiki/latest/xxwiki-latest-sha1sums.txt"] if wiki == "xxwiki" else []
    )


def test_a_dump_that_is_not_finished(mirror, tmp_path, capsys):
    with pytest.raises(ValueError, match=r"names 0\. Choose another"):
        download_dump("xxwiki/20260201", tmp_path)
    words = ["--download-tokenizer", "gpt2", "--output", str(tmp_path / "x")]
    assert main(["--download", "xxwiki/20260301", *words]) == 2
    assert "the server says 404" in capsys.readouterr().err
    for wrong in ("en wiki", "enwiki/2026"):
        with pytest.raises(SystemExit):
            main(["--download", wrong, *words])
        assert f"as in enwiki/20260101; got {wrong}" in capsys.readouterr().err


def test_no_network(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(download, "_PAUSE", 0.0)
    monkeypatch.setenv("NEMO_SR_DUMPS_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert main(["--download", "enwiki", "--train-tokenizer", "300", "--output", str(tmp_path / "x")]) == 1
    assert "could not be fetched" in capsys.readouterr().err
