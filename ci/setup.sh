#!/bin/sh
# Installs the Debian packages that Bantam needs. Usage: ci/setup.sh [--build | --demo | --check]
#   (no option)  to build, test, lint and run the demo
#   --build      to build, tests included, and no more; without what is optional (OpenCL)
#   --demo       to build and run the demo
#   --check      installs nothing: names what is missing, exits 1 if anything is
# Needs root or sudo where something is missing; does nothing, quickly, where nothing is.
set -eu

build="gcc g++ make cmake ninja-build pkg-config libopenblas0-openmp libsentencepiece-dev
       libyaml-dev libjansson-dev libxxhash-dev zlib1g-dev libutf8proc-dev
       libpcre2-dev libmsgpack-dev check"
demo="python3"
opencl="opencl-headers ocl-icd-opencl-dev libclblast-dev pocl-opencl-icd"
all="$opencl clang clang-format clang-tidy cppcheck shellcheck git python3"

want="$build $all"
install=yes
for arg in "$@"; do
    case $arg in
    --build) want=$build ;;
    --demo) want="$build $demo" ;;
    --check) install=no ;;
    -h | --help)
        sed -n '2,7s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *)
        echo "setup.sh: unknown option $arg (--build, --demo, --check)" >&2
        exit 2
        ;;
    esac
done

if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
    echo "setup.sh: this is no Debian system. Install what these Debian packages hold:" >&2
    for package in $want; do echo "  $package" >&2; done
    exit 1
fi

missing=""
for package in $want; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=none
    [ "$state" = installed ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "setup.sh: all packages are there"
    exit 0
fi
if [ "$install" = no ]; then
    echo "setup.sh: missing:$missing" >&2
    exit 1
fi

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "setup.sh: missing:$missing" >&2
        echo "setup.sh: run this as root, or install sudo" >&2
        exit 1
    fi
    as_root=sudo
fi
echo "setup.sh: installing:$missing"
# A fresh image has no package lists; a stale list names packages that are gone.
# shellcheck disable=SC2086 # lists of words
$as_root apt-get -q update
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install $missing
