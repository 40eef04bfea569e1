# shellcheck shell=sh
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
#
# The one file of the site. Read twice: by you, for sbatch (`. slurm/env.sh && sbatch slurm/run.slurm`), and by the job, which
# finds it through SLURM_SUBMIT_DIR. Fill in what your site needs; "" leaves a thing to the site's defaults. What the environment
# holds already wins over this file: `CONTAINER=none sbatch slurm/run.slurm`.

site() {
    eval "[ -n \"\${$1:-}\" ] || $1=\$2"
    # shellcheck disable=SC2163 # the name is in $1
    if eval "[ -n \"\$$1\" ]"; then export "$1"; fi
}

# What sbatch reads from the environment (the options of its command line win).
site SBATCH_ACCOUNT       ""    # your project
site SBATCH_PARTITION     ""    # where the GPUs are
site SBATCH_GPUS_PER_NODE ""    # 8, say; trainer.devices follows it
site SBATCH_EXCLUSIVE     ""    # exclusive: whole nodes, with all their CPUs
site SBATCH_CPUS_PER_GPU  ""    # else 8, say: many sites give a job one CPU of each node unless it asks for more
site SBATCH_MEM_PER_NODE  ""    # 0: all memory of each node
site SBATCH_TIMELIMIT     ""    # 24:00:00, say; before it is over the job saves, and is requeued

# What the program runs in: none (a virtual environment), pyxis, apptainer or docker.
site CONTAINER            "none"
site VENV                 ""    # CONTAINER=none: the virtual environment; "": .venv of the checkout, which `make setup` makes
site IMAGE                ""    # else the image, nvcr.io/nvidia/nemo:25.09 say, or a .sqsh or .sif file; docker/README.md
site IMAGE_DIR            ""    # where an image is imported to, once, on storage that the nodes share; "": .images of the checkout
site MOUNTS               ""    # what the container must see beside checkout, data and results: /from:/to,/from:/to

# What the configurations' paths data/... and runs/... stand for; "": data and runs of the checkout. Shared by the nodes.
site DATA_DIR             ""
site RESULTS_DIR          ""
