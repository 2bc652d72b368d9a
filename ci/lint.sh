#!/bin/bash
# Checks everything that needs no run: layout, include rules, formatting, static analysis, a clang
# build with warnings as errors. Usage: ci/lint.sh [--fast]
#   --fast   only what needs no compiler: rules, format, shellcheck
# Prints each check with its time; exit status 1 if any failed.
set -u
cd "$(dirname "$0")/.." || exit 1

fast=no
for arg in "$@"; do
    case $arg in
    --fast) fast=yes ;;
    -h | --help)
        sed -n '2,5s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *)
        echo "lint.sh: unknown option $arg (--fast)" >&2
        exit 2
        ;;
    esac
done
jobs=${BANTAM_JOBS:-2}
failed=0

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
mapfile -t files < <(list_files | sort)
# matching REGEX: the project's files whose path matches.
matching() { printf '%s\n' "${files[@]}" | grep -E "$1"; }
mapfile -t sources < <(matching '\.(c|h|cc|cu|cuh)$')
mapfile -t compiled < <(matching '^(core|backends|cpu|tests)/.*\.(c|cc)$')
mapfile -t scripts < <(matching '^(\.ci/run|(ci|tests)/.*\.sh)$')

check rules ci/lint_rules.sh "${files[@]}"
check clang-format clang-format --dry-run -Werror "${sources[@]}"
check shellcheck shellcheck "${scripts[@]}"

clang_build() {
    mkdir -p build-clang
    if cmake -S . -B build-clang -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
        -DBANTAM_OPENMP=OFF -DBANTAM_WERROR=ON >build-clang/build.log 2>&1 &&
        cmake --build build-clang --parallel "$jobs" >>build-clang/build.log 2>&1; then
        return 0
    fi
    tail -n 60 build-clang/build.log
    return 1
}

tidy() {
    printf '%s\n' "${compiled[@]}" |
        xargs -P "$jobs" -n 4 clang-tidy --quiet --warnings-as-errors='*' -p build-clang 2>&1 |
        grep -vE '^[0-9]+ warnings? generated|^Suppressed|^Use -header-filter'
    return "${PIPESTATUS[1]}"
}

cppcheck_all() {
    mkdir -p build-clang/cppcheck
    cppcheck --project=build-clang/compile_commands.json --quiet --error-exitcode=1 -j "$jobs" \
        --cppcheck-build-dir=build-clang/cppcheck --enable=warning,performance,portability \
        --inline-suppr --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches
}

if [ $fast = no ]; then
    check "clang build" clang_build
    check clang-tidy tidy
    check cppcheck cppcheck_all
fi
if [ $failed -ne 0 ]; then echo "lint: $failed checks failed"; fi
[ $failed -eq 0 ]
