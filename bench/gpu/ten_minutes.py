#!/usr/bin/env python3
"""Everything that only a GPU can tell, in ten minutes, most valuable first.

    bench/gpu/ten_minutes.py FOLDER RESULT.json [--parts NAME,NAME...] [--list]

FOLDER, or FOLDER.tar.xz, is what bench/gpu/prepare.sh has made; this file is run beside a checkout of the same commit.
RESULT.json is written anew after each part. A part that takes longer than its time is cut and counts
as failed. Needs a driver for CUDA 13, cuBLASLt and cuDNN (also those that pip installs with PyTorch).
"""

import argparse
import json
import os
import re
import shutil
import site
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
    """The programs of a folder, and what has been told of them."""

    def __init__(self, folder, scratch):
        self.folder, self.scratch = folder, scratch
        libraries = [folder / "lib"]
        for packages in site.getsitepackages() + [site.getusersitepackages()]:
            libraries += sorted(Path(packages).glob("nvidia/*/lib"))
        known = [str(path) for path in libraries if path.is_dir()] + ["/usr/local/cuda/lib64"]
        self.environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(
            known + [p for p in [os.environ.get("LD_LIBRARY_PATH", "")] if p])}
        self.until = 0.0

    def program(self, name):
        path = self.folder / "bin" / name
        if not path.exists():
            raise Failed(f"{path} is missing: make it by bench/gpu/prepare.sh")
        return str(path)

    def run(self, *command, check=True):
        """What a command prints; Failed with its last lines if it fails or takes too long."""
        left = self.until - time.monotonic()
        try:
            done = subprocess.run([str(word) for word in command], env=self.environment, text=True,
                                  capture_output=True, timeout=max(left, 1), stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            raise Failed(f"{Path(str(command[0])).name} took longer than the part has time") from None
        if check and done.returncode != 0:
            last = " ".join((done.stdout + done.stderr).split("\n")[-6:]).strip()
            raise Failed(f"{Path(str(command[0])).name} ended with {done.returncode}: {last[-600:]}")
        return done.stdout + done.stderr

    def measured(self, *command):
        """The last line of a command that is a JSON object."""
        for line in reversed(self.run(*command).splitlines()):
            if line.startswith("{"):
                return json.loads(line)
        raise Failed(f"{Path(str(command[0])).name} printed no line of JSON")


def of_megacpp_gpu(part):
    def run(kit):
        to = kit.scratch / "part.json"
        to.unlink(missing_ok=True)
        try:
            kit.run(kit.program("megacpp_gpu"), "--only", part, "--json", to)
        finally:
            found = json.loads(to.read_text()) if to.exists() else {}
        return found
    return run


def steps(kit, program, count, *more):
    """Loss and gradient norm of each step."""
    told = kit.scratch / "told"
    told.unlink(missing_ok=True)
    kit.run(kit.program(program), "train", "--mock-data", "--train-iters", count, "--lr", "1e-3",
            "--eval-iters", 1, "--metrics-jsonl", told, *more)
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    return [(line["loss"], line["grad_norm"]) for line in lines if "grad_norm" in line]


def farthest(mine, theirs, which):
    return max(abs(a[which] - b[which]) / max(abs(b[which]), 1e-9) for a, b in zip(mine, theirs, strict=True))


def experts_as_on_cpus(kit):
    """bf16: a token whose experts are others changes more than a rounding."""
    mine, theirs = steps(kit, "experts-cuda", 20), steps(kit, "experts-cpu", 20)
    loss, norm = farthest(mine, theirs, 0), farthest(mine, theirs, 1)
    if loss > 4e-3 or norm > 4e-2:
        raise Failed(f"losses are {loss:.2e} and norms {norm:.2e} from those of CPUs")
    return {"losses": loss, "norms": norm, "steps": len(mine)}


def whole_program(kit):
    said = kit.run(sys.executable, ROOT / "tests/cuda/program.py", kit.program("tiny-cuda"),
                   kit.program("tiny-cpu"), "--on-gpu")
    return {"tests": int(re.search(r"Ran (\d+) tests", said).group(1))}


def memcheck(kit):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        raise Failed("compute-sanitizer is not there")
    found = {}
    for name in ("tiny-cuda", "experts-cuda"):
        said = kit.run(tool, "--tool", "memcheck", "--error-exitcode", 9, kit.program(name), "train",
                       "--mock-data", "--train-iters", 2, "--eval-iters", 1)
        found[name] = next((line for line in said.splitlines() if "ERROR SUMMARY" in line), "")
    return found


def rerun(kit):
    one, two = (steps(kit, "gpt2-124m-cuda", 4) for _ in range(2))
    if one != two:
        raise Failed(f"a rerun has other losses or norms: {one} and {two}")
    return {"steps": len(one)}


def speed(program, *more, count=20, warmup=5):
    def run(kit):
        found = kit.measured(kit.program(program), "train", "--mock-data", "--bench-json", "--train-iters",
                             count + warmup, "--warmup", warmup, *more)
        table = kit.run(kit.program(program), "train", "--mock-data", "--profile", "--train-iters", 6,
                        "--eval-iters", 1, *more)
        found["nodes"] = table.splitlines()[-60:]
        return found
    return run


def decoding(program, prompt, tokens):
    """Tokens a second of one sequence, behind a prompt of so many tokens."""
    def run(kit):
        saved = kit.scratch / "saved"
        shutil.rmtree(saved, ignore_errors=True)
        kit.run(kit.program(program), "train", "--mock-data", "--train-iters", 1, "--eval-iters", 1, "--save", saved)
        ids = " ".join(str(7 * i % 1000) for i in range(prompt))
        text = kit.run(kit.program(program), "generate", "--load", saved, "--ids", "--prompt", ids,
                       "--max-new-tokens", tokens, "--ignore-eos")
        return {"said": [line for line in text.splitlines() if "tokens/s" in line]}
    return run


def torch_step(preset, batch):
    def run(kit):
        return kit.measured(sys.executable, ROOT / "bench/peers/gpt_step.py", "--device", "cuda", "--preset",
                            preset, "--mode", "compile", "--autocast", "bf16", "--batch", batch, "--sequence",
                            1024, "--steps", 20, "--warmup", 5)
    return run


# Name, seconds, function. Together less than ten minutes for the first eleven.
PARTS = [
    ("copies", 15, of_megacpp_gpu("copies")),
    ("forms of products", 70, of_megacpp_gpu("forms of products")),
    ("attention", 60, of_megacpp_gpu("attention")),
    ("a whole program", 120, whole_program),
    ("experts as on CPUs", 60, experts_as_on_cpus),
    ("row bodies", 80, of_megacpp_gpu("row bodies against the CPU")),
    ("gpt2-124m", 60, speed("gpt2-124m-cuda")),
    ("memcheck", 90, memcheck),
    ("rerun", 40, rerun),
    ("torch gpt2-124m", 120, torch_step("gpt2-124m", 32)),
    ("qwen3-30b-a3b, 2 layers", 60, speed("qwen3-30b-a3b-cuda", count=10)),
    ("qwen3-8b, 8 layers", 60, speed("qwen3-8b-cuda", count=10)),
    ("gpt2-1558m", 90, speed("gpt2-1558m-cuda", count=10)),
    ("torch gpt2-1558m", 180, torch_step("gpt2-1558m", 8)),
    ("decoding qwen3-8b, 8 layers", 90, decoding("qwen3-8b-cuda", 1000, 64)),
    ("row bodies, achieved", 120, of_megacpp_gpu("row bodies, achieved")),
    ("products", 60, of_megacpp_gpu("products")),
]


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--parts", help="names, with commas between them; the default is all")
    parser.add_argument("--list", action="store_true", help="print the parts and their seconds")
    arguments = parser.parse_args(words)
    if arguments.list:
        for name, seconds, _ in PARTS:
            print(f"{seconds:5} s  {name}")
        return 0
    if arguments.folder is None or arguments.result is None:
        parser.error("FOLDER and RESULT.json are needed")
    names = [name for name, _, _ in PARTS]
    asked = arguments.parts.split(",") if arguments.parts else names
    if unknown := [name for name in asked if name not in names]:
        parser.error(f"there is no part {unknown[0]!r}: --list names them")
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder.resolve()
        if folder.is_file():
            with tarfile.open(folder) as packed:
                packed.extractall(Path(scratch) / "kit")
            folder = Path(scratch) / "kit"
        failed = run_parts(Kit(folder, Path(scratch)), asked, arguments.result)
    return 1 if failed or not asked else 0


def run_parts(kit, asked, result):
    """Runs parts, and writes the result after each. Returns how many failed."""
    commit = kit.folder / "commit"
    found = {"utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "parts": [],
             "commit": commit.read_text().strip() if commit.exists() else "unknown"}
    failed = 0
    for name, seconds, run in PARTS:
        if name not in asked:
            continue
        start = time.monotonic()
        kit.until = start + seconds
        part = {"part": name, "passed": True}
        try:
            part["found"] = run(kit)
        except (Failed, OSError, ValueError, KeyError, AttributeError) as e:
            part.update(passed=False, fault=str(e))
            failed += 1
        part["seconds"] = round(time.monotonic() - start, 1)
        found["parts"].append(part)
        result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{'passed' if part['passed'] else 'FAILED'}  {name}, {part['seconds']} s"
              + (f": {part['fault']}" if not part["passed"] else ""), flush=True)
    print(f"{len(found['parts']) - failed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
