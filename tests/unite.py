#!/usr/bin/env python3
"""Writes one source that includes those of many tests, each in a suite of its own.

    unite.py OUTPUT MODULE SUITE=SOURCE...

Paths are relative to that of this script, which the compiler has to search.

The library and Boost.Test are then compiled once for all of them. A suite is a namespace, so names
of different tests do not meet; whatever a test includes is included outside first. SOURCE must
compile in a namespace: it defines nothing in another one.
"""

import os
import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'#include ([<"])([^>"]+)[>"]')
FRAMEWORK = "#include <boost/test/unit_test.hpp>"


HERE = Path(__file__).resolve().parent


def includes_of(source):
    for line in source.read_text(encoding="utf-8").splitlines():
        match = INCLUDE.match(line)
        if match:
            beside = source.parent / match.group(2)
            if match.group(1) == '"' and beside.exists():
                yield f'#include "{os.path.relpath(beside.resolve(), HERE)}"'
            else:
                yield match.group(0)


def main():
    output, module, *tests = sys.argv[1:]
    tests = [(suite, Path(source)) for suite, source in (test.split("=", 1) for test in tests)]
    lines = [f"#define BOOST_TEST_MODULE {module}", FRAMEWORK]
    for _, source in tests:
        lines += [line for line in includes_of(source) if line not in lines]
    for suite, source in tests:
        lines += ["#undef BOOST_TEST_MODULE", f"BOOST_AUTO_TEST_SUITE({suite})",
                  f'#include "{source.resolve().relative_to(HERE)}"', "BOOST_AUTO_TEST_SUITE_END()"]
    text = "\n".join(lines) + "\n"
    if not Path(output).exists() or Path(output).read_text(encoding="utf-8") != text:
        Path(output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
