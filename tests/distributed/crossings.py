# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Saves in some layouts and loads in others, each on ranks of its own, and says what came of every pair."""

from __future__ import annotations

import json
from pathlib import Path

from gloo_ranks import run_ranks

SCRIPT = Path(__file__).with_name("crossing_rank.py")

# Ranks, and the arguments of tiny_gpt.build_model. The vocabulary of 257 is padded to 258, 260 or 264 rows.
SHAPES = {
    "dp1": (1, {}),
    "dp2": (2, {"divisible_by": 8}),
    "dp4": (4, {"divisible_by": 4}),
    "tp2": (2, {"tp": 2}),
    "pp2": (2, {"pp": 2}),
    "vp2": (2, {"pp": 2, "vp": 2, "divisible_by": 4}),
    "tp2pp2": (4, {"tp": 2, "pp": 2, "divisible_by": 4}),
    "dp2tp2": (4, {"tp": 2}),
}
LAYOUTS = {
    **SHAPES,
    **{f"{name} replicated": (ranks, {**shape, "distributed": False}) for name, (ranks, shape) in SHAPES.items()},
}
# Two vectors are all that is trained: some ranks hold nothing but the padding of a bucket.
PADDED = {f"dp{ranks} norm": (ranks, {"train": "final_layernorm"}) for ranks in (1, 2, 4)}


def run_crossings(pairs, directory, *, phases=(1, 2, 4, 2, 1), cases_on=None, timeout=900):
    """Save in every first layout of `pairs`, load in the second, and go on; each phase is one start of its ranks.

    Args:
        pairs: Layouts to save and to load in.
        directory: Where checkpoints and findings go.
        phases: Numbers of ranks, in the order in which they are started.
        cases_on: The phase that runs checkpoint_cases too, by its place among the phases.
        timeout: Seconds for each phase.

    Returns:
        {"source": {layout: what crossing_rank.saved found}, "pair": {pair: what crossing_rank.crossed found}},
        and "cases" if they were asked for.
    """
    layouts = {**LAYOUTS, **PADDED}
    found = {"source": {}, "pair": {}}
    for number, ranks in enumerate(phases):
        sources = [
            name
            for name in dict.fromkeys(first for first, _ in pairs)
            if layouts[name][0] == ranks and name not in found["source"]
        ]
        ready = {*found["source"], *sources}
        loads = [
            pair for pair in pairs if layouts[pair[1]][0] == ranks and pair[0] in ready and pair not in found["pair"]
        ]
        cases = number == cases_on
        if not sources and not loads and not cases:
            continue
        plan = directory / f"plan{number}.json"
        plan.write_text(json.dumps({"layouts": layouts, "saves": sources, "loads": loads, "cases": cases}))
        output = directory / f"found{number}.json"
        run_ranks(SCRIPT, ranks, str(plan), str(directory), str(output), directory=directory, timeout=timeout)
        result = json.loads(output.read_text())
        found["source"].update(result["saves"])
        found.update({"cases": result["cases"]} if cases else {})
        found["pair"].update(zip(loads, result["loads"], strict=True))
    assert len(found["pair"]) == len(pairs), "the phases do not reach every pair"
    return found
