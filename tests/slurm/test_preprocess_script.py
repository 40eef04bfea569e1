# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""``slurm/preprocess.slurm`` on a real SLURM: an array of shares and the job that joins them, the bytes of one run."""

import json
import re
import subprocess

import pytest
from jobs import variables
from toy import ROOT

from nemo_sr.data.preprocess import main

pytestmark = pytest.mark.slow


def test_an_array_gives_the_bytes_of_one_run(cluster, toy, tmp_path):
    inputs = [tmp_path / f"texts{number}.jsonl" for number in range(3)]
    for number, path in enumerate(inputs):
        texts = [f"Text {line} of {number} has {'many ' * (line % 50)}words." for line in range(120)]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    words = ["--input-jsonl", *map(str, inputs), "--vocab", f"{toy.parent}/gpt2-vocab.json"]
    words += ["--merges", f"{toy.parent}/gpt2-merges.txt"]
    assert main([*words, "--output", str(tmp_path / "whole/x"), "--workers", "1"]) == 0
    command = [ROOT / "slurm/preprocess.slurm", "--shards", "3", f"--output={tmp_path}/log.%a", "--", *words]
    submitted = subprocess.run(
        [*command, "--output", str(tmp_path / "parts/x")],
        env={**cluster.environment, **variables()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert submitted.returncode == 0, submitted.stderr
    array, joined = re.findall(r"job (\d+)", submitted.stdout)
    done = cluster.wait(joined, 240)
    logs = {path.name: path.read_text() for path in tmp_path.glob("log.*")}
    assert cluster.describe(array)["JobState"] == "COMPLETED"
    assert (done["JobState"], done["ExitCode"]) == ("COMPLETED", "0:0"), logs
    files = {path.name for path in (tmp_path / "whole").iterdir()} - {"report.json"}
    assert {"x_text_document.bin", "x_text_document.idx"} <= files
    for name in files:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    shares = sorted((tmp_path / "parts").glob("shard-*-of-3"))
    documents = [json.loads((share / "report.json").read_text())["tokens"]["documents"] for share in shares]
    assert (sum(documents), len(documents)) == (360, 3)
    assert max(documents) < 360
