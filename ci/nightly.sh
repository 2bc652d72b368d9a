#!/bin/bash
# What is too long for every change: kernels for all cards by both toolkits, suites labelled nightly (the
# cuda backend under both sanitizers among them), ci/gpu.sh on the simulator, all mutants of kernels, the
# whole of the static analysis.
# Usage: ci/nightly.sh (after ci/test.sh)
# Every part runs even where one before it failed; the last line counts, exit status 1 if any failed.
set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=ci/common.sh
. ci/common.sh
read_flag "" "$@"

part() {
    local start=$SECONDS
    printf '\n==== %s\n' "$1"
    if "${@:2}"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    printf '==== %s: %d s\n' "$1" $((SECONDS - start))
}

part "build" build build -DCMAKE_BUILD_TYPE=Release -DBANTAM_STATIC=OFF -DBANTAM_SANITIZE=
if [ -n "$nvcc" ]; then
    part "kernels, nvcc" cuda_module build-cuda-all "$nvcc" "75-real;80-real;86-real;90"
else
    not_here "kernels, nvcc" "there is no nvcc"
fi
if ci/cuda118.sh "$cuda118"; then
    part "kernels, CUDA 11.8" cuda_module build-cuda118-all "$cuda118/bin/nvcc" "37-real;86-real;90-real"
else
    not_here "kernels, CUDA 11.8" "see above"
fi
part "suites" ctest --test-dir build --parallel "$jobs" --label-regex "^nightly\$" --output-on-failure
if [ -e build-asan/CTestTestfile.cmake ]; then
    part "suites, sanitizers" ctest --test-dir build-asan --parallel "$jobs" --label-regex "^nightly\$" \
        --output-on-failure
else
    not_here "suites, sanitizers" "ci/test.sh has not built them"
fi
part "gpu.sh" ci/gpu.sh --simulator --dir build
part "mutants" tests/cusim/mutate.py build
part "lint" ci/lint.sh --all
printf '\n'
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
