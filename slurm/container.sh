# shellcheck shell=bash disable=SC2034,SC2154 # run.slurm reads several such files: each uses the others' variables
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
#
# What the program runs in, by CONTAINER of env.sh. Sets `python`; `in_container`, what stands before it; `srun_options`, what srun
# needs for it. Read by run.slurm, which sets `root` and `dry_run`.

# What docker, unlike the others, does not pass on by itself.
FORWARDED="MASTER_ADDR MASTER_PORT OMP_NUM_THREADS CUDA_DEVICE_MAX_CONNECTIONS CUDA_VISIBLE_DEVICES PYTHONUNBUFFERED DATA_DIR \
RESULTS_DIR JOB_NODES JOB_GPUS_PER_NODE JOB_TASKS_PER_NODE JOB_CPUS_PER_NODE NEMO_SR_RUN_LOCK"

choose_container() {
    in_container=() srun_options=()
    python=(python)
    local venv=${VENV:-$root/.venv}
    python_here=("$venv/bin/python")
    [ -x "${python_here[0]}" ] || python_here=(python3)
    case $CONTAINER in
    none)
        [ -x "$venv/bin/python" ] || fail "CONTAINER=none needs a virtual environment with nemo_sr; $venv/bin/python is not there. \
Run make setup, or set VENV in slurm/env.sh."
        python=("$venv/bin/python")
        return
        ;;
    pyxis | apptainer | docker) ;;
    *) fail "CONTAINER must be none, pyxis, apptainer or docker; it is $CONTAINER. Correct it in slurm/env.sh." ;;
    esac
    [ -n "${IMAGE:-}" ] || fail "CONTAINER=$CONTAINER needs IMAGE, an image's name or file; it is not set. Set it in slurm/env.sh."
    # Inside, the checkout's code comes before the image's.
    python=(sh "$root/slurm/task.sh" python)
    local places=("$root:$root") place
    for place in "$DATA_DIR" "$RESULTS_DIR"; do
        [ -n "$dry_run" ] || mkdir -p "$place"
        places+=("$place:$place")
    done
    if [ -n "${MOUNTS:-}" ]; then
        IFS=, read -r -a more <<<"$MOUNTS"
        places+=("${more[@]}")
    fi
    "use_$CONTAINER" "${places[@]}"
}

use_pyxis() {
    import_image sqsh
    local IFS=,
    srun_options=(--container-image="$image" --container-mounts="$*" --container-workdir="$root" --no-container-mount-home)
}

use_apptainer() {
    import_image sif
    local IFS=,
    in_container=(apptainer exec --bind "$*" --pwd "$root")
    [ "$JOB_GPUS_PER_NODE" = 0 ] || in_container+=(--nv)
    in_container+=("$image")
}

use_docker() {
    in_container=(docker run --rm --init --network=host --ipc=host --ulimit memlock=-1 --ulimit stack=67108864
        --user "$(id -u):$(id -g)" --workdir "$root")
    [ "$JOB_GPUS_PER_NODE" = 0 ] || in_container+=(--gpus all)
    local place name
    for place in "$@"; do
        in_container+=(--volume "$place")
    done
    # By name alone: each task's own value.
    for name in $FORWARDED $(compgen -e | grep -E '^(SLURM|NCCL)_' | sort) SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_ID; do
        in_container+=(--env "$name")
    done
    in_container+=("$IMAGE")
}

# Makes IMAGE a file, once for all jobs; sets `image`.
import_image() {
    local kind=$1 folder=${IMAGE_DIR:-$root/.images} partial
    if [ -f "$IMAGE" ]; then
        image=$(realpath "$IMAGE") # pyxis takes a path only if it begins with / or ./
        return
    fi
    image=$folder/$(printf '%s' "$IMAGE" | tr -c 'A-Za-z0-9._-' _).$kind
    if [ -f "$image" ] || [ -n "$dry_run" ]; then
        return
    fi
    mkdir -p "$folder"
    exec 9>"$image.lock"
    flock 9 # another job may be importing it
    if [ ! -f "$image" ]; then
        partial=$folder/partial.$$.$kind
        if ! "import_$kind" "$partial" >"$image.log" 2>&1; then
            rm -f "$partial"
            fail "IMAGE must be an image that can be imported; $IMAGE could not: $(tail -n 1 "$image.log") ($image.log has it all)."
        fi
        mv "$partial" "$image"
    fi
    exec 9>&-
}

import_sif() {
    apptainer pull "$1" "docker://$IMAGE"
}

import_sqsh() {
    local name=$IMAGE registry=${IMAGE%%/*}
    # By digest: Enroot takes no tag beside it, and no @.
    case $name in
    *@*) name=$(printf '%s' "$name" | sed -E 's/(:[^:/@]+)?@/:/') ;;
    esac
    # Enroot writes the registry before a #; the first part is one if it has a dot or a port.
    case $registry in
    "$IMAGE") ;;
    *.* | *:*) name=$registry#${name#*/} ;;
    esac
    enroot import --output "$1" "docker://$name"
}
