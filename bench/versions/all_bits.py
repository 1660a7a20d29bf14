#!/usr/bin/env python3
"""Two commits: whether training leaves the same bits in every case of all_bits.cpp.

    all_bits.py OLD [NEW] [--case TEXT]

OLD and NEW are commits, or folders with sources; NEW is by default this checkout as it is. Each one's
own bench/versions/all_bits.cpp is compiled by c++ (or $CXX) and run. A case whose checksums differ is
printed with how far: what a run tells relatively, masters and moments as a share of the largest one. A
case that one commit lacks is named; bf16 products are left out where the processor has none. TEXT:
only cases whose names contain it. The exit code is 1 if anything differs or is missing.
"""

import argparse
import io
import math
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path


ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"(.*): ((?: ?\w+ [0-9a-f]{16})+)")


def run(command):
    """What a command prints; nobody sees what it says beside, unless it fails."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    except OSError as e:
        raise SystemExit(f"{command[0]} cannot be run ({e.strerror}): name another compiler by CXX")
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def sources(what, folder):
    """The folder of a commit's sources, unpacked here, or the one that was named."""
    if Path(what).is_dir():
        return Path(what).resolve()
    done = subprocess.run(["git", "-C", str(ROOT), "archive", what], capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"{what} is neither a folder nor a commit: {done.stderr.decode().strip()}")
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
        packed.extractall(folder)
    return folder


def built(source, folder):
    """What compiles source's program, at work, and the program."""
    folder.mkdir()
    cpp = source / "bench/versions/all_bits.cpp"
    if not cpp.exists():
        raise SystemExit(f"{source} has no bench/versions/all_bits.cpp: name a later commit")
    compiler = os.environ.get("CXX", "c++")
    flags = ["-std=c++20", "-DNDEBUG", "-march=native", "-ffp-contract=off", "-DMEGACPP_WITH_ONEDNN=1",
             f"-I{source / 'include'}", f"-I{source / 'tests'}", "-isystem", "/usr/include/eigen3"]
    objects = [folder / "kernels.o", folder / "all_bits.o"]
    # Kernels as tests have them; the rest only builds graphs.
    commands = [[compiler, "-O2", *flags, "-c", source / "tests/kernels.cpp", "-o", objects[0]],
                [compiler, "-O1", *flags, "-c", cpp, "-o", objects[1]]]
    for command in commands:
        run(command)
    run([compiler, *objects, "-o", folder / "all_bits", "-lfmt", "-ldnnl", "-pthread"])
    return folder / "all_bits"


def lines_of(program, folder, text):
    """{case: its checksums}, and how long the program ran; the numbers of each are in the folder."""
    folder.mkdir()
    began = time.monotonic()
    found = {}
    for line in run([program, folder, *text]).splitlines():
        if line.startswith("left out: "):
            print(line)
            continue
        match = LINE.fullmatch(line)
        if match is None:
            raise SystemExit(f"{program} printed what is no case and its checksums: {line}")
        found[match[1]] = match[2]
    return found, time.monotonic() - began


def read(file):
    """The four lists of a case, each as the bytes of its numbers."""
    data, at, lists = file.read_bytes(), 0, []
    for _ in range(4):
        end = at + 8 + 8 * int(struct.unpack_from("=d", data, at)[0])
        lists.append([data[i:i + 8] for i in range(at + 8, end, 8)])
        at = end
    return lists


def how_far(old, new):
    said = []
    names = ("numbers that it tells", "masters", "first moments", "second moments")
    for name, a, b in zip(names, read(old), read(new)):
        if len(a) != len(b):
            said.append(f"{name}: {len(a)} became {len(b)}")
            continue
        apart = [(struct.unpack("=d", x)[0], struct.unpack("=d", y)[0]) for x, y in zip(a, b) if x != y]
        if not apart:
            continue
        finite = [abs(x) for x, in map(struct.Struct("=d").unpack, a) if math.isfinite(x)]
        largest = max(finite, default=0) or 1
        most = max((abs(x - y) / ((abs(x) or largest) if name == names[0] else largest)
                    for x, y in apart if math.isfinite(x) and math.isfinite(y)), default=math.nan)
        said.append(f"{len(apart)} of {len(a)} {name} differ, by at most {most:.1e}")
    return "; ".join(said) or "only weights as they are stored differ"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default=str(ROOT))
    parser.add_argument("--case", default="", metavar="TEXT")
    arguments = parser.parse_args()
    text = [arguments.case] if arguments.case else []
    with tempfile.TemporaryDirectory() as temporary:
        at = Path(temporary)
        found = []
        for side in ("old", "new"):
            source = sources(getattr(arguments, side), at / f"{side}-sources")
            program = built(source, at / f"{side}-build")
            lines, seconds = lines_of(program, at / side, text)
            print(f"{side}: {len(lines)} cases in {seconds:.0f} s", flush=True)
            found.append(lines)
        old, new = found
        wrong = 0
        cases = {**old, **new}
        if not cases:
            raise SystemExit(f"no case has \"{arguments.case}\" in its name: give a shorter text")
        for case in cases:
            if case not in old or case not in new:
                print(f"{case}: the {'old' if case not in old else 'new'} commit has no such case")
                wrong += 1
            elif old[case] != new[case]:
                print(f"{case}: {how_far(at / 'old' / case, at / 'new' / case)}")
                wrong += 1
        print(f"{len(cases)} cases, {wrong or 'none'} of which differ or are missing")
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
