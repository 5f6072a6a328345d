# shellcheck shell=bash
# Sourced by every job: the cluster's modules, one thread for each core, and what follows status 85.

eval "${TAPE_EXP_SETUP:-}" # setup: of launch/cluster.yaml, which `tape-exp submit` hands on
if ! command -v tape-exp > /dev/null && [ -d .venv/bin ]; then
    PATH=$PWD/.venv/bin:$PATH # of the folder in which the job was submitted
fi
export PYTHONUNBUFFERED=1 # the log can be followed
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SRUN_CPUS_PER_TASK}

retry() { # SLURM's controller may not answer at once, least of all when it preempts many jobs
    for pause in 1 2 4 8 0; do
        "$@" && return 0
        sleep $pause
    done
    return 1
}

# Status 85 says that the run was told to stop, and has saved: the job is requeued, and the run goes
# on from there. A job that scancel ends is no longer RUNNING and stays cancelled; one of which SLURM
# says nothing is requeued.
requeue_if_saved() {
    local status=$? job=${SLURM_JOB_ID:-} state
    if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
        job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    fi
    if [ $status -eq 85 ] && [ -n "$job" ]; then
        state=$(retry squeue --noheader --format=%T --jobs="$job") || state=RUNNING
        if [ "$state" = RUNNING ]; then
            retry scontrol requeue "$job" || echo "error: $job cannot be requeued; submit it again."
        fi
    fi
    exit $status
}
trap requeue_if_saved EXIT
