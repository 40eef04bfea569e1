# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""AdamWSR: AdamW in pure BF16 with stochastic rounding, as a torch.optim.Optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from nemo_sr.binding import Binding, canonical_name, check_bindings
from nemo_sr.diagnostics import RoundingReport, add_reports, report_step, warn_of_stalls
from nemo_sr.dtensor import layout_of, local_tensor
from nemo_sr.kernels import choose_backend
from nemo_sr.layout import ShardLayout
from nemo_sr.loading import prepare_state_dict
from nemo_sr.noise import NOISE_VERSION, noise_key, validate_seed
from nemo_sr.update import StepScalars, require_gradual_underflow

ROUNDINGS = ("nearest", "stochastic")


class AdamWSR(Optimizer):
    """AdamW whose weights, gradients and moments are bfloat16, with stochastic rounding and no FP32 master copy.

    State is 4 bytes a parameter (two BF16 moments) beside the BF16 weight and gradient. Noise follows the element: it
    depends on the seed, the parameter's name, the element's index in the whole parameter, the step and the stream, so
    results do not depend on sharding, on neighbours, on torch's generators, or on a resume. Under data, tensor and
    pipeline parallelism this holds for shards bound with :meth:`bind`; the Megatron integration binds them itself.

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
        capturable: For CUDA graphs; needs a backend that keeps the step on the device.
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
            raise ValueError(f'fp32_params must be "error" or "plain"; got {fp32_params!r}.')
        if capturable:
            raise RuntimeError(
                "capturable=True needs a backend that keeps the step on the device; this version of nemo_sr has none. "
                "Pass capturable=False."
            )
        self._step_function = choose_backend(backend)
        self._fp32_params = fp32_params
        self._bindings: dict[Tensor, Binding] = {}
        self._keys: dict[tuple[int, str], int] = {}
        self._bindings_checked = False
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
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        extra = ("_step_function", "_fp32_params", "_bindings", "_keys", "_bindings_checked", "grad_scale")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in extra}}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, with its own options where given; see torch.optim.Optimizer.add_param_group.

        Raises:
            ValueError: an option is out of its range.
            TypeError: a parameter has an unsupported dtype.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        number = len(self.param_groups) - 1
        try:
            _validate_options(group)
            names = group.get("param_names") or [f"group{number}.param{i}" for i in range(len(group["params"]))]
            new = {}
            for name, param in zip(names, group["params"], strict=True):
                self._require_supported_dtype(name, param)
                new[param] = Binding(canonical_name(name), (layout_of(name, param),), explicit=False)
            warn_of_stalls(group)
        except (TypeError, ValueError):
            del self.param_groups[-1]
            raise
        self._bindings.update(new)
        self._bindings_checked = False

    def bind(self, param: Tensor, name: str, layout: ShardLayout | Sequence[ShardLayout]) -> None:
        """Say what a parameter is, so that its noise follows its elements. Call before the first step.

        Args:
            param: One of the optimizer's parameters.
            name: Canonical name of the whole parameter.
            layout: Where the elements of ``param`` lie in it; several layouts mean their concatenation.

        Raises:
            ValueError: ``param`` is not in the optimizer, or has another number of elements than the layout.
            RuntimeError: ``param`` has been stepped already.
        """
        if param not in self._bindings:
            raise ValueError(
                f"bind needs a parameter of this optimizer; {name!r} is not one. Pass it to AdamWSR first."
            )
        binding = Binding.of(canonical_name(name), layout)
        if binding.numel != (size := local_tensor(param).numel()):
            raise ValueError(
                f"the layout of {name!r} must hold as many elements as the parameter; "
                f"got {binding.numel} and {size}. Correct start and stop."
            )
        if int(self.state.get(param, {}).get("step", 0)) > 0 and binding != self._bindings[param]:
            raise RuntimeError(f"bind must come before the first step; {name!r} has been stepped already.")
        self._bindings[param] = binding
        self._bindings_checked = False

    def name_of(self, param: Tensor) -> str:
        """Return the canonical name under which a parameter draws its noise."""
        return self._bindings[param].name

    def initialize_state(self, param: Tensor) -> None:
        """Make the state of a parameter that has none: an int64 step, and two moments of zeros in its dtype."""
        if self.state[param]:
            return
        self.state[param].update(
            step=torch.zeros((), dtype=torch.int64),
            exp_avg=_zeros_like(param),
            exp_avg_sq=_zeros_like(param),
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step for every parameter that has a gradient.

        The gradient is ``param.decoupled_grad`` where that is set, else ``param.grad``; BF16 or FP32.

        Args:
            closure: Reevaluates the model and returns the loss.

        Returns:
            The closure's loss, or None.

        Raises:
            TypeError: a gradient is sparse, or neither BF16 nor FP32.
            RuntimeError: the process flushes subnormal numbers (reference backend on a CPU).
            ValueError: two parameters have one name.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._bindings_checked:
            check_bindings(self._bindings.values())
            self._bindings_checked = True
        work = [
            (group, p, g) for group in self.param_groups for p in group["params"] if (g := self._grad(p)) is not None
        ]
        if any(param.device.type == "cpu" for _, param, _ in work):
            require_gradual_underflow()
        scalars: dict[tuple[int, int], StepScalars] = {}
        for group, param, grad in work:
            self.initialize_state(param)
            state = self.state[param]
            state["step"] += 1
            step = int(state["step"])
            known = (id(group), step)
            if known not in scalars:
                scalars[known] = self._scalars(group, step)
            self._step_param(group, param, grad, step, scalars[known])
            # Megatron looks for the step here.
            group["step"] = max(step, group.get("step", 0))
        self.grad_scale = 1.0
        return loss

    def load_state_dict(self, state_dict: dict[str, Any], *, rename: Mapping[str, str] | None = None) -> None:
        """Load state saved by :meth:`state_dict`, or by torch.optim.AdamW (its moments are cast, with a warning).

        Tensors are copied, the step stays int64, and the parameters keep their present names.

        Args:
            state_dict: What :meth:`state_dict` returned.
            rename: {saved name: present name}. A renamed parameter draws other noise from here on: harmless
                statistically, not reproducible to the bit.

        Raises:
            ValueError: a saved name differs from the present one and is not in ``rename``, the noise version is
                unknown, or the groups do not match. Nothing has been changed then.
        """
        names = [[self.name_of(param) for param in group["params"]] for group in self.param_groups]
        params = [param for group in self.param_groups for param in group["params"]]
        prepared, states = prepare_state_dict(state_dict, params, names, rename or {})
        given_names = [group.get("param_names") for group in self.param_groups]
        super().load_state_dict(prepared)
        for group, given in zip(self.param_groups, given_names, strict=True):
            group.pop("param_names", None)
            if given is not None:
                group["param_names"] = given
            for name, default in self.defaults.items():
                group.setdefault(name, default)
            _validate_options(group)
        # torch casts and aliases per-parameter tensors; ours are exact and owned.
        for param, state in zip(params, states, strict=True):
            if state:
                self.state[param] = state

    def state_dict(self) -> dict[str, Any]:
        """Return state and options, with every parameter's canonical name as ``param_names``."""
        result: dict[str, Any] = super().state_dict()
        for saved, group in zip(result["param_groups"], self.param_groups, strict=True):
            saved["param_names"] = [self.name_of(param) for param in group["params"]]
        return result

    @torch.no_grad()
    def rounding_report(self) -> list[dict[str, RoundingReport]]:
        """Report, for each group, what rounding does in the step that is about to be taken.

        Call it between backward and :meth:`step`; it costs about two steps, changes nothing and is exact.

        Returns:
            For each group, a report for "weight", "exp_avg" and "exp_avg_sq" ({} where no BF16 parameter has a
            gradient). Its ``share_lost`` is what rounding to nearest would lose.
        """
        result = []
        for group in self.param_groups:
            pending = [(param, grad) for param in group["params"] if (grad := self._grad(param)) is not None]
            result.append(add_reports(self._report(group, *pair) for pair in pending if pair[0].dtype != torch.float32))
        return result

    def _report(self, group: dict[str, Any], param: Tensor, grad: Tensor) -> dict[str, RoundingReport]:
        state = self.state.get(param) or {"step": 0, "exp_avg": _zeros_like(param), "exp_avg_sq": _zeros_like(param)}
        step = int(state["step"]) + 1
        return report_step(
            tuple(local_tensor(t).reshape(-1) for t in (param, grad, state["exp_avg"], state["exp_avg_sq"])),
            scalars=self._scalars(group, step),
            key=self._key(group, param),
            step=step,
            layouts=self._bindings[param].layouts,
            roundings=(group["exp_avg_rounding"], group["exp_avg_sq_rounding"]),
            maximize=group["maximize"],
        )

    def _require_supported_dtype(self, name: str, param: Tensor) -> None:
        if param.dtype == torch.bfloat16 or (param.dtype == torch.float32 and self._fp32_params == "plain"):
            return
        advice = "Convert the model with model.bfloat16()"
        if param.dtype == torch.float32 and type(self) is AdamWSR:
            advice += ', or pass fp32_params="plain" to step FP32 parameters in plain FP32 AdamW'
        raise TypeError(f"{type(self).__name__} needs bfloat16 parameters; {name!r} is {param.dtype}. {advice}.")

    def _grad(self, param: Tensor) -> Tensor | None:
        grad: Tensor | None = getattr(param, "decoupled_grad", None)
        grad = param.grad if grad is None else grad
        if grad is None:
            return None
        if grad.layout != torch.strided or grad.dtype not in (torch.bfloat16, torch.float32):
            given = f"a {grad.dtype} gradient with layout {grad.layout}"
            raise TypeError(
                f"gradients must be dense and bfloat16 or float32; {self.name_of(param)!r} has {given}. "
                "Use a dense layer, or cast the gradient."
            )
        if grad.shape != param.shape:
            raise ValueError(
                f"a gradient must have its parameter's shape; {self.name_of(param)!r} has shape {tuple(param.shape)}, "
                f"its gradient {tuple(grad.shape)}."
            )
        return grad

    def _key(self, group: dict[str, Any], param: Tensor) -> int:
        identity = (group["seed"], self.name_of(param))
        if identity not in self._keys:
            self._keys[identity] = noise_key(*identity)
        return self._keys[identity]

    def _scalars(self, group: dict[str, Any], step: int) -> StepScalars:
        return StepScalars.of_step(
            step,
            lr=float(group["lr"]),
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            grad_scale=self.grad_scale,
        )

    def _step_param(self, group: dict[str, Any], param: Tensor, grad: Tensor, step: int, scalars: StepScalars) -> None:
        state = self.state[param]
        tensors = [local_tensor(tensor) for tensor in (param, state["exp_avg"], state["exp_avg_sq"])]
        flat = [tensor.reshape(-1) for tensor in tensors]
        self._step_function(
            flat[0],
            local_tensor(grad).reshape(-1),
            flat[1],
            flat[2],
            scalars=scalars,
            key=self._key(group, param),
            step=step,
            layouts=self._bindings[param].layouts,
            exp_avg_rounding=group["exp_avg_rounding"],
            exp_avg_sq_rounding=group["exp_avg_sq_rounding"],
            maximize=group["maximize"],
        )
        for tensor, result in zip(tensors, flat, strict=True):
            if not tensor.is_contiguous():  # reshape made a copy
                tensor.copy_(result.view(tensor.shape))


class AdamW_SR_BF16(AdamWSR):  # noqa: N801
    """AdamWSR under the paper's name. Parameters that are not bfloat16 are always an error.

    Args:
        params: As in :class:`AdamWSR`, bfloat16 only.
        *args: As in :class:`AdamWSR`.
        **kwargs: As in :class:`AdamWSR`, but for ``fp32_params``.

    Raises:
        TypeError: a parameter is not bfloat16; the message names it.

    Source:
        arXiv 2502.20566. ``exp_avg_sq_rounding="nearest"`` gives the paper's rounding of the second moment.
    """

    def __init__(self, params: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("fp32_params", "error") != "error":
            raise ValueError('AdamW_SR_BF16 always refuses FP32 parameters. Use AdamWSR(..., fp32_params="plain").')
        super().__init__(params, *args, **kwargs)


def _zeros_like(param: Tensor) -> Tensor:
    return torch.zeros_like(param, memory_format=torch.contiguous_format)


def _validate_options(group: dict[str, Any]) -> None:
    """Check a group's options.

    Raises:
        ValueError: an option is out of its range.
        TypeError: the seed is not an int.
    """
    for name in ("lr", "eps", "weight_decay"):
        if not 0.0 <= float(group[name]) < float("inf"):
            raise ValueError(f"{name} must be finite and not negative; got {group[name]}.")
    if len(group["betas"]) != 2 or not all(0.0 <= float(beta) < 1.0 for beta in group["betas"]):
        raise ValueError(f"betas must be two numbers in [0, 1); got {group['betas']}.")
    for name in ("exp_avg_rounding", "exp_avg_sq_rounding"):
        if group[name] not in ROUNDINGS:
            raise ValueError(f"{name} must be one of {', '.join(ROUNDINGS)}; got {group[name]!r}.")
    validate_seed(group["seed"])
