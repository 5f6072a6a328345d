#!/bin/bash
# Submit the paper's sweeps in order, each after the one before, whose runs it may share:
#   bash launch/reproduce/submit.sh --dry-run
#   bash launch/reproduce/submit.sh slurm.partition=h100 --cap 8
# Overrides and options are for each sweep. The same command later submits only what is missing.
set -euo pipefail

after=()
for list in launch/reproduce/[1-5]-*.txt; do
    echo "== $list"
    mapfile -t overrides < <(grep -v '^#' "$list")
    printed=$(tape-exp sweep "${overrides[@]}" "$@" "${after[@]}")
    echo "$printed"
    ids=$(sed -n 's/^Submitted job \([0-9]*\).*/\1/p' <<< "$printed" | paste -sd :)
    if [ -n "$ids" ]; then
        after=(--after "$ids")
    fi
done
