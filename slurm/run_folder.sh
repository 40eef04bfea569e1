# shellcheck shell=bash disable=SC2034,SC2154 # run.slurm reads several such files: each uses the others' variables
# SPDX-FileCopyrightText: Copyright (c) 2026 the nemo_sr maintainers
# SPDX-License-Identifier: Apache-2.0
#
# A run's folder: who writes into it, how far the run has come, and whether it goes on. Read by run.slurm, which sets `run_folder`,
# `attempt` (job and restart count), `last_step`, `logs`, `caught`.

# The step of the newest checkpoint that has its final name.
newest_step() {
    local name newest=0
    for name in "$run_folder"/checkpoints/step_*; do
        [ -e "$name" ] || continue
        newest=$((10#${name##*/step_})) # in the order of their names
    done
    echo "$newest"
}

# RUN/jobs/lock holds JOB.RESTART of the job that may write. The trainer looks at it too, before each checkpoint. (NeMo moves the
# files of the run's folder itself away.)
take_lock() {
    local lock=$run_folder/jobs/lock waited=0 owner
    until mkdir "$lock.taking" 2>/dev/null; do
        [ "$waited" -lt 30 ] || fail "Only one job may take $lock at a time; $lock.taking has been there for 30 s. If no other job is \
starting on this run, remove that folder."
        sleep 1
        waited=$((waited + 1))
    done
    owner=$(cat "$lock" 2>/dev/null || true)
    if [ -n "$owner" ] && is_alive "$owner"; then
        rmdir "$lock.taking"
        fail "A run must have one writer; job ${owner%%.*} (start ${owner##*.}) writes into $run_folder, and this is job \
${attempt%%.*} (start ${attempt##*.}). Wait for it, end it with scancel ${owner%%.*}, or give this one another exp_manager.name."
    fi
    echo "$attempt" >"$lock.new"
    mv "$lock.new" "$lock"
    rmdir "$lock.taking"
    export NEMO_SR_RUN_LOCK=$attempt
}

# Whether a job that has the lock may still write. An earlier start of this very job may not, a later one may.
is_alive() {
    local job=${1%%.*} start=${1##*.} state
    if [ "$job" = "$job_id" ]; then
        [ "$start" -gt "${attempt##*.}" ]
        return
    fi
    # squeue fails for a job that SLURM has forgotten.
    state=$(squeue --noheader --jobs="$job" --format=%T 2>/dev/null || true)
    [ -n "$state" ] && [ "$state" != PENDING ]
}

release_lock() {
    if [ "$(cat "$run_folder/jobs/lock" 2>/dev/null)" = "$attempt" ]; then
        rm -f "$run_folder/jobs/lock"
    fi
}

# Ends the job after its ranks have ended with `status`, or puts it back into the queue.
finish() {
    local status=$1 step before
    step=$(newest_step)
    [ "$status" -ne 138 ] || status=0 # SIGUSR1 met a rank that was only starting
    if [ "$status" -eq 0 ] && [ "$step" -ge "$last_step" ]; then
        exit 0
    fi
    show_failures "$status"
    if [ -e "$run_folder/stop" ]; then
        echo "Stopped at step $step of $last_step by $run_folder/stop. To go on: remove it, and submit the same again."
        exit "$status"
    fi
    if [ "$caught" = TERM ] && ! is_preempted; then
        echo "Ended by SLURM at step $step of $last_step. If it does not requeue the job itself, submit the same again to go on."
        exit 143
    fi
    if [ -n "$caught" ] || [ "$status" -eq 0 ]; then # by another's signal
        requeue "Stopped at step $step of $last_step${caught:+ by SIG$caught}"
    fi
    [ "$status" -ne 2 ] || exit 2 # nothing would change
    before=$(cat "$run_folder/jobs/failed_at" 2>/dev/null || true)
    if [ "$before" = "$step" ]; then
        rm "$run_folder/jobs/failed_at" # a person who submits it again has mended something
        echo "error: A run that fails must get to another checkpoint before it fails again; twice it has failed after that of step \
$step. It is not started a third time: see $logs." >&2
        exit "$status"
    fi
    echo "$step" >"$run_folder/jobs/failed_at"
    requeue "Failed with status $status after the checkpoint of step $step of $last_step"
}

# Puts the job back into the queue; SLURM then ends this script.
requeue() {
    local reason=$1
    if [ -n "${SLURM_ARRAY_TASK_ID:-}" ] && [ -z "${ARRAY_OF_RUNS:-}" ] && [ "$SLURM_ARRAY_TASK_ID" != "$SLURM_ARRAY_TASK_MAX" ]; then
        echo "$reason; the next job of the array goes on."
        exit 0
    fi
    echo "$reason; requeued."
    release_lock
    if ! scontrol requeue "$job_id"; then
        echo "error: The job must be requeued to go on, and SLURM refuses. Submit the same again." >&2
        exit 75
    fi
    sleep 600
    exit 75
}

# Whether SLURM ends this job to make room for another, with time to save before it does so.
is_preempted() {
    local described
    described=$(scontrol --oneliner show job "$job_id" || true)
    [[ $described == *JobState=RUNNING* && $described == *\ PreemptTime=[0-9]* ]]
}

# Rank 0's log has been shown already.
show_failures() {
    local status=$1 log
    [ "$status" -ne 0 ] || return 0
    for log in "$logs"/rank_*.log; do
        if [ "${log##*/}" != rank_0000.log ] && grep -q '[^[:space:]]' "$log"; then
            echo "--- the end of $log"
            tail -n 20 "$log"
        fi
    done
}
