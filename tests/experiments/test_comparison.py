# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The report on a comparison of strategies, from runs whose numbers are known."""

import csv
import json

import numpy as np
import pytest
import yaml

from nemo_sr.experiments.strategies import headline
from nemo_sr.experiments.strategies.analysis import compare
from nemo_sr.experiments.strategies.command import main
from nemo_sr.experiments.strategies.report import build_report, speed_table
from nemo_sr.experiments.strategies.results import Result, read_result
from nemo_sr.experiments.strategies.sweep import STRATEGIES
from nemo_sr.plotting import Curve

RATES = (1e-4, 1e-3, 1e-2)
FP32 = dict(zip(RATES, (5.0, 4.5, 4.8), strict=True))
NEAREST_OVER_FP32 = dict(zip(RATES, (0.5, 0.2, 0.05), strict=True))


def result(strategy, lr, seed, loss, *, step=400, diverged=False):
    curve = Curve(np.array([200, step]), np.array([loss + 1, loss]))
    return Result(strategy, "text", lr, seed, 400, 1024, curve, curve, diverged=diverged, steps_per_second=seed)


def runs(sr_over_fp32=0.001, nearest=NEAREST_OVER_FP32):
    """Return three strategies at three rates; further seeds at the best one and the lowest."""
    found = []
    for lr, loss in FP32.items():
        for seed in (1, 2, 3) if lr < 1e-2 else (1,):
            base = loss + 0.1 * seed  # the data of a seed are harder: differences are paired
            found += [
                result("adamw_fp32", lr, seed, base),
                result("adamw_sr", lr, seed, base + sr_over_fp32 + (seed - 2) * 0.01),
                result("adamw_bf16", lr, seed, base + nearest[lr] + (seed - 2) * 0.01),
            ]
    return found


def verdicts(results):
    return {check.statement.partition(": ")[2]: check.passed for check in build_report(results, introduction="").checks}


def test_differences_are_paired_by_seed_and_the_best_rate_is_the_first_seeds():
    (one,) = compare(runs())
    assert one.best_rate("adamw_bf16") == 1e-3
    gap = one.best_difference("adamw_bf16", "adamw_fp32")
    assert (round(gap.mean, 9), gap.n) == (0.2, 3)
    assert gap.half_width == pytest.approx(4.30265 * 0.01 / 3**0.5, rel=1e-5)
    assert one.difference("adamw_bf16", 1e-2, "adamw_fp32", 1e-2).n == 1
    assert one.stable("adamw_fp32") == (1e-3, 1e-3)


def test_claims_hold_where_the_runs_say_so_and_not_elsewhere():
    told = verdicts(runs())
    assert told == dict.fromkeys(told, True)
    assert len(told) == 5
    nearest_equal = verdicts(runs(nearest=dict.fromkeys(RATES, 0.0)))
    assert not nearest_equal["BF16 to nearest at its best LR is worse than SR at its own"]
    assert not nearest_equal["what nearest loses against FP32 grows as LR falls from FP32's best"]
    assert not verdicts(runs(sr_over_fp32=0.3))["SR at its best LR is within noise of adamw_fp32 at its own"]


def test_claims_are_made_of_the_rates_that_were_trained():
    """The best rate of FP32 was trained with it alone."""
    only = [one for one in runs() if one.lr != 1e-3 or one.strategy == "adamw_fp32"]
    assert verdicts(only)["what nearest loses against FP32 grows as LR falls from FP32's best"]
    none = [one for one in only if one.lr != 1e-4]
    assert not any("grows" in statement or "nearer" in statement for statement in verdicts(none))


def test_runs_that_diverged_or_go_on_have_no_loss():
    found = [*runs(), result("adamw", 1e-3, 1, 9.0, step=300), result("adamw_sr", 1e-1, 1, 9.0, diverged=True)]
    (one,) = compare(found)
    assert "adamw" not in one.strategies
    report = build_report(found, introduction="")
    sweep = next(table for table in report.tables if table.name == "sweep")
    assert ["text", "adamw_sr", 1e-1, "diverged", None, None, None, 0] in sweep.rows
    assert "1 runs are not finished" in report.summary
    with pytest.raises(ValueError, match="at least one finished run"):
        build_report(found[-2:], introduction="")


def test_speed_is_that_of_the_fastest_run():
    assert ["adamw_sr", 3, 7] in [list(row) for row in speed_table(runs()).rows]


def write_run(folder, name, lr, losses, *, jobs=False):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, loss in losses.items():
            writer.add_scalar("val_loss", loss, step)
            writer.add_scalar("tokens_per_sec", 2048.0, step)
    config = {
        "optim": {"name": name, "lr": lr, "sr_lr_scale": 2.0, "exp_avg_sq_rounding": None},
        "model": {"seed": 7, "global_batch_size": 8, "encoder_seq_length": 128},
        "data": {"data_prefix": "somewhere/wiki_text_document"},
        "trainer": {"max_steps": 400},
    }
    place = folder / "jobs" / "5.0" if jobs else folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.yaml").write_text(yaml.safe_dump(config))


def test_a_folder_of_runs_is_reported_and_its_standing_shown(tmp_path, capsys):
    write_run(tmp_path / "adamw_sr", "adamw_sr", 1e-3, {200: 5.0, 400: 4.5}, jobs=True)
    write_run(tmp_path / "adamw", "adamw", 1e-3, {200: 5.25})
    read = read_result(tmp_path / "adamw_sr")
    assert (read.strategy, read.lr, read.seed, read.corpus, read.loss) == ("adamw_sr", 2e-3, 7, "wiki", 4.5)
    assert read.steps_per_second == 2.0
    assert read_result(tmp_path) is None
    assert main([str(tmp_path), "--table"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[1:] == [["adamw", "200/400", "5.2500", "190.57"], ["adamw_sr", "400/400", "4.5000", "90.02"]]
    assert main([str(tmp_path)]) == 0
    rows = list(csv.DictReader((tmp_path / "report/strategies/final.csv").open()))
    assert [(row["strategy"], float(row["loss"])) for row in rows] == [("adamw_sr", 4.5)]
    assert (tmp_path / "report/index.html").is_file()


def test_a_point_of_a_sweep_is_a_folder_and_words(capsys):
    assert main(["--point", "4", "strategies_350m"]) == 0
    assert capsys.readouterr().out.split() == [
        "adamw_sr_paper/lr_0.0003/seed_1",
        *("model.seed=1", "optim.lr=0.0003", "optim=adamw_sr_paper"),
    ]
    assert main(["--point", "999", "strategies_350m"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["--point", "0", "nothing"]) == 2


def test_the_readmes_table_is_that_of_the_kept_csv(tmp_path):
    text = headline.README.read_text(encoding="utf-8")
    assert headline.BEGIN + headline.headline(headline.KEPT) + headline.END in text
    rows = list(csv.DictReader(headline.KEPT.open(encoding="utf-8")))
    assert {row["strategy"] for row in rows} == set(STRATEGIES)
    other = tmp_path / "README.md"
    other.write_text("before\n" + headline.BEGIN + "old\n" + headline.END + "after\n", encoding="utf-8")
    headline.write_headline(other, "new\n")
    assert other.read_text(encoding="utf-8") == "before\n" + headline.BEGIN + "new\n" + headline.END + "after\n"
    other.write_text("no marks\n", encoding="utf-8")
    with pytest.raises(ValueError, match="must have the lines"):
        headline.write_headline(other, "new\n")


@pytest.mark.slow
def test_a_run_among_others_in_one_process_is_the_run_of_its_own_command(tmp_path):
    import subprocess
    import sys

    from nemo_sr.experiments.frame.sources import ROOT
    from nemo_sr.experiments.strategies.comparison import QUICK, Trainings
    from nemo_sr.experiments.strategies.corpora import prepare

    prefix = prepare("sample", tmp_path / "corpora", size_mb=0.5)
    trainings = Trainings("strategies_tiny", "sample", prefix, tmp_path / "among", QUICK)
    among = trainings.train(trainings.first((1e-3,)), workers=1)
    folder = tmp_path / "among/runs/sample/adamw_sr/lr_0.001/seed_1"
    words = json.loads((folder / "outcome.json").read_text())["words"]
    command = [sys.executable, ROOT / "scripts/pretrain_gpt.py", *words, f"exp_manager.explicit_log_dir={tmp_path}/own"]
    subprocess.run(command, check=True, capture_output=True)
    (own,) = (one for one in among if one.strategy == "adamw_sr")
    alone = read_result(tmp_path / "own", "sample")
    assert own.validation.values.tolist() == alone.validation.values.tolist()
    assert own.bytes["weights"] / own.num_parameters == pytest.approx(2, rel=0.01)  # the buffer is padded
    times = [(folder / "outcome.json").stat().st_mtime_ns]
    trainings.train(trainings.first((1e-3,)), workers=1)  # nothing is left to train
    assert (folder / "outcome.json").stat().st_mtime_ns == times[0]
