#!/usr/bin/env python3
"""Tokenizers: megacpp-data encodes and decodes as the tokenizers library does, id for id.

    tokenizers_peer.py PROGRAM SHARED WORK

PROGRAM is megacpp-data, SHARED the folder with data/tokenizers, WORK an empty folder. Texts are
drawn at random so that each code point of Unicode 14 is in one: with white space of all kinds,
contractions, digits, marks, emoji, long runs, added tokens whole and in pieces. They are encoded by
the vocabularies of GPT-2 and Qwen3, and by one that the library trains here, under many rules of
cutting. Expressions of one construct each are either refused, or cut alike. Folders that name tokens
and rules outside of tokenizer.json are read as AutoTokenizer reads them, or refused.

Left out, since the versions of Unicode that the two sides know differ:
- code points that Unicode 15 or a later version assigned (NEWER);
- in the normal form C, marks and compositions that the library's tables, those of Unicode 9, do not
  know. Which these are is asked of the library, and how many there may be is bounded.
"""

import json
import os
import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = 20000         # for the published vocabularies
FEW = 300             # for each way of cutting
FOLDERS = 200
NEWER_MARKS = 120     # at most, of Unicode 10 to 14

# Assigned after Unicode 14, up to Unicode 18.
NEWER = """
    0558 058B-058C 05C8-05C9 088F 0897 0B53-0B54 0C5C 0CDC 0CF3 0ECE 1ACF-1AF0 1B4E-1B4F 1B7F
    1C89-1C8A 208F 209D-209F 20C1-20C4 2427-2429 2B96 2E60-2E63 2FFC-2FFF 31E4-31E5 31EF
    A7CB-A7CF A7D2 A7D4 A7DA-A7DD A7E2 A7F1 AB6C-AB6D FBC3-FBD2 FD90-FD91 FDC8-FDCE
    105C0-105F3 107BB-107BF 10940-10959 10D40-10D65 10D69-10D85 10D8E-10D8F 10EC2-10EC7
    10EC9-10EEE 10EF0-10EFF 1123F-11241 11380-11389 1138B 1138E 11390-113B5 113B7-113C0 113C2
    113C5 113C7-113CA 113CC-113D5 113D7-113D8 113E1-113E2 116D0-116E3 11B00-11B0A 11B60-11B67
    11BC0-11BE1 11BF0-11BF9 11DB0-11DDB 11DE0-11DE9 11DF0-11DF1 11F00-11F10 11F12-11F3A
    11F3E-11F5A 1246F 12475-1247F 12550-12686 1342F 13439-13455 13460-143FA 16100-16139
    16D40-16D79 16EA0-16EB8 16EBB-16ED3 16FF2-16FF6 187F8-187FF 18CD6-18CDA 18CFF 18D09-18D20
    18D80-18DF2 18E00-19191 191A0-191D2 1B123-1B128 1B132 1B155 1B168 1CC00-1CCFC 1CD00-1CEB3
    1CEBA-1CED0 1CED2-1CED4 1CEDD-1CEFD 1D127-1D128 1D1EB-1D1FF 1D250-1D281 1D2C0-1D2D3 1D6A6
    1DB00-1DB1C 1DF1F-1DF81 1DF90-1DF96 1DFCD-1DFFF 1E030-1E06D 1E08F 1E4D0-1E4F9 1E5D0-1E5FA
    1E5FF 1E6C0-1E6DE 1E6E0-1E6F5 1E6FE-1E6FF 1F1AE 1F6D8-1F6D9 1F6DC 1F774-1F77F 1F7D9-1F7DB
    1F7F1-1F7FF 1F8B2-1F8BB 1F8C0-1F8C1 1F8D0-1F8D8 1FA54-1FA57 1FA75-1FA77 1FA87-1FA8F
    1FAAD-1FAAF 1FABB-1FABF 1FAC6 1FAC8 1FACC-1FACF 1FADA-1FADD 1FADF 1FAE8-1FAEB 1FAEF
    1FAF7-1FAFA 1FBCB-1FBEF 1FBFA 2B739-2B73F 2B81E 2CEA2-2CEAD 2EBF0-2EE5D 31350-33479
    3D000-3FC3F
"""

SPACE = [" ", " ", "  ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1f", "\x85",
         "\xa0", "\u1680", "\u180e", "\u2000", "\u2003", "\u200a", "\u200b", "\u2028", "\u2029",
         "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", " \n ", "\t \n\n  "]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'rE", "'VE", "'ve", "'m", "'M", "'ll", "'lL", "'d",
                "'D", "'\u017f", "\u2019s", "''s", "'sx", "it's", "WE'LL", "\u0130'd", "'\u212a"]
DIGITS = ["0", "1", "12", "123", "1234", "1234567", "3.14", "1e-5", "\u0663\u0664", "\u00b2\u00b3", "\u2160\u2167",
          "\u096a", "\U0001d7d8", "\u4e00\u4e8c", "\u00bd", "\u2468", "0x1F"]
MARKS = ["e\u0301", "\u0301\u0323", "a\u0323\u0302", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0915\u093c", "\u0344",
         "\u0f71\u0f72\u0f74", "\u212b", "\u2126", "\ufb1d", "\u05d9\u05b4", "\u0628\u064e\u0651", "\u1e9b\u0323", "\u0958",
         "\U0001d15e", "\u0dd9\u0dcf\u0dca", "\ufa1e\uf900", "x\u0327\u0301\u0323\u0308"]
EMOJI = ["\U0001f600", "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea",
         "1\ufe0f\u20e3", "\u2764\ufe0f", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f9d1\U0001f3ff\u200d\U0001f680"]
WORDS = ["the", " the", " The", "hello", " world", "HELLO", "Hello", "camelCase", "snake_case", "don", "na\u00efve",
         " K\u00f6ln", "\u65e5\u672c\u8a9e", "\u4f60\u597d\uff0c\u4e16\u754c", "\ud55c\uad6d\uc5b4", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e44\u0e17\u0e22", "\u0440\u0443\u0441",
         "\u03b5\u03bb", "{", "}", "();", "//", "/*", " ==", "...", "--", "#", "http://a.b/c?d=e&f", "\\n", '"', "$",
         "\u00ab", "\u3002", "\u00bf", "<", ">", "|", "<|", "|>", "\x00", "\x7f", "\ue000", "\U0010fffd", "\ufffd", "\ufffe"]
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|fim_pad|>",
         "[BOS]", "[left]", "[right]", "[both]", "[plain]", "\u00c5ngstr\u00f6m", "A\u030angstr\u00f6m", "  four", "ab", "abc"]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++(?!\S)|\s*[\r\n]|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SHORT}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SHORT}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
PUNCTUATED = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
              r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# One construct each.
EXPRESSIONS = [
    r"\w+", r"\W+", r"[\w-]+", r"[^\w]+", r"[\W]", r"\d+", r"\D+", r"[\D]", r"[^\D]+", r"\s", r"\S+", r"[^\S]+",
    r"[^\s]+", r"[\s\S]", ".", "..", "(?m:.)", "x*", "[ab]*", "(?=b)", r"(?=\p{Lu})", r"(?<=\s)", "(?!a)",
    "a|", "|a", "$", "^", "^a", r"\Aa", r"a\z", r"\b", r"\ba", r"\Ba", r"\h", r"\H+", r"\R", r"\X", r"\K", "a(?i)b|c",
    "(?i)b|c", "(?:(?i)b|c)", "(?i:ss)", "(?i:\u00df)", "(?i:k)", "(?i:i)", "(?i:\u0130)", "(?-i:a)", r"\p{N}{3}?",
    r"(?:ab){1}?c", r"\p{N}{1,3}?", r"\p{N}{1,3}+", r"\p{N}{1,3}*", "b{2}{3}", "a{,2}", "a{2,}", "a{0}b", "a{", "a{x",
    "a{1,2", "{", "}", "]", "[]a]", "[^]a]", "[a-c&&b]", "[[:alpha:]]+", "[a[bc]]", r"[a\]b]+", r"[\^a]", "[a^]", "[a-]",
    r"[\-a]", "[+--]", r"\x{41}+", r"\x41", r"\u0041", r"\101", r"\0", r"\e|\a|\f|\v", r"\t|\n|\r", r"\_", r"\/", r"\-",
    r"\#", r"\p{Alpha}+", r"\p{Alnum}+", r"\p{Space}+", r"\p{Upper}+", r"\p{Lower}", r"\p{Punct}", r"\p{Word}+",
    r"\p{Any}", r"\p{Assigned}", r"\p{^L}+", r"\P{L}+", r"\P{^L}", r"\pL", r"\p{Letter}+", r"\p{Han}+", r"\p{Latin}+",
    r"\p{Greek}|\p{Cyrillic}", r"\p{Hangul}+", r"\p{Lu}\p{Ll}|\p{Cf}|\p{Co}|\p{Cc}", r"\p{LC}",
    r"\p{Zs}|\p{Zl}|\p{Zp}", r"\p{Sc}|\p{Sk}|\p{Sm}|\p{So}", r"\p{Mn}|\p{Mc}|\p{Me}", r"\p{Nl}|\p{No}",
    r"\p{Alphabetic}+", r"\p{White_Space}+", r"\p{Emoji}", r"\p{Cn}", r"(a)\1", r"(?<n>a)\k<n>", r"(?<=a|bc)x",
    "(?<!a)b", "(?<=a+)b", "(?>a+)b", "a++b", "a*+a", "a?+b", "b++|b", "(?#x)b", "(?x: a b )", "(?:a|)+?b", "(?:a*)*b",
    "(a|b)(?(1)c|d)", r"a\Qb\E", r"\N", r"\O", "(?~b)", "(?<a>.)", "(?'a'.)", "(*FAIL)", r"\cA",
    "\u00e9|\u65e5", "[\u00e0-\u00ff]+", "(?i:\u00e9)", "(?i:\u03c3)", "'", " ", "--", "#", "a.c", "(?:)", "", r"\p{L}\p{M}*",
    r"[^\p{L}]", r"[\p{^L}]", r"[^\P{L}a]", r"[\x{41}-\x{5A}]", r"[\t-\r ]", r"(?i:[a-c]+)", r"(?i:[^a]+)", r"\s+$"]


def newer():
    out = set()
    for span in NEWER.split():
        first, _, last = span.partition("-")
        out.update(range(int(first, 16), int(last or first, 16) + 1))
    return out


def code_points():
    """Those of Unicode 14 but for private use."""
    if tuple(map(int, unicodedata.unidata_version.split("."))) < (14, 0, 0):
        sys.exit(f"Python {sys.version.split()[0]} knows Unicode {unicodedata.unidata_version} only; "
                 "run this by Python 3.11 or later")
    late = newer()
    return [chr(c) for c in range(0x110000)
            if c not in late and unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]


def marks_of_later_tables(points):
    """What the library's normal form C takes for no mark, or composes of nothing."""
    theirs, late = normalizers.NFC().normalize_str, set()
    for c in points:
        apart = unicodedata.normalize("NFD", c)
        tried = ["\u0301" + c + "\u0323" + c] if unicodedata.combining(c) else []
        tried += [apart] if apart != c else []
        if any(theirs(s) != unicodedata.normalize("NFC", s) for s in tried):
            late.update(c + apart)
    if len(late) > NEWER_MARKS:
        sys.exit(f"the library's normal form C differs for {len(late)} code points: that is no "
                 "matter of Unicode's versions any more")
    return late


class Deck:
    """All code points, some blocks long, so that each is drawn before one is drawn again."""

    def __init__(self, r, points):
        self.r, self.points, self.at = r, points, 0
        r.shuffle(points)

    def draw(self, n):
        if self.at + n > len(self.points):
            self.at = 0
        self.at += n
        return self.points[self.at - n:self.at]


def run_of(r, c):
    return c * r.choice([2, 3, 7, 30, 65, 200])


def text(r, deck, alphabets):
    parts = []
    for _ in range(r.randint(1, 9)):
        kind = r.random()
        if kind < 0.3:
            parts += deck.draw(r.randint(1, 6))
        elif kind < 0.4:  # words of one script
            letters = r.choice(alphabets)
            parts.append("".join(r.choice(letters) for _ in range(r.randint(1, 12))))
        elif kind < 0.95:
            parts.append(r.choice(r.choice([SPACE, SPACE, CONTRACTIONS, DIGITS, MARKS, EMOJI, WORDS, WORDS,
                                            ADDED])))
        elif kind < 0.97:
            parts.append(run_of(r, r.choice(r.choice([SPACE, DIGITS, WORDS, MARKS]))))
        else:  # an added token in two pieces
            token = r.choice(ADDED)
            at = r.randint(1, len(token) - 1)
            parts += [token[:at], r.choice(["", " ", "\u0301", token]), token[at:]]
        if r.random() < 0.3:
            parts.append(r.choice(SPACE))
    return "".join(parts)


def texts(seed, points, count):
    r = random.Random(seed)
    deck = Deck(r, list(points))
    letters = [c for c in points if unicodedata.category(c)[0] == "L" or unicodedata.combining(c)]
    alphabets = [letters[i:i + 60] for i in range(0, len(letters), 60)]
    drawn = ["", " ", "\n"] + [text(r, deck, alphabets) for _ in range(count - 3)]
    long = ["a", " ", "\n", "1", "ab", "\u00e9", "\u65e5", " a", "\r\n", "\u0301", "\u1100\u1161", "=", "_", "'s"]
    return drawn + [c * (4000 // len(c)) + tail for c in long for tail in ("", "x")]


class Refused(Exception):
    pass


def call(program, command, file, lines, work, *flags):
    given = work / "given.jsonl"
    given.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    done = subprocess.run([program, command, "--tokenizer", file, "--input", given, *flags],
                          capture_output=True)
    if done.returncode == 4:
        raise Refused(done.stderr.decode())
    if done.returncode != 0:
        sys.exit(f"{file}: exit code {done.returncode}: {done.stderr.decode()}")
    return [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]


def fault(file, what, given, mine, theirs):
    cut = json.loads(Path(file).read_text(encoding="utf-8"))["pre_tokenizer"]
    sys.exit(f"{file}, {cut}: {what} differ:\n {given!r}\n ours   {mine}\n theirs {theirs}")


def compare(program, file, drawn, work, undone=None):
    """`undone(text)`: what decoding the ids gives; without it, what the library says."""
    library = None  # which may not even open what we refuse
    lines = [json.dumps(t if i % 3 else {"n": 1, "text": t}, ensure_ascii=i % 2 == 0)
             for i, t in enumerate(drawn)]
    for flags, around in ((), True), (("--add-special-tokens", "false"), False):
        mine = call(program, "encode", file, lines, work, *flags)
        library = library or Tokenizer.from_file(str(file))
        theirs = [e.ids for e in library.encode_batch(drawn, add_special_tokens=around)]
        for given, a, b in zip(drawn, mine, theirs, strict=True):
            if a != b:
                fault(file, "ids", given, a, b)
        if not around or not library.num_special_tokens_to_add(False):
            break
    for flags, skip in ((), False), (("--skip-special-tokens",), True):
        back = call(program, "decode", file, [json.dumps(ids) for ids in mine], work, *flags)
        theirs = library.decode_batch(mine, skip_special_tokens=skip)
        for given, a, b in zip(drawn, back, theirs, strict=True):
            # The library takes letters beyond ASCII in added tokens for bytes.
            known = undone and undone(given)
            if a != (known if undone and not skip else b) and (a != known or "\ufffd" not in b):
                fault(file, "texts", given, a, b)
    return sum(map(len, mine))


def trained(drawn):
    """A vocabulary of the library's own, as JSON."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(drawn, trainers.BpeTrainer(
        vocab_size=3000, show_progress=False, special_tokens=["<|endoftext|>", "[BOS]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return json.loads(t.to_str())


def added(file, content, **how):
    vocab = file["model"]["vocab"]
    taken = [t["id"] for t in file["added_tokens"]] + [len(vocab) - 1]
    file["added_tokens"].append({
        "id": vocab.get(content, max(taken) + 1), "content": content, "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": False, **how})


def split(expression, behavior="Isolated", invert=False, literal=False):
    return {"type": "Split", "pattern": {"String" if literal else "Regex": expression},
            "behavior": behavior, "invert": invert}


def steps(*list_, use_regex=False):
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    return {"type": "Sequence", "pretokenizers": [*list_, by_bytes]}


def variants(plain):
    """(name, file)"""
    def changed(name, **fields):
        file = json.loads(json.dumps(plain))
        file.update(fields)
        files.append((name, file))
        return file
    files = []
    changed("plain")
    spelled = changed("merges as strings")
    spelled["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in plain["model"]["merges"]]
    changed("prefix space")["pre_tokenizer"]["add_prefix_space"] = True
    changed("prefix space, one word", pre_tokenizer={
        "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False})
    changed("gpt-2", pre_tokenizer=steps(split(GPT2)))
    changed("llama 3", pre_tokenizer=steps(split(LLAMA3)), post_processor={
        "type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
            {"type": "TemplateProcessing",
             "single": [{"SpecialToken": {"id": "[BOS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                        {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
             "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
             "special_tokens": {name: {"id": name, "ids": [plain["model"]["vocab"][name]], "tokens": [name]}
                                for name in ("[BOS]", "<|endoftext|>")}}]})
    changed("cl100k", pre_tokenizer=steps(split(CL100K)))
    changed("o200k", pre_tokenizer=steps(split(O200K)))
    changed("three steps", pre_tokenizer=steps(split(r"\p{N}{1,3}"), split(HAN), split(PUNCTUATED)))
    changed("digits", pre_tokenizer=steps({"type": "Digits", "individual_digits": True}, use_regex=True))
    changed("numbers", pre_tokenizer=steps({"type": "Digits", "individual_digits": False}))
    for behavior in "Removed", "Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext":
        for invert in False, True:
            changed(f"{behavior} {invert}", pre_tokenizer=steps(split(r"\s|\p{P}\p{P}?", behavior, invert)))
            changed(f"{behavior} {invert}, of nothing", pre_tokenizer=steps(split("[a-m]*", behavior, invert)))
        changed(f"{behavior}, literal", pre_tokenizer=steps(split("e", behavior, literal=True)))
    changed("nothing, literal", pre_tokenizer=steps(split("", literal=True)))
    changed("punctuation, literal", pre_tokenizer=steps(split("--", literal=True), split(".", literal=True)))
    for composes in False, True:
        file = changed(f"added tokens, {composes}", normalizer={"type": "NFC"} if composes else None)
        for content, how in (("[left]", {"lstrip": True}), ("[right]", {"rstrip": True}), ("<think>", {}),
                             ("[both]", {"lstrip": True, "rstrip": True, "special": True}),
                             ("[plain]", {"normalized": True}), ("ab", {"normalized": True}), ("abc", {}),
                             ("  four", {"special": True})):
            added(file, content, **how)
    added(changed("a token composed", normalizer={"type": "NFC"}), "\u00c5ngstr\u00f6m", normalized=True)
    whole = changed("whole words")
    whole["model"]["ignore_merges"] = True
    for word in " world", "camelCase", "\u65e5\u672c\u8a9e", "1234567":
        signs = "".join(s for s, _ in pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(word))
        whole["model"]["vocab"].setdefault(signs, len(whole["model"]["vocab"]))
    return files


def token(r, content, **how):
    """A token with how it is looked for, as files of transformers have it."""
    return {"content": content, "lstrip": r.random() < 0.2, "rstrip": r.random() < 0.2, "normalized": r.random() < 0.2,
            "single_word": False, **how}


def folder_of(r, plain):
    """{name: content} of a folder whose tokens stand in several files."""
    names = ["<|endoftext|>", "<pad>", "<s>", "[left]", "the", "<|im_start|>", "[BOS]"]
    free = len(plain["model"]["vocab"])
    files, config, tasks = {}, {"tokenizer_class": r.choice(["PreTrainedTokenizerFast", "GPT2Tokenizer", "GPT2TokenizerFast"])}, {}
    if r.random() < 0.5:
        files["tokenizer.json"] = {**plain, "truncation": r.choice([None, {
            "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}]), "padding": r.choice([None, {
                "strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                "pad_type_id": 0, "pad_token": r.choice(["!", "the", "<pad>"])}])}
        if files["tokenizer.json"]["padding"]:  # of which other classes take a token or not, by version
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
    else:
        files["vocab.json"] = plain["model"]["vocab"]
        files["merges.txt"] = "#version: 0.2\n" + "".join(
            (m if isinstance(m, str) else " ".join(m)) + "\n" for m in plain["model"]["merges"])
        config["tokenizer_class"] = r.choice(["GPT2Tokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast"])
    for task in "bos_token", "eos_token", "unk_token", "pad_token", "mask_token":
        if r.random() < 0.3:
            tasks[task] = r.choice([None, *names])
    added = r.sample(["<x>", "<y>", "<|im_start|>", "<pad>", "A\u030angstr\u00f6m"], r.randint(0, 4))
    if r.random() < 0.5:
        config["added_tokens_decoder"] = {str(free + i): token(r, c, special=r.random() < 0.5) for i, c in enumerate(added)}
        for content in "<|endoftext|>", "[BOS]":  # those of tokenizer.json are in the list, too
            if "tokenizer.json" in files:
                config["added_tokens_decoder"][str(plain["model"]["vocab"][content])] = token(r, content, special=True)
    elif r.random() < 0.7:
        files["added_tokens.json"] = {c: free + i for i, c in enumerate(added)}
    if r.random() < 0.3:
        config["additional_special_tokens"] = r.sample(names, 2)
    if r.random() < 0.3:
        config["add_prefix_space"] = r.random() < 0.2
    if r.random() < 0.5:
        config.update(tasks)
    else:
        spelled = {v: token(r, v) if v is not None and r.random() < 0.5 else v for v in tasks.values()}
        files["special_tokens_map.json"] = {k: spelled[v] for k, v in tasks.items()}
    if r.random() < 0.9 or config["tokenizer_class"] == "PreTrainedTokenizerFast":
        files["tokenizer_config.json"] = config
    else:
        files["config.json"] = {"model_type": "gpt2" if "tokenizer.json" in files else r.choice(["qwen2", "qwen3"])}
    return files


def folders(program, plain, work):
    """How many folders are read alike, refused here, and not read by the library."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers
    transformers.logging.set_verbosity_error()
    r = random.Random(5)
    probes = ["the cat sat, 12 the[left] <s> x<x> <y>the<pad> <|im_start|>the", " the <|endoftext|> the<mask>[BOS]",
              "cafe\u0301 \u00c5ngstr\u00f6m A\u030angstr\u00f6m 1234 it's!!"]
    alike = refused = unread = 0
    for number in range(FOLDERS):
        folder = work / f"folder-{number}"
        folder.mkdir()
        for name, content in folder_of(r, plain).items():
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        try:
            library = transformers.AutoTokenizer.from_pretrained(folder)
        except Exception:  # pylint: disable=broad-except
            unread += 1
            continue
        try:
            mine = call(program, "encode", folder, [json.dumps(t) for t in probes], work)
        except Refused as e:
            refused += 1
            if not re.search("AutoTokenizer gives it|make them agree|is not supported|do not have", str(e)):
                sys.exit(f"{folder}: refused: {e}")
            continue
        theirs = library(probes)["input_ids"]
        if mine != theirs:
            sys.exit(f"{folder}: ids differ:\n ours   {mine}\n theirs {theirs}")
        alike += 1
    if alike < FOLDERS / 2:
        sys.exit(f"only {alike} of {FOLDERS} folders are read alike; {refused} are refused")
    return alike, refused, unread


def main(program, shared, work):
    shared, work = Path(shared) / "data/tokenizers", Path(work)
    points = code_points()
    late = marks_of_later_tables(points)
    known = [c for c in points if c not in late]
    all_, composed = texts(1, points, TEXTS), texts(2, known, TEXTS)
    nfc = lambda s: unicodedata.normalize("NFC", s)
    tokens = compare(program, shared / "gpt2-tokenizer.json", all_, work, lambda s: s)
    tokens += compare(program, shared / "qwen3-tokenizer.json", composed, work, nfc)
    print(f"GPT-2 and Qwen3: {len(all_)} texts each of {len(points)} code points ({len(late)} of them "
          f"left out of normal form C), {tokens} ids")

    plain = trained(all_[:3000])
    file = work / "tokenizer.json"
    made = variants(plain)
    for number, (name, fields) in enumerate(made):
        file = work / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.json"
        file.write_text(json.dumps(fields))
        compare(program, file, (composed if fields["normalizer"] else all_)[number * 100:][:FEW], work,
                None if re.search("added|prefix|removed", name, re.I) else
                nfc if fields["normalizer"] else lambda s: s)
    print(f"a vocabulary trained here: {FEW} texts for each of {len(made)} files")

    alike, refused, unread = folders(program, plain, work)
    print(f"{FOLDERS} folders with tokens in several files: {alike} read alike, {refused} refused, and "
          f"{unread} that transformers does not read")

    probes = all_[3:63] + ["aabab abc ABC cab C aC aB", "xAAx ss \u00df \u017f \u212a\u0130i\u0131", "a\nb\rc\u2028d", "#--a{x{1,2}]",
                           "axbcx a\x07b\x0cc\x1b\v", "abababc bbbbbbbbbbbbb"]
    refused = []
    for expression in EXPRESSIONS:
        file = work / "expression.json"
        file.write_text(json.dumps({**plain, "pre_tokenizer": steps(split(expression))}))
        try:
            compare(program, file, probes, work)
        except Refused:
            refused.append(expression)
    print(f"{len(EXPRESSIONS)} expressions of one construct each cut alike, or are refused "
          f"({len(refused)}): {' '.join(map(repr, refused))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
