#!/usr/bin/env python3
"""What nvcc makes of the row bodies of programs for CUDA: registers, memory that a thread keeps beside
them, and accesses of 16 bytes are those of a committed table, nothing else is spilled, and a kernel for
rows that are aligned has such accesses and fewer narrow ones than the one that asks for addresses. A
kernel that keeps rows loads each as often as the table says.

    registers.py ROOT NVCC TABLE [--write] [-- NVCC-ARGUMENT...]

TABLE is for one version of nvcc, which its first line names: for another one only spills and stacks are
compared. --write makes the table anew.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

UNITS = ("-DMEGACPP_ELEMENT=float", "-DMEGACPP_ELEMENT=mc::bf16", "-DMEGACPP_SUM=float", "")
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
BODY = re.compile(r"void mc::rows_kernel<(\d+), (\d+), (true|false), (\d+), (.*)>\(long, .*\)$")
KERNEL = re.compile(r"^(?:\.visible |\.weak )?\.entry (\w+)\(.*?^}", re.MULTILINE | re.DOTALL)
BESIDE = re.compile(r"bytes (of stack|spilled)")
KEEPS = re.compile(r", keeping (\d+)$")
NARROW = re.compile(r"\b(?:ld|st)\.global\.(?:nc\.)?(?!v)[a-z]\d+\b")
LOADED = re.compile(r"\bld\.global\.(?:nc\.)?(?:v4\.[a-z]32|v2\.[a-z]64)")
WIDE = re.compile(r"\b(ld|st)\.(?:param\.|global\.)?[\w.]*v4\.[a-z]32|\b(ld|st)\.[\w.]*v2\.[a-z]64")


def facts_of(nvcc, root, arguments, unit, folder):
    """Of each kernel that stands for a body: its mangled name, registers, bytes of stack and of spills, and
    accesses of 16 bytes, all of them and those that load from global memory, and of fewer as PTX has them."""
    command = [nvcc, "-std=c++20", "--expt-relaxed-constexpr", "-O3", "-fmad=false",
               "-Xcompiler=-ffp-contract=off", f"-I{root}/include", "-Xptxas=-v", "-cubin", "--keep", "--keep-dir", str(folder),
               *arguments, *unit.split(), "-o", str(folder / "unit.cubin"), str(root / "src/cuda_bodies.cu")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    ptx = (folder / "cuda_bodies.ptx").read_text(encoding="utf-8")
    accesses = {kernel.group(1): [len(kind.findall(kernel.group(0))) for kind in (WIDE, NARROW, LOADED)]
                for kernel in KERNEL.finditer(ptx)}
    name, memory = "", (0, 0)
    for line in (done.stdout + done.stderr).splitlines():
        if match := ENTRY.search(line):
            name = match.group(1)
        elif match := MEMORY.search(line):
            memory = int(match.group(1)), int(match.group(2)) + int(match.group(3))
        elif (match := USED.search(line)) and "rows_kernel" in name:
            yield name, (int(match.group(1)), *memory, *accesses[name])


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    for name in done.stdout.splitlines():
        body = BODY.match(name)
        if body is None:
            raise SystemExit(f"no body is seen in {name}")
        lanes, groups, aligned, held, of = body.groups()
        yield of.strip().replace("mc::rows::", "").replace("mc::", "") + \
            f" on {lanes}" + f" x {groups}" * (groups != "1") + ", aligned" * (aligned == "true") + f", keeping {held}" * (held != "0")


def kept_by(body):
    """How many groups of a row a thread keeps; 0, too, of a row whose length is known, which it may keep by
    fewer."""
    held = KEEPS.search(body)
    return int(held.group(1)) if held and "fixed<" not in body else 0


def text_of(body, facts):
    registers, stack, spilled, wide, _, loaded = facts
    held = kept_by(body)
    again = f", {loaded // held} loads of each group" if held else ""
    return f"{body}: {registers} registers" + f", {wide} accesses of 16 bytes" * bool(wide) + again + \
        f", {stack} bytes of stack" * bool(stack) + f", {spilled} bytes spilled" * bool(spilled)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("nvcc")
    parser.add_argument("table", type=Path)
    parser.add_argument("--write", action="store_true")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:cut])
    arguments.of_nvcc = words[cut + 1:]
    version = re.search(r"release ([\d.]+)", subprocess.run([arguments.nvcc, "--version"], capture_output=True,
                                                            text=True, check=True).stdout).group(1)
    head = f"# nvcc {version} {' '.join(arguments.of_nvcc[:1])}"
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for unit in UNITS:
            kernels = dict(facts_of(arguments.nvcc, arguments.root, arguments.of_nvcc, unit, Path(folder)))
            found.update(zip(demangled(kernels), kernels.values()))
    if not found:
        raise SystemExit("ptxas tells of no body: is it called another way?")
    narrow = [body for body, facts in found.items() if "aligned" in body and facts[3] == 0]
    narrow += [body for body, facts in found.items() if body.endswith(" on 128, aligned")
               and facts[4] >= found[body.removesuffix(", aligned")][4]]
    if narrow:
        raise SystemExit("these say that their rows are aligned, and have no access of 16 bytes, or as many narrow "
                         "ones as those that are not: " + ", ".join(narrow))
    uneven = [body for body, facts in found.items() if (held := kept_by(body)) and
              (facts[5] == 0 or facts[5] % held != 0)]
    if uneven:
        raise SystemExit("these keep rows, and load some groups of 16 bytes more often than others: " +
                         ", ".join(uneven))
    lines = [text_of(body, facts) for body, facts in sorted(found.items())]
    if arguments.write:
        arguments.table.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
        return 0
    first, *known = arguments.table.read_text(encoding="utf-8").splitlines()
    if first == head:
        problems = [f"- {line}" for line in known if line not in lines] + \
            [f"+ {line}" for line in lines if line not in known]
    else:
        print(f"the table is of{first[1:]}, and this is{head[1:]}: registers are not compared")
        kept = {line.split(":")[0] for line in known if BESIDE.search(line)}
        problems = [line for line in lines if BESIDE.search(line) and line.split(":")[0] not in kept]
    print("\n".join(problems) or f"{len(found)} bodies as {arguments.table.name} has them")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
