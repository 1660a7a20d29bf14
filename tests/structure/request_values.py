#!/usr/bin/env python3
"""Checks what sentences call request values by.

    request_values.py ROOT        ROOT holds include/megacpp
    request_values.py --self-test

- Each text of the headers that names a member of a request, as loop_request::save, names one that
  is declared, and options/flags_of_values.hpp has its flag.
- Rooms that take requests name no flag in a text, and include nothing of options/.
"""

import re
import sys
import tempfile
from pathlib import Path

ROOMS = ["inputs", "states", "train", "generate", "request"] # that take requests
LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"')
COMMENT = re.compile(r"//[^\n]*")
VALUE = re.compile(r"\b([a-z]\w*)::([a-z]\w*)")
FLAG = re.compile(r"--[a-z][a-z0-9-]*")
STRUCT = re.compile(r"^struct (\w+)[^;{]*\{(.*?)^\};", re.MULTILINE | re.DOTALL)
ROW = re.compile(r'\{"(\w+)",((?:\s*"[^"\n]*")+)\}')


def texts_of(path):
    """The literals of a header with their lines."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for match in LITERAL.finditer(COMMENT.sub("", line) if '"' not in line else line):
            yield number, match.group(1)


def members(root):
    """For each struct of the headers, the names that stand in it."""
    found = {}
    for path in sorted((root / "include").rglob("*.hpp")):
        for match in STRUCT.finditer(path.read_text(encoding="utf-8")):
            found.setdefault(match.group(1), set()).update(re.findall(r"\w+", COMMENT.sub("", match.group(2))))
    return found


def problems(root):
    include = root / "include" / "megacpp"
    known = members(root)
    requests = set()
    for path in sorted((include / "request").glob("*.hpp")):
        requests.update(match.group(1) for match in STRUCT.finditer(path.read_text(encoding="utf-8")))
    table = (include / "options" / "flags_of_values.hpp").read_text(encoding="utf-8")
    rows = {(owner, one.split("=")[0].strip()) for owner, members in ROW.findall(table)
            for one in "".join(LITERAL.findall(members)).split(",")}
    for owner, member in sorted(rows):
        if member not in known.get(owner, ()):
            yield f"options/flags_of_values.hpp: {owner} has no member {member}"
    owners = requests | {owner for owner, _ in rows}
    for path in sorted(include.rglob("*.hpp")):
        where, room = path.relative_to(include), path.relative_to(include).parts[0]
        if str(where) == "options/flags_of_values.hpp":
            continue
        for number, text in texts_of(path):
            for owner, member in VALUE.findall(text):
                if owner in owners and (owner, member) not in rows:
                    yield f"{where}:{number}: {owner}::{member} has no row in options/flags_of_values.hpp"
            if room in ROOMS:
                for flag in FLAG.findall(text):
                    yield f"{where}:{number}: names {flag}: name the member of the request that it gives"
        if room in ROOMS:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if line.startswith("#include <megacpp/options/"):
                    yield f"{where}:{number}: includes options/: take a request"


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        include = Path(folder) / "include" / "megacpp"
        for room in ["request", "options", "train"]:
            (include / room).mkdir(parents=True)
        (include / "request" / "plan.hpp").write_text("struct plan {\n  int save = 0; ///< none\n};\n")
        row = '{{"plan",\n "{}=load"}},\n'

        def found(train, member="save"):
            (include / "options" / "flags_of_values.hpp").write_text(row.format(member))
            (include / "train" / "run.hpp").write_text(train)
            return list(problems(Path(folder)))

        right = 'f("plan::save is none"); // --save\n'
        wrong = [found('f("plan::load");\n'), found('f("give --save");\n'),
                 found("#include <megacpp/options/flag.hpp>\n"), found(right, "none")]
        return not found(right) and all(wrong)


def main():
    if sys.argv[1:] == ["--self-test"]:
        right = self_test()
        print("self-test:", "passed" if right else "FAILED")
        return 0 if right else 1
    all_problems = list(problems(Path(sys.argv[1])))
    for problem in all_problems:
        print(problem)
    print(len(all_problems), "problems")
    return 1 if all_problems else 0


if __name__ == "__main__":
    sys.exit(main())
