# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""How fast scripts/preprocess_wikipedia.py is, stage by stage, and how much memory it takes, as Markdown tables.

    python benchmarks/preprocess.py --dump enwiki-206-pages.xml.bz2 --vocab gpt2-vocab.json --merges gpt2-merges.txt

repeats the dump's pages, with other ids and titles, up to --size-mb of XML, preprocesses that with each number of
--workers, and times the libraries alone, in a tight loop in one process, on the dump as it is. Seconds of processor are
those of all processes together: on a machine that has other work too they say more than the seconds that passed.
"""

import argparse
import bz2
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from xml.etree.ElementTree import fromstring

import mwparserfromhell
import psutil

from nemo_sr.data.dump import parse_page, read_site
from nemo_sr.data.markup import clean
from nemo_sr.data.sources import Source
from nemo_sr.data.tokenizer import build_tokenizer
from nemo_sr.data.vocabulary import Vocabulary

SCRIPT = Path(__file__).parents[1] / "scripts" / "preprocess_wikipedia.py"
PAGES_PER_STREAM = 100  # as in Wikipedia's multistream dumps


def read_arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dump", type=Path, required=True, help="a real dump, .xml.bz2")
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--merges", type=Path, required=True)
    parser.add_argument("--size-mb", type=float, default=1000, help="XML to preprocess (default: %(default)s)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    return parser.parse_args()


def repeat_dump(data, path, size):
    """Write a multistream dump of at least ``size`` bytes of XML; return its bytes of XML."""
    start, end = data.index(b"<page>"), data.rindex(b"</page>") + len(b"</page>")
    copies = -(-(size - start) // (end - start))
    written = 0
    with path.open("wb") as file, ProcessPoolExecutor(2) as pool:
        file.write(bz2.compress(data[:start]))
        for streams in pool.map(compress_copy, [data[start:end]] * copies, range(copies)):
            for length, packed in streams:
                written += length
                file.write(packed)
        file.write(bz2.compress(data[end:]))
    return start + written + len(data) - end


def compress_copy(pages, copy):
    """Change the ids and titles of all pages and compress them; return the lengths and the streams."""
    number = copy * 100_000_000
    pages = re.sub(rb"(<ns>\d+</ns>\s*<id>)(\d+)", lambda match: match[1] + b"%d" % (int(match[2]) + number), pages)
    pages = pages.replace(b"</title>", b" (%d)</title>" % copy)
    cuts = [match.end() for match in re.finditer(rb"</page>\s*", pages)][PAGES_PER_STREAM - 1 :: PAGES_PER_STREAM]
    parts = [pages[a:b] for a, b in zip([0, *cuts], [*cuts, len(pages)], strict=True) if a < b]
    return [(len(part), bz2.compress(part)) for part in parts]


def run(arguments, dump, folder, workers):
    """Preprocess; return the report, seconds, processor seconds, and the peak memory of parent and largest worker."""
    command = [sys.executable, SCRIPT, "--input", dump, "--output", folder / "x", "--vocab", arguments.vocab]
    command += ["--merges", arguments.merges, "--workers", workers]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    peaks = {}
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL) as process:
        parent = psutil.Process(process.pid)
        while process.poll() is None:
            for one in (parent, *parent.children()):
                try:
                    peaks[one.pid] = max(peaks.get(one.pid, 0), one.memory_info().rss)
                except psutil.NoSuchProcess:  # noqa: PERF203
                    continue
            time.sleep(0.1)
    assert process.returncode == 0
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report = json.loads((folder / "report.json").read_text())
    own = peaks.pop(process.pid)
    return report, seconds, used, own, max(peaks.values(), default=0)


def time_libraries(data, arguments):
    """Return processor seconds per MB of XML of each library alone, and of our cleaning in one process."""
    site = read_site(Source(arguments.dump))
    fragments = re.findall(rb"<page>.*?</page>", data, re.DOTALL)
    pages = [parse_page(fragment, site) for fragment in fragments]
    markup = [page.text for page in pages if page.namespace == 0 and not page.redirect]
    texts = [clean(text, hidden_prefixes=site.hidden_prefixes) for text in markup]
    packed = arguments.dump.read_bytes()
    encode = build_tokenizer(Vocabulary.read(arguments.vocab, arguments.merges)).encode_batch_fast
    loops = {
        "bz2": lambda: bz2.decompress(packed),
        "xml.etree": lambda: [fromstring(fragment) for fragment in fragments],
        "mwparserfromhell": lambda: [mwparserfromhell.parse(text, skip_style_tags=True) for text in markup],
        "tokenizers": lambda: [encode([text]) for text in texts],
        "cleaning (ours)": lambda: [clean(text, hidden_prefixes=site.hidden_prefixes) for text in markup],
    }
    seconds = {}
    for name, loop in loops.items():
        begin = time.process_time()
        loop()
        seconds[name] = (time.process_time() - begin) / (len(data) / 1e6)
    return seconds


def main():
    """Print the tables."""
    arguments = read_arguments()
    data = bz2.decompress(arguments.dump.read_bytes())
    alone = time_libraries(data, arguments)
    print("| alone, one process | MB of XML per second of processor |\n|---|---|")
    for name, seconds in alone.items():
        print(f"| {name} | {1 / seconds:.1f} |")
    libraries = sum(seconds for name, seconds in alone.items() if not name.endswith("(ours)"))
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump.xml.bz2"
        size = repeat_dump(data, dump, int(arguments.size_mb * 1e6)) / 1e6
        print(f"\n{size:.0f} MB of XML, {dump.stat().st_size / 1e6:.0f} MB compressed\n")
        print(
            "| workers | articles, MB/s of XML | tokens, MB/s of text | all, s | processor s | libraries / ours |",
            end="",
        )
        print(" parent, MiB | largest worker, MiB |\n|---|---|---|---|---|---|---|---|")
        hashes = set()
        for workers in arguments.workers:
            out = Path(folder) / str(workers)
            report, seconds, used, own, largest = run(arguments, dump, out, workers)
            stages = report["seconds"]
            text = report["sizes"]["train_data.jsonl"] / 1e6
            print(
                f"| {workers} | {size / stages['articles']:.2f} | {text / stages['tokens']:.2f} | {seconds:.0f} "
                f"| {used:.0f} | {libraries * size / used:.2f} | {own >> 20} | {largest >> 20} |",
                flush=True,
            )
            hashes.add(tuple((out / name).read_bytes() for name in ("x_text_document.bin", "x_text_document.idx")))
        print(f"\nthe outputs are {'the same bytes' if len(hashes) == 1 else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
