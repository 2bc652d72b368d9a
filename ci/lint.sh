#!/bin/bash
# Checks what needs no run: layout, include rules, formatting, clang's warnings and clang-tidy.
# Usage: ci/lint.sh [--fast|--all]
#   --fast   only what needs no compiler: rules, format, shellcheck
#   --all    path analysis, a build by clang, and cppcheck too (nightly: ten times as long)
# Prints each check with its time; exit status 1 if any failed.
set -u
cd "$(dirname "$0")/.." || exit 1
# shellcheck source=ci/common.sh
. ci/common.sh
read_flag "--fast --all" "$@"

# check NAME COMMAND...: runs it; what it prints says what is wrong.
check() {
    local name=$1 start=$SECONDS verdict=ok
    shift
    if ! "$@"; then
        verdict=FAILED
        failed=$((failed + 1))
    fi
    printf 'lint: %-16s %-6s %4d s\n' "$name" $verdict $((SECONDS - start))
}

# Files of the project: what git tracks, or what lies here where this is no clone.
list_files() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files
    else
        find . -type d \( -name 'build*' -o -name demo -o -name .git \) -prune -o -type f -print |
            sed 's|^\./||'
    fi | while IFS= read -r file; do [ -f "$file" ] && echo "$file"; done
}
files=()
mapfile -t files < <(list_files | sort)
if [ ${#files[@]} -eq 0 ]; then
    echo "lint.sh: found no files to check (is /proc mounted?)" >&2
    exit 1
fi
# matching REGEX: the project's files whose path matches.
matching() { printf '%s\n' "${files[@]}" | grep -E "$1"; }
mapfile -t sources < <(matching '\.(c|h|cc|cu|cuh)$')
mapfile -t engine < <(matching '^core/.*\.(c|cc)$')
mapfile -t rest < <(matching '^(backends|cpu|tests)/.*\.(c|cc)$')
mapfile -t scripts < <(matching '^(\.ci/run|(ci|tests)/.*\.sh)$')

# Names the files; `clang-format -i FILE` mends them.
format_all() {
    local out
    out=$(clang-format --dry-run -Werror "${sources[@]}" 2>&1) && return 0
    printf '%s\n' "$out" | sed -n 's/^\([^: ]*\):[0-9]*:[0-9]*: error: /\1: /p' | sort | uniq -c
    return 1
}

check rules ci/lint_rules.sh "${files[@]}"
check clang-format format_all
check shellcheck shellcheck -x "${scripts[@]}"

# Kernels are compiled once for each instruction set; one look at each file is enough.
one_command_each() {
    mkdir -p build-clang/lint
    awk 'BEGIN { RS = "\n}"; ORS = "" }
         match($0, /"file": "[^"]*"/) && !seen[substr($0, RSTART, RLENGTH)]++ {
             sub(/^[^{]*/, "")
             print (n++ ? ",\n" : "[\n") $0 "\n}"
         }
         END { print "\n]\n" }' build-clang/compile_commands.json \
        >build-clang/lint/compile_commands.json
}

# tidy CHECKS FILE...: clang-tidy with ci/clang-tidy.yaml and these changes to its checks. Clang's own
# warnings are errors, as the build's options say.
tidy() {
    local checks=$1
    shift
    printf '%s\n' "$@" |
        xargs -P "$jobs" -n 3 clang-tidy --quiet --config-file=ci/clang-tidy.yaml \
            --checks="$checks" --warnings-as-errors='*' -p build-clang/lint 2>&1 |
        grep -vE '^[0-9]+ warnings? (and [0-9]+ errors? )?generated|^Suppressed|^Use -header-filter'
    return "${PIPESTATUS[1]}"
}

tidy_all() { tidy '-clang-analyzer-*' "${engine[@]}" "${rest[@]}"; }

# The path analysis is for core: it cannot see that a failed ck_assert does not return, nor what
# core/ops/ops.c has checked before a kernel sees its operands.
paths_all() { tidy '-bugprone-*' "${engine[@]}"; }

cppcheck_all() {
    mkdir -p build-clang/cppcheck
    cppcheck --project=build-clang/lint/compile_commands.json --quiet --error-exitcode=1 \
        -j "$jobs" --cppcheck-build-dir=build-clang/cppcheck --inline-suppr \
        --enable=warning,performance,portability --suppressions-list=ci/cppcheck.txt
}

clang=(-DBANTAM_TESTS=ON -DBANTAM_WERROR=ON -DBANTAM_OPENMP=OFF -DCMAKE_C_COMPILER=clang
    -DCMAKE_CXX_COMPILER=clang++)
configure() {
    mkdir -p build-clang
    if cmake -S . -B build-clang -G Ninja "${clang[@]}" >build-clang/build.log 2>&1; then
        one_command_each
    else
        tail -n 60 build-clang/build.log
        return 1
    fi
}

if [ "$flag" != --fast ]; then
    check configure configure
    check clang-tidy tidy_all
fi
if [ "$flag" = --all ]; then
    check "path analysis" paths_all
    check "clang build" build build-clang "${clang[@]}"
    check cppcheck cppcheck_all
fi
if [ $failed -ne 0 ]; then echo "lint: $failed checks failed"; fi
[ $failed -eq 0 ]
