# shellcheck shell=bash disable=SC2034,SC2154 # run.slurm reads several such files: each uses the others' variables
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
#
# The job's side of a training run: its names, the checks before it, the srun command, and what happens when that ends.
# Read by run.slurm, which sets `root` and `dry_run`. Sets `words`, `command`, `preflight_status`.

# Takes the options of sbatch that say how many nodes and GPUs there will be; the others are the program's words.
take_options() {
    words=()
    while [ $# -gt 0 ]; do
        case $1 in
        -N | --nodes | --gpus-per-node | --ntasks-per-node)
            [ $# -gt 1 ] || fail "$1 must be followed by a number; there is none. Add it."
            set -- "$1=$2" "${@:3}"
            continue
            ;;
        -N=* | --nodes=*) SLURM_JOB_NUM_NODES=${1#*=} ;;
        -N[0-9]*) SLURM_JOB_NUM_NODES=${1#-N} ;;
        --gpus-per-node=*) SLURM_GPUS_PER_NODE=${1#*=} ;;
        --ntasks-per-node=*) SLURM_NTASKS_PER_NODE=${1#*=} ;;
        *) words+=("$1") ;;
        esac
        shift
    done
    : "${SLURM_GPUS_PER_NODE:=${SBATCH_GPUS_PER_NODE:-}}"
}

# Nodes, the place where ranks meet, and the settings that every rank gets.
name_job() {
    # SLURM's words for each number are taken here, once.
    export JOB_NODES=${SLURM_JOB_NUM_NODES:-1}
    local gpus=${SLURM_GPUS_ON_NODE:-${SLURM_GPUS_PER_NODE:-0}}
    gpus=${gpus##*:} # it may begin with their type
    export JOB_GPUS_PER_NODE=${gpus:-0}
    export JOB_TASKS_PER_NODE=${SLURM_NTASKS_PER_NODE:-}
    export JOB_CPUS_PER_NODE=${SLURM_CPUS_ON_NODE:-}
    job_id=${SLURM_JOB_ID:-0}
    # A run's second start must not meet what is left of its first.
    attempt=$job_id.${SLURM_RESTART_COUNT:-0}
    MASTER_PORT=$((12000 + (job_id + 1009 * ${SLURM_RESTART_COUNT:-0}) % 18000))
    if [ -n "${SLURM_JOB_NODELIST:-}" ]; then
        MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
        MASTER_ADDR=${MASTER_ADDR%%$'\n'*}
    else
        MASTER_ADDR=FIRST_HOST_OF_THE_JOB
    fi
    export MASTER_ADDR MASTER_PORT
    : "${DATA_DIR:=$root/data}" "${RESULTS_DIR:=$root/runs}"
    export DATA_DIR RESULTS_DIR
    export PYTHONUNBUFFERED=1
    export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
    export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1} # Megatron-core's order of kernels and collectives
}

# Checks packages and configuration where the ranks will run, and learns what the configuration says.
# Sets ranks_per_node, run_folder, last_step, overrides, and `early`, a signal to stop that came meanwhile.
preflight() {
    local check=("${in_container[@]}" "${python[@]}" scripts/preflight.py) decisions line status
    preflight_status=0 early=""
    if [ -n "$dry_run" ]; then
        exec 4>&1
        decisions=$("${python_here[@]}" scripts/preflight.py --dry-run "$@" 2>&4) || preflight_status=$?
    else
        trap 'early=USR1' USR1
        until decisions=$(srun --export=ALL --nodes=1 --ntasks=1 --ntasks-per-node=1 --overcommit "${srun_options[@]}" \
            "${check[@]}" --record="jobs/$attempt" "$@"); do
            status=$?
            [ "$status" -eq 138 ] || exit "$status"
            early=USR1 # it went to the checks themselves: again
        done
    fi
    overrides=() ranks_per_node="" run_folder="" last_step=""
    while IFS= read -r line; do
        case $line in
        ranks_per_node=*) ranks_per_node=${line#*=} ;;
        run_folder=*) run_folder=${line#*=} ;;
        last_step=*) last_step=${line#*=} ;;
        override=*) overrides+=("${line#*=}") ;;
        esac
    done <<<"$decisions"
    if [ -z "$last_step" ]; then
        [ "$preflight_status" -gt 0 ] || fail "scripts/preflight.py must say what the run needs; it said nothing. Look above for why."
        exit "$preflight_status"
    fi
    logs=$run_folder/jobs/$attempt
    local cpus=${SLURM_CPUS_ON_NODE:-$ranks_per_node}
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cpus > ranks_per_node ? cpus / ranks_per_node : 1))}
}

# Sets `command`.
training_command() {
    command=(srun --export=ALL --nodes="$JOB_NODES" --ntasks="$((JOB_NODES * ranks_per_node))" --ntasks-per-node="$ranks_per_node"
        --kill-on-bad-exit=1 --overcommit --cpu-bind=none --output="$logs/rank_%4t.log" --error="$logs/rank_%4t.log"
        "${srun_options[@]}" "${in_container[@]}" "${python[@]}" scripts/pretrain_gpt.py "$@" "${overrides[@]}")
}

show_command() {
    printf '%q ' "$@"
}

# Starts all ranks and waits for them; then ends the job, or puts it back into the queue.
train() {
    if [ -e "$run_folder/stop" ]; then
        echo "$run_folder/stop says that this run is to stop. Remove it, and submit the same again to go on."
        exit 0
    fi
    record
    take_lock
    trap release_lock EXIT
    caught=""
    trap 'pass_on USR1' USR1
    trap 'pass_on TERM' TERM
    "${command[@]}" &
    ranks=$!
    if [ -n "$early" ]; then
        until [ -s "$logs/rank_0000.log" ] || ! kill -0 "$ranks" 2>/dev/null; do
            sleep 0.5 # until the ranks can take it
        done
        pass_on "$early"
    fi
    tail -n +1 -s 0.5 --pid="$ranks" -F "$logs/rank_0000.log" 2>/dev/null &
    local shown=$! status
    while :; do
        heard=""
        status=0
        wait "$ranks" || status=$?
        [ -n "$heard" ] || break # else the signal ended the wait, not the ranks
    done
    wait "$shown" || true
    finish "$status"
}

# SIGUSR1, from SLURM ahead of the time limit, or SIGTERM, when it ends the job: asks the ranks for a checkpoint.
pass_on() {
    heard=$1 caught=$1
    # As SIGUSR1 in any case: srun takes SIGTERM as an order to kill.
    kill -USR1 "$ranks" 2>/dev/null || true
}

record() {
    show_command "${command[@]}" >"$logs/command.txt"
    {
        git -c safe.directory="$root" rev-parse HEAD
        git -c safe.directory="$root" status --short
        git -c safe.directory="$root" diff HEAD
    } >"$logs/code.txt" 2>&1 || echo "$root is no git checkout" >>"$logs/code.txt"
}
