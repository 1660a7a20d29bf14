#!/usr/bin/env python3
"""Links of the pages lead somewhere.

    links.py ROOT
    links.py --self-test

- A relative link of a Markdown file names a file or a folder of the repository, and its #anchor a heading of that page,
  as GitHub spells anchors.
- A page of docs/ is reached from README.md by links.
- A page that a source names (docs/NAME.md, docs/FOLDER/NAME.md) exists.
- A file that a page names with its folder exists, from the root, below include/megacpp, below tests, or beside the page.
- The map of docs/design.md has the folders of include/megacpp, in the order of include_order.py.
- The tests at the beginning of an item of docs/evidence.md exist: as files below tests/, or as names in CMake's files there.
"""

import re
import sys
import tempfile
from pathlib import Path

from include_order import BOTH, COMPILE_TIME, RUN_TIME

LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<![\w/.-])docs/(?:[\w-]+/)?[\w-]+\.md")
SOURCES = (".hpp", ".cuh", ".inc", ".cpp", ".cu", ".cmake", ".txt", ".sh", ".py", ".in")
FILE = re.compile(r"(?<![\w/.$-])((?:[a-z_][\w-]*/)+[\w-]+\.(?:hpp|cuh|inc|cpp|py|sh|cu|cmake))\b")
# Of any name, another project's, or what examples/deploy/render.sh or Conan writes.
OTHER_FILES = re.compile(r"NAME|^megatron/core/|^tools/|^manifests/|/conan_toolchain.cmake$")
FOLDERS = ("bench", "cmake", "docs", "examples", "include", "src", "tests")
# Sources that name a page of another project, or of a self-test; None: several.
OTHERS = {"include/megacpp/io/lfs_pointer.hpp": "docs/spec.md", "tests/structure/ratchet.py": "docs/a.md",
          "tests/structure/flags_named.py": None, "tests/structure/links.py": None, "tests/structure/snippets.py": None}


def prose(text):
    """The text without blocks of code and without code within lines."""
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(text):
    """The anchors of a page: its headings in lower case, blanks as hyphens, without punctuation."""
    text, found = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL), []
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.append(f"{name}-{found.count(name)}" if name in found else name)
    return set(found)


def tests_named(text):
    """The names in backquotes before the colon of each item of a list."""
    for item in re.findall(r"^- (`[^:]*):", text, re.MULTILINE):
        yield from re.findall(r"`([^`]*)`", item)


def unknown_tests(root):
    """Tests that docs/evidence.md names and tests/ lacks."""
    page, files = root / "docs/evidence.md", root / "tests"
    of_cmake = "\n".join(p.read_text(encoding="utf-8") for p in sorted(files.rglob("*"))
                         if p.name == "CMakeLists.txt" or p.suffix == ".cmake")
    for name in tests_named(page.read_text(encoding="utf-8") if page.is_file() else ""):
        # CMake makes some names of a label and a word: suite_ and avx2.
        rest = re.escape(re.sub("^(cuda|nvcc|suite)_", "", name))
        known = re.search(rf"\b{re.escape(name)}(\b|_\$)|[( ;]{rest}[ ;)\n]", of_cmake)
        if not (files / name).exists() and not list(files.glob(f"{name}.*")) and not known:
            yield f"docs/evidence.md: there is no test {name}"


def map_problems(root, folders):
    """Whether docs/design.md has these folders in tables, a row for each, in this order."""
    page = root / "docs/design.md"
    rows = re.findall(r"^\| (\w+)/ \|", page.read_text(encoding="utf-8") if page.is_file() else "", re.MULTILINE)
    if rows != folders:
        yield f"docs/design.md has the folders {' '.join(rows)}; the order of includes is {' '.join(folders)}"


def problems(root, folders=()):
    root = Path(root)
    pages = sorted(p for p in root.rglob("*.md") if not any(part.startswith(".") or part == "build"
                                                            for part in p.relative_to(root).parts))
    texts, to = {page: page.read_text(encoding="utf-8") for page in pages}, {}
    for page, text in texts.items():
        name, to[page] = page.relative_to(root), set()
        for link in LINK.findall(prose(text)):
            if re.match(r"\w+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page.resolve()
            if not target.exists():
                yield f"{name}: the link {link} leads nowhere"
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
                yield f"{name}: {target.name} has no heading for #{anchor}"
            to[page].add(target)
    for page, text in texts.items():
        places = (root, root / "include/megacpp", root / "include", root / "tests", page.parent)
        for file in sorted(set(FILE.findall(text))):
            if not OTHER_FILES.search(file) and not any((place / file).exists() for place in places):
                yield f"{page.relative_to(root)}: there is no {file}"
    reached, seen = [root / "README.md"], set()
    while reached:
        page = reached.pop()
        if page not in seen and page in to:
            seen.add(page)
            reached += [p for p in pages if p.resolve() in to[page]]
    for page in pages:
        if root / "docs" in page.parents and page not in seen:
            yield f"{page.relative_to(root)}: no way of links leads there from README.md"
    for folder in FOLDERS:
        for source in sorted(p for p in (root / folder).rglob("*") if p.suffix in SOURCES):
            name = str(source.relative_to(root))
            for page in sorted(set(NAMED.findall(source.read_text(encoding="utf-8", errors="replace")))):
                if name in OTHERS and OTHERS[name] in (page, None):
                    continue
                if not (root / page).is_file():
                    yield f"{name} names {page}, which is not there"
    yield from unknown_tests(root)
    yield from map_problems(root, list(folders))


GOOD = {
    "README.md": "[a](docs/a.md) [b](docs/a.md#the-second-one) [c](#top) [d](https://e.org/none)\n\n# Top\n"
                 "[e](docs/evidence.md) [f](docs/design.md)\n",
    "docs/design.md": "| half | holds |\n|---|---|\n| graph/ | nodes |\n| run/ | tasks |\n",
    "docs/a.md": "# A: first\n\n## The second one\n\n`[x](none)` [b](b.md#a_bjson) [up](../README.md)\n"
                 "```cpp\n[](int i) {}\n# none\n```\n",
    "docs/b.md": "### `a_b.json`\n\nSee (src/a.cpp), graph/mesh.hpp, unit/one.cpp, megatron/core/a.py and unit/NAME.cpp.\n",
    "src/a.cpp": "// docs/a.md says it.\n",
    "include/megacpp/graph/mesh.hpp": "\n",
    "docs/evidence.md": "- `unit/one`, `two`\n  and `suite_three`: they pass.\n- By hand: `none`.\n",
    "tests/unit/one.cpp": "\n",
    "tests/CMakeLists.txt": "add_test(NAME two)\n",
    "tests/slow/suites.cmake": "suite(three)\n",
}
# name: file, text, words of the one sentence
BAD = {
    "a file": ("docs/b.md", GOOD["docs/b.md"] + "[x](none.md)\n", "none.md leads nowhere"),
    "a folder": ("docs/b.md", GOOD["docs/b.md"] + "[x](../none)\n", "../none leads nowhere"),
    "an anchor": ("docs/a.md", GOOD["docs/a.md"].replace("#a_bjson", "#a_b.json"), "no heading for #a_b.json"),
    "its own anchor": ("docs/b.md", GOOD["docs/b.md"] + "[x](#none)\n", "b.md has no heading for #none"),
    "a heading in code": ("docs/b.md", GOOD["docs/b.md"] + "[x](a.md#none)\n", "no heading for #none"),
    "a page alone": ("docs/c.md", "# C\n", "no way of links"),
    "a page of a folder alone": ("docs/c/d.md", "# D\n", "no way of links"),
    "a name of a folder": ("src/a.cpp", "// docs/c/none.md says it.\n", "docs/c/none.md, which is not there"),
    "a header": ("docs/b.md", GOOD["docs/b.md"] + "(graph/none.hpp)\n", "there is no graph/none.hpp"),
    "a map": ("docs/design.md", GOOD["docs/design.md"].replace("| graph/ | nodes |\n", ""), "has the folders run;"),
    "another order": ("docs/design.md", "| run/ | tasks |\n| graph/ | nodes |\n", "has the folders run graph;"),
    "a file of tests": ("docs/evidence.md", "- `unit/none`: it passes.\n", "no test unit/none"),
    "a test": ("docs/evidence.md", "- `two`, `none`: they pass.\n", "no test none"),
    "a suite": ("docs/evidence.md", "- `suite_none`: it passes.\n", "no test suite_none"),
    "a name": ("src/a.cpp", "// docs/none.md says it.\n", "docs/none.md, which is not there"),
}


def self_test():
    wrong = []
    for name, (file, text, says) in {"nothing": (None, None, None), **BAD}.items():
        with tempfile.TemporaryDirectory() as folder:
            for path, content in {**GOOD, **({file: text} if file else {})}.items():
                (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / path).write_text(content, encoding="utf-8")
            found = list(problems(folder, ["graph", "run"]))
            if len(found) != bool(file) or (file and says not in found[0]):
                wrong.append(f"{name}: {found}")
    print("\n".join(wrong + [f"self-test of links.py: {len(BAD) + 1} trees, {len(wrong)} judged wrongly"]))
    return bool(wrong)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "README.md").is_file():
        print(__doc__.strip(), file=sys.stderr)
        return 2
    found = list(problems(sys.argv[1], COMPILE_TIME + RUN_TIME + BOTH))
    print("\n".join(found + [f"{len(found)} problems"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
