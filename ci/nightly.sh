#!/bin/bash
# What is too long for every change: kernels for all cards by both toolkits, conformance and training
# of the cuda backend under both sanitizers, all mutants. Usage: ci/nightly.sh (after ci/test.sh)
# Every part runs even where one before it failed; the last line counts, exit status 1 if any failed.
set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=ci/common.sh
. ci/common.sh
read_flag --none "$@"
passed=0
failed=0
skipped=0

part() {
    printf '\n==== %s\n' "$1"
    if "${@:2}"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
skip() {
    printf '\n==== %s\nSKIP: %s\n' "$1" "$2"
    skipped=$((skipped + 1))
}

# sanitized KIND SUITE SETTING...: one suite of the cuda backend on the simulator.
sanitized() {
    env "${@:3}" CK_FORK=no "BANTAM_MODULES=$PWD/build/cusim-$1" "BANTAM_TESTS=$PWD/tests" \
        "BANTAM_SHARED=$PWD/../shared" ASAN_OPTIONS=detect_leaks=0 \
        "LD_PRELOAD=$(g++ -print-file-name="lib$1.so")" "build/tests/test_$2" cuda
}

part "build" build build -DCMAKE_BUILD_TYPE=Release -DBANTAM_STATIC=OFF -DBANTAM_SANITIZE=
if [ -n "$nvcc" ]; then
    part "kernels, nvcc" cuda_module build-cuda-all "$nvcc" "75-real;80-real;86-real;90"
else
    skip "kernels, nvcc" "there is no nvcc"
fi
if ci/cuda118.sh "$cuda118"; then
    part "kernels, CUDA 11.8" cuda_module build-cuda118-all "$cuda118/bin/nvcc" "37-real;86-real;90-real"
else
    skip "kernels, CUDA 11.8" "see above"
fi
for suite in conform train decoder validation; do
    part "$suite, AddressSanitizer" sanitized asan $suite
    part "$suite, ThreadSanitizer, within blocks" sanitized tsan $suite CUSIM_RACE=block
    part "$suite, ThreadSanitizer, between blocks" sanitized tsan $suite CUSIM_RACE=grid
done
part "mutants" tests/cusim/mutate.py build
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
