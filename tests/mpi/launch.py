#!/usr/bin/env python3
"""A program that is started in ways of docs/launching.md: the bits of threads, and what is said.

    launch.py PROGRAM [unittest argument...]

PROGRAM is compiled from ../cli/tiny_gpt.hpp. launchers.py has the launchers of other projects, networks.py several nodes.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
sys.path.insert(0, str(Path(__file__).parent))
import cli  # noqa: E402
from cli import DATA, INTERRUPTED, MISMATCH, USAGE, contents, newest, run  # noqa: E402
from every_start import RANKS, EveryStart, processes_in, until  # noqa: E402
from start_ranks import free_port, variables  # noqa: E402

BARE = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "SLURM_", "OMPI_", "PMI"))}
TRAIN = ("train", "--data-path", "text", "--eval-iters", 1, "--eval-interval", 3)
LONG = ("train", "--mock-data", "--train-iters", 10**6, "--save-interval", 10, "--log-interval", 1)


def started(*words, env, folder, **options):
    return subprocess.Popen([*map(str, words)], env={**BARE, **env}, cwd=folder, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def done(launched, check=0, timeout=120):
    out, errors = launched.communicate(timeout=timeout)
    if check is not None and launched.returncode != check:
        raise AssertionError(f"exit code {launched.returncode}, not {check}\n{out}\n{errors}")
    return out, errors


def until_saved(launched):
    """Waits until a run has saved a state, and returns what it has said."""
    said = ""
    while "saved to" not in said.rpartition("\n")[0]:
        line = launched.stdout.readline()
        said += line
        if not line:
            raise AssertionError("the run has ended\n" + said + launched.stderr.read())
    return said


def takers(folder):
    """The processes in a folder that have a handler of SIGUSR2."""
    found = []
    for number in processes_in(folder):
        with contextlib.suppress(OSError):
            caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{number}/status").read_text()).group(1)
            found += [number] * (int(caught, 16) >> signal.SIGUSR2 - 1 & 1)
    return found


class Case(cli.Case):
    def setUp(self):
        super().setUp()
        self.line()

    def of_threads(self, ranks=4, iterations=6):
        run(*TRAIN, "--train-iters", iterations, "--save", "threads", "--ranks", ranks, cwd=self.folder)
        return contents(newest(self.folder / "threads"))

    def state(self, name):
        return contents(newest(self.folder / name))


class Description(Case):
    def described(self, env, check=0):
        launched = started(cli.PROGRAM, "describe", "--launch", "--json", env=env, folder=self.folder)
        return json.loads(done(launched, check)[0])

    def test_what_a_process_finds(self):
        self.assertEqual(self.described({})["started_by"], "nobody")
        found = self.described({**variables(1, 2, 29400), "MASTER_ADDR": "node-0", "SLURM_PROCID": "0",
                                "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"})
        self.assertEqual((found["rank"], found["size"], found["connected_by"]), (1, 2, "tcp"))
        self.assertEqual(found["meeting_place"], "rank 0, node-0:29400")
        self.assertEqual(found["within"], ["srun: SLURM_PROCID 0, SLURM_STEP_NUM_TASKS 2"])
        text = done(started(cli.PROGRAM, "describe", "--launch", env={"PET_NNODES": "1", "PET_NPROC_PER_NODE": "auto"},
                            folder=self.folder))[0]
        self.assertRegex(text, r"(?m)^started by +the launcher of its node$")

    def test_variables_that_are_refused(self):
        found = self.described({"RANK": "4", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, MISMATCH)
        self.assertIn("RANK 4 is not below WORLD_SIZE 4", found["refused"])

    def test_flags_that_it_changes_nothing_for(self):
        errors = done(started(cli.PROGRAM, "describe", "--launch", "--graphs", env={}, folder=self.folder), USAGE)[1]
        self.assertIn("--graphs changes nothing beside --launch", errors)


class Node(Case):
    """An operator has started the node alone."""

    ONE = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "4"}

    def test_the_bits_of_threads(self):
        of_threads = self.of_threads()
        train = (*TRAIN, "--train-iters", 6)
        out, errors = done(started(cli.PROGRAM, *train, "--save", "node", env=self.ONE, folder=self.folder))
        self.assertEqual((out.count("6 steps in"), errors), (1, ""))
        self.assertEqual(self.state("node"), of_threads)
        port = str(free_port())
        both = [started(cli.PROGRAM, *train, "--save", "nodes", folder=self.folder,
                        env={"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": str(n),
                             "PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": port}) for n in (1, 0)]
        for node in both:
            done(node)
        self.assertEqual(self.state("nodes"), of_threads)

    def test_notes_are_told_once(self):
        errors = done(started(cli.PROGRAM, *TRAIN, "--train-iters", 1, "--lr", 0.1, "--lr", 0.2, env=self.ONE,
                              folder=self.folder))[1]
        self.assertEqual(errors.count("given several times"), 1, errors)

    def test_threads_of_one_process(self):
        out, _ = done(started(cli.PROGRAM, *TRAIN, "--train-iters", 2, "--ranks", 2, env=self.ONE, folder=self.folder))
        self.assertIn("2 ranks", out)

    def test_what_is_refused_is_said_once(self):
        for words, code, says in (((*TRAIN, "--nonsense"), USAGE, "unknown flag --nonsense"),
                                  ((*TRAIN, "--global-batch-size", 9), USAGE, "must be a multiple of 16"),
                                  (("train", "--data-path", "nowhere"), DATA, "nowhere")):
            errors = done(started(cli.PROGRAM, *words, env=self.ONE, folder=self.folder), code)[1]
            self.assertEqual(errors.count("\n"), 1, errors)
            self.assertIn(says, errors)
        env = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "localhost"}
        errors = done(started(cli.PROGRAM, *TRAIN, "--ranks", 2, env=env, folder=self.folder), MISMATCH)[1]
        self.assertIn("--ranks is 2, but 2 nodes start 2 ranks each", errors)

    def children(self, launched):
        found = subprocess.run(["pgrep", "-P", str(launched.pid)], capture_output=True, text=True, check=True)
        return sorted(map(int, found.stdout.split()))

    def test_a_rank_that_is_killed(self):
        launched = started(cli.PROGRAM, *LONG, "--save", "saved", env=self.ONE, folder=self.folder)
        until_saved(launched)
        began = time.monotonic()
        os.kill(self.children(launched)[2], signal.SIGKILL)
        _, errors = done(launched, 128 + signal.SIGKILL)
        self.assertLess(time.monotonic() - began, 4)  # two seconds, on a machine with other work
        self.assertRegex(errors, "rank 2 has ended")
        self.assertEqual(processes_in(self.folder), {})

    def test_a_launcher_that_is_killed(self):
        launched = started(cli.PROGRAM, *LONG, "--save", "saved", env=self.ONE, folder=self.folder)
        until_saved(launched)
        launched.kill()
        done(launched, -signal.SIGKILL)
        until(lambda: not processes_in(self.folder), "a rank is left", 5)

    def test_signals_go_to_all_ranks(self):
        launched = started(cli.PROGRAM, *LONG, "--save", "saved", env=self.ONE, folder=self.folder)
        until_saved(launched)
        launched.send_signal(signal.SIGTERM)
        _, errors = done(launched, INTERRUPTED)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertRegex(errors, "SIGTERM ended the run after step .* saved to")


@unittest.skipUnless(os.geteuid() == 0, "only root may make a namespace of processes")
class FirstProcess(EveryStart, cli.Case):
    """The program is the first process of a container, and starts its node's ranks."""

    def begin(self, *words, env=()):
        with (self.folder / "said").open("w") as said:
            launched = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", cli.PROGRAM, *map(str, words)],
                                        env={**BARE, "PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", **dict(env)}, cwd=self.folder,
                                        stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        return lambda: launched.wait(120)


class Meeting(Case):
    """Ranks of which each is started by hand."""

    def ranks(self, each, *words, ranks=2):
        port = free_port()
        return [started(cli.PROGRAM, *TRAIN, "--train-iters", 2, *words, folder=self.folder,
                        env={**variables(r, ranks, port), **each(r)}) for r in range(ranks)], port

    def test_places_and_secrets(self):
        (self.folder / "secret").write_text("open sesame\n")
        (self.folder / "secret").chmod(0o600)
        of_threads = self.of_threads(2, 2)
        for n, env in enumerate(({"MEGACPP_RENDEZVOUS_SECRET": "x"},
                                 {"MEGACPP_RENDEZVOUS_SECRET_FILE": str(self.folder / "secret")},
                                 {"MEGACPP_RENDEZVOUS_FOLDER": str(self.folder)},
                                 {"MASTER_ADDR": "::1"}, {"MEGACPP_SOCKET_IFNAME": "lo"})):
            for launched in self.ranks(lambda _, env=env: env, "--save", f"saved-{n}")[0]:
                done(launched)
            self.assertEqual(self.state(f"saved-{n}"), of_threads)

    def test_ranks_with_other_secrets(self):
        short = {"MEGACPP_RENDEZVOUS_TIMEOUT": "3"}
        (first, other), _ = self.ranks(lambda r: {**short, "MEGACPP_RENDEZVOUS_SECRET": "ab"[r]})
        self.assertIn("does not take this rank's secret", done(other, MISMATCH)[1])
        self.assertIn("rank 1 of 2 did not come", done(first, RANKS)[1])

    def test_a_master_that_is_another_program(self):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            port = server.getsockname()[1]

            def answer():
                connection = server.accept()[0]
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                with contextlib.suppress(OSError):
                    connection.recv(100)
            threading.Thread(target=answer, daemon=True).start()
            launched = started(cli.PROGRAM, *TRAIN, env=variables(1, 2, port), folder=self.folder)
            self.assertIn("is no rank of this program", done(launched, RANKS)[1])
            launched = started(cli.PROGRAM, *TRAIN, env=variables(0, 2, port), folder=self.folder)
            self.assertIn(f"rank 0 cannot listen at port {port}: Address already in use", done(launched, RANKS)[1])

    def test_signals_before_all_ranks_have_come(self):
        waits = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "127.0.0.1"}
        for env, ranks in ((variables(0, 2, free_port()), 1), ({**waits, "PET_MASTER_PORT": str(free_port())}, 2)):
            for number in (signal.SIGTERM, signal.SIGUSR1):
                launched = started(cli.PROGRAM, *TRAIN, env=env, folder=self.folder)
                until(lambda: len(takers(self.folder)) == (1 if ranks == 1 else 3), "the ranks were not started")
                launched.send_signal(signal.SIGUSR2)  # there is nothing to save
                time.sleep(0.2)
                self.assertIsNone(launched.poll())
                launched.send_signal(number)
                done(launched, INTERRUPTED)

    def test_a_stranger_at_the_port_of_a_run(self):
        (first, other), port = self.ranks(lambda r: {}, "--train-iters", 2, ranks=2)
        for _ in range(200):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as stranger:
                    stranger.sendall(b"megacpp ranks 1\n" + bytes(64))
            except OSError:
                time.sleep(0.01)
        done(other), done(first)


if __name__ == "__main__":
    cli.PROGRAM = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
