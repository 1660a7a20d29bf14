#!/usr/bin/env python3
"""The processor time that all observers of a run take together, at steps of 100 ms.

    cost.py PROGRAM [--steps 300] [--ms 100]

PROGRAM trains on random tokens with as many micro-batches a step as take so long: with lines of JSON, event files,
a port for Prometheus that is scraped each second, lines for Katib, and traces and the status of a TrainJob for a
server of HTTP on this machine. Printed is the processor time of the observers' threads, of which the kernel keeps
nanoseconds, and of handing steps over to them (handing_over.cpp), over that of the whole process; written to
bench/results/ with the CPU model, the command and the commit.
"""

import argparse
import http.server
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402
from programs import compiled, last_json, rates, run  # noqa: E402


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):  # noqa: N802
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def thread_seconds(pid):
    """Processor seconds of each thread of a process, by its number, with its name."""
    taken = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            taken[task.name] = ((task / "comm").read_text().strip(), int((task / "schedstat").read_text().split()[0]) / 1e9)
        except (OSError, IndexError):
            pass
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ms", type=float, default=100)
    asked = parser.parse_args()
    train = [asked.program, "train", "--mock-data", "--threads", "1"]
    count = 64
    for _ in range(2):
        step_ms = last_json(run([*train, "--train-iters", 12, "--warmup", 2, "--global-batch-size", count, "--bench-json"]))["median_ms"]
        count = 16 * max(1, round(count / 16 * asked.ms / step_ms))  # whole micro-batches
    with tempfile.TemporaryDirectory() as work:
        handing = rates(run([compiled(Path(__file__).with_name("handing_over.cpp"), work, "-lfmt")]))["step"][0]
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url, port = f"http://127.0.0.1:{server.server_port}", free_port()
        process = subprocess.Popen(
            [*train, "--log-interval", "10", "--train-iters", str(asked.steps), "--global-batch-size", str(count), "--metrics-jsonl", f"{work}/metrics",
             "--tensorboard-dir", f"{work}/board", "--metrics-port", str(port), "--katib-metrics", f"{work}/katib"],
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": url, "KUBEFLOW_TRAINER_SERVER_URL": url, "no_proxy": "*",
                 "LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "LANGFUSE_HOST": url},
            stdout=subprocess.DEVNULL)
        taken, scrapes, next_scrape = {}, 0, time.monotonic()
        while process.poll() is None:
            taken.update(thread_seconds(process.pid))
            if time.monotonic() > next_scrape:
                next_scrape += 1
                try:
                    scrapes += len(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()) > 0
                except OSError:
                    pass
            time.sleep(0.05)
        if process.returncode != 0:
            raise SystemExit(f"{asked.program} ended with exit code {process.returncode}")
        steps = [json.loads(line)["step_ms"] for line in (Path(work) / "metrics").read_text().splitlines()]
        seconds_a_step, lines = statistics.median(steps) / 1e3, len(steps)
    whole = sum(seconds for _, seconds in taken.values())
    # prometheus-cpp answers by civetweb.
    observing = sum(seconds for name, seconds in taken.values() if name == "observer" or name.startswith("civetweb"))
    handed = handing * 1e-9 * lines
    result = {"step_ms": round(1e3 * seconds_a_step, 2), "sequences": count, "steps": asked.steps, "scrapes": scrapes,
              "seconds_of_all_threads": round(whole, 3), "seconds_of_observers": round(observing, 4),
              "handing_over_ns_a_step": handing, "share": round((observing + handed) / whole, 5)}
    for name, value in result.items():
        print(f"{name} {value}")
    result = {**machine.facts(), "command": " ".join(["cost.py", *(Path(word).name for word in sys.argv[1:])]), **result}
    print(machine.write_result("observers", result))


if __name__ == "__main__":
    main()
