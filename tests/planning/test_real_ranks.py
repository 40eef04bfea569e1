# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Plans against what two and four real ranks hold, for every strategy."""

import pytest
from planned_bytes import check_planned_bytes
from toy import overrides, run_jobs, write_toy_data

from nemo_sr.training.regimes import REGIMES

TP2, PP2 = ["model.tensor_model_parallel_size=2"], ["model.pipeline_model_parallel_size=2"]
LAYOUTS = {
    2: {"dp2": [], "tp2": TP2, "pp2": PP2},
    4: {"tp2 pp2": [*TP2, *PP2], "dp2 pp2": PP2, "dp2 tp2": TP2, "dp4": []},
}
SEQUENCE = ["model.architecture=gpt_neo", *TP2, *PP2, "model.sequence_parallel=true"]
CASES = {
    ranks: {f"{name} {layout}": [f"optim.name={name}", *cut] for name in REGIMES for layout, cut in layouts.items()}
    for ranks, layouts in LAYOUTS.items()
}
for kind in ("selective", "full"):
    CASES[4][f"sequence parallel {kind}"] = [*SEQUENCE, f"model.activations_checkpoint_granularity={kind}"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    found = {}
    for ranks, cases in CASES.items():
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        prefix = write_toy_data(folder)
        more = [f"trainer.devices={ranks}", f"model.global_batch_size={8 * ranks}", "trainer.stop_after_steps=1"]
        jobs = {
            name: [*overrides(prefix, folder / name.replace(" ", "_"), max_steps=4), *more, *words]
            for name, words in cases.items()
        }
        found[ranks] = run_jobs(folder, jobs, num_ranks=ranks)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks, cases in CASES.items() for name in cases])
def test_a_rank_holds_the_bytes_that_were_planned(results, ranks, name):
    result = results[ranks][name]
    # On the last stage of TP2 x PP2 so small a model takes 8 to 12 % more for activations than planned.
    check_planned_bytes(result["words"], result["bytes"], rel=0.15 if ranks == 4 else 0.1)
