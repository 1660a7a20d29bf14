"""What slurm.sh asks of a program, once Slurm serves.

    slurm.py PROGRAM BIN LIBRARIES [unittest argument...]
"""

import os
import re
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
import cli  # noqa: E402
from cli import DATA, INTERRUPTED, contents, newest, run  # noqa: E402

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

    def script(self, *flags, **options):
        words = " ".join(f"--{k}={v}" for k, v in options.items())
        (self.folder / "job").write_text(f"""#!/bin/bash
#SBATCH --ntasks=2 --requeue --open-mode=append --output=said {words}
srun env -u LD_LIBRARY_PATH {cli.PROGRAM} {' '.join(map(str, flags))} --save saved --load saved
code=$?
echo "exit code $code, restart ${{SLURM_RESTART_COUNT:-0}}"
case $code in
  10|11) scontrol requeue $SLURM_JOB_ID ;;
esac
exit $code
""")
        environment = f"ALL,PATH={BIN}:{os.environ['PATH']},LD_LIBRARY_PATH={LIBRARIES}"
        return re.search(r"\d+", self.slurm("sbatch", f"--export={environment}", "job")[0]).group(0)

    def said(self):
        return (self.folder / "said").read_text() if (self.folder / "said").exists() else ""

    def until(self, pattern, seconds=60):
        ends = time.monotonic() + seconds
        while not re.search(pattern, self.said()):
            self.assertLess(time.monotonic(), ends, f"{pattern} is not in\n{self.said()}")
            time.sleep(0.2)

    def test_a_script_that_goes_on(self):
        flags = (*TRAIN, "--train-iters", 1500, "--save-interval", 100, "--eval-interval", 10**6)
        run(*flags, "--save", "undisturbed", "--ranks", 2, cwd=self.folder)
        job = self.script(*flags)
        self.until("saved to saved/iter_0000100")
        self.slurm("scancel", "--signal=USR1", job)  # as sbatch --signal=USR1@60 does before the end of its time
        self.until(f"exit code {INTERRUPTED}, restart 0")
        self.until("exit code 0, restart 1", 200)
        self.assertIn("going on after step", self.said())
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(*(contents(newest(self.folder / folder))[name] for folder in ("saved", "undisturbed")))

    def test_a_job_that_is_cancelled(self):
        job = self.script(*TRAIN, "--train-iters", 10**6, "--save-interval", 100, "--eval-interval", 10**6)
        self.until("saved to saved/iter_0000100")
        self.slurm("scancel", job)
        self.until("SIGTERM ended the run after step .* saved to saved")


if __name__ == "__main__":
    cli.PROGRAM = os.path.abspath(sys.argv[1])
    BIN, LIBRARIES = Path(sys.argv[2]), sys.argv[3]
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
