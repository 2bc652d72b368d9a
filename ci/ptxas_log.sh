#!/bin/bash
# Runs a compiler of CUDA (the whole command line), keeps what ptxas says of registers, shared memory
# and spills beside the object, and shows the rest. Called by the build; ci/cuda_table.sh reads it.
set -u
object=
for ((i = 1; i < $#; i++)); do
    if [ "${!i}" = -o ]; then
        next=$((i + 1))
        object=${!next}
    fi
done
if [ -z "$object" ]; then exec "$@"; fi
"$@" 2>"$object.ptxas"
status=$?
grep -vE '^ptxas info|^    [0-9]+ bytes stack frame|^nvcc warning : The .* deprecated' \
    "$object.ptxas" >&2
exit $status
