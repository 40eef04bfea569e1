# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A training program that knows nothing of nemo_sr's optimizer: it asks Megatron-core for Adam, as Megatron-LM does.

Run it with nemo_sr.megatron.run. It takes ten steps from given weights with given gradients and writes what it found.
"""

import json
import sys

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from tiny_gpt import build_model, digest, gathered, inject_gradients, set_weights, single_process, whole_shapes

STEPS = 10


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
    expected = single_process(whole_shapes(model), steps=STEPS)[0]
    if torch.distributed.get_rank() == 0:
        found = {
            "arguments": sys.argv[1:],
            "name": __name__,
            "asked for": config.optimizer,
            "as expected": digest(weights) == expected,
            "gradients": str(next(model.parameters()).main_grad.dtype),
            "another optimizer": message(
                Float16OptimizerWithFloat16Params, torch.optim.SGD(model.parameters()), config, None, None
            ),
            "precision-aware": message(lambda: OptimizerConfig(use_precision_aware_optimizer=True)),
        }
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(found, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
