#!/bin/bash
# Speed of `bantam translate` beside a plain torch.nn.Transformer beam search with the same weights:
# same lines, beam and batches, alternating. Usage: tests/bench/compare_translate.sh --model OUT
#   --input F [options]
#   --model OUT     output folder of a `bantam train` with SentencePiece
#   --input F       text to translate
#   --lines N       its first lines only (200)
#   --loop F        the search (tests/bench/pytorch_translate.py)
#   --bantam F      the program (build/bantam)
#   --rounds N      (3)      --threads N  (1)
#   --beam N        (5)      --batches "1 8 64"
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
model="" input="" lines=200 loop=$here/tests/bench/pytorch_translate.py bantam=$here/build/bantam
rounds=3 threads=1 beam=5 batches="1 8 64"
while [ $# -gt 0 ]; do
    case $1 in
    --model | --input | --lines | --loop | --bantam | --rounds | --threads | --beam | --batches)
        declare "${1#--}=${2:?$1 needs a value}"
        ;;
    *)
        sed -n '2,12s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
    esac
    shift 2
done
for file in "$model/run.yaml" "$input" "$bantam"; do
    if [ ! -r "$file" ]; then
        echo "compare_translate.sh: cannot read \"$file\"; --model, --input and --bantam name them" >&2
        exit 2
    fi
done
python=${PYTHON:-python3}
torch=yes
if ! "$python" -c 'import torch, sentencepiece, numpy' 2>/dev/null; then
    echo "SKIP: PyTorch: $python cannot import torch, sentencepiece and numpy"
    torch=no
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
head -n "$lines" "$input" >"$work/in"
lines=$(wc -l <"$work/in")
: >"$work/nothing"

median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }

# seconds INPUT BATCH: of one run of the program.
seconds() {
    local from=$EPOCHREALTIME
    "$bantam" translate "$model" --device cpu --threads "$threads" --beam "$beam" --batch "$2" \
        --input "$1" --output "$work/out" 2>"$work/log" || {
        cat "$work/log" >&2
        return 1
    }
    awk -v a="$from" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
}

# Lines a second, loading not counted: what a run without input takes is taken off.
run_bantam() {
    local start all
    start=$(seconds "$work/nothing" "$1")
    all=$(seconds "$work/in" "$1")
    awk -v n="$lines" -v a="$start" -v b="$all" 'BEGIN { printf "%.2f\n", n / (b - a) }'
}

run_torch() {
    "$python" "$loop" --model "$model" --input "$work/in" --output "$work/torch" --beam "$beam" \
        --batch "$1" --threads "$threads" 2>"$work/log" >"$work/json" || {
        cat "$work/log" >&2
        return 1
    }
    sed -n 's/.*"lines_per_s": *\([-0-9.e+]*\).*/\1/p' "$work/json"
}

printf '%-6s %-6s %16s %16s %16s\n' round batch "bantam lines/s" "torch lines/s" "lines alike"
for round in $(seq "$rounds"); do
    for batch in $batches; do
        mine=$(run_bantam "$batch")
        echo "$mine" >>"$work/bantam.$batch"
        printf '%-6s %-6s %16s' "$round" "$batch" "$mine"
        if [ $torch = yes ]; then
            theirs=$(run_torch "$batch")
            echo "$theirs" >>"$work/torch.$batch"
            alike=$(awk 'NR == FNR { line[FNR] = $0; next } line[FNR] == $0 { n++ } END { print n + 0 }' \
                "$work/out" "$work/torch")
            printf ' %16.2f %10d of %d' "$theirs" "$alike" "$lines"
        fi
        echo
    done
done
for batch in $batches; do
    mine=$(median <"$work/bantam.$batch")
    printf 'median: batch %s: bantam %s lines/s' "$batch" "$mine"
    if [ $torch = yes ]; then
        theirs=$(median <"$work/torch.$batch")
        printf ', torch %.2f, ratio %s' "$theirs" "$(awk -v a="$mine" -v b="$theirs" 'BEGIN { printf "%.2f", a / b }')"
    fi
    echo
done
