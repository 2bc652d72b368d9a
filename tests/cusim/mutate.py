#!/usr/bin/env python3
"""How much of what may go wrong in a kernel do the suites find? Each mistake is one small change in
kernels_cuda/. A barrier, a shuffle, a lane of a mask or an atomic is taken out; a comparison no longer
counts (bound: of an if or while; loop: of a for that has several; compare: returned or stored), nor what
guards a value (guard); of two limits always the first or always the second holds. All are compiled into
one module for the simulator, each behind a switch that is off, so that nothing is built again for the
next. The ops whose conformance cases reach a mistake run with it on, cheapest first, until a case fails,
the simulator or a sanitizer complains, or time is up. Usage:

    tests/cusim/mutate.py BUILD [--sample] [--only TEXT]... [--share K/N] [--list]

BUILD is a folder of a build with tests; --sample takes a handful that values alone must show (minutes
against hours); TEXT picks those whose file, kind or line has it, given twice what has either; K/N is every
Nth from the Kth (1..N).
Prints each, the share that was found, and what survived. Exit status 1 where one survived that
survivors.txt does not explain. BANTAM_JOBS (2) says how many compilers run at once."""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KERNELS = os.path.join(ROOT, "kernels_cuda")

LIMITS = ("bound", "loop", "guard", "first", "second", "compare")
# Which mistakes are looked at, in this order: kinds (none: all), variant of the build, settings. Most
# show in values or in the simulator's own reports; a lost bound may need AddressSanitizer, a race shows
# only under ThreadSanitizer. What one look finds the next ones leave out.
LOOKS = [
    ((), "sim", {}),
    ((), "sim", {"CUSIM_ORDER": "rev"}),
    (LIMITS, "sim-asan", {}),
    (("barrier", "atomic", "bound", "loop"), "sim-tsan", {"CUSIM_RACE": "block"}),
    (("atomic", "bound", "loop"), "sim-tsan", {"CUSIM_RACE": "grid"}),
]

# One switch for each mistake. Without one switched on, which were passed is written to a file.
SWITCH = """#include <cstdio>
#include <cstdlib>
struct mutants_t {
    int on = 0;
    const char *path = std::getenv("MUTANTS_SEEN");
    unsigned char seen[COUNT + 1] = {};
    mutants_t() {
        if (const char *s = std::getenv("MUTANT")) on = std::atoi(s);
    }
    ~mutants_t() {
        std::FILE *f = path ? std::fopen(path, "w") : nullptr;
        for (int i = 1; f && i <= COUNT; i++)
            if (seen[i]) std::fprintf(f, "%d\\n", i);
        if (f) std::fclose(f);
    }
    bool is(int n) {
        if (path) seen[n] = 1;
        return n == on;
    }
};
inline mutants_t mutants;
#define MUTANT(n) (mutants.is(n))
"""

class Mutant:
    """One change, behind a switch: `before` at `start` and `after` at `end` of a file; @ is its number."""

    def __init__(self, path, kind, text, start, end, before, after):
        self.kind, self.start, self.end, self.before, self.after = kind, start, end, before, after
        self.file = os.path.basename(path)
        self.line = text.count("\n", 0, start) + 1
        self.old = text[start:end]
        self.code = text.split("\n")[self.line - 1].strip()
        self.number = 0

    def __str__(self):
        return f"{self.file}:{self.line}: {self.kind}: {self.old!r} in {self.code!r}"

    def is_explained_by(self, entry):
        return entry[:3] == (self.file, self.kind, self.old) and entry[3] in self.code


def without_comments(text):
    """The same length, comments blank."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)


def condition_end(text, start):
    """Behind the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    return len(text)


def terms(text, start, end):
    """Parts of a condition between && and ||, outside of parentheses: (start, end)."""
    depth, begin = 0, start
    for i in range(start, end):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0 and text[i : i + 2] in ("&&", "||"):
            yield begin, i
            begin = i + 2
    yield begin, end


def stop_of(text, start, stops):
    """Where the first of `stops` stands outside of brackets, or the bracket that closes around it."""
    depth = 0
    for i in range(start, len(text)):
        if depth == 0 and text[i] in stops + ")]}":
            return i
        depth += (text[i] in "([{") - (text[i] in ")]}")
    return len(text)


def condition_start(text, end):
    """Where the condition of a ternary starts whose question mark is at `end`."""
    depth = 0
    for i in range(end - 1, -1, -1):
        depth += (text[i] in ")]") - (text[i] in "([")
        stored = text[i] == "=" and text[i - 1] not in "=<>!" and text[i + 1] != "="
        if depth < 0 or (depth == 0 and (text[i] in ",;{}?:" or stored)):
            return i + 1
        if depth == 0 and text.startswith("return ", i):
            return i + len("return ")
    return 0


def stripped(text, start, end):
    """The same part without blanks around it."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())


NEUTRAL = re.compile(r"(\([\w *]+\))?(0|0\.0f|-1|-INFINITY|NULL|none|zero4\(\))")


def lost_ternaries(text):
    """Of conditions that guard a value, or take the lesser of two, which then is always the first or the
    second: (kind, start, end, what is there instead)."""
    for m in re.finditer(r"\?", text):
        start, colon = condition_start(text, m.start()), stop_of(text, m.end(), ":")
        one = text[m.end() : colon].strip()
        other = text[colon + 1 : stop_of(text, colon + 1, ",;?")].strip()
        parts = list(terms(text, start, m.start()))
        least = re.fullmatch(r"(.+) <=? (.+)", text[parts[-1][0] : parts[-1][1]].strip(), re.S)
        if NEUTRAL.fullmatch(one):
            yield "guard", start, m.start(), "false"
        elif NEUTRAL.fullmatch(other):
            for part in parts:
                yield "guard", *part, "true"
        elif least and one == least[1] and other.startswith(least[2]):
            for part in parts:
                yield "first", *part, "true"
            yield "second", *parts[-1], "false"


def lost_terms(text, start, end):
    """Of a value that is true or false, each comparison and each group in parentheses: (start, end, what
    is there instead, as if it were not)."""
    parts = list(terms(text, start, end))
    either = len(parts) > 1 and text[parts[0][1]] == "|"
    for part in parts:
        first, last = stripped(text, *part)
        found = re.search(r" (<|<=|>|>=|==|!=) ", text[first:last])
        if found is None:
            continue
        lone = "false" if found[1] in (">", ">=", "!=") else "true"
        yield first, last, ("false" if either else "true") if len(parts) > 1 else lone
        if text[first] == "(" and condition_end(text, first) == last:
            yield from lost_terms(text, first + 1, last - 1)


def stored(text):
    """What is returned, or stored in a variable of type bool or int: (start, end)."""
    for m in re.finditer(r"\breturn |\b(?:bool|int) (?=\w+ =)", text):
        at = m.end()
        while True:
            end = stop_of(text, at, ",;")
            start = at if m[0].startswith("return") else text.find("=", at, end) + 1
            if start > 0 and "?" not in text[start:end]:
                yield start, end
            if text[end] != ",":
                break
            at = end + 1


def mutants_of(path):
    text = open(path, encoding="utf-8").read()
    code = without_comments(text)
    make = lambda kind, *change: Mutant(path, kind, text, *change)
    for m in re.finditer(r"__sync(threads|warp)\([^()]*\);", code):
        yield make("barrier", m.start(), m.end(), "if (!MUTANT(@)) ", "")
    for m in re.finditer(r"(__(?:shfl|ballot|any|all)\w*_sync)\(([^,()]+),", code):
        yield make("mask", m.start(2), m.end(2), "(MUTANT(@) ? 0x7fffffffu : ", ")")
        if "shfl" in m[1]:
            end = condition_end(code, m.end(1))
            value = code[m.end() : end - 1].split(",")[0].strip()
            yield make("shuffle", m.start(), end, f"(MUTANT(@) ? ({value}) : ", ")")
    for m in re.finditer(r"atomicAdd\(&?([^,;]+), ([^;]+)\);", code):
        yield make("atomic", m.start(), m.end(), f"if (MUTANT(@)) ({m[1]}) += {m[2]}; else ", "")
    for m in re.finditer(r"\b(if|while) \(", code):
        for start, end in terms(code, m.end(), condition_end(code, m.end() - 1) - 1):
            found = re.search(r" (<|<=|>|>=) ", code[start:end])
            if found is None or "constexpr" in code[m.start() - 12 : m.start()]:
                continue
            start, end = stripped(code, start, end)
            # The bound is gone: what it lets through goes on as if it were inside.
            gone = "true" if found[1] in ("<", "<=") else "false"
            yield make("bound", start, end, f"(MUTANT(@) ? {gone} : (", "))")
    lost = list(lost_ternaries(code))
    for m in re.finditer(r"\bfor \(", code):
        start = stop_of(code, m.end(), ";") + 1
        parts = list(terms(code, start, stop_of(code, start, ";")))
        if len(parts) > 1:
            lost += [("loop", *p, "true") for p in parts if re.search(r" [<>]=? ", code[slice(*p)])]
    for start, end in stored(code):
        lost += [("compare", *term) for term in lost_terms(code, start, end)]
    for kind, start, end, gone in lost:
        start, end = stripped(code, start, end)
        switch = {"true": "(MUTANT(@) || (", "false": "(!MUTANT(@) && ("}[gone]
        yield make(kind, start, end, switch, "))")


def explained():
    """Lines of survivors.txt: file | kind | what is taken out | part of its line | why."""
    out = []
    for line in open(os.path.join(HERE, "survivors.txt"), encoding="utf-8"):
        if line.strip() and not line.startswith("#"):
            out.append(tuple(part.strip() for part in line.split(" | ")))
    return out


def switched(text, mutants):
    """The text with all changes, lines as they were. What ends somewhere comes before what starts
    there; of changes that start together the longest comes first."""
    added = []
    for m in mutants:
        added.append((m.end, 0, m.start, m.after))
        added.append((m.start, 1, -m.end, m.before.replace("@", str(m.number))))
    out, last = [], 0
    for at, _, _, what in sorted(added):
        out += [text[last:at], what]
        last = at
    return "".join(out + [text[last:]])


class Bench:
    """Builds the modules with all mistakes, in a folder of their own in a build folder; runs them."""

    def __init__(self, build, files, mutants):
        self.build = os.path.abspath(build)
        self.work = os.path.join(self.build, "mutants")
        with open(os.path.join(self.build, "compile_commands.json"), encoding="utf-8") as f:
            self.commands = [c for c in json.load(f) if "/bantam_cuda_sim" in c["command"]]
        self.folders = {}
        shutil.rmtree(self.work, ignore_errors=True)
        os.makedirs(os.path.join(self.work, "kernels_cuda"))
        for name in files:
            with open(os.path.join(KERNELS, name), encoding="utf-8") as f:
                text = switched(f.read(), [m for m in mutants if m.file == name])
            with open(os.path.join(self.work, "kernels_cuda", name), "w", encoding="utf-8") as f:
                f.write(text)
        with open(os.path.join(self.work, "switch.h"), "w", encoding="utf-8") as f:
            f.write(SWITCH.replace("COUNT", str(len(mutants))))

    def compile(self, command):
        """One object of the module: kernels from here, the host's part as the build has it."""
        words = shlex.split(command["command"])
        words = words[1:] if words[0].endswith("ccache") else words
        at, source = words.index("-o") + 1, command["file"]
        if not source.endswith(".cu"):
            return os.path.join(command["directory"], words[at])
        words[at] = os.path.join(self.work, words[at].replace("/", "_"))
        words[words.index(source)] = os.path.join(self.work, "kernels_cuda", os.path.basename(source))
        # Of undefined behaviour only loads and stores that are not aligned, which this machine may do:
        # the rest takes the compiler far longer, and is left to the suites.
        words = [re.sub(r"^(-fsanitize=address),.*", r"\1", w) for w in words]
        words[1:1] = ["-I" + self.work, "-include", os.path.join(self.work, "switch.h")]
        words += ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]
        subprocess.run(words + ["-w"], cwd=command["directory"], check=True)
        return words[words.index("-o") + 1]

    def folder(self, variant):
        """Where the module of a variant lies; it is built when it is first wanted."""
        if variant in self.folders:
            return self.folders[variant]
        start, folder = time.monotonic(), os.path.join(self.work, variant)
        mine = [c for c in self.commands if f"/bantam_cuda_{variant}.dir/" in c["command"]]
        mine.sort(key=lambda c: -os.path.getsize(c["file"]))
        with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("BANTAM_JOBS", "2"))) as pool:
            objects = list(pool.map(self.compile, mine))
        shutil.copytree(os.path.join(self.build, "cu" + variant), folder, symlinks=True)
        flags = {"sim-asan": ["-fsanitize=address"], "sim-tsan": ["-fsanitize=thread"]}
        words = ["g++", "-shared", "-o", os.path.join(folder, "bantam_cuda.so")] + objects
        words += ["-L" + folder, "-lcusim", "-ldl", "-lm"]
        words += ["-Wl,-rpath,$ORIGIN", "-Wl,--disable-new-dtags"] + flags.get(variant, [])
        subprocess.run(words, check=True)
        print(f"built for {variant} in {time.monotonic() - start:.0f} s", flush=True)
        self.folders[variant] = folder
        return folder

    def fails(self, variant, settings, op, seconds):
        """Conformance of an op: what is wrong; None where nothing is."""
        folder = self.folder(variant)
        env = dict(os.environ, CK_FORK="no", BANTAM_TESTS=os.path.join(ROOT, "tests"))
        env.update(settings, BANTAM_MODULES=folder, LD_LIBRARY_PATH=folder)
        env.update(ASAN_OPTIONS="detect_leaks=0", TSAN_OPTIONS="halt_on_error=1")
        if variant != "sim":
            name = "lib" + variant[-4:] + ".so"
            found = subprocess.run(["g++", "-print-file-name=" + name], capture_output=True, text=True)
            env["LD_PRELOAD"] = found.stdout.strip()
        words = [os.path.join(self.build, "tests", "test_conform"), "cuda", "^" + op]
        try:
            run = subprocess.run(words, env=env, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return f"{op} does not end"
        if run.returncode == 0:
            return None
        said = (run.stdout + run.stderr).decode(errors="replace")
        found = re.search(r"cusim: .*|SUMMARY: .*|.*:F:.*", said)
        return f"{op}: " + (found[0][:90] if found else f"exit status {run.returncode}")

    def cover(self):
        """Which mistakes each op's cases reach, and how long the op takes: [(seconds, op, numbers)]."""
        with open(os.path.join(ROOT, "core", "ops", "op_list.inc"), encoding="utf-8") as f:
            ops = ["known"] + re.findall(r"^BT_OP\((\w+), [A-Z]", f.read(), re.M)
        seen, out = os.path.join(self.work, "seen"), []
        self.folder("sim")  # before anything is timed
        for op in dict.fromkeys(ops):
            start = time.monotonic()
            if self.fails("sim", {"MUTANTS_SEEN": seen}, op, 1000):
                sys.exit(f"mutate.py: {op} fails as it is")
            with open(seen, encoding="utf-8") as f:
                out.append((time.monotonic() - start, op, {int(line) for line in f}))
        return sorted(out, key=lambda x: x[0])

    def hunt(self, mutant, reached, variant, settings):
        """What one look says of a mistake; None where it survives."""
        slower = 1 if variant == "sim" else 10
        for seconds, op, numbers in reached:
            if mutant.number not in numbers:
                continue
            limit = slower * (60 + 10 * seconds)
            how = self.fails(variant, dict(settings, MUTANT=str(mutant.number)), op, limit)
            if how:
                return how
        return None

    def looks(self, chosen, reached, looks):
        """All looks at all mistakes; those that survive."""
        left = chosen
        for kinds, variant, settings in looks:
            name = " ".join([variant] + [f"{k}={v}" for k, v in settings.items()])
            survivors = [m for m in left if kinds and m.kind not in kinds]
            for m in left:
                if m in survivors:
                    continue
                start, how = time.monotonic(), self.hunt(m, reached, variant, settings)
                if how is None:
                    survivors.append(m)
                else:
                    print(f"{m}\n    found: {name}, {how} ({time.monotonic() - start:.0f} s)", flush=True)
            left = survivors
            print(f"{len(chosen) - len(left)} of {len(chosen)} found after {name}", flush=True)
        return left


# A handful that values show at once: file, kind, part of its line, where it shows.
SAMPLE = [
    ("attention.cu", "barrier", "__syncthreads", "known"),
    ("attention.cu", "mask", "x += __shfl", "known"),
    ("attention.cu", "shuffle", "x += __shfl", "known"),
    ("attention.cu", "bound", "r < rows", "known"),
    ("common.cuh", "barrier", "__syncthreads", "known"),
    ("common.cuh", "shuffle", "fmaxf", "known"),
    ("gemm.cu", "barrier", "__syncthreads", "gemm"),
    ("elementwise.cu", "barrier", "__syncthreads", "bias_act_bwd"),
]


def chosen_of(mutants, args):
    """Those that the options pick."""
    if args.sample:
        return [next(m for m in mutants if (m.file, m.kind) == s[:2] and s[2] in m.code) for s in SAMPLE]
    first, step = map(int, args.share.split("/"))
    picked = [m for m in mutants if not args.only or any(text in str(m) for text in args.only)]
    return picked[first - 1 :: step]


def report(mutants, chosen, left, reached):
    """Says what survived, and the share; the exit status."""
    known, unexplained = explained(), 0
    for m in left:
        reasons = [e[4] for e in known if m.is_explained_by(e)]
        unexplained += not reasons
        if not any(m.number in numbers for _, _, numbers in reached):
            reasons.append("no case reaches it")
        print(f"{m}\n    SURVIVES: {'; '.join(reasons) or 'nobody knows why'}")
    found = len(chosen) - len(left)
    print(f"mutants: {found} of {len(chosen)} found ({100 * found / max(1, len(chosen)):.0f} %), "
          f"{len(left)} survived, {unexplained} of them unexplained; there are {len(mutants)}")
    return 1 if unexplained or not chosen else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("build")
    p.add_argument("--sample", action="store_true")
    p.add_argument("--only", action="append", default=[])
    p.add_argument("--share", default="1/1")
    p.add_argument("--list", action="store_true")
    args = p.parse_args()
    files = sorted(f for f in os.listdir(KERNELS) if f.endswith((".cu", ".cuh")))
    mutants = [m for f in files for m in mutants_of(os.path.join(KERNELS, f))]
    for number, m in enumerate(mutants, 1):
        m.number = number
    chosen = chosen_of(mutants, args)
    if args.list:
        print("\n".join(map(str, chosen)))
        return 0
    bench = Bench(args.build, files, mutants)
    if args.sample:
        reached = [(5, s[3], {m.number}) for s, m in zip(SAMPLE, chosen)]
        left = bench.looks(chosen, reached, LOOKS[:1])
    else:
        reached = bench.cover()
        left = bench.looks(chosen, reached, LOOKS)
    return report(mutants, chosen, left, reached)


if __name__ == "__main__":
    sys.exit(main())
