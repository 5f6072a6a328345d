#!/bin/bash
# Copy the records of a finished sweep of artifacts to results/, and draw their tables; nothing is trained:
#   bash launch/collect.sh fig_addition scale=paper seeds=0,1,2 trainer=gpu
set -euo pipefail

state=$(tape-exp status "$@" | tail -n 1)
if [[ ! $state =~ ^[0-9]+\ done$ ]]; then
    echo "error: not all runs are done ($state): tape-exp status $* shows which; tape-exp sweep $* submits them again." >&2
    exit 1
fi
tape-exp paper run "$@" # copies, since every run is done
git status --short results/ # commit them: records hold no path, host name or secret
