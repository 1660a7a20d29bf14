#!/usr/bin/env python3
"""Code and commands in README.md, README.ko.md, CONTRIBUTING.md and docs/ are those that tests compile and run.

    snippets.py ROOT                        checks every fenced block
    snippets.py ROOT --write                takes over the text of the sources
    snippets.py ROOT --commands FILE NAME   the commands of a block, as a test runs them
    snippets.py ROOT --printed PROGRAM BINARY [--write]
                                            checks, or takes over, what examples/PROGRAM.cpp prints
    snippets.py --self-test

The line above a fence says what the block is:

    <!-- snippet: FILE -->                  a file of the repository, or a part of it:
    <!-- snippet: FILE#PART -->             the lines between one with [PART] and one with [/PART]
    <!-- snippet: FILE, struct NAME -->     the members of a struct, down to the first empty line
    <!-- packages: cmake/apt_install.sh --> what the script installs for a build, and nothing else
    <!-- sentence: FILE -->                 a text that stands in the file, broken into other lines
    <!-- commands: NAME -->                 a script of tests/ runs it: documented FILE NAME
    <!-- commands, not run: REASON -->
    <!-- commands as in PAGE -->            commands that follow each other in a block of PAGE, which a marker above says to
                                            be commands; comments may be others. Pages in Korean have no other commands
    <!-- printed: PROGRAM#PART -->          what examples/PROGRAM.cpp prints below "# [PART]"
    <!-- output: CASE COMPILER -->          tests/compile_fail/documented.py checks it
    <!-- text -->                           neither code nor commands

Numbers that would take a test too long are replaced by those of SUBSTITUTIONS.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGES = ["README.md", "README.ko.md", "CONTRIBUTING.md"]
KOREAN = re.compile(r"README\.ko\.md|docs/ko/.*")
SUBSTITUTIONS = [
    (r"--train-iters 2000\b", "--train-iters 40"),  # goes on
    (r"--train-iters (?!40\b)\d+", "--train-iters 20"),
    (r"--lr-warmup-iters \d+", "--lr-warmup-iters 2"),
    (r"--save-interval \d+", "--save-interval 10"),
    (r"--max-new-tokens \d+", "--max-new-tokens 20"),
    (r"sequence=2048 micro-batch=1\b", "sequence=128 micro-batch=16 precision=fp32"),
    (r"--epochs \d+", "--epochs 1"),
    (r"--prompt '785 3974 13876'", "--prompt '78 39 138'"),  # of a smaller vocabulary
]
FENCE = re.compile(r"^( *)```(\w*)$")
MARKER = re.compile(r"^ *<!-- (.*) -->$")
PART = re.compile(r"^\s*(?://|#) \[(/?[\w-]+)\]$")


class Block:
    def __init__(self, page, number, marker, language, lines, first):
        self.page, self.number, self.marker = page, number, marker
        self.language, self.lines, self.first = language, lines, first


def blocks_of(page, text):
    lines, blocks, at = text.split("\n"), [], 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if not fence:
            at += 1
            continue
        end = at + 1
        while end < len(lines) and lines[end].strip() != "```":
            end += 1
        marker = MARKER.match(lines[at - 1]) if at else None
        body = [line[len(fence.group(1)):] for line in lines[at + 1:end]]
        blocks.append(Block(page, at + 1, marker and marker.group(1), fence.group(2), body, at + 1))
        at = end + 1
    return blocks


def dedented(lines):
    lines = [line.rstrip() for line in lines]
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    depth = min((len(line) - len(line.lstrip()) for line in lines if line), default=0)
    return [line[depth:] for line in lines]


def part_of(text, name):
    """The lines of a part, without the lines that mark parts; None if there is no such part."""
    out, inside, found = [], False, False
    for line in text.split("\n"):
        mark = PART.match(line)
        if mark:
            if mark.group(1) == name:
                inside = found = True
            elif mark.group(1) == "/" + name:
                inside = False
        elif inside:
            out.append(line)
    return None if inside or not found else dedented(out)


def members_of(text, name):
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if line == f"struct {name} {{":
            end = at
            while lines[end].strip() and lines[end] != "};":
                end += 1
            return lines[at:end] + ["  ..." if lines[end] != "};" else "};"]
    return None


def source_of(root, what):
    """The lines that a snippet must have, or a sentence about what is wrong."""
    match = re.fullmatch(r"([^#, ]+)(?:#([\w-]+)|, struct (\w+))?", what)
    if not match or not (root / match.group(1)).is_file():
        return f"{what} names no file"
    text = (root / match.group(1)).read_text(encoding="utf-8")
    if match.group(2):
        return part_of(text, match.group(2)) or f"{match.group(1)} has no part [{match.group(2)}]"
    if match.group(3):
        return members_of(text, match.group(3)) or f"{match.group(1)} has no struct {match.group(3)}"
    return dedented([line for line in text.split("\n") if not PART.match(line)])


def solid(text):
    return re.sub(r'[\s"]+', "", text)


def runs(scripts, page, name):
    """Whether a line of the scripts is the command that runs a block: not of a longer name, not
    commented out."""
    line = rf"\s*documented {re.escape(page)} {re.escape(name)}(\s+#.*)?\s*"
    return any(re.fullmatch(line, text) for text in scripts.split("\n"))


def commands_of(lines):
    """The commands of a block, each as one line, without comments and with single blanks."""
    text = re.sub(r"(?m)(^|\s)# .*$", "", "\n".join(lines))
    text = re.sub(r"\\\n", " ", text)
    return [" ".join(line.split()) for line in text.split("\n") if line.strip()]


def problem_as_in(root, block, page):
    """What is wrong with a block whose commands are those of another page; None: nothing."""
    if page == block.page or not (root / page).is_file():
        return f"{page} names no other page"
    wanted = commands_of(block.lines)
    others = [commands_of(other.lines) for other in blocks_of(page, (root / page).read_text(encoding="utf-8"))
              if re.match("commands(, not run)?: ", other.marker or "")]
    for other in others:
        if any(wanted == other[at:at + len(wanted)] for at in range(len(other))):
            return None
    known = {command for other in others for command in other}
    for command in wanted:
        if command not in known:
            return f"{page} has no command '{command}'"
    return f"no block of {page} has these commands one after the other"


def problem(root, block, scripts):
    if block.marker is None:
        return "the block has no source: a comment above it must say what it is"
    as_in = re.fullmatch(r"commands as in (\S+)", block.marker)
    if as_in:
        return problem_as_in(root, block, as_in.group(1))
    if KOREAN.fullmatch(block.page) and block.marker.startswith("commands"):
        return "commands of a page in Korean are those of a page in English: <!-- commands as in PAGE -->"
    kind, _, what = block.marker.partition(": ")
    if kind == "snippet":
        source = source_of(root, what)
        if isinstance(source, str):
            return source
        if source != block.lines:
            return f"differs from {what} (--write takes it over)"
    elif kind == "sentence":
        if not (root / what).is_file():
            return f"{what} names no file"
        if solid("\n".join(block.lines)) not in solid((root / what).read_text(encoding="utf-8")):
            return f"does not stand in {what}"
    elif kind == "packages":
        listed = re.search(r"build_packages=\(([^)]*)\)", (root / what).read_text(encoding="utf-8"))
        words = " ".join(block.lines).replace("\\", " ").split()
        if words[:3] != ["sudo", "apt-get", "install"] or words[3:] != listed.group(1).split():
            return f"the packages are not those of {what}, in its order"
    elif kind == "commands":
        if not runs(scripts, block.page, what):
            return f"no script of tests/ has 'documented {block.page} {what}'"
    elif kind == "output":
        if not re.fullmatch(r"\w+ (g\+\+|clang\+\+)", what):
            return "an output is of a case and a compiler, g++ or clang++"
        if not (root / "tests/compile_fail" / f"{what.split()[0]}.cpp").is_file():
            return f"there is no case {what.split()[0]}"
    elif kind == "printed":
        if not (root / "examples" / f"{what.partition('#')[0]}.cpp").is_file():
            return f"there is no program examples/{what.partition('#')[0]}.cpp"
    elif kind == "text":
        if block.language:
            return f"a text is not written in {block.language}"
    elif not (kind == "commands, not run" and what):
        return f"unknown kind of block '{block.marker}'"
    return None


def pages_of(root):
    return PAGES + sorted(str(p.relative_to(root)) for p in (root / "docs").rglob("*.md"))


def replaced(lines, block, source):
    """Puts the lines of a source in the place of those of a block."""
    indent = " " * (len(lines[block.first - 1]) - len(lines[block.first - 1].lstrip()))
    lines[block.first:block.first + len(block.lines)] = [
        indent + line if line else line for line in source]


def printed(root, program, binary, write):
    """Compares what a program prints, part by part, with the blocks that show it."""
    parts = {}
    for line in subprocess.run([binary], check=True, capture_output=True, text=True).stdout.split("\n"):
        mark = PART.match(line)
        if mark:
            body = parts.setdefault(mark.group(1), [])
        elif line:
            body.append(line.rstrip())
    shown, failures = set(), 0
    for page in pages_of(root):
        text = (root / page).read_text(encoding="utf-8")
        lines = text.split("\n")
        for block in reversed(blocks_of(page, text)):
            kind, _, what = (block.marker or "").partition(": ")
            if kind != "printed" or what.partition("#")[0] != program:
                continue
            part = what.partition("#")[2]
            shown.add(part)
            if part not in parts:
                failures += 1
                print(f"{page}:{block.number}: {program} prints no part [{part}]")
            elif block.lines != parts[part]:
                failures += not write
                replaced(lines, block, parts[part])
                print(f"{page}:{block.number}: {'is now' if write else 'differs from'} what {program} prints")
        if write:
            (root / page).write_text("\n".join(lines), encoding="utf-8")
    for part in parts.keys() - shown:
        failures += 1
        print(f"no page shows the part [{part}] of {program}")
    print(f"{len(shown)} parts of {program}, {failures} problems")
    return 1 if failures or not shown else 0


def check(root, write):
    scripts = "\n".join(p.read_text(encoding="utf-8") for p in sorted((root / "tests").rglob("*.sh")))
    count = failures = 0
    for page in pages_of(root):
        text = (root / page).read_text(encoding="utf-8")
        blocks = blocks_of(page, text)
        if write:
            lines = text.split("\n")
            for block in reversed(blocks):
                kind, _, what = (block.marker or "").partition(": ")
                source = source_of(root, what) if kind == "snippet" else ""
                if not isinstance(source, str):
                    replaced(lines, block, source)
            (root / page).write_text("\n".join(lines), encoding="utf-8")
            blocks = blocks_of(page, "\n".join(lines))
        for block in blocks:
            count += 1
            found = problem(root, block, scripts)
            if found:
                failures += 1
                print(f"{page}:{block.number}: {found}")
    print(f"{count} blocks, {failures} problems")
    return 1 if failures or not count else 0


def commands(root, page, name):
    for block in blocks_of(page, (root / page).read_text(encoding="utf-8")):
        if block.marker == f"commands: {name}":
            text = "\n".join(block.lines)
            for pattern, replacement in SUBSTITUTIONS:
                text = re.sub(pattern, replacement, text)
            print(text)
            return 0
    print(f"{page} has no block 'commands: {name}'", file=sys.stderr)
    return 1


# What must be accepted, and what refused: the page, and whether it is right.
SOURCE = "// [part]\n  int x;\n\n  // [inner]\n  int y;\n  // [/inner]\n// [/part]\nint z;\n"
SCRIPTS = """documented p.md build
  documented p.md twice # the second time
# documented p.md clean
documented p.md install-all
echo documented p.md test
"""
SELF_TEST = [
    ("<!-- snippet: a.hpp#part -->\n```cpp\nint x;\n\nint y;\n```\n", True),
    ("<!-- snippet: a.hpp#inner -->\n```cpp\nint y;\n```\n", True),
    ("<!-- snippet: a.hpp#part -->\n```cpp\nint x;\n```\n", False),
    ("<!-- snippet: a.hpp#other -->\n```cpp\nint x;\n```\n", False),
    ("<!-- snippet: b.hpp -->\n```cpp\nint x;\n```\n", False),
    ("```cpp\nint x;\n```\n", False),
    ("1. a list\n\n   <!-- snippet: a.hpp#inner -->\n   ```cpp\n   int y;\n   ```\n", True),
    ("<!-- text -->\n```\nx = y\n```\n", True),
    ("<!-- text -->\n```cpp\nint x;\n```\n", False),
    ("<!-- commands: build -->\n```\nmake\n```\n", True),
    ("<!-- commands: twice -->\n```\nmake\n```\n", True),
    ("<!-- commands: clean -->\n```\nmake clean\n```\n", False),
    ("<!-- commands: install -->\n```\nmake install\n```\n", False),
    ("<!-- commands: test -->\n```\nmake test\n```\n", False),
    ("<!-- commands: b.ild -->\n```\nmake\n```\n", False),
    ("<!-- commands, not run: it takes a day -->\n```\nmake world\n```\n", True),
    ("<!-- sentence: a.hpp -->\n```\nint\nx;\n```\n", True),
    ("<!-- sentence: a.hpp -->\n```\nint w;\n```\n", False),
    ("<!-- printed: no_program#part -->\n```\nx\n```\n", False),
]
# The same of a page in Korean, beside this page in English.
ENGLISH = """<!-- commands: build -->
```
./run train --load a \\
  --save b --lr 1e-4        # the words of one page
./run eval --load b
# more
./run export --load b --save c#d
```
<!-- text -->
```
./run describe
```
"""
KOREAN_SELF_TEST = [
    ("as in docs/e.md", "./run train --load a --save b --lr 1e-4  # 다른 말\n./run eval --load b", True),
    ("as in docs/e.md", "./run eval --load b\n# 설명\n./run export --load b \\\n  --save c#d", True),
    ("as in docs/e.md", "./run train --load a --save b --lr 1e-5", False),
    ("as in docs/e.md", "./run train --load a --sav b --lr 1e-4", False),
    ("as in docs/e.md", "./run train --load a", False),
    ("as in docs/e.md", "./run train --load a --save b --lr 1e-4\n./run export --load b --save c#d", False),
    ("as in docs/e.md", "./run export --load b --save c", False),
    ("as in docs/e.md", "./run describe", False),
    ("as in docs/none.md", "./run eval --load b", False),
    ("as in docs/ko/p.md", "./run eval --load b", False),
    (": build", "./run eval --load b", False),
    (", not run: it takes a day", "./run eval --load b", False),
]


def self_test():
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "a.hpp").write_text(SOURCE, encoding="utf-8")
        for page, right in SELF_TEST:
            (block,) = blocks_of("p.md", page)
            found = problem(root, block, SCRIPTS)
            if (found is None) != right:
                failures += 1
                print(f"self-test: judged wrongly ({found}):\n{page}")
        (root / "docs/ko").mkdir(parents=True)
        (root / "docs/e.md").write_text(ENGLISH, encoding="utf-8")
        for marker, lines, right in KOREAN_SELF_TEST:
            marker = f"<!-- commands{' ' if marker[0] == 'a' else ''}{marker} -->"
            page = f"{marker}\n```\n{lines}\n```\n"
            (root / "docs/ko/p.md").write_text(page, encoding="utf-8")
            (block,) = blocks_of("docs/ko/p.md", page)
            found = problem(root, block, SCRIPTS)
            if (found is None) != right:
                failures += 1
                print(f"self-test: judged wrongly ({found}):\n{page}")
    print(f"self-test of snippets.py: {len(SELF_TEST) + len(KOREAN_SELF_TEST)} pages, {failures} judged wrongly")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = Path(sys.argv[1])
    if len(sys.argv) == 5 and sys.argv[2] == "--commands":
        return commands(root, sys.argv[3], sys.argv[4])
    if len(sys.argv) >= 5 and sys.argv[2] == "--printed":
        return printed(root, sys.argv[3], sys.argv[4], sys.argv[5:] == ["--write"])
    return check(root, sys.argv[2:] == ["--write"])


if __name__ == "__main__":
    sys.exit(main())
