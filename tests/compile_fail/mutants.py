#!/usr/bin/env python3
"""Mutants of layers and models: no redistribution may be forgotten or name another axis.

    mutants.py PROBE.cpp --tree include [--allow FILE] [--compiler g++] [--include DIR]...
               [--flag=F]... [--jobs N] [--list] [--side-by-side]
    mutants.py --self-test

For every call to(value, axis, place) in the headers of TREE/megacpp/nn and TREE/megacpp/model,
copies of that header are made without the redistribution (its first argument remains) and with each
other axis of the same mesh. PROBE is then compiled with the copy in front of the tree. A line

    // probe-layouts: N

in PROBE says that it is to be compiled for MEGACPP_PROBE_LAYOUT = 0 ... N - 1, one layout each,
until one refuses. Each mutant must be refused, by exactly one error, a static assertion with a
MEGA- code.

With --side-by-side all mutants stand in one tree, chosen by a variable, and PROBE is compiled once,
with MEGACPP_PROBE_MUTANTS and MEGACPP_PROBE_LAYOUTS, as a program that prints for the tree as it is
and for each mutant 1 if a layout refuses it, else 0: the same functions, run instead of evaluated by
the compiler, in a twentieth of the time. What the error looks like is then not seen.

What is rightly equivalent stands in the file given by --allow, a line each:

    nn/mlp.hpp: to(x, axis::tp, R): remove | why this changes nothing

An entry that matches no survivor is an error too.
"""

import argparse
import concurrent.futures
import contextlib
import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from diagnostics import add_compiler_arguments, compile_only

# The axes that can be mistaken for each other; pp carries no redistribution.
MESHES = (("dp", "cp", "tp"), ("edp", "ep", "etp"))
AXES = [axis for mesh in MESHES for axis in mesh] + ["pp"]
LAYOUTS = re.compile(r"^// probe-layouts: (\d+)$", re.MULTILINE)
# Words before which `to(` is a call; after any other word it is a declaration.
BEFORE_CALL = {"return", "else", "do", "case", "co_return", "throw"}
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)


def code_of(text):
    """The text with comments and literals blanked, every character at its place."""
    return NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def arguments_of(code, opening):
    """Begin and end of each argument of the call whose '(' is at opening; the end of the call."""
    spans, depth, begin = [], 0, opening + 1
    for at in range(opening, len(code)):
        c = code[at]
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                spans.append((begin, at))
                return spans, at + 1
        elif c == "," and depth == 1:
            spans.append((begin, at))
            begin = at + 1
    return [], opening + 1


class Mutant:
    """A header's text in which other stands for the call at span."""

    def __init__(self, header, text, span, what, other):
        self.header = header
        self.key = f"{header}: {' '.join(text[span[0]:span[1]].split())}: {what}"
        self.text = text[:span[0]] + other + text[span[1]:]
        self.line = text.count("\n", 0, span[0]) + 1
        self.span = span
        self.other = other


def mutants_of(header, text):
    """All mutants of one header; header is its path below megacpp/."""
    code = code_of(text)
    found = []
    for match in re.finditer(r"\bto\s*\(", code):
        before = code[: match.start()]
        prefix = re.search(r"(?:\bmc\s*::\s*|\b\w+\s*(?:\.|->)\s*)$", before)
        begin = prefix.start() if prefix else match.start()
        word = re.search(r"(\w+)\s+$", code[:begin])
        declared = word and word.group(1) not in BEFORE_CALL
        spans, end = arguments_of(code, match.end() - 1)
        if declared or len(spans) < 3:
            continue
        first = text[spans[0][0]:spans[0][1]].strip()
        found.append(Mutant(header, text, (begin, end), "remove", f"({first})"))
        axis_begin, axis_end = spans[1]
        for name in re.finditer(r"\b(" + "|".join(AXES) + r")\b", code[axis_begin:axis_end]):
            mesh = next((m for m in MESHES if name.group(1) in m), ())
            for other in mesh:
                if other == name.group(1):
                    continue
                at = axis_begin + name.start()
                changed = text[begin:at] + other + text[at + len(name.group(1)):end]
                found.append(Mutant(header, text, (begin, end), f"{name.group(1)} -> {other}", changed))
    return found


def verdict(mutant, arguments, layouts):
    """None if the mutant is refused as it must be, else what happened."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "megacpp" / mutant.header
        copy.parent.mkdir(parents=True)
        copy.write_text(mutant.text, encoding="utf-8")
        for layout in range(layouts):
            outcome = compile_only(arguments.compiler, arguments.probe,
                                   [folder, arguments.tree, *arguments.include],
                                   (f"MEGACPP_PROBE_LAYOUT={layout}",), arguments.flag)
            if outcome.status == 0:
                continue
            if outcome.assertion_code() is None:
                return (f"refused under layout {layout}, but with {len(outcome.errors)} errors, not "
                        f"by one assertion with a MEGA- code:\n{outcome.output}")
            return None
    return "survived"


CHOSEN = """#pragma once
#include <type_traits>
inline int megacpp_mutant = 0;
constexpr bool megacpp_is_mutant(int k) { return !std::is_constant_evaluated() && megacpp_mutant == k; }
"""


def side_by_side(text, numbered):
    """A header's text with all its mutants; numbered: pairs of a number and a mutant of it."""
    inserted = []  # (place, order at one place, text): an outer call opens first and closes last
    for number, mutant in numbered:
        begin, end = mutant.span
        inserted.append((begin, (1, -end, number), f"(megacpp_is_mutant({number}) ? {mutant.other} : "))
        inserted.append((end, (0, -begin, 0), ")"))
    for place, _, addition in sorted(inserted, reverse=True):
        text = text[:place] + addition + text[place:]
    return text


def run_side_by_side(mutants, arguments, layouts):
    """Whether a layout refuses the tree as it is, and each of the mutants."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "chosen.hpp").write_text(CHOSEN, encoding="utf-8")
        for header in {mutant.header for mutant in mutants}:
            copy = Path(folder) / "megacpp" / header
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = (Path(arguments.tree) / "megacpp" / header).read_text(encoding="utf-8")
            numbered = [(k, m) for k, m in enumerate(mutants, 1) if m.header == header]
            copy.write_text(side_by_side(text, numbered), encoding="utf-8")
        program = Path(folder) / "probe"
        command = [arguments.compiler, *arguments.flag, "-O1", f"-I{folder}", f"-I{arguments.tree}",
                   *(f"-I{i}" for i in arguments.include), "-include", f"{folder}/chosen.hpp",
                   f"-DMEGACPP_PROBE_MUTANTS={len(mutants)}", f"-DMEGACPP_PROBE_LAYOUTS={layouts}",
                   arguments.probe, "-o", str(program)]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode != 0:
            raise SystemExit(f"the mutants do not compile side by side:\n{built.stderr}")
        said = subprocess.run([str(program)], capture_output=True, text=True, check=True)
        return [line == "1" for line in said.stdout.split()]


def read_allowed(file):
    allowed = {}
    for number, line in enumerate(Path(file).read_text(encoding="utf-8").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, bar, reason = line.partition("|")
        if not bar or not reason.strip():
            raise SystemExit(f"{file}:{number}: an entry needs a reason behind '|'")
        allowed[key.strip()] = reason.strip()
    return allowed


def check(arguments):
    """Number of findings; prints them."""
    root = Path(arguments.tree) / "megacpp"
    mutants = []
    for folder in ("nn", "model"):
        for path in sorted((root / folder).rglob("*.hpp")):
            header = path.relative_to(root).as_posix()
            mutants += mutants_of(header, path.read_text(encoding="utf-8"))
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.header}:{mutant.line}: {mutant.key.split(': ', 1)[1]}")
        return 0
    if not mutants:
        print(f"no redistribution found in {root}/nn and {root}/model")
        return 1

    count = LAYOUTS.search(Path(arguments.probe).read_text(encoding="utf-8"))
    layouts = int(count.group(1)) if count else 1
    if arguments.side_by_side:
        whole, *refused = run_side_by_side(mutants, arguments, layouts)
        if whole:
            print("the tree as it is, is refused")
            return 1
        verdicts = [None if found else "survived" for found in refused]
    else:
        for layout in range(layouts):
            whole = compile_only(arguments.compiler, arguments.probe,
                                 [arguments.tree, *arguments.include],
                                 (f"MEGACPP_PROBE_LAYOUT={layout}",), arguments.flag)
            if whole.status != 0:
                print(f"the probe itself does not compile under layout {layout}:\n{whole.output}")
                return 1
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            verdicts = list(pool.map(lambda m: verdict(m, arguments, layouts), mutants))

    allowed = read_allowed(arguments.allow) if arguments.allow else {}
    used, findings = set(), 0
    for mutant, found in zip(mutants, verdicts, strict=True):
        if found is None:
            continue
        if found == "survived" and mutant.key in allowed:
            used.add(mutant.key)
            continue
        findings += 1
        why = ": no layout of the probe refuses it; is its model there?" if found == "survived" else ""
        print(f"{mutant.header}:{mutant.line}: {mutant.key}: {found}{why}")
    for key in sorted(set(allowed) - used):
        findings += 1
        print(f"{arguments.allow}: no survivor matches '{key}'")
    print(f"{len(mutants)} mutants under {layouts} layouts with {arguments.compiler}: "
          f"{len(mutants) - len(used)} to be refused, {len(used)} allowed, {findings} findings")
    return findings


# A toy of the graph: a value knows whether it was converted over tp.
TOY_GRAPH = """#pragma once
namespace mc {
enum class axis { dp, cp, tp };
enum class place { invariant, replicate };
inline constexpr place R = place::replicate;
struct var { int over[3] = {}; };
constexpr var to(var x, axis a, place p) {
  x.over[static_cast<int>(a)] = static_cast<int>(p);
  return x;
}
} // namespace mc
"""
TOY_LAYER = """#pragma once
#include <megacpp/graph/toy.hpp>
namespace mc {
// to(x, axis::tp, R) in a comment is no call, nor is "to(x, axis::cp, R)" in a string.
constexpr var mlp(var x) { return to(to(x, axis::tp, R), axis::cp, R); }
constexpr var idle(var x) { return IDLE; }
} // namespace mc
"""
TOY_PROBE = """// probe-layouts: 2
#include <megacpp/nn/toy.hpp>
template <bool Ok> struct report { static_assert(Ok, "MEGA-P004 convert it"); };
#if defined(MEGACPP_PROBE_MUTANTS)
#include <cstdio>
int main() {
  for (megacpp_mutant = 0; megacpp_mutant <= MEGACPP_PROBE_MUTANTS; ++megacpp_mutant)
    std::puts(mc::mlp({}).over[2] != 1 || mc::mlp(mc::idle({})).over[1] != 1 ? "1" : "0");
}
#elif MEGACPP_PROBE_LAYOUT == 0
template struct report<mc::mlp({}).over[2] == 1>;
#else
template struct report<mc::mlp(mc::idle({})).over[1] == 1>;
#endif
"""
ONE_ERROR = "template struct report<mc::mlp({}).over[2] == 1>;"
TWO_ERRORS = ONE_ERROR + "\nstatic_assert(mc::mlp({}).over[2] == 1);"


def self_test(arguments):
    failures = 0

    def expect(name, wanted, idle="x", probe=TOY_PROBE, allow=None, ways=(False, True)):
        for side_by_side in ways:
            expect_in(side_by_side, name, wanted, idle, probe, allow)

    def expect_in(side_by_side, name, wanted, idle, probe, allow):
        nonlocal failures
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder)
            for path, text in (("megacpp/graph/toy.hpp", TOY_GRAPH), ("probe.cpp", probe),
                               ("megacpp/nn/toy.hpp", TOY_LAYER.replace("IDLE", idle)),
                               ("allow.txt", allow or "")):
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                (tree / path).write_text(text, encoding="utf-8")
            toy = argparse.Namespace(**vars(arguments))
            toy.tree, toy.probe, toy.list = folder, str(tree / "probe.cpp"), False
            toy.side_by_side = side_by_side
            toy.allow = str(tree / "allow.txt") if allow is not None else None
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                found = check(toy)
            if found != wanted:
                failures += 1
                print(f"self-test: '{name}': {found} findings, expected {wanted}:")
                print(said.getvalue())

    survivor = "nn/toy.hpp: to(x, axis::dp, R): "
    entries = "".join(f"{survivor}{what} | dp is not probed\n" for what in ("remove", "dp -> cp"))
    expect("every mutant refused", 0)
    expect("survivors", 3, idle="to(x, axis::dp, R)")
    expect("allowed survivors", 1, idle="to(x, axis::dp, R)", allow=entries)
    expect("an entry without survivor", 1, allow=f"{survivor}remove | dp is not probed\n")
    two = TOY_PROBE.replace(ONE_ERROR, TWO_ERRORS)
    expect("two errors", 3, probe=two, ways=(False,))
    expect("a probe that does not compile", 1, probe=TOY_PROBE + "int f() { return undeclared; }\n",
           ways=(False,))
    print(f"self-test of mutants.py with {arguments.compiler}: {failures} judged wrongly")
    return failures


def main():
    parser = argparse.ArgumentParser(description="Mutants of layers and models must not compile.")
    add_compiler_arguments(parser)
    parser.add_argument("probe", nargs="?")
    parser.add_argument("--tree", help="include tree that holds megacpp/")
    parser.add_argument("--allow", help="file of survivors with reasons")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--side-by-side", action="store_true", help="one program of all mutants")
    parser.add_argument("--list", action="store_true", help="print the mutants and compile nothing")
    arguments = parser.parse_args()
    if not arguments.flag:
        arguments.flag = ["-std=c++20"]
    if arguments.self_test:
        return 1 if self_test(arguments) else 0
    if not arguments.tree or not (arguments.probe or arguments.list):
        parser.error("--tree and the probe are needed")
    return 1 if check(arguments) else 0


if __name__ == "__main__":
    sys.exit(main())
