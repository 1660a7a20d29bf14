#!/usr/bin/env python3
"""Compares what two builds of one program make of their flags.

    flags.py OLD NEW [--commands train,eval,generate,describe,export] [--pairs all|none|file]

Each flag that OLD's help lists is given to both programs: right, empty, wrong and twice, in a file of flags,
and beside each other flag, both on the command line (all) or one of them in a file (file). Exit codes must be
equal, and what eval, generate and describe print; where they are not, both sentences are printed. Each run has
a folder of its own with a text, its ids, a state and a file of flags.
"""

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

OF_TEXT = {"data-path": "text", "load": "state", "prompt": "ab", "prompts-file": "prompts",
           "data-args-path": "words", "per-split-data-args-path": "parts.json", "split": "80,20,0",
           "rampup-batch-size": "4 4 8", "max-shard-size": "1MB", "config": "flags", "stop-tokens": "3",
           "tokenizer-type": "byte"}
BEGIN = {"train": ["--data-path", "text", "--train-iters", "1"], "eval": ["--load", "state", "--data-path", "text"],
         "generate": ["--load", "state", "--max-new-tokens", "1"], "describe": [],
         "export": ["--load", "state", "--save", "out"]}


def prepare(folder, program):
    folder.mkdir()
    (folder / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    (folder / "prompts").write_text("a\nb\n")
    (folder / "words").write_text("text")
    (folder / "parts.json").write_text('{"train": ["text"]}')
    (folder / "flags").write_text('{"seed": 3}')
    subprocess.run([program, "train", "--data-path", "text", "--train-iters", "1", "--save", "state"], cwd=folder,
                   check=True, capture_output=True)


def flags_of(program, command):
    """The flags of a command and what stands for their values; "" is a switch."""
    text = subprocess.run([program, command, "--help"], check=True, capture_output=True, text=True).stdout
    return re.findall(r"^  --([a-z0-9-]+)(?: (\S+))?$", text, re.MULTILINE)


def right(name, argument):
    if argument == "":
        return [f"--{name}"]
    if name in OF_TEXT:
        return [f"--{name}", OF_TEXT[name]]
    if "|" in argument:
        return [f"--{name}", argument.split("|")[0]]
    return [f"--{name}", {"N": "1", "X": "0.5"}.get(argument.rstrip("."), "x")]


def in_file(words):
    """The words of one flag as a file of flags has them."""
    value = words[1] if len(words) > 1 else True
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        value = json.loads(value)
    return ["--config", json.dumps({words[0].removeprefix("--"): value})]


def cases(program, command, pairs):
    flags = [flag for flag in flags_of(program, command) if flag[0] != "config"]
    for name, argument in flags:
        yield BEGIN[command] + in_file(right(name, argument))
    for name, argument in flags:
        for words in (right(name, argument), [f"--{name}="], [f"--{name}"], [f"--{name}", "=wrong="],
                      right(name, argument) * 2):
            yield BEGIN[command] + words
            yield words
    if pairs == "all":
        for (a, of_a), (b, of_b) in itertools.combinations(flags, 2):
            yield BEGIN[command] + right(a, of_a) + right(b, of_b)
    elif pairs == "file":
        for (a, of_a), (b, of_b) in itertools.permutations(flags, 2):
            yield BEGIN[command] + in_file(right(a, of_a)) + right(b, of_b)


def outcome(program, command, words, whole):
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "here"
        shutil.copytree(whole, here)
        words = list(words)
        for at, word in enumerate(words):
            if word == "--config" and words[at + 1].startswith("{"):
                (here / "of_case").write_text(words[at + 1])
                words[at + 1] = "of_case"
        try:
            done = subprocess.run(["program", command, *words], executable=program, cwd=here, capture_output=True,
                                  text=True, timeout=60, input="", errors="replace")
            told = done.stdout if command in ("eval", "generate", "describe") else ""
            return done.returncode, told, " ".join(done.stderr.strip().splitlines()[-1:])
        except subprocess.TimeoutExpired:
            return "no end within 60 s", "", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old"), parser.add_argument("new")
    parser.add_argument("--commands", default=",".join(BEGIN))
    parser.add_argument("--pairs", default="all", choices=["all", "none", "file"])
    a = parser.parse_args()
    old, new = (str(Path(program).resolve()) for program in (a.old, a.new))
    different = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        whole = Path(folder) / "whole"
        prepare(whole, old)
        for command in a.commands.split(","):
            every = list(cases(old, command, a.pairs))

            def both(words):
                return words, outcome(old, command, words, whole), outcome(new, command, words, whole)

            count = 0
            for words, before, after in pool.map(both, every):
                if before[:2] != after[:2]:
                    count += 1
                    print(f"{command} {' '.join(words)}")
                    for code, told, sentence in (before, after):
                        print(f"  {code}: {sentence or told}", flush=True)
            print(f"{command}: {len(every)} cases, {count} with another exit code or output", flush=True)
            different += count
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
