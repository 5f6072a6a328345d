# shellcheck shell=bash
# The body of every job of `tape-exp sweep`, which puts job.sh and these two lines before it:
#   sweep=<the folder of the sweep>       train=(<python and train.py>)
# Each task of the array is one run, a line of jobs.tsv. srun starts a process for each device, and
# forwards signals to all of them.
: "${sweep:?tape-exp sweep sets it}" "${train[0]:?tape-exp sweep sets it}"

line=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" "$sweep/jobs.tsv" | cut -f 1)
eval "overrides=($line)" # they are quoted for a shell
job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
echo "== job $job, start $((${SLURM_RESTART_COUNT:-0} + 1)): $line"
# shellcheck disable=SC2154 # eval sets overrides
srun --kill-on-bad-exit=1 "${train[@]}" "${overrides[@]}"
