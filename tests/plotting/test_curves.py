# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Curves as they are read from real event files: resumed, cut off, empty; and what is drawn of them."""

import subprocess
import sys

import numpy as np
import pytest

from event_files import write_events
from nemo_sr.plotting import NoCurvesError, draw_curves, new_figure, plot_losses, read_curves, save_figure, smooth


def test_a_resumed_start_replaces_what_it_repeats_and_nothing_before(tmp_path):
    write_events(tmp_path, {"loss": {10: 1.0, 20: 2.0, 30: 3.0}, "val_loss": {30: 9.0}}, time=100)
    write_events(tmp_path, {"loss": {40: 4.5}}, time=200, purge_step=25)
    curves = read_curves(tmp_path)
    assert list(curves) == ["loss"]  # the validation came after the checkpoint that the second start went on from
    assert (curves["loss"].steps.tolist(), curves["loss"].values.tolist()) == ([10, 20, 40], [1.0, 2.0, 4.5])


def test_starts_count_in_the_order_of_their_times_wherever_they_lie(tmp_path):
    write_events(tmp_path, {"loss": {2: 20.0, 3: 30.0}}, time=1000)
    write_events(tmp_path / "run_0", {"loss": {1: 1.0, 2: 2.0}}, time=999)
    steps, values = read_curves(tmp_path)["loss"]
    assert (steps.tolist(), values.tolist()) == ([1, 2, 3], [1.0, 20.0, 30.0])


def test_a_start_from_the_beginning_replaces_all(tmp_path):
    write_events(tmp_path, {"loss": {1: 1.0, 2: 2.0, 3: 3.0}}, time=100)
    write_events(tmp_path, {"loss": {1: 5.0}}, time=200)
    assert read_curves(tmp_path)["loss"].values.tolist() == [5.0]


def test_a_file_that_is_cut_off_counts_as_far_as_it_goes(tmp_path):
    file = write_events(tmp_path, {"loss": dict.fromkeys(range(1, 101), 0.5)}, time=100)
    file.write_bytes(file.read_bytes()[:-7])
    assert read_curves(tmp_path)["loss"].steps.tolist() == list(range(1, 100))


def test_a_run_that_has_logged_nothing_yet_has_no_curves(tmp_path):
    write_events(tmp_path, {}, time=100).write_bytes(b"")
    assert read_curves(tmp_path) == {}


@pytest.mark.parametrize(("folder", "reason"), [("", "holds none"), ("none", "is no folder")])
def test_a_folder_that_is_no_run_is_refused(folder, reason, tmp_path):
    with pytest.raises(NoCurvesError, match=reason):
        read_curves(tmp_path / folder)


def test_smoothing_starts_without_a_bias_and_passes_over_gaps():
    constant = smooth(np.full(5, 3.0), 0.9)
    assert constant == pytest.approx(np.full(5, 3.0))
    gap = smooth(np.array([1.0, np.nan, 2.0]), 0.5)
    assert gap[0] == 1.0
    assert np.isnan(gap[1])
    assert gap[2] == pytest.approx((0.25 * 1 + 0.5 * 2) / 0.75)
    with pytest.raises(ValueError, match="it is 1"):
        smooth(constant, 1)


def test_curves_are_drawn_with_gaps_and_in_colours_of_their_own(tmp_path):
    figure, axes = new_figure()
    curves = {f"run {index}": (np.arange(3), np.array([1.0, np.inf, 2.0])) for index in range(9)}
    draw_curves(axes, curves, ylabel="loss")
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == 9
    assert all(np.isnan(line.get_ydata()[1]) for line in axes.lines)
    assert save_figure(figure, tmp_path / "new" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_losses_are_plotted_if_there_are_any(tmp_path):
    assert not plot_losses(tmp_path, tmp_path / "loss.png")
    write_events(tmp_path, {"lr": {1: 1.0}}, time=100)
    assert not plot_losses(tmp_path, tmp_path / "loss.png")
    write_events(tmp_path, {"val_loss": {2: 1.0}}, time=200)
    assert plot_losses(tmp_path, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_package_imports_neither_megatron_nor_training():
    lazy = ("megatron", "nemo_sr.training", "matplotlib", "tensorboard")
    code = f"import sys, nemo_sr.plotting; print([name for name in sys.modules if name.startswith({lazy})])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
