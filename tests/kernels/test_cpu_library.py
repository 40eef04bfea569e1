# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""The C library: what it is compiled to, under sanitizers, and in a wheel."""

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from checkout import ROOT, copy_checkout
from nemo_sr.kernels import can_use_cpu, cpu_backend

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


@pytest.mark.slow
@needs_compiler
@needs_sources
def test_one_wheel_for_every_python(tmp_path):
    copy_checkout(tmp_path / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path]
    subprocess.run([*command, tmp_path / "source"], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    code = "import nemo_sr.kernels as k; print(k.cpu_backend.LIBRARY); assert k.can_use_cpu(), k.why_not_cpu()"
    output = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=installed,
        env=os.environ | {"PYTHONPATH": str(installed)},
    ).stdout
    assert Path(output.strip()) == installed / "nemo_sr" / "kernels" / "_cpu.so"
    assert not list(installed.rglob("*.c"))


# Faults of the tests' own making, compiled into every copy that the library makes.
FAULTS = {
    "AddressSanitizer: stack-buffer-overflow": "#define memcpy(to, from, n) __builtin_memcpy(to, from, (n) + 64)",
    "runtime error: shift exponent ": "#define memcpy(to, from, n) __builtin_memcpy(to, from, (n) >> ((int)(n) | 64))",
}

SANITIZED = """
import sys
import torch
from pathlib import Path
from shard_cases import *
from nemo_sr.kernels.cpu_backend import step_on
torch.set_num_threads(2)
def check(shards, *roundings, **how):
    stepped = copy(shards)
    step_on(stepped, options(*roundings), path=sys.argv[2], library=Path(sys.argv[1]), **how)
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
"""


@pytest.mark.slow
@needs_compiler
@needs_sources
@pytest.mark.parametrize("vectors", cpu_backend.PATHS)
def test_under_sanitizers(tmp_path, vectors):
    installed = cpu_backend.load(cpu_backend.LIBRARY)
    if vectors not in installed.paths:
        pytest.skip(f"this processor runs {', '.join(installed.paths)} alone")
    result = run_under_sanitizers(tmp_path, vectors)
    assert result.stdout.splitlines()[-1:] == ["clean"], result.stderr[-4000:]
    assert "runtime error" not in result.stderr


@pytest.mark.slow
@needs_compiler
@needs_sources
@pytest.mark.parametrize("message", FAULTS)
def test_the_sanitizers_notice_a_fault(tmp_path, message):
    (tmp_path / "fault.h").write_text(f"#include <string.h>\n{FAULTS[message]}\n")
    result = run_under_sanitizers(tmp_path, "portable", f"-w -include {tmp_path / 'fault.h'}")
    assert result.returncode != 0
    assert message in result.stderr


def run_under_sanitizers(tmp_path, vectors, *flags):
    library = build_with_sanitizers(tmp_path, *flags)
    script = tmp_path / "sanitized.py"
    script.write_text(SANITIZED)
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
    return subprocess.run(
        [sys.executable, str(script), str(library), vectors],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=500,
    )


def build_with_sanitizers(tmp_path, *more_flags):
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
        env=os.environ | {"CFLAGS": " ".join((flags, *more_flags)), "LDFLAGS": "-fsanitize=address,undefined"},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return tmp_path / "nemo_sr" / "kernels" / "_cpu.so"
