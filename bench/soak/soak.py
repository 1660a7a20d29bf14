#!/usr/bin/env python3
"""Random faults of ranks that TCP connects, one after the other: nothing hangs, no state is lost, codes are as documented.

    soak.py PROGRAM --torchrun TORCHRUN [--faults 200] [--seed 1] [--only KIND] [--no-result]

PROGRAM is a preset whose replicas may be three, such as the test's cli_tiny_gpt. One command line trains it with
`--load out --save out`. Each fault is a start of that command line which something happens to; the next start goes on.
Once a run has finished, its weights and moments must have the bits of a run that nothing happened to, and a new one
begins. Behind each fault no process is left, the newest whole state is at least as new as before, and the exit code is
one of those that docs/launching.md has for it. What each fault came to is written to bench/results/.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "cli"), str(ROOT / "tests" / "mpi")]
import cli  # noqa: E402
import machine  # noqa: E402
from cli import INTERRUPTED, MISMATCH, contents, newest  # noqa: E402
from every_start import RANKS, processes_in, ranks_in  # noqa: E402
from start_ranks import free_port, variables  # noqa: E402

SIZE = 3
KILLED = 128 + signal.SIGKILL
LONGEST = 90  # seconds that a start may take; the time-outs below are much shorter
FLAGS = ["train", "--data-path", "text", "--eval-iters", "1", "--eval-interval", "1000000", "--train-iters", "1200",
         "--global-batch-size", "12", "--save-interval", "60", "--keep-latest-k", "3", "--log-interval", "50",
         "--collective-timeout", "3"]


class Wrong(Exception):
    """What should not have happened."""


class Run:
    """One start, whose output goes to files."""

    def __init__(self, soak):
        self.soak, self.folder = soak, soak.folder
        self.processes, self.port = [], free_port()

    def popen(self, words, env, name):
        with (self.folder / name).open("w") as said:
            clean = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "SLURM_", "OMPI_", "PMI", "MEGACPP_"))}
            process = subprocess.Popen([str(w) for w in words], cwd=self.folder, env={**clean, **env}, stdin=subprocess.DEVNULL,
                                       stdout=said, stderr=subprocess.STDOUT)
        self.processes.append(process)
        return process

    def torchrun(self, restarts):
        return self.popen([self.soak.torchrun, "--no-python", "--nproc-per-node", SIZE, "--max-restarts", restarts, "--monitor-interval",
                           "0.1", "--master-port", self.port, self.soak.program, *FLAGS, "--load", "out", "--save", "out"],
                          {"MEGACPP_RENDEZVOUS_TIMEOUT": "20"}, "said-0")

    def rank(self, number, *flags, env=(), program=None, name=None):
        return self.popen([program or self.soak.program, *FLAGS, "--load", "out", "--save", "out", *flags],
                          {**variables(number, SIZE, self.port), "MEGACPP_RENDEZVOUS_TIMEOUT": "3", **dict(env)}, name or f"said-{number}")

    def all_ranks(self, **options):
        return [self.rank(r, **options) for r in range(SIZE)]

    def until_ranks(self):
        ends = time.monotonic() + LONGEST
        while len(ranks_in(self.folder)) < SIZE and self.processes[0].poll() is None:
            if time.monotonic() > ends:
                raise Wrong("the ranks were not started")
            time.sleep(0.02)

    def ends(self):
        """The exit codes of all that was started, a signal as 128 and its number."""
        until = time.monotonic() + LONGEST
        for process in self.processes:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Wrong(f"a start has not ended after {LONGEST} s") from None
        return [p.returncode if p.returncode >= 0 else 128 - p.returncode for p in self.processes]

    def said(self):
        return "\n".join(p.read_text(errors="replace") for p in sorted(self.folder.glob("said-*")))

    def first_code(self):
        """The code of the rank that torchrun names as the first that failed."""
        found = re.search(r"(?s)Root Cause.*?exitcode *: (-?\d+)", self.said())
        code = int(found.group(1)) if found else self.processes[0].returncode
        return code if code >= 0 else 128 - code


def end_all(run):
    for number in processes_in(run.folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def one_of(run, number):
    """Sends a signal to a rank that the draw chooses; returns whether there was one."""
    found = ranks_in(run.folder)
    with contextlib.suppress(ProcessLookupError):
        if found:
            os.kill(run.soak.draw.choice(found), number)
            return True
    return False


def nap(run, most):
    time.sleep(run.soak.draw.uniform(0, most))


# The faults. Each starts what it needs, and returns the codes that came and those that may come.

def a_rank_is_killed(run):
    run.torchrun(3)
    run.until_ranks()
    nap(run, 1.5)
    one_of(run, signal.SIGKILL)
    return run.ends(), {0}


def ranks_are_killed_until_no_start_is_left(run):
    run.torchrun(1)
    for _ in range(2):
        run.until_ranks()
        nap(run, 0.3)
        killed = ranks_in(run.folder)
        one_of(run, signal.SIGKILL)
        ends = time.monotonic() + 10
        while set(killed) & set(ranks_in(run.folder)) and time.monotonic() < ends:
            time.sleep(0.02)
    run.ends()
    return [run.first_code()], {0, KILLED, RANKS}


def the_node_is_lost(run):
    run.torchrun(0)
    run.until_ranks()
    nap(run, 1.5)
    end_all(run)
    return run.ends(), {0, KILLED}


def torchrun_is_told_to_end(run):
    launcher = run.torchrun(0)
    run.until_ranks()
    nap(run, 1.5)
    launcher.send_signal(signal.SIGTERM)
    run.ends()
    return [INTERRUPTED if "SIGTERM ended the run after step" in run.said() else 0], {0, INTERRUPTED}


def a_rank_is_told_to_end(run):
    run.torchrun(0)
    run.until_ranks()
    nap(run, 1.5)
    one_of(run, run.soak.draw.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU]))
    run.ends()
    return [run.first_code()], {0, INTERRUPTED, *(128 + n for n in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU))}


def a_rank_is_asked_to_save(run):
    run.torchrun(0)
    run.until_ranks()
    time.sleep(0.3)  # before that, SIGUSR2 ends a process
    for _ in range(3):
        nap(run, 0.3)
        one_of(run, signal.SIGUSR2)
    run.ends()
    return [run.first_code()], {0, 128 + signal.SIGUSR2}


def a_rank_hangs(run):
    run.all_ranks()
    run.until_ranks()
    nap(run, 1.5)
    one_of(run, signal.SIGSTOP)
    ends = time.monotonic() + 30
    while sum(p.poll() is None for p in run.processes) > 1 and time.monotonic() < ends:
        time.sleep(0.05)
    stopped = [p for p in run.processes if p.poll() is None]
    for process in stopped:
        process.kill()
    if len(stopped) > 1:
        raise Wrong("ranks wait for one that hangs")
    return run.ends(), {0, RANKS, KILLED}


def a_rank_is_started_twice(run):
    run.all_ranks()
    run.rank(run.soak.draw.randrange(SIZE), name="said-twice")
    return run.ends(), {0, MISMATCH, RANKS}


def too_few_ranks(run):
    missing = run.soak.draw.randrange(SIZE)
    for r in range(SIZE):
        if r != missing:
            run.rank(r)
    return run.ends(), {RANKS}


def a_rank_comes_late(run):
    late = run.soak.draw.randrange(SIZE)
    for r in range(SIZE):
        if r != late:
            run.rank(r)
    nap(run, 2)
    run.rank(late)
    return run.ends(), {0}


def the_first_rank_dies_while_they_meet(run):
    first = run.rank(0)
    for r in range(1, SIZE - run.soak.draw.randrange(2)):
        run.rank(r)
    nap(run, 0.2)
    first.kill()
    return run.ends(), {0, RANKS, KILLED}


def any_rank_dies_while_they_meet(run):
    started = run.all_ranks()
    nap(run, 0.3)
    run.soak.draw.choice(started).kill()
    return run.ends(), {0, RANKS, KILLED}


def another_program_at_the_port(run):
    answer = run.soak.draw.choice([b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", run.soak.draw.randbytes(300), b""])
    with serving(run.port, answer):
        run.all_ranks()
        return run.ends(), {RANKS, MISMATCH}


def a_store_that_is_none(run):
    answer = run.soak.draw.choice([None, b"", run.soak.draw.randbytes(64), bytes(8), b"\xff" * 64])
    with serving(run.port, answer):
        run.all_ranks(env={"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "soak", "TORCHELASTIC_RESTART_COUNT": "0"})
        return run.ends(), {RANKS}


def another_binary(run):
    other = run.folder / "other"
    shutil.copy(run.soak.program, other)
    with other.open("ab") as file:
        file.write(b"\0")
    odd = run.soak.draw.randrange(SIZE)
    for r in range(SIZE):
        run.rank(r, program=other if r == odd else None)
    codes = run.ends()
    other.unlink()
    return codes, {MISMATCH, RANKS}


def other_flags(run):
    odd = run.soak.draw.randrange(SIZE)
    for r in range(SIZE):
        run.rank(r, *(["--lr", "0.5"] if r == odd else []))
    return run.ends(), {MISMATCH}


def all_end_in_the_middle_of_a_save(run):
    run.all_ranks()
    ends = time.monotonic() + 30
    out = run.folder / "out"
    while time.monotonic() < ends and any(p.poll() is None for p in run.processes):
        with contextlib.suppress(OSError):
            if any(".megacpp-tmp-" in name for name in os.listdir(out)):
                break
    end_all(run)
    return run.ends(), {0, KILLED}


def strangers_at_the_port(run):
    run.all_ranks()
    ends = time.monotonic() + 1.5
    while time.monotonic() < ends:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", run.port), timeout=0.2) as stranger:
            stranger.sendall(run.soak.draw.choice([b"megacpp ranks 1\n", b"GET / HTTP/1.1\r\n\r\n", b""]) + run.soak.draw.randbytes(run.soak.draw.randrange(200)))
        time.sleep(0.005)
    return run.ends(), {0}


@contextlib.contextmanager
def serving(port, answer):
    """A server at a port that answers every connection with the same bytes; with None it is silent."""
    kept = []
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen(64)

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection = server.accept()[0]
                    if answer is None:
                        kept.append(connection)
                        continue
                    with contextlib.suppress(OSError), connection:
                        connection.sendall(answer)
                        connection.settimeout(0.2)
                        connection.recv(1000)
        threading.Thread(target=serve, daemon=True).start()
        yield
        server.shutdown(socket.SHUT_RDWR)
    for connection in kept:
        connection.close()


FAULTS = [a_rank_is_killed, ranks_are_killed_until_no_start_is_left, the_node_is_lost, torchrun_is_told_to_end, a_rank_is_told_to_end,
          a_rank_is_asked_to_save, a_rank_hangs, a_rank_is_started_twice, too_few_ranks, a_rank_comes_late,
          the_first_rank_dies_while_they_meet, any_rank_dies_while_they_meet, another_program_at_the_port, a_store_that_is_none,
          another_binary, other_flags, all_end_in_the_middle_of_a_save, strangers_at_the_port]


class Soak:
    def __init__(self, program, torchrun, seed, folder):
        self.program, self.torchrun, self.folder = program, torchrun, folder
        self.draw = random.Random(seed)
        self.step, self.finished = -1, 0
        (folder / "text").write_text(cli.TEXT)
        cli.run(*FLAGS, "--save", "undisturbed", "--ranks", SIZE, cwd=folder)
        self.expected = contents(newest(folder / "undisturbed"))
        shutil.rmtree(folder / "undisturbed")

    def listed(self):
        done = subprocess.run([self.program, "describe", "--load", "out", "--json"], cwd=self.folder, capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.stdout.startswith("{") else {}

    def fault(self, kind):
        """Does one fault; returns the codes. Throws Wrong."""
        for file in self.folder.glob("said-*"):
            file.unlink()
        run = Run(self)
        try:
            codes, may_come = kind(run)
            strange = [c for c in codes if c not in may_come]
            if strange:
                raise Wrong(f"exit codes {codes}, of which {strange} should not come")
            ends = time.monotonic() + 5
            while processes_in(self.folder) and time.monotonic() < ends:
                time.sleep(0.02)
            if processes_in(self.folder):
                raise Wrong(f"processes are left: {processes_in(self.folder)}")
            self.examine()
            return codes
        except Wrong as e:
            raise Wrong(f"{e}\n{run.said()}") from e
        finally:
            end_all(run)

    def examine(self):
        """Looks at the states behind a fault."""
        listed = self.listed()
        step = next((s["step"] for s in listed.get("states", []) if s["folder"] == listed.get("train")), -1)
        if step < self.step:
            raise Wrong(f"the newest whole state was that of step {self.step}, and is that of step {step}: {listed}")
        self.step = step
        if not listed.get("finished"):
            return
        ended = contents(newest(self.folder / "out"))
        for name in ("model.safetensors", "optimizer.safetensors"):
            if ended[name] != self.expected[name]:
                raise Wrong(f"{name} has not the bits of the run that nothing happened to")
        shutil.rmtree(self.folder / "out")
        self.step, self.finished = -1, self.finished + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("--torchrun", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="0: that of the tree of the commit")
    parser.add_argument("--only", help="a kind of fault, by its function's name")
    parser.add_argument("--no-result", action="store_true", help="writes nothing to bench/results/")
    arguments = parser.parse_args()
    cli.PROGRAM = str(arguments.program.resolve())
    if not arguments.torchrun.exists():
        print(f"{arguments.torchrun} is not there")
        return 77
    tree = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    arguments.seed = arguments.seed or int(tree[:8] or "1", 16)
    print(f"seed {arguments.seed}", flush=True)
    kinds = [f for f in FAULTS if arguments.only in (None, f.__name__)]
    came, wrong = collections.defaultdict(collections.Counter), []
    with tempfile.TemporaryDirectory(prefix="megacpp-soak-") as folder:
        soak = Soak(cli.PROGRAM, arguments.torchrun.absolute(), arguments.seed, Path(folder))
        order = []
        while len(order) < arguments.faults:  # every kind about as often as every other
            order += soak.draw.sample(kinds, len(kinds))
        longest = 0
        for n, kind in enumerate(order[:arguments.faults], 1):
            began = time.monotonic()
            try:
                codes = soak.fault(kind)
                came[kind.__name__][" ".join(map(str, sorted(set(codes))))] += 1
            except Wrong as e:
                wrong.append(f"{n} {kind.__name__}: {e}")
                came[kind.__name__]["wrong"] += 1
                print(f"{n} {kind.__name__}: {e}", flush=True)
                shutil.rmtree(Path(folder) / "out", ignore_errors=True)
                soak.step = -1
            longest = max(longest, time.monotonic() - began)
            print(f"{n}/{arguments.faults} {kind.__name__} {dict(came[kind.__name__])}", flush=True)
        finished = soak.finished
    result = {**machine.facts(), "command": " ".join(["soak.py", *(Path(w).name for w in sys.argv[1:])]), "faults": arguments.faults,
              "seed": arguments.seed, "runs_finished_with_equal_bits": finished, "longest_s": longest, "wrong": len(wrong),
              "exit_codes": {k: dict(v) for k, v in sorted(came.items())}}
    if not arguments.no_result:
        print(machine.write_result("soak", result))
    print(f"{arguments.faults} faults, {finished} runs that finished with the bits of one that nothing happened to, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
