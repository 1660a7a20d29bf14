#!/usr/bin/env python3
"""Sources that must compile, and headers that must compile alone, without code for them.

    compiles.py SOURCE... -- COMPILER FLAG...
    compiles.py --alone INCLUDE_DIR HEADER... -- COMPILER FLAG...
    compiles.py --self-test

With --alone the units are chains of headers, each of which includes the one before it, at once or
through others: what stands before a header in such a unit is then what it includes itself, and
its text is read as it would be alone. As few chains as possible cover all headers, so that what
many of them include is read a few times and not once for each. A unit includes its headers twice:
the second time must find #pragma once. Prints what the compiler says of those that do not compile.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

DIRECTIVE = re.compile(r'^\s*#\s*(if|endif|include\s*[<"]([^>"]+)[>"])')
BEFORE_CODE = re.compile(r"^\s*(#|//|$)")


def includes(path):
    """What a header includes before its code, whatever the compiler is."""
    depth, found = 0, []
    for line in path.read_text(encoding="utf-8").splitlines():
        if depth == 0 and not BEFORE_CODE.match(line):
            break
        directive = DIRECTIVE.match(line)
        if directive:
            word = directive.group(1)
            depth += 1 if word.startswith("if") else -1 if word == "endif" else 0
            if directive.group(2) and depth == 0:
                found.append(directive.group(2))
    return found


def chains(below):
    """A smallest set of chains that covers all keys of `below`, where below[x] is the set of all keys
    under x: a maximum matching of those that are followed with those that follow (Dilworth). Those
    that stand above the most are followed first, since they cost most as units of their own."""
    follows = {}

    def followed(lower, seen):
        for upper in below:
            if lower in below[upper] and upper not in seen:
                seen.add(upper)
                if upper not in follows or followed(follows[upper], seen):
                    follows[upper] = lower
                    return True
        return False

    for lower in sorted(below, key=lambda key: (-len(below[key]), key)):
        followed(lower, set())
    for top in sorted(set(below) - set(follows.values())):
        chain = [top]
        while chain[-1] in follows:
            chain.append(follows[chain[-1]])
        yield chain[::-1]


def units(folder, headers):
    """The sources that prove that each of the headers compiles alone."""
    names = {path.relative_to(folder).as_posix(): path for path in headers}
    direct = {name: [other for other in includes(path) if other in names]
              for name, path in names.items()}
    below = {}

    def under(name):
        if name not in below:
            below[name] = set(direct[name]).union(*(under(other) for other in direct[name]))
        return below[name]

    for name in names:
        under(name)
    for chain in chains(below):
        yield " ".join(chain), "".join(f"#include <{name}>\n" for name in chain) * 2


def failures(named_sources, command):
    """Compiles all; prints and counts those that do not compile."""
    count = wrong = 0
    for name, source in named_sources:
        count += 1
        result = subprocess.run([*command, "-fsyntax-only", "-x", "c++", "-"], input=source, text=True,
                                capture_output=True)
        if result.returncode != 0:
            wrong += 1
            print(f"FAILED: {name}\n{result.stderr}", flush=True)
    print(f"{count} units compiled, {wrong} of them wrong")
    return wrong


def self_test():
    """Headers that need what only others include are found wherever they stand in a chain."""
    sound = {"a.hpp": "using number = int;", "b.hpp": "#include <a.hpp>\ninline number two = 2;",
             "c.hpp": "#include <b.hpp>\ninline number three = two + 1;",
             "d.hpp": "#include <a.hpp>\ninline number four = 4;"}
    broken = {"needs what stands beside it": {"d.hpp": "#include <a.hpp>\ninline int four = two + 2;"},
              "needs what stands above it": {"a.hpp": "using number = decltype(two);"},
              "includes too late":
                  {"c.hpp": "inline int three = two + 1;\n#include <b.hpp>"},
              "needs what another compiler includes":
                  {"c.hpp": "#if 0\n#include <b.hpp>\n#endif\ninline int three = two + 1;"},
              "is read twice": {"b.hpp": "#include <a.hpp>\nnumber two = 2;", "twice": "b.hpp"}}
    with tempfile.TemporaryDirectory() as folder:
        def wrong(changed):
            twice = changed.pop("twice", None)
            for name, text in {**sound, **changed}.items():
                once = "" if name == twice else "#pragma once\n"
                Path(folder, name).write_text(f"{once}{text}\n", encoding="utf-8")
            headers = [Path(folder, name) for name in sound]
            sources = list(units(Path(folder), headers))
            assert len(sources) == 2 or changed, sources
            return failures(sources, ["c++", "-std=c++20", f"-I{folder}"])
        assert wrong({}) == 0, "sound headers were refused"
        for what, changed in broken.items():
            assert wrong(changed) > 0, f"a header that {what} was taken"


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    split = sys.argv.index("--") if "--" in sys.argv else 1
    files, command = sys.argv[1:split], sys.argv[split + 1:]
    alone = files[:1] == ["--alone"]
    files = [Path(file).resolve() for file in files[alone:]]
    if len(files) <= alone or not command:
        sys.exit(__doc__)
    if alone:
        sources = units(files[0], files[1:])
    else:
        sources = ((file, f'#include "{file}"\n') for file in files)
    return 1 if failures(sources, command) else 0


if __name__ == "__main__":
    sys.exit(main())
