# shellcheck shell=bash
# What ci/test.sh and ci/lint.sh share; they source it from the project's folder.

jobs=${BANTAM_JOBS:-2}

# read_flag FLAG ARGUMENT...: sets `flag` to yes when FLAG is among the arguments, else to no. --help
# shows the head of the script and ends it; any other argument is wrong usage.
# shellcheck disable=SC2034 # read by the scripts
read_flag() {
    local known=$1 arg
    shift
    flag=no
    for arg in "$@"; do
        case $arg in
        "$known") flag=yes ;;
        -h | --help)
            sed -n '2,5s/^# \{0,1\}//p' "ci/${0##*/}"
            exit 0
            ;;
        *)
            echo "${0##*/}: unknown option $arg ($known)" >&2
            exit 2
            ;;
        esac
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
