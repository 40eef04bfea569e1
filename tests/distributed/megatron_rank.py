# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Rank script: runs every case of a kind of model in every layout of its ranks; rank 0 writes its findings as JSON.

Usage (by gloo_ranks.run_ranks): megatron_rank.py dense|experts OUTPUT.json CHECKPOINT_DIRECTORY
"""

import json
import sys
from pathlib import Path

import telemetry_case
import torch.distributed as dist
from rank_end import end_rank

import nemo_sr.megatron
from nemo_sr.megatron.versions import is_since

LAYOUTS = {
    1: {"one": {}},
    2: {"dp2": {}, "tp2": {"tp": 2}, "pp2": {"pp": 2}},
    4: {
        "dp4": {},
        "tp4": {"tp": 4},
        "pp4": {"pp": 4},
        "tp2pp2": {"tp": 2, "pp": 2},
        "dp2tp2": {"tp": 2},
        "dp2pp2": {"pp": 2},
    },
    8: {"dp2tp2pp2": {"tp": 2, "pp": 2}, "tp4pp2": {"tp": 4, "pp": 2}},
}
SEQUENCE = {"tp": 2, "sequence_parallel": True}
EXPERT_LAYOUTS = {
    1: {"one": {}},
    2: {"dp2": {}, "ep2": {"ep": 2}, "tp2ep2": {**SEQUENCE, "ep": 2, "etp": 1}},
    4: {
        "dp4ep2": {"ep": 2},
        "dp4ep4": {"ep": 4},
        "pp2ep2": {"pp": 2, "ep": 2},
        "dp2tp2ep2": {**SEQUENCE, "ep": 2, "etp": 1},
        "dp2tp2etp2ep2": {**SEQUENCE, "ep": 2},
    },
    8: {"dp2tp2pp2ep2": {**SEQUENCE, "pp": 2, "ep": 2, "etp": 1}, "dp2tp2pp2etp2ep2": {**SEQUENCE, "pp": 2, "ep": 2}},
}
WIDE = {"layers": 4, "query_groups": 2, "vocabulary": 257, "bucket_size": 5000}
VARIANTS = {
    "plain": {},
    "replicated": {"distributed": False},
    # SwiGLU's first matrix is two pieces on every rank; FP32 parameters get a plain step beside the others.
    "mixed": {"swiglu": True, "grad_in_fp32": True, "fp32_params": ["layernorm"]},
}
EXPERTS = {"experts": 4, "bias": is_since("0.15")}  # before, experts cannot have biases
EXPERT_VARIANTS = {
    "plain": EXPERTS,
    "replicated": {**EXPERTS, "distributed": False},
    "mixed": {**EXPERTS, "swiglu": True, "grad_in_fp32": True, "fp32_params": ["router"]},
    # Megatron gives experts that are cut by tensor parallelism no biases.
    "unbiased": {**EXPERTS, "bias": False},
}
RESUMES = [
    *([("plain", "dp_reshardable")] if is_since("0.15") else []),
    ("plain", "fully_reshardable"),
    ("replicated", "fully_reshardable"),
]
# Real training of experts. With FP32 gradients the layouts' norms can be compared closely.
REAL_EXPERTS = {**EXPERT_VARIANTS["unbiased"], "grad_in_fp32": True}
RMS = {"normalization": "RMSNorm", "swiglu": True, "bias": False}


def dense(cases, gpt, directory):
    """Every case of the dense model."""
    found = {"factory": cases.factory(gpt)} if dist.get_world_size() == 1 else {}
    for name, layout in LAYOUTS[dist.get_world_size()].items():
        wide = WIDE if layout.get("tp") != 4 else {**WIDE, "query_groups": 4}
        here = found[name] = {"injected wide": cases.injected(gpt, layout, wide)}
        if dist.get_world_size() > 2:
            continue
        for variant, options in VARIANTS.items():
            here[f"injected {variant}"] = cases.injected(gpt, layout, options)
        for samples in (telemetry_case.EVERYTHING, telemetry_case.FEW):
            here[f"watched {samples}"] = telemetry_case.watched(gpt, layout, samples)
        here["storage noise"] = cases.storage_noise(gpt, layout, {})
        here["losses"] = cases.losses(gpt, layout, {})[0]
        here["uniform"] = cases.uniform(gpt, layout, {"swiglu": True})
        for variant in ("plain", "replicated"):
            here[f"skipped {variant}"] = cases.skipped(gpt, layout, VARIANTS[variant])
        for variant, kind in RESUMES:
            path = f"{directory}/{name}-{variant}-{kind}"
            here[f"resumed {variant} {kind}"] = cases.resumed(gpt, layout, VARIANTS[variant], kind, path)
    if dist.get_world_size() == 1:
        found["one"]["injected wide, four groups"] = cases.injected(gpt, {}, {**WIDE, "query_groups": 4})
        found["one"]["injected deep"] = cases.injected(gpt, {}, {"layers": 4})
        found["one"]["injected rms"] = cases.injected(gpt, {}, RMS)
        found["one"]["resumed with flags of TE"] = cases.as_with_transformer_engine(gpt, f"{directory}/te")
        found["one"]["autocast"] = cases.autocast(gpt)
    elif dist.get_world_size() == 2:
        found["dp2"]["losses overlapped"] = cases.losses(gpt, {}, {"overlap": True})[0]
        found["dp2"]["options apart"] = cases.options_apart(gpt)
        found["dp2"]["options logged"] = cases.options_logged(gpt)
        found["pp2"]["injected deep"] = cases.injected(gpt, {"pp": 2, "vp": 2}, {"layers": 4})
        found["tp2"]["injected along the sequence"] = cases.injected(gpt, SEQUENCE, {})
        found["tp2"]["injected rms along the sequence"] = cases.injected(gpt, SEQUENCE, RMS)
        found["tp2"]["losses along the sequence"] = cases.losses(gpt, SEQUENCE, {})[0]
        found["tp2"]["gradients apart"] = cases.apart(gpt, SEQUENCE, {"tp": 2}, {"grad_in_fp32": True})
    return found


def experts(cases, gpt, directory):
    """Every case of the mixture of experts."""
    found = {}
    for name, layout in EXPERT_LAYOUTS[dist.get_world_size()].items():
        # As many experts' parts as tensor-parallel ranks, if not told otherwise.
        cut = layout.get("tp", 1) > 1 and "etp" not in layout
        variants = ["unbiased"] if cut else ["plain", "replicated", "mixed"]
        if name == "one":
            variants = list(EXPERT_VARIANTS)
        here = found[name] = {v: cases.injected(gpt, layout, EXPERT_VARIANTS[v]) for v in variants}
        if dist.get_world_size() == 2:
            here["losses"], here["norms"] = cases.losses(gpt, layout, REAL_EXPERTS)
    if dist.get_world_size() == 1:
        found["names"] = cases.names(gpt, EXPERT_VARIANTS["plain"])
        if not is_since("0.17"):
            found["grouped"] = cases.grouped(gpt)
    elif dist.get_world_size() == 2:
        found["ep2"]["losses overlapped"] = cases.losses(gpt, {"ep": 2}, {**REAL_EXPERTS, "overlap": True})[0]
        for variant in ("plain", "replicated"):
            options = EXPERT_VARIANTS[variant]
            found["ep2"][f"skipped {variant}"] = cases.skipped(gpt, {"ep": 2}, options)
            found["ep2"][f"skipped {variant} by one expert"] = cases.skipped_by_one_expert(gpt, {"ep": 2}, options)
            found["ep2"][f"formats {variant}"] = cases.formats(gpt, {"ep": 2}, options)
        for variant, kind in RESUMES:
            path = f"{directory}/ep2-{variant}-{kind}"
            resumed = cases.resumed(gpt, {"ep": 2}, REAL_EXPERTS | EXPERT_VARIANTS[variant], kind, path)
            found["ep2"][f"resumed {variant} {kind}"] = resumed
    return found


def main(kind, output, directory):
    import megatron_cases as cases
    import tiny_gpt as gpt

    dist.init_process_group("gloo")
    nemo_sr.megatron.install()
    found = {"dense": dense, "experts": experts}[kind](cases, gpt, directory)
    if dist.get_rank() == 0:
        Path(output).write_text(json.dumps(found))
    end_rank()


if __name__ == "__main__":
    with nemo_sr.megatron.cpu_platform():
        main(*sys.argv[1:])
