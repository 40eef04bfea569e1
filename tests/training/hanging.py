# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""A run whose rank 1 hangs after step 3. Usage: torchrun --nproc_per_node=2 hanging.py OVERRIDES."""

import os
import sys
import time

from lightning.pytorch.callbacks import Callback

from nemo_sr.training.config import compose_config
from nemo_sr.training.launch import detect_launch
from nemo_sr.training.pretrain import train


class Hang(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 3 and trainer.global_rank == 1:
            time.sleep(3600)


if __name__ == "__main__":
    train(compose_config(sys.argv[1:]), detect_launch(os.environ), callbacks=[Hang()])
