#!/bin/bash
# The rules of the layout, in plain text tools: which folder may include which, what core must not
# name or call, sizes. Usage: ci/lint_rules.sh FILE... (called by ci/lint.sh)
# Prints file:line: rule; exit status 1 if anything broke one.
set -u
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C.UTF-8

# Code of a C file without comments, literals kept or emptied: awk functions for the rules below.
# shellcheck disable=SC2016 # awk's dollars
strip='
function strip(line, keep,    out, c, two, n) {
    out = ""
    while (line != "") {
        c = substr(line, 1, 1); two = substr(line, 1, 2)
        if (in_comment) {
            if (two == "*/") { in_comment = 0; line = substr(line, 3) } else line = substr(line, 2)
        } else if (two == "/*") { in_comment = 1; line = substr(line, 3)
        } else if (two == "//") { break
        } else if (c == "\"" || c == quote) {
            n = 2
            while (n <= length(line) && substr(line, n, 1) != c) n += substr(line, n, 1) == "\\" ? 2 : 1
            out = out (keep ? substr(line, 1, n) : c c)
            line = substr(line, n + 1)
        } else { out = out c; line = substr(line, 2) }
    }
    return out
}
function broke(text) { printf "%s:%d: %s\n", FILENAME, FNR, text; bad = 1 }
FNR == 1 { in_comment = 0 }
END { exit bad }
'

# ---- which folder may include which: data flows one way -----------------------------------------
# shellcheck disable=SC2016
includes='
BEGIN {
    base = "core/base/|core/bantam\\.h$"
    allowed["core/base"] = base
    allowed["core/data"] = base "|core/data/"
    # Each of these may include itself and those before it, and what is said here beside that.
    rule = base "|backends/backend\\.h$"
    count = split("ops plan model data run fit engine decode session report train", room, " ")
    for (i = 1; i <= count; i++) {
        rule = rule "|core/" room[i] "/"
        if (room[i] == "fit") rule = rule "|backends/registry\\.h$" # it opens devices
        if (room[i] != "data") allowed["core/" room[i]] = rule
    }
    allowed["core/cli"] = "core/bantam\\.h$|core/cli/"
    allowed["core/bantam.h"] = "none"
    kernels = base "|core/ops/(op_args\\.h|op_list\\.inc)$|backends/backend\\.h$|cpu/"
    allowed["cpu"] = kernels
    allowed["backends"] = kernels "|backends/|kernels_cuda/launch\\.h$"
}
FNR == 1 {
    n = split(FILENAME, part, "/")
    folder = part[1] == "core" ? "core/" part[2] : part[1]
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    name = $0
    sub(/^[^"]*"/, "", name); sub(/".*/, "", name)
    rule = folder in allowed ? allowed[folder] : "^"
    if (folder == "backends" && FILENAME ~ /\/(trace|null|registry|ref)\.[ch]$/)
        rule = rule "|core/ops/ops\\.h$"
    if (FILENAME ~ /^backends\/cuda/) rule = rule "|kernels_cuda/launch\\.h$"
    if (name !~ "^(" rule ")") broke(folder " may not include \"" name "\"")
}
/^[ \t]*#[ \t]*include/ && /[<"](cuda|cublas|cudnn|nccl|nvrtc|CL\/|clblast|cblas|openblas|f77blas|omp\.h)/ {
    if (folder ~ /^core\//) broke("a vendor header in core/")
}
'

# ---- what core must not name or call -------------------------------------------------------------
# shellcheck disable=SC2016
names='
FNR == 1 { exempt = FILENAME ~ /^core\/(cli\/|run\/run_keys|bantam\.h)/ }
{
    code = strip($0, 1)
    if (!exempt && code ~ /"(cpu|cuda|opencl|k80|tesla)(:[^"]*)?"/)
        broke("core/ names a backend; it may only ask for capability data")
    if (code ~ /^[ \t]*#.*(CUDA|OPENCL|OPENBLAS|CLBLAST)/) broke("core/ asks for a backend while it is compiled")
}
'
# shellcheck disable=SC2016
calls='
{
    code = strip($0, 0)
    gsub(/[A-Za-z0-9_](->|\.)[a-z_]+ *\(/, "", code) # members of tables
    if (match(code, /(^|[^A-Za-z0-9_>.])(malloc|calloc|realloc|aligned_alloc|strdup|strndup|asprintf|vasprintf|printf|fprintf|vfprintf|puts|fputs|putchar|perror|exit|_exit|abort|getenv|secure_getenv)[ \t]*\(/)) {
        what = substr(code, RSTART, RLENGTH)
        gsub(/[^a-z_]/, "", what)
        if (what ~ /alloc|strdup|strndup|asprintf/) {
            if (core) broke(what ": memory comes from bti_alloc, bti_realloc, bti_strdup, bti_format")
        } else if (what ~ /getenv/) {
            if (core) broke(what ": only backends/ and the program read the environment")
        } else broke(what ": the library never prints, exits or aborts")
    }
}
'

# ---- sizes: .clang-format puts a function at column 1 and its closing brace too ------------------
# shellcheck disable=SC2016
sizes='
FNR == 1 { start = 0 }
FNR == 1001 { broke("the file has more than 1,000 lines; split it") }
/^[A-Za-z_].*\(/ && !/^(struct|enum|union|typedef|namespace|extern "C")/ { head = FNR }
/^[^ \t#}].*{$/ && !/^(struct|enum|union|typedef|namespace|extern "C")|=/ { start = head ? head : FNR }
/^ .*\) {$/ && !start && head { start = head }
/^}/ {
    if (start && FNR - start + 1 > 120)
        broke("a function of " FNR - start + 1 " lines ends here; 120 are the most")
    start = head = 0
}
'

status=0
# apply RULE FILES...
apply() {
    local rule=$1
    shift
    if [ $# -gt 0 ] && ! awk -v quote="'" "$strip$rule" "$@"; then status=1; fi
}
fail() {
    echo "$*"
    status=1
}
of() { printf '%s\n' "${files[@]}" | grep -E "$1" | grep -vE "${2:-^$}"; }

files=("$@")
mapfile -t core < <(of '^core/.*\.(c|h|cc|inc)$')
mapfile -t core_library < <(of '^core/.*\.(c|h|cc|inc)$' '^core/(cli/|base/status\.[ch]$)')
mapfile -t backends < <(of '^(backends|cpu)/.*\.(c|h|inc)$')
mapfile -t outside_tests < <(of '^(core|backends|cpu)/.*\.(c|h|cc|inc)$')
mapfile -t sized < <(of '^(core|backends|cpu|tests|kernels_cl|kernels_cuda)/.*\.(c|h|cc|cl|cu|cuh)$')
apply "$includes" "${outside_tests[@]}"
apply "$names" "${core[@]}"
apply "BEGIN { core = 1 } $calls" "${core_library[@]}"
apply "$calls" "${backends[@]}"
apply "$sizes" "${sized[@]}"

# The top level is fixed.
top='^(CMakeLists\.txt|README\.md|LICENSE|CHANGELOG\.md|\.ci/run|\.clang-format|\.gitignore)$'
top+='|^(core|backends|cpu|kernels_cl|kernels_cuda|tests|ci)/'
while IFS= read -r file; do
    [ -n "$file" ] && fail "$file: not a place of the layout (see README.md)"
done < <(of . "$top")

# A README in a folder is a signpost, no manual.
while IFS= read -r file; do
    lines=$(wc -l <"$file")
    [ "$lines" -le 40 ] || fail "$file: $lines lines; a folder's README has 40 at most"
done < <(of '/README\.md$')

while IFS= read -r file; do
    grep -qE '[[:space:]]$' "$file" && fail "$file: white space at the end of a line"
done < <(of '(\.(c|h|cc|inc|md|sh|py|txt|cmake|yaml)|/run)$')
exit $status
