#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
#
# Shows that an environment can train: names missing packages, composes a configuration, and takes one step of AdamWSR on a CPU.
set -euo pipefail

python=${PYTHON:-python}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
RESULTS_DIR=$(mktemp -d)
export RESULTS_DIR JOB_NODES=1 JOB_GPUS_PER_NODE=8
"$python" "$here/scripts/preflight.py" --missing
"$python" "$here/scripts/pretrain_gpt.py" --config-name=gpt_neo_350m --cfg job >/dev/null
"$python" - <<'EOF'
import megatron.core
import torch

import nemo_sr

param = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
optimizer = nemo_sr.AdamWSR([("w", param)], lr=1e-3)
param.grad = torch.ones_like(param)
optimizer.step()
assert not torch.equal(param, torch.ones_like(param))
print(f"nemo_sr {nemo_sr.__version__}, torch {torch.__version__}, megatron-core {megatron.core.__version__}: ready")
EOF
