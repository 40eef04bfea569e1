# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What a model of the paper's largest size would need, from scripts/plan.py."""

from __future__ import annotations

import json
import subprocess
import sys


def plan_full_size(*, config: str, gpus: int) -> dict[str, dict[str, float]]:
    """Return the planned bytes of the fullest GPU by strategy.

    Args:
        config: Name of the configuration.
        gpus: Of the job.

    Returns:
        "state" (weights, gradients, moments and masters) and "total" (activations and communication too).

    Raises:
        RuntimeError: there is no plan.
    """
    code = "import sys; from nemo_sr.planning.command import main; sys.exit(main())"
    words = [f"--config-name={config}", "model.sequence_parallel=false", "--gpus", str(gpus), "--top", "0", "--json"]
    # Status 1: it does not fit into the GPU's memory, which is no matter here.
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the plan of {config} must end with status 0 or 1; it ended so:\n{done.stderr}")
    plans = json.loads(done.stdout)["strategies"]
    kinds = ("weights", "gradients", "moments", "masters")
    found = {name: {"state": sum(own[kind] for kind in kinds), "total": own["total"]} for name, own in plans.items()}
    return {**found, "adamw_sr_paper": found["adamw_sr"]}
