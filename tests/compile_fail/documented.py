#!/usr/bin/env python3
"""What docs/ says a compiler prints about a case is what it prints.

    documented.py ROOT [--compiler g++] [--include DIR]... [--flag=-std=c++20]...

A block under <!-- output: CASE COMPILER --> (tests/structure/snippets.py) holds pieces of the
compiler's output about the wrong half of tests/compile_fail/CASE.cpp, in their order, with a line
"..." between two that do not follow one another, and broken into lines at will.
"""

import argparse
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "structure"))

from diagnostics import add_compiler_arguments, compile_only
from snippets import blocks_of, pages_of


def is_named(name, compiler):
    """Whether a compiler such as /usr/bin/c++ or g++-12 is the one that a block names."""
    called = Path(compiler).name
    return ("clang" in called) == ("clang" in name)


def solid(text):
    return re.sub(r"\s+", "", text)


def problem(lines, output):
    said, rest = solid(output), 0
    for piece in "\n".join(lines).split("\n...\n"):
        at = said.find(solid(piece), rest)
        if at < 0:
            return f"the compiler does not print\n{piece}\nbut\n{output}"
        rest = at + len(solid(piece))
    return None


def main():
    parser = argparse.ArgumentParser(description="Checks the compiler's output in docs/.")
    add_compiler_arguments(parser)
    parser.add_argument("root", type=Path)
    arguments = parser.parse_args()
    outputs, count, failures = {}, 0, 0
    for page in pages_of(arguments.root):
        for block in blocks_of(page, (arguments.root / page).read_text(encoding="utf-8")):
            kind, _, what = (block.marker or "").partition(": ")
            if kind != "output" or not is_named(what.split()[1], arguments.compiler):
                continue
            case = what.split()[0]
            if case not in outputs:
                source = arguments.root / "tests/compile_fail" / f"{case}.cpp"
                outputs[case] = compile_only(arguments.compiler, source, arguments.include,
                                             ("MEGACPP_EXPECT_ERROR",), arguments.flag).output
            count += 1
            found = problem(block.lines, outputs[case])
            if found:
                failures += 1
                print(f"{page}:{block.number}: {found}")
    print(f"{count} blocks of {arguments.compiler}, {failures} problems")
    return 1 if failures or not count else 0


if __name__ == "__main__":
    sys.exit(main())
