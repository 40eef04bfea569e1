# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What every parameter of a Megatron model is: its canonical name, and its block of the whole parameter.

Both come from ``sharded_state_dict()``, which knows the tensor-parallel cut of every parameter. Its keys come in two
forms: one key for all layers (and for all experts of a layer) with the index as a prepended axis, or a key for each.
Either gives the same names here, ``decoder.layers.{global layer}.<rest>`` and ``...experts.{global expert}.<rest>``
with that layer's or expert's own shape, so that noise does not depend on tensor, pipeline, virtual pipeline or expert
parallelism, on the form, or on vocabulary padding (rows at the end do not move the others).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.transformer.utils import sharded_state_dict_default
from megatron.core.utils import unwrap_model

from nemo_sr.layout import ShardLayout


@dataclass(frozen=True)
class ParameterPlace:
    """Canonical name of a rank's parameter, and the pieces of the whole parameter that it is made of, in order.

    Most parameters are one piece. SwiGLU's first matrix is two: a rank holds a part of either half.
    """

    name: str
    pieces: tuple[ShardLayout, ...]

    def layouts(self, start: int, stop: int) -> tuple[ShardLayout, ...]:
        """Return the layouts of elements [start, stop) of the rank's flattened parameter."""
        found = []
        begin = 0
        for piece in self.pieces:
            first, last = max(start - begin, 0), min(stop - begin, piece.numel)
            if first < last:
                found.append(
                    ShardLayout(piece.global_shape, piece.block_offset, piece.block_shape, start=first, stop=last)
                )
            begin += piece.numel
        return tuple(found)


def place_parameters(model_chunks: Sequence[torch.nn.Module]) -> dict[torch.nn.Parameter, ParameterPlace]:
    """Find the canonical name and the place of every trainable parameter of a rank's model chunks.

    Args:
        model_chunks: What get_megatron_optimizer gets: Megatron models or plain torch modules, wrapped or not.

    Returns:
        A place for every parameter that requires a gradient.

    Raises:
        ValueError: a parameter is not in its model's sharded_state_dict(), or lies in a way that is not known here, as
            those of Megatron's legacy GroupedMLP do.
    """
    _refuse_grouped_experts(model_chunks)
    metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    places = {}
    for chunk in unwrap_model(list(model_chunks)):
        entries = {
            id(entry.data): entry
            for entry in nested_values(_sharded_state_dict(chunk, metadata))
            if isinstance(entry, ShardedTensor | ShardedTensorFactory)
        }
        for module_name, param in chunk.named_parameters():
            if not param.requires_grad:
                continue
            if id(param) not in entries:
                raise ValueError(
                    f"every trainable parameter must be in its model's sharded_state_dict(), which gives it its name; "
                    f"{module_name!r} is not. Add it there (with keep_vars=True), or freeze it."
                )
            places[param] = _place(param, entries[id(param)])
    return places


def _sharded_state_dict(chunk: Any, metadata: dict[str, Any]) -> Any:
    if not hasattr(chunk, "sharded_state_dict"):  # of plain torch modules: the same on every tensor-parallel rank
        return sharded_state_dict_default(chunk, metadata=metadata)
    accepted = inspect.signature(chunk.sharded_state_dict).parameters.values()
    if any(parameter.name == "metadata" or parameter.kind == parameter.VAR_KEYWORD for parameter in accepted):
        return chunk.sharded_state_dict(metadata=metadata)
    return chunk.sharded_state_dict()


def _refuse_grouped_experts(model_chunks: Sequence[torch.nn.Module]) -> None:
    for module_name, module in (named for chunk in model_chunks for named in chunk.named_modules()):
        if type(module).__name__ == "GroupedMLP":  # not imported: Megatron is about to remove it
            raise ValueError(
                f"every expert must have weights of its own, from which its noise takes its name; {module_name!r} is "
                f"Megatron's legacy GroupedMLP, which keeps those of all local experts, transposed, in one tensor. Set "
                f"moe_grouped_gemm=False (SequentialMLP), or install Transformer Engine and leave "
                f"moe_use_legacy_grouped_gemm=False (TEGroupedMLP)."
            )


def _place(param: torch.nn.Parameter, entry: Any) -> ParameterPlace:
    built = entry.build() if isinstance(entry, ShardedTensorFactory) else [entry]
    shards = list(nested_values(built)) if isinstance(built, dict) else list(built)
    names = {canonical_name(s.key, s.global_offset[: s.prepend_axis_num]) for s in shards}
    end = param.data_ptr()
    for shard in shards:
        if not shard.data.is_contiguous() or shard.data.data_ptr() != end:
            break
        end += shard.data.numel() * shard.data.element_size()
    if len(names) != 1 or end != param.data_ptr() + param.numel() * param.element_size():
        raise ValueError(
            f"the checkpoint pieces of a parameter must follow one another in memory and belong to one whole "
            f"parameter; those of {entry.key!r} do not (pieces of {sorted(names)}). Its noise cannot follow its "
            f"elements: use another optimizer for this model."
        )
    pieces = tuple(
        ShardLayout(
            shard.global_shape[shard.prepend_axis_num :],
            shard.global_offset[shard.prepend_axis_num :],
            shard.local_shape,
            start=0,
            stop=shard.data.numel(),
        )
        for shard in shards
    )
    return ParameterPlace(names.pop(), pieces)


def canonical_name(key: str, prepended: Sequence[int]) -> str:
    """Write the indices of prepended axes into a checkpoint key.

    Args:
        key: Key of a ShardedTensor.
        prepended: Its offsets along the prepended axes: those of the global layer, the global expert, both or none.

    Returns:
        The name, with every index behind the part of the key that it counts: ``layers.`` or ``experts.``.

    Raises:
        ValueError: there are more or fewer axes than parts of the key without an index.
    """
    num_parts = len(_COUNTED.findall(key))
    if len(prepended) not in (0, num_parts):
        raise ValueError(
            f"a checkpoint key must have a prepended axis for each 'layers.' and 'experts.' in it that no index "
            f"follows, or none; {key!r} has {len(prepended)}. Its noise cannot follow its elements: use another "
            f"optimizer for this model."
        )
    indices = iter(prepended)
    return _COUNTED.sub(lambda part: f"{part[0]}{next(indices)}." if prepended else part[0], key)


# The keys of experts are "...mlp.experts.experts.<rest>": of a module, and of its experts.
_COUNTED = re.compile(r"(?<![^.])(?:layers|experts)\.(?!\d|experts\.)")
