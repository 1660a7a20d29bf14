#!/usr/bin/env python3
"""Learning: nanoGPT's CPU configuration on tinyshakespeare.

4 layers, 4 heads, 128 wide, no biases, sequence 64, batch 12, 2,000 iterations, learning rate 1e-3 to
1e-4 by cosine, warm-up 100, betas 0.9 and 0.99, weight decay 0.1, clip 1; 90 % to train, 10 % to
validate. nanoGPT itself reaches a validation loss of 1.898 over the whole split in non-overlapping
windows. Here the mean over the seeds must be at most 1.91 in fp32, and in bf16_moments too; and bf16_mixed,
after as many iterations of the same training as fp32, within 0.5 % of it.

usage: nanogpt.py CHAR_GPT CHAR_GPT_BF16 CHAR_GPT_BF16_MOMENTS TINYSHAKESPEARE [--seeds N] [--bf16-iters N]
"""
import argparse
import concurrent.futures
import json
import subprocess
import sys
import tempfile

BOUND = 1.91
BF16_SHARE = 0.005
ITERATIONS = 2000


def validation_loss(program, data, seed, folder, iterations):
    """Of the state after so many iterations; goes on from the one that the folder holds."""
    train = [program, "train", "--data-path", data, "--tokenizer-type", "char", "--split", "90,10,0",
             "--train-iters", str(iterations), "--lr-decay-iters", str(ITERATIONS),
             "--global-batch-size", "12", "--lr", "1e-3", "--min-lr", "1e-4",
             "--lr-decay-style", "cosine", "--lr-warmup-iters", "100", "--adam-beta1", "0.9",
             "--adam-beta2", "0.99", "--weight-decay", "0.1", "--clip-grad", "1", "--eval-iters", "0",
             "--log-interval", "500", "--seed", str(seed), "--threads", "1", "--load", folder,
             "--save", folder]
    subprocess.run(train, check=True)
    result = subprocess.run([program, "eval", "--load", folder, "--data-path", data, "--split",
                             "90,10,0", "--threads", "1", "--json"], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(result.stdout)["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fp32")
    parser.add_argument("bf16")
    parser.add_argument("moments")
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bf16-iters", type=int, default=ITERATIONS)
    arguments = parser.parse_args()
    common = min(arguments.bf16_iters, ITERATIONS)
    runs = [(name, seed) for name in ("fp32", "bf16", "moments") for seed in range(1, arguments.seeds + 1)]

    def losses_of(run):
        """At the iteration that is compared, and at the end of fp32 and bf16_moments."""
        name, seed = run
        program, losses = getattr(arguments, name), {}
        with tempfile.TemporaryDirectory() as folder:
            ends = {"fp32": {common, ITERATIONS}, "bf16": {common}, "moments": {ITERATIONS}}
            for iterations in sorted(ends[name]):
                loss = validation_loss(program, arguments.data, seed, folder + "/model", iterations)
                print(f"{name} seed {seed}, {iterations} iterations: validation loss {loss:.4f}",
                      flush=True)
                losses[iterations] = loss
        return losses

    # One thread each, two at a time: the bits are the same.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        losses = list(zip(runs, pool.map(losses_of, runs)))

    def mean(name, iterations):
        return sum(each[iterations] for run, each in losses if run[0] == name) / arguments.seeds

    fp32 = mean("fp32", ITERATIONS)
    share = abs(mean("bf16", common) / mean("fp32", common) - 1)
    moments = mean("moments", ITERATIONS)
    print(f"mean of {arguments.seeds} seeds: fp32 {fp32:.4f}, bf16_moments {moments:.4f} (at most {BOUND}), "
          f"bf16_mixed after {common} "
          f"iterations {mean('bf16', common):.4f} ({100 * share:.2f} % apart, at most {100 * BF16_SHARE} %)")
    return 0 if fp32 <= BOUND and moments <= BOUND and share <= BF16_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
