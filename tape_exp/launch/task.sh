
# One task of the array is one run: a line of jobs.txt. srun passes signals on to it, and starts a process a device.
line=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" "$folder/jobs.txt")
eval "words=($line)"
echo "== job ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)): $line"
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
export PYTHONUNBUFFERED=1  # the log is read while the run goes on
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
srun --kill-on-bad-exit=1 "${train[@]}" "${words[@]}"
