#!/bin/bash
# Copy the records of the paper's finished sweeps to results/, and draw their tables:
#   bash launch/reproduce/collect.sh
set -uo pipefail

status=0
for list in launch/reproduce/[1-5]-*.txt; do
    echo "== $list"
    mapfile -t words < <(grep -v '^#' "$list")
    bash launch/collect.sh "${words[@]}" "$@" || status=$?
done
exit $status
