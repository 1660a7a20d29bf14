#!/usr/bin/env python3
"""Two builds of one preset: whether training leaves the same bits.

    bits.py OLD NEW [FLAG...]     such as --load MODEL --data-path FILE --train-iters 10

Both run `train FLAG... --save` and write their metrics. Compared byte by byte are all tensors of the
state of the last step, weights and moments, and the losses and gradient norms of all steps. A
preset of a commit without numerics is to be compared with one of batch_invariant. In bf16 give a
--product-type, since what is measured at start may differ. The exit code is 1 if anything differs.
"""

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path


def train(program, flags, folder):
    command = [program, "train", *flags, "--save", folder / "run", "--metrics-jsonl", folder / "metrics"]
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    except OSError as e:
        raise SystemExit(f"{program} cannot be run ({e.strerror}): give the programs of two builds")
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
    steps = [json.loads(line) for line in (folder / "metrics").read_text().splitlines()]
    return ([(s["step"], s["loss"], s["grad_norm"]) for s in steps if "loss" in s],
            tensors(max((folder / "run").glob("iter_*"))))


def tensors(state):
    """{(file, name): (type, shape, bytes)} of every safetensors file of a state."""
    found = {}
    for path in sorted(state.glob("*.safetensors")):
        data = path.read_bytes()
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:begin]).items():
            if name != "__metadata__":
                first, end = t["data_offsets"]
                found[path.name, name] = (t["dtype"], t["shape"], data[begin + first:begin + end])
    return found


def difference(old, new):
    """In words; of f32 tensors how many elements, and the largest difference by the largest number."""
    if old[:2] != new[:2]:
        return f"{old[:2]} became {new[:2]}"
    if old[0] != "F32":
        return "differs"
    a, b = (struct.unpack(f"<{len(x[2]) // 4}f", x[2]) for x in (old, new))
    return (f"{sum(x != y for x, y in zip(a, b))} of {len(a)} elements differ, by at most "
            f"{max(abs(x - y) for x, y in zip(a, b)) / max(map(abs, a)):.1e} of the largest")


def main():
    if len(sys.argv) < 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for name in ("old", "new"):
            (Path(folder) / name).mkdir()
            results.append(train(Path(sys.argv[len(results) + 1]).resolve(), sys.argv[3:],
                                 Path(folder) / name))
    (old_steps, old), (new_steps, new) = results
    problems = [f"{a} became {b}" for a, b in zip(old_steps, new_steps) if a != b]
    if len(old_steps) != len(new_steps):
        problems.append(f"{len(old_steps)} steps became {len(new_steps)}")
    for key in sorted(old.keys() | new.keys()):
        if key not in old or key not in new:
            problems.append(f"{': '.join(key)} is in one of them only")
        elif old[key] != new[key]:
            problems.append(f"{': '.join(key)}: {difference(old[key], new[key])}")
    print("\n".join(problems + [f"{len(old_steps)} steps, {len(old)} tensors, "
                                f"{sum(len(t[2]) for t in old.values())} bytes: "
                                f"{len(problems) or 'no'} differences"]))
    return 1 if problems or not old_steps or not old else 0


if __name__ == "__main__":
    sys.exit(main())
