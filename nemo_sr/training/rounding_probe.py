# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Watches the steps of Megatron-core's optimizers without FP32 masters, on a sample of the whole model's weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from nemo_sr.diagnostics import pending_shards
from nemo_sr.megatron.clipping import counted_parameters
from nemo_sr.sampling import Draw, ShardSampler
from nemo_sr.training.metrics import LAYER_GROUPS
from nemo_sr.training.nearest_moment import NearestMoment
from nemo_sr.training.rounding_sums import SUMS, RoundingSums, Sampled, layer_group
from nemo_sr.update import ParamShard, StepOptions, adamw_float32

SAMPLES = 2048
"""Weights of each parameter that a report looks at; of a smaller parameter all."""

FOLLOWED = 64
"""Weights of each parameter whose second moment is followed at every step."""


class RoundingProbe:
    """Looks at what the steps of a model read and write; changes nothing and draws from no generator.

    Every weight counts once, however many ranks have copies of it. Which ones are looked at does not depend on the
    parallel layout, except by rows that pad the vocabulary.

    Args:
        links: The parts of Megatron-core's chain: distributed optimizers around an AdamWSR.
        samples: Weights of each parameter in a report.
        followed: Weights of each parameter whose second moment is followed.
    """

    def __init__(self, links: Sequence[Any], *, samples: int = SAMPLES, followed: int = FOLLOWED) -> None:
        self._links = [_LinkProbe(link, samples, followed) for link in links if link.optimizer is not None]

    def watch(self, step: int) -> None:
        """Look at the next step.

        Args:
            step: Its number, 1 for the first, from which the sample follows; the same on all ranks.
        """
        for link in self._links:
            link.watched = step

    def collect(self) -> tuple[RoundingSums, float]:
        """Add up over all ranks what was seen. Collective; one transfer from the device.

        Returns:
            The sums of the last step that was watched, and by how much second moments rounded to nearest are below
            exact ones, as a mean share of the larger of the two.
        """
        shape = (len(LAYER_GROUPS), len(SUMS))
        sums = torch.zeros(shape[0] * shape[1] + 2, dtype=torch.float64, device=torch.cuda.current_device())
        for link in self._links:
            if link.table is not None:
                sums[:-2] += link.table.view(-1)
            if link.moment is not None:
                sums[-2:] += link.moment.sums()
        torch.distributed.all_reduce(sums)
        sums = sums.cpu()
        shortfall, elements = sums[-2:].tolist()
        return RoundingSums(sums[:-2].view(shape)), shortfall / elements if elements else 0.0


class _LinkProbe:
    """Looks at the steps of one inner optimizer."""

    def __init__(self, link: Any, samples: int, followed: int) -> None:
        self.watched: int | None = None
        self.table: Tensor | None = None
        self.moment: NearestMoment | None = None
        self._samples, self._followed = samples, followed
        self._counted = {id(param) for param in counted_parameters(link)}
        self._sampler: ShardSampler | None = None
        self._groups = torch.empty(0)
        self._seen: tuple[Sampled, Draw, list[Tensor]] | None = None
        link.optimizer.register_step_pre_hook(self._before)
        link.optimizer.register_step_post_hook(self._after)

    @torch.no_grad()
    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._seen = self.table = None
        if self.watched is not None or self._sampler is None:
            shards = self._shards(optimizer)
            if self._sampler is None:
                self._start(optimizer, shards)
            if self.watched is not None and shards:
                self._seen = self._look(shards, self.watched)
            self.watched = None
        if self.moment is not None:
            self.moment.step(optimizer.grad_scale)

    @torch.no_grad()
    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._seen is not None:
            sampled, draw, weights = self._seen
            self.table = sampled.sums(draw.take(weights))
            self._seen = None

    def _shards(self, optimizer: Any) -> list[tuple[str, ParamShard, StepOptions]]:
        return [
            (optimizer.name_of(param), shard, options)
            for _, param, shard, options in pending_shards(optimizer)
            if id(param) in self._counted
        ]

    def _start(self, optimizer: Any, shards: list[tuple[str, ParamShard, StepOptions]]) -> None:
        device = torch.device(torch.cuda.current_device()) if not shards else shards[0][1].weight.device
        places = [(shard.key, shard.layouts) for _, shard, _ in shards]
        self._sampler = ShardSampler(places, self._samples, device)
        if not shards:
            return
        groups = torch.tensor([layer_group(name) for name, *_ in shards], device=device)
        groups = groups.repeat_interleave(torch.tensor(self._sampler.sizes, device=device))
        self._groups = (torch.arange(len(LAYER_GROUPS), device=device).unsqueeze(1) == groups).double()
        self.moment = NearestMoment(
            ShardSampler(places, self._followed, device).draw(0),
            [shard.grad for _, shard, _ in shards],
            [shard.exp_avg_sq for _, shard, _ in shards],
            optimizer.param_groups[0]["betas"][1],
        )

    def _look(self, shards: list[tuple[str, ParamShard, StepOptions]], step: int) -> tuple[Sampled, Draw, list[Tensor]]:
        assert self._sampler is not None
        draw = self._sampler.draw(step)
        kinds = ("weight", "grad", "exp_avg", "exp_avg_sq")
        taken = [draw.take([getattr(shard, kind) for _, shard, _ in shards]) for kind in kinds]
        exact, exact_exp_avg_sq, begin = [], [], 0
        # Parameters of one group have the same learning rate and decay, and are computed together.
        sizes = zip((options for *_, options in shards), draw.sizes, strict=True)
        for _, alike in groupby(sizes, key=lambda pair: id(pair[0])):
            members = list(alike)
            options, end = members[0][0], begin + sum(size for _, size in members)
            old, grad, exp_avg, exp_avg_sq = (tensor[begin:end] for tensor in taken)
            weight, _, moment = adamw_float32(
                old, grad, exp_avg, exp_avg_sq, options.scalars, maximize=options.maximize
            )
            exact.append(weight)
            exact_exp_avg_sq.append(moment)
            begin = end
        sampled = Sampled(
            draw.counts,
            self._groups,
            taken[0].float(),
            torch.cat(exact),
            taken[3].float(),
            torch.cat(exact_exp_avg_sq),
        )
        return sampled, draw, [shard.weight for _, shard, _ in shards]
