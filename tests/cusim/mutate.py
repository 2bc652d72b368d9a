#!/usr/bin/env python3
"""How much of what may go wrong in a kernel do the suites find? Makes one mistake at a time in
kernels_cuda/ (a barrier, a shuffle, a lane of a mask, an atomic, a comparison taken out), builds that
for the simulator and runs the suites until one fails. Usage:

    tests/cusim/mutate.py BUILD [--sample N] [--seed S] [--only TEXT] [--list]

BUILD is a folder of a build with tests; N mistakes are drawn at random (all by default); TEXT picks
those whose file, kind or line has it. Prints each, the share that was found, and what survived. Exit
status 1 where one survived that survivors.txt does not explain; a sample only tells."""

import argparse
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KERNELS = os.path.join(ROOT, "kernels_cuda")
HANGS = 600  # seconds

# Ops of test_conform (parts of their names) that a file's kernels serve; none: all.
OPS = {
    "attention.cu": ["attn"],
    "embed.cu": ["embed"],
    "gemm.cu": ["gemm"],
    "loss.cu": ["cross_entropy", "topk", "loss"],
    "norm.cu": ["norm"],
    "optimizer.cu": ["sumsq", "update_scalars", "adamw"],
    "elementwise.cu": ["bias_act", "axpby", "gather", "gate", "scale", "pool", "colsum"],
}

# How a mutant is looked at, in this order: variant of the build, suite, settings. Most show in values
# or in the simulator's own reports; races only under ThreadSanitizer.
LOOKS = [
    ("sim", "conform", {}),
    ("sim", "conform", {"CUSIM_ORDER": "rev"}),
    ("sim-asan", "conform", {}),
    ("sim-tsan", "golden", {"CUSIM_RACE": "block"}),
    ("sim-tsan", "golden", {"CUSIM_RACE": "grid"}),
    ("sim-tsan", "conform", {"CUSIM_RACE": "block"}),
]


class Mutant:
    """One change: characters `start` to `end` of a file become `new`."""

    def __init__(self, path, kind, text, start, end, new):
        self.path, self.kind, self.start, self.end, self.new = path, kind, start, end, new
        self.file = os.path.basename(path)
        self.line = text.count("\n", 0, start) + 1
        self.old = text[start:end]
        self.code = text.split("\n")[self.line - 1].strip()
        self.source = text[:start] + new + text[end:]

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


def mutants_of(path):
    text = open(path, encoding="utf-8").read()
    code = without_comments(text)
    make = lambda kind, start, end, new: Mutant(path, kind, text, start, end, new)
    for m in re.finditer(r"__sync(threads|warp)\([^()]*\);", code):
        yield make("barrier", m.start(), m.end(), ";")
    for m in re.finditer(r"(__(?:shfl|ballot|any|all)\w*_sync)\(([^,()]+),", code):
        yield make("mask", m.start(2), m.end(2), "0x7fffffffu")
        if "shfl" in m[1]:
            end = condition_end(code, m.end(1))
            value = code[m.end() : end - 1].split(",")[0].strip()
            yield make("shuffle", m.start(), end, f"({value})")
    for m in re.finditer(r"atomicAdd\(&?([^,;]+), ([^;]+)\);", code):
        yield make("atomic", m.start(), m.end(), f"({m[1]}) += {m[2]};")
    for m in re.finditer(r"\b(if|while) \(", code):
        for start, end in terms(code, m.end(), condition_end(code, m.end() - 1) - 1):
            found = re.search(r" (<|<=|>|>=) ", code[start:end])
            if found is None or "constexpr" in code[m.start() - 12 : m.start()]:
                continue
            part = code[start:end]
            start += len(part) - len(part.lstrip())
            end -= len(part) - len(part.rstrip())
            # The bound is gone: what it lets through goes on as if it were inside.
            yield make("bound", start, end, "true" if found[1] in ("<", "<=") else "false")


def explained():
    """Lines of survivors.txt: file | kind | what is taken out | part of its line | why."""
    out = []
    for line in open(os.path.join(HERE, "survivors.txt"), encoding="utf-8"):
        if line.strip() and not line.startswith("#"):
            out.append(tuple(part.strip() for part in line.split(" | ")))
    return out


class Bench:
    """Builds and runs mutants out of a build folder, in a folder of its own there."""

    def __init__(self, build):
        self.build = os.path.abspath(build)
        self.work = os.path.join(self.build, "mutants")
        with open(os.path.join(self.build, "compile_commands.json"), encoding="utf-8") as f:
            self.commands = [c for c in json.load(f) if "bantam_cuda_sim" in c["command"]]
        shutil.rmtree(self.work, ignore_errors=True)
        os.makedirs(os.path.join(self.work, "kernels_cuda"))

    def compiled(self, variant, mutant):
        """Objects of the module of `variant`, the mutated ones new; None where it does not build."""
        objects, header = [], not mutant.file.endswith(".cu")
        mine = os.path.join(self.work, "kernels_cuda", mutant.file)
        for c in self.commands:
            if f"/bantam_cuda_{variant}.dir/" not in c["command"]:
                continue
            words = shlex.split(c["command"])
            if words[0].endswith("ccache"):
                words = words[1:]
            at = words.index("-o") + 1
            source = c["file"]
            if source == mutant.path or (header and source.endswith(".cu")):
                made = os.path.join(self.work, os.path.basename(words[at]))
                words[words.index(source)] = source if header else mine
                words[at] = made
                words.insert(1, "-I" + self.work)
                if subprocess.run(words, cwd=c["directory"], capture_output=True).returncode:
                    return None
                objects.append(made)
            else:
                objects.append(os.path.join(c["directory"], words[at]))
        return objects

    def link(self, variant, mutant):
        folder = os.path.join(self.work, variant)
        objects = self.compiled(variant, mutant)
        if objects is None:
            return None
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(os.path.join(self.build, "cu" + variant), folder, symlinks=True)
        flags = {"sim-asan": "-fsanitize=address,undefined", "sim-tsan": "-fsanitize=thread"}
        words = ["g++", "-shared", "-o", os.path.join(folder, "bantam_cuda.so")] + objects
        words += ["-L" + folder, "-lcusim", "-ldl", "-lm"]
        words += ["-Wl,-rpath,$ORIGIN", "-Wl,--disable-new-dtags"]
        subprocess.run(words + [flags[variant]] * (variant in flags), check=True)
        return folder

    def fails(self, variant, folder, suite, settings, ops):
        env = dict(os.environ, BANTAM_MODULES=folder, CK_FORK="no", ASAN_OPTIONS="detect_leaks=0")
        env.update(settings, BANTAM_TESTS=os.path.join(ROOT, "tests"), TSAN_OPTIONS="halt_on_error=1")
        if variant != "sim":
            name = "lib" + variant[-4:] + ".so"
            found = subprocess.run(["g++", "-print-file-name=" + name], capture_output=True, text=True)
            env["LD_PRELOAD"] = found.stdout.strip()
        words = [os.path.join(self.build, "tests", "test_" + suite), "cuda"]
        try:
            run = subprocess.run(words + (ops if suite == "conform" else []), env=env,
                                 capture_output=True, timeout=HANGS, check=False)
        except subprocess.TimeoutExpired:
            return "it hangs"
        if run.returncode == 0:
            return None
        said = (run.stdout + run.stderr).decode(errors="replace")
        found = re.search(r"cusim: .*|SUMMARY: .*|runtime error: .*|.*:F:.*", said)
        return found[0][:90] if found else f"exit status {run.returncode}"

    def hunt(self, mutant):
        """How it was found; None: it survives; "" : it does not build."""
        target = os.path.join(self.work, "kernels_cuda", mutant.file)
        with open(target, "w", encoding="utf-8") as f:
            f.write(mutant.source)
        built = {}
        try:
            for variant, suite, settings in LOOKS:
                if variant not in built:
                    built[variant] = self.link(variant, mutant)
                if built[variant] is None:
                    return ""
                ops = OPS.get(mutant.file, [])
                how = self.fails(variant, built[variant], suite, settings, ops)
                if how:
                    return f"{variant} {suite}: {how}"
            return None
        finally:
            os.remove(target)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("build")
    p.add_argument("--sample", type=int)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", default="")
    p.add_argument("--list", action="store_true")
    args = p.parse_args()
    files = sorted(f for f in os.listdir(KERNELS) if f.endswith((".cu", ".cuh")))
    all_of_them = [m for f in files for m in mutants_of(os.path.join(KERNELS, f))]
    chosen = [m for m in all_of_them if args.only in str(m)]
    if args.sample is not None:
        chosen = random.Random(args.seed).sample(chosen, min(args.sample, len(chosen)))
    if args.list:
        print("\n".join(map(str, chosen)))
        return 0
    bench, known = Bench(args.build), explained()
    found, survivors, unexplained, unbuilt = 0, 0, 0, 0
    for m in chosen:
        start, how = time.monotonic(), bench.hunt(m)
        reasons = [e[4] for e in known if m.is_explained_by(e)]
        if how is None:
            survivors += 1
            unexplained += not reasons
            verdict = f"SURVIVES ({reasons[0]})" if reasons else "SURVIVES"
        elif how == "":
            unbuilt += 1
            verdict = "does not build"
        else:
            found += 1
            verdict = "found: " + how
        print(f"{m}\n    {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
    tried = found + survivors
    print(f"mutants: {found} of {tried} found ({100 * found / max(1, tried):.0f} %), "
          f"{survivors} survived, {unexplained} of them unexplained; {unbuilt} did not build; "
          f"there are {len(all_of_them)}")
    return 1 if (unexplained and args.sample is None) or not tried + unbuilt else 0


if __name__ == "__main__":
    sys.exit(main())
