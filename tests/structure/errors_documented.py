#!/usr/bin/env python3
"""Every MEGA- code (graph/faults.inc, run/members.hpp) and every exit code stands in docs/errors.md,
and nothing else does; every case of tests/compile_fail stands in the section of its code, and every
thread that a test names in the table of other frameworks' bugs, beside that test.

    errors_documented.py ROOT
"""

import re
import sys
from pathlib import Path


THREAD = re.compile(r"(?<![\w/])[A-Za-z][\w-]*/[\w.-]+#\d+")


def problems_of_threads(root, document):
    """Of the table at the end, whose rows are a thread, what refuses it, and tests."""
    rows = {}
    for line in document.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if THREAD.match(cells[0]):
            rows.setdefault(THREAD.match(cells[0]).group(), set()).update(cells[2].split(", "))
    tests = {path.stem: path for path in (root / "tests/compile_fail").glob("*.cpp")}
    tests |= {f"laws/{path.stem}": path for path in (root / "tests/laws").glob("*.cpp")}
    problems = [f"{thread}: no test {name}" for thread, names in rows.items()
                for name in sorted(names) if name not in tests]
    named = {(thread, name) for name, path in tests.items()
             for thread in THREAD.findall(path.read_text(encoding="utf-8"))}
    problems += [f"{thread}: in {name}, but not in the table of docs/errors.md"
                 for thread, name in sorted(named) if name not in rows.get(thread, ())]
    problems += [f"{thread}: in the table of docs/errors.md, but in none of its tests"
                 for thread, names in rows.items() if not any((thread, name) in named for name in names)]
    return problems if rows else problems + ["no table of threads in docs/errors.md"]


def main():
    root = Path(sys.argv[1])
    document = (root / "docs" / "errors.md").read_text(encoding="utf-8")
    faults = (root / "include/megacpp/graph/faults.inc").read_text(encoding="utf-8")
    exits = (root / "include/megacpp/io/error.hpp").read_text(encoding="utf-8")
    members = (root / "include/megacpp/run/members.hpp").read_text(encoding="utf-8")

    in_code = {f"MEGA-{code}" for code in re.findall(r"^MEGACPP_FAULT\(\s*(\w+),", faults, re.MULTILINE)}
    of_compiler = set(re.findall(r'"(MEGA-[PSCMTB]\d{3}) ', members))
    in_document = re.findall(r"^### (MEGA-[PSCMTB]\d{3})$", document, re.MULTILINE)
    numbered = set(re.findall(r"^\s+(\w+) = (\d+),", exits, re.MULTILINE))
    listed = {(name, number) for number, name in
              re.findall(r"^\| (\d+) \| (\w+) \|", document, re.MULTILINE)}

    problems = [f"{code}: no section in docs/errors.md" for code in sorted((in_code | of_compiler) - set(in_document))]
    problems += [f"{code}: in docs/errors.md, but no fault" for code in sorted(set(in_document) - in_code - of_compiler)]
    problems += [f"{code}: twice in docs/errors.md" for code in sorted(set(in_document))
                 if in_document.count(code) > 1]
    problems += [f"exit code {name} = {number}: in one place only"
                 for name, number in sorted(numbered ^ listed)]
    sections = dict(re.findall(r"^### (MEGA-[PSCMTB]\d{3})\n(.*?)(?=^##)", document + "\n##",
                               re.MULTILINE | re.DOTALL))
    for case in sorted((root / "tests/compile_fail").glob("*.cpp")):
        code = re.match(r"// expect-error: (\S+)", case.read_text(encoding="utf-8"))
        if code and not re.search(rf"\b{case.stem}\b", sections.get(code.group(1), "")):
            problems.append(f"{case.stem}: not among the cases of {code.group(1)} in docs/errors.md")
    if not in_code or not of_compiler or not numbered:
        problems.append("no codes found in the headers")
    problems += problems_of_threads(root, document)
    for problem in problems:
        print(problem)
    print(f"{len(in_code | of_compiler)} codes and {len(numbered)} exit codes, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
