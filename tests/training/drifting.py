# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The command line of scripts/pretrain_gpt.py, with one bit of one rank's weights flipped after the third step."""

import functools

import torch
from lightning.pytorch.callbacks import Callback

from nemo_sr.training import pretrain


class FlipsABit(Callback):
    """Flips the lowest bit of one element of the last norm on rank 1."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if (trainer.global_step, trainer.global_rank) == (3, 1):
            weight = dict(pl_module.chunks[0].module.named_parameters())["decoder.final_layernorm.weight"]
            weight.data.view(torch.int16)[5] ^= 1


if __name__ == "__main__":
    pretrain.train = functools.partial(pretrain.train, callbacks=[FlipsABit()])
    pretrain.main()
