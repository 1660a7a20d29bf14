"""Programs that are measured: run, asked for what they print, and told as medians."""

import json
import os
import statistics
import subprocess
from pathlib import Path


def last_json(text):
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise SystemExit(f"no JSON object in the output:\n{text}")


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout + done.stderr


def compiled(source, folder, *libraries):
    """A program of bench/, which c++ (or $CXX) compiles into a folder."""
    program = Path(folder) / source.stem
    run([os.environ.get("CXX", "c++"), "-std=c++20", "-O3", "-DNDEBUG", "-march=native",
         f"-I{Path(__file__).resolve().parents[1] / 'include'}", source, "-o", program, *libraries, "-pthread"])
    return program


def rates(text):
    """The numbers of lines "NAME number", by name."""
    taken = {}
    for line in text.splitlines():
        name, number = line.split()
        taken.setdefault(name, []).append(float(number))
    return taken


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}
