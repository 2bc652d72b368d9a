#!/bin/bash
# Builds and runs what every change must pass: release tests, tests with sanitizers, lint.
# Usage: ci/test.sh [--quick]
#   --quick   no sanitizer build, no CUDA kernels for real cards, no mutants
# Every part runs even where one before it failed; BANTAM_JOBS (2) is how many jobs run at once.
# The last line counts what passed, failed and was skipped; exit status 1 if anything failed.
set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=ci/common.sh
. ci/common.sh
read_flag --quick "$@"
times=""

# part NAME COMMAND...: runs it, keeps its time, counts it, returns its status. run_tests counts its
# tests itself.
part() {
    local name=$1 start status count=1
    shift
    if [ "$1" = run_tests ]; then count=0; fi
    printf '\n==== %s\n' "$name"
    start=$SECONDS
    "$@"
    status=$?
    if [ $status -eq 0 ]; then
        passed=$((passed + count))
        times+=$(printf '%-28s ok     %5d s' "$name" $((SECONDS - start)))$'\n'
    else
        failed=$((failed + count))
        times+=$(printf '%-28s FAILED %5d s' "$name" $((SECONDS - start)))$'\n'
    fi
    return $status
}

# run_tests DIR: runs ctest there, adds its tests to the counts, prints why tests were skipped.
run_tests() {
    local dir=$1 summary total bad log=$1/Testing/Temporary/LastTest.log
    rm -f "$log"
    ctest --test-dir "$dir" --parallel "$jobs" --label-exclude "^nightly\$" --output-on-failure 2>&1 | tee "$dir/ctest.log"
    summary=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests failed out of [0-9]+$' "$dir/ctest.log")
    read -r _ _ _ bad _ _ _ _ total <<<"$summary"
    if [ "${total:-0}" -eq 0 ]; then
        echo "test.sh: no test ran in $dir"
        failed=$((failed + 1))
        return 1
    fi
    passed=$((passed + total - bad))
    failed=$((failed + bad))
    if grep -q '^SKIP: ' "$log"; then
        echo "Skipped in $dir:"
        sed -n 's/^SKIP: /  /p' "$log" | sort | uniq -c
        skipped=$((skipped + $(grep -c '^SKIP: ' "$log")))
    fi
    # Suites print their own times, which ctest shows only when they fail.
    grep -E '^[a-z_.]+: [0-9]+ tests, .* s$' "$log"
    [ "$bad" -eq 0 ]
}

# One architecture for each toolkit; ci/nightly.sh builds for all.
cuda_modules() {
    if [ -n "$nvcc" ]; then
        part "CUDA kernels (nvcc, 8.6)" cuda_module build-cuda "$nvcc" 86-real
    else
        not_here "CUDA kernels (nvcc, 8.6)" "there is no nvcc"
    fi
    ci/cuda118.sh "$cuda118"
    case $? in
    0) part "CUDA kernels (11.8, 3.7)" cuda_module build-cuda118 "$cuda118/bin/nvcc" 37-real ;;
    77) skipped=$((skipped + 1)) ;;
    *) part "CUDA kernels (11.8, 3.7)" false ;;
    esac
}

part "packages" ci/setup.sh
if part "build (gcc, release)" build build -DCMAKE_BUILD_TYPE=Release -DBANTAM_STATIC=OFF \
    -DBANTAM_SANITIZE=; then
    part "tests" run_tests build
fi
if [ -z "$flag" ]; then
    cuda_modules
    part "mutants of kernels" tests/cusim/mutate.py build --sample
    export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
    flags="-O1 -g"
    if part "build (gcc, sanitizers)" build build-asan -DCMAKE_BUILD_TYPE=RelWithDebInfo \
        "-DCMAKE_C_FLAGS_RELWITHDEBINFO=$flags" "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=$flags" \
        -DBANTAM_STATIC=ON -DBANTAM_SANITIZE=address,undefined; then
        part "tests (sanitizers)" run_tests build-asan
    fi
fi
part "lint" ci/lint.sh

printf '\n%s' "$times"
printf '%-28s        %5d s\n' total $SECONDS
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
