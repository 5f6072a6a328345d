#!/bin/bash
# Copy the records of the paper's finished sweeps to results/, and draw their tables:
#   bash launch/reproduce/collect.sh
set -uo pipefail

status=0
for list in launch/reproduce/[1-5]-*.txt; do
    echo "== $list"
    mapfile -t overrides < <(grep -v '^#' "$list")
    tape-exp collect "${overrides[@]}" "$@" || status=$? # 1 where some runs are not finished, which it names
done
tape-exp paper render
git status --short results/ # commit them: records hold no path, host name or secret
exit $status
