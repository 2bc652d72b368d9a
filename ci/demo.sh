#!/bin/bash
# The main job on real text: trains a German-English translation model and translates with it.
# Usage: ci/demo.sh [--minutes N] [--device D] [--dir DIR] [--sources LIST]
#   --minutes N     wall-clock time of all, from packages to BLEU (15)
#   --device D      auto, cpu, cuda:0 ... as for `bantam train` (auto)
#   --dir DIR       where everything lies (demo)
#   --sources LIST  parts of the training text: help,ui,examples,phrases (help,ui,examples)
# Interrupted and run again it goes on from where it was; with more minutes it trains on. What is
# fetched are Debian packages of LibreOffice's help and of a dictionary; they are not installed.
set -eu
cd "$(dirname "$0")/.."
root=$PWD

minutes=15
device=auto
dir=demo
sources=help,ui,examples
usage() { sed -n '3,7s/^# \{0,1\}//p' ci/demo.sh; }
while [ $# -gt 0 ]; do
    case $1 in
    --minutes | --device | --dir | --sources)
        if [ $# -lt 2 ]; then
            echo "demo.sh: $1 needs a value" >&2
            exit 2
        fi
        declare "${1#--}=$2"
        shift 2
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        echo "demo.sh: unknown option $1" >&2
        usage >&2
        exit 2
        ;;
    esac
done
case $minutes in
'' | *[!0-9]* | 0)
    echo "demo.sh: --minutes is a whole number from 1, not \"$minutes\"" >&2
    exit 2
    ;;
esac
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
bantam=$root/build/bantam
# What is left for translating and scoring after training stops.
reserve=${BANTAM_DEMO_RESERVE:-60}
# Test sentences that the untrained model translates.
few=100

# The time spent by earlier runs of this demo counts.
spent=0
if [ -s "$dir/seconds" ]; then spent=$(cat "$dir/seconds"); fi
note_time() { echo $((spent + SECONDS)) >"$dir/seconds"; }
trap note_time EXIT
# A signal is handed to the running program once, as SIGTERM; it saves a checkpoint and ends. It runs
# in a session of its own, since a terminal's Ctrl-C would reach it a second time and end it at once.
child=""
interrupted() {
    if [ -n "$child" ] && kill -TERM "$child" 2>/dev/null; then wait "$child" || true; fi
    printf '\nInterrupted. Run the same command again to go on.\n'
    exit "$1"
}
trap 'interrupted 130' INT
trap 'interrupted 143' TERM HUP

# run SECONDS COMMAND...: runs it, tells it to stop after that time (0: never), returns its status.
run() {
    local stop=$((SECONDS + $1)) ends=$1 status=0
    shift
    setsid "$@" &
    child=$!
    while kill -0 "$child" 2>/dev/null; do
        if [ "$ends" -gt 0 ] && [ $SECONDS -ge $stop ]; then
            kill -TERM "$child" 2>/dev/null || true
            ends=0
        fi
        sleep 0.5
    done
    wait "$child" || status=$?
    child=""
    return $status
}

say() {
    note_time
    printf '\n[%2d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"
}

build() {
    local generator=()
    if [ ! -e build/CMakeCache.txt ]; then generator=(-G Ninja); fi
    mkdir -p build
    if ! { cmake -S . -B build "${generator[@]}" && cmake --build build --target bantam; } \
        >build/demo.log 2>&1; then
        tail -n 40 build/demo.log
        return 1
    fi
}

# fetch PACKAGE...: unpacks Debian packages into DIR/packages, without installing them.
fetch() {
    local package new=$dir/packages/new
    local get=(apt-get -q -o APT::Sandbox::User=root download)
    for package in "$@"; do
        if [ -d "$dir/packages/$package" ]; then continue; fi
        rm -rf "$new"
        mkdir -p "$new"
        if ! (cd "$new" && "${get[@]}" "$package"); then
            echo "demo.sh: the package lists may be old; fetching new ones"
            if [ "$(id -u)" -eq 0 ]; then apt-get -q update; else sudo apt-get -q update; fi
            (cd "$new" && "${get[@]}" "$package")
        fi
        dpkg-deb -x "$new"/*.deb "$new/$package"
        mv "$new/$package" "$dir/packages/$package"
    done
    rm -rf "$new"
}

# Makes DIR/text unless it was made by this script from these sources.
make_text() {
    local key
    key="$(cksum <ci/demo_text.py) $sources"
    if [ "$(cat "$dir/text/made" 2>/dev/null)" = "$key" ]; then
        wc -l "$dir"/text/{train,valid,test}.de
        return
    fi
    fetch libreoffice-help-de libreoffice-help-en-us libreoffice-l10n-de trans-de-en
    python3 ci/demo_text.py "$dir/packages" "$dir/text" --sources "$sources"
    echo "$key" >"$dir/text/made"
}

# Writes DIR/run.yaml unless there is one: it may be edited.
write_run_file() {
    if [ -s "$dir/run.yaml" ]; then return; fi
    cat >"$dir/run.yaml" <<'YAML'
# Made by ci/demo.sh; a change here is kept. Paths are relative to this file.
output: model
data:
  train: {source: text/train.de, target: text/train.en}
  valid: {source: text/valid.de, target: text/valid.en}
  max_length: 100
tokenizer: {kind: sentencepiece, model: spm.model, size: 8000, shared: true}
model: {d_model: 192, ff: 768, heads: 4, encoder_layers: 3, decoder_layers: 3, norm: pre,
        tie_embeddings: all, dropout: 0.1}
training: {batch: 1500, batch_unit: target_tokens, label_smoothing: 0.1, clip_norm: 1.0, seed: 1,
           updates: 100000}    # how many there will be: see ci/demo.sh
optimizer: {kind: adam, lr: 0.0025, beta1: 0.9, beta2: 0.98, eps: 1.0e-9}
schedule: {kind: linear, warmup: 100}
validation: {every: 500, beam: 1, metric: bleu, patience: 0}
checkpoint: {every: 200, keep: 2}
YAML
}

# An untrained model, for comparison: stopped after its first update.
make_untrained() {
    if [ -s "$dir/untrained.en" ]; then return; fi
    run 0 "$bantam" train "$dir/run.yaml" --set output=untrained --set validation.every=0 \
        --device "$device" --updates 1 --resume
    # Such a model ends no sentence by itself: all sentences, or a wide beam, would take minutes.
    translate untrained "$few" 1
}

# translate MODEL COUNT BEAM: the first test sentences into DIR/MODEL.en, whole or not at all.
translate() {
    head -n "$2" "$dir/text/test.de" >"$dir/$1.de.tmp"
    run 0 "$bantam" translate "$dir/$1" --input "$dir/$1.de.tmp" --output "$dir/$1.tmp" \
        --beam "$3" --device "$device"
    rm "$dir/$1.de.tmp"
    mv "$dir/$1.tmp" "$dir/$1.en"
}

# bleu TITLE MODEL COUNT: one line.
bleu() {
    head -n "$3" "$dir/$2.en" >"$dir/hypothesis.tmp"
    head -n "$3" "$dir/text/test.en" >"$dir/reference.tmp"
    printf '%-28s ' "$1, $3 sentences"
    "$bantam" score "$dir/hypothesis.tmp" "$dir/reference.tmp"
    rm "$dir/hypothesis.tmp" "$dir/reference.tmp"
}

# Trains until the time is up. The rate falls to nothing at the last update, so how many there will be
# must be known beforehand: the first ones, of the rise, which is the same whatever comes later, tell
# how long one takes.
probe=60
train() {
    if [ ! -s "$dir/updates" ]; then
        run_training --updates $probe
        if [ "$(updates_done)" -gt 0 ]; then set_updates; fi
    elif [ "$(updates_done)" -ge "$(cat "$dir/updates")" ]; then
        set_updates
    fi
    if [ "$(time_left)" -lt 10 ]; then
        echo "The $minutes minutes are used up; --minutes with more trains on."
        if [ "$(updates_done)" -gt 0 ]; then return; fi
        echo "demo.sh: not one update was made: nothing to translate with yet" >&2
        exit 1
    fi
    echo "$(time_left) s are left, up to update $(cat "$dir/updates")." \
        "Ctrl-C is safe: run this again and it goes on."
    run_training --set "training.updates=$(cat "$dir/updates")"
}

time_left() { echo $((minutes * 60 - spent - SECONDS - reserve)); }

# How many updates the log has: 0 without one.
updates_done() {
    if [ -s "$dir/model/log.jsonl" ]; then grep -c '"loss"' "$dir/model/log.jsonl" || true; else echo 0; fi
}

# Writes DIR/updates: those done, and what the time left allows at the pace of the last ones, less a
# twelfth for validation and checkpoints.
set_updates() {
    grep '"loss"' "$dir/model/log.jsonl" | tail -n 40 |
        sed 's/.*"target_tokens":\([0-9]*\).*"tokens_per_s":\([0-9.e+]*\).*/\1 \2/' |
        awk -v left="$(time_left)" -v made="$(updates_done)" \
            '{ seconds += $1 / $2 }
             END { n = int(left * 11 / 12 * NR / seconds); print made + (n > 1 ? n : 1) }' \
            >"$dir/updates"
}

# run_training OPTION...: stops by SIGTERM, with a complete checkpoint and status 128+15, when the time
# is over.
run_training() {
    local left status=0
    left=$(time_left)
    if [ "$left" -lt 10 ]; then left=10; fi
    run "$left" "$bantam" train "$dir/run.yaml" --resume --device "$device" "$@" || status=$?
    if [ $status -ne 0 ] && [ $status -ne 143 ]; then
        echo "demo.sh: training ended with status $status" >&2
        exit $status
    fi
}

# Three held-out sentences of middling length with reference and translations.
show_samples() {
    paste -d '\n' "$dir/text/test.de" "$dir/text/test.en" "$dir/untrained.en" "$dir/model.en" |
        head -n $((4 * few)) |
        awk 'BEGIN { split("source reference untrained trained", name, " ") }
             { line[NR % 4] = $0 }
             NR % 4 == 1 { words = NF }
             NR % 4 == 0 && words > 8 && words < 16 && NR / 4 > next_at {
                 for (i = 1; i <= 4; i++) printf "  %-10s %s\n", name[i], substr(line[i % 4], 1, 160)
                 print ""
                 next_at = NR / 4 + 25
                 if (++shown == 3) exit
             }'
}

say "Packages"
ci/setup.sh --demo
say "Building $bantam"
build
say "Text"
make_text
write_run_file
say "An untrained model, for comparison"
make_untrained
say "Training; $dir/model/log.jsonl has a line for each update"
train
count=$(wc -l <"$dir/text/test.de")
say "Translating $count sentences that were in no training text"
translate model "$count" 4
say "BLEU"
bleu untrained untrained "$few"
bleu trained model "$few"
bleu trained model "$count"
echo
show_samples
cat <<TEXT
Everything lies in $dir:
  run.yaml                 the run: model, batch, schedule. Change it, remove model/, run this again
  model/                   checkpoints, log.jsonl, the run as it was used
  spm.model                the vocabulary, trained on the text
  text/, model.en          training, validation and test text; the translation of test.de
Try next:
  echo 'Speichern Sie das Dokument.' | build/bantam translate $dir/model
  build/bantam plan $dir/run.yaml --memory 1GiB
  ci/demo.sh --minutes $((minutes * 4)) --dir $dir
TEXT
say "Done"
