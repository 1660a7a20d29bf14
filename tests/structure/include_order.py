#!/usr/bin/env python3
"""Checks the text of the headers.

    include_order.py ROOT        ROOT holds include/megacpp
    include_order.py --self-test

- A folder includes only itself and folders above it in its half (docs/design.md, folders); only
  run/ and below see both halves, and no folder includes megacpp.hpp or main.hpp.
- megacpp.hpp and program.hpp, which the units of a run include, reach no header of a library that
  costs seconds: JSON, text, command line, Boost.
- The compile-time half includes nothing that does input, output, threads, clocks or device work.
- Includes of megacpp are written <megacpp/folder/file.hpp> and exist; every header has #pragma
  once, and a list (.inc), which is included several times, does not.
- Only config/ defines macros, but for a MEGACPP_ macro that its own header undefines; #if asks
  about CUDA or a MEGACPP_ macro, in run-time folders also about the compiler and the version of a
  library.
- Lines are at most 100 columns, without tabs or trailing blanks; nothing is marked as unfinished;
  no path of one machine; no file named utils, helper, misc or common; no name fast_..., new_...,
  ..._v2.
"""

import re
import sys
import tempfile
from pathlib import Path

COMPILE_TIME = ["config", "num", "recipe", "graph", "op", "nn", "model", "pass", "plan"]
RUN_TIME = ["io", "vectors", "threads", "join", "exec", "comm", "kernel", "product", "data", "tokenizer", "sets",
            "chat", "checkpoint", "observe"]
RUN_TIME_SEES = ["config", "num", "recipe", "graph", "op", "plan"]
BOTH = ["run", "hf", "laws", "optim", "request", "inspect", "inputs", "states", "train", "generate",
        "options", "cli", "tool", "preset"]
TOP = ["megacpp.hpp", "program.hpp", "main.hpp"]
OF_A_RUN = ["megacpp.hpp", "program.hpp"]
SLOW_LIBRARY = re.compile(r"^(nlohmann|fmt|CLI|boost)/")

IMPURE = {"atomic", "chrono", "condition_variable", "csignal", "cstdio", "ctime", "filesystem",
          "fstream", "future", "iostream", "mutex", "omp.h", "thread", "unistd.h", "cuda_runtime.h"}
UNFINISHED = re.compile(
    r"\b(TODO|FIXME|XXX|HACK|not implemented|unimplemented|placeholder|stub|for now)\b")
MACHINE = re.compile(r"(?<![\w.])/(work|root|home|tmp)/")
NAMELESS = re.compile(r"(^|_)(utils?|helpers?|misc|common)(_|\.|$)|^(fast|new)_|_v\d+(\.|$)")
NAME = re.compile(r"\b(?:(?:fast|new)_\w+|\w+_v[2-9])\b")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)
COLUMNS = 100


def may_include():
    """For each folder, the folders it may include."""
    allowed = {}
    halves = ((COMPILE_TIME, []), (RUN_TIME, RUN_TIME_SEES), (BOTH, COMPILE_TIME + RUN_TIME))
    for half, also in halves:
        for at, folder in enumerate(half):
            allowed[folder] = set(half[: at + 1]) | set(also)
    return allowed


def includes_problems(root, folder, code_lines):
    allowed = may_include()
    for number, line in enumerate(code_lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        bracket, what = match.groups()
        if not what.startswith("megacpp/"):
            if bracket == '"':
                yield number, f'include "{what}": write <megacpp/folder/file.hpp>'
            elif folder in COMPILE_TIME and what in IMPURE:
                yield number, f"{folder}/ is of the compile-time half and includes <{what}>"
            continue
        if not (root / "include" / what).is_file():
            yield number, f"<{what}> does not exist"
        target = what.split("/")[1]
        if folder is None:
            continue
        if target in TOP:
            yield number, f"{folder}/ includes <{what}>, which is above it"
        elif target not in allowed.get(folder, ()):
            yield number, f"{folder}/ must not include {target}/ (<{what}>)"


def library_problems(root):
    """What the units of a run reach of libraries that cost them seconds, with the way there."""
    for start in OF_A_RUN:
        way_to = {f"megacpp/{start}": f"megacpp/{start}"}
        reached = list(way_to)
        for header in reached: # which grows
            path = root / "include" / header
            if not path.is_file():
                continue
            for line in path.read_text(encoding="utf-8").splitlines():
                match = INCLUDE.match(line)
                if not match:
                    continue
                what = match.group(2)
                if SLOW_LIBRARY.match(what):
                    yield f"{way_to[header]} -> <{what}>: the units of a run include none of it"
                elif what.startswith("megacpp/") and what not in way_to:
                    way_to[what] = f"{way_to[header]} -> {what.removeprefix('megacpp/')}"
                    reached.append(what)


def macro_problems(folder, code_lines):
    """Run-time folders may ask about the compiler and libraries, others only about CUDA."""
    known = ("MEGACPP_", "__CUDACC__", "__has_include", "defined")
    if folder in RUN_TIME:
        known += ("__", "DNNL_VERSION", "EIGEN_WORLD_VERSION", "FMT_VERSION")
    undone = set(re.findall(r"^\s*#\s*undef\s+(MEGACPP_\w+)", "\n".join(code_lines), re.MULTILINE))
    for number, line in enumerate(code_lines, 1):
        directive = re.match(r"\s*#\s*(\w+)\s*(.*)", line)
        if not directive:
            continue
        word, rest = directive.groups()
        if word in ("define", "undef"):
            if re.match(r"\w*", rest).group(0) in undone:
                continue
            yield number, f"#{word} {rest.split('(')[0].strip()}: only config/ defines macros"
        elif word in ("if", "ifdef", "ifndef", "elif"):
            for macro in re.findall(r"\b[A-Za-z_]\w*", rest):
                if not macro.startswith(known):
                    yield number, f"#{word} {rest.strip()}: {folder or 'a header'} looks at {macro}"
                    break


def text_problems(lines, code_lines):
    for number, (line, code) in enumerate(zip(lines, code_lines), 1):
        if len(line) > COLUMNS:
            yield number, f"{len(line)} columns, more than {COLUMNS}"
        if "\t" in line or line != line.rstrip():
            yield number, "a tab or a trailing blank"
        for found, why in ((UNFINISHED.search(line), "finish it"), (MACHINE.search(line), "name no machine's path"),
                           (NAME.search(code), "name what it is, and not that it is new, fast or the second")):
            if found:
                yield number, f"'{found.group(0)}' has no place here: {why}"


def problems(root):
    """All problems below root, as sentences with file and line."""
    root = Path(root)
    top = root / "include" / "megacpp"
    for path in sorted(p for p in top.rglob("*") if p.suffix in (".hpp", ".inl", ".h", ".inc")):
        relative = path.relative_to(top)
        where = path.relative_to(root)
        folder = relative.parts[0] if len(relative.parts) > 1 else None
        text = path.read_text(encoding="utf-8")
        blank = NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)
        lines, code_lines = text.splitlines(), blank.splitlines()
        # Includes in quotes are blanked as strings are: they are read from the text, where code has
        # '#'.
        with_includes = [t if re.match(r"\s*#", c) else c for t, c in zip(lines, code_lines)]
        if folder is None and relative.name not in TOP:
            yield f"{where}: only {' and '.join(TOP)} stand above the folders"
        if folder is not None and folder not in may_include():
            yield f"{where}: there is no folder {folder}/ in the design"
        if NAMELESS.search(relative.name):
            yield f"{where}: the name says nothing about what it holds"
        once = re.search(r"^#pragma once$", blank, re.MULTILINE) is not None
        if once == (path.suffix == ".inc"):
            yield f"{where}: {'a list has' if once else 'no'} #pragma once"
        found = list(includes_problems(root, folder, with_includes))
        if folder != "config":
            found += macro_problems(folder, code_lines)
        found += text_problems(lines, code_lines)
        for number, what in sorted(found):
            yield f"{where}:{number}: {what}"
    yield from library_problems(root)


GOOD = {
    "config/config.hpp": "#pragma once\n#define MEGACPP_X 1\n",
    "num/dtype.hpp": "#pragma once\n#include <megacpp/config/config.hpp>\n#include <cstdint>\n"
                     "#define MEGACPP_ROW(x) x\nint y = MEGACPP_ROW(1);\n#undef MEGACPP_ROW\n",
    "graph/mesh.hpp": "#pragma once\n// Such as #include <megacpp/plan/memory.hpp> here.\n"
                      "#include <megacpp/num/dtype.hpp>\n",
    "graph/rows.inc": "MEGACPP_ROW(1)\n",
    "pass/fuse.hpp": "#pragma once\n#include <megacpp/graph/mesh.hpp>\n",
    "plan/memory.hpp": "#pragma once\n#include <megacpp/graph/mesh.hpp>\n",
    "kernel/norm.hpp": "#pragma once\n#include <megacpp/graph/mesh.hpp>\n#include <thread>\n"
                       "#if defined(__CUDACC__)\n#endif\n",
    "run/program.hpp": "#pragma once\n#include <megacpp/kernel/norm.hpp>\n"
                       "#include <megacpp/plan/memory.hpp>\n",
    "preset/gpt2.hpp": "#pragma once\n#include <megacpp/run/program.hpp>\nint max_new_tokens();\n",
    "megacpp.hpp": "#pragma once\n#include <megacpp/preset/gpt2.hpp>\n",
}
# name: path, text (None: as it is in GOOD), words of the one expected sentence
BAD = {
    "a later folder": ("num/a.hpp", "#pragma once\n#include <megacpp/graph/mesh.hpp>\n",
                       "must not include graph/"),
    "the other half": ("plan/a.hpp", "#pragma once\n#include <megacpp/kernel/norm.hpp>\n",
                       "must not include kernel/"),
    "run time to pass": ("kernel/a.hpp", "#pragma once\n#include <megacpp/pass/fuse.hpp>\n",
                         "must not include pass/"),
    "back from run": ("exec/a.hpp", "#pragma once\n#include <megacpp/run/program.hpp>\n",
                      "must not include run/"),
    "the top": ("train/a.hpp", "#pragma once\n#include <megacpp/megacpp.hpp>\n",
                "which is above it"),
    "in quotes": ("num/a.hpp", '#pragma once\n#include "dtype.hpp"\n', "write <megacpp/"),
    "missing": ("graph/a.hpp", "#pragma once\n#include <megacpp/num/none.hpp>\n", "does not exist"),
    "impure": ("graph/a.hpp", "#pragma once\n#include <thread>\n", "compile-time half"),
    "no pragma": ("num/a.hpp", "// #pragma once\nint x();\n", "no #pragma once"),
    "list read once": ("graph/rows.inc", "#pragma once\nMEGACPP_ROW(1)\n", "a list has"),
    "macro": ("num/a.hpp", "#pragma once\n#define X 1\n", "only config/ defines"),
    "macro that stays": ("num/a.hpp", "#pragma once\n#define MEGACPP_Y 1\n",
                         "only config/ defines"),
    "conditional": ("num/a.hpp", "#pragma once\n#ifdef DEBUG\n#endif\n", "looks at DEBUG"),
    "long line": ("num/a.hpp", "#pragma once\n//" + "x" * 99 + "\n", "101 columns"),
    "tab": ("num/a.hpp", "#pragma once\n\tint x();\n", "a tab"),
    "unfinished": ("num/a.hpp", "#pragma once\n// TODO\n", "'TODO' has no place"),
    "machine": ("num/a.hpp", "#pragma once\n// see /home/me\n", "has no place"),
    "name of a file": ("num/utils.hpp", "#pragma once\n", "says nothing"),
    "name": ("num/a.hpp", "#pragma once\nint fast_exp();\n", "'fast_exp' has no place"),
    "version": ("num/a.hpp", "#pragma once\nint exp_v2();\n", "'exp_v2' has no place"),
    "folder": ("extra/a.hpp", "#pragma once\n", "no folder extra/"),
    "json of a run": ("run/program.hpp", "#pragma once\n#include <nlohmann/json.hpp>\n",
                      "-> run/program.hpp -> <nlohmann/json.hpp>"),
    "loose": ("loose.hpp", "#pragma once\n", "stand above the folders"),
}


def self_test():
    failures = 0
    for name, (path, text, words) in {"nothing": (None, None, None), **BAD}.items():
        with tempfile.TemporaryDirectory() as folder:
            files = dict(GOOD)
            if path:
                files[path] = text
            for file, content in files.items():
                target = Path(folder) / "include" / "megacpp" / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content, encoding="utf-8")
            found = list(problems(folder))
            good = not found if path is None else len(found) == 1 and words in found[0]
            if not good:
                failures += 1
                print(f"self-test: '{name}': found {found}")
    print(f"self-test of include_order.py: {len(BAD) + 1} trees, {failures} judged wrongly")
    return failures


def main():
    if len(sys.argv) != 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    if sys.argv[1] == "--self-test":
        return 1 if self_test() else 0
    if not (Path(sys.argv[1]) / "include" / "megacpp").is_dir():
        print(f"{sys.argv[1]} has no include/megacpp", file=sys.stderr)
        return 2
    found = list(problems(sys.argv[1]))
    for sentence in found:
        print(sentence)
    print(f"{len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
