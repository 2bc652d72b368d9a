#!/bin/bash
# Makes a tree of CUDA 11.8, the last toolkit for compute capability 3.7 (Tesla K80), out of Debian's
# packages: no root, nothing is installed. Usage: ci/cuda118.sh DIR [--cublas]
#   --cublas   cuBLAS too, which a machine with a card needs to run what was built (250 MB)
# Where Debian's non-free component cannot be reached it says so as "SKIP: ..." and exits 77. Then:
#   cmake -S . -B build -DBANTAM_CUDA=ON -DBANTAM_CUDA_COMPILER=DIR/bin/nvcc
set -eu
case ${1:---help}:${2:---cublas} in
[!-]*:--cublas) ;;
*)
    sed -n '2,6s/^# \{0,1\}//p' "$0"
    [ "${1:-}" = --help ] && exit 0
    exit 2
    ;;
esac
mkdir -p "$1"
tree=$(cd "$1" && pwd)
packages=()
[ -x "$tree/bin/nvcc" ] || packages+=(nvidia-cuda-toolkit nvidia-cuda-dev)
[ $# -lt 2 ] || [ -e "$tree/lib64/libcublas.so.11" ] || packages+=(libcublas11 libcublaslt11)
if [ ${#packages[@]} -eq 0 ]; then
    echo "cuda118.sh: $tree is there"
    exit 0
fi

skip() {
    echo "SKIP: CUDA 11.8: $*"
    exit 77
}
command -v apt-get >/dev/null 2>&1 || skip "this is no Debian system"
# From where this system has its other packages.
# shellcheck disable=SC2016 # apt's dollars
site=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Identifier: Packages' \
    'Component: main' | awk '$2 == "bookworm" { print $1; exit }')
[ -n "$site" ] || skip "this system has no packages of bookworm"

# apt with a source and folders of its own: what the system has is left alone.
work=$tree/work
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/x"
trap 'rm -rf "$work"' EXIT
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] $site bookworm non-free" >"$work/sources.list"
apt=(-q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=-
    -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update >"$work/log" 2>&1 || skip "no package lists of non-free"
apt-cache "${apt[@]}" show nvidia-cuda-toolkit 2>/dev/null | grep -q '^Version: 11\.8' ||
    skip "non-free has no nvidia-cuda-toolkit 11.8"
(cd "$work" && apt-get "${apt[@]}" download "${packages[@]}" >"$work/log" 2>&1) ||
    skip "its packages cannot be fetched"

# unpack PACKAGE PATTERN...
unpack() {
    local package=$1
    shift
    dpkg-deb --fsys-tarfile "$work/$package"_*.deb | tar -x -C "$work/x" --wildcards "$@"
}
mkdir -p "$tree/bin" "$tree/lib64" "$tree/nvvm/bin" "$tree/nvvm/libdevice"
if [[ " ${packages[*]} " == *" libcublas11 "* ]]; then
    unpack libcublas11 '*/libcublas.so.*'
    unpack libcublaslt11 '*/libcublasLt.so.*'
    mv "$work"/x/usr/lib/*/libcublas*.so.* "$tree/lib64"
fi
if [ -x "$tree/bin/nvcc" ]; then
    echo "cuda118.sh: cuBLAS is in $tree/lib64"
    exit 0
fi
unpack nvidia-cuda-toolkit './usr/bin/*' './usr/lib/nvidia-cuda-toolkit/*'
unpack nvidia-cuda-dev './usr/include/*' '*/libcudadevrt.a' '*/libcudart_static.a'

# The layout that nvcc, cmake and their users expect. Debian's nvcc finds its parts in PATH, where
# another toolkit may come first; here it is told.
lib=$work/x/usr/lib/nvidia-cuda-toolkit
mv "$work/x/usr/include" "$tree/include"
mv "$work"/x/usr/lib/*/lib*.a "$tree/lib64"
rm -f "$work/x/usr/bin/nvcc"
mv "$work"/x/usr/bin/* "$lib/bin/crt" "$lib/bin/nvcc" "$tree/bin"
mv "$lib/bin/cicc" "$tree/nvvm/bin"
mv "$lib"/libdevice/* "$tree/nvvm/libdevice"
cat >"$tree/bin/nvcc.profile" <<'END'
TOP              = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH            += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES        += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES       =+ $(_SPACE_) "-L$(TOP)/lib64"
END
echo "cuda118.sh: $("$tree/bin/nvcc" --version | sed -n 's/.*release/release/p') in $tree"
