# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Five kills at random points; `make soak` makes thirty."""

import pytest
from kill_points import KILLS, run_points


@pytest.mark.slow
def test_runs_that_are_killed_end_as_if_they_had_not_been(tmp_path):
    points = run_points(5, 1, tmp_path)
    assert {point.kill for point in points} == set(KILLS)
