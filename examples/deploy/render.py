"""Fills templates from a file of values: what render.sh does, whose head says how it is called.

A template is a file NAME.yaml.in, NAME.sbatch.in or NAME.py.in, in which ${NAME} stands for a value.
"""

import os
import re
import sys
import unicodedata
from pathlib import Path

HERE = Path(__file__).resolve().parent
VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")
INTEGER = re.compile(r"0|[1-9][0-9]{0,17}")
# Values that a shell takes as one word without quotes; so does Slurm in a line of #SBATCH.
PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:@%+,-][A-Za-z0-9_./:@%+=,-]*")
# Kubernetes puts a variable of the container in the place of $(NAME) in commands, arguments and variables, and $ in that of $$.
EXPANDED = re.compile(r"\$\([A-Za-z_.-][\w.-]*\)")
UNSEEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}  # categories of Unicode
# Hangul has fillers, which are letters by their category.
FILLERS = set("\u115f\u1160\u3164\uffa0")
MAY_BE_EMPTY = {"HTTPS_PROXY", "NO_PROXY"}


class refusal(Exception):
    """A sentence about what is wrong, where, and what to do."""


def templates():
    """The templates of this folder by name, such as kubernetes/volumes."""
    found = [path for path in HERE.rglob("*.in") if path.suffixes[-2:-1] in ([".yaml"], [".sbatch"], [".py"])]
    return {str(path.relative_to(HERE)).split(".")[0]: path for path in sorted(found)}


def chosen(names):
    """The templates that names mean, in the order of their names."""
    all_of_them, result = templates(), {}
    for name in names or [""]:
        own = {n: p for n, p in all_of_them.items() if not name or n == name or n.startswith(name.rstrip("/") + "/")}
        if not own:
            raise refusal(f"there is no template {name}; --list prints what there is")
        result.update(own)
    return dict(sorted(result.items()))


def is_unseen(character):
    """Whether a terminal shows nothing for a character, or a blank that is none of a keyboard's."""
    return character not in " \t" and unicodedata.category(character) in UNSEEN or character in FILLERS


def variables(text):
    return set(VARIABLE.findall(text))


def read_values(path):
    """The values of a file by name. Throws a refusal."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
        if lines[0].startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
            raise refusal(f"{path} begins with a byte order mark; save it as UTF-8 without one")
    except OSError as problem:
        raise refusal(f"{path} cannot be read ({problem.strerror}); name a file with lines NAME=value") from None
    values = {}
    for number, raw in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise refusal(f"{where} is not UTF-8; write it so") from None
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            raise refusal(f"{where} is no NAME=value, with a name of capital letters, digits and _; "
                          "write it so, or begin it with #")
        if value.endswith("\r"):
            raise refusal(f"{where} ends with a carriage return, as files of Windows do; remove these")
        if any(map(is_unseen, value)):
            raise refusal(f"{where}: {name} has a character that no terminal shows; remove it")
        if value != value.strip():
            raise refusal(f"{where}: {name} begins or ends with a blank; remove it")
        if not value and name not in MAY_BE_EMPTY:
            raise refusal(f"{where}: {name} has no value; give it one")
        if name in values:
            raise refusal(f"{where}: {name} is set for the second time; remove one of the two lines")
        values[name] = value
    return values


def places(line):
    """The variables of a line of YAML, each with where it stands: in "quotes", in a "comment", or "bare"."""
    quoted, at = False, 0
    while at < len(line):
        if match := VARIABLE.match(line, at):
            yield match, "quotes" if quoted else "bare"
            at = match.end()
        elif quoted and line[at] == "\\":
            at += 2
        elif line[at] == '"':
            quoted, at = not quoted, at + 1
        elif not quoted and line[at] == "#" and (at == 0 or line[at - 1].isspace()):
            yield from ((match, "comment") for match in VARIABLE.finditer(line, at))
            return
        else:
            at += 1


def in_yaml(line, values, where):
    """A line of YAML or Python with its values: in double quotes with what these need, elsewhere integers alone."""
    out, done = "", 0
    for match, place in places(line):
        name = match.group(1)
        value = values[name]
        if place == "bare" and not INTEGER.fullmatch(value):
            raise refusal(f"{name} is \"{value}\", but {where} needs an integer; give one")
        if place == "bare" and int(value) > (most := 65535 if name.endswith("_PORT") else 2**31 - 1):
            raise refusal(f"{name} is {value}, but {where} takes no number above {most}; give a smaller one")
        if place == "bare" and name.endswith("_PORT") and int(value) < 1:
            raise refusal(f"{name} is {value}, but {where} needs a port, which is at least 1; give another one")
        if place == "quotes":
            if EXPANDED.search(value):
                raise refusal(f"{name} has {EXPANDED.search(value).group()}, in whose place Kubernetes would put a "
                              f"variable of the container ({where}); remove it")
            if "$$" in value:
                raise refusal(f"{name} has $$, in whose place Kubernetes would put $ ({where}); remove one of the two")
            value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
        out += line[done:match.start()] + value
        done = match.end()
    return out + line[done:]


def in_script(line, values, where):
    """A line of a script with its values, each as one word of the shell."""

    def word(match):
        name = match.group(1)
        value = values[name]
        if PLAIN_WORD.fullmatch(value):
            return value
        if line.startswith("#"):
            raise refusal(f"{name} is \"{value}\", which Slurm does not take as one word ({where}); give one of "
                          "letters, digits and _./:@%+=,-")
        return "'" + value.replace("'", "'\\''") + "'"

    return VARIABLE.sub(word, line)


def filled(path, values):
    """The text of a template with its values. Throws a refusal."""
    fill = in_script if ".sbatch" in path.suffixes else in_yaml
    lines = path.read_text(encoding="utf-8").split("\n")
    return "\n".join(fill(line, values, f"{path.relative_to(HERE)}, line {number}")
                     for number, line in enumerate(lines, 1))


def write(path, text, mode):
    """A file that has its name when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new-{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8", newline="")
        new.chmod(mode)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def render(values_file, out, names):
    wanted, values = chosen(names), read_values(values_file)
    texts = {path: path.read_text(encoding="utf-8") for path in templates().values()}
    known = set().union(*map(variables, texts.values()))
    for name in sorted(values.keys() - known):
        raise refusal(f"{values_file} sets {name}, which no template has; values.example has all names")
    for template, path in wanted.items():
        for name in sorted(variables(texts[path]) - values.keys()):
            raise refusal(f"{values_file} does not set {name}, which {template} needs; values.example says what it is")
    if {"NUM_NODES", "NUM_WORKERS"} <= set().union(*(variables(texts[path]) for path in wanted.values())):
        nodes, workers = values["NUM_NODES"], values["NUM_WORKERS"]
        if INTEGER.fullmatch(nodes) and INTEGER.fullmatch(workers) and int(workers) != int(nodes) - 1:
            raise refusal(f"NUM_WORKERS is {workers} and NUM_NODES is {nodes}; the first node is no worker, so give one less")
    results = {path: filled(path, values) for path in wanted.values()}
    for path, text in results.items():
        try:
            write(Path(out) / path.relative_to(HERE).with_suffix(""), text, path.stat().st_mode & 0o777)
        except OSError as problem:
            raise refusal(f"{problem.filename or out} cannot be written ({problem.strerror}); name another folder") from None


def main(words):
    try:
        if words[:1] in (["-h"], ["--help"]):
            head = (HERE / "render.sh").read_text(encoding="utf-8").split("\nset ")[0]
            print("\n".join(line[2:] for line in head.split("\n")[1:]))
        elif words[:1] == ["--list"] and len(words) == 1:
            print("\n".join(templates()))
        elif words[:1] == ["--names"]:
            texts = (path.read_text(encoding="utf-8") for path in chosen(words[1:]).values())
            print(" ".join(f"${{{name}}}" for name in sorted(set().union(*map(variables, texts)))))
        elif len(words) >= 2 and not any(word.startswith("-") for word in words):
            render(words[0], words[1], words[2:])
        else:
            raise refusal("give VALUES and OUT; --help shows more")
    except refusal as sentence:
        print(f"render.sh: {sentence}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
