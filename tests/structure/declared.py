"""The names that a C++ header declares, read without a compiler: `names(text)` gives types, functions, members
and constants with their lines. What stands inside of functions is not read."""

import re

NOT_CODE = re.compile(r'R"(\w*)\((?:.|\n)*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'
                      r"'(?:\\.|[^'\\\n])'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.DOTALL | re.MULTILINE)
TYPE = re.compile(r"\b(?:struct|class|union|enum(?: class| struct)?)\s+(?:alignas\([^)]*\)\s*)?(\w+)")
CLASS = re.compile(r"(?:^|\s)(struct|class|union)\b[^()=]*$")
PAIR = re.compile(r"\((\w+), (\w+)\)")


def blank(text):
    """The text with comments, strings and directives as blanks, so that places stay."""
    return NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def after_angles(text, at):
    """The place behind the < at `at` and its >."""
    depth = 0
    while at < len(text):
        depth += {"<": 1, ">": -1}.get(text[at], 0) if text[at - 1:at + 1] not in ("->", ">=", "<=") else 0
        at += 1
        if depth == 0:
            break
    return at


def without_angles(text):
    """The text without template parameters and arguments, whose commas separate nothing."""
    out, at = [], 0
    while at < len(text):
        if text[at] == "<" and re.search(r"\w\s*$", text[:at]) and not text[at:].startswith(("<<", "<=")):
            at = after_angles(text, at)
            out.append(" ")
        else:
            out.append(text[at])
            at += 1
    return "".join(out)


def outer(text, marks):
    """The places of some marks that stand in no bracket."""
    depth = 0
    for at, c in enumerate(text):
        if c in marks and depth == 0:
            yield at
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(c, 0)


def of_statement(statement):
    """(kind, name) of what one statement declares."""
    if "BOOST_HANA_DEFINE_STRUCT" in statement:
        return [("member", name) for _, name in PAIR.findall(statement)]
    if found := re.match(r"\s*MEGACPP_FLAG\(\s*\w+, (\w+),", statement):
        return [("member", found.group(1))]
    s = re.sub(r"\b(?:public|private|protected)\s*:", " ", statement)
    s = without_angles(re.sub(r"\[\[.*?\]\]", " ", s, flags=re.DOTALL))
    s = re.sub(r"^\s*(?:template|requires)\b", " ", s).strip()
    if (found := re.match(r"(?:using|concept)\s+(\w+)\s*=", s)) or (found := re.match(r"concept\s+(\w+)", s)):
        return [("type", found.group(1))]
    if re.fullmatch(r"(?:struct|class|enum(?: class)?)\s+\w+(?:\s*:\s*[\w:]+)?", s):
        return []  # declared elsewhere
    if found := re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", s):
        return [("member", found.group(1))]
    if not s or re.match(r"(?:using|friend|static_assert|namespace|extern|typedef|MEGACPP_)\b|MEGACPP_", s):
        return []
    if re.search(r"\boperator\b", s):
        return []
    bracket, equals = next(outer(s, "("), None), next(outer(s, "="), len(s))
    if bracket is not None and bracket < equals:
        found = re.search(r"(~?\w+)\s*$", s[:bracket])
        before = s[:found.start()].strip() if found else ""
        if not found or found.group(1).startswith("~") or found.group(1) in ("alignas", "noexcept", "decltype"):
            return []
        return [("function", found.group(1))] if before else []
    names, last = [], 0
    for cut in [*outer(s, ","), len(s)]:
        piece = re.split(r"[={\[:](?!:)", s[last:cut].replace("::", "  "))[0]
        words = re.findall(r"\w+", piece)
        if words and (last > 0 or len(words) > 1) and not words[-1].isdigit():
            names.append(("member", words[-1]))
        last = cut + 1
    return names


def names(text):
    """(line, kind, name) of all that a header declares outside of functions."""
    code = blank(text)
    at, start = 0, 0
    while at < len(code):
        c = code[at]
        if c == "(":  # arguments, which may have braces
            at = closing(code, at)
            continue
        if c == ";" or c == "}":
            yield from placed(code, start, at)
            start = at + 1
        elif c == "{":
            before = without_angles(code[start:at])
            if re.search(r"\bnamespace\b[\w:\s]*$|\bextern\s*$", before):
                start = at + 1
            elif re.search(r"\benum\b", before):
                yield from typed(code, start, at)
                at = closing(code, at)
                start = at
                continue
            elif CLASS.search(re.sub(r"\balignas\(.*?\)", "", before)):
                yield from typed(code, start, at)
                start = at + 1
            else:
                end = closing(code, at)
                rest = re.match(r"\s*[;,]", code[end:])
                if rest is None and not re.search(r"=\s*$|\[\]\s*$", before):  # a function's body
                    follow = re.match(r"\s*[{,]", code[end:])
                    yield from placed(code, start, at)
                    start = end
                    if follow and ":" in before and re.search(r"\)\s*(?:noexcept\s*)?:", before):
                        # `: member{x} {`, where the body is what comes last
                        while re.match(r"\s*(?:,[\w\s:]*)?[{(]", code[end:]):
                            end = closing(code, re.search(r"[{(]", code[end:]).start() + end)
                        start = end
                at = end
                continue
        at += 1


def typed(code, start, end):
    for found in [m for m in TYPE.finditer(code, start, end)][-1:]:
        yield code.count("\n", 0, found.start()) + 1, "type", found.group(1)


def placed(code, start, end):
    statement = code[start:end]
    for kind, name in of_statement(statement):
        found = re.search(rf"\b{re.escape(name)}\b", statement)
        yield code.count("\n", 0, start + (found.start() if found else 0)) + 1, kind, name


def closing(code, at):
    """The place behind the bracket that closes the one at `at`."""
    depth = 0
    while at < len(code):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(code[at], 0)
        at += 1
        if depth == 0:
            break
    return at
