# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The C library: what it is compiled to, under sanitizers, and where it is missing."""

import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from shard_cases import make_shard, options

from nemo_sr import AdamWSR
from nemo_sr.kernels import _fastest, can_use_cpu, choose_backend, cpu_backend
from nemo_sr.update import adamw_sr_

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
FUSED = re.compile(r"\bv?fn?m(?:add|sub|la|ls)\w*", re.IGNORECASE)
APPROXIMATE = re.compile(r"\bv?r(?:cp|sqrt)\w*", re.IGNORECASE)

needs_compiler = pytest.mark.skipif(not COMPILER, reason="no C compiler is on PATH")
needs_sources = pytest.mark.skipif(not cpu_backend.SOURCES.is_dir(), reason="nemo_sr is not run from a checkout")
needs_objdump = pytest.mark.skipif(not shutil.which("objdump"), reason="objdump (binutils) is not on PATH")


def disassemble(library):
    return subprocess.run(["objdump", "-d", str(library)], check=True, capture_output=True, text=True).stdout


@needs_objdump
def test_no_operation_is_fused_or_approximate():
    assert can_use_cpu(), cpu_backend.why_not_cpu()
    code = disassemble(cpu_backend.LIBRARY)
    assert not FUSED.findall(code)
    assert not APPROXIMATE.findall(code)
    if platform.machine() == "x86_64":
        for expected in ("vsqrtps %zmm", "vdivps .*%zmm", "vsqrtps .*%ymm", "vdivps .*%ymm", "\tsqrtps", "\tdivps"):
            assert re.search(expected, re.sub(r" +", " ", code)), expected


@needs_compiler
@needs_sources
@needs_objdump
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86-64")
def test_without_its_flags_the_compiler_does_fuse(tmp_path):
    output = tmp_path / "kernel.o"
    flags = ["-O3", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-ffp-contract=fast"]
    source = cpu_backend.SOURCES / "kernel_avx512.c"
    subprocess.run([COMPILER, *flags, "-c", str(source), "-o", str(output)], check=True)
    assert FUSED.findall(disassemble(output))


@needs_compiler
@needs_sources
def test_a_failing_compiler_does_not_stop_the_installation(tmp_path):
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path), "--build-temp", str(tmp_path)]
    result = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"CC": "false"}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "nemo_sr.kernels._cpu" in result.stderr + result.stdout  # setuptools says which extension failed
    assert not list(tmp_path.rglob("*.so"))


@pytest.fixture
def without_library(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_backend, "LIBRARY", tmp_path / "_cpu.so")
    _fastest.cache_clear()
    yield
    _fastest.cache_clear()


@pytest.mark.usefixtures("without_library")
def test_without_the_library_auto_says_once_that_it_takes_the_reference():
    assert not can_use_cpu()
    shards = [make_shard(())]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            choose_backend("auto")(shards, options())
    (message,) = (str(warning.message) for warning in said)
    assert "steps the parameters on cpu with its reference backend" in message
    assert "was not built" in message
    with pytest.raises(RuntimeError, match=r"backend='cpu' was asked for, but it cannot run here: .* was not built"):
        AdamWSR([torch.nn.Parameter(torch.ones(3).bfloat16())], backend="cpu")


@needs_sources
def test_a_library_of_other_sources_is_refused(monkeypatch):
    monkeypatch.setattr(cpu_backend, "digest_of_sources", lambda: "0123456789abcdef")
    cpu_backend.load.cache_clear()
    try:
        assert "built from other sources" in cpu_backend.why_not_cpu()
    finally:
        cpu_backend.load.cache_clear()


def test_a_file_that_is_no_library_is_refused(tmp_path):
    (tmp_path / "_cpu.so").write_bytes(b"nothing")
    assert "cannot be loaded" in cpu_backend.load(tmp_path / "_cpu.so")


def test_importing_nemo_sr_does_not_load_the_library():
    code = "import nemo_sr; assert 'kernels/_cpu.so' not in open('/proc/self/maps').read()"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_what_cannot_be_stepped_is_refused():
    assert can_use_cpu(), cpu_backend.why_not_cpu()
    shard = make_shard((cpu_backend.ShardLayout.whole((12,)),))
    elsewhere = cpu_backend.ParamShard(**{**vars(shard), "weight": shard.weight.to("meta")})
    with pytest.raises(ValueError, match=r"needs contiguous tensors of one size on the CPU; .* on meta"):
        choose_backend("cpu")([elsewhere], options())
    strided = cpu_backend.ParamShard(**{**vars(shard), "exp_avg": torch.ones(24).bfloat16()[::2]})
    with pytest.raises(ValueError, match="contiguous"):
        choose_backend("cpu")([strided], options())
    with pytest.raises(TypeError, match="of one dtype"):
        choose_backend("cpu")([cpu_backend.ParamShard(**{**vars(shard), "exp_avg": torch.ones(12)})], options())
    with pytest.raises(ValueError, match="as many elements as its layouts"):
        choose_backend("cpu")([cpu_backend.ParamShard(**{**vars(shard), "layouts": ()})], options())
    with pytest.raises(RuntimeError, match="path must be one"):
        cpu_backend.step_on([shard], options(), path="sse9")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_parameter_is_refused_when_cpu_is_forced():
    param = torch.nn.Parameter(torch.ones(3, device="cuda").bfloat16())
    param.grad = torch.ones_like(param)
    with pytest.raises(ValueError, match="on the CPU; got one of 3 elements on cuda"):
        AdamWSR([param], backend="cpu").step()


def test_the_reference_is_chosen_by_name():
    assert choose_backend("reference") is adamw_sr_


@pytest.mark.slow
@needs_compiler
@needs_sources
@pytest.mark.parametrize("vectors", cpu_backend.PATHS)
def test_under_sanitizers(tmp_path, vectors):
    installed = cpu_backend.load(cpu_backend.LIBRARY)
    if vectors not in installed.paths:
        pytest.skip(f"this processor runs {', '.join(installed.paths)} alone")
    library = build_with_sanitizers(tmp_path)
    script = tmp_path / "sanitized.py"
    script.write_text(f"""
import torch
from pathlib import Path
from shard_cases import *
from nemo_sr.kernels.cpu_backend import step_on
torch.set_num_threads(2)
def check(shards, *roundings, **how):
    stepped = copy(shards)
    step_on(stepped, options(*roundings), path={vectors!r}, library=Path({str(library)!r}), **how)
    assert_same_bits(written(stepped), bits_of_reference(shards, options(*roundings)))
for grad_dtype in (torch.bfloat16, torch.float32):
    for layouts in LAYOUTS.values():
        shards = [make_shard(layouts, grad_dtype=grad_dtype)]
        for roundings in (("nearest", "stochastic"), ("stochastic", "nearest")):
            check(shards, *roundings)
            check(shards, *roundings, trace=[tuple(torch.empty(shards[0].weight.numel()) for _ in range(3))])
    check([make_shard(layouts, dtype=torch.float32, grad_dtype=grad_dtype) for layouts in LAYOUTS.values()])
    check([make_shard((ShardLayout.whole((size,)),), seed=size, grad_dtype=grad_dtype) for size in range(200)])
check([make_shard((ShardLayout.whole((1 << 20,)),))], own_threads=True)
print("clean")
""")
    asan = subprocess.run(
        [COMPILER, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "LD_PRELOAD": asan,
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=66",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment, timeout=500
    )
    assert result.stdout.splitlines()[-1:] == ["clean"], result.stderr[-4000:]
    assert "runtime error" not in result.stderr


def build_with_sanitizers(tmp_path):
    flags = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
    subprocess.run(
        [
            sys.executable,
            "setup.py",
            "-q",
            "build_ext",
            "--build-lib",
            str(tmp_path),
            "--build-temp",
            str(tmp_path / "o"),
        ],
        cwd=ROOT,
        env=os.environ | {"CFLAGS": flags, "LDFLAGS": "-fsanitize=address,undefined"},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return tmp_path / "nemo_sr" / "kernels" / "_cpu.so"
