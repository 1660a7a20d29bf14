#!/usr/bin/env python3
"""Checks sources that must not compile.

    check.py [--compiler g++] [--include DIR]... [--flag=-std=c++20]... [--wrong-only] CASE.cpp...
    check.py --self-test [--compiler g++]

A case is one source with

    // expect-error: MEGA-P004
    // expect-text: linear(x, up.weight)        (any number of these, or none)

at its top, '// expect-line' at the end of the line that the error must name (or nowhere), and the
wrong half under #ifdef MEGACPP_EXPECT_ERROR. Without that macro it must compile. With it, the
compiler must fail with exactly one error, which is a static assertion with that code, and its
output must contain each expected text (packs of characters are read as the names they spell) and
the line with the file's name. Exit status 0 only if every case does so. --wrong-only leaves out the
compilation without the macro, which one compiler has to do.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

from diagnostics import CODE, add_compiler_arguments, compile_only

EXPECT = re.compile(r"^// expect-error: (.*)$", re.MULTILINE)
TEXT = re.compile(r"^// expect-text: (.*)$", re.MULTILINE)
LINE = re.compile(r"// expect-line$")
# Line and file as they stand in the instantiation; nvcc writes the type of the line before it, and
# compilers that print texts that of the file.
NAMED_LINE = re.compile(r"\bat_line<(?:\(int\))?(\d+), (?:[\w:]+<\d+>\{\")?([\w.]+)\b")


def problem(case, arguments):
    """What is wrong with this case, with the compiler's output; None if nothing is."""
    text = Path(case).read_text(encoding="utf-8")
    expected = [code.strip() for code in EXPECT.findall(text)]
    if len(expected) != 1 or not CODE.fullmatch(expected[0]):
        return "the source needs exactly one line '// expect-error: MEGA-<P|S|C|M|T|B>nnn'"
    if not re.search(r"^#ifdef MEGACPP_EXPECT_ERROR$", text, re.MULTILINE):
        return "the source has no wrong half under '#ifdef MEGACPP_EXPECT_ERROR'"

    if not arguments.wrong_only:
        right = compile_only(arguments.compiler, case, arguments.include, (), arguments.flag)
        if right.status != 0:
            return f"the right half does not compile:\n{right.output}"
    wrong = compile_only(arguments.compiler, case, arguments.include, ("MEGACPP_EXPECT_ERROR",),
                         arguments.flag)
    if wrong.status == 0:
        return "the wrong half compiles"
    if len(wrong.errors) != 1:
        return f"{len(wrong.errors)} errors where one is expected:\n{wrong.output}"
    if wrong.assertion_code() != expected[0]:
        return f"the one error is not a static assertion with {expected[0]}:\n{wrong.output}"
    for wanted in TEXT.findall(text):
        if wanted.strip() not in wrong.names():
            return f"the output does not name '{wanted.strip()}':\n{wrong.output}"
    lines = {(str(number), Path(case).name)
             for number, line in enumerate(text.splitlines(), 1) if LINE.search(line)}
    if lines and not lines & set(NAMED_LINE.findall(wrong.names())):
        numbers = " or ".join(sorted(number for number, _ in lines))
        return f"the output does not name line {numbers} of the case:\n{wrong.output}"
    return None


# What the driver must accept, and what it must refuse: name, accepted, source.
NAMED = """
template <char...> struct in;
template <bool Ok, class Where> struct report { static_assert(Ok, "MEGA-P004 convert it"); };
"""
LINED = NAMED.replace("<char...> struct in", "<int, char...> struct at_line")
FILE = "'c', 'a', 's', 'e', '_', '{}', '.', 'c', 'p', 'p'"
SELF_TEST = [
    ("right", True, """// expect-error: MEGA-P004
template <bool Ok> struct report { static_assert(Ok, "MEGA-P004 convert it with to(x, axis, R)"); };
#ifdef MEGACPP_EXPECT_ERROR
template struct report<false>;
#endif
"""),
    ("right, with names", True, f"""// expect-error: MEGA-P004
// expect-text: (x, y)
{NAMED}
#ifdef MEGACPP_EXPECT_ERROR
template struct report<false, in<'(', 'x', ',', ' ', 'y', ')'>>;
#endif
"""),
    ("other names", False, f"""// expect-error: MEGA-P004
// expect-text: (x, z)
{NAMED}
#ifdef MEGACPP_EXPECT_ERROR
template struct report<false, in<'(', 'x', ',', ' ', 'y', ')'>>;
#endif
"""),
    ("right, with the line", True, f"""// expect-error: MEGA-P004
{LINED}
#ifdef MEGACPP_EXPECT_ERROR
template struct report<false, at_line<__LINE__, {FILE.format(3)}>>; // expect-line
#endif
"""),
    ("other line", False, f"""// expect-error: MEGA-P004
{LINED}
#ifdef MEGACPP_EXPECT_ERROR
template struct report<false, at_line<__LINE__ + 1, {FILE.format(4)}>>; // expect-line
#endif
"""),
    ("other file", False, f"""// expect-error: MEGA-P004
{LINED}
#ifdef MEGACPP_EXPECT_ERROR
template struct report<false, at_line<__LINE__, {FILE.format(0)}>>; // expect-line
#endif
"""),
    ("compiles", False, """// expect-error: MEGA-P004
#ifdef MEGACPP_EXPECT_ERROR
static_assert(true, "MEGA-P004");
#endif
"""),
    ("wrong half behind a macro that nothing defines", False, """// expect-error: MEGA-P004
#ifdef MEGACPP_EXPECT_ERROR
#ifdef MEGACPP_EXPECT_ERORR
static_assert(false, "MEGA-P004");
#endif
#endif
"""),
    ("wrong code", False, """// expect-error: MEGA-P004
#ifdef MEGACPP_EXPECT_ERROR
static_assert(false, "MEGA-P005 another mistake, not MEGA-P004");
#endif
"""),
    ("two errors", False, """// expect-error: MEGA-P004
#ifdef MEGACPP_EXPECT_ERROR
static_assert(false, "MEGA-P004");
static_assert(false, "MEGA-P004");
#endif
"""),
    ("the assertion and an error without code", False, """// expect-error: MEGA-P004
#ifdef MEGACPP_EXPECT_ERROR
static_assert(false, "MEGA-P004");
int f() { return undeclared; }
#endif
"""),
    ("the code in an error that is no assertion", False, """// expect-error: MEGA-P004
#ifdef MEGACPP_EXPECT_ERROR
#error MEGA-P004
#endif
"""),
    ("right half does not compile", False, """// expect-error: MEGA-P004
static_assert(false, "MEGA-P004");
#ifdef MEGACPP_EXPECT_ERROR
#endif
"""),
    ("no expected code", False, """
#ifdef MEGACPP_EXPECT_ERROR
static_assert(false, "MEGA-P004");
#endif
"""),
]


def self_test(arguments):
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, accepted, source) in enumerate(SELF_TEST):
            case = Path(folder) / f"case_{number}.cpp"
            case.write_text(source, encoding="utf-8")
            found = problem(case, arguments)
            if (found is None) != accepted:
                failures += 1
                said = "accepted" if found is None else f"refused: {found}"
                print(f"self-test: '{name}' was {said}")
    print(f"self-test of check.py with {arguments.compiler}: {len(SELF_TEST)} sources, "
          f"{failures} judged wrongly")
    return failures


def main():
    parser = argparse.ArgumentParser(description="Checks sources that must not compile.")
    add_compiler_arguments(parser)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--wrong-only", action="store_true", help="compile the wrong halves only")
    arguments = parser.parse_args()
    if arguments.self_test:
        return 1 if self_test(arguments) else 0
    if not arguments.cases:
        parser.error("no case given")
    failures = 0
    for case in arguments.cases:
        found = problem(case, arguments)
        failures += found is not None
        print(f"{case}: {'refused as expected' if found is None else 'FAILED: ' + found}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
