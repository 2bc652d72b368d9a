# shellcheck shell=bash
# What the comparisons with PyTorch share; they set bantam and work.
# shellcheck disable=SC2154

# field NAME: numbers called NAME in JSON lines.
field() { sed -n "s/.*\"$1\": *\([-0-9.e+]*\).*/\1/p"; }
median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }

# run_bantam UPDATES OPTION...: trains $work/run.yaml by $bantam into $work/out for so many updates and,
# before them, a third of them that are not timed. Prints target tokens a second and peak bytes.
run_bantam() {
    local updates=$1
    shift
    local total=$((updates + (updates + 2) / 3))
    rm -rf "$work/out"
    "$bantam" train "$work/run.yaml" --device cpu --updates $total "$@" >"$work/log" 2>&1 &
    local pid=$! peak=0 now
    # The high-water mark only grows: what was read last, was the peak.
    while now=$(awk '/^VmHWM/ { print $2 * 1024 }' "/proc/$pid/status" 2>/dev/null) && [ -n "$now" ]; do
        peak=$now
        sleep 0.2
    done
    if ! wait $pid; then
        tail -n 20 "$work/log" >&2
        return 1
    fi
    # Tokens of the timed updates over their time, not a mean of rates.
    awk -v first=$((total - updates)) -v peak="$peak" '
        function number(name) {
            if (!match($0, "\"" name "\": *[-0-9.e+]+")) return 0
            value = substr($0, RSTART, RLENGTH); sub(/.*: */, "", value)
            return value + 0
        }
        number("update") > first && number("tokens_per_s") > 0 {
            tokens += number("target_tokens")
            seconds += number("target_tokens") / number("tokens_per_s")
        }
        END { if (!seconds) exit 1; printf "%.1f %.0f\n", tokens / seconds, peak }' "$work/out/log.jsonl"
}

# Medians of $work/bantam.speed and, where there is one, $work/torch.speed, and their ratio.
tell_medians() {
    local mine theirs
    mine=$(median <"$work/bantam.speed")
    printf 'median: bantam %s target tokens/s' "$mine"
    if [ -s "$work/torch.speed" ]; then
        theirs=$(median <"$work/torch.speed")
        printf ', torch %s, ratio %s' "$theirs" "$(awk -v a="$mine" -v b="$theirs" 'BEGIN { printf "%.2f", a / b }')"
    fi
    echo
}
