#!/usr/bin/env bash
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
#
# Checks a training here and now, before it waits in the queue, and submits it if it can run:
#   slurm/submit.sh [sbatch's options] slurm/run.slurm [--config-name=NAME] [key=value ...]
# What `slurm/run.slurm --dry-run` prints goes to standard error; slurm/env.sh is read, too.
set -euo pipefail

here=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=slurm/env.sh
. "$here/env.sh"

submitted=("$@") known=()
# Of sbatch's options those count here that say how many nodes, GPUs and tasks there will be.
while [ $# -gt 0 ] && [[ $1 != *run.slurm ]]; do
    case $1 in
    -N | --nodes | --gpus-per-node | --ntasks-per-node)
        known+=("$1" "${2:-}")
        [ $# -eq 1 ] || shift
        ;;
    -N* | --nodes=* | --gpus-per-node=* | --ntasks-per-node=*) known+=("$1") ;;
    esac
    shift
done
if [ $# -eq 0 ]; then
    echo "error: slurm/run.slurm must follow sbatch's options; it is missing. Write: slurm/submit.sh -N 4 slurm/run.slurm ..." >&2
    exit 2
fi
shift
status=0
"$here/run.slurm" --dry-run "${known[@]}" "$@" >&2 || status=$?
if [ "$status" -ne 0 ]; then
    echo "error: A training that is submitted must pass its checks; this one does not (above). Nothing was submitted." >&2
    exit "$status"
fi
exec sbatch "${submitted[@]}"
