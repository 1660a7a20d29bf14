#!/usr/bin/env python3
"""Makes conversations about numbers, for examples/finetune.sh.

    small_conversations.py FOLDER [--conversations N] [--held-out N] [--tasks NAME,...]

    FOLDER/conversations.jsonl   {"messages": [...]} lines: one or two questions and their answers
    FOLDER/held-out.jsonl        conversations of one question that none of the former asks
    FOLDER/questions.txt         the questions of held-out.jsonl, one a line
    FOLDER/answers.txt           what to answer

--tasks names what is asked, by default all: backwards,repeat,sort.
"""

import argparse
import json
import random
from pathlib import Path

TASKS = {"backwards": ("Write {} backwards.", lambda digits: digits[::-1]),
         "repeat": ("Repeat {}.", lambda digits: digits),
         "sort": ("Sort the digits of {}.", lambda digits: "".join(sorted(digits)))}


def question(drawn, tasks):
    digits = str(drawn.randrange(1000, 10000))
    form, answer = TASKS[drawn.choice(tasks)]
    return form.format(digits), answer(digits)


def line_of(exchanges):
    return json.dumps({"messages": [{"role": role, "content": content} for exchange in exchanges
                                    for role, content in zip(["user", "assistant"], exchange)]})


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n")[2].strip())
    parser.add_argument("folder", type=Path)
    parser.add_argument("--conversations", type=int, default=6000)
    parser.add_argument("--held-out", type=int, default=200)
    parser.add_argument("--tasks", default=",".join(TASKS))
    args = parser.parse_args()
    tasks = args.tasks.split(",")
    if not set(tasks) <= set(TASKS):
        parser.error(f"--tasks has a name that is none of {', '.join(TASKS)}")

    drawn = random.Random(1)
    held = {}
    while len(held) < args.held_out:
        held.update([question(drawn, tasks)])
    lines = []
    while len(lines) < args.conversations:
        exchanges = [question(drawn, tasks) for _ in range(drawn.randint(1, 2))]
        if all(q not in held for q, _ in exchanges):
            lines.append(line_of(exchanges))
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, content in [("conversations.jsonl", lines),
                          ("held-out.jsonl", [line_of([one]) for one in held.items()]),
                          ("questions.txt", held.keys()), ("answers.txt", held.values())]:
        (args.folder / name).write_text("".join(line + "\n" for line in content))


main()
