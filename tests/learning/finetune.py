#!/usr/bin/env python3
"""What examples/finetune.sh has left in a folder: conversations, a base, a tuned model, a program.

    finetune.py FOLDER

A mask that is turned around is found: the answers are not learned, and the loss falls where the
mask is, nowhere else. A run that was interrupted, and one on replicas, are the run; epochs count.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
EPOCHS = 2  # after which the loss of what is learned has fallen to a tenth


def run(*arguments, program="./small-model", code=0):
    done = subprocess.run([program, *map(str, arguments)], cwd=FOLDER, capture_output=True, text=True)
    if done.returncode != code:
        sys.exit(f"FAILED: {program} {' '.join(map(str, arguments))}: exit code {done.returncode}\n"
                 f"{done.stdout}{done.stderr}")
    return done


def check(holds, sentence):
    print(f"{'ok' if holds else 'FAILED'}: {sentence}")
    if not holds:
        sys.exit(1)


def turned(source, to):
    """Lines of ids and masks: what the assistant does not say is learned."""
    lines = run("chat", "--tokenizer", "base/model", "--input", source, program="megacpp-data").stdout
    with open(FOLDER / to, "w") as out:
        for line in map(json.loads, lines.splitlines()):
            json.dump({"ids": line["ids"], "mask": [1 - m for m in line["mask"]]}, out)
            out.write("\n")


def train(name, data, *more, load="base/model", epochs=("--epochs", EPOCHS)):
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    return run("train", "--load", load, "--data-type", "chat", "--data-path", data, "--split", "100,0,0",
               "--lr", 3e-3, "--lr-decay-style", "cosine", "--lr-warmup-iters", 1, "--adam-beta2", 0.99,
               "--weight-decay", 0.1, *epochs, "--save", name, *more)


def share(model):
    """Of the held-out questions, those answered exactly."""
    said = run("generate", "--load", model, "--chat", "--greedy", "--max-new-tokens", 16, "--batch-size", 64,
               "--prompts-file", "questions.txt", "--json").stdout.splitlines()
    right = (FOLDER / "answers.txt").read_text().splitlines()
    return sum(json.loads(s)["text"] == r for s, r in zip(said, right, strict=True)) / len(right)


def loss(model, data):
    return json.loads(run("eval", "--load", model, "--data-type", "chat", "--data-path", data, "--json").stdout)[
        "loss"]


def newest(model):
    return max((FOLDER / model).glob("iter_*"))


def weights(model):
    return hashlib.sha256((newest(model) / "model.safetensors").read_bytes()).hexdigest()


turned("conversations.jsonl", "turned.jsonl")
turned("held-out.jsonl", "held-out-turned.jsonl")
train("turned", "turned.jsonl")
answers, others = "held-out.jsonl", "held-out-turned.jsonl"
losses = {m: (loss(m, answers), loss(m, others)) for m in ("base/model", "model", "turned")}
shares = {m: share(m) for m in losses}
for m in losses:
    print(f"{m}: {shares[m]:.1%} exact, loss of answers {losses[m][0]:.4f}, of all else {losses[m][1]:.4f}")
base, tuned, turned_round = losses.values()
check(shares["base/model"] < 0.3 and shares["model"] >= 0.95, "answers are learned")
check(shares["turned"] < 0.3, "a mask that is turned around teaches no answers")
check(tuned[0] < 0.1 * base[0], "the loss falls on what the assistant says")
check(tuned[1] > base[1] - 0.01, "and on nothing else")
check(turned_round[0] > 0.8 * base[0], "turned around, it does not fall on answers")
check(turned_round[1] < tuned[1], "but stays low on all else")

# Steps of an epoch are its sequences over those of a step, rounded up.
told = train("short", "held-out.jsonl", epochs=("--epochs", 7))
rows = int(re.search(r"packed into (\d+) sequences of 128", told.stdout + told.stderr)[1])
steps = -(-7 * rows // 16)
check(newest("short").name == f"iter_{steps:07}", f"7 epochs of {rows} sequences are {steps} steps of 16")

# The same conversations, in parts and on replicas.
train("part", "held-out.jsonl", "--lr-decay-iters", steps, epochs=("--train-iters", steps - 3))
run("train", "--load", "part", "--save", "part", "--train-iters", steps)
check(weights("part") == weights("short"), "a run that goes on has the bits of the run that never stopped")

seen = []
for ranks in (1, 2):
    metrics = FOLDER / f"ranks-{ranks}.jsonl"
    metrics.unlink(missing_ok=True)
    train(f"ranks-{ranks}", "held-out.jsonl", "--global-batch-size", 32, "--ranks", ranks, "--metrics-jsonl",
          metrics, epochs=("--epochs", 7))
    seen.append([line["loss"] for line in map(json.loads, metrics.read_text().splitlines()) if "loss" in line])
apart = max(abs(a - b) for a, b in zip(*seen, strict=True))
check(len(seen[0]) == -(-7 * rows // 32) and apart < 1e-4, f"replicas have the losses of one rank (to {apart:.1e})")

# A base that ends texts otherwise ends answers where turns end, wherever the tuned model is served.
ends = {"<|im_end|>": 0, "<|endoftext|>": 0}
for token in json.loads((FOLDER / "base/model/tokenizer.json").read_text())["added_tokens"]:
    ends[token["content"]] = token["id"]
shutil.rmtree(FOLDER / "base-of-texts", ignore_errors=True)
shutil.copytree(FOLDER / "base/model", FOLDER / "base-of-texts")
(FOLDER / "base-of-texts/generation_config.json").write_text(
    json.dumps({"eos_token_id": ends["<|endoftext|>"], "top_k": 20}))
train("served", "held-out.jsonl", load="base-of-texts", epochs=("--train-iters", 2))
run("export", "--load", "served", "--save", "for-servers")
check(json.loads((FOLDER / "for-servers/generation_config.json").read_text()) ==
      {"eos_token_id": [ends["<|im_end|>"], ends["<|endoftext|>"]], "top_k": 20},
      "a tuned model ends where turns do, and what else its base says stays")

# A question and its answer in fields of their own are the conversation that messages are.
with open(FOLDER / "orca.jsonl", "w") as orca, open(FOLDER / "of-messages.jsonl", "w") as of_messages:
    for n, line in enumerate((FOLDER / "held-out.jsonl").read_text().splitlines()):
        asked, said = (message["content"] for message in json.loads(line)["messages"])
        about = "" if n % 3 else "Be brief."
        fields = {"id": n, "system_prompt": about, "question": asked, "response": said}
        system = [{"role": "system", "content": about}] if about else []
        print(json.dumps(fields), file=orca)
        print(json.dumps({"messages": [*system, {"role": "user", "content": asked},
                                       {"role": "assistant", "content": said}]}), file=of_messages)
keys = ("--chat-keys", "system=system_prompt,user=question,assistant=response")
four = ("--train-iters", 4)
train("fields", "orca.jsonl", *keys, "--chat-loss", "all", epochs=four)
train("messages", "of-messages.jsonl", "--chat-loss", "all", epochs=four)
check(weights("fields") == weights("messages"), "lines with a field for each role give the weights of messages")
lines = [run("chat", "--tokenizer", "base/model", "--input", *data, program="megacpp-data").stdout
         for data in (("orca.jsonl", *keys), ("of-messages.jsonl",))]
check(lines[0] == lines[1] and lines[0], "and their ids and masks")
losses = [run("eval", "--load", "model", "--data-type", "chat", "--data-path", *data, "--json").stdout
          for data in (("orca.jsonl", *keys), ("of-messages.jsonl",))]
check(losses[0] == losses[1], "and their loss")
on = ("train", "--load", "fields", "--save", "fields", "--train-iters")
run(*on, 5)
run(*on, 6, *keys)
done = run(*on, 7, keys[0], "user=question,assistant=response", code=3)
check("chat-keys is system=system_prompt,user=question,assistant=response there and user=question" in done.stderr,
      "a run goes on with its own fields, and with no others")
(FOLDER / "lacks.jsonl").write_text('{"question": "a", "response": "b"}\n{"question": "a"}\n')
done = run("train", "--load", "base/model", "--data-type", "chat", "--data-path", "lacks.jsonl", *keys, code=4)
check('lacks.jsonl: line 2 has no "response", which --chat-keys names for the assistant' in done.stderr,
      "a line without a field is named")

# What is shown as learned is what the assistant says, with the end of its turn, and as much as is counted.
shown = run("train", "--load", "base/model", "--data-type", "chat", "--data-path", "held-out.jsonl", "--split",
            "100,0,0", "--epochs", 1, "--show-mask", rows).stdout.splitlines()  # an epoch
told = int(re.search(r"of which (\d+) are learned", shown[0])[1])
counts = [int(re.search(r"(\d+) learned", line)[1]) for line in shown if line.startswith("sample ")]
answers = sorted(json.loads(line[12:]) for line in shown if line.startswith("    learned "))
check(answers == sorted(a + "<|im_end|>" for a in (FOLDER / "answers.txt").read_text().splitlines()),
      "--show-mask marks every answer, and nothing else")
check(len(counts) == rows and sum(counts) == told, f"which are {told} tokens in {rows} sequences")

# Texts on the way are answers.
# By the weights as they are, since the learning rate is 0.
asking = ("train", "--load", "model", "--finetune", "--data-type", "chat", "--data-path", "held-out.jsonl",
          "--split", "100,0,0", "--train-iters", 1, "--lr", 0)
done = run(*asking, "--sample-interval", 1, "--sample-prompt", "Repeat 1234.")
said = done.stdout + done.stderr
check(re.search(r"; the run is 0\.\d epochs \(--epochs asks for some\)", said), "what steps come to is told")
check('sample: "1234"' in said, "texts on the way are answers to --sample-prompt")

# In a talk each answer draws numbers of its own; at the heat of 9 words are as good as drawn from a hat.
said = subprocess.run(["./small-model", "generate", "--load", "model", "--chat", "--temperature", "9",
                       "--max-new-tokens", "1", "--ignore-eos"], cwd=FOLDER, input=b"Repeat 1.\n" * 6,
                      capture_output=True, check=True).stdout
check(len(set(said.split(b"\n"))) >= 5, "the same question again has another answer")

for more, words in ((("--tokenizer-type", "byte"), "--tokenizer-type changes nothing for conversations"),
                    (("--vocab-file", "a"), "--vocab-file changes nothing for conversations"),
                    (("--reset-attention-mask",), "--reset-attention-mask changes nothing"),
                    (("--sample-interval", 1), "with what a user says")):
    done = run(*asking, *more, code=2)
    check(words in done.stderr and done.stderr.count("\n") == 1, f"{' '.join(map(str, more))} is refused")
