#!/usr/bin/env python3
"""TensorBoard's own classes read the event files of a run that was stopped and went on.

    tensorboard_peer.py PROGRAM WORK

Every number is that of --metrics-jsonl, of two steps with one number that of the later one; the flags of the
run and how it ended are what the plugin of hyperparameters reads.
"""

import json
import math
import struct
import subprocess
import sys
from pathlib import Path

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import plugin_data_pb2

OF_STEPS = {"lm loss": "loss", "learning-rate": "lr", "grad-norm": "grad_norm", "tokens-per-second": "tokens_per_s",
            "memory-bytes": "memory"}


def train(program, work, steps, *more, logs="logs", check=0):
    done = subprocess.run([program, "train", "--data-path", "text", "--tokenizer-type", "byte", "--train-iters", steps,
                           "--lr-decay-iters", "40", "--eval-interval", "10", "--eval-iters", "1", "--save", f"states of {logs}",
                           "--save-interval", "10", "--tensorboard-dir", logs, *more],
                          cwd=work, capture_output=True, text=True)
    assert done.returncode == check, done.stdout + done.stderr
    return done


def single(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def read(work, logs="logs"):
    board = event_accumulator.EventAccumulator(str(work / logs), size_guidance={event_accumulator.SCALARS: 0})
    board.Reload()
    return board


def last_of(board, tag):
    """The last value of each step, as TensorBoard shows them: later ones count."""
    return {v.step: v.value for v in board.Scalars(tag)}


def plugin(board, which):
    content = board.SummaryMetadata(f"_hparams_/{which}").plugin_data.content
    return getattr(plugin_data_pb2.HParamsPluginData.FromString(content), which)


def main():
    if len(sys.argv) != 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    program, work = sys.argv[1], Path(sys.argv[2])
    (work / "text").write_text("".join(f"{n} words of a text\n" for n in range(2000)))
    # Steps 11 to 15 are taken twice: the state behind step 15 is lost.
    train(program, work, "15", "--metrics-jsonl", "first.jsonl")
    newest = work / "states of logs/latest_checkpointed_iteration.txt"
    (work / "states of logs/iter_0000015").rename(work / "lost")
    newest.write_text("10")
    train(program, work, "30", "--load", "states of logs", "--metrics-jsonl", "second.jsonl")
    board, steps, evaluations = read(work), {}, {}
    for name in ("first.jsonl", "second.jsonl"):
        for line in map(json.loads, (work / name).read_text().splitlines()):
            (steps if "loss" in line else evaluations)[line["step"]] = line
    assert sorted(steps) == list(range(1, 31)) and sorted(evaluations) == [10, 15, 20, 30], (steps, evaluations)
    for tag, field in OF_STEPS.items():
        assert last_of(board, tag) == {n: single(line[field]) for n, line in steps.items()}, tag
    batch = int(board.Scalars("batch-size")[0].value)
    assert last_of(board, "lm loss vs samples") == {n * batch: single(line["loss"]) for n, line in steps.items()}
    losses = {n: single(line["validation_loss"]) for n, line in evaluations.items()}
    assert last_of(board, "lm loss validation") == losses, (losses, board.Scalars("lm loss validation"))
    for step, value in last_of(board, "lm loss validation ppl").items():
        assert math.isclose(value, evaluations[step]["perplexity"], rel_tol=1e-6), step
    flags = {name: v for name, v in plugin(board, "session_start_info").hparams.items()}
    assert flags["train-iters"].number_value == 15 and flags["lr-decay-style"].string_value == "linear"
    known = {info.name for info in plugin(board, "experiment").hparam_infos}
    assert known == set(flags), known ^ set(flags)
    assert plugin(board, "session_end_info").status == 1
    # A run that an error ends.
    train(program, work, "40", "--lr", "1e30", "--clip-grad", "0", logs="failed", check=7)
    assert plugin(read(work, "failed"), "session_end_info").status == 2
    print(f"TensorBoard reads {sum(len(board.Scalars(t)) for t in board.Tags()['scalars'])} numbers under "
          f"{len(board.Tags()['scalars'])} names")
    return 0


if __name__ == "__main__":
    sys.exit(main())
