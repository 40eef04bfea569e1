#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
#
# Installs nemo_sr into an environment that has torch and megatron-core, and what is missing beside them, without touching what is
# there: everything goes in with --no-deps, and a package that has changed or gone ends this with status 1.
#
# Usage: docker/install.sh    (PYTHON=... for another interpreter)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python}

pip_install() {
    if "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps "$@"
    else
        uv pip install --quiet --python "$(command -v "$python")" --no-deps "$@"
    fi
}

freeze() {
    "$python" -c '
from importlib.metadata import distributions
print("\n".join(sorted({f"{found.name}=={found.version}" for found in distributions() if found.name != "nemo_sr"})))'
}

before=$(freeze)
# What training imports, by the name of its package; torch, megatron-core and NeMo must be there.
missing=$("$python" - <<'EOF'
import importlib.util
import pathlib
import re

WANTED = {
    "lightning": "lightning", "lightning_utilities": "lightning-utilities", "torchmetrics": "torchmetrics",
    "hydra": "hydra-core", "omegaconf": "omegaconf", "antlr4": "antlr4-python3-runtime", "einops": "einops",
    "pandas": "pandas", "sentencepiece": "sentencepiece", "tensorboard": "tensorboard", "matplotlib": "matplotlib",
    "rich": "rich", "psutil": "psutil", "safetensors": "safetensors", "tqdm": "tqdm", "tokenizers": "tokenizers",
    "mwparserfromhell": "mwparserfromhell",
}
pins = dict(re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", pathlib.Path("constraints.txt").read_text()))
for module, package in WANTED.items():
    if importlib.util.find_spec(module) is None:
        print(f"{package}=={pins[package]}" if package in pins else package)
EOF
)
pip_install .
if [ -n "$missing" ]; then
    mapfile -t packages <<<"$missing"
    echo "added: ${packages[*]}"
    pip_install "${packages[@]}"
fi
changed=$(comm -23 <(printf '%s\n' "$before") <(freeze))
if [ -n "$changed" ]; then
    echo "error: What the environment had must stay as it was; these have changed or gone: $changed" >&2
    exit 1
fi
