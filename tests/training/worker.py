# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Several short runs in one start of two processes: importing NeMo takes longer than such a run.

Usage: torchrun --nproc_per_node=2 worker.py JOBS.json RESULTS.json
"""

import gc
import hashlib
import json
import os
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from lightning.pytorch.callbacks import Callback  # noqa: E402
from live_tensors import ProductTypes, types_held  # noqa: E402
from megatron.core import tensor_parallel  # noqa: E402

from nemo_sr.experiments.strategies.held import bytes_held  # noqa: E402
from nemo_sr.planning.live_bytes import LiveBytes  # noqa: E402
from nemo_sr.training.config import compose_config  # noqa: E402
from nemo_sr.training.launch import detect_launch  # noqa: E402
from nemo_sr.training.pretrain import train  # noqa: E402
from nemo_sr.training.skipping import DivergedError  # noqa: E402

RECORDED = (
    "losses",
    "learning_rates",
    "val_losses",
    "decays",
    "rates",
    "weights",
    "optimizer_class",
    "error",
    "finite",
    "types",
    "bytes",
    "sources",
)
WATCHED = (
    "linear_fc1.bias",
    "final_layernorm.weight",
    "linear_fc1.weight",
    "word_embeddings.weight",
    "position_embeddings.weight",
    "output_layer.weight",
)


class Recorder(Callback):
    """Writes down losses, the decay and the rates in use, what is held, and what the weights are at the end."""

    def __init__(self):
        self.losses = {}
        self.learning_rates = {}
        self.val_losses = {}
        self.decays = {}
        self.rates = {}
        self.weights = ""
        self.optimizer_class = ""
        self.error = ""
        self.finite = None
        self.types = {}
        self.bytes = []
        self.sources = {}
        self._products = self._live = None

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if not self.types:
            self.sources = {
                "weights": _hash_weights(pl_module),
                "data": hashlib.sha256(batch["tokens"].numpy().tobytes()).hexdigest(),
                "dropout": [hashlib.sha256(state.numpy()).hexdigest() for state in _random_states()],
                "noise": _inner(pl_module).param_groups[0].get("seed"),
            }
            self._products = ProductTypes()
            self._products.__enter__()
            params = list(pl_module.chunks.parameters())
            self._live = LiveBytes([*params, *(param.main_grad for param in params)])
            self._live.__enter__()

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        if not self.types:
            self._live.__exit__(None, None, None)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        step = trainer.global_step
        if not self.types:
            self._products.__exit__(None, None, None)
            self.types = {**types_held(pl_module), "products": sorted(self._products.seen)}
            self.bytes = [None] * trainer.world_size
            mine = {**bytes_held(pl_module), "peak": self._live.peak}
            torch.distributed.all_gather_object(self.bytes, mine)
        self.losses[step] = float(trainer.callback_metrics["reduced_train_loss"])
        self.learning_rates[step] = float(trainer.callback_metrics["lr"])
        if not self.decays:
            self.decays = {"step": step, **_option(pl_module, "weight_decay")}
        self.rates[step] = _option(pl_module, "lr")

    def on_exception(self, trainer, pl_module, exception):
        self.finite = all(bool(param.isfinite().all()) for param in pl_module.parameters())

    def on_validation_end(self, trainer, pl_module):
        self.val_losses[trainer.global_step] = float(trainer.callback_metrics["val_loss"])

    def on_train_end(self, trainer, pl_module):
        digests = [None] * trainer.world_size
        torch.distributed.all_gather_object(digests, _hash_weights(pl_module))
        self.weights = " ".join(digests)
        self.optimizer_class = type(_inner(pl_module)).__name__


def _random_states():
    return [torch.get_rng_state(), *tensor_parallel.get_cuda_rng_tracker().get_states().values()]


def _inner(pl_module):
    return pl_module._optimizer.megatron.chained_optimizers[0].optimizer


def _hash_weights(pl_module):
    digest = hashlib.sha256()
    for _, param in sorted(pl_module.chunks.named_parameters()):
        digest.update(param.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _option(pl_module, option):
    optimizer = pl_module._optimizer.megatron.chained_optimizers[0]
    found = {}
    for name, param in pl_module.chunks.named_parameters():
        for ending in WATCHED:
            if name.endswith(ending) and param in optimizer.model_param_group_index_map:
                group, _ = optimizer.model_param_group_index_map[param]
                found[ending] = optimizer.optimizer.param_groups[group][option]
    everywhere = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everywhere, found)
    return {name: value for rank in everywhere for name, value in rank.items()}


def main():
    # Memory that nobody has written to reads as NaN then.
    torch.use_deterministic_algorithms(True, warn_only=True)
    jobs = json.loads(Path(sys.argv[1]).read_text())
    launch = detect_launch(os.environ)
    results = {}
    # A store of its own for every run: the keys of an earlier one would mislead the processes.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    for name, (port, words) in jobs.items():
        os.environ["MASTER_PORT"] = str(port)
        recorder = Recorder()
        try:
            train(compose_config(words), launch, callbacks=[recorder])
        except DivergedError as error:
            recorder.error = str(error)
        gc.collect()  # what a run leaves keeps its process groups, whose threads poll
        results[name] = {field: getattr(recorder, field) for field in RECORDED}
    if launch.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
