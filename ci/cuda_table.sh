#!/bin/bash
# The kernels of a build of the cuda backend, for each architecture: registers, shared memory, spills,
# occupancy. Usage: ci/cuda_table.sh BUILD [LAUNCHES]
#   BUILD      folder of a build with the module bantam_cuda (any toolkit)
#   LAUNCHES   what the simulator wrote to CUSIM_LAUNCHES: block sizes and dynamic shared memory
# Exit status 1 where a kernel spills, or breaks the limits of a Tesla K80, the smallest card: 48 KiB of
# shared memory and 65,536 registers for a block, or where ptxas said nothing at all.
set -eu
case ${1:---help} in
-*)
    sed -n '2,7s/^# \{0,1\}//p' "$0"
    [ "${1:-}" = --help ] && exit 0
    exit 2
    ;;
esac
logs=("$1"/CMakeFiles/bantam_cuda.dir/kernels_cuda/*.ptxas)
if [ ! -e "${logs[0]}" ]; then
    echo "cuda_table.sh: $1 has no build of the cuda backend" >&2
    exit 1
fi
# Launches first: "kernel threads dynamic-bytes"; then ptxas's words, names demangled.
{
    cat "${2:-/dev/null}"
    echo ----
    cat "${logs[@]}" | c++filt | sed "s/'//g"
} | awk '
function least(a, b) { return a < b ? a : b }
function up(x, to) { return int((x + to - 1) / to) * to }
# What a multiprocessor has: registers, warps, blocks, KiB of shared memory.
function card(sm) {
    regs = sm == 37 ? 131072 : 65536
    warps = sm == 75 ? 32 : sm == 86 || sm == 89 ? 48 : 64
    blocks = sm >= 80 && sm != 86 && sm != 89 || sm >= 50 && sm < 75 ? 32 : sm == 89 ? 24 : 16
    shared = sm == 37 ? 112 : sm == 60 || sm == 75 ? 64 : sm < 80 ? 96 : sm == 80 ? 164 : sm < 90 ? 100 : 228
}
# Share of the warps that a multiprocessor could hold which this launch fills, percent.
function occupancy(sm, r, bytes, n,    w, fit) {
    card(sm)
    w = int((n + 31) / 32)
    fit = least(blocks, int(warps / w))
    fit = least(fit, int(regs / (up(r * 32, 256) * w)))
    bytes = up(bytes + (sm >= 80 ? 1024 : 0), 256)
    if (bytes > 0) fit = least(fit, int(shared * 1024 / bytes))
    return int(100 * fit * w / warps)
}
function bad(why) { print "BAD: " kernel " (sm_" sm "): " why; failed = 1 }
/^----$/ { body = 1; next }
!body { threads[$1] = $2; dynamic[$1] = $3; next }
/Compiling entry function/ {
    kernel = $0
    sub(/^.*entry function */, "", kernel)
    sm = kernel
    sub(/ for sm_[0-9]+.*$/, "", kernel)
    sub(/^.* for sm_/, "", sm); sub(/[^0-9].*$/, "", sm)
    sub(/^void /, "", kernel)
    sub(/\(btcu_.*$|\([^()]*\)$/, "", kernel) # its parameters
    next
}
/bytes stack frame/ { stack = $1; stores = $5; loads = $9; next }
/Used [0-9]+ registers/ {
    match($0, /Used [0-9]+/)
    r = substr($0, RSTART + 5, RLENGTH - 5) + 0
    fixed = 0
    if (match($0, /[0-9]+ bytes smem/)) fixed = substr($0, RSTART, RLENGTH - 11) + 0
    base = kernel
    sub(/[<(].*$/, "", base)
    n = base in threads ? threads[base] : 0
    bytes = fixed + (base in dynamic ? dynamic[base] : 0)
    rows++
    printf "%-44s sm_%-3s %4d %7d %6d %5s %4s\n", kernel, sm, r, bytes, stores + loads,
        n ? n : "-", n ? occupancy(sm + 0, r, bytes, n) : "-" | "sort"
    if (stores + loads > 0) bad(stores + loads " bytes spilled")
    if (r > 255) bad(r " registers")
    if (bytes > 49152) bad(bytes " bytes of shared memory")
    if (n && up(r * 32, 256) * int((n + 31) / 32) > 65536) bad(r " registers for " n " threads")
    next
}
BEGIN { printf "%-44s %-6s %4s %7s %6s %5s %4s\n", "kernel", "card", "regs", "shared", "spill", "block", "occ%" }
END {
    close("sort")
    if (!rows) { print "BAD: no kernel was found"; failed = 1 }
    print rows + 0 " kernels"
    exit failed
}'
