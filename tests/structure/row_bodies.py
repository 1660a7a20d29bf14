#!/usr/bin/env python3
"""Every row body of kernel/rows runs on emulated teams (tests/unit/emulated_*.cpp), is compiled for
CUDA (bench/gpu/bodies*), and is run and compared on a device by megacpp_gpu
(bench/gpu/rows_*.cpp). The kernels of the ops of op/NAME.hpp stand in kernel/NAME.hpp.

    row_bodies.py ROOT
"""

import re
import sys
from pathlib import Path

BODY = re.compile(r"^template <class Team> MEGACPP_HD void operator\(\)\(const Team&", re.MULTILINE)
OP = re.compile(r"^inline constexpr op_info (\w+)\s*\{", re.MULTILINE)
STRUCT = re.compile(r"^template <class[^>]*>\s+struct (\w+) \{", re.MULTILINE)


def bodies(header):
    """Names of the structs that have a call operator over a team."""
    text = re.sub(r"^ +", "", header.read_text(encoding="utf-8"), flags=re.MULTILINE)
    starts = [(match.start(), match.group(1)) for match in STRUCT.finditer(text)]
    for call in BODY.finditer(text):
        yield [name for start, name in starts if start < call.start()][-1]


def main():
    root = Path(sys.argv[1])
    unit, gpu = root / "tests/unit", root / "bench/gpu"
    places = {"tests/unit/emulated_*.cpp": sorted(unit.glob("emulated_*.cpp")),
              "bench/gpu/bodies*": sorted(gpu.glob("bodies*")),
              "bench/gpu/rows_*.cpp": sorted(gpu.glob("rows_*.cpp"))}
    found = [(header.name, name) for header in sorted((root / "include/megacpp/kernel/rows").glob("*.hpp"))
             for name in bodies(header)]
    problems = [] if found else ["no row body is found: is the pattern of row_bodies.py theirs?"]
    for place, sources in places.items():
        text = "".join(source.read_text(encoding="utf-8") for source in sources)
        problems += [f"{header}: {name} is not in {place}" for header, name in found
                     if not re.search(rf"\b{name}<", text)]
    ops = 0
    for header in sorted((root / "include/megacpp/op").glob("*.hpp")):
        kernels = root / "include/megacpp/kernel" / header.name
        text = kernels.read_text(encoding="utf-8") if kernels.is_file() else ""
        for op in OP.findall(header.read_text(encoding="utf-8")):
            ops += 1
            if f"kernel_of<&op::{op}>" not in text:
                problems.append(f"op/{header.name}: the kernel of {op} is not in kernel/{header.name}")
    problems += [] if ops else ["no op is found: is the pattern of row_bodies.py theirs?"]
    print("\n".join(problems) or f"{len(found)} row bodies, {ops} ops")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
