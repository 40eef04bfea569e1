# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What docker/Dockerfile runs, in an environment that has torch and megatron-core: nothing that is there changes."""

import os
import re
import subprocess
import sysconfig
import venv

import pytest

from checkout import ROOT, copy_checkout

FREEZE = """
from importlib.metadata import distributions
print(*sorted({f"{d.name}=={d.version}" for d in distributions() if d.name != "nemo_sr"}), sep="\\n")
"""


@pytest.fixture
def environment(tmp_path):
    """A virtual environment that sees this one's packages, as an image's has its own; and a copy of the checkout."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    query = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    with open(f"{packages}/image.pth", "w") as file:
        file.write(sysconfig.get_path("purelib") + "\n")
    copy_checkout(tmp_path / "checkout")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**env, "PYTHON": str(python)}


def run(*command, env):
    return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=500)


@pytest.mark.slow
def test_what_the_image_has_stays_and_the_smoke_test_passes(environment, tmp_path):
    before = run(environment["PYTHON"], "-c", FREEZE, env=environment).stdout
    assert "\ntorch==" in before
    assert "\nmegatron-core==" in before
    done = run("bash", str(tmp_path / "checkout/docker/install.sh"), env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run(environment["PYTHON"], "-c", FREEZE, env=environment).stdout == before
    where = run(environment["PYTHON"], "-c", "import nemo_sr; print(nemo_sr.__file__)", env=environment).stdout
    assert where.startswith(str(tmp_path / "venv"))
    smoke = run("bash", str(tmp_path / "checkout/docker/smoke.sh"), env=environment)
    assert smoke.returncode == 0, smoke.stdout + smoke.stderr
    assert ": ready" in smoke.stdout


@pytest.mark.slow
def test_a_package_that_changes_is_an_error(environment, tmp_path):
    checkout = tmp_path / "checkout"
    script = (checkout / "docker/install.sh").read_text()
    lie = script.replace("pip_install .\n", 'before="torch==0.1"\n')
    assert lie != script
    (checkout / "docker/install.sh").write_text(lie)
    done = run("bash", str(checkout / "docker/install.sh"), env=environment)
    assert done.returncode == 1
    assert "these have changed or gone: torch==0.1" in done.stderr


def test_everything_that_training_requires_is_in_the_image_or_added():
    extras = re.findall(r'(?ms)^        "(?:megatron|nemo|data)": \[(.*?)\],$', (ROOT / "setup.py").read_text())
    assert len(extras) == 3
    required = {
        re.match(r"[\w-]+", name)[0] for name in re.findall(r'"(\w[^"]*)"', re.sub("#.*|MEGATRON", "", "".join(extras)))
    }
    assert {"lightning", "psutil", "tqdm"} < required
    added = set(re.findall(r'": "([\w-]+)"', (ROOT / "docker/install.sh").read_text()))
    assert required - added == {"nemo_toolkit", "numpy"}  # NeMo is there, and numpy with torch
