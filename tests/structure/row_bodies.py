#!/usr/bin/env python3
"""Every row body of kernel/rows runs on emulated teams (tests/unit/emulated_*.cpp), is compiled for
CUDA and for CPUs (the list kernel/rows/bodies.inc), and is run and compared on a device by megacpp_gpu
(bench/gpu/rows_*.cpp). No body stands elsewhere, and headers of bodies see exec/, vectors/, num/ and
each other alone. The kernels of the ops of op/NAME.hpp stand in kernel/NAME.hpp, and their ops in the list of
kernel/kernels.hpp.

    row_bodies.py ROOT
"""

import re
import sys
from pathlib import Path

BODY = re.compile(r"^template <class Team> MEGACPP_HD void operator\(\)\(const Team&", re.MULTILINE)
OP = re.compile(r"^inline constexpr op_info (\w+)\s*\{", re.MULTILINE)
STRUCT = re.compile(r"^(template <class[^>]*>\s+)?struct (\w+) \{", re.MULTILINE)
ANY_BODY = re.compile(r"operator\(\)\(const Team\b")
SEEN = re.compile(r"#include <megacpp/(?!exec/|vectors/|num/|kernel/rows/)([^>]+)>")
LIST = "include/megacpp/kernel/rows/bodies.inc"
# What names nothing in C++: a comment, a string, a character.
UNREAD = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.DOTALL)


def bodies(header):
    """The structs that have a call operator over a team: names, and whether each is a template."""
    text = re.sub(r"^ +", "", header.read_text(encoding="utf-8"), flags=re.MULTILINE)
    starts = [(match.start(), match.group(2), bool(match.group(1)))
              for match in STRUCT.finditer(text)]
    for call in BODY.finditer(text):
        yield [found[1:] for found in starts if found[0] < call.start()][-1]


def used(name, is_template, place, text):
    """Whether the text makes this body, or, of the list, has it compiled."""
    if place == LIST:
        return re.search(rf"\bMEGACPP_(?:SMALL_|SHAPED_)?BODY\(mc::rows::{name}{'<' if is_template else '[)]'}",
                         text)
    return re.search(rf"\brows::{name}{'<' if is_template else '{'}", text)


def main():
    root = Path(sys.argv[1])
    unit, gpu = root / "tests/unit", root / "bench/gpu"
    places = {"tests/unit/emulated_*.cpp": sorted(unit.glob("emulated_*.cpp")),
              LIST: [root / LIST],
              "bench/gpu/rows_*.cpp": sorted(gpu.glob("rows_*.cpp"))}
    found = [(header.name, *body)
             for header in sorted((root / "include/megacpp/kernel/rows").glob("*.hpp"))
             for body in bodies(header)]
    problems = [] if found else ["no row body is found: is the pattern of row_bodies.py theirs?"]
    for header in sorted((root / "include").rglob("*.hpp")):
        text = header.read_text(encoding="utf-8")
        if header.parent.name != "rows":
            problems += [f"{header}: a body stands outside of kernel/rows" for _ in ANY_BODY.findall(text)]
        else:
            problems += [f"{header}: sees {seen}" for seen in SEEN.findall(text)]
    for place, sources in places.items():
        text = "".join(UNREAD.sub(" ", source.read_text(encoding="utf-8")) for source in sources)
        problems += [f"{header}: {name} is not in {place}" for header, name, is_template in found
                     if not used(name, is_template, place, text)]
    listed = UNREAD.sub(" ", (root / "include/megacpp/kernel/kernels.hpp").read_text("utf-8"))
    ops = 0
    for header in sorted((root / "include/megacpp/op").glob("*.hpp")):
        kernels = root / "include/megacpp/kernel" / header.name
        text = kernels.read_text(encoding="utf-8") if kernels.is_file() else ""
        for op in OP.findall(header.read_text(encoding="utf-8")):
            ops += 1
            if f"kernel_of<&op::{op}>" not in text:
                problems.append(f"op/{header.name}: the kernel of {op} is not in kernel/{header.name}")
            if not re.search(rf"&op::{op}\b", listed):
                problems.append(f"op/{header.name}: {op} is not in kernel/kernels.hpp")
    problems += [] if ops else ["no op is found: is the pattern of row_bodies.py theirs?"]
    print("\n".join(problems) or f"{len(found)} row bodies, {ops} ops")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
