"""Running a compiler without producing code, and reading what it says: g++, clang++ and nvcc."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

# file:line:column: error: (g++, clang++), file(line): error: or error #20-D: (nvcc), cc1plus:
# error:
ERROR = re.compile(
    r"^\S.*?: (?:fatal |catastrophic |internal compiler )?error(?: #[\w-]+)?: (?P<text>.*)$")
CODE = re.compile(r"MEGA-[PSCMTB]\d{3}")
ASSERTION = re.compile(r"static[_ ]assert(?:ion)?\b")
# A pack of characters, as all three compilers print it: 'l', 'i', 'n'
CHARACTERS = re.compile(r"(?:'(?:\\.|[^\\])'(?:, )?)+")
CHARACTER = re.compile(r"'(\\.|[^\\])'")
# A text, as g++ prints it: fixed_string<4>{"it\'s"}
TEXT = re.compile(r'fixed_string<\d+>\{"(?:[^"\\]|\\.)*"')
ESCAPED = re.compile(r"\\(.)")


class Outcome:
    """Exit status and errors of one compilation."""

    def __init__(self, status, output):
        self.status = status
        self.output = output
        self.errors = []
        for line in output.splitlines():
            match = ERROR.match(line)
            if match and ": note: " not in line[: match.start("text")]:
                self.errors.append(match.group("text"))

    def assertion_code(self):
        """The code of the only error, if that is a static assertion with one; else None."""
        if len(self.errors) != 1 or not ASSERTION.search(self.errors[0]):
            return None
        code = CODE.search(self.errors[0])
        return code.group(0) if code else None

    def names(self):
        """The output with packs of characters, and texts, as the names they spell."""

        def joined(match):
            return "".join(c[-1] for c in CHARACTER.findall(match.group(0)))

        def plain(match):
            return ESCAPED.sub(r"\1", match.group(0))

        return CHARACTERS.sub(joined, TEXT.sub(plain, self.output))


def is_nvcc(compiler):
    return Path(compiler).name.startswith("nvcc")


def compile_only(compiler, source, includes=(), macros=(), flags=()):
    """Compiles a source up to the end of the front end; includes are searched in their order."""
    command = [compiler]
    command += [f"-I{folder}" for folder in includes]
    command += [f"-D{macro}" for macro in macros]
    command += flags
    environment = dict(os.environ, LC_ALL="C")
    with tempfile.TemporaryDirectory() as folder:
        if is_nvcc(compiler):
            command += ["-x", "cu", "-cuda", "-o", os.path.join(folder, "out.ii")]
        else:
            command += ["-fsyntax-only"]
        command.append(str(source))
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=environment, text=True, errors="replace", check=False)
    return Outcome(done.returncode, done.stdout)


def add_compiler_arguments(parser):
    parser.add_argument("--compiler", default="g++", help="g++, clang++ or nvcc")
    parser.add_argument("--include", action="append", default=[],
                        help="include folder (repeatable)")
    parser.add_argument("--flag", action="append", default=[], help="compiler flag (repeatable)")
    parser.add_argument("--self-test", action="store_true",
                        help="check this driver itself, with sources of its own")
