#!/usr/bin/env python3
"""A chat template that megacpp does not know, from the refusal to a model that has learned by it.

    render_peer.py SOURCE PROGRAM WORK

SOURCE is the checkout, PROGRAM the small model of examples/, WORK an empty folder. The command in the
refusal is run as it is printed.
"""

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

# Each answer has a header and an end of its own kind, and a turn is written otherwise than by ChatML.
TEMPLATE = ("{%- for m in messages %}\n{{- '<|im_start|>' + m['role'] + ': ' + m['content'] | trim + "
            "'<|im_end|>\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}{{ '<|im_start|>assistant: ' }}"
            "{%- endif %}\n")
CONVERSATION = {"messages": [
    {"role": "user", "content": "Repeat 12. "}, {"role": "assistant", "content": "21", "loss": False},
    {"role": "user", "content": "No."}, {"role": "assistant", "content": " 12"}]}


def run(*arguments, code=0, **more):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, **more)
    if done.returncode != code:
        sys.exit(f"{arguments}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done


def main(source, program, work):
    source, work = Path(source), Path(work)
    run(sys.executable, source / "examples/small_conversations.py", work)
    run(sys.executable, source / "examples/small_tokenizer.py", work / "tokenizer", work / "conversations.jsonl",
        "--vocabulary", 512)
    config = work / "tokenizer/tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))

    train = (program, "train", "--tokenizer-model", work / "tokenizer", "--data-type", "chat", "--data-path")
    said = run(*train, work / "conversations.jsonl", "--train-iters", 1, code=5).stderr
    command = re.search(r"examples/render_conversations\.py \S+ FILE >LINES.jsonl", said)
    if not command:
        sys.exit(f"no command in the refusal: {said}")

    def render(conversations, lines, *flags):
        words = shlex.split(command[0].replace("FILE", str(conversations)).partition(" >")[0])
        with open(lines, "w", encoding="utf-8") as out:
            subprocess.run([sys.executable, source / words[0], *words[1:], *flags], stdout=out, check=True)
        return [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]

    tokens = json.loads((work / "tokenizer/tokenizer.json").read_text(encoding="utf-8"))
    spelled = {t["id"]: t["content"] for t in tokens["added_tokens"]}
    (work / "one.jsonl").write_text(json.dumps(CONVERSATION))
    (line,) = render(work / "one.jsonl", work / "one-line.jsonl")
    learned = [id for id, kept in zip(line["ids"], line["mask"], strict=True) if kept]
    signs = {id: letters for letters, id in tokens["model"]["vocab"].items()}
    # Blanks around words are stripped by the template; the turn that says so is not learned.
    assert "".join(spelled.get(i) or signs[i] for i in learned) == "12<|im_end|>", learned
    both = render(work / "one.jsonl", work / "each.jsonl", "--each-answer", "--chat-loss", "all")
    assert [sum(line["mask"]) for line in both] == [len(line["ids"]) for line in both], both

    lines = render(work / "conversations.jsonl", work / "lines.jsonl")
    assert len(lines) == len((work / "conversations.jsonl").read_text().splitlines())
    metrics = work / "metrics.jsonl"
    run(*train, work / "lines.jsonl", "--split", "100,0,0", "--train-iters", 60, "--global-batch-size", 16, "--lr",
        3e-3, "--save", work / "model", "--metrics-jsonl", metrics)
    losses = [line["loss"] for line in map(json.loads, metrics.read_text().splitlines()) if "loss" in line]
    # The last token of an answer can be known at once, and digits are one of ten.
    assert abs(losses[0] - math.log(512)) < 0.5 and losses[-1] < math.log(10), losses
    print(f"{len(lines)} conversations by another template: {losses[0]:.2f} to {losses[-1]:.2f} nats a token")

    asked = work / "asked.txt"
    with open(asked, "w", encoding="utf-8") as out:
        subprocess.run([sys.executable, source / "examples/render_conversations.py", work / "tokenizer",
                        work / "one.jsonl", "--prompts"], stdout=out, check=True)
    answer = json.loads(run(program, "generate", "--load", work / "model", "--ids", "--prompts-file", asked,
                            "--max-new-tokens", 2, "--greedy", "--json").stdout)
    assert answer["prompt_tokens"] == [int(i) for i in asked.read_text().split()], answer


main(*sys.argv[1:])
