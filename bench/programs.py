"""Programs that are measured: run, asked for what they print, and told as medians."""

import json
import statistics
import subprocess


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


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}
