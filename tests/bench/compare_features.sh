#!/bin/bash
# Speed and memory of captions from dense features, `bantam train` beside the same torch.nn modules, in turn:
# rows of two features in one encoder sequence, a decoder over tied words. All numbers are drawn.
# Usage: tests/bench/compare_features.sh [options]
#   --bantam F   the program (build/bantam)          --rounds N   (3)   --updates N  timed, of a round (4)
#   --d N --ff N --heads N --layers N                the model, N + N layers (256 1024 4 4)
#   --batch N    examples (8)                        --words N    (10000)
#   --target N   words of a caption (31)             --memory S   Bantam's limit (auto)
#   --torch no   Bantam alone
# The second case of tests/runs: --d 1024 --ff 4096 --heads 16 --layers 12 --batch 4 --memory 7GiB --rounds 1
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=tests/bench/measure.sh
. "$here/tests/bench/measure.sh"
bantam=$here/build/bantam rounds=3 updates=4 d=256 ff=1024 heads=4 layers=4 batch=8 words=10000 target=31
memory=auto torch=yes
while [ $# -gt 0 ]; do
    case $1 in
    --bantam | --rounds | --updates | --d | --ff | --heads | --layers | --batch | --words | --target | \
        --memory | --torch)
        declare "${1#--}=${2:?$1 needs a value}"
        ;;
    *)
        sed -n '2,11s/^# \{0,1\}//p' "$0"
        exit 2
        ;;
    esac
    shift 2
done
python=${PYTHON:-python3}
if ! "$python" -c 'import numpy' 2>/dev/null; then
    echo "compare_features.sh: $python cannot import numpy, which draws the features; PYTHON= names another" >&2
    exit 2
fi
if [ $torch = yes ] && ! "$python" -c 'import torch' 2>/dev/null; then
    echo "SKIP: PyTorch: $python cannot import torch"
    torch=no
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Captions of so many words out of a list of them; four symbols of the list are the tokeniser's own.
"$python" - "$work" "$batch" "$words" "$target" <<'PYTHON'
import sys
import numpy as np
work, examples, words, target = sys.argv[1], 2 * int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
draw = np.random.default_rng(1)
for name, rows, width in (("image", 197, 768), ("text", 512, 1024)):
    np.save(f"{work}/{name}.npy", draw.standard_normal((examples, rows, width), dtype=np.float32))
with open(f"{work}/list.txt", "w") as f:
    f.writelines(f"w{i}\n" for i in range(words - 4))
with open(f"{work}/train.txt", "w") as f:
    f.writelines(" ".join(f"w{i}" for i in draw.integers(0, words - 4, target)) + "\n" for _ in range(examples))
PYTHON
"$bantam" vocab train --tokenizer words --size "$words" --model "$work/words.txt" "$work/list.txt" >"$work/log" 2>&1
cat >"$work/run.yaml" <<YAML
output: out
data:
  features:
    - {name: image, train: image.npy}
    - {name: text, train: text.npy}
  train: {target: train.txt}
tokenizer: {kind: words, model: words.txt}
model: {d_model: $d, ff: $ff, heads: $heads, encoder_layers: $layers, decoder_layers: $layers,
        norm: post, fusion: concat, tie_embeddings: target, dropout: 0.1}
training: {batch: $batch, batch_unit: sentences, label_smoothing: 0.1, clip_norm: 1.0, seed: 1}
optimizer: {kind: adam, lr: 1.0e-4}
schedule: {kind: constant, warmup: 0}
memory: {limit: $memory}
YAML

mib() { echo $(($1 / 1048576)); }
printf '%-7s %14s %9s %13s %9s %9s\n' round "bantam tok/s" "peak MiB" "torch tok/s" "peak MiB" "imported"
for round in $(seq "$rounds"); do
    run_bantam "$updates" >"$work/result"
    read -r speed peak <"$work/result"
    echo "$speed" >>"$work/bantam.speed"
    printf '%-7s %14s %9d' "$round" "$speed" "$(mib "$peak")"
    if [ $torch = yes ]; then
        "$python" "$here/tests/bench/pytorch_features.py" --d "$d" --ff "$ff" --heads "$heads" \
            --layers "$layers" --batch "$batch" --words "$words" --target "$target" \
            --updates "$updates" >"$work/torch.json"
        field target_tokens_per_s <"$work/torch.json" >>"$work/torch.speed"
        printf ' %13s %9d %9d' "$(tail -n 1 "$work/torch.speed")" \
            "$(mib "$(field peak_rss_bytes <"$work/torch.json")")" \
            "$(mib "$(field imported_rss_bytes <"$work/torch.json")")"
    fi
    echo
done
grep -h '"total_bytes"' "$work/out/plan.json" | sed 's/^ */planned: /; s/,$//' | head -n 1
tell_medians
