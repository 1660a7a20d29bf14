#!/usr/bin/env python3
"""Counts what this project wants less of, and lets no count grow.

    ratchet.py ROOT            compares what it counts with the figures of tests/structure/ratchet.txt
    ratchet.py ROOT --write    writes the figures anew
    ratchet.py ROOT --list RULE    prints every place that a rule counts
    ratchet.py --self-test

A figure is a rule, what it is counted in (a file, as a rule), and a number. A count above its figure fails
with the places; one below it fails, too, and asks for --write, so that figures only fall. A rule without
figures is absolute. The rules are the functions below RULES, whose first lines say what they count.
"""

import argparse
import contextlib
import io
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from declared import blank, names

HEADERS = "include/megacpp"
FIGURES = "tests/structure/ratchet.txt"
WORDS = "docs/words.md"
# Rooms behind the command line, which take request values and not flags, and those of data.
BEHIND = ["inputs", "states", "train", "generate"]
DATA = ["data", "tokenizer", "sets", "chat"]
FLAGS = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"')
GROUPS = "model|data|training|optimizer|sampling|report|machine"

# Words that begin no docstring, since they leave open what is documented.
PREPOSITIONS = """about above across after against along among around as at before behind below beside besides
    between beyond by down during for from in inside into like near of off on onto out outside over per since
    through till to toward under until unto up upon via with within without"""
PRONOUNS = """anybody anyone anything everybody everyone everything he her his it its itself nobody none nothing
    one's our she somebody someone something their them themselves they us we you your"""
RELATIVES = "how that's what whatever when whenever where whereas wherever which whichever who whoever whom whose why"
CONJUNCTIONS = "although and because but either else if lest neither nor once or so than though unless whether while yet"
ADJECTIVES = "true false null"  # of a function's result, which has no name there
REFUSED = set(f"{PREPOSITIONS} {PRONOUNS} {RELATIVES} {CONJUNCTIONS} {ADJECTIVES}".split())
# Pronouns where no noun follows them, else determiners.
EITHER = set("""all another any both each every few it many more most one other others same several some such
    that the these this those""".split())
NO_NOUN = REFUSED | set("""a alone also an are be can could did do does had has have is may might must not only same
    should that the these this those was were will would""".split()) - {"one's", "true", "false"}


class tree:
    """The files of a checkout, each read once."""

    def __init__(self, root):
        self.root, self.texts = Path(root), {}

    def text(self, path):
        if path not in self.texts:
            self.texts[path] = Path(self.root / path).read_text(encoding="utf-8")
        return self.texts[path]

    def files(self, folder, *endings):
        where = self.root / folder
        return [str(p.relative_to(self.root)) for p in sorted(where.rglob("*")) if p.suffix in endings]

    def headers(self, rooms=None):
        """The headers, or those of some rooms, as far as these are there."""
        if rooms is None:
            return self.files(HEADERS, ".hpp", ".inc", ".cuh")
        return [file for room in rooms for file in self.files(f"{HEADERS}/{room}", ".hpp", ".inc", ".cuh")]

    def sources(self):
        """The sources of every program."""
        return self.files("src", ".cpp", ".hpp", ".cu", ".in") + self.files("cmake", ".cpp", ".hpp", ".cu")


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def found(tree, files, pattern, change=blank):
    """(file, line, what) of everything that matches in files, whose text is changed so before."""
    for file in files:
        text = change(tree.text(file))
        for match in re.finditer(pattern, text):
            yield file, line_of(text, match.start()), match.group()


def options_taken(tree):
    """A function or member behind the command line takes flags: options, or a group of them."""
    return found(tree, tree.headers(BEHIND), rf"\b(?:options|(?:{GROUPS})_flags)&")


def options_read(tree):
    """A flag is read behind the command line."""
    for file in tree.headers(BEHIND):
        text = blank(tree.text(file))
        whole = set(re.findall(r"\boptions&? (\w+)", text)) | {"o_"}
        group = set(re.findall(rf"\b(?:{GROUPS})_flags& (\w+)", text))
        pattern = "|".join([rf"\b(?:{'|'.join(whole)})\.(?:{GROUPS}|compiled|experts)\.\w+"] +
                           [rf"(?<![.\w])(?:{'|'.join(group)})\.\w+"] * bool(group))
        yield from ((file, line_of(text, m.start()), m.group()) for m in re.finditer(pattern, text))


def flag_names(tree):
    """A message behind the command line or of data names a flag."""
    for file in tree.headers(DATA + BEHIND):
        for number, line in enumerate(tree.text(file).splitlines(), 1):
            if not line.lstrip().startswith("//"):
                for literal in LITERAL.findall(line):
                    yield from ((file, number, flag) for flag in FLAGS.findall(literal))


def refusals(tree):
    """A function refuses flags: rules about flags beside flags are one table."""
    for file in tree.headers(["options", "cli"] + BEHIND):
        for number, kind, name in names(tree.text(file)):
            if kind == "function" and name.startswith("refuse_"):
                yield file, number, name


def comments(text):
    """(line, lines) of the comments that stand on lines of their own."""
    lines, at = text.split("\n"), 0
    own = re.compile(r"\s*(///?)(?![/<]) ?(.*)$")
    while at < len(lines):
        first, start, body = own.match(lines[at]), at, []
        while at < len(lines) and (match := own.match(lines[at])) and match[1] == first[1]:
            body.append(match[2])
            at += 1
        if body:
            yield start + 1, body
        at += not body


def trailing(text):
    """(line, text) of the comments behind members, whose lines are joined."""
    at, lines = 0, text.split("\n")
    while at < len(lines):
        start, behind = at, re.search(r"\S.*///< ?(.*)$", lines[at])
        at += 1
        if behind:
            body = [behind[1]]
            while at < len(lines) and (more := re.match(r"\s*///< ?(.*)$", lines[at])):
                body.append(more[1])
                at += 1
            yield start + 1, " ".join(body)


def is_sentence(text):
    """Whether a comment behind a member is a sentence, and no phrase such as "width of a head"."""
    return re.match(r"[A-Z][a-z]+ ", text) or text.endswith(".") and len(text.split()) > 3


def is_code(line):
    """Whether the line of a comment is an equation, a table or a name rather than prose."""
    prose = re.match(r"[A-Z][a-z'-]+ [a-z]", line)  # a colon or an arrow may follow
    equation = not prose and re.search(r"^.{1,30}: | (?:=|->|\+=) ", line)
    return equation or re.search(r"^\s\s|^[`\[({\"<+-]|^\w+$|^NOLINT|-----", line)


def fault_of_start(words):
    """Why a docstring may not begin so; None: it may."""
    word = words[0].lower()
    if word in REFUSED:
        return f"begins with '{words[0]}'"
    at = 1 if word in ("the", "a", "an", "all") and len(words) > 1 and words[1].lower() in EITHER else 0
    if words[at].lower() in EITHER and (len(words) == at + 1 or words[at + 1].lower() in NO_NOUN - {"a", "an", "the"}):
        return f"begins with '{' '.join(words[:at + 2])}', where no noun follows"
    return None


WORD_OF_START = re.compile(r"[A-Za-z][\w'-]*|\d+|[^\w\s]")
SUBJECTS = "a an no there two three four five six seven eight nine ten".split()  # beside EITHER
# A token is a name, and no word of a sentence: f(x), a_b, config.json, cuBLASLt, RMSNorm, K.
NAME = re.compile(r"[^A-Za-z,;.:'-]|[a-z][A-Z]|^[A-Z]{2,}|^[a-z]|^[A-Z]\b|\w[.:]\w")


def is_plural_or_verb(word):
    """Whether a word is a noun in the plural, which needs no article, or a verb in the third person."""
    return word in ("Has", "Does") or re.fullmatch(r"[A-Za-z-]+[a-rt-z]s", word) and word.lower() not in NO_NOUN


def subject_is_missing(words, token, documented):
    """Why a docstring with these words, the first of which is written as a token, has no subject; None: it has one.

    It begins with a determiner and its noun, a name (also of what it documents), a noun with its number (Operand k), a
    noun in the plural, which an adjective may precede, or a verb in the third person.
    """
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first.lower() in EITHER or first.lower() in SUBJECTS or first.lower() in documented or NAME.search(token):
        return None
    if first.endswith("'s"):
        return None
    if is_plural_or_verb(first) or re.fullmatch(r"[a-zA-Z]|`|\d+", second) and second != "a":
        return None
    noun = second if second not in ("as", "to") and second.lower() not in NO_NOUN else ""
    if any(is_plural_or_verb(word) for word in ([noun] + words[2:3] if noun.isalpha() else [])):
        return None
    return f"begins with '{first}', which is no name, no article with its noun, and no verb"


def documented_by(file, text, number, body):
    """The names that a docstring may document: those of the code behind it, or of the file."""
    if number == 1:
        stem = Path(file).stem.lower()
        return {stem, *stem.split("_")}
    code = [line for line in text.split("\n")[number + len(body) - 1:][:12] if line.strip() and "//" not in line[:6]]
    return {name.lower() for line in code[:2] for name in re.findall(r"\w+", line)}


def starts(tree):
    """A comment begins with a preposition, a pronoun, a relative or a conjunction, a docstring without a subject."""
    for file in tree.headers() + tree.sources():
        text = tree.text(file)
        lines = text.split("\n")
        for number, body in comments(text):
            words = WORD_OF_START.findall(body[0])
            if not words or is_code(body[0]):
                continue
            docstring = number == 1 or lines[number - 1].lstrip().startswith("///")
            fault = fault_of_start(words) if words[0][0].isupper() or docstring and words[0] in REFUSED else None
            if not fault and docstring and words[0][0].isalpha():
                token = re.match(r"\S+", body[0])[0]
                fault = subject_is_missing(words, token, documented_by(file, text, number, body))
            if fault:
                yield file, number, f"{fault}: {body[0]}"
        for number, body in trailing(text):
            if is_sentence(body) and (fault := fault_of_start(WORD_OF_START.findall(body))):
                yield file, number, f"{fault}: {body}"


def stops(tree):
    """A docstring, or a comment that begins as a sentence does, has no full stop at its end."""
    for file in tree.headers() + tree.sources():
        for number, body in comments(tree.text(file)):
            last = [line for line in body if line.strip()][-1:] or [""]
            if re.match(r"[A-Z][\w'-]* ", body[0]) and not is_code(last[0]) and \
                    not re.search(r"[.?!:][)\"'`]*$", last[0]):
                yield file, number, f"no full stop: {last[0]}"
        for number, body in trailing(tree.text(file)):
            if is_sentence(body) and not re.search(r"[.?!][)\"'`]*$", body):
                yield file, number, f"no full stop: {body}"


LINES = {"options + cli": (["options", "cli"], 1900), "train + inputs + states": (["train", "inputs", "states"], 4000)}


def lines_of_rooms(tree):
    """Rooms have more lines than they are meant to have; counted in fifties, without the table of build keys."""
    for name, (rooms, most) in LINES.items():
        lines = sum(tree.text(file).count("\n") for file in tree.headers(rooms) if not file.endswith("/build_keys.hpp"))
        for _ in range(0, max(0, lines - most), 50):
            yield name, 0, f"{lines} lines, more than {most}"


def long_files(tree):
    """A file has more than 400 lines: is it one thing?"""
    for file in tree.headers() + tree.sources():
        if (lines := tree.text(file).count("\n")) > 400:
            yield file, lines, f"{lines} lines"


def long_cells(tree):
    """A cell of a table in docs/ or README.md has more than 200 characters."""
    for file in tree.files("docs", ".md") + ["README.md"]:
        for number, line in enumerate(tree.text(file).splitlines(), 1):
            if line.startswith("|"):
                yield from ((file, number, f"a cell of {len(cell.strip())} characters")
                            for cell in line.strip("|").split("|") if len(cell.strip()) > 200)


def readme(tree):
    """README.md has more than 110 lines."""
    lines = tree.text("README.md").count("\n")
    return [("README.md", number, "") for number in range(111, lines + 1)]


def glossary(tree):
    """The table of docs/words.md: {word: its rooms}."""
    words, rooms = {}, {p.name for p in (tree.root / HEADERS).iterdir() if p.is_dir()}
    for line in tree.text(WORDS).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| *") and len(cells) == 4:
            words[cells[0].strip("*")] = cells[3].split()
            for room in cells[3].split():
                if room not in rooms and room != "all":
                    raise SystemExit(f"{WORDS}: {cells[0]} has the room {room}, which is none of {HEADERS}")
            for header in re.findall(r"[\w/]+\.(?:hpp|cuh)", cells[2]):
                if not (tree.root / HEADERS / header).is_file():
                    raise SystemExit(f"{WORDS}: {cells[0]} is defined in {header}, which is not there")
    if not words:
        raise SystemExit(f"{WORDS} has no table of words")
    return words


def plurals(word):
    return {word, f"{word}es" if re.search("(s|x|ch|sh)$", word) else re.sub("y$", "ie", word) + "s"}


def words(tree):
    """A name has a word of docs/words.md in a room that has another word for it."""
    table = glossary(tree)
    listed = {form: word for word in table for form in plurals(word.replace("-", "_"))}
    for file in tree.headers():
        room, _, below = file.removeprefix(HEADERS + "/").partition("/")
        if not below:
            continue
        for number, kind, name in {(0, "file", Path(file).stem), *names(tree.text(file))}:
            parts = name.strip("_").split("_")
            pairs = [f"{a}_{b}" for a, b in zip(parts, parts[1:])]
            for word in sorted({listed[part] for part in parts + pairs if part in listed}):
                if room not in table[word] and "all" not in table[word]:
                    yield file, number, f"{kind} {name}: '{word}' is a word of {', '.join(table[word])}"


RULES = {rule.__name__: rule for rule in (options_taken, options_read, flag_names, refusals, starts, stops,
                                          lines_of_rooms, long_files, long_cells, readme, words)}


def read_figures(root):
    figures = {}
    for line in (root / FIGURES).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            rule, number, where = line.split(" ", 2)
            if rule not in RULES or int(number) < 1 or (rule, where) in figures:
                raise SystemExit(f"{FIGURES}: '{line}' is no rule, no number above 0, or there twice")
            figures[rule, where] = int(number)
    return figures


def write_figures(root, counts):
    lines = ["# What ratchet.py counts, by rule and file, and writes by --write."]
    lines += [f"{rule} {number} {where}" for (rule, where), number in sorted(counts.items())]
    (root / FIGURES).write_text("\n".join(lines) + "\n", encoding="utf-8")


def problems(root):
    """All differences between counts and figures, as sentences."""
    root = Path(root)
    files, figures = tree(root), read_figures(root)
    for name, rule in RULES.items():
        places = {}
        for where, number, what in rule(files):
            places.setdefault(where, []).append((number, what))
        for where in sorted(places.keys() | {w for r, w in figures if r == name}):
            here, allowed = sorted(places.get(where, [])), figures.get((name, where), 0)
            if len(here) > allowed:
                yield (f"{where}: {len(here)} where {allowed} stood. {rule.__doc__} All of them, of which "
                       f"{len(here) - allowed} must go:")
                yield from (f"  {where}:{number}: {what}" for number, what in here)
            elif len(here) < allowed:
                yield (f"{where}: {name} has fallen from {allowed} to {len(here)}: let the figure fall, too, by "
                       "python3 tests/structure/ratchet.py . --write")


DECLARED = """
namespace mc::detail {
template <class T, int N = 2> struct one : two<T, 3> {
  enum class kind { a, b };
  constexpr explicit one(int first, int second = f(2)) : first_(first), second_{second} {
    int none = 3;
    int no_local = 2;
    g(no_local);
  }
  one& operator=(const one&) = default;
  template <class F> auto each(F f) const -> decltype(f(0)) { return f(first_); }
  int (*call)(const one&, int count) = nullptr;

private:
  int first_ = 0, second_{}, third_[4]{};
  std::map<std::string, int> counts_;  // int no_member;
};
using pair = std::pair<int, int>;
inline constexpr int most = 4;
struct elsewhere;
int from(const one& o) noexcept;
#define MEGACPP_NO_NAME(x) int x;
static_assert(most > 3, "int no_name;");
} // namespace mc::detail
"""
NAMES = {("type", "one"), ("type", "kind"), ("function", "one"), ("function", "each"), ("member", "call"),
         ("member", "first_"), ("member", "second_"), ("member", "third_"), ("member", "counts_"), ("type", "pair"),
         ("member", "most"), ("function", "from")}
GOOD = {
    f"{HEADERS}/train/loop.hpp": "// The loop.\n#pragma once\nstruct loop {\n  int step_ = 0;\n};\n",
    f"{HEADERS}/options/options.hpp": "#pragma once\n/// Returns nothing.\nvoid read(const options& o);\n",
    f"{HEADERS}/graph/graph.hpp": "#pragma once\n/// x + y = z\nint part_of(int part);\n",
    "README.md": "| a |\n",
    WORDS: "| word | meaning | header | rooms |\n|---|---|---|---|\n| *part* | A graph. | graph/graph.hpp | graph |\n",
    FIGURES: "",
}
LONG = "\n" * 401
# name: file, text, words of the one sentence
BAD = {
    "flags taken": ("train/a.hpp", "void f(const options& o);\n", "options_taken takes flags"),
    "a group taken": ("generate/a.hpp", "void f(const data_flags& d);\n", "takes flags"),
    "a flag read": ("states/a.hpp", "inline int f() {\n  const options run = g();\n  return run.model.seed();\n}\n",
                    "A flag is read"),
    "a flag named": ("data/a.hpp", 'inline auto f() { return "give --seed"; }\n', "names a flag"),
    "a refusal": ("cli/a.hpp", "void refuse_both(int);\n", "refuses flags"),
    "a preposition": ("num/a.hpp", "/// Of a step.\nint f();\n", "begins with 'Of'"),
    "a relative": ("num/a.hpp", "// What a step is.\nint f();\n", "begins with 'What'"),
    "a pronoun": ("num/a.hpp", "/// Those of a step.\nint f();\n", "begins with 'Those of'"),
    "the same": ("num/a.hpp", "/// The same of all.\nint f();\n", "begins with 'The same of'"),
    "a conjunction": ("num/a.hpp", "/// Whether it is.\nint f();\n", "begins with 'Whether'"),
    "a colon": ("num/a.hpp", "// Of a step: what it is.\nint f();\n", "begins with 'Of'"),
    "an arrow": ("num/a.hpp", "// Of a step f -> g.\nint f();\n", "begins with 'Of'"),
    "small letters": ("num/a.hpp", "/// of a step.\nint f();\n", "begins with 'of'"),
    "no article": ("num/a.hpp", "/// Memory of a step.\nint f();\n", "begins with 'Memory'"),
    "a participle": ("num/a.hpp", "/// Left out of a step.\nint f();\n", "begins with 'Left'"),
    "an adverb": ("num/a.hpp", "/// Not a step.\nint f();\n", "begins with 'Not'"),
    "an imperative": ("num/a.hpp", "/// Call before a step.\nint f();\n", "begins with 'Call'"),
    "a head": ("num/a.hpp", "// Time for a step.\n#pragma once\n", "begins with 'Time'"),
    "a trailing start": ("num/a.hpp", "struct a {\n  int b; ///< Of a step.\n};\n", "begins with 'Of'"),
    "a trailing stop": ("num/a.hpp", "struct a {\n  int b; ///< Steps of a run\n};\n", "no full stop"),
    "no stop": ("num/a.hpp", "/// Returns a step\nint f();\n", "no full stop"),
    "lines": ("cli/a.hpp", "\n" * 390 + "int x;\n", "more than 1900"),
    "a long file": ("num/a.hpp", LONG, "401 lines"),
    "a long cell": ("docs/a.md", f"| {'x' * 201} | a |\n", "a cell of 201"),
    "README": ("README.md", "\n" * 111, "README.md has more than 110"),
    "a type": ("train/a.hpp", "struct part_of_data {\n  int x;\n};\n", "type part_of_data: 'part' is a word of graph"),
    "a function": ("train/a.hpp", "inline int parts() { return 1; }\n", "function parts: 'part'"),
    "a member": ("train/a.hpp", "struct loop {\n  int part_ = 0, y;\n};\n", "member part_: 'part'"),
    "a file": ("train/part.hpp", "\n", "file part: 'part'"),
}
EXEMPT = {
    "a determiner": "/// All ranks of a group.\n", "an equation": "/// What = x + y\n", "a call": "/// f(x) is x.\n",
    "an article": "/// An event of a lane.\n", "a possessive": "/// Python's spelling of it.\n",
    "there": "/// There is one.\n",
    "a plural": "/// The same bits on every rank.\n", "a bare plural": "/// Bytes of all ranks.\n",
    "an adjective": "/// Packed conversations.\n", "a number": "/// Operand k of a node.\n",
    "what is documented": "\n/// Step without an article.\nint step(int);\n", "a name": "/// cuBLASLt of a device.\n",
    "a numeral": "/// Two ranks at once.\n", "has": "/// Has the file system give room.\n",
    "an identity in prose": "// x -> y of a graph.\n",
    "a phrase behind a member": "struct a {\n  int b; ///< of a step\n};\n",
    "a sentence behind a member": "struct a {\n  int b; ///< The steps\n         ///< of a run.\n};\n",
    "a verb": "/// Throws mc::error.\n", "a code": "// NOLINT\n",
}


def judged(files):
    """The problems of a checkout that has these files."""
    with tempfile.TemporaryDirectory() as folder:
        for file, content in files.items():
            path = Path(folder) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        return list(problems(folder))


def self_test():
    wrong = [f"declared: {name}" for name in NAMES ^ {(kind, name) for _, kind, name in names(DECLARED)}]
    for name, (file, text, says) in BAD.items():
        path = file if file.endswith(".md") else f"{HEADERS}/{file}"
        files = {**GOOD, path: text}
        if name == "lines":  # several files, none of them long
            files.update({f"{HEADERS}/cli/a{k}.hpp": text for k in range(4)})
        got = judged(files)
        if not any(says.removeprefix("options_taken ") in line for line in got):
            wrong.append(f"{name}: {got}")
    for name, text in EXEMPT.items():
        if got := judged({**GOOD, f"{HEADERS}/num/a.hpp": text + "int f();\n"}):
            wrong.append(f"{name}: {got}")
    stood = {**GOOD, f"{HEADERS}/num/a.hpp": "/// Of a step.\nint f();\n"}
    head = {**GOOD, f"{HEADERS}/num/drop_out.hpp": "// Drop by counters.\n#pragma once\n"}
    cases = {"nothing": (GOOD, 0), "a head named as its file": (head, 0),
             "as it stood": ({**stood, FIGURES: f"starts 1 {HEADERS}/num/a.hpp\n"}, 0),
             "fallen": ({**stood, FIGURES: f"starts 2 {HEADERS}/num/a.hpp\n"}, 1),
             "gone": ({**GOOD, FIGURES: f"starts 1 {HEADERS}/num/a.hpp\n"}, 1)}
    wrong += [f"{name}: {got}" for name, (files, count) in cases.items() if len(got := judged(files)) != count]
    for text in ("| *part* | A graph. | none.hpp | graph |\n", "| *part* | A graph. | - | nowhere |\n", "none\n"):
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                wrong.append(f"glossary {text}: {judged({**GOOD, WORDS: text})}")
            except SystemExit:
                pass
    print("\n".join(wrong + [f"self-test of ratchet.py: {len(BAD) + len(EXEMPT) + len(cases) + 4} trees, "
                             f"{len(wrong)} judged wrongly"]))
    return bool(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write the figures anew to {FIGURES}")
    parser.add_argument("--list", choices=RULES, help="print every place that a rule counts")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    if not arguments.root or not (arguments.root / HEADERS).is_dir():
        parser.error(f"name the folder that has {HEADERS}")
    if arguments.list:
        for where, number, what in RULES[arguments.list](tree(arguments.root)):
            print(f"{where}:{number}: {what}")
        return 0
    if arguments.write:
        files = tree(arguments.root)
        write_figures(arguments.root, Counter((name, where) for name, rule in RULES.items()
                                              for where, _, _ in rule(files)))
    wrong = list(problems(arguments.root))
    totals = Counter()
    for (rule, _), number in read_figures(arguments.root).items():
        totals[rule] += number
    print("\n".join(wrong + [", ".join(f"{name} {totals[name]}" for name in RULES)]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
