#!/bin/bash
# Time to quality: trains tests/runs/multi30k.yaml in slices and prints, after each, minutes of
# training (start-up, checkpoints and validation counted), updates, target tokens a second, and BLEU
# of the newest checkpoint on test_2016_flickr: greedy after each slice, beam 4 after the last.
# Usage: tests/bench/quality.sh [options]
#   --data DIR      the text (../shared/data/multi30k)   --bantam F   the program (build/bantam)
#   --minutes N     of training in all (20)              --every N    of a slice (5)
#   --work DIR      keeps its output; a folder that is removed when not given
#   --set KEY=VALUE a key of the run file, may be repeated
#   --updates N     trains for N updates instead, however long they take, and prints BLEU of beam 4 only
#   --compare KEY=VALUE,VALUE...  so for each value of a key, with the difference in BLEU from the first:
#                   tests/bench/quality.sh --updates 3000 --compare training.precision=fp32,fp16,bf16
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
data=$here/../shared/data/multi30k bantam=$here/build/bantam minutes=20 every=5 work="" updates=0 compare=""
sets=()
while [ $# -gt 0 ]; do
    case $1 in
    --data | --bantam | --minutes | --every | --work | --updates | --compare) declare "${1#--}=${2:?$1 needs a value}" ;;
    --set) sets+=(--set "${2:?--set needs key=value}") ;;
    *)
        sed -n '2,12s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
    esac
    shift 2
done
if [ -n "$compare" ] && [ "$updates" -le 0 ]; then
    echo "quality.sh: --compare wants --updates: the same number of them for each value" >&2
    exit 2
fi
for file in "$data/train.de" "$bantam"; do
    if [ ! -r "$file" ]; then
        echo "quality.sh: cannot read \"$file\"; --data and --bantam name a folder and a file" >&2
        exit 2
    fi
done
if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work"
out=$work/multi30k

# Each value in a run of its own, told by its last line.
if [ -n "$compare" ]; then
    key=${compare%%=*} first=""
    IFS=, read -ra values <<<"${compare#*=}"
    for value in "${values[@]}"; do
        line=$("$0" --data "$data" --bantam "$bantam" --updates "$updates" --work "$work/$value" \
            "${sets[@]}" --set "tokenizer.model=$work/pieces.model" --set "$key=$value" | tail -1)
        bleu=${line##* }
        first=${first:-$bleu}
        echo "$value: $line ($(awk -v a="$bleu" -v b="$first" 'BEGIN { printf "%+.2f", a - b }'))"
    done
    exit 0
fi

train() { # SECONDS [WORD...]: goes on for so long (0: to its end), from the newest checkpoint
    local status=0 resume=() seconds=$1
    shift
    [ -d "$out" ] && resume=(--resume)
    timeout --signal=TERM "$seconds" "$bantam" train "$here/tests/runs/multi30k.yaml" --set "output=$out" \
        --set "tokenizer.model=$work/pieces.model" --set "data.train.source=$data/train.de" \
        --set "data.train.target=$data/train.en" --set "data.valid.source=$data/val.de" \
        --set "data.valid.target=$data/val.en" "${sets[@]}" "${resume[@]}" "$@" >>"$work/train.txt" 2>&1 || status=$?
    case $status in
    0 | 124 | 143) ;;
    *)
        tail -3 "$work/train.txt" >&2
        exit 1
        ;;
    esac
}

bleu() { # BEAM
    local newest
    newest=$(printf "%s\n" "$out"/checkpoint-*.safetensors | tail -1)
    "$bantam" translate "$newest" --beam "$1" --input "$data/test_2016_flickr.de" --output "$work/test.$1.en" \
        2>>"$work/train.txt"
    "$bantam" score "$work/test.$1.en" "$data/test_2016_flickr.en" | sed "s/^[^=]*= \([0-9.]*\) .*/\1/"
}

# Updates, and target tokens a second over the updates themselves.
progress() {
    sed -n 's/.*"update": *\([0-9]*\),.*"target_tokens": *\([0-9]*\),.*"tokens_per_s": *\([0-9.]*\).*/\1 \2 \3/p' \
        "$out/log.jsonl" | awk '{ u = $1; t += $2; s += $2 / $3 } END { printf "%d updates, %.0f target tokens/s", u, t / s }'
}

if [ "$updates" -gt 0 ]; then
    start=$SECONDS
    train 0 --updates "$updates"
    echo "$((SECONDS - start)) s, $(progress): BLEU $(bleu 4)"
    exit 0
fi
spent=0
while [ "$spent" -lt $((minutes * 60)) ]; do
    train $((every * 60))
    spent=$((spent + every * 60))
    echo "$((spent / 60)) minutes, $(progress): BLEU $(bleu 1) greedy"
done
echo "beam 4: BLEU $(bleu 4)"
