# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Installed both ways, editable and not, the package finds its configurations, and needs no checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from checkout import ROOT, copy_checkout


@pytest.mark.parametrize("editable", [False, True])
def test_the_configurations_are_found(tmp_path, editable):
    source = ROOT
    if not editable:
        source = tmp_path / "source"
        copy_checkout(source)
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    # The new environment sees the packages of this one, but not its nemo_sr: that is installed anew, below.
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check", "--force-reinstall"]
    mode = ["--editable"] if editable else []
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            *options,
            "--force-reinstall",
            *mode,
            str(source),
        ],
        check=True,
        env=variables,
        cwd=tmp_path,
    )
    code = "import nemo_sr, nemo_sr.training.config as c; print(nemo_sr.__file__); print(c.find_conf())"
    output = subprocess.run(
        [str(python), "-c", code], check=True, capture_output=True, text=True, env=variables, cwd=tmp_path
    ).stdout.splitlines()
    package, conf = (Path(line) for line in output)
    expected = ROOT if editable else site
    assert package.is_relative_to(expected)
    assert conf == (ROOT / "conf" if editable else site / "nemo_sr" / "conf")
    assert (conf / "optim" / "adamw_sr.yaml").is_file()
    help_text = subprocess.run(
        [str(python), "-m", "nemo_sr.training.pretrain", "--help"],
        check=True,
        capture_output=True,
        text=True,
        env=variables,
        cwd=tmp_path,
    ).stdout
    assert "optim.name" in help_text
