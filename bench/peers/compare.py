#!/usr/bin/env python3
"""Runs two programs in turn, A B A B ..., and prints the ratio of their times with its spread.

Each command must print one line of JSON with "median_ms" as its last JSON line on standard output.
Machines differ and drift, so a figure is a ratio of neighbours: every pair gives time(A) / time(B),
and the result is the median of these with its smallest and largest. Fewer than five pairs give no
ratio.
"""

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402

FEWEST_PAIRS = 5
# Threads that wait for each other by spinning slow down many times over when another program takes
# one of their cores (measured: 28 ms to 242 ms a step), so such pairs say little.
DISTURBED_CORES = 0.2
NO_RATIO = 3  # exit status when there were too few pairs


class Failed(Exception):
    """A command did not give a figure; the text says which and why."""


def report_of(output):
    """The last line that is a JSON object with a positive finite "median_ms", or None."""
    for line in reversed(output.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and "median_ms" in found:
            figure = found["median_ms"]
            if isinstance(figure, (int, float)) and math.isfinite(figure) and figure > 0:
                return found
            return None
    return None


def busy_seconds():
    """Processor time of the whole machine that was not idle: user to steal of /proc/stat."""
    try:
        fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def run(name, command, timeout):
    """Runs one command; returns its report with wall time and the cores that others kept busy."""
    before, start, own = busy_seconds(), time.monotonic(), os.times()
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=timeout)
    except OSError as problem:
        raise Failed(f"{name}: cannot start {command[0]}: {problem.strerror}") from problem
    except subprocess.TimeoutExpired as problem:
        raise Failed(f"{name}: no result within {timeout:g} s") from problem
    wall, after, now = time.monotonic() - start, busy_seconds(), os.times()
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise Failed(f"{name}: exit status {done.returncode}\n{tail}".rstrip())
    report = report_of(done.stdout)
    if report is None:
        raise Failed(f'{name}: printed no JSON line with a positive "median_ms"')
    report["wall_s"] = round(wall, 3)
    if before is not None and after is not None and wall >= 1:  # the kernel counts 10 ms ticks
        ours = now.children_user + now.children_system - own.children_user - own.children_system
        report["others_cores"] = round(max(0.0, after - before - ours) / wall, 2)
    return report


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def parse(argv):
    p = argparse.ArgumentParser(
        description="Compares two programs that print {\"median_ms\": ...}, run in turn.",
        epilog="example: compare.py --tag char --a './build/char_gpt train --bench-json' "
               "--b 'build/peers-venv/bin/python bench/peers/gpt_step.py'")
    p.add_argument("--a", required=True, metavar="COMMAND", help="first command line (no shell)")
    p.add_argument("--b", required=True, metavar="COMMAND", help="second command line (no shell)")
    p.add_argument("--name-a", default="a")
    p.add_argument("--name-b", default="b")
    p.add_argument("--pairs", type=int, default=FEWEST_PAIRS,
                   help=f"default {FEWEST_PAIRS}; fewer print no ratio and exit with {NO_RATIO}")
    p.add_argument("--at-most", type=float, default=None, metavar="RATIO",
                   help="exit with 1 when the median of time(a) / time(b) exceeds this")
    p.add_argument("--timeout", type=float, default=1800, metavar="SECONDS", help="per run")
    p.add_argument("--tag", default="compare", help="start of the result's file name")
    p.add_argument("--out", default=None, metavar="FOLDER", help="default bench/results")
    arguments = p.parse_args(argv)
    if arguments.pairs < 1:
        p.error("--pairs must be at least 1")
    for side in ("a", "b"):
        try:
            command = shlex.split(getattr(arguments, side))
        except ValueError as problem:
            p.error(f"--{side}: {problem}")
        if not command:
            p.error(f"--{side} is empty")
        setattr(arguments, side, command)
    return arguments


def compare(arguments):
    names = {"a": arguments.name_a, "b": arguments.name_b}
    result = {"kind": "compare", "tag": arguments.tag, **machine.facts()}
    pairs = []
    for number in range(1, arguments.pairs + 1):
        pair = {side: run(names[side], getattr(arguments, side), arguments.timeout)
                for side in ("a", "b")}
        pairs.append(pair)
        print("pair {:2}: {} {:.3f} ms, {} {:.3f} ms".format(
            number, names["a"], pair["a"]["median_ms"], names["b"], pair["b"]["median_ms"]),
            flush=True)
    for side in ("a", "b"):
        figures = spread([pair[side]["median_ms"] for pair in pairs])
        result[side] = {"name": names[side], "command": shlex.join(getattr(arguments, side)),
                        "median_ms": figures}
        print("{:>8}: median {:.3f} ms ({:.3f} to {:.3f}) over {} runs".format(
            names[side], figures["median"], figures["min"], figures["max"], len(pairs)))
    result["ratio"] = None
    if len(pairs) >= FEWEST_PAIRS:
        result["ratio"] = spread([p["a"]["median_ms"] / p["b"]["median_ms"] for p in pairs])
        print("   ratio: time({}) / time({}) = {:.3f} ({:.3f} to {:.3f})".format(
            names["a"], names["b"], *(result["ratio"][k] for k in ("median", "min", "max"))))
    else:
        print(f"   ratio: none, {len(pairs)} pairs are fewer than {FEWEST_PAIRS}")
    others = [r["others_cores"] for p in pairs for r in p.values() if "others_cores" in r]
    if others:
        result["others_cores"] = spread(others)
        print("  others: {:.2f} cores busy with other work (up to {:.2f}) of {}".format(
            result["others_cores"]["median"], result["others_cores"]["max"], result["cores"]))
    result["disturbed_pairs"] = sum(
        any(r.get("others_cores", 0) > DISTURBED_CORES for r in p.values()) for p in pairs)
    if result["disturbed_pairs"]:
        print(" warning: {} of {} pairs disturbed by other programs; repeat when idle".format(
            result["disturbed_pairs"], len(pairs)))
    print("     cpu: {}, {} cores".format(result["cpu"], result["cores"]))
    print("  commit:", result["commit"])
    result["pairs"] = pairs
    print(" written:", machine.write_result(arguments.tag, result, arguments.out))
    return result["ratio"]


def main(argv=None):
    arguments = parse(argv)
    try:
        ratio = compare(arguments)
    except Failed as problem:
        sys.exit(f"compare.py: {problem}")
    except OSError as problem:
        sys.exit(f"compare.py: cannot write the result: {problem}")
    if ratio is None:
        return NO_RATIO
    if arguments.at_most is not None and ratio["median"] > arguments.at_most:
        print(f"compare.py: {ratio['median']:.3f} exceeds {arguments.at_most:g}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
