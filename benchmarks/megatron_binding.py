# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What binding names and layouts costs at start-up, for a GPT of 6.7B parameters on the meta device.

    python benchmarks/megatron_binding.py

Rank 0 of the whole model, and of tensor parallelism 8: finding name and place of every parameter, and binding each to
an AdamWSR, whole (as without the distributed optimizer) and as the shards of 8 data-parallel ranks.
"""

import os
import resource
import time
import tracemalloc

import torch
import torch.distributed as dist
from megatron_gpt import make_groups
from torch.testing._internal.distributed.fake_pg import FakeStore

import nemo_sr.megatron
from nemo_sr import AdamWSR

SHARDS = 8


def build(tp):
    """Build GPT-Neo 6.7B's parameters on the meta device: 32 layers of width 4096."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        tensor_model_parallel_size=tp,
        bf16=True,
        params_dtype=torch.bfloat16,
        perform_initialization=False,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
    )
    with torch.device("meta"):
        return GPTModel(
            config,
            get_gpt_layer_local_spec(),
            vocab_size=51200,
            max_sequence_length=2048,
            position_embedding_type="learned_absolute",
            share_embeddings_and_output_weights=True,
        ).to(torch.bfloat16)


def measure(function):
    """Return the function's result, its seconds, and the MB that it allocated at most and kept (two runs)."""
    start = time.perf_counter()
    result = function()
    seconds = time.perf_counter() - start
    del result
    tracemalloc.start()
    result = function()
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return result, seconds, peak / 1e6, kept / 1e6


def bind(places, shards):
    """Bind each parameter, or each of its equal shards of a data-parallel rank."""
    params = {}
    for param, place in places.items():
        size = -(-param.numel() // shards)
        shard = torch.nn.Parameter(torch.empty(size, dtype=param.dtype, device="meta"))
        params[shard] = (place.name, place.layouts(0, size))
    optimizer = AdamWSR(list(params), lr=1e-3)
    for shard, (name, layouts) in params.items():
        optimizer.bind(shard, name, layouts)
    return optimizer


def main():
    """Print the table."""
    from nemo_sr.megatron.naming import place_parameters

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # torch's backend that sends nothing: one process takes the place of rank 0 of 8, and nothing here communicates.
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    print("| rank's model | parameters | what | seconds | MB at most | MB kept |\n|---|---|---|---|---|---|")
    for tp in (1, 8):
        make_groups(tp, create_gloo_process_groups=False)
        model = build(tp)
        tensors = list(model.parameters())
        size = f"{sum(tensor.numel() for tensor in tensors) / 1e9:.2f}B in {len(tensors)}"
        places, *figures = measure(lambda model=model: place_parameters([model]))
        rows = {"names and places": figures}
        for title, shards in (("binding, whole", 1), (f"binding, shards of {SHARDS}", SHARDS)):
            rows[title] = measure(lambda places=places, shards=shards: bind(places, shards))[1:]
        for what, (seconds, peak, kept) in rows.items():
            print(f"| TP {tp} | {size} | {what} | {seconds:.3f} | {peak:.1f} | {kept:.1f} |", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nwhole process, torch and Megatron-core imported: {peak:.0f} MB at most")


if __name__ == "__main__":
    with nemo_sr.megatron.cpu_platform():
        main()
