# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The blocks of code in the documents, with the marks that say how each is checked.

A mark is an HTML comment on a line of its own before a block:

    <!-- run -->             the block is run, by the ordinary tests
    <!-- run slow -->        the block is run by `make test-slow`
    <!-- needs a cluster --> whatever it is that it needs: it is not run, but scripts, options and keys are checked
    <!-- message -->         an error that the code raises (tests/test_troubleshooting.py)
    <!-- prints -->          what the blocks that are run print; a line "..." stands for any lines
    <!-- prints slow -->     an excerpt of what those print that `make test-slow` runs
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docker/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
PROGRAMS = ["python", "python3", "torchrun", "make", "sbatch", "docker", "pip", "git", "tensorboard", ".", "slurm/"]
_MARK = re.compile(r"<!-- (run|run slow|prints|prints slow|message|needs .+) -->")
_VARYING = re.compile(
    r"(?<=tokens/s )\d+|(?<=eta )\S+|(?<=TFLOP/s )\S+|\b[\d.]+(, [\d.]+)*(?= ([KMG]iB|s)\b)"
    r"|(?P<number>\b\d+\.\d+(e[+-]?\d+)?\b|\b\d+(?=%))"
)


@dataclass(frozen=True)
class Block:
    """A block of code: where it is, its language if the fence says one, its text and its mark."""

    document: Path
    line: int
    language: str
    text: str
    mark: str

    def __str__(self):
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def is_commands(self):
        """Whether the block begins with a program that the documents use, after variables."""
        words = re.sub(r"^([A-Z_]+=\S+ +)+", "", self.text).split()
        return (
            self.language in ("", "bash") and bool(words) and words[0].startswith(tuple(PROGRAMS)) and words[0] != "..."
        )


def read_blocks(document):
    """Return the blocks of a Markdown file, fenced or indented by four spaces."""
    lines = document.read_text(encoding="utf-8").splitlines()
    blocks, mark, i = [], "", 0
    while i < len(lines):
        line, start = lines[i], i
        if found := _MARK.fullmatch(line):
            mark = found[1]
        elif line.startswith("```"):
            while lines[i := i + 1] != "```":
                pass
            text = "\n".join(lines[start + 1 : i])
            blocks.append(Block(document, start + 1, line.removeprefix("```").strip(), text + "\n", mark))
            mark = ""
        elif line.startswith("    ") and not (i and lines[i - 1].strip()):
            while i < len(lines) and (lines[i].startswith("    ") or not lines[i].strip()):
                i += 1
            text = "\n".join(line.removeprefix("    ") for line in lines[start:i]).rstrip()
            blocks.append(Block(document, start + 1, "", text + "\n", mark))
            mark = ""
            continue
        elif line.strip():
            mark = ""
        i += 1
    return blocks


def read_all_blocks():
    """Return the blocks of all documents."""
    return [block for document in DOCUMENTS for block in read_blocks(document)]


def explain_difference(printed, shown, *, is_excerpt=False):
    """Return where what was printed differs from what a document shows, or None.

    Numbers with a decimal point and percentages may differ by a tenth: a processor's matrix products round in an
    order of its own. Times and memory are compared in nothing but their unit; whatever else, bits among it, as it is.

    Args:
        printed: What was printed.
        shown: What a document shows; a line "..." stands for any lines.
        is_excerpt: Let any lines be left out everywhere.
    """
    rest, may_skip = printed.splitlines(), is_excerpt
    for line in shown.splitlines():
        if line == "...":
            may_skip = True
            continue
        candidates = rest if may_skip else rest[:1]
        agreeing = [i for i, candidate in enumerate(candidates) if agree(candidate, line)]
        if not agreeing:
            return f"shown, and not printed where it should be: {line}\nprinted: {candidates}"
        del rest[: agreeing[0] + 1]
        may_skip = is_excerpt
    return f"printed, and not shown: {rest}" if rest and not may_skip else None


def agree(printed, shown):
    """Tell whether two lines agree but for what may differ."""
    pattern, numbers, at = "", [], 0
    for found in _VARYING.finditer(shown):
        pattern += re.escape(shown[at : found.start()])
        if found["number"]:
            numbers.append(float(found["number"]))
            pattern += r"(\d[\d.e+-]*)"
        else:
            pattern += ".+?"
        at = found.end()
    found = re.fullmatch(pattern + re.escape(shown[at:]), printed)
    pairs = zip(map(float, found.groups()), numbers, strict=True) if found else []
    return found is not None and all(abs(a - b) <= 0.1 * abs(b) for a, b in pairs)
