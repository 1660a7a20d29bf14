#!/usr/bin/env python3
"""Flags, keys of builds and variables that some pages name are real.

    flags_named.py ROOT
    flags_named.py --self-test

The pages are those in Korean (README.ko.md, docs/ko/), and those for people who come from another program. Their code
within lines, not in blocks, is read:

- A flag (--save), a key of a build (tp=2) or a variable (MASTER_PORT) stands in the tables of the headers, in
  examples/deploy/values.example, or in another page in English.
- In the pages of COMPARED a column "in ..." has what the other program is given, and a column "here" what there is
  instead. Outside of the latter a flag may also be one that megacpp's programs know of the other program
  (cli/foreign_flags.hpp), so that they answer it with what there is here; in a column "in ..." it must be one, or have
  the same name here or in another page. Columns "in ..." of torchrun, whose flags no program gets, are not read.
"""

import re
import sys
import tempfile
from pathlib import Path

HEADERS = "include/megacpp"
COMPARED = {"docs/megatron.md": True, "docs/hugging-face-trainer.md": True, "docs/torchrun.md": False}
MISSPELT = {"docs/megatron.md": ["--train-itres"]}  # as an example
FLAG_MACRO = re.compile(r"MEGACPP_FLAG\(\s*\w+,\s*(\w+)")
SPAN = re.compile(r"`([^`\n]+)`")
FLAG = re.compile(r"(?<![\w-])--[A-Za-z][\w.-]*")
KEY = re.compile(r"(?<![\w./$-])[a-z][a-z0-9-]*=")
VARIABLE = re.compile(r"(?<![\w-])[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9]\b")


def own_flags(root):
    """The flags of programs, and the names of keys, as the headers declare them."""
    flags, keys = set(), set()
    for file in sorted((root / HEADERS).rglob("*.hpp")):
        text = file.read_text(encoding="utf-8")
        flags.update("--" + name.replace("_", "-") for name in FLAG_MACRO.findall(text))
        if file.name == "build_keys.hpp":
            flags.update("--" + name for name in re.findall(r'\.flag = "([^"]+)"', text))
            keys.update(name + "=" for name in re.findall(r'\.script = "([^"]+)"', text))
    return flags, keys


def foreign(root):
    """The names of other programs' flags, some of which end in *."""
    file = root / HEADERS / "cli/foreign_flags.hpp"
    text = re.sub(r"//.*", "", file.read_text(encoding="utf-8")) if file.is_file() else ""
    return {word for literal in re.findall(r'"([^"]*)"', text) for word in re.split(r"[ |]", literal) if word}


def code_of(text):
    """All code of a page, in blocks and within lines."""
    return "\n".join(re.findall(r"^ *```\w*\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL) + SPAN.findall(text))


def without_blocks(text):
    return re.sub(r"^( *)```.*?^\1```$", lambda m: "\n" * m.group().count("\n"), text, flags=re.MULTILINE | re.DOTALL)


def names_of(code):
    return FLAG.findall(code) + KEY.findall(code) + VARIABLE.findall(code)


def cells_of(text):
    """(number of the line, head of its column, cell) of tables, and (number, "", line) of everything else."""
    heads = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("|"):
            heads = []
            yield number, "", line
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        heads = heads or cells
        yield from ((number, head, cell) for head, cell in zip(heads, cells))


def problems(root):
    root = Path(root)
    english = {p: p.read_text(encoding="utf-8") for p in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
               if p.is_file() and root / "docs/ko" not in p.parents}
    flags, keys = own_flags(root)
    values = root / "examples/deploy/values.example"
    of_values = set(names_of(values.read_text(encoding="utf-8"))) if values.is_file() else set()
    others, known_to = foreign(root), {p: set(names_of(code_of(text))) for p, text in english.items()}

    def known_foreign(flag):
        name = flag[2:].replace("_", "-")
        return ("--" + name in flags or any(name == one.replace("_", "-") for one in others) or
                any(one.endswith("*") and name.startswith(one[:-1]) for one in others))

    korean = [p for p in [root / "README.ko.md", *sorted((root / "docs/ko").rglob("*.md"))] if p.is_file()]
    for page in korean + [root / name for name in COMPARED if (root / name).is_file()]:
        name = str(page.relative_to(root))
        known = flags | keys | of_values | {n for p, names in known_to.items() if p != page for n in names}
        for number, head, cell in cells_of(without_blocks(page.read_text(encoding="utf-8"))):
            code = "\n".join(SPAN.findall(cell))
            theirs = head.startswith("in ") and name in COMPARED
            for what in names_of(code) if not theirs else FLAG.findall(code) if COMPARED[name] else ():
                if what in MISSPELT.get(name, ()) or what in known:
                    continue
                if head == "here" or not COMPARED.get(name):
                    yield f"{name}:{number}: {what} stands in no header, and in no other page in English"
                elif not (what.startswith("--") and known_foreign(what)):
                    yield f"{name}:{number}: cli/foreign_flags.hpp has no {what}, so that a program cannot say what there is here"


GOOD = {
    f"{HEADERS}/options/options.hpp": "MEGACPP_FLAG(text, save_to, is()); MEGACPP_FLAG(\n  whole, steps, is(0));\n",
    f"{HEADERS}/options/build_keys.hpp": '.script = "tp", .flag = "tensor-size"\n',
    f"{HEADERS}/cli/foreign_flags.hpp": '// "none"\nmeans("steps", "max-steps num_steps fsdp-*");\n',
    "examples/deploy/values.example": "NUM_NODES=2\n",
    "README.md": "`MASTER_PORT`\n```\ntorchrun --nproc-per-node 8\n```\n",
    "docs/ko/a.md": "`--save-to` `--tensor-size` `tp=2` `NUM_NODES` `MASTER_PORT` `--nproc-per-node 8`\n```\n--none\n```\n",
    "docs/megatron.md": "| in theirs | here |\n|---|---|\n| `--max-steps` `--num_steps` `--fsdp-a` `--steps` | `--steps` |\n",
    "docs/torchrun.md": "| in theirs | here |\n|---|---|\n| `--none` | `tp=2` |\n",
}
# name: file, text, words of the one sentence
BAD = {
    "a flag": ("docs/ko/a.md", "`--save-too`\n", "--save-too stands in no header"),
    "a key": ("docs/ko/a.md", "`tpp=2`\n", "tpp= stands in no header"),
    "a variable": ("README.ko.md", "`NUM_NODE`\n", "NUM_NODE stands in no header"),
    "a flag here": ("docs/megatron.md", "| in theirs | here |\n|---|---|\n| `--steps` | `--step` |\n", "--step stands"),
    "a key here": ("docs/torchrun.md", "| in theirs | here |\n|---|---|\n| `--none` | `zz=2` |\n", "zz= stands"),
    "a flag there": ("docs/megatron.md", "| in theirs | here |\n|---|---|\n| `--nowhere` | `--steps` |\n", "has no --nowhere"),
    "a flag in the text": ("docs/torchrun.md", "`--none`\n", "--none stands"),
}


def self_test():
    wrong = []
    for name, (file, text, says) in {"nothing": (None, None, None), **BAD}.items():
        with tempfile.TemporaryDirectory() as folder:
            for path, content in {**GOOD, **({file: text} if file else {})}.items():
                (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / path).write_text(content, encoding="utf-8")
            found = list(problems(folder))
            if len(found) != bool(file) or (file and says not in found[0]):
                wrong.append(f"{name}: {found}")
    print("\n".join(wrong + [f"self-test of flags_named.py: {len(BAD) + 1} trees, {len(wrong)} judged wrongly"]))
    return bool(wrong)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / HEADERS).is_dir():
        print(__doc__.strip(), file=sys.stderr)
        return 2
    found = list(problems(sys.argv[1]))
    print("\n".join(found + [f"{len(found)} problems"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
