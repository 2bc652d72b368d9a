#!/bin/bash
# The kernels of a build of the cuda backend, for each architecture: registers, shared memory, spills,
# occupancy. Usage: ci/cuda_table.sh BUILD [LAUNCHES]
#   BUILD      folder of a build with the module bantam_cuda (any toolkit)
#   LAUNCHES   what the simulator wrote to CUSIM_LAUNCHES: block sizes and dynamic shared memory
# Exit status 1 where a kernel spills or keeps an array in local memory, breaks the limits of a Tesla
# K80, the smallest card (255 registers, for a block 48 KiB of shared memory and 65,536 registers), or
# is missing in LAUNCHES: no test launched it; also where ptxas said nothing at all.
set -eu
case ${1:---help} in
-*)
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    [ "${1:-}" = --help ] && exit 0
    exit 2
    ;;
esac
logs=("$1"/CMakeFiles/bantam_cuda.dir/kernels_cuda/*.ptxas)
if [ ! -e "${logs[0]}" ]; then
    echo "cuda_table.sh: $1 has no build of the cuda backend" >&2
    exit 1
fi
if [ $# -gt 1 ] && [ ! -s "$2" ]; then
    echo "cuda_table.sh: no launches in $2: the test conform.cuda writes them" >&2
    exit 1
fi
# Launches first, "threads dynamic-bytes kernel"; then ptxas's words, names demangled.
{
    sed 's/short unsigned int/unsigned short/' "${2:-/dev/null}"
    echo ----
    cat "${logs[@]}" | c++filt | sed "s/'//g"
} | awk '
function least(a, b) { return a < b ? a : b }
function up(x, to) { return int((x + to - 1) / to) * to }
# What a multiprocessor has: registers, warps, blocks, KiB of shared memory, parts (each with its
# share of the registers): CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability", and cuda_occupancy.h of the toolkit.
function card(sm) {
    regs = sm == 37 ? 131072 : 65536
    warps = sm == 75 ? 32 : sm == 86 || sm == 89 ? 48 : 64
    blocks = sm == 89 ? 24 : sm == 37 || sm == 75 || sm == 86 ? 16 : 32
    shared = sm == 37 ? 112 : sm == 60 || sm == 75 ? 64 : sm < 80 ? 96 : sm == 80 ? 164 : sm < 90 ? 100 : 228
    parts = sm == 60 ? 2 : 4
}
# Warps of this launch that a multiprocessor holds, percent of those that it could hold: the blocks
# that fit by warps, registers (given to warps 256 at a time) and shared memory (in pieces of 256
# bytes; from 8.0 on of 128, and 1 KiB of each block belongs to the driver), as cuda_occupancy.h has it.
function occupancy(sm, r, bytes, n,    w, fit) {
    card(sm)
    w = int((n + 31) / 32)
    fit = least(blocks, int(warps / w))
    fit = least(fit, int(parts * int(regs / parts / up(r * 32, 256)) / w))
    bytes = sm >= 80 ? up(bytes + 1024, 128) : up(bytes, 256)
    if (bytes > 0) fit = least(fit, int(shared * 1024 / bytes))
    return int(100 * fit * w / warps)
}
function bad(why) { print "BAD: " kernel " (sm_" sm "): " why; failed = 1 }
/^----$/ { body = 1; next }
!body {
    n = $1; bytes = $2
    sub(/^[0-9]+ [0-9]+ /, "")
    threads[$0] = n; dynamic[$0] = bytes; launches++
    next
}
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
    n = kernel in threads ? threads[kernel] : 0
    bytes = fixed + (n ? dynamic[kernel] : 0)
    rows++
    printf "%-44s sm_%-3s %4d %7d %6d %5s %4s\n", kernel, sm, r, bytes, stores + loads,
        n ? n : "-", n ? occupancy(sm + 0, r, bytes, n) : "-" | "sort"
    if (stores + loads > 0) bad(stores + loads " bytes spilled")
    else if (stack > 0) bad(stack " bytes of local memory")
    if (r > 255) bad(r " registers")
    if (bytes > 49152) bad(bytes " bytes of shared memory")
    if (n && up(r * 32, 256) * int((n + 31) / 32) > 65536) bad(r " registers for " n " threads")
    if (launches && !n) bad("no test launched it")
    if (r > most[sm]) most[sm] = r
    next
}
BEGIN { printf "%-44s %-6s %4s %7s %6s %5s %4s\n", "kernel", "card", "regs", "shared", "spill", "block", "occ%" }
END {
    close("sort")
    if (!rows) { print "BAD: no kernel was found"; failed = 1 }
    for (sm in most) print "sm_" sm ": at most " most[sm] " registers"
    print rows + 0 " kernels"
    exit failed
}'
