# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def toy_prefix(tmp_path_factory):
    from toy import write_toy_data

    return write_toy_data(tmp_path_factory.mktemp("toy"))
