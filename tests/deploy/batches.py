#!/usr/bin/env python3
"""The scripts of examples/deploy/slurm, given to sbatch. tests/mpi/slurm.sh starts Slurm's daemons and this file.

    batches.py PROGRAM BIN LIBRARIES WORK MEGACPP_DATA

PROGRAM is small_model; WORK is a folder that commands.py has filled. The machine is one node without GPUs, so the line that
asks for GPUs is taken out. In the place of Pyxis stands a script that reads its two flags.
"""

import os
import re
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import recipes  # noqa: E402

PROGRAM = BIN = LIBRARIES = WORK = DATA_TOOL = None
CONTAINER, MOUNTS = "registry#image:it's", "/a b:/c,/d:/e"
SRUN = f"""#!/usr/bin/env python3
import os, sys
words, given = [], {{}}
for word in sys.argv[1:]:
    name, _, value = word.partition("=")
    if name in ("--container-image", "--container-mounts"):
        given[name] = value
    else:
        words.append({{"/opt/megacpp/program": "REAL"}}.get(word, word))
assert given == {{"--container-image": {CONTAINER!r}, "--container-mounts": {MOUNTS!r}}}, given
print("Pyxis has read its flags", flush=True)
os.execv("BIN/srun", ["srun", *words])
"""


class Batches(unittest.TestCase):
    def setUp(self):
        self.folder = WORK / f"batch of {self.id().rsplit('.')[-1]}'s"  # names that a shell must be told about
        self.folder.mkdir()
        self.program = self.script("program", f'#!/bin/sh\nexec env -u LD_LIBRARY_PATH "{PROGRAM}" "$@"\n')
        self.values = {"PROGRAM": str(self.program), "DATA_TOOL": str(self.script("tool", f'#!/bin/sh\nexec env -u LD_LIBRARY_PATH "{DATA_TOOL}" "$@"\n')),
                       "SLURM_NODES": "1", "SLURM_TASKS_PER_NODE": "2", "SLURM_SIGNAL_SECONDS": "60", "SLURM_TIME": "0:10:00",
                       "SLURM_RUN": str(self.folder / "run"), "SLURM_MODEL": str(WORK / "datasets/small model"),
                       "SLURM_DATA": str(WORK / 'datasets/con"versations/train.jsonl'), "EPOCHS": "2", "GLOBAL_BATCH_SIZE": "32",
                       "LEARNING_RATE": "3e-3", "SAVE_INTERVAL": "10", "CONTAINER": CONTAINER, "MOUNTS": MOUNTS}

    def script(self, name, text):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def slurm(self, tool, *words):
        return subprocess.run([BIN / tool, *map(str, words)], cwd=self.folder, text=True, capture_output=True, check=True, timeout=60,
                              env={**os.environ, "LD_LIBRARY_PATH": LIBRARIES}).stdout

    def submit(self, template, **changed):
        text = recipes.texts(".sbatch", **{**self.values, **changed})[f"slurm/{template}"]
        lines = [line for line in text.splitlines() if "--gpus-per-node" not in line]
        self.assertEqual(len(text.splitlines()) - len(lines), template != "prepare")
        (self.folder / "job").write_text("\n".join(lines) + "\n")
        environment = f"--export=ALL,PATH={self.folder}/bin:{BIN}:{os.environ['PATH']},LD_LIBRARY_PATH={LIBRARIES}"
        return re.search(r"\d+", self.slurm("sbatch", environment, "job")).group()

    def said(self):
        return "".join(path.read_text(errors="replace") for path in self.folder.glob("*.log"))

    def until(self, pattern, seconds=150):
        ends = time.monotonic() + seconds
        while not re.search(pattern, self.said()):
            self.assertLess(time.monotonic(), ends, f"{pattern} is not in\n{self.said()}")
            time.sleep(0.1)

    def test_bare(self):
        self.submit("bare")
        self.until("exit code 0 after 0 restarts; again: no")
        self.assertIn("2 ranks", self.said())
        self.assertTrue((self.folder / "run/iter_0000035").is_dir())

    def test_a_signal_and_the_way_on(self):
        job = self.submit("bare", EPOCHS="6")
        self.until("saved to .*iter_0000010")
        self.slurm("scancel", "--signal=USR1", job)
        self.until("exit code 10 after 0 restarts; again: yes")
        self.until("exit code 0 after 1 restarts; again: no")
        self.assertIn("going on after step", self.said())

    def test_pyxis(self):
        self.script("srun", SRUN.replace("REAL", str(self.program)).replace("BIN", str(BIN)))
        self.submit("pyxis")
        self.until("exit code 0 after 0 restarts; again: no")
        self.assertIn("Pyxis has read its flags", self.said())
        self.assertTrue((self.folder / "run/iter_0000035").is_dir())

    def test_prepare(self):
        self.submit("prepare", TEXTS=str(WORK / "fsx/gpt2/oscar-1GB.jsonl"), TOKENIZER=str(WORK / "made/tokenizer"), DATA_PREFIX=str(self.folder / "set"))
        ends = time.monotonic() + 60
        while not (self.folder / "set_text_document.idx").exists():
            self.assertLess(time.monotonic(), ends, self.said())
            time.sleep(0.1)


if __name__ == "__main__":
    PROGRAM, BIN, LIBRARIES, WORK, DATA_TOOL = (Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]).resolve(), Path(sys.argv[5]).resolve())
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]])
