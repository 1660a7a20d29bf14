#!/usr/bin/env python3
"""Two commits: whether training leaves the same bits in every case of all_bits.cpp.

    all_bits.py OLD [NEW] [--case WORDS]

OLD and NEW are commits, or folders with sources; NEW is by default this checkout as it is. Each one's
own bench/versions/all_bits.cpp is compiled by c++ (or $CXX) and run. A case whose checksums differ is
printed with how far: losses and norms relatively, weights and moments as a share of the largest one. Of
cases that one commit lacks it is told. WORDS: cases alone whose names have them. The exit code is 1 if
anything differs.
"""

import argparse
import io
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from programs import run  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


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
    # Kernels as tests have them; graphs alone are made by the rest.
    commands = [[compiler, "-O2", *flags, "-c", source / "tests/kernels.cpp", "-o", objects[0]],
                [compiler, "-O1", *flags, "-c", cpp, "-o", objects[1]]]
    for command in commands:
        run(command)
    run([compiler, *objects, "-o", folder / "all_bits", "-lfmt", "-ldnnl", "-pthread"])
    return folder / "all_bits"


def lines_of(program, folder, words):
    """{case: its line}; the numbers of each are in files of the folder."""
    folder.mkdir()
    began = time.monotonic()
    lines = dict(line.split(": ", 1) for line in run([program, folder, *words]).splitlines())
    return lines, time.monotonic() - began


def read(file):
    """Losses and norms, weights, moments."""
    data = file.read_bytes()
    x = struct.unpack(f"<{len(data) // 8}d", data)
    numbers, weights = int(x[0]), int(x[1 + int(x[0])])
    begin = numbers + 2
    return x[1:1 + numbers], x[begin:begin + weights], x[begin + weights:]


def how_far(old, new):
    said = []
    for name, a, b, relative in zip(("losses and norms", "weights", "moments"), read(old), read(new),
                                    (True, False, False)):
        if len(a) != len(b):
            said.append(f"{name}: {len(a)} became {len(b)}")
        elif (count := sum(x != y for x, y in zip(a, b))) > 0:
            largest = max(map(abs, a)) or 1
            most = max(abs(x - y) / ((abs(x) or largest) if relative else largest) for x, y in zip(a, b))
            said.append(f"{count} of {len(a)} {name} differ, by at most {most:.1e}")
    return "; ".join(said) or "no number differs, but a sign of zero or what a NaN holds"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default=str(ROOT))
    parser.add_argument("--case", default="", metavar="WORDS")
    arguments = parser.parse_args()
    words = [arguments.case] if arguments.case else []
    with tempfile.TemporaryDirectory() as temporary:
        at = Path(temporary)
        found = []
        for side in ("old", "new"):
            source = sources(getattr(arguments, side), at / f"{side}-sources")
            program = built(source, at / f"{side}-build")
            lines, seconds = lines_of(program, at / side, words)
            print(f"{side}: {len(lines)} cases in {seconds:.0f} s", flush=True)
            found.append(lines)
        old, new = found
        wrong = 0
        for case in {**old, **new}:
            if case not in old or case not in new:
                print(f"{case}: the {'old' if case not in old else 'new'} commit has no such case")
                wrong += 1
            elif old[case] != new[case]:
                print(f"{case}: {how_far(at / 'old' / case, at / 'new' / case)}")
                wrong += 1
        print(f"{len(old)} cases, {wrong or 'none'} of which differ")
        return 1 if wrong or not old else 0


if __name__ == "__main__":
    sys.exit(main())
