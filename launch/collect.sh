#!/bin/bash
# Copy the records of the finished runs of a sweep to results/, and draw all tables; nothing is trained:
#   bash launch/collect.sh fig_addition scale=paper seed=0,1,2 trainer=gpu
set -uo pipefail

status=0
tape-exp collect "$@" || status=$? # 1 where some runs are not finished, which it names
tape-exp paper render
git status --short results/ # commit them: records hold no path, host name or secret
exit $status
