# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Text from a checkpoint, through the Megatron model that trains."""

from __future__ import annotations

import argparse
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_DESCRIPTION = """\
Continue a text with a checkpoint's model, on the GPU if there is one. CHECKPOINT is a checkpoint, or a run, whose
newest complete checkpoint is taken. Each token is chosen from the whole text before it, or as much as the model sees.
"""


def choose(logits: torch.Tensor, *, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """Return the next token.

    Args:
        logits: Of all tokens, shape (num_tokens,).
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: How many of the likeliest tokens to choose among; None: all.
        generator: What is drawn from, on the CPU.
    """
    import torch

    if temperature == 0:
        return int(logits.argmax())
    logits = logits.double().cpu()
    if top_k is not None and top_k < len(logits):
        logits[logits < logits.topk(top_k).values[-1]] = -torch.inf
    probabilities = torch.softmax((logits - logits.max()) / temperature, dim=-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))


def continue_tokens(
    gpt: Any,
    tokens: Sequence[int],
    *,
    num_tokens: int,
    end: int | None,
    max_length: int,
    temperature: float,
    top_k: int | None,
    seed: int,
) -> Iterator[int]:
    """Yield new tokens, one after another, until the end of the text.

    Args:
        gpt: The model, in one process.
        tokens: At least one token to begin with.
        num_tokens: How many at most.
        end: The token that ends a text; it is not yielded.
        max_length: How many tokens the model looks back at most.
        temperature: As in :func:`choose`.
        top_k: As in :func:`choose`.
        seed: Of the draws.
    """
    import torch

    device = next(gpt.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    text = list(tokens)
    for _ in range(num_tokens):
        seen = torch.tensor([text[-max_length:]], device=device)
        with torch.no_grad():
            logits = gpt(seen, torch.arange(seen.shape[1], device=device)[None], None)[0, -1]
        token = choose(logits, temperature=temperature, top_k=top_k, generator=generator)
        if token == end:
            return
        yield token
        text.append(token)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="generate.py", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--prompt", default="", help="the text to continue; without one, a new text begins")
    parser.add_argument("--tokens", type=_at_least(1), default=64, metavar="N", help="tokens to add, at most (64)")
    parser.add_argument(
        "--temperature", type=_temperature, default=1.0, metavar="T", help="0 takes the likeliest token each time (1)"
    )
    parser.add_argument("--top-k", type=_at_least(1), metavar="K", help="choose among the K likeliest tokens")
    parser.add_argument("--seed", type=_at_least(0), default=1234, metavar="N", help="seed of the draws (1234)")
    parser.add_argument("--vocab", type=Path, metavar="V.json", help="the tokenizer's vocabulary, if it has moved")
    parser.add_argument("--merges", type=Path, metavar="M.txt", help="its merges")
    parser.add_argument("--cpu", action="store_true", help="run on the CPU where there is a GPU too")
    args = parser.parse_args(argv)
    if (args.vocab is None) != (args.merges is None):
        parser.error("--vocab and --merges go together: give both, or neither")
    if args.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch initialises CUDA
    warnings.filterwarnings("ignore", module=r"(megatron|torch|nemo_sr)\b")
    try:
        _generate(args)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _generate(args: argparse.Namespace) -> None:
    import torch

    from nemo_sr.data.tokenizer import build_tokenizer
    from nemo_sr.training.model_file import read_description, read_vocabulary
    from nemo_sr.training.weights import find_checkpoint, load_model, one_process

    checkpoint = find_checkpoint(args.checkpoint)
    description, files = read_description(checkpoint)
    if args.vocab is not None:
        files = {"vocab_file": args.vocab, "merge_file": args.merges}
    if not files:
        raise ValueError(f"text needs a tokenizer; {checkpoint} names none. Give --vocab and --merges.")
    vocabulary = read_vocabulary(description, files)
    tokenizer = build_tokenizer(vocabulary)
    # A text begins where the one before it ended.
    tokens = tokenizer.encode(args.prompt).ids or [vocabulary.end_of_text]
    on_cpu = not torch.cuda.is_available()
    with one_process(on_cpu=on_cpu):
        gpt = load_model(checkpoint, description, on_cpu=on_cpu)
        added = continue_tokens(
            gpt,
            tokens,
            num_tokens=args.tokens,
            end=vocabulary.end_of_text,
            max_length=description.max_position_embeddings,
            temperature=args.temperature,
            top_k=args.top_k,
            seed=args.seed,
        )
        print(args.prompt + tokenizer.decode(list(added)))  # noqa: T201


def _at_least(least: int) -> Callable[[str], int]:
    def number(word: str) -> int:
        if (value := int(word)) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}; it is {value}")
        return value

    return number


def _temperature(word: str) -> float:
    value = float(word)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be at least 0; it is {value}")
    return value
