"""What holds for a program however it is started: the same command line again, and its exit codes.

A test of a way of starting derives from EveryStart and cli.Case, and says by begin() how it starts two ranks.
"""

import os
import re
import signal
import time
from pathlib import Path

import cli
from cli import DATA, INTERRUPTED, MISMATCH, MODEL, NONFINITE, OUTPUT, USAGE, contents, newest, run

RANKS = 11
TRAIN = ("train", "--data-path", "text", "--eval-iters", 1, "--eval-interval", 10**6)


def processes_in(folder):
    """Number, parent and program of each process that runs in a folder."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z" and os.readlink(process / "cwd").startswith(str(folder)):
                found[int(process.name)] = (int(parent), os.readlink(process / "exe"))
        except OSError:
            continue
    return found


def ranks_in(folder):
    """The numbers of the processes that are ranks: those of the program that have none of it as a child."""
    found = {n: parent for n, (parent, program) in processes_in(folder).items() if program == os.path.realpath(cli.PROGRAM)}
    return sorted(set(found) - set(found.values()))


def until(holds, what, seconds=120):
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(0.02)


class EveryStart:
    def begin(self, *words, env=()):
        """Starts two ranks whose output goes to the file "said" in the folder of the test, and returns a function that
        waits for their end and returns their exit code."""
        raise NotImplementedError

    def said(self):
        path = self.folder / "said"
        return path.read_text(errors="replace") if path.exists() else ""

    def until_said(self, pattern):
        until(lambda: re.search(pattern, self.said()), lambda: f"{pattern} is not in\n{self.said()}", 300)

    def start(self, *words, env=()):
        (self.folder / "said").unlink(missing_ok=True)
        return self.begin(*words, env=dict(env))

    def code_of(self, *words, env=()):
        return self.start(*words, env=env)()

    def kill_one(self, number=signal.SIGKILL):
        until(lambda: len(ranks_in(self.folder)) == 2, self.said)
        os.kill(ranks_in(self.folder)[1], number)

    def test_the_same_command_line_again_and_again(self):
        run(*TRAIN, "--train-iters", 2, "--save", "base", cwd=self.folder)
        flags = (*TRAIN, "--train-iters", 1500, "--save-interval", 600, "--log-interval", 1, "--pretrained-checkpoint", "base")
        run(*flags, "--load", "undisturbed", "--save", "undisturbed", "--ranks", 2, cwd=self.folder)
        line = (*flags, "--load", "out", "--save", "out")
        end = self.start(*line)
        self.until_said("step +1/1500")
        self.kill_one()
        self.assertNotEqual(end(), 0, self.said())
        self.assertEqual(list((self.folder / "out").glob("iter_*")), [])
        end = self.start(*line)
        self.until_said("saved to out/iter_0000600")
        self.assertIn("a new run begins with the weights of base", self.said())
        self.kill_one()
        self.assertNotEqual(end(), 0, self.said())
        self.assertEqual(self.code_of(*line), 0, self.said())
        self.assertRegex(self.said(), r"going on after step \d+ of out")
        ended = contents(newest(self.folder / "out"))
        self.assertEqual(self.code_of(*line), 0, self.said())
        self.assertIn("nothing is left to train", self.said())
        self.assertEqual(contents(newest(self.folder / "out")), ended)
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(ended[name], contents(newest(self.folder / "undisturbed"))[name])

    def test_exit_codes(self):
        run(*TRAIN, "--train-iters", 2, "--save", "model", cwd=self.folder)
        damaged = newest(self.folder / "model").rename(self.folder / "damaged") / "model.safetensors"
        damaged.write_bytes(damaged.read_bytes()[:-1])
        short = (*TRAIN, "--train-iters", 2)
        for code, words in ((0, short), (USAGE, (*short, "--nonsense")), (MISMATCH, (*short, "--num-layers", 3)),
                            (DATA, ("train", "--data-path", "nowhere")), (MODEL, (*short, "--load", "damaged")),
                            (OUTPUT, (*short, "--save", "text")), (NONFINITE, (*short, "--lr", "1e30", "--clip-grad", 0))):
            with self.subTest(code):
                self.assertEqual(self.code_of(*words), code, self.said())

    def test_exit_codes_of_a_run_that_is_ended(self):
        long = (*TRAIN, "--train-iters", 10**6, "--log-interval", 1)
        end = self.start(*long, "--save", "saved")
        self.until_said("step +2/")
        self.kill_one(signal.SIGTERM)
        self.assertEqual(end(), INTERRUPTED, self.said())
        self.assertEqual(self.code_of(*long, "--exit-duration-in-mins", 0.005, "--save", "timed"), 0, self.said())
        self.assertRegex(self.said(), r"--exit-duration-in-mins 0.005 ends the run after step \d+")
        listed = run("describe", "--load", "timed", "--json", cwd=self.folder).stdout.decode()
        self.assertIn('"finished":false', listed)
        end = self.start(*long, "--collective-timeout", 1)
        self.until_said("step +2/")
        self.kill_one(signal.SIGSTOP)
        self.assertIn(end(), (RANKS, 128 + signal.SIGKILL), self.said())
        until(lambda: not ranks_in(self.folder), "a rank is left")
