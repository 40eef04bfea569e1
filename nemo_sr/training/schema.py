# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Every key of a training configuration, with its type and default: Hydra refuses what is not listed here.

One schema serves all strategies, so changing ``optim.name`` alone changes the strategy. Names are those of NeMo 1.x
(megatron_gpt_config.yaml) wherever it has the key; keys of our own are marked with (nemo_sr).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from omegaconf import MISSING

# OmegaConf reads these annotations at run time, and reads Optional[X] on every Python; "X | None" only from 3.10 on
# with some of its versions.
# ruff: noqa: UP045


@dataclass
class TrainerConfig:
    """Who computes, and for how long."""

    accelerator: str = "gpu"
    """"gpu", or "cpu": the same code over gloo."""

    devices: int = 1
    """Processes on each node, one per GPU."""

    num_nodes: int = 1
    """Nodes."""

    max_steps: int = MISSING
    """Optimizer steps in the whole run, interruptions included. The learning rate schedule spans them."""

    stop_after_steps: Optional[int] = None
    """Save a checkpoint and stop once this step is reached; the next start resumes there. (nemo_sr)"""

    val_check_interval: int = 100
    """Steps between validations."""

    limit_val_batches: int = 8
    """Global batches in one validation; 0 turns validation off."""

    log_every_n_steps: int = 10
    """Steps between entries in the TensorBoard log, and between lines where there is no terminal."""

    max_skipped_steps: int = 10
    """Stop with an error after so many steps in a row whose gradient norm was not finite. Such a step changes no weight
    and counts as a step. (nemo_sr)"""

    heartbeat_timeout: float = 120.0
    """End all ranks, with a message that names the one at fault, once a rank has been silent or without progress for so
    many seconds; a micro batch counts as progress, and starting and saving may take longer. 0: never. (nemo_sr)"""

    check_replicas_every_n_steps: Optional[int] = None
    """Steps between checks that all ranks which hold the same weights hold the same bits; the first that fails names
    weights and ranks and ends the run. null: never. (nemo_sr)"""

    gradient_clip_val: float = 1.0
    """Largest global norm of the gradients; 0 turns clipping off. Megatron-core clips, not Lightning."""


@dataclass
class CheckpointCallbackConfig:
    """When checkpoints are written, and which are kept; the last step always writes one."""

    every_n_train_steps: int = 1000
    """Steps between checkpoints."""

    save_top_k: int = 1
    """Checkpoints with the lowest validation loss that are kept; -1 keeps all that have one. A checkpoint has one if
    its step was validated, so val_check_interval should divide every_n_train_steps."""

    save_last_n: int = 3
    """Newest checkpoints that are kept, whatever their loss; -1 keeps all. (nemo_sr)"""

    async_save: bool = False
    """Go on training while a checkpoint is written, one at a time."""


@dataclass
class ExpManagerConfig:
    """The folder of a run. Starting the same run again resumes it from its newest complete checkpoint."""

    name: str = "gpt"
    """Name of the run."""

    explicit_log_dir: str = "runs/${exp_manager.name}"
    """The run's folder: checkpoints, TensorBoard log and loss plot."""

    resume_from_checkpoint: Optional[str] = None
    """A checkpoint that a run without one of its own goes on from: another run's, of any optim.name, Megatron's, or an
    import of scripts/convert_hf.py."""

    create_tensorboard_logger: bool = True
    """Write a TensorBoard log; the loss plot is drawn from it."""

    verify_checksums: bool = True
    """Read a checkpoint's files to their end before resuming from it, and compare their SHA-256 with the manifest.
    Sizes are compared in any case. (nemo_sr)"""

    checkpoint_callback_params: CheckpointCallbackConfig = field(default_factory=CheckpointCallbackConfig)
    """When checkpoints are written, and which are kept."""


@dataclass
class TokenizerConfig:
    """GPT-2's byte-level BPE."""

    vocab_file: Optional[str] = None
    """Vocabulary (JSON). null: gpt2-vocab.json beside the data."""

    merge_file: Optional[str] = None
    """Merges. null: gpt2-merges.txt beside the data."""


@dataclass
class ModelConfig:
    """The GPT, its batch and its parallel layout."""

    architecture: str = "gpt2"
    """"gpt2" or "gpt_neo": in GPT-Neo every second layer sees a window of tokens only, and attention is not scaled and
    has no bias on queries, keys and values. (nemo_sr)"""

    window_size: Optional[int] = None
    """Tokens that a local layer of gpt_neo sees, their own included. null: 256. (nemo_sr)"""

    num_layers: int = MISSING
    """Transformer layers."""

    hidden_size: int = MISSING
    """Width of the residual stream."""

    num_attention_heads: int = MISSING
    """Attention heads per layer."""

    ffn_hidden_size: Optional[int] = None
    """Width of the feed-forward layer. null: 4 * hidden_size."""

    encoder_seq_length: int = MISSING
    """Tokens in a sample."""

    max_position_embeddings: int = "${model.encoder_seq_length}"  # type: ignore[assignment]
    """Rows of the learned position embedding."""

    hidden_dropout: float = 0.0
    """Dropout after attention and feed-forward."""

    attention_dropout: float = 0.0
    """Dropout on attention probabilities."""

    layernorm_epsilon: float = 1e-5
    """Epsilon of the layer norms."""

    init_method_std: float = 0.02
    """Standard deviation of the initial weights."""

    make_vocab_size_divisible_by: int = 128
    """The vocabulary is padded to a multiple of this times tensor_model_parallel_size."""

    share_embeddings_and_output_weights: bool = True
    """Tie the output layer to the input embedding."""

    micro_batch_size: int = MISSING
    """Samples in one forward pass of one data-parallel rank."""

    global_batch_size: int = MISSING
    """Samples in one optimizer step, over all ranks."""

    tensor_model_parallel_size: int = 1
    """Ranks that share each layer."""

    pipeline_model_parallel_size: int = 1
    """Ranks that share the layers among them."""

    sequence_parallel: bool = False
    """Cut norms and dropout along the sequence over the tensor-parallel ranks: less memory for activations."""

    activations_checkpoint_granularity: Optional[str] = None
    """Recompute activations in the backward pass: null, "selective" or "full"."""

    transformer_engine: Optional[bool] = None
    """Use Transformer Engine's layers. null: on a GPU, where it is installed."""

    seed: int = 1234
    """Seed of the weights, of dropout and of the data order."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """The tokenizer that made the data."""


@dataclass
class SchedConfig:
    """NeMo's learning rate schedule over trainer.max_steps."""

    name: str = "CosineAnnealing"
    """One of NeMo's schedules by step: CosineAnnealing, InverseSquareRootAnnealing, PolynomialDecayAnnealing (a line),
    SquareAnnealing, SquareRootAnnealing, WarmupPolicy (constant after the warm-up)."""

    warmup_steps: int = 0
    """Steps of linear warm-up."""

    constant_steps: int = 0
    """Steps at min_lr at the end (CosineAnnealing)."""

    min_lr: float = 0.0
    """Learning rate at the end."""


@dataclass
class OptimConfig:
    """The strategy and its hyperparameters. Where a default is null, the strategy decides."""

    name: str = "adamw_sr"
    """The strategy: weights, gradients, moments and master copy follow from it (``--help`` lists them)."""

    lr: float = MISSING
    """Highest learning rate; see sr_lr_scale."""

    sr_lr_scale: float = 1.0
    """With adamw_sr the highest learning rates are lr and decoupled_lr times this; the lowest stay. The paper advises 2
    to 4. With another optim.name it has no effect, so that changing the name alone keeps the comparison fair.
    (nemo_sr)"""

    decoupled_lr: Optional[float] = None
    """Highest learning rate of token embedding and output layer; it follows the schedule as lr does. null: lr."""

    decoupled_min_lr: Optional[float] = None
    """Their learning rate where the others' is sched.min_lr. null: in proportion, sched.min_lr * decoupled_lr / lr."""

    weight_decay: float = 0.01
    """Decoupled weight decay; biases and norms have none."""

    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    """Decay of the first and of the second moment."""

    eps: float = 1e-8
    """Added to the root of the second moment."""

    grad_dtype: Optional[str] = None
    """Type in which gradients are summed: "bf16" or "fp32". (nemo_sr)"""

    seed: Optional[int] = None
    """Seed of the rounding noise (adamw_sr). null: model.seed. (nemo_sr)"""

    exp_avg_rounding: Optional[str] = None
    """How adamw_sr rounds the first moment: "nearest" (its default) or "stochastic". (nemo_sr)"""

    exp_avg_sq_rounding: Optional[str] = None
    """How adamw_sr rounds the second moment: "stochastic" (its default) or "nearest". (nemo_sr)"""

    sched: SchedConfig = field(default_factory=SchedConfig)
    """The learning rate schedule."""


@dataclass
class DataConfig:
    """Megatron-core's indexed datasets."""

    data_prefix: Any = MISSING
    """Path without .bin and .idx, or a list of weights and paths: [0.3, /data/a, 0.7, /data/b]."""

    splits_string: str = "980,20,0"
    """Shares of training, validation and test."""

    index_mapping_dir: Optional[str] = None
    """Where sample orders are cached. null: index_cache beside the data."""

    num_workers: int = 0
    """Processes that read ahead, for each rank."""

    eod_mask_loss: bool = False
    """Leave end-of-document tokens out of the loss. The gradient is then the mean over micro batches of each one's mean
    over its own tokens, as in Megatron-core's default; the logged loss weighs all tokens alike."""


@dataclass
class PretrainConfig:
    """A training run."""

    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    exp_manager: ExpManagerConfig = field(default_factory=ExpManagerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    data: DataConfig = field(default_factory=DataConfig)
