# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Every key of a training configuration, with its type and default: Hydra refuses what is not listed here.

One schema serves all strategies, so changing ``optim.name`` alone changes the strategy. Names are those of NeMo 1.x
(megatron_gpt_config.yaml and exp_manager) wherever it has the key; a key of Megatron-core's ends with (Megatron-core),
one of our own with (nemo_sr). A number's type names its unit. ``keys.py`` reads types and docstrings for the error
messages, ``--help``, ``--cfg job`` and docs/configuration.md (tests/make_configuration_page.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from omegaconf import MISSING

from nemo_sr.training.profile_schema import NsysProfileConfig, TorchProfileConfig

# OmegaConf reads these annotations at run time, and reads Optional[X] on every Python; "X | None" only from 3.10 on
# with some of its versions.
# ruff: noqa: UP045

Batches = int
Checkpoints = int
Features = int
Heads = int
Layers = int
Nodes = int
Probability = float
Processes = int
Ranks = int
Samples = int
Seconds = float
Steps = int
TeraFlops = float
Tokens = int


@dataclass
class TrainerConfig:
    """Who computes, and for how long."""

    accelerator: str = "gpu"
    """"gpu", or "cpu": the same code over gloo."""

    devices: Processes = 1
    """Processes on each node, one per GPU."""

    num_nodes: Nodes = 1
    """Nodes that the run spans."""

    max_steps: Steps = MISSING
    """Optimizer steps in the whole run, interruptions included. The learning rate schedule spans them."""

    stop_after_steps: Optional[Steps] = None
    """Save a checkpoint and stop once this step is reached; the next start resumes there. (nemo_sr)"""

    max_time: Optional[str] = None
    """Time after which a start of the run saves a checkpoint and stops, DD:HH:MM:SS, in quotes. It counts from the
    command; the next start resumes and has as long again. null: no limit."""

    val_check_interval: Steps = 100
    """Steps between validations."""

    limit_val_batches: Batches = 8
    """Global batches in one validation; 0 turns validation off."""

    log_every_n_steps: Steps = 10
    """Steps between entries in the logs; between printed lines too, where there is no terminal."""

    max_skipped_steps: Steps = 10
    """Steps in a row whose gradient norm is not finite until the run stops. It stops with an error; such a step
    changes no weight and counts as a step. (nemo_sr)"""

    heartbeat_timeout: Seconds = 120.0
    """Seconds without a sign or progress of a rank until all are ended. A message names the rank at fault; a
    micro batch counts as progress, and starting and saving may take longer. 0: never. (nemo_sr)"""

    check_replicas_every_n_steps: Optional[Steps] = None
    """Steps between checks that replicas of the weights hold the same bits. The first check that fails names weights
    and ranks and ends the run. null: never. (nemo_sr)"""

    telemetry_every_n_steps: Optional[Steps] = 50
    """Steps between reports of what rounding does to the weights, in logs and on the console (adamw_sr, adamw_bf16). At
    the end of the run advice follows from them. null: none. (nemo_sr)"""

    peak_tflops_per_gpu: Optional[TeraFlops] = None
    """TFLOP/s that a GPU could do at most, for the model FLOPs utilization. null: what the data sheet says of an A100,
    H100 (SXM) or H200 (SXM); with other GPUs, and on a CPU, the utilization is then not logged. (nemo_sr)"""

    gradient_clip_val: float = 1.0
    """Largest global 2-norm of the gradients; 0 turns clipping off. Megatron-core clips, not Lightning."""


@dataclass
class CheckpointCallbackConfig:
    """When checkpoints are written, and which are kept; the last step always writes one."""

    every_n_train_steps: Steps = 1000
    """Steps between checkpoints."""

    save_top_k: Checkpoints = 1
    """Checkpoints with the lowest validation loss that are kept; -1 keeps all that have one. A checkpoint has one if
    its step was validated, so val_check_interval should divide every_n_train_steps."""

    save_last_n: Checkpoints = 3
    """Newest checkpoints that are kept, whatever their loss; -1 keeps all. (nemo_sr)"""

    async_save: bool = False
    """Go on training while a checkpoint is written, one at a time."""


@dataclass
class WandbConfig:
    """The run at Weights & Biases."""

    project: Optional[str] = None
    """Project; needed with create_wandb_logger=true."""

    name: str = "${exp_manager.name}"
    """Name that is shown."""

    entity: Optional[str] = None
    """User or team. null: the default one of whoever is logged in."""

    group: Optional[str] = None
    """Group of runs that it belongs to."""

    offline: bool = False
    """Write into the run's folder alone; `wandb sync` sends it later."""

    id: Optional[str] = None
    """Identity of the run, under which all its starts go on. null: one is made and kept in the run's folder."""


@dataclass
class ExpManagerConfig:
    """The folder of a run. Starting the same run again resumes it from its newest complete checkpoint."""

    name: str = "gpt"
    """Name of the run."""

    explicit_log_dir: str = "runs/${exp_manager.name}"
    """The run's folder: checkpoints, TensorBoard log and loss plot."""

    resume_from_checkpoint: Optional[str] = None
    """Checkpoint that a run without one of its own goes on from. It may be another run's, of any optim.name,
    Megatron's, or an import of scripts/convert_hf.py."""

    create_tensorboard_logger: bool = True
    """Write a TensorBoard log; the loss plot is drawn from it."""

    create_wandb_logger: bool = False
    """Log to Weights & Biases."""

    wandb_logger_kwargs: WandbConfig = field(default_factory=WandbConfig)
    """The run at Weights & Biases."""

    create_csv_logger: bool = False
    """Write csv/metrics.csv in the run's folder. It has a column for each metric. (nemo_sr)"""

    verify_checksums: bool = True
    """Compare the SHA-256 of a checkpoint's files before resuming from it. All files are read to their end for this;
    sizes are compared in any case. (nemo_sr)"""

    checkpoint_callback_params: CheckpointCallbackConfig = field(default_factory=CheckpointCallbackConfig)
    """When checkpoints are written, and which are kept."""


@dataclass
class TokenizerConfig:
    """GPT-2's byte-level BPE."""

    vocab_file: Optional[str] = None
    """The vocabulary's file (JSON). null: gpt2-vocab.json beside the data."""

    merge_file: Optional[str] = None
    """The file of merges. null: gpt2-merges.txt beside the data."""


@dataclass
class ModelConfig:
    """The GPT, its batch and its parallel layout."""

    architecture: str = "gpt2"
    """"gpt2" or "gpt_neo". In GPT-Neo every second layer sees a window of tokens only, and attention is not scaled and
    has no bias on queries, keys and values. (nemo_sr)"""

    window_size: Optional[Tokens] = None
    """Tokens that a local layer of gpt_neo sees, their own included. null: 256. (nemo_sr)"""

    num_layers: Layers = MISSING
    """Transformer layers."""

    hidden_size: Features = MISSING
    """Width of the residual stream."""

    num_attention_heads: Heads = MISSING
    """Attention heads per layer."""

    ffn_hidden_size: Optional[Features] = None
    """Width of the feed-forward layer. null: 4 * hidden_size."""

    encoder_seq_length: Tokens = MISSING
    """Tokens in a sample."""

    max_position_embeddings: Tokens = "${model.encoder_seq_length}"  # type: ignore[assignment]
    """Rows of the learned position embedding, one for each token of a sample."""

    hidden_dropout: Probability = 0.0
    """Share of values that dropout zeroes after attention and MLP."""

    attention_dropout: Probability = 0.0
    """Share of attention's probabilities that dropout zeroes."""

    layernorm_epsilon: float = 1e-5
    """Added to the variance in the layer norms."""

    init_method_std: float = 0.02
    """Standard deviation of the initial weights."""

    make_vocab_size_divisible_by: Tokens = 128
    """Tokens to whose multiple the vocabulary is padded. What counts is this times tensor_model_parallel_size."""

    share_embeddings_and_output_weights: bool = True
    """Tie the output layer to the input embedding."""

    micro_batch_size: Samples = MISSING
    """Samples in one forward pass of one data-parallel rank."""

    global_batch_size: Samples = MISSING
    """Samples in one optimizer step, over all ranks."""

    rampup_batch_size: Optional[list[int]] = None
    """Growth of the global batch at the beginning of a run: [start, increment, samples]. It is start at first, grows by
    increment after each equal share of samples, and is global_batch_size from then on. null: none."""

    tensor_model_parallel_size: Ranks = 1
    """Ranks that share each layer."""

    pipeline_model_parallel_size: Ranks = 1
    """Ranks that share the layers among them."""

    sequence_parallel: bool = False
    """Cut norms and dropout along the sequence. Tensor-parallel ranks then share them: less memory for activations."""

    activations_checkpoint_granularity: Optional[str] = None
    """Activations to compute again in the backward pass. "selective": those of attention; "full": all; null: none."""

    activations_checkpoint_method: Optional[str] = None
    """How "full" picks layers. "uniform" (if null): all of them, in groups of activations_checkpoint_num_layers, each
    computed again from its input; "block": the first activations_checkpoint_num_layers of each pipeline stage."""

    activations_checkpoint_num_layers: Optional[Layers] = None
    """Layers of a group ("uniform"), or of those to compute again ("block"). null: 1."""

    transformer_engine: Optional[bool] = None
    """Use Transformer Engine's layers. null: on a GPU where it is installed."""

    restore_from_path: Optional[str] = None
    """Weights that the run begins with: a checkpoint, a run's folder (its newest), or a Hugging Face folder. Optimizer,
    schedule and data begin at their beginning. A run with checkpoints of its own goes on from those. null: random."""

    seed: int = 1234
    """Seed of the weights, of dropout and of the data order."""

    nsys_profile: NsysProfileConfig = field(default_factory=NsysProfileConfig)
    """Which steps NVIDIA's Nsight Systems records."""

    torch_profile: TorchProfileConfig = field(default_factory=TorchProfileConfig)
    """Of which steps torch's profiler writes a trace. (nemo_sr)"""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """The tokenizer that made the data."""


@dataclass
class SchedConfig:
    """NeMo's learning rate schedule over trainer.max_steps."""

    name: str = "CosineAnnealing"
    """One of NeMo's schedules by step. CosineAnnealing, InverseSquareRootAnnealing, PolynomialDecayAnnealing (a line),
    SquareAnnealing, SquareRootAnnealing, WarmupPolicy (constant after the warm-up)."""

    warmup_steps: Steps = 0
    """Steps of linear warm-up."""

    constant_steps: Steps = 0
    """Steps at min_lr at the end (CosineAnnealing)."""

    min_lr: float = 0.0
    """Learning rate at the end."""


@dataclass
class OptimConfig:
    """The strategy and its hyperparameters. Where a default is null, the strategy decides."""

    name: str = "adamw_sr"
    """The strategy (--help lists them). Types of weights, gradients, moments and master copy follow from it."""

    lr: float = MISSING
    """Highest learning rate; see sr_lr_scale."""

    sr_lr_scale: float = 1.0
    """Factor on the highest learning rates, of adamw_sr alone. They are lr and decoupled_lr; the lowest stay. The paper
    advises 2 to 4. With another optim.name it has no effect, so that changing the name alone keeps the comparison fair.
    (nemo_sr)"""

    decoupled_lr: Optional[float] = None
    """Highest learning rate of token embedding and output layer; it follows the schedule as lr does. null: lr.
    (Megatron-core)"""

    decoupled_min_lr: Optional[float] = None
    """Their learning rate where the others' is sched.min_lr. null: in proportion, sched.min_lr * decoupled_lr / lr.
    (Megatron-core)"""

    weight_decay: float = 0.01
    """Decoupled weight decay. A step shrinks a weight by learning rate * weight_decay. Biases and norms have none."""

    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    """Share of the first and of the second moment that a step keeps."""

    eps: float = 1e-8
    """Added to the root of the second moment."""

    grad_dtype: Optional[str] = None
    """Type in which gradients are summed, "bf16" or "fp32". null: bf16 with adamw_sr and adamw_bf16, else fp32.
    (nemo_sr)"""

    seed: Optional[int] = None
    """Seed of the rounding noise (adamw_sr). null: model.seed. (nemo_sr)"""

    exp_avg_rounding: Optional[str] = None
    """How adamw_sr rounds the first moment. "nearest" (if null) or "stochastic". (nemo_sr)"""

    exp_avg_sq_rounding: Optional[str] = None
    """How adamw_sr rounds the second moment. "stochastic" (if null) or "nearest". (nemo_sr)"""

    sched: SchedConfig = field(default_factory=SchedConfig)
    """The learning rate schedule."""


@dataclass
class DataConfig:
    """Megatron-core's indexed datasets."""

    data_prefix: Any = MISSING
    """Path without .bin and .idx, or weights and paths in turn. A list, like [0.3, /data/a, 0.7, /data/b], or of
    paths alone."""

    splits_string: str = "980,20,0"
    """Shares of training, validation and test."""

    validation_sets: Optional[list[str]] = None
    """More sets to validate on, names and paths in turn: [wiki, /data/wiki, code, /data/code]. All documents of a set
    serve, limit_val_batches of them each time; its loss is val_loss/NAME. val_loss itself, of the documents that
    splits_string leaves for validation, picks the checkpoints to keep. null: none. (nemo_sr)"""

    index_mapping_dir: Optional[str] = None
    """Where sample orders are cached. null: index_cache beside the data."""

    num_workers: Processes = 0
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
