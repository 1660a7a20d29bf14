#!/usr/bin/env python3
"""Everything that only a GPU can tell, in ten minutes, most valuable first.

    bench/gpu/ten_minutes.py FOLDER RESULT.json [--parts NAME ...] [--seconds N] [--list]

FOLDER, or FOLDER.tar.xz, is what bench/gpu/prepare.sh has made; this file is run beside a checkout of the
same commit. RESULT.json is written anew after each part, and has also what a part that failed had measured
before. A part that takes longer than its time is cut and counts as failed. When N seconds are over, 570
unless others are given, the part that runs is cut, and the others are told as not run. The exit code is 0
if all parts that were asked for have passed. Needs a driver for CUDA 13, cuBLASLt and cuDNN (also those that
pip installs with PyTorch).
"""

import argparse
import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Failed(Exception):
    """A part has not passed; the text is a sentence."""


class Kit:
    """The programs of a folder, and what the last command of a part has said."""

    def __init__(self, folder, scratch):
        self.folder, self.scratch = folder, scratch
        # Libraries are looked for in the order of run.sh, and last in the folder, for what the machine lacks.
        libraries = [os.environ.get("LD_LIBRARY_PATH", "")]
        for path in sys.path:
            if path.endswith("-packages"):
                libraries += map(str, sorted(Path(path).glob("nvidia/*/lib")))
        libraries += ["/usr/local/cuda/lib64", str(folder / "lib")]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries))}
        self.begin(0)

    def begin(self, until):
        """A part begins, whose commands end at a moment of time.monotonic() at the latest."""
        self.until, self.said = until, ""

    def program(self, name):
        path = self.folder / "bin" / name
        if not path.exists():
            raise Failed(f"{path} is missing: make it by bench/gpu/prepare.sh")
        return str(path)

    def run(self, *command, environment=None):
        """What a command prints; Failed with its last lines if it fails or takes too long. A command that
        has no environment of its own finds the libraries of programs."""
        name, left = Path(str(command[0])).name, self.until - time.monotonic()
        if left <= 0:
            raise Failed(f"{name} was not started, since the time of the part was over")
        code = None
        with open(self.scratch / "said", "w+b") as said:
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=said,
                                       stderr=subprocess.STDOUT, env=environment or self.environment,
                                       start_new_session=True)
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(timeout=left)
            finally:
                end(process)
                said.seek(0)
                self.said = said.read().decode(errors="replace")
        if code is None:
            raise Failed(f"{name} took longer than the part has time")
        if code != 0:
            last = " ".join(self.said.split("\n")[-6:]).strip()
            raise Failed(f"{name} ended with {code}: {last[-600:]}")
        return self.said

    def measure(self, found, *command, environment=None):
        """Adds to `found` the last line of a command that is a JSON object."""
        for line in reversed(self.run(*command, environment=environment).splitlines()):
            if line.startswith("{"):
                found.update(json.loads(line))
                return
        raise Failed(f"{Path(str(command[0])).name} printed no line of JSON")


def end(process):
    """Ends a command and what it has started, all of which would go on holding the GPU."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a driver that hangs lets nobody end it
        process.wait(timeout=10)


def write_whole(path, text):
    """Writes a file that takes the place of the one before when it is complete."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def objects_of(path):
    """The JSON objects of a file, one a line; a line that was cut as it was written is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def of_megacpp_gpu(part):
    def run(kit, found):
        to = kit.scratch / "part.json"
        to.unlink(missing_ok=True)
        try:
            kit.run(kit.program("megacpp_gpu"), "--only", part, "--json", to)
        finally:
            with contextlib.suppress(OSError, ValueError):
                found.update(json.loads(to.read_text()))
        if "left_out" in found:
            raise Failed(f"left out: {found['left_out']}")
        if not any(check["part"] == part for check in found.get("checks", [])):
            raise Failed(f"megacpp_gpu told of no check of {part!r}")
    run.part = part
    return run


def steps(kit, found, name, program, count, *more):
    """Loss and gradient norm of each step, which `found` gets under a name, also of steps before a fault."""
    told = kit.scratch / "told"
    told.unlink(missing_ok=True)
    try:
        kit.run(kit.program(program), "train", "--mock-data", "--train-iters", count, "--lr", "1e-3",
                "--eval-iters", 1, "--metrics-jsonl", told, *more)
    finally:
        curve = [(line.get("loss"), line["grad_norm"]) for line in objects_of(told) if "grad_norm" in line]
        found[name] = curve
    finite = [step for step in curve if all(x is not None and math.isfinite(x) for x in step)]
    if len(finite) != count:
        raise Failed(f"{program} told losses and norms of {len(finite)} steps, not of {count}")
    return curve


def farthest(mine, theirs, which):
    return max(abs(a[which] - b[which]) / max(abs(b[which]), 1e-9) for a, b in zip(mine, theirs, strict=True))


def experts_as_on_cpus(kit, found):
    """The bounds are wider than roundings, since in bf16 a rounding can send a token to another expert, whose
    results change the loss by more than the rounding does."""
    mine = steps(kit, found, "on the GPU", "experts-cuda", 20)
    theirs = steps(kit, found, "on CPUs", "experts-cpu", 20)
    loss, norm = farthest(mine, theirs, 0), farthest(mine, theirs, 1)
    found.update({"losses apart": loss, "norms apart": norm})
    if loss > 4e-3 or norm > 4e-2:
        raise Failed(f"losses are {loss:.2e} and norms {norm:.2e} from those of CPUs")


def whole_program(kit, found):
    try:
        kit.run(sys.executable, ROOT / "tests/cuda/program.py", kit.program("tiny-cuda"),
                kit.program("tiny-cpu"), "--on-gpu", "--tune", kit.program("megacpp_gpu"))
    finally:
        found["not passed"] = re.findall(r"^(?:FAIL|ERROR): (\w+)", kit.said, re.MULTILINE)
        ran, skipped = (re.search(of, kit.said) for of in (r"Ran (\d+) test", r"skipped=(\d+)"))
        found["tests"] = (int(ran[1]) if ran else 0) - (int(skipped[1]) if skipped else 0)
    if found["tests"] < 1:
        raise Failed("tests/cuda/program.py ran no test")


def memcheck(kit, found):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        raise Failed("compute-sanitizer is not there")
    for name in ("tiny-cuda", "experts-cuda"):
        said = kit.run(tool, "--tool", "memcheck", "--error-exitcode", 9, kit.program(name), "train",
                       "--mock-data", "--train-iters", 2, "--eval-iters", 1)
        found[name] = [line for line in said.splitlines() if "ERROR SUMMARY" in line]
        if not found[name]:
            raise Failed(f"compute-sanitizer gave no summary of {name}")


def rerun(kit, found):
    one, two = (steps(kit, found, name, "gpt2-124m-cuda", 4) for name in ("first", "second"))
    if one != two:
        raise Failed(f"a rerun has other losses or norms: {one} and {two}")


def require_planned_memory(found):
    """What a run has taken of the device since it was opened is what it planned, within 2 %: what CUDA loads stays below that."""
    memory = found.get("device_memory")
    if not memory:
        raise Failed("the program told nothing of the device's memory")
    taken, planned = memory["taken_bytes"], found["planned_bytes"]
    if abs(taken - planned) > 0.02 * planned:
        raise Failed(f"{taken} bytes of the device were taken, and {planned} planned")


def measure_steps(kit, found, program, count, warmup=5):
    """Adds to `found` the times of steps, whose attention has to be cuDNN's alone, and whose products of
    experts are not one by one."""
    kit.measure(found, kit.program(program), "train", "--mock-data", "--bench-json", "--train-iters",
                count + warmup, "--warmup", warmup)
    attention = found.get("attention", "not told")
    if not attention.startswith("by cuDNN") or "by own tiles" in attention:
        raise Failed(f"attention is {attention}, and not by cuDNN alone")
    if "products of experts one by one" in found.get("products", ""):
        raise Failed(f"products are by {found['products']}")


def speed(program, count=20):
    def run(kit, found):
        measure_steps(kit, found, program, count)
        table = kit.run(kit.program(program), "train", "--mock-data", "--profile", "--train-iters", 6,
                        "--eval-iters", 1)
        found["nodes"] = table.splitlines()[-60:]
        require_planned_memory(found)
    return run


def tuned(program, seconds):
    """A product table for a program, and its step with and without it."""
    def run(kit, found):
        described, table = kit.scratch / "described.json", kit.scratch / "table.json"
        table.unlink(missing_ok=True)
        shapes = {}
        kit.measure(shapes, kit.program(program), "describe", "--json")
        described.write_text(json.dumps({"product_shapes": shapes["product_shapes"]}))
        try:
            told = kit.run(kit.program("megacpp_gpu"), "--tune", table, "--products", described, "--seconds",
                           seconds)
        finally:
            with contextlib.suppress(OSError, ValueError):
                found["table"] = json.loads(table.read_text())
        found["told"] = told.splitlines()[-60:]
        for name, more in (("without", ()), ("with", ("--product-table", table))):
            found[name] = {}
            kit.measure(found[name], kit.program(program), "train", "--mock-data", "--bench-json", "--train-iters",
                        20, "--warmup", 5, *more)
        taken = re.search(r"(\d+) of \d+ products by the product table", found["with"]["products"])
        if taken is None or taken[1] == "0":
            raise Failed("no product was computed as the table says")
    return run


def decoding(program, last):
    """The last tokens of one sequence, which is as long as those that the program trains on: tokens a second,
    and what share of the speed of copies the bytes have that a token reads, weights and caches. The time is
    that of the whole program, in which the host chooses each token."""
    def run(kit, found):
        copies = kit.scratch / "copies.json"
        kit.run(kit.program("megacpp_gpu"), "--only", "copies", "--json", copies)
        found["copy_TB/s"] = json.loads(copies.read_text())["copy_TB/s"]
        described = {}
        kit.measure(described, kit.program(program), "describe", "--json")
        token = found["token"] = described["decoding"]
        ids = " ".join(str(7 * i % 1000) for i in range(token["tokens"] - last))
        text = kit.run(kit.program(program), "generate", "--random-weights", "--ids", "--greedy", "--prompt", ids,
                       "--max-new-tokens", last)
        told = re.search(rf"new: {last} tokens in ([\d.]+) s", text)
        if told is None or float(told[1]) == 0:
            raise Failed(f"{program} told no time of {last} new tokens")
        passes = last - 1  # the pass of the prompt gives the first one
        found["tokens/s"] = passes / float(told[1])
        # The caches are full at the last token alone.
        found["read_bytes"] = token["read"] - token["caches"] * last / (2 * token["tokens"])
        found["of_copy"] = found["read_bytes"] * found["tokens/s"] / (1e12 * found["copy_TB/s"])
    return run


TORCH_MODES = ("compile", "max-autotune")


def torch_step(kit, found, preset, batch, mode, count):
    """Adds to `found` the times of PyTorch's steps, with the environment as it is: PyTorch finds its libraries
    itself. What it has compiled is found by the next turn."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(kit.scratch / "inductor")}
    kit.measure(found, sys.executable, ROOT / "bench/peers/gpt_step.py", "--device", "cuda", "--preset", preset,
                "--mode", mode, "--autocast", "bf16", "--batch", batch, "--sequence", 1024, "--steps", count,
                "--warmup", 5, environment={**os.environ, **cache})


def beside_torch(program, preset, batch, count=20, turns=2):
    """Steps of a program and of PyTorch's, of the same tokens, in turn. The ratio of a turn is to the faster
    one of PyTorch's modes."""
    def run(kit, found):
        found["turns"] = []
        for _ in range(turns):
            turn = {name: {} for name in ("ours", *TORCH_MODES)}
            found["turns"].append(turn)
            measure_steps(kit, turn["ours"], program, count)
            for mode in TORCH_MODES:
                torch_step(kit, turn[mode], preset, batch, mode, count)
                for number in ("batch", "sequence"):
                    if turn[mode][number] != turn["ours"][number]:
                        raise Failed(f"{number} is {turn['ours'][number]} here and {turn[mode][number]} there")
            turn["peer"] = min(TORCH_MODES, key=lambda mode: turn[mode]["median_ms"])
            turn["times as fast"] = turn[turn["peer"]]["median_ms"] / turn["ours"]["median_ms"]
    return run


# A name, the seconds that the part may take at the most, a function. The seconds are more than ten minutes
# together: most parts need fewer than theirs, and --seconds holds the total. A part of megacpp_gpu has what
# main.cpp gives it, 10 for the copies that always run before it, and 25 more, since megacpp_gpu itself gives
# up a call 20 seconds after its part's time is over. A part that measures a program starts it twice, and the
# program checks its products and its attention at each start. The host makes the random weights of the
# program that decodes, and torch.compile compiles for minutes.
PARTS = [
    ("copies", 35, of_megacpp_gpu("copies")),
    ("forms of products", 95, of_megacpp_gpu("forms of products")),
    ("attention", 105, of_megacpp_gpu("attention")),
    ("products of experts", 95, of_megacpp_gpu("products of experts")),
    ("a whole program", 120, whole_program),
    ("experts as on CPUs", 90, experts_as_on_cpus),
    ("row bodies", 105, of_megacpp_gpu("row bodies against the CPU")),
    ("gpt2-124m", 120, speed("gpt2-124m-cuda")),
    ("memcheck", 120, memcheck),
    ("rerun", 80, rerun),
    ("qwen3-30b-a3b, 2 layers", 120, speed("qwen3-30b-a3b-cuda", count=10)),
    ("qwen3-8b, 8 layers", 120, speed("qwen3-8b-cuda", count=10)),
    ("decoding qwen3-8b", 240, decoding("qwen3-8b-whole-cuda", 256)),
    ("beside torch gpt2-124m", 360, beside_torch("gpt2-124m-cuda", "gpt2-124m", 32)),
    ("tuned gpt2-124m", 150, tuned("gpt2-124m-cuda", 40)),
    ("gpt2-1558m", 150, speed("gpt2-1558m-cuda", count=10)),
    ("decoding gpt2-124m", 90, decoding("gpt2-124m-cuda", 128)),
    ("beside torch gpt2-1558m", 540, beside_torch("gpt2-1558m-cuda", "gpt2-1558m", 8, count=10)),
    ("row bodies, achieved", 145, of_megacpp_gpu("row bodies, achieved")),
    ("products", 85, of_megacpp_gpu("products")),
]


def main(words=None):
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--parts", nargs="+", metavar="NAME", help="names of --list; the default is all")
    parser.add_argument("--seconds", type=float, default=570, help="of all parts together; the default is 570")
    parser.add_argument("--list", action="store_true", help="print the parts and their seconds")
    arguments = parser.parse_args(words)
    if arguments.list:
        for name, seconds, _ in PARTS:
            print(f"{seconds:5} s  {name}")
        return 0
    if arguments.folder is None or arguments.result is None:
        parser.error("FOLDER and RESULT.json are needed")
    names = [name for name, _, _ in PARTS]
    asked = arguments.parts or names
    if unknown := [name for name in asked if name not in names]:
        parser.error(f"there is no part {unknown[0]!r}: --list names them")
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder.resolve()
        if folder.is_file():
            with tarfile.open(folder) as packed:
                packed.extractall(Path(scratch) / "kit")
            folder = Path(scratch) / "kit"
        commit = folder / "commit"
        found = {"utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                 "commit": commit.read_text().strip() if commit.exists() else "unknown", "parts": []}

        def write():
            write_whole(arguments.result, json.dumps(found, indent=1) + "\n")
        try:
            write()
        except OSError as e:
            parser.error(f"{arguments.result} cannot be written: {e}")
        chosen = [part for part in PARTS if part[0] in asked]
        run_parts(Kit(folder, Path(scratch)), chosen, start + arguments.seconds, found["parts"], write)
    return 0 if all(part["passed"] for part in found["parts"]) else 1


def run_parts(kit, chosen, deadline, results, write):
    """Runs parts, none after the deadline, and writes the results after each."""
    for name, seconds, run in chosen:
        begun = time.monotonic()
        part = {"part": name, "passed": False, "found": {}}
        results.append(part)
        try:
            if begun >= deadline:
                part["not run"] = True
                raise Failed("it was not run, since the seconds of all parts together were over")
            kit.begin(min(begun + seconds, deadline))
            run(kit, part["found"])
            part["passed"] = True
        except Exception as e:
            part["fault"] = str(e) if isinstance(e, Failed) else f"{type(e).__name__}: {e}"
        except BaseException:
            part["fault"] = "it was stopped from outside"
            raise
        finally:
            part["seconds"] = round(time.monotonic() - begun, 1)
            if not part["passed"] and "not run" not in part:
                part["said"] = kit.said.splitlines()[-40:]
            write()
            how = "passed " if part["passed"] else "not run" if "not run" in part else "FAILED "
            fault = f": {part['fault']}" if "fault" in part else ""
            print(f"{how} {name}, {part['seconds']} s{fault}", flush=True)
    passed, left = sum(part["passed"] for part in results), sum("not run" in part for part in results)
    print(f"{passed} passed, {len(results) - passed - left} failed, {left} not run")


def stop(*_):
    """Ends by an exception, so that no command goes on by itself."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(main())
