# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What each optimizer parameter is: its canonical name, and its place in the whole parameter of that name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from nemo_sr.layout import ShardLayout

_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def canonical_name(name: str) -> str:
    """Remove the parts that DDP, torch.compile, FSDP and activation checkpointing put into a parameter's name."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


@dataclass(frozen=True)
class Binding:
    """A canonical name and the pieces, in order, that the parameter holds of the whole parameter of that name."""

    name: str
    layouts: tuple[ShardLayout, ...]
    explicit: bool = True
    """Whether the caller bound it, and so vouches that parameters of one name belong together."""

    @classmethod
    def of(cls, name: str, layout: ShardLayout | Sequence[ShardLayout]) -> Binding:
        """Make a binding from one layout, or from several disjoint ones whose concatenation is the parameter.

        Raises:
            TypeError: the name is not a str, or a layout not a ShardLayout.
            ValueError: the layouts overlap, or are of different whole parameters.
        """
        layouts = (layout,) if isinstance(layout, ShardLayout) else tuple(layout)
        if not isinstance(name, str) or not all(isinstance(piece, ShardLayout) for piece in layouts):
            raise TypeError(
                f"a binding needs a str and one ShardLayout or several; got {name!r} and {layout!r}. "
                "Pass ShardLayout(global_shape, block_offset, block_shape, start, stop)."
            )
        name = canonical_name(name)
        for a, b in combinations(layouts, 2):
            _check_pieces(name, a, b)
        return cls(name, layouts)

    @property
    def numel(self) -> int:
        """Number of elements of the parameter."""
        return sum(layout.numel for layout in self.layouts)


def check_bindings(bindings: Iterable[Binding]) -> None:
    """Check that parameters of one name are pieces of one whole parameter, or copies bound alike.

    Raises:
        ValueError: they are not.
    """
    by_name: dict[str, list[Binding]] = {}
    for new in bindings:
        known = by_name.setdefault(new.name, [])
        for old in known:
            _check_pair(old, new)
        known.append(new)


def _check_pair(old: Binding, new: Binding) -> None:
    if not (old.explicit and new.explicit):
        raise ValueError(
            f"every parameter needs a name of its own, since the noise depends on it; two are called {new.name!r}. "
            "Rename one, or bind both with AdamWSR.bind if they are pieces or copies of one parameter."
        )
    if old.layouts != new.layouts:
        for a in old.layouts:
            for b in new.layouts:
                _check_pieces(new.name, a, b)


def _check_pieces(name: str, a: ShardLayout, b: ShardLayout) -> None:
    if a.global_shape != b.global_shape:
        raise ValueError(
            f"parameters bound to one name must be parts of one parameter; those bound to {name!r} have the global "
            f"shapes {a.global_shape} and {b.global_shape}. Bind them to different names."
        )
    if a.overlaps(b):
        raise ValueError(
            f"parameters bound to one name must be disjoint pieces, or copies with equal layouts; two bound to "
            f"{name!r} overlap: {a} and {b}. Correct their layouts."
        )
