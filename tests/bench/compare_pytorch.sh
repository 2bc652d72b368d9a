#!/bin/bash
# Speed and memory of `bantam train` beside a torch.nn.Transformer loop: same text, model and batch,
# alternating. Usage: tests/bench/compare_pytorch.sh --src F --tgt F --spm MODEL [options]
#   --loop F        the loop (../shared/bench/pytorch_loop.py); README.md says what it must print
#   --bantam F      the program (build/bantam)
#   --rounds N      (3)              --updates N  timed updates of a round (8)
#   --batch N       sentences (128)  --mode M     padded | bucketed, PyTorch's batches (padded)
#   --d N --ff N --heads N --layers N   the model (256 1024 8 3)
#   --set KEY=VALUE a key of Bantam's run file, may be repeated
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/bench/measure.sh
. "$here/tests/bench/measure.sh"
src="" tgt="" spm="" loop=$here/../shared/bench/pytorch_loop.py bantam=$here/build/bantam
rounds=3 updates=8 batch=128 mode=padded d=256 ff=1024 heads=8 layers=3
sets=()
while [ $# -gt 0 ]; do
    case $1 in
    --src | --tgt | --spm | --loop | --bantam | --rounds | --updates | --batch | --mode | --d | --ff | \
        --heads | --layers)
        declare "${1#--}=${2:?$1 needs a value}"
        ;;
    --set) sets+=(--set "${2:?--set needs key=value}") ;;
    *)
        sed -n '2,9s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
    esac
    shift 2
done
for file in "$src" "$tgt" "$spm" "$bantam"; do
    if [ ! -r "$file" ]; then
        echo "compare_pytorch.sh: cannot read \"$file\"; --src, --tgt, --spm and --bantam name files" >&2
        exit 2
    fi
done
python=${PYTHON:-python3}
torch=yes
if [ ! -r "$loop" ]; then
    echo "SKIP: PyTorch: there is no $loop"
    torch=no
elif ! "$python" -c 'import torch, sentencepiece' 2>/dev/null; then
    echo "SKIP: PyTorch: $python cannot import torch and sentencepiece"
    torch=no
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/run.yaml" <<YAML
output: out
data: {train: {source: "$(realpath "$src")", target: "$(realpath "$tgt")"}, max_length: 1024}
tokenizer: {kind: sentencepiece, model: "$(realpath "$spm")", shared: true}
model: {d_model: $d, ff: $ff, heads: $heads, encoder_layers: $layers, decoder_layers: $layers,
        norm: post, tie_embeddings: none, dropout: 0.1}
training: {batch: $batch, batch_unit: sentences, label_smoothing: 0.1, clip_norm: 1.0, seed: 1}
optimizer: {kind: adam, lr: 1.0e-4}
schedule: {kind: constant, warmup: 0}
YAML

run_torch() {
    "$python" "$loop" --src "$src" --tgt "$tgt" --spm "$spm" --d "$d" --ff "$ff" --heads "$heads" \
        --layers "$layers" --batch "$batch" --updates "$updates" --mode "$mode" >"$work/torch.json"
    echo "$(field target_tokens_per_s <"$work/torch.json") $(field peak_rss_bytes <"$work/torch.json")"
}

printf '%-8s %12s %12s %12s %12s\n' round "bantam tok/s" "peak MiB" "torch tok/s" "peak MiB"
for round in $(seq "$rounds"); do
    run_bantam "$updates" "${sets[@]}" >"$work/result"
    read -r speed peak <"$work/result"
    echo "$speed" >>"$work/bantam.speed"
    printf '%-8s %12s %12d' "$round" "$speed" $((peak / 1048576))
    if [ $torch = yes ]; then
        run_torch >"$work/result"
        read -r speed peak <"$work/result"
        echo "$speed" >>"$work/torch.speed"
        printf ' %12s %12d' "$speed" $((peak / 1048576))
    fi
    echo
done
tell_medians
