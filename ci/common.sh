# shellcheck shell=bash disable=SC2034 # what is set here the scripts read
# What ci/test.sh, ci/nightly.sh and ci/lint.sh share; they source it from the project's folder.

jobs=${BANTAM_JOBS:-2}

# CUDA: the compiler of the toolkit that is installed, if any, and where ci/cuda118.sh keeps 11.8.
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
cuda118=${BANTAM_CUDA118:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/bantam/cuda-11.8}

# What the last line of a script counts.
passed=0 failed=0 skipped=0

# not_here WHAT WHY...: counts and says what cannot run on this machine.
not_here() {
    printf '\n==== %s\nSKIP: %s\n' "$1" "${*:2}"
    skipped=$((skipped + 1))
}

# read_flag FLAGS ARGUMENT...: sets `flag` to the last argument, which must be among these; without any
# to nothing. --help shows the head of the script and ends it; any other argument is wrong usage.
read_flag() {
    local known=" $1 " arg
    shift
    flag=
    for arg in "$@"; do
        case $arg in
        -h | --help)
            sed -n '2,/^[^#]/s/^# \{0,1\}//p' "ci/${0##*/}"
            exit 0
            ;;
        esac
        if [[ $known != *" $arg "* ]]; then
            echo "${0##*/}: unknown option $arg (known:$known--help)" >&2
            exit 2
        fi
        flag=$arg
    done
}

# build DIR OPTIONS...: configures and builds with warnings as errors; shows the end of the log where
# that fails.
build() {
    local dir=$1 generator=()
    shift
    if [ ! -e "$dir/CMakeCache.txt" ]; then generator=(-G Ninja); fi
    mkdir -p "$dir"
    if cmake -S . -B "$dir" "${generator[@]}" -DBANTAM_TESTS=ON -DBANTAM_WERROR=ON "$@" >"$dir/build.log" 2>&1 &&
        cmake --build "$dir" --parallel "$jobs" >>"$dir/build.log" 2>&1; then
        return 0
    fi
    tail -n 60 "$dir/build.log"
    return 1
}

# loads_anywhere DIR NVCC: the module in DIR needs nothing of NVIDIA's to be loaded, and where there is no driver
# it says that one is missing, for this nvcc's toolkit: the runtime in it is of no other.
loads_anywhere() {
    local needed said release
    release=$("$2" --version | sed -n 's/.*release \([0-9]*\).*/\1/p')
    needed=$(readelf -d "$1/bantam_cuda.so") || return 1
    if grep 'NEEDED.*libcu' <<<"$needed"; then
        echo "bantam_cuda.so needs this to be loaded: it must load on every machine"
        return 1
    fi
    if PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q 'libcuda\.so\.1'; then
        echo "there is a driver here: what is said without one is not looked at"
        return 0
    fi
    said=$(BANTAM_MODULES=$1 build/bantam devices | grep '^cuda')
    echo "$said"
    [[ $said == *"not usable: no NVIDIA driver"*"one for CUDA ${release:?}.0 or later"* ]]
}

# cuda_module DIR NVCC ARCHITECTURES: the cuda backend for real cards, its kernels within the limits; it
# loads where there is no card. Dynamic shared memory and block sizes are those that conformance on the
# simulator launched.
cuda_module() {
    local dir=$1
    mkdir -p "$dir"
    if cmake -S . -B "$dir" -G Ninja -DBANTAM_TESTS=OFF -DBANTAM_WERROR=ON -DBANTAM_CUDA=ON \
        "-DBANTAM_CUDA_COMPILER=$2" "-DBANTAM_CUDA_ARCHITECTURES=$3" >"$dir/build.log" 2>&1 &&
        cmake --build "$dir" --parallel "$jobs" --target bantam_cuda >>"$dir/build.log" 2>&1; then
        loads_anywhere "$PWD/$dir" "$2" && ci/cuda_table.sh "$dir" build/cusim/launches
        return
    fi
    tail -n 60 "$dir/build.log"
    return 1
}
