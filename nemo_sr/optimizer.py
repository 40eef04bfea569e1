# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""AdamWSR: AdamW in pure BF16 with stochastic rounding, as a torch.optim.Optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim.optimizer import Optimizer

from nemo_sr.binding import Binding, canonical_name, check_bindings
from nemo_sr.diagnostics import RoundingReport, add_reports, pending_shards, report_step, warn_of_stalls
from nemo_sr.dtensor import layout_of, local_tensor
from nemo_sr.gradients import find_grad
from nemo_sr.kernels import capturable_twin, choose_backend, is_capturing
from nemo_sr.layout import ShardLayout
from nemo_sr.loading import prepare_state_dict
from nemo_sr.noise import NOISE_VERSION, noise_key
from nemo_sr.options import capturable_options, check_grad_scale, normalize_options, step_options
from nemo_sr.state import check_capture, fresh_state
from nemo_sr.update import CapturableOptions, ParamShard, StepOptions


class AdamWSR(Optimizer):
    """AdamW whose weights, gradients and moments are bfloat16, with stochastic rounding and no FP32 master copy.

    State is 4 bytes a parameter (two BF16 moments) beside the BF16 weight and gradient. Noise follows the element: it
    depends on the seed, the parameter's name, the element's index in the whole parameter, the step and the stream, so
    results do not depend on sharding, on neighbours, on torch's generators, or on a resume. Under data, tensor and
    pipeline parallelism this holds for shards bound with ``bind``; the Megatron integration binds them itself, and
    a DTensor (FSDP2) says itself what it holds.

    Args:
        params: Parameters, parameter groups, or (name, parameter) pairs such as ``model.named_parameters()``. Without
            names a parameter is called ``group{i}.param{j}``, and its noise depends on the order of parameters.
        lr: Learning rate, non-negative; a float, or a tensor used at its own value.
        betas: Decay of the first and the second moment, in [0, 1).
        eps: Added to the root of the second moment, non-negative.
        weight_decay: Decoupled weight decay, non-negative.
        seed: The run's noise seed, in [0, 2**64). One value on all ranks.
        exp_avg_rounding: "nearest" (as in the paper) or "stochastic".
        exp_avg_sq_rounding: "stochastic", or "nearest" (as in the paper). Departure 1 from the paper: an average
            rounded to nearest stalls; at beta2 = 0.999 it ends 73 % short.
        fp32_params: "error" refuses FP32 parameters; "plain" steps them in FP32 AdamW.
        maximize: Ascend instead of descend.
        capturable: For CUDA graphs: the step is counted on the parameters' device, and with the Triton backend the host
            reads neither it nor a tensor ``lr`` or ``grad_scale``. A graph reads these anew at each replay and repeats
            what was a float. Take a step or more before the capture; the bits are the same with and without.
        backend: "auto", "reference", "cpu" or "triton". All give the same bits.

    Raises:
        ValueError: an argument is out of its range, or two parameters have one name.
        TypeError: a parameter is neither bfloat16 nor (with ``fp32_params="plain"``) float32.
        RuntimeError: the backend cannot run here.

    Source:
        arXiv 2502.20566 (AISTATS 2025); the bits are those of the noise specification, version 1.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        seed: int = 0,
        exp_avg_rounding: str = "nearest",
        exp_avg_sq_rounding: str = "stochastic",
        fp32_params: str = "error",
        maximize: bool = False,
        capturable: bool = False,
        backend: str = "auto",
    ) -> None:
        if fp32_params not in ("error", "plain"):
            raise ValueError(f'fp32_params must be "error" or "plain"; got {fp32_params!r}. Choose one of them.')
        self._backend = choose_backend(backend)
        self._fp32_params = fp32_params
        self._bindings: dict[Tensor, Binding] = {}
        self._bindings_checked = False
        self._named = False
        self._loading: tuple[Mapping[str, str], list[dict[str, Any]]] | None = None
        self.grad_scale: float | Tensor = 1.0
        """Multiplies the gradient in the next step, then goes back to 1. A float, or a 0-dimensional FP32 tensor."""
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "seed": seed,
            "noise_version": NOISE_VERSION,
            "exp_avg_rounding": exp_avg_rounding,
            "exp_avg_sq_rounding": exp_avg_sq_rounding,
            "maximize": maximize,
            "capturable": capturable,
        }
        normalize_options(defaults)
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        extra = ("_backend", "_fp32_params", "_bindings", "_bindings_checked", "_named", "_loading", "grad_scale")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in extra}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._loading is None:
            return
        # torch has cast and aliased the per-parameter tensors, and replaced the names; ours are exact and owned.
        _, states = self._loading
        for (group, param), loaded in zip(self._groups_and_params(), states, strict=True):
            group["param_names"] = [self.name_of(member) for member in group["params"]]
            if loaded:
                self.state[param] = loaded

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with its own options where given; see torch.optim.Optimizer.add_param_group.

        Raises:
            ValueError: an option is out of its range, or a name is taken.
            TypeError: a parameter has an unsupported dtype.
        """
        number = len(self.param_groups)
        # Every group has param_names here; torch only knows of those that the caller gave.
        hidden = [] if self._named else [group.pop("param_names") for group in self.param_groups]
        try:
            super().add_param_group(param_group)
        finally:
            for group, names in zip(self.param_groups, hidden, strict=False):
                group["param_names"] = names
        group = self.param_groups[number]
        named = "param_names" in group
        given = group.get("param_names") or [f"group{number}.param{i}" for i in range(len(group["params"]))]
        try:
            normalize_options(group)
            new = self._name_params([canonical_name(name) for name in given], group["params"])
        except (TypeError, ValueError):
            del self.param_groups[number]
            raise
        self._bindings.update(new)
        group["param_names"] = [self.name_of(param) for param in group["params"]]
        self._bindings_checked = False
        self._named = named
        warn_of_stalls(group)

    def bind(self, param: Tensor, name: str, layout: ShardLayout | Sequence[ShardLayout]) -> None:
        """Say what a parameter is, so that its noise follows its elements. Call before the first step.

        Args:
            param: One of the optimizer's parameters.
            name: Canonical name of the whole parameter.
            layout: Where the elements of ``param`` lie in it; several layouts mean their concatenation.

        Raises:
            ValueError: ``param`` is not in the optimizer, has another number of elements than the layout, or the
                layouts overlap.
            TypeError: ``name`` is not a str, or ``layout`` not a ShardLayout or several.
            RuntimeError: ``param`` has been stepped already.

        Source:
            Noise specification, version 1.
        """
        known = self._binding(param)
        binding = Binding.of(name, layout)
        if binding.numel != (size := local_tensor(param).numel()):
            raise ValueError(
                f"the layout of {name!r} must hold as many elements as the parameter; "
                f"got {binding.numel} and {size}. Correct start and stop."
            )
        if int(self.state.get(param, {}).get("step", 0)) > 0 and binding != known:
            raise RuntimeError(
                f"bind must come before the first step; {name!r} has been stepped already. Bind it right after "
                "making the optimizer."
            )
        self._bindings[param] = binding
        self._bindings_checked = False
        for group in self.param_groups:
            group["param_names"] = [self.name_of(member) for member in group["params"]]

    def name_of(self, param: Tensor) -> str:
        """Return the canonical name under which a parameter draws its noise; ValueError for one of no group."""
        return self._binding(param).name

    def initialize_state(self, param: Tensor) -> None:
        """Make a parameter's state where it has none; ValueError for a parameter of no group."""
        self._binding(param)
        if not self.state[param]:
            group = next(group for group, member in self._groups_and_params() if member is param)
            self.state[param].update(fresh_state(param, capturable=group["capturable"]))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, ``decoupled_grad`` among them; see torch.optim.Optimizer.zero_grad."""
        super().zero_grad(set_to_none)
        for _, param in self._groups_and_params():
            decoupled = getattr(param, "decoupled_grad", None)
            if decoupled is None:
                continue
            if set_to_none:
                param.decoupled_grad = None  # type: ignore[attr-defined]
            else:
                decoupled.zero_()

    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step for every parameter that has a gradient.

        The gradient is ``param.decoupled_grad`` where that is set, else ``param.grad``; BF16 or FP32. All checks come
        before the first write: an error leaves weights, moments and steps as they were.

        Args:
            closure: Reevaluates the model and returns the loss.

        Returns:
            The closure's loss, or None.

        Raises:
            TypeError: a parameter, a gradient, the state or an option has an unsupported type.
            ValueError: two parameters have one name, or an option is out of its range.
            RuntimeError: the process flushes subnormal numbers (reference backend on a CPU).

        Source:
            arXiv 2502.20566; the bits are those of the noise specification, version 1.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        check_grad_scale(self.grad_scale)
        if is_capturing():
            self._check_capture()
        work = list(self._pending())
        together: dict[int, tuple[StepOptions | CapturableOptions, list[ParamShard], list[Tensor]]] = {}
        copies: list[tuple[Tensor, Tensor]] = []
        for group, param, grad, options in work:
            self.initialize_state(param)
            state = self.state[param]
            if isinstance(options, CapturableOptions):
                state["step"] = state["step"].to(param.device)
            shard = self._shard(group, param, grad, state)
            pairs = ((param, shard.weight), (state["exp_avg"], shard.exp_avg), (state["exp_avg_sq"], shard.exp_avg_sq))
            copies += [(local_tensor(t), flat) for t, flat in pairs if not local_tensor(t).is_contiguous()]
            _, shards, steps = together.setdefault(id(options), (options, [], []))
            shards.append(shard)
            steps.append(state["step"])
        for options, shards, steps in together.values():
            if isinstance(options, StepOptions):
                self._backend(shards, options)
            else:
                twin = capturable_twin(self._backend, steps[0].device)
                assert twin is not None
                twin(shards, steps, options)
        for tensor, result in copies:
            tensor.copy_(result.view(tensor.shape))
        for _, _, steps in together.values():
            torch._foreach_add_(steps, 1)
        for group, _, _, options in work:
            # Megatron looks for the step here; a capturable group's is the device's alone.
            if isinstance(options, StepOptions):
                group["step"] = max(options.step, group.get("step", 0))
            else:
                group.pop("step", None)
        self.grad_scale = 1.0
        return loss

    @_disable_dynamo
    @torch.no_grad()
    def rounding_report(self) -> list[dict[str, RoundingReport]]:
        """Report, for each group, what rounding does in the step that is about to be taken.

        Call it between backward and ``step``; it costs about two steps, changes nothing and is exact.

        Returns:
            For each group, a report for "weight", "exp_avg" and "exp_avg_sq" ({} where no BF16 parameter has a
            gradient). Its ``share_lost`` is what rounding to nearest would lose.

        Raises:
            TypeError, ValueError: as ``step``.
        """
        reports: list[dict[str, RoundingReport]] = [{} for _ in self.param_groups]
        for number, _, shard, options in pending_shards(self):
            reports[number] = add_reports([reports[number], report_step(shard, options)])
        return reports

    def load_state_dict(self, state_dict: dict[str, Any], *, rename: Mapping[str, str] | None = None) -> None:
        """Load state saved by ``state_dict``, or by torch.optim.AdamW (its moments are cast, with a warning).

        Tensors are copied, the step stays int64, and the parameters keep their present names.

        Args:
            state_dict: What ``state_dict`` returned.
            rename: {saved name: present name}. A renamed parameter draws other noise from here on: harmless
                statistically, not reproducible to the bit.

        Raises:
            ValueError: a saved name differs from the present one and is not in ``rename``, the noise version is
                unknown, an option is out of its range, or the groups do not match. Nothing has been changed then.
            TypeError: an option or a tensor is of an unsupported type. Nothing has been changed then.
        """
        self._loading = (rename or {}, [])
        # Last among the hooks, so that it sees what the caller's hooks made of the state.
        handle = self.register_load_state_dict_pre_hook(self._prepare_loading)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            self._loading = None

    def _prepare_loading(self, _: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        assert self._loading is not None
        rename = self._loading[0]
        prepared, states = prepare_state_dict(state_dict, self.param_groups, rename)
        self._loading = (rename, states)
        return prepared

    def _groups_and_params(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        return ((group, param) for group in self.param_groups for param in group["params"])

    def _binding(self, param: Tensor) -> Binding:
        if param not in self._bindings:
            raise ValueError(
                f"a parameter of this optimizer is needed; {param.dtype} {tuple(param.shape)} is none. Pass it to the "
                "constructor or to add_param_group; FP32 masters (NeMo 1.x, O2) cannot replace it: docs/migration.md."
            )
        return self._bindings[param]

    def _name_params(self, names: Sequence[str], params: Sequence[Tensor]) -> dict[Tensor, Binding]:
        taken = {binding.name for binding in self._bindings.values() if not binding.explicit}
        new = {}
        for name, param in zip(names, params, strict=True):
            if name in taken:
                raise ValueError(
                    f"every parameter needs a name of its own, since the noise depends on it; two are called {name!r}. "
                    "Rename one; pieces or copies of one parameter are passed without names and bound with bind."
                )
            taken.add(name)
            self._require_supported_dtype(name, param)
            new[param] = Binding(name, (layout_of(name, param),), explicit=False)
        return new

    def _shard(self, group: dict[str, Any], param: Tensor, grad: Tensor, state: Mapping[str, Any]) -> ParamShard:
        """Lay a parameter out for a backend; what is not contiguous is copied."""
        tensors = (param, grad, state["exp_avg"], state["exp_avg_sq"])
        weight, gradient, exp_avg, exp_avg_sq = (local_tensor(tensor).contiguous().view(-1) for tensor in tensors)
        key = noise_key(group["seed"], self.name_of(param))
        return ParamShard(weight, gradient, exp_avg, exp_avg_sq, key, self._bindings[param].layouts)

    def _pending(
        self, *, on_host: bool = False
    ) -> Iterator[tuple[dict[str, Any], Tensor, Tensor, StepOptions | CapturableOptions]]:
        """Check everything that has a gradient; yield group, parameter, gradient, and the options of its step."""
        if not self._bindings_checked:
            check_bindings(self._bindings.values())
            self._bindings_checked = True
        for group in self.param_groups:
            normalize_options(group, read_lr=not group["capturable"])
            known: dict[int | torch.device, StepOptions | CapturableOptions] = {}
            for param in group["params"]:
                name = self.name_of(param)
                if (grad := find_grad(name, param, self.state.get(param, {}))) is None:
                    continue
                self._require_supported_dtype(name, param)
                if group["capturable"] and not on_host and capturable_twin(self._backend, param.device):
                    if param.device not in known:
                        known[param.device] = capturable_options(group, self.grad_scale)
                    yield group, param, grad, known[param.device]
                    continue
                step = int(self.state.get(param, {}).get("step", 0)) + 1
                if step not in known:
                    known[step] = step_options(group, step, self.grad_scale)
                yield group, param, grad, known[step]

    def _check_capture(self) -> None:
        for group, param in self._groups_and_params():
            name, state = self.name_of(param), self.state.get(param, {})
            if find_grad(name, param, state) is not None:
                check_capture(name, param, group, state, self._backend)

    def _require_supported_dtype(self, name: str, param: Tensor) -> None:
        if param.dtype == torch.bfloat16 or (param.dtype == torch.float32 and self._fp32_params == "plain"):
            return
        advice = "Convert the model with model.bfloat16()"
        if param.dtype == torch.float32 and type(self) is AdamWSR:
            advice += ', or pass fp32_params="plain" to step FP32 parameters in plain FP32 AdamW'
        raise TypeError(f"{type(self).__name__} needs bfloat16 parameters; {name!r} is {param.dtype}. {advice}.")
