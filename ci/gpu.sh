#!/bin/bash
# Checks the cuda backend on a machine with an NVIDIA card, in under 8 minutes: builds for that card,
# then conformance, golden values, 50 updates against the CPU, planned against taken memory, speed.
# Usage: ci/gpu.sh [--simulator] [--dir DIR] [--report FILE]
#   --simulator    a small form of the same on the simulator: no card, no speed
#   --dir DIR      where it is built (build-gpu)
#   --report FILE  the JSON report (DIR/gpu-report.json)
# CUDACXX names the nvcc where PATH has none, or another. Text and tokenisers for speed come from ../shared
# where it is there, else they are made. Where Python can use torch on the card, PyTorch's speed stands
# beside ours. Exit status 1 where a check failed or there was no time for one.
# shellcheck disable=SC2317 # functions that `step` calls by name
set -um
cd "$(dirname "$0")/.." || exit 1
seconds_in_all=480
simulator=no
dir=build-gpu
report=
while [ $# -gt 0 ]; do
    case $1 in
    --simulator) simulator=yes ;;
    --dir | --report)
        [ $# -ge 2 ] || { echo "gpu.sh: $1 needs a value" >&2; exit 2; }
        declare "${1#--}=$2"
        shift
        ;;
    -h | --help)
        sed -n '2,10s/^# \{0,1\}//p' ci/gpu.sh
        exit 0
        ;;
    *)
        echo "gpu.sh: unknown option $1" >&2
        exit 2
        ;;
    esac
    shift
done
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
work=$dir/gpu
mkdir -p "$work"
report=${report:-$dir/gpu-report.json}
failed=0
not_run=0
steps=()
values=()
# CUDA counts cards as nvidia-smi does, and card 0 is the first one that may be seen.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
card=${CUDA_VISIBLE_DEVICES:-0}
card=${card%%,*}

# ---- the report ---------------------------------------------------------------------------------

# quote TEXT: as a JSON string.
quote() {
    printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | sed 's/\\/\\\\/g; s/"/\\"/g' | tr -d '\000-\037')"
}
value() { values+=("$(quote "$1"): ${2:-null}"); }
text() { value "$1" "$(quote "$2")"; }
left() { echo $((seconds_in_all - SECONDS)); }

# end_group LEADER: ends a process group; what does not end in 2 seconds (bantam saves a checkpoint) is killed.
end_group() {
    local i
    kill -- "-$1" 2>/dev/null
    for ((i = 0; i < 20; i++)); do
        kill -0 -- "-$1" 2>/dev/null || return
        sleep 0.1
    done
    kill -KILL -- "-$1" 2>/dev/null
}

# limited COMMAND...: runs it for as long as time is left; then its whole process group ends.
running='' guard=''
limited() {
    local code
    "$@" &
    running=$!
    (sleep "$(left)" && kill -- "-$running") 2>/dev/null &
    guard=$!
    disown "$guard" # nobody is told how it ends
    wait "$running"
    code=$?
    kill -- "-$guard" 2>/dev/null
    end_group "$running" # nothing where it ended by itself
    running='' guard=''
    return $code
}

# Commands have process groups of their own: they are told too that all is to end.
interrupted() {
    trap '' INT TERM HUP
    [ -z "$guard" ] || kill -- "-$guard" 2>/dev/null
    [ -z "$running" ] || end_group "$running"
    exit 130
}
trap interrupted INT TERM HUP

# briefly COMMAND...: for answers that are read: no longer than time is left.
briefly() {
    local most
    most=$(left)
    timeout --foreground --kill-after 2 $((most > 0 ? most : 1)) "$@"
}

# step NAME COMMAND...: runs it with the time that is left; its output goes to work/NAME.log.
step() {
    local name=$1 from=$SECONDS verdict=ok
    shift
    if [ "$(left)" -le 5 ]; then
        verdict="no time left"
        not_run=$((not_run + 1))
    elif ! limited "$@" >"$work/$name.log" 2>&1; then
        if [ "$(left)" -le 0 ]; then
            verdict="out of time"
            not_run=$((not_run + 1))
        else
            verdict=FAILED
            failed=$((failed + 1))
            tail -n 15 "$work/$name.log"
        fi
    fi
    steps+=("$(printf '{"step": %s, "result": %s, "seconds": %d}' "$(quote "$name")" \
        "$(quote "$verdict")" $((SECONDS - from)))")
    printf 'gpu: %-14s %-12s %4d s\n' "$name" "$verdict" $((SECONDS - from))
    [ "$verdict" = ok ]
}

finish() {
    local join=', '
    {
        printf '{"steps": ['
        for i in "${!steps[@]}"; do printf '%s%s' "$([ "$i" -gt 0 ] && echo "$join")" "${steps[$i]}"; done
        printf '],\n "values": {'
        for i in "${!values[@]}"; do printf '%s%s' "$([ "$i" -gt 0 ] && echo "$join")" "${values[$i]}"; done
        printf '},\n "failed": %d, "not_run": %d, "seconds": %d}\n' $failed $not_run $SECONDS
    } >"$report"
    echo "gpu: $failed failed, $not_run without time, $SECONDS s; report in $report"
    [ $((failed + not_run)) -eq 0 ]
    exit
}

# field NAME LINE: a number of a line of JSON.
field() { printf '%s' "$2" | sed -n "s/.*\"$1\": *\(-\{0,1\}[0-9.eE+-]*\).*/\1/p"; }

# ---- the card, and a build for it ---------------------------------------------------------------

# For the cards that are here (ci/cuda.cmake).
build() {
    local options=(-DBANTAM_CUDA=ON -DBANTAM_CUSIM=OFF) module=bantam_cuda
    if [ "$simulator" = yes ]; then
        options=(-DBANTAM_CUDA=OFF -DBANTAM_CUSIM=ON)
        module=bantam_cuda_sim
    fi
    cmake -S . -B "$dir" "${options[@]}" &&
        cmake --build "$dir" --parallel "${BANTAM_JOBS:-$(nproc)}" --target bantam bantam_cpu test_conform \
            test_golden bench_step "$module"
}

# ask WHAT: nvidia-smi's word on the card.
ask() { briefly nvidia-smi "--query-gpu=$1" --format=csv,noheader,nounits -i "$card"; }

if [ "$simulator" = no ]; then
    if ! command -v nvidia-smi >/dev/null || ! briefly nvidia-smi >/dev/null 2>&1; then
        echo "gpu.sh: no NVIDIA driver answers (nvidia-smi): this needs a machine with a card" >&2
        exit 2
    fi
    text driver "$(ask driver_version)"
fi
text commit "$(git rev-parse HEAD 2>/dev/null || echo unknown)"
step build build || finish
export BANTAM_MODULES=$dir CK_FORK=no BANTAM_TESTS=$PWD/tests BANTAM_PROGRAM=$dir/bantam
export BANTAM_SHARED=$PWD/../shared
updates=50
if [ "$simulator" = yes ]; then
    BANTAM_MODULES=$dir/cusim
    updates=5
fi
device=$(briefly "$dir/bantam" devices | grep '^cuda' | head -n 1)
text device "$device"
echo "gpu: $device"
case $device in
*"not usable"*)
    failed=$((failed + 1))
    finish
    ;;
esac

# ---- right? -------------------------------------------------------------------------------------

if [ "$simulator" = no ]; then step conformance "$dir/tests/test_conform" cuda; fi
step golden "$dir/tests/test_golden" cuda

# A text of 400 pairs that repeats a few words, and a tokeniser by words.
make_text() {
    local i
    for i in $(seq 400); do
        echo "$((i % 7)) das $((i % 13)) ist $((i % 5)) ein $((i % 11)) haus" >&3
        echo "$((i % 7)) that $((i % 13)) is $((i % 5)) a $((i % 11)) house" >&4
    done 3>"$work/train.de" 4>"$work/train.en"
}
make_text
# Plans follow from rates; measured ones differ from run to run on a busy machine, and with them the order
# of sums. Seconds of a call, of a flop, of a byte.
cat >"$work/rates.json" <<'END'
{"device": "any", "stated_flops": 0, "seconds": {"call": 5e-6, "product_flop": 1e-13, "product_byte": 5e-12,
 "row_byte": 5e-12, "element": 1e-12, "attn_flop": 5e-13, "attn_byte": 5e-12, "loss_byte": 5e-12,
 "state_byte": 5e-12, "host_byte": 1e-10}}
END
# small_run NAME DEVICE [OPTIONS]: a small model whose losses two devices are to agree on.
small_run() {
    cat >"$work/$1.yaml" <<END
output: $work/$1
data: {train: {source: $work/train.de, target: $work/train.en}, max_length: 32}
tokenizer: {kind: words, model: $work/words.txt, size: 100}
model: {d_model: 64, ff: 128, heads: 4, encoder_layers: 2, decoder_layers: 2, dropout: 0.1}
training: {batch: 32, updates: 1000}
schedule: {kind: inverse_sqrt, warmup: 20}
END
    rm -rf "${work:?}/$1"
    BANTAM_RATES=$work/rates.json "$dir/bantam" train "$work/$1.yaml" --device "$2" --updates "$updates" "${@:3}"
}
# compare A B FIRST LIMIT: relative differences of losses, of update 1 and of the others.
compare() {
    paste -d '\n' "$work/$1/log.jsonl" "$work/$2/log.jsonl" | sed -n 's/.*"loss": *\([0-9.eE+-]*\).*/\1/p' |
        awk -v first="$3" -v limit="$4" '
            NR % 2 { a = $1; next }
            { n++; d = a > $1 ? a - $1 : $1 - a; d /= $1; if (!(d <= (n == 1 ? first : limit))) bad++
              if (d > most) most = d }
            END { printf "%d updates, largest difference %.3g\n", n, most; exit n < 2 || bad > 0 }'
}
# taken: bytes of the card, in MiB, as the driver counts them; fails where it gives no number.
taken() {
    local answer
    answer=$(ask memory.used 2>/dev/null)
    [[ $answer =~ ^[0-9]+$ ]] && echo "$answer"
}
# watched NAME COMMAND...: runs it; into NAME.used go the most bytes of the card that were taken during its
# updates and not before it: from the first line of its log on, as the device's speed is measured before, in more
# memory than a small run has. Nothing where no driver answers, or not in time.
watched() {
    local name=$1 run now before most=
    shift
    rm -f "$work/$name.used" "$work/$name/log.jsonl"
    before=$(taken)
    "$@" &
    run=$!
    while [ -n "$before" ] && kill -0 "$run" 2>/dev/null; do
        if [ -s "$work/$name/log.jsonl" ] && now=$(taken) && [ "$now" -gt "${most:--1}" ]; then most=$now; fi
        sleep 0.02
    done
    [ -z "$most" ] || echo "$((most > before ? (most - before) << 20 : 0))" >"$work/$name.used"
    wait "$run"
}
step "train cpu" small_run cpu cpu
step "train cuda" watched cuda small_run cuda cuda
step "train again" small_run again cuda
step "cuda as cpu" compare cuda cpu 1e-5 0.02 && text loss_difference "$(cat "$work/cuda as cpu.log")"
# Losses and norms of all updates, to the last digit that is written.
same_bits() {
    diff <(grep -o '"\(loss\|grad_norm\)": *[^,}]*' "$work/cuda/log.jsonl") \
        <(grep -o '"\(loss\|grad_norm\)": *[^,}]*' "$work/again/log.jsonl")
}
step "same bits" same_bits
for precision in fp16 bf16; do
    step "train $precision" small_run "$precision" cuda --set "training.precision=$precision"
    step "$precision as fp32" compare "$precision" cuda 0.01 0.1
done

# bytes_of NAME: sets planned, counted and used to those of a run.
bytes_of() {
    local line
    line=$(tail -n 1 "$work/$1/log.jsonl")
    planned=$(field planned_bytes "$line") counted=$(field peak_bytes "$line")
    used=$(cat "$work/$1.used" 2>/dev/null)
}
# within_plan NAME: what the run counted is within its plan, and so is what the driver saw it take, but for
# 64 MiB of kernels that are loaded when they are first launched.
within_plan() {
    bytes_of "$1"
    echo "planned $planned, counted $counted, taken as the driver says ${used:-unknown}"
    [ "$counted" -le "$planned" ] && [ "${used:-0}" -le $((planned + (64 << 20))) ]
}
report_bytes() {
    bytes_of "$1"
    value "$1_planned_bytes" "$planned"
    value "$1_counted_bytes" "$counted"
    value "$1_used_bytes" "$used"
}
step "within plan" within_plan cuda
report_bytes cuda

# ---- fast? --------------------------------------------------------------------------------------

# Each op of updates that are large enough to hide launches: seconds, GB/s, share of the roofline.
# Those that matter (1 % of the time) and stay under a third of it are named.
if [ "$simulator" = yes ]; then sizes="1 64 128 4 1 100 4 6"; else sizes="5 512 2048 8 2 32100 512 60"; fi
# shellcheck disable=SC2086 # a list of words
if step roofline "$dir/tests/bench_step" cuda $sizes; then
    rows=$(awk '$NF == "roofline" { on = 1; next } on && $4 ~ /%$/ && $7 ~ /%$/ { print $1, $4 + 0, $6, $7 + 0 }' "$work/roofline.log")
    [ -n "$rows" ] || failed=$((failed + 1))
    value roofline_percent "{$(awk '{ printf "%s\"%s\": %s", (NR > 1 ? ", " : ""), $1, $4 }' <<<"$rows")}"
    text below_a_third "$(awk '$2 >= 1 && $4 < 33 { printf "%s ", $1 }' <<<"$rows")"
fi

if [ "$simulator" = yes ]; then
    echo "gpu: no speed: the simulator"
    finish
fi
# The base model, 128 pairs an update: T5's 32,100 pieces as tests/bench/compare_pytorch.sh has it, or words
# that were made, 15 a line.
shared=$PWD/../shared
text_file=$shared/data/multi30k/train
spm=$shared/data/tokenizers/t5_32100_unigram.model
xlmr=$shared/data/tokenizers/xlmr_250k_unigram.model
tokenizer="{kind: sentencepiece, model: $spm}"
if [ ! -e "$text_file.de" ] || [ ! -e "$spm" ]; then
    text speed_of "words that were made: there is no ../shared"
    text_file=$work/made
    tokenizer="{kind: words, model: $work/made.words, size: 32000}"
    awk -v out="$text_file" 'BEGIN {
        srand(1)
        for (i = 0; i < 12000; i++) {
            s = ""
            for (k = 0; k < 15; k++) s = s " w" int(32000 * rand() * rand())
            print s >(out ".de"); print s >(out ".en")
        }
    }'
fi
base_run() {
    cat >"$work/base_$1.yaml" <<END
output: $work/base_$1
data: {train: {source: $text_file.de, target: $text_file.en}}
tokenizer: $tokenizer
model: {d_model: 512, ff: 2048, heads: 8, encoder_layers: 6, decoder_layers: 6, tie_embeddings: none}
training: {batch: 128, updates: 100000, precision: $1}
END
    rm -rf "${work:?}/base_$1"
    "$dir/bantam" train "$work/base_$1.yaml" --device cuda --updates 30 --set validation.every=0 \
        --set checkpoint.every=100000
}
# speed_of NAME N: the median of the last N updates' target tokens a second.
speed_of() {
    tail -n "$2" "$work/$1/log.jsonl" | sed -n 's/.*"tokens_per_s": *\([0-9.]*\).*/\1/p' | sort -n |
        awk '{ x[NR] = $1 } END { print NR ? x[int((NR + 1) / 2)] : 0 }'
}
for precision in fp32 fp16 bf16; do
    if step "base $precision" watched "base_$precision" base_run $precision; then
        value "base_${precision}_tokens_per_s" "$(speed_of "base_$precision" 20)"
        step "plan of $precision" within_plan "base_$precision"
        report_bytes "base_$precision"
    fi
    rm -f "$work/base_$precision"/*.safetensors* # over 1 GB
done
# The same with XLM-R's 250,002 pieces in three tables: what PyTorch cannot hold on a K80. It is ended after 12
# updates, without a checkpoint of 5 GB.
case1_lines() { { wc -l <"$work/case1/log.jsonl"; } 2>/dev/null || echo 0; }
case1_run() {
    local run
    rm -rf "${work:?}/case1"
    "$dir/bantam" train tests/runs/case1-k80.yaml --set "output=$work/case1" --device cuda --set validation.every=0 &
    run=$!
    while kill -0 "$run" 2>/dev/null && [ "$(case1_lines)" -lt 12 ]; do sleep 0.2; done
    kill -KILL "$run" 2>/dev/null
    wait "$run"
    [ "$(case1_lines)" -ge 12 ]
}
if [ -e "$text_file.de" ] && [ -e "$xlmr" ]; then
    if step "case 1" watched case1 case1_run; then
        value case1_tokens_per_s "$(speed_of case1 10)"
        step "plan of case 1" within_plan case1
        report_bytes case1
    fi
fi
# PyTorch beside both. What it cannot do on this card, or not in time, is no fault of ours.
python=${PYTHON:-python3}
has_pytorch() {
    "$python" -c 'import sentencepiece, torch
from torch.nn.attention import sdpa_kernel
torch.ones(1, device="cuda") + 1'
}
if [ "$(left)" -le 5 ]; then
    echo "gpu: no time for PyTorch"
elif [ -e "$spm" ] && [ -e "$text_file.de" ] && limited has_pytorch 2>"$work/pytorch.log"; then
    ours=$failed ours_not_run=$not_run
    for beside in base case1; do
        [ $beside = base ] && pieces=$spm || pieces=$xlmr
        [ -e "$pieces" ] || continue
        for mode in eager amp flash; do
            step "pytorch $beside $mode" "$python" tests/bench/pytorch_gpu.py --mode "$mode" --spm "$pieces" \
                --src "$text_file.de" --tgt "$text_file.en" &&
                value "pytorch_${beside}_$mode" "$(grep '^{' "$work/pytorch $beside $mode.log" | tail -n 1)"
        done
    done
    failed=$ours not_run=$ours_not_run
else
    echo "gpu: no PyTorch here to stand beside: $(tail -n 1 "$work/pytorch.log" 2>/dev/null)"
fi
finish
