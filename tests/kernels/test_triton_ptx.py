# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""What the compilers make of the Triton kernel, without a GPU: the arithmetic, the accesses, registers and memory."""

import re
import subprocess
from collections import Counter
from functools import cache

import pytest

pytest.importorskip(
    "triton", minversion="3.6", reason="the Triton kernel needs the package triton, which exists for Linux only"
)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nemo_sr.kernels.triton_backend import BLOCK, LAUNCH
from nemo_sr.kernels.triton_kernel import step_kernel
from nemo_sr.kernels.triton_scalars import scalars_kernel
from nemo_sr.kernels.triton_table import CHUNK

ARCHITECTURES = [80, 90, 100]
# FP32 weights and moments, FP32 gradients, exp_avg stochastic, exp_avg_sq stochastic, maximize; then whether the scale
# and the step are on the device and whether every piece takes the fast path; then the loads and stores of 16 bytes for
# eight elements.
VARIANTS = {
    "default": ((False, False, False, True, False), False, False, True, 4, 3),
    "fp32 gradients, all stochastic": ((False, True, True, True, True), True, False, True, 5, 3),
    "fp32": ((True, True, False, False, False), False, False, True, 8, 6),
    "general": ((False, False, False, True, False), False, False, False, 4, 3),
    "capturable": ((False, False, False, True, False), True, True, True, 4, 3),
}
# mul, add, sub, sqrt and div of the step, in FP32.
OPERATIONS = {"mul.rn": 9, "add.rn": 3, "sub.rn": 1, "sqrt.rn": 1, "div.rn": 1}
# Of the scalars of a step that the device counts.
FP64_OPERATIONS = {"mul.rn.f64", "sub.rn.f64", "div.rn.f64", "sqrt.rn.f64", "cvt.rn.f32.f64"}
CONSTANTS = ("OPTIONS", "SCALE_ON_DEVICE", "CAPTURABLE", "PLAIN", "CHUNK", "BLOCK")
POINTERS = {"chunks": "*i32", "pieces": "*i64", "scale_on_device": "*fp32", "scalars_on_device": "*i32", "step": "i32"}
SCALARS_SIGNATURE = {"rows": "*i32", "steps": "*i64", "lr": "*fp64", "BLOCK": "constexpr"}


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@cache
def build(architecture, options, scale_on_device, capturable, plain, **changed):
    constants = dict(zip(CONSTANTS, (options, scale_on_device, capturable, plain, CHUNK, BLOCK), strict=True))
    signature = {n: "constexpr" if n in constants else POINTERS.get(n, "fp32") for n in step_kernel.arg_names}
    source = ASTSource(step_kernel, signature, constexprs=constants)
    target = GPUTarget("cuda", architecture, 32)
    return triton.compile(source, target=target, options={**LAUNCH, **changed})


def build_scalars(architecture, **changed):
    signature = {name: SCALARS_SIGNATURE.get(name, "i32") for name in scalars_kernel.arg_names}
    source = ASTSource(scalars_kernel, signature, constexprs={"BLOCK": 128})
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={**LAUNCH, **changed})


def instructions(ptx):
    return Counter(re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_]*\.[\w.:]+)", ptx, re.MULTILINE))


def arithmetic(ptx):
    """Count the operations on floating point; an operation on two values counts twice."""
    result = Counter()
    for name, number in instructions(ptx).items():
        if re.search(r"\.(b?f16|f32|f64|tf32)", name) and not name.startswith(("setp.", "abs.", "ld.", "st.", "mov.")):
            result[re.sub(r"\.f32(x2)?$", "", name)] += number * (2 if name.endswith("x2") else 1)
    return dict(result)


def require_the_steps_arithmetic(ptx, elements):
    expected = {name: number * elements for name, number in OPERATIONS.items()}
    assert arithmetic(ptx) == expected
    assert not re.search(r"\.ftz|\bfma|\bmad\.[a-z.]*f32|approx|div\.full|\brcp|\brsqrt|\.sat", ptx)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_arithmetic_is_the_steps_alone(architecture, variant):
    # The exact path steps one element a thread.
    elements = 9 if variant == "general" else 8
    require_the_steps_arithmetic(build(architecture, *VARIANTS[variant][:4]).asm["ptx"], elements)


def test_fused_operations_are_noticed():
    ptx = build(90, *VARIANTS["default"][:4], enable_fp_fusion=True).asm["ptx"]
    with pytest.raises(AssertionError):
        require_the_steps_arithmetic(ptx, 8)
    with pytest.raises(AssertionError):
        require_the_scalars_arithmetic(build_scalars(90, enable_fp_fusion=True).asm["ptx"])


def require_the_scalars_arithmetic(ptx):
    found = {name for name in instructions(ptx) if re.search(r"\.f(16|32|64)", name)}
    assert {name for name in found if not name.startswith(("selp.", "mov.", "setp."))} == FP64_OPERATIONS
    assert not re.search(r"\.ftz|\bfma|approx|\.sat", ptx)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_scalars_of_a_capturable_step_are_rounded_as_on_the_host(architecture):
    require_the_scalars_arithmetic(build_scalars(architecture).asm["ptx"])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_accesses_are_of_16_bytes(architecture, variant):
    options, scale_on_device, capturable, plain, loads, stores = VARIANTS[variant]
    found = instructions(build(architecture, options, scale_on_device, capturable, plain).asm["ptx"])
    assert found["ld.global.v4.b32"] == loads
    assert found["st.global.v4.b32"] == stores
    # All else that is read are the tables, and, on the exact path, single elements.
    narrow = {"ld.global.b16": 4, "st.global.b16": 3} if not plain else {}
    accesses = {name: n for name, n in found.items() if re.match(r"(ld|st)\.(?!param)", name) and ".v4.b32" not in name}
    tables = {"ld.global.b32", "ld.global.b64"}
    assert {name: n for name, n in accesses.items() if name not in tables} == narrow
    assert accesses["ld.global.b32"] == 2 + scale_on_device + 4 * capturable


def run_tool(name, binary, tmp_path, *arguments):
    file = tmp_path / "kernel.cubin"
    file.write_bytes(binary)
    tool = getattr(triton.knobs.nvidia, name).path
    return subprocess.run([tool, *arguments, str(file)], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nothing_spills_and_nothing_is_shared(architecture, variant, tmp_path):
    kernel = build(architecture, *VARIANTS[variant][:4])
    usage = run_tool("cuobjdump", kernel.asm["cubin"], tmp_path, "-res-usage")
    found = dict(re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage))
    assert {name: found[name] for name in ("STACK", "SHARED", "LOCAL")} == {"STACK": "0", "SHARED": "0", "LOCAL": "0"}
    assert kernel.metadata.shared == 0
    # Of 65,536 registers, 80 a thread leave six blocks of 128 threads to a multiprocessor, 96 five.
    assert int(found["REG"]) <= (80 if VARIANTS[variant][3] else 96)


def executed_in_the_loop(sass):
    """Count the instructions of one pass of the kernel's loop, without the routines for unusual divisions and roots."""
    code = {int(a, 16): text.strip() for a, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", sass)}
    jumps = {a: int(m.group(2), 16) for a, text in code.items() if (m := re.match(r"(@!?U?P\d )?BRA 0x(\w+)", text))}
    (end, begin), *_ = [(a, to) for a, to in jumps.items() if to < a]
    number, at = 0, begin
    while at <= end:
        number += 1
        # A jump over a call is taken where the operands are usual.
        skips = re.match(r"@!P\d BRA", code[at]) and at < jumps[at] < end
        at = jumps[at] if skips else at + 16
    return number


def test_instructions_per_element_leave_the_time_to_memory(tmp_path):
    """About 97 fit in the time that an H200 takes to move 14 bytes."""
    cubin = build(90, *VARIANTS["default"][:4]).asm["cubin"]
    per_element = executed_in_the_loop(run_tool("cuobjdump", cubin, tmp_path, "-sass")) / 8
    print(f"{per_element} SASS instructions per element")
    assert 60 < per_element <= 80
