#!/usr/bin/env python3
"""Learning: nanoGPT's CPU configuration on tinyshakespeare.

4 layers, 4 heads, 128 wide, no biases, sequence 64, batch 12, 2,000 iterations, learning rate 1e-3 to
1e-4 by cosine, warm-up 100, betas 0.9 and 0.99, weight decay 0.1, clip 1; 90 % to train, 10 % to
validate. nanoGPT itself reaches a validation loss of 1.898 over the whole split in non-overlapping
windows. Here the mean over three seeds must be at most 1.91 in fp32, and bf16_mixed within 0.5 % of it.

usage: nanogpt.py CHAR_GPT CHAR_GPT_BF16 TINYSHAKESPEARE [--seeds N]
"""
import argparse
import concurrent.futures
import json
import subprocess
import sys
import tempfile

BOUND = 1.91
BF16_SHARE = 0.005


def validation_loss(program, data, seed, folder):
    train = [program, "train", "--data-path", data, "--tokenizer", "char", "--split", "90,10,0",
             "--train-iters", "2000", "--global-batch-size", "12", "--lr", "1e-3", "--min-lr", "1e-4",
             "--lr-decay-style", "cosine", "--lr-warmup-iters", "100", "--adam-beta1", "0.9",
             "--adam-beta2", "0.99", "--weight-decay", "0.1", "--clip-grad", "1", "--eval-iters", "0",
             "--log-interval", "500", "--seed", str(seed), "--threads", "1", "--save", folder]
    subprocess.run(train, check=True)
    result = subprocess.run([program, "eval", "--load", folder, "--data-path", data, "--split",
                             "90,10,0", "--threads", "1", "--json"], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(result.stdout)["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fp32")
    parser.add_argument("bf16")
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    runs = [(name, seed) for name in ("fp32", "bf16") for seed in range(1, arguments.seeds + 1)]

    def loss_of(run):
        name, seed = run
        with tempfile.TemporaryDirectory() as folder:
            loss = validation_loss(getattr(arguments, name), arguments.data, seed, folder + "/model")
        print(f"{name} seed {seed}: validation loss {loss:.4f}", flush=True)
        return loss

    # One thread each, two at a time: the bits are the same.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        losses = list(pool.map(loss_of, runs))
    mean = {name: sum(loss for loss, run in zip(losses, runs) if run[0] == name) / arguments.seeds
            for name in ("fp32", "bf16")}
    share = abs(mean["bf16"] / mean["fp32"] - 1)
    print(f"mean of {arguments.seeds} seeds: fp32 {mean['fp32']:.4f} (at most {BOUND}), "
          f"bf16_mixed {mean['bf16']:.4f} ({100 * share:.2f} % apart, at most {100 * BF16_SHARE} %)")
    return 0 if mean["fp32"] <= BOUND and share <= BF16_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
