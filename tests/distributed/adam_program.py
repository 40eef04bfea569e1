# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A training program that knows nothing of nemo_sr's optimizer: it asks Megatron-core for Adam, as Megatron-LM does.

Run it with nemo_sr.megatron.run. It takes ten steps from given weights with given gradients and writes what it found.
"""

import json
import sys

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from rank_end import end_rank
from tiny_gpt import build_model, digest, gathered, inject_gradients, set_weights, single_process, whole_shapes

from nemo_sr.megatron.naming import place_parameters

STEPS = 10


class Plain(torch.nn.Linear):
    """A model with a sharded_state_dict of its own, which takes no metadata."""

    def __init__(self):
        super().__init__(2, 2, bias=False)

    def sharded_state_dict(self):
        return {"anything": ShardedTensor.from_rank_offsets("own.name", self.weight)}


def message(function, *args):
    try:
        function(*args)
    except ValueError as error:
        return str(error)
    return None


def main():
    torch.distributed.init_process_group("gloo")
    model = build_model(grad_in_fp32=True)
    set_weights(model)
    config = OptimizerConfig(
        optimizer="adam",
        lr=3e-3,
        adam_beta2=0.95,
        weight_decay=0.1,
        clip_grad=1.0,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_distributed_optimizer=True,
    )
    optimizer = get_megatron_optimizer(config, [model])
    for step in range(STEPS):
        inject_gradients(model, step)
        optimizer.step()
    weights = gathered(model, optimizer)
    other_names = [
        sorted(place.name for place in place_parameters([other]).values())
        for other in (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)), Plain())
    ]
    expected = single_process(whole_shapes(model), steps=STEPS)[0]
    if torch.distributed.get_rank() == 0:
        found = {
            "arguments": sys.argv[1:],
            "name": __name__,
            "asked for": config.optimizer,
            "as expected": digest(weights) == expected,
            "names of plain models": other_names,
            "gradients": str(next(model.parameters()).main_grad.dtype),
            "another optimizer": message(
                Float16OptimizerWithFloat16Params, torch.optim.SGD(model.parameters()), config, None, None
            ),
            "precision-aware": message(lambda: OptimizerConfig(use_precision_aware_optimizer=True)),
        }
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(found, file)
    end_rank()


if __name__ == "__main__":
    main()
