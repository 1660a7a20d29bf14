"""Writes a table of what a model said before and after training, from two folders.

    side_by_side.py BEFORE AFTER FILE.md

Each folder has perplexity.json, what `eval --json` prints, and answers.jsonl, what `generate --json` prints for the
same prompts in the same order.
Exit code 1: a file is missing, or the two folders answer different prompts.
"""

import json
import sys
from pathlib import Path


class failure(Exception):
    """A sentence about what could not be done, and what to do."""


def objects(path):
    """The objects of a file of JSON lines, without other lines. Texts in it may have other separators of lines."""
    found = []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise failure(f"{path} is not UTF-8 ({problem}); write the file anew") from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError as problem:
                raise failure(f"{path}, line {number} is no JSON ({problem}); write the file anew") from None
    if not found:
        raise failure(f"{path} has no line of JSON; look at the log of the container that writes it")
    return found


def cell(text):
    """A text as a cell of a table, which is one line whatever separates lines."""
    return "<br>".join(text.strip().replace("\\", "\\\\").replace("|", "\\|").splitlines())


def answer(line):
    """What was said behind the prompt."""
    prompt, text = line["prompt"], line["text"]
    return text[len(prompt):] if text.startswith(prompt) else text


def main(words):
    if len(words) != 3:
        print("side_by_side.py: give BEFORE, AFTER and FILE.md", file=sys.stderr)
        return 2
    before, after, file = map(Path, words)
    try:
        numbers = [objects(folder / "perplexity.json")[-1] for folder in (before, after)]
        said = [objects(folder / "answers.jsonl") for folder in (before, after)]
        if [line["prompt"] for line in said[0]] != [line["prompt"] for line in said[1]]:
            raise failure(f"{before} and {after} answer different prompts; write both anew")
        rows = ["| | before | after |", "|---|---|---|"]
        for name in ("perplexity", "loss", "tokens"):
            rows.append(f"| {name} | {numbers[0][name]:.6g} | {numbers[1][name]:.6g} |")
        for one, other in zip(*said):
            rows.append(f"| {cell(one['prompt'])} | {cell(answer(one))} | {cell(answer(other))} |")
        file.write_text("\n".join(rows) + "\n", encoding="utf-8")
        print("\n".join(rows[:5]))
    except KeyError as problem:
        print(f"side_by_side.py: a line has no field {problem}; write the files anew", file=sys.stderr)
        return 1
    except (TypeError, ValueError, AttributeError) as problem:
        print(f"side_by_side.py: a field is not what it should be ({problem}); write the files anew", file=sys.stderr)
        return 1
    except (failure, OSError) as sentence:
        print(f"side_by_side.py: {sentence}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
