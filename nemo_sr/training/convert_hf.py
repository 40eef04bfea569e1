# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Weights from Hugging Face into a checkpoint that training starts from, and back."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_DESCRIPTION = """\
Convert GPT-2 and GPT-Neo between a Hugging Face folder and a Megatron-core checkpoint (torch_dist), which loads in
every tensor-, pipeline- and data-parallel layout. BF16 weights keep every bit, both ways.

  convert_hf.py import HF_FOLDER CHECKPOINT    then: pretrain_gpt.py exp_manager.resume_from_checkpoint=CHECKPOINT ...
  convert_hf.py export CHECKPOINT HF_FOLDER    then: AutoModelForCausalLM.from_pretrained(HF_FOLDER)

The target must not exist; it appears when it is complete. export takes a run's folder too, and then its newest complete
checkpoint. Nothing in the files that are read is run.
"""

_DTYPES = ("bfloat16", "float32")


def import_folder(source: Path, target: Path, *, dtype: str = "bfloat16") -> str:
    """Write a checkpoint with the weights and the tokenizer of a Hugging Face folder.

    Args:
        source: The folder: config.json, safetensors, and GPT-2's tokenizer if it has one.
        target: The checkpoint; it must not exist.
        dtype: Type of the weights in the checkpoint, rounded to nearest where theirs is wider.

    Returns:
        What was done, for a person.

    Raises:
        OSError: a file is missing or cannot be read or written.
        ValueError: the folder holds something else.
    """
    from nemo_sr.models.hf_config import read_config
    from nemo_sr.models.hf_folder import WeightFiles
    from nemo_sr.models.hf_weights import hugging_face_shapes, megatron_tensors
    from nemo_sr.training.hf_tokenizer import read_tokenizer

    description = read_config(source)
    weights = WeightFiles(source, hugging_face_shapes(description))
    vocabulary = read_tokenizer(source)
    with _published(target) as partial:
        import torch

        from nemo_sr.data.vocabulary import MERGES_NAME, VOCAB_NAME
        from nemo_sr.megatron.fitting import VOCABULARY_KEY
        from nemo_sr.training.manifest import describe_file, write_durably
        from nemo_sr.training.model_file import MODEL_FILE, describe_model
        from nemo_sr.training.weights import build_model, one_process, whole_parameters

        with one_process(on_cpu=True):
            from nemo_sr.megatron.saving import BackgroundSave

            gpt = build_model(description, dtype=getattr(torch, dtype), on_cpu=True)
            params = whole_parameters(gpt)
            with torch.no_grad():
                for name, tensor in megatron_tensors(description, weights.read):
                    params[name][: len(tensor)].copy_(tensor)
            state = {VOCABULARY_KEY: description.vocab_size, "model": gpt.sharded_state_dict()}
            BackgroundSave(state, partial, describe_file).is_done(wait=True)
        if vocabulary is not None:
            vocabulary.write(partial)
        files = {"vocab_file": VOCAB_NAME, "merge_file": MERGES_NAME} if vocabulary is not None else {}
        write_durably(partial / MODEL_FILE, describe_model(description, files))
    note = "" if vocabulary is not None else f" {source} has no tokenizer: none was written."
    return f"{target}: {description.architecture}, {description.num_parameters:,} parameters, {dtype}.{note}"


def export_checkpoint(
    source: Path, target: Path, *, vocab_file: Path | None = None, merge_file: Path | None = None
) -> str:
    """Write a Hugging Face folder with the weights and the tokenizer of a checkpoint, or of a run's newest.

    Args:
        source: The checkpoint or the run.
        target: The folder; it must not exist.
        vocab_file: The tokenizer's vocabulary, if it is no longer where the checkpoint says.
        merge_file: Its merges; the two go together.

    Returns:
        What was done, for a person.

    Raises:
        OSError: a file is missing or cannot be read or written.
        ValueError: the checkpoint is damaged, or of another model.
    """
    from nemo_sr.models.hf_config import CONFIG_FILE, make_config
    from nemo_sr.models.hf_folder import write_json, write_weights
    from nemo_sr.models.hf_weights import hugging_face_tensors
    from nemo_sr.training.hf_tokenizer import write_tokenizer
    from nemo_sr.training.model_file import read_description, read_vocabulary
    from nemo_sr.training.weights import PADDED, find_checkpoint, load_model, one_process, whole_parameters

    checkpoint = find_checkpoint(source)
    description, files = read_description(checkpoint)
    if vocab_file is not None and merge_file is not None:
        files = {"vocab_file": vocab_file, "merge_file": merge_file}
    vocabulary = read_vocabulary(description, files) if files else None
    with _published(target) as partial, one_process(on_cpu=True):
        gpt = load_model(checkpoint, description, on_cpu=True)
        params = {name: param.detach() for name, param in whole_parameters(gpt).items()}
        dtype = gpt.config.params_dtype

        def read(name: str) -> torch.Tensor:
            return params[name][: description.vocab_size] if name in PADDED else params[name]

        write_weights(partial, hugging_face_tensors(description, read))
        end = None if vocabulary is None else vocabulary.end_of_text
        write_json(partial / CONFIG_FILE, make_config(description, dtype=dtype, end_of_text=end))
        if vocabulary is not None:
            write_tokenizer(partial, vocabulary, max_length=description.max_position_embeddings)
    note = "" if vocabulary is not None else " The checkpoint has no tokenizer: give --vocab and --merges to add one."
    kind = str(dtype).removeprefix("torch.")
    return f"{target}: {description.architecture}, {description.num_parameters:,} parameters, {kind}.{note}"


@contextlib.contextmanager
def _published(target: Path) -> Iterator[Path]:
    """Give a new folder to write to, which becomes `target` in one instant, or goes if anything fails."""
    from nemo_sr.training.manifest import flush

    if target.exists() or target.is_symlink():
        raise FileExistsError(f"the target must be a new folder; {target} exists. Choose another, or delete it.")
    partial = target.with_name(f"partial_{os.getpid()}_{target.name}")
    partial.mkdir(parents=True)
    try:
        yield partial
        for file in partial.iterdir():
            flush(file)
        flush(partial)
        partial.rename(target)
        flush(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="convert_hf.py", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    importing = commands.add_parser("import", help="Hugging Face to Megatron-core")
    importing.add_argument("source", type=Path, metavar="HF_FOLDER")
    importing.add_argument("target", type=Path, metavar="CHECKPOINT")
    importing.add_argument("--dtype", choices=_DTYPES, default="bfloat16", help="type of the weights (bfloat16)")
    exporting = commands.add_parser("export", help="Megatron-core to Hugging Face")
    exporting.add_argument("source", type=Path, metavar="CHECKPOINT")
    exporting.add_argument("target", type=Path, metavar="HF_FOLDER")
    exporting.add_argument("--vocab", type=Path, metavar="V.json", help="the tokenizer's vocabulary, if it has moved")
    exporting.add_argument("--merges", type=Path, metavar="M.txt", help="its merges")
    args = parser.parse_args(argv)
    if args.command == "export" and (args.vocab is None) != (args.merges is None):
        parser.error("--vocab and --merges go together: give both, or neither")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch initialises CUDA: conversions run on the CPU
    warnings.filterwarnings("ignore", module=r"(megatron|torch|nemo_sr)\b")
    try:
        if args.command == "import":
            done = import_folder(args.source, args.target, dtype=args.dtype)
        else:
            done = export_checkpoint(args.source, args.target, vocab_file=args.vocab, merge_file=args.merges)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(done)  # noqa: T201
    return 0
