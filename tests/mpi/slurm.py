"""What slurm.sh asks of a program, once Slurm serves.

    slurm.py PROGRAM BIN LIBRARIES [unittest argument...]
"""

import os
import re
import shlex
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
import cli  # noqa: E402
from cli import DATA, INTERRUPTED, contents, newest, run  # noqa: E402
from every_start import EveryStart, processes_in, until  # noqa: E402

BIN = LIBRARIES = None
TRAIN = ("train", "--data-path", "text", "--eval-iters", 1, "--eval-interval", 3)


class Slurm(cli.Case):
    def setUp(self):
        super().setUp()
        self.line()

    def slurm(self, tool, *words, check=0, timeout=120):
        done = subprocess.run([BIN / tool, *map(str, words)], cwd=self.folder, text=True, capture_output=True,
                              env={**os.environ, "LD_LIBRARY_PATH": LIBRARIES}, timeout=timeout, check=False)
        self.assertEqual(done.returncode, check, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def srun(self, how, *words, **options):
        # Slurm's libraries are not for the program.
        return self.slurm("srun", f"--mpi={how}", "-n", 2, "env", "-u", "LD_LIBRARY_PATH", cli.PROGRAM, *words, **options)

    def test_the_bits_of_threads(self):
        train = (*TRAIN, "--train-iters", 6)
        run(*train, "--save", "threads", "--ranks", 2, cwd=self.folder)
        for how in ("none", "pmi2", "pmix"):
            with self.subTest(how):
                out, _ = self.srun(how, *train, "--save", how)
                self.assertEqual(out.count("6 steps in"), 1)
                self.assertEqual(*(contents(newest(self.folder / name)) for name in ("threads", how)))

    def test_what_a_task_finds(self):
        out, _ = self.srun("none", "describe", "--launch")
        self.assertEqual(len(re.findall(r"(?m)^started by +srun$", out)), 2)
        self.assertEqual(sorted(re.findall(r"(?m)^rank +(\d of 2), \d of 2 on its machine$", out)), ["0 of 2", "1 of 2"])

    def test_exit_codes(self):
        self.srun("none", "train", "--data-path", "nowhere", check=DATA)

    def queue(self, *flags, env=(), limits=""):
        """Gives sbatch the script of docs/launching.md, for two ranks of this program; returns the job's number."""
        docs = (Path(__file__).parents[2] / "docs" / "launching.md").read_text()
        script = re.search(r"(?s)\n(#!/bin/bash\n.*?)```", docs).group(1)
        own = (("--nodes=2 --ntasks-per-node=8 --time=4:00:00 --signal=USR1@120", f"--ntasks=2 {limits}"), ("run.log", "said"),
               ("srun --wait=60 ./my-run train --data-path book.txt --exit-duration-in-mins 230 --save out --load out",
                shlex.join(["srun", "--wait=3", "env", "-u", "LD_LIBRARY_PATH", cli.PROGRAM, *map(str, flags)])),
               ("./my-run", f"env -u LD_LIBRARY_PATH {cli.PROGRAM}"))
        for there, here in own:
            self.assertIn(there, script)
            script = script.replace(there, here)
        (self.folder / "job").write_text(script)
        self.environment = ",".join(["ALL", f"PATH={BIN}:{os.environ['PATH']}", f"LD_LIBRARY_PATH={LIBRARIES}",
                                     *(f"{k}={v}" for k, v in dict(env).items())])
        return re.search(r"\d+", self.slurm("sbatch", f"--export={self.environment}", "job")[0]).group(0)


class Queued(EveryStart, Slurm):
    """The script of docs/launching.md."""

    ENDED = r"exit code (\d+) after (\d+) restarts; again: (yes|no)"

    def begin(self, *words, env=()):
        job = self.queue(*words, env=env)

        def end():
            self.until_said(self.ENDED)
            code, _, again = re.search(self.ENDED, self.said()).groups()
            if again == "yes":  # it waits in the queue
                self.slurm("scancel", job)
            until(lambda: not processes_in(self.folder), "a process is left")
            return int(code)
        return end

    def test_a_signal_and_a_time_that_is_up(self):
        flags = (*TRAIN, "--train-iters", 8000, "--save-interval", 1000, "--eval-interval", 10**6)
        run(*flags, "--save", "undisturbed", "--ranks", 2, cwd=self.folder)
        job = self.queue(*flags, "--exit-duration-in-mins", 0.05, "--save", "out", "--load", "out")
        self.until_said("saved to out/iter_0001000")
        self.slurm("scancel", "--signal=USR1", job)  # as sbatch --signal=USR1@120 does before the end of its time
        self.until_said(f"exit code {INTERRUPTED} after 0 restarts; again: yes")
        self.until_said("exit code 0 after 1 restarts; again: yes")
        self.assertRegex(self.said(), "--exit-duration-in-mins 0.05 ends the run")
        self.until_said("again: no")
        self.assertIn("going on after step", self.said())
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(*(contents(newest(self.folder / folder))[name] for folder in ("out", "undisturbed")))

    def test_the_signal_before_the_end_of_its_time(self):
        job = self.queue(*TRAIN, "--train-iters", 10**7, "--save-interval", 10**6, "--eval-interval", 10**6, "--save", "out",
                         limits="--time=0:02:00 --signal=USR1@60")
        self.until_said(f"(?s)SIGUSR1 ended the run after step .* saved to out.*exit code {INTERRUPTED} after 0 restarts; again: yes")
        self.slurm("scancel", job)

    def test_a_job_that_is_cancelled(self):
        job = self.queue(*TRAIN, "--train-iters", 10**6, "--save-interval", 100, "--eval-interval", 10**6, "--save", "saved")
        self.until_said("saved to saved/iter_0000100")
        self.slurm("scancel", job)
        self.until_said("SIGTERM ended the run after step .* saved to saved")


if __name__ == "__main__":
    cli.PROGRAM = os.path.abspath(sys.argv[1])
    BIN, LIBRARIES = Path(sys.argv[2]), sys.argv[3]
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
