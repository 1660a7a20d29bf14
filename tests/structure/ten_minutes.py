#!/usr/bin/env python3
"""bench/gpu/ten_minutes.py without a GPU: parts that fail, or take too long, are told and leave the others
alone, and the result is whole after each part.

    ten_minutes.py ROOT [unittest argument...]
"""

import contextlib
import importlib.util
import io
import json
import stat
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = None


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "bin").mkdir()
        self.result = self.folder / "result.json"
        spec = importlib.util.spec_from_file_location("ten_minutes", ROOT / "bench/gpu/ten_minutes.py")
        self.of = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.of)

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text("#!/bin/sh\n" + text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run_parts(self, *more):
        with contextlib.redirect_stdout(io.StringIO()):
            code = self.of.main([str(self.folder), str(self.result), *more])
        return code, {part["part"]: part for part in json.loads(self.result.read_text())["parts"]}

    def test_a_part_that_takes_too_long_is_cut_and_the_next_one_runs(self):
        def second(_):
            return {"before": [part["part"] for part in json.loads(self.result.read_text())["parts"]]}
        self.of.PARTS = [("first", 1, lambda kit: kit.run("sleep", 30)), ("second", 5, second)]
        code, parts = self.run_parts()
        self.assertEqual(code, 1)
        self.assertFalse(parts["first"]["passed"])
        self.assertIn("sleep took longer than the part has time", parts["first"]["fault"])
        self.assertTrue(parts["second"]["passed"])
        self.assertEqual(parts["second"]["found"], {"before": ["first"]})  # the file was there by then

    def test_a_program_that_is_missing_or_fails_is_a_sentence(self):
        code, parts = self.run_parts("--parts", "rerun")
        self.assertEqual(code, 1)
        self.assertIn("is missing: make it by bench/gpu/prepare.sh", parts["rerun"]["fault"])
        self.program("megacpp_gpu", "echo 'CUDA finds no device' >&2; exit 8\n")
        code, parts = self.run_parts("--parts", "copies")
        self.assertEqual(code, 1)
        self.assertIn("megacpp_gpu ended with 8: CUDA finds no device", parts["copies"]["fault"])

    def experts(self, loss):
        lines = "".join(f'echo \'{{"step": {i}, "loss": {loss}, "grad_norm": 1.0}}\' >>"$told"\n' for i in range(3))
        return 'while [ "$1" != --metrics-jsonl ]; do shift; done\ntold=$2\n' + lines

    def test_losses_of_a_gpu_are_compared_with_those_of_a_cpu(self):
        self.program("experts-cpu", self.experts(2.0))
        for loss, passes in ((2.002, True), (2.1, False)):
            self.program("experts-cuda", self.experts(loss))
            code, parts = self.run_parts("--parts", "experts as on CPUs")
            self.assertEqual(code, 0 if passes else 1, parts)
        self.assertIn("losses are 5.00e-02", parts["experts as on CPUs"]["fault"])

    def test_the_names_of_parts_are_those_of_megacpp_gpu(self):
        text = (ROOT / "bench/gpu/main.cpp").read_text(encoding="utf-8")
        for name in ("copies", "forms of products", "attention", "row bodies against the CPU",
                     "row bodies, achieved", "products"):
            self.assertIn(f'{{"{name}", ', text)


if __name__ == "__main__":
    ROOT = Path(sys.argv[1]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
