# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "training")]


@pytest.fixture(scope="session")
def cluster():
    from local_cluster import LocalCluster, missing_programs

    if missing := missing_programs():
        pytest.skip(f"SLURM's {', '.join(missing)} are not installed (Debian: apt-get install slurm-wlm munge)")
    folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))
    cluster = LocalCluster(folder)
    yield cluster
    cluster.close()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    from toy import write_toy_data

    return write_toy_data(tmp_path_factory.mktemp("toy"))
