#!/usr/bin/env python3
"""A program that launchers of other projects start: the bits of threads, and what happens when a rank ends.

    launchers.py PROGRAM torchrun|mpich LAUNCHER [unittest argument...]

PROGRAM is compiled from ../cli/tiny_gpt.hpp. LAUNCHER is the torchrun of a torch which pip has installed, or the mpiexec
of MPICH, which PROGRAM is not built with.
"""

import json
import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
sys.path.insert(0, str(Path(__file__).parent))
import cli  # noqa: E402
from cli import MISMATCH, newest, run  # noqa: E402
from every_start import EveryStart  # noqa: E402
from launch import BARE, TRAIN, Case, done, started, until_saved  # noqa: E402
from networks import TwoNetworks  # noqa: E402
from start_ranks import free_port  # noqa: E402

LAUNCHER = None


class Mpich(Case):
    """Another MPI's launcher than that of the MPI which the program is built with."""

    def test_the_bits_of_threads(self):
        of_threads = self.of_threads()
        launch = (LAUNCHER, "-launcher", "fork", "-n", 4)
        done(started(*launch, "-genv", "MASTER_ADDR", "127.0.0.1", "-genv", "MASTER_PORT", free_port(), cli.PROGRAM, *TRAIN,
                     "--train-iters", 6, "--save", "mpich", env={}, folder=self.folder))
        self.assertEqual(self.state("mpich"), of_threads)
        errors = done(started(*launch, cli.PROGRAM, *TRAIN, env={}, folder=self.folder), MISMATCH)[1]
        self.assertIn("MASTER_ADDR", errors)


class UnderTorchrun(EveryStart, cli.Case):
    def begin(self, *words, env=()):
        with (self.folder / "said").open("w") as said:
            launched = subprocess.Popen([LAUNCHER, "--no-python", "--nproc-per-node", "2", "--master-port", str(free_port()),
                                         cli.PROGRAM, *map(str, words)], env={**BARE, **dict(env)}, cwd=self.folder,
                                        stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)

        def end():
            code = launched.wait(120)
            # torchrun itself ends with 1, and says which rank was the first with which code.
            first = re.search(r"(?s)Root Cause.*?exitcode *: (-?\d+)", self.said())
            return int(first.group(1)) if code == 1 and first else code
        return end


class Torchrun(Case):
    def torchrun(self, *words, env=(), **options):
        return started(LAUNCHER, "--no-python", *words, env=dict(env), folder=self.folder, **options)

    def test_the_bits_of_threads(self):
        of_threads = self.of_threads()
        done(self.torchrun("--nproc-per-node", 4, cli.PROGRAM, *TRAIN, "--train-iters", 6, "--save", "torchrun"))
        self.assertEqual(self.state("torchrun"), of_threads)

    def test_a_start_of_two_ranks(self):
        of_threads = self.of_threads(2)
        out, _ = done(self.torchrun("--nproc-per-node", 2, cli.PROGRAM, *TRAIN, "--train-iters", 6, "--save", "torchrun"))
        self.assertIn("2 ranks", out)
        self.assertEqual(self.state("torchrun"), of_threads)

    def test_a_rank_that_is_killed_and_all_that_start_again(self):
        flags = (*TRAIN, "--train-iters", 3000, "--save-interval", 100, "--eval-interval", 10**6)
        run(*flags, "--save", "undisturbed", "--ranks", 4, cwd=self.folder)
        port = free_port()
        launched = self.torchrun("--nproc-per-node", 4, "--max-restarts", 3, "--master-port", port, cli.PROGRAM, *flags,
                                 "--save", "saved", "--load", "saved")
        until_saved(launched)
        found = subprocess.run(["pgrep", "-P", str(launched.pid)], capture_output=True, text=True, check=True)
        os.kill(int(found.stdout.split()[2]), signal.SIGKILL)
        out, _ = done(launched)
        self.assertRegex(out, "going on after step")
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(self.state("saved")[name], self.state("undisturbed")[name])

    def test_a_node_that_is_lost_and_ranks_that_go_on_without_it(self):
        flags = (*TRAIN, "--train-iters", 2500, "--save-interval", 250, "--eval-interval", 10**6)
        place = f"127.0.0.1:{free_port()}"
        nodes = [self.torchrun("--nproc-per-node", 2, "--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", place,
                               "--rdzv-id", "elastic", "--max-restarts", 3, "--local-addr", "127.0.0.1",
                               "--rdzv-conf", f"is_host={int(n == 0)},last_call_timeout=2,keep_alive_interval=1",
                               cli.PROGRAM, *flags, "--save", "saved", "--load", "saved") for n in range(2)]
        self.assertIn("4 ranks", until_saved(nodes[0]))
        ranks = subprocess.run(["pgrep", "-P", str(nodes[1].pid)], capture_output=True, text=True, check=True).stdout.split()
        for process in (nodes[1].pid, *map(int, ranks)):
            os.kill(process, signal.SIGKILL)
        out, _ = done(nodes[0])
        went_on = re.search(r"going on after step \d+ of (saved/iter_\d+)", out)
        self.assertIsNotNone(went_on, out)
        run(*flags, "--load", went_on.group(1), "--save", "two", "--ranks", 2, cwd=self.folder)
        two, elastic = self.state("two"), self.state("saved")
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(elastic[name], two[name])
        losses = [json.loads((newest(self.folder / name) / "megacpp_state.json").read_text())["state"]["history"]
                  for name in ("two", "saved")]
        self.assertEqual(*losses)


class TorchrunOnTwoNodes(TwoNetworks):
    def test_torchrun(self):
        of_threads = self.of_threads()
        self.nodes(lambda n: (LAUNCHER, "--no-python", "--nnodes", 2, "--nproc-per-node", 2, "--node-rank", n, "--master-addr",
                              "10.77.0.1", "--master-port", 29501, cli.PROGRAM), lambda _: {"OMP_NUM_THREADS": "1"}, *TRAIN, "--train-iters", 6, "--save",
                   "torchrun")
        self.assertEqual(self.state("torchrun"), of_threads)


if __name__ == "__main__":
    cli.PROGRAM, of, LAUNCHER = os.path.abspath(sys.argv[1]), sys.argv[2], os.path.abspath(sys.argv[3])
    ways = {"mpich": ["Mpich"], "torchrun": ["Torchrun", "UnderTorchrun", "TorchrunOnTwoNodes"]}
    unittest.main(argv=[sys.argv[0], *(sys.argv[4:] or ways[of])])
