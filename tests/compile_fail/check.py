#!/usr/bin/env python3
"""Checks sources that must not compile.

    check.py [--compiler g++] [--include DIR]... [--flag=-std=c++20]... [--wrong-only | --together]
             CASE.cpp...
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

--together also does so, and compiles the wrong halves of all cases as one source, which takes about
a third of the time: what they include comes first, then each case in a namespace of its own behind
a mark that the compiler prints. Between a case's mark and the next one the output must be as above,
and outside there must be no error. A case cannot stand with others if the compiler gives its error
at the end of a source, or if it specialises a template of the library.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

from diagnostics import CODE, Outcome, add_compiler_arguments, compile_only, is_nvcc

TESTS = Path(__file__).resolve().parent.parent
sys.path.append(str(TESTS))

from unite import includes_of

MACRO = "MEGACPP_EXPECT_ERROR"
EXPECT = re.compile(r"^// expect-error: (.*)$", re.MULTILINE)
TEXT = re.compile(r"^// expect-text: (.*)$", re.MULTILINE)
LINE = re.compile(r"// expect-line$")
# Line and file as they stand in the instantiation; nvcc writes the type of the line before it, and
# compilers that print texts that of the file.
NAMED_LINE = re.compile(r"\bat_line<(?:\(int\))?(\d+), (?:[\w:]+<\d+>\{\")?([\w.]+)\b")
# A mark between cases that are compiled together, as compilers print it.
MARK = re.compile(r"^\S+: (?:note|warning): .*\bcase (\w+) begins\b.*\n", re.MULTILINE)
END = "that_ends_the_source"
ALL_ERRORS = "-fmax-errors=0"  # clang++ stops at 20 otherwise


def malformed(text):
    """What a case's source lacks; None if nothing."""
    expected = [code.strip() for code in EXPECT.findall(text)]
    if len(expected) != 1 or not CODE.fullmatch(expected[0]):
        return "the source needs exactly one line '// expect-error: MEGA-<P|S|C|M|T|B>nnn'"
    if not re.search(r"^#ifdef MEGACPP_EXPECT_ERROR$", text, re.MULTILINE):
        return "the source has no wrong half under '#ifdef MEGACPP_EXPECT_ERROR'"
    return None


def misjudged(case, text, wrong):
    """What is wrong with the errors of this case's wrong half; None if nothing is."""
    expected = EXPECT.search(text).group(1).strip()
    if not wrong.errors:
        return f"no error: the same as that of a case before it, or none at all:\n{wrong.output}"
    if len(wrong.errors) != 1:
        return f"{len(wrong.errors)} errors where one is expected:\n{wrong.output}"
    if wrong.assertion_code() != expected:
        return f"the one error is not a static assertion with {expected}:\n{wrong.output}"
    for wanted in TEXT.findall(text):
        if wanted.strip() not in wrong.names():
            return f"the output does not name '{wanted.strip()}':\n{wrong.output}"
    lines = {(str(number), case.name)
             for number, line in enumerate(text.splitlines(), 1) if LINE.search(line)}
    if lines and not lines & set(NAMED_LINE.findall(wrong.names())):
        numbers = " or ".join(sorted(number for number, _ in lines))
        return f"the output does not name line {numbers} of the case:\n{wrong.output}"
    return None


def problem(case, arguments):
    """What is wrong with this case alone, with the compiler's output; None if nothing is."""
    text = case.read_text(encoding="utf-8")
    found = malformed(text)
    if found:
        return found
    if not arguments.wrong_only:
        right = compile_only(arguments.compiler, case, arguments.include, (), arguments.flag)
        if right.status != 0:
            return f"the right half does not compile:\n{right.output}"
    wrong = compile_only(arguments.compiler, case, arguments.include, (MACRO,), arguments.flag)
    return "the wrong half compiles" if wrong.status == 0 else misjudged(case, text, wrong)


def mark(name):
    return f'#pragma message("case {name} begins")'


def written_together(cases):
    """One source of all cases, for the compiler to read their wrong halves."""
    lines = []
    for case in cases:
        lines += [line for line in includes_of(case) if line not in lines]
    for case in cases:
        lines += [mark(case.stem), f"namespace case_{case.stem} {{", f'#include "{case}"', "}"]
    return "\n".join([*lines, mark(END), ""])


def problems_together(cases, arguments):
    """What is wrong with each case among the others, and the errors outside of them, if any."""
    texts = {case: case.read_text(encoding="utf-8") for case in cases}
    problems = {case: malformed(text) for case, text in texts.items()}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "together.cpp"
        source.write_text(written_together(cases), encoding="utf-8")
        done = compile_only(arguments.compiler, source, [*arguments.include, TESTS], (MACRO,),
                            [*arguments.flag, ALL_ERRORS])
    before, *rest = MARK.split(done.output)
    said = dict(zip(rest[::2], rest[1::2]))
    outside = Outcome(done.status, before + said.pop(END, ""))
    for case, text in texts.items():
        if case.stem not in said:
            problems[case] = problems[case] or "the compiler stopped before it"
        else:
            wrong = Outcome(done.status, said[case.stem])
            problems[case] = problems[case] or misjudged(case, text, wrong)
    if outside.errors:
        problems[source] = f"errors outside of the cases:\n{outside.output}"
    return problems


# What the driver must accept of a case, alone and among others, and what it must refuse: name,
# accepted, source.
NAMED = """
template <char...> struct in;
template <bool Ok, class Where> struct report { static_assert(Ok, "MEGA-P004 convert it"); };
"""
LINED = NAMED.replace("<char...> struct in", "<int, char...> struct at_line")
FILE = "'c', 'a', 's', 'e', '.', 'c', 'p', 'p'"
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
template struct report<false, at_line<__LINE__, {FILE}>>; // expect-line
#endif
"""),
    ("other line", False, f"""// expect-error: MEGA-P004
{LINED}
#ifdef MEGACPP_EXPECT_ERROR
template struct report<false, at_line<__LINE__ + 1, {FILE}>>; // expect-line
#endif
"""),
    ("other file", False, f"""// expect-error: MEGA-P004
{LINED}
#ifdef MEGACPP_EXPECT_ERROR
template struct report<false, at_line<__LINE__, {FILE.replace("'s'", "'v'")}>>; // expect-line
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
    ("no expected code", False, """
#ifdef MEGACPP_EXPECT_ERROR
static_assert(false, "MEGA-P004");
#endif
"""),
]


RIGHT_HALF_WRONG = """// expect-error: MEGA-P004
static_assert(false, "MEGA-P004");
#ifdef MEGACPP_EXPECT_ERROR
#endif
"""
# A case that stands before and behind another one.
NEIGHBOUR = """// expect-error: MEGA-P004
struct neighbour {};
#ifdef MEGACPP_EXPECT_ERROR
static_assert(false, "MEGA-P004");
#endif
"""
# An error that is one and the same in two cases, so that the compiler gives it once.
SHARED = """#pragma once
template <bool Ok> struct shared_report { static_assert(Ok, "MEGA-P004"); };
"""
SHARING = """// expect-error: MEGA-P004
#include "shared.hpp"
#ifdef MEGACPP_EXPECT_ERROR
static_assert(sizeof(shared_report<false>) > 0);
#endif
"""
# The compiler gives the error of this case where the source ends.
AT_THE_END = """// expect-error: MEGA-P004
#ifdef MEGACPP_EXPECT_ERROR
template <bool Ok> int late() { static_assert(Ok, "MEGA-P004"); return 1; }
const int of_late = late<false>();
#endif
"""
AND_AT_THE_END = AT_THE_END.replace("template", "static_assert(false, \"MEGA-P004\");\ntemplate")


def self_test(arguments):
    judged = failures = 0

    def expect(name, accepted, found):
        nonlocal judged, failures
        judged += 1
        if (found is None) != accepted:
            failures += 1
            said = "accepted" if found is None else f"refused: {found}"
            print(f"self-test: '{name}' was {said}")

    with tempfile.TemporaryDirectory() as folder:

        def file(name, text):
            path = Path(folder).resolve() / name
            path.write_text(text, encoding="utf-8")
            return path

        def expect_together(name, accepted, **texts):
            cases = [file(f"{case}.cpp", text) for case, text in texts.items()]
            for path, found in problems_together(cases, arguments).items():
                expect(f"{path.stem} of '{name}', together", accepted.get(path.stem, False), found)

        for name, accepted, text in SELF_TEST:
            expect(name, accepted, problem(file("case.cpp", text), arguments))
        expect("right half", False, problem(file("case.cpp", RIGHT_HALF_WRONG), arguments))
        if not is_nvcc(arguments.compiler):
            beside = {"before": True, "behind": True}
            for name, accepted, text in SELF_TEST:
                expect_together(name, {**beside, "case": accepted},
                                before=NEIGHBOUR, case=text, behind=NEIGHBOUR)
            file("shared.hpp", SHARED)
            expect_together("one error", {"first": True}, first=SHARING, second=SHARING)
            expect_together("at the end", {"before": True}, before=NEIGHBOUR, case=AT_THE_END)
            both = file("both.cpp", AND_AT_THE_END)
            found = [text for text in problems_together([both], arguments).values() if text]
            expect("an error at the end beside the right one", False, found[0] if found else None)
            stops = '#include "missing.hpp"\n' + NEIGHBOUR
            expect_together("stops", {}, before=NEIGHBOUR, case=stops)
    print(f"self-test of check.py with {arguments.compiler}: {judged} verdicts, {failures} wrong")
    return failures


def main():
    parser = argparse.ArgumentParser(description="Checks sources that must not compile.")
    add_compiler_arguments(parser)
    parser.add_argument("cases", nargs="*", type=lambda path: Path(path).resolve())
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--wrong-only", action="store_true", help="compile the wrong halves only")
    which.add_argument("--together", action="store_true",
                       help="compile the wrong halves only, as one source")
    arguments = parser.parse_args()
    if arguments.self_test:
        return 1 if self_test(arguments) else 0
    if not arguments.cases:
        parser.error("no case given")
    if arguments.together:
        problems = problems_together(arguments.cases, arguments)
    else:
        problems = {case: problem(case, arguments) for case in arguments.cases}
    for case, found in problems.items():
        print(f"{case}: {'refused as expected' if found is None else 'FAILED: ' + found}")
    return 1 if any(problems.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
