#!/usr/bin/env python3
"""Every MEGA- code and every exit code stands in docs/errors.md, and nothing else does; the compiler
(run/report.hpp) says of each code what describe and the interpreter say (graph/fault.hpp), but for
the codes of run/members.hpp, which the compiler alone says; every case of tests/compile_fail stands
in the section of its code.

    errors_documented.py ROOT
"""

import re
import sys
from pathlib import Path


LITERALS = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'


def sentences(text, before, after):
    """Sentence by code: adjacent literals between the two patterns, joined."""
    return {code: "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals))
            for code, literals in re.findall(before + LITERALS + after, text)}


def main():
    root = Path(sys.argv[1])
    document = (root / "docs" / "errors.md").read_text(encoding="utf-8")
    faults = (root / "include/megacpp/graph/fault.hpp").read_text(encoding="utf-8")
    exits = (root / "include/megacpp/io/error.hpp").read_text(encoding="utf-8")

    members = (root / "include/megacpp/run/members.hpp").read_text(encoding="utf-8")
    report = (root / "include/megacpp/run/report.hpp").read_text(encoding="utf-8")

    at_run_time = sentences(faults, r"case fault::(\w+):\s*return\s*", ";")
    at_compile_time = sentences(report, r"static_assert\(\s*Code != fault::(\w+),\s*", r"\)")
    in_code = {f"MEGA-{code}" for code in re.findall(r"^\s+([PSCMTB]\d{3})\b", faults, re.MULTILINE)}
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
    for code in sorted(in_code):
        said = at_run_time.get(code[5:])
        if not said:
            problems.append(f"{code}: no sentence in graph/fault.hpp")
        elif at_compile_time.get(code[5:]) != f"{code} {said}":
            problems.append(f"{code}: run/report.hpp says '{at_compile_time.get(code[5:])}', "
                            f"graph/fault.hpp '{said}'")
    sections = dict(re.findall(r"^### (MEGA-[PSCMTB]\d{3})\n(.*?)(?=^##)", document + "\n##",
                               re.MULTILINE | re.DOTALL))
    for case in sorted((root / "tests/compile_fail").glob("*.cpp")):
        code = re.match(r"// expect-error: (\S+)", case.read_text(encoding="utf-8"))
        if code and not re.search(rf"\b{case.stem}\b", sections.get(code.group(1), "")):
            problems.append(f"{case.stem}: not among the cases of {code.group(1)} in docs/errors.md")
    if not in_code or not of_compiler or not numbered:
        problems.append("no codes found in the headers")
    for problem in problems:
        print(problem)
    print(f"{len(in_code | of_compiler)} codes and {len(numbered)} exit codes, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
