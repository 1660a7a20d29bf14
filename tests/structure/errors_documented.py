#!/usr/bin/env python3
"""Every MEGA- code (graph/faults.inc, run/members.hpp) and every exit code stands in docs/errors.md,
and nothing else does; every case of tests/compile_fail stands in the section of its code.

    errors_documented.py ROOT
"""

import re
import sys
from pathlib import Path


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
    for problem in problems:
        print(problem)
    print(f"{len(in_code | of_compiler)} codes and {len(numbered)} exit codes, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
