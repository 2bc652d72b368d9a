#!/bin/bash
# One model in budgets from the least to plenty: for each, 20 updates of a run of its own; printed are
# plan, resident peak, seconds an update (median) and the largest relative difference of a loss to the
# run with plenty, as a table.
# Usage: tests/bench/budget.sh RUN.yaml [options]
#   --bantam F      the program (build/bantam)     --points N      budgets (6)
#   --set KEY=VALUE a key of the run file, may be repeated
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
bantam=$here/build/bantam points=6 run=""
sets=()
while [ $# -gt 0 ]; do
    case $1 in
    --bantam | --points) declare "${1#--}=${2:?$1 needs a value}" ;;
    --set) sets+=(--set "${2:?--set needs key=value}") ;;
    -*)
        sed -n '2,7s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
    *)
        run=$1
        shift
        continue
        ;;
    esac
    shift 2
done
if [ ! -r "$run" ]; then
    echo "budget.sh: cannot read \"$run\"; name a run file" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sets+=(--set "schedule.warmup=20" --set "validation.every=0" --set "checkpoint.every=0" --set "training.updates=20")

# number NAME: its value in the JSON on standard input.
number() { sed -n "s/^ *\"$1\": *\([0-9.]*\).*/\1/p" | head -1; }
"$bantam" plan "$run" --device cpu --json "${sets[@]}" --set "output=$work/plan" --set "data.cache=$work/cache" \
    >"$work/plan.json" 2>"$work/err"
least=$(number minimum_bytes <"$work/plan.json") most=$(number total_bytes <"$work/plan.json")

printf '%12s %12s %12s %10s %14s %14s\n' "budget MiB" "plan MiB" "peak MiB" "seconds" "micro-batches" "loss differs"
for i in $(seq "$points" -1 1); do
    # Some MiB above the least: what is held outside the arena differs between two processes.
    limit=$(awk -v a="$least" -v b="$most" -v i="$i" -v n="$points" \
        'BEGIN { x = n > 1 ? (i - 1) / (n - 1) : 1; printf "%d", a + 4194304 + (b - a) * x * x }')
    "$bantam" train "$run" --device cpu --memory "$limit" "${sets[@]}" --set "output=$work/$i" \
        --set "data.cache=$work/cache" >"$work/err" 2>&1 || { tail -1 "$work/err" >&2; exit 1; }
    sed 's/.*"loss":\([^,]*\),.*"target_tokens":\([0-9]*\),.*"micro_batches":\([0-9]*\),"tokens_per_s":\([^,]*\),"planned_bytes":\([0-9]*\),"peak_bytes":\([0-9]*\).*/\1 \2 \3 \4 \5 \6/' \
        "$work/$i/log.jsonl" >"$work/$i.txt"
    seconds=$(awk '{ print $2 / $4 }' "$work/$i.txt" | sort -g | sed -n 10p)
    paste -d' ' "$work/$i.txt" "$work/$points.txt" | awk -v limit="$limit" -v seconds="$seconds" '
        { plan = $5; peak = $6; parts = $3; d = $1 / $7 - 1; if (d < 0) d = -d; if (d > far) far = d }
        END { printf "%12.1f %12.1f %12.1f %10.3f %14d %14.1e%s\n", limit / 2^20, plan / 2^20, peak / 2^20, seconds,
              parts, far, (peak > limit ? "  above the budget" : "") }'
done
