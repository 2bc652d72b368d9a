#!/bin/bash
# What is too long for every change: kernels for all cards by both toolkits, suites labelled nightly (the
# cuda backend under both sanitizers among them), ci/gpu.sh on the simulator, all mutants of kernels, the
# whole of the static analysis.
# Usage: ci/nightly.sh [PART...] (after ci/test.sh)
#   PART   build, nvcc, cuda-11.8, suites, sanitizers, gpu, mutants, lint; without any: all, in this order
# Every part runs even where one before it failed; the last line counts, exit status 1 if any failed.
set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=ci/common.sh
. ci/common.sh
parts="build nvcc cuda-11.8 suites sanitizers gpu mutants lint"
read_flag "$parts" "$@"
asked=" ${*:-$parts} "

wanted() { [[ $asked == *" $1 "* ]]; }

# part NAME COMMAND...: runs it if it is wanted, says how long it took, counts it.
part() {
    local start=$SECONDS
    wanted "$1" || return
    printf '\n==== %s\n' "$1"
    if "${@:2}"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    printf '==== %s: %d s\n' "$1" $((SECONDS - start))
}

# lacking NAME WHY...: counts a part that cannot run here, if it is wanted.
lacking() { if wanted "$1"; then not_here "$@"; fi; }

# nightly_suites DIR
nightly_suites() {
    ctest --test-dir "$1" --parallel "$jobs" --label-regex "^nightly\$" --output-on-failure
}

part build build build -DCMAKE_BUILD_TYPE=Release -DBANTAM_STATIC=OFF -DBANTAM_SANITIZE=
if [ -n "$nvcc" ]; then
    part nvcc cuda_module build-cuda-all "$nvcc" all
else
    lacking nvcc "there is no nvcc"
fi
if ! wanted cuda-11.8; then
    :
elif ci/cuda118.sh "$cuda118"; then
    part cuda-11.8 cuda_module build-cuda118-all "$cuda118/bin/nvcc" all
else
    not_here cuda-11.8 "see above"
fi
part suites nightly_suites build
if [ -e build-asan/CTestTestfile.cmake ]; then
    part sanitizers nightly_suites build-asan
else
    lacking sanitizers "ci/test.sh has not built them"
fi
part gpu ci/gpu.sh --simulator --dir build-gpu-sim
part mutants tests/cusim/mutate.py build
part lint ci/lint.sh --all
printf '\n'
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
