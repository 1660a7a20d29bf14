#!/usr/bin/env python3
"""bench/gpu/ten_minutes.py and its neighbours without a GPU: parts that fail, or take too long, are told, keep
what they had measured and leave the others alone; the result is whole at any time.

    ten_minutes.py ROOT [unittest argument...]
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path
from unittest import mock

ROOT = None
# What follows "--json" or another word of a command line, for programs that stand in for those of the folder.
AFTER = 'after() { want=$1; shift; while [ "$1" != "$want" ]; do shift; done; echo "$2"; }\n'
BENCH = ('{"median_ms": 1.5, "attention": "by cuDNN 9.19.0, deterministic", "planned_bytes": 1000,'
         ' "device_memory": {"before_bytes": 500, "taken_bytes": 1019}}')
# Two checks of a part, and the end of the program in the third, of which its file knows nothing.
KILLED = r"""
#include "report.hpp"
#include <cstdlib>
int main(int, char** words) {
  gpu::report r(words[1], {{"device", "none"}}, [] {});
  r.part("a part", 100, [&] {
    r.check("first", [] { return gpu::figures{{"ms", 1.5}}; });
    r.check("second", []() -> gpu::figures { throw mc::error(mc::exit_code::internal, "is \"bad\""); });
    r.check("third", []() -> gpu::figures { std::_Exit(9); });
  });
}
"""


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    of = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(of)
    return of


def runs(process):
    """Whether a process is there; one that has ended and waits for whoever started it is not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "bin").mkdir()
        self.result = self.folder / "result.json"
        self.of = module(ROOT / "bench/gpu/ten_minutes.py")

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text("#!/bin/sh\n" + AFTER + text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def results(self):
        return {part["part"]: part for part in json.loads(self.result.read_text())["parts"]}

    def run_parts(self, *more):
        with contextlib.redirect_stdout(io.StringIO()) as self.printed:
            code = self.of.main([str(self.folder), str(self.result), *more])
        return code, self.results()

    def run_part(self, name, passes):
        """What the only part that was asked for leaves."""
        code, parts = self.run_parts("--parts", name)
        self.assertEqual(list(parts), [name])
        self.assertEqual(code, 0 if passes else 1, parts)
        self.assertEqual(parts[name]["passed"], passes)
        return parts[name]

    def gone(self, file):
        """Waits for the end of the process whose number a file has."""
        process, until = int(file.read_text()), time.monotonic() + 10
        while runs(process) and time.monotonic() < until:
            time.sleep(0.02)
        self.assertFalse(runs(process))

    def test_a_part_that_takes_too_long_is_cut_and_the_next_one_runs(self):
        def second(_, found):
            found["before"] = list(self.results())
        self.of.PARTS = [("first", 1, lambda kit, _: kit.run("sleep", 30)), ("second", 5, second)]
        code, parts = self.run_parts()
        self.assertEqual(code, 1)
        self.assertFalse(parts["first"]["passed"])
        self.assertIn("sleep took longer than the part has time", parts["first"]["fault"])
        self.assertTrue(parts["second"]["passed"])
        self.assertEqual(parts["second"]["found"], {"before": ["first"]})  # the file was there by then

    def test_what_a_command_has_started_ends_with_it(self):
        number = self.folder / "number"
        for then, passes in (("wait", False), ("exit 0", True)):
            self.program("starts", f"sleep 100 & echo $! >{number}; {then}\n")
            self.of.PARTS = [("starts", 1, lambda kit, _: kit.run(kit.program("starts")))]
            self.run_part("starts", passes)
            self.gone(number)

    def test_a_signal_ends_what_runs_and_leaves_what_was_found(self):
        number = self.folder / "number"
        self.program("megacpp_gpu", f'echo \'{{"checks": []}}\' >"$(after --json "$@")"; echo $$ >{number}.new\n'
                                    f"mv {number}.new {number}; exec sleep 100\n")
        script = subprocess.Popen([sys.executable, ROOT / "bench/gpu/ten_minutes.py", self.folder, self.result,
                                   "--parts", "copies", "products"], stdout=subprocess.DEVNULL)
        while not number.exists() and script.poll() is None:
            time.sleep(0.02)
        script.send_signal(signal.SIGTERM)
        self.assertEqual(script.wait(timeout=20), 128 + signal.SIGTERM)
        self.gone(number)
        self.assertEqual(list(self.results()), ["copies"])
        self.assertEqual(self.results()["copies"]["fault"], "it was stopped from outside")
        self.assertEqual(self.results()["copies"]["found"], {"checks": []})

    def test_seconds_hold_all_parts_together(self):
        self.of.PARTS = [("first", 30, lambda kit, _: kit.run("sleep", 30)), ("second", 30, lambda *_: None)]
        begun = time.monotonic()
        code, parts = self.run_parts("--seconds", "1")
        self.assertLess(time.monotonic() - begun, 15)
        self.assertEqual(code, 1)
        self.assertIn("took longer", parts["first"]["fault"])
        self.assertNotIn("not run", parts["first"])
        self.assertTrue(parts["second"]["not run"])
        self.assertFalse(parts["second"]["passed"])
        self.assertIn("\nnot run second", self.printed.getvalue())
        self.assertIn("0 passed, 1 failed, 1 not run\n", self.printed.getvalue())
        self.of.PARTS = self.of.PARTS[1:]
        self.assertEqual(self.run_parts("--seconds", "0")[0], 1)  # nothing failed, and nothing ran
        self.assertEqual(self.run_parts()[0], 0)

    def test_a_part_whose_time_is_over_starts_nothing(self):
        def twice(kit, _):
            with contextlib.suppress(self.of.Failed):
                kit.run("sleep", 30)
            kit.run("touch", self.folder / "started")
        self.of.PARTS = [("twice", 1, twice)]
        self.assertIn("touch was not started", self.run_part("twice", False)["fault"])
        self.assertFalse((self.folder / "started").exists())

    def test_whatever_fails_in_a_part_is_of_that_part(self):
        def first(_, found):
            found["so far"] = 3
            raise IndexError("of a list")
        self.of.PARTS = [("first", 5, first), ("second", 5, lambda kit, found: None)]
        code, parts = self.run_parts()
        self.assertEqual(code, 1)
        self.assertEqual(parts["first"]["fault"], "IndexError: of a list")
        self.assertEqual(parts["first"]["found"], {"so far": 3})
        self.assertTrue(parts["second"]["passed"])

    def test_a_result_that_cannot_be_written_shows_before_anything_runs(self):
        begun = []
        self.of.PARTS = [("first", 5, lambda *_: begun.append(1))]
        self.result = self.folder / "no such folder" / "result.json"
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as ended:
            self.run_parts()
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("result.json cannot be written", said.getvalue())
        self.assertEqual(begun, [])

    def test_a_result_takes_the_place_of_the_one_before_when_it_is_complete(self):
        def first(_, found):
            found["file"] = len(kept) or kept.append(open(self.result, encoding="utf-8"))
        kept = []
        self.of.PARTS = [("first", 5, first), ("second", 5, lambda *_: None)]
        self.run_parts()
        with kept[0] as before:
            self.assertEqual(json.load(before)["parts"], [])  # later ones did not write into it
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["bin", "result.json"])

    def test_every_part_can_be_chosen(self):
        names = [name for name, _, _ in self.of.PARTS]
        self.assertEqual(len(set(names)), len(names))
        for chosen in [[name] for name in names] + [names[::-1]]:
            self.of.PARTS = [(name, 5, lambda *_: None) for name in names]
            code, parts = self.run_parts("--parts", *chosen)
            self.assertEqual((code, sorted(parts)), (0, sorted(chosen)))
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            self.run_parts("--parts", "copies", "copying")
        self.assertIn("there is no part 'copying'", said.getvalue())

    def test_a_program_that_is_missing_or_fails_is_a_sentence(self):
        self.assertIn("is missing: make it by bench/gpu/prepare.sh", self.run_part("rerun", False)["fault"])
        self.program("megacpp_gpu", "echo 'CUDA finds no device' >&2; exit 8\n")
        part = self.run_part("copies", False)
        self.assertIn("megacpp_gpu ended with 8: CUDA finds no device", part["fault"])
        self.assertEqual(part["said"], ["CUDA finds no device"])

    def test_checks_before_a_fault_are_kept(self):
        whole = {"copy_TB/s": 4, "checks": [{"part": "products", "name": "a", "passed": True}]}
        for text, kept in ((json.dumps(whole), whole), (json.dumps(whole)[:-9], {})):
            self.program("megacpp_gpu", f"cat >\"$(after --json \"$@\")\" <<'END'\n{text}\nEND\nexit 3\n")
            part = self.run_part("products", False)
            self.assertIn("megacpp_gpu ended with 3", part["fault"])
            self.assertEqual(part["found"], kept)

    def test_a_part_without_checks_or_cudnn_has_not_passed(self):
        check = {"part": "attention", "name": "a", "passed": True}
        for told, fault in (({"checks": [check]}, None), ({"checks": []}, "told of no check of 'attention'"),
                            ({"checks": [{**check, "part": "copies"}]}, "told of no check of 'attention'"),
                            ({"checks": [check], "left_out": "attention: built without cuDNN"}, "without cuDNN")):
            self.program("megacpp_gpu", f"echo '{json.dumps(told)}' >\"$(after --json \"$@\")\"\n")
            part = self.run_part("attention", fault is None)
            self.assertIn(fault or "", part.get("fault", ""))

    def steps(self, loss, lines='$(after --train-iters "$@")', norm="1.0", code=0):
        return (f'told=$(after --metrics-jsonl "$@"); for i in $(seq {lines}); do\n'
                f'echo "{{\\"loss\\": {loss}, \\"grad_norm\\": {norm}}}" >>"$told"; done; exit {code}\n')

    def test_losses_of_a_gpu_are_compared_with_those_of_a_cpu(self):
        self.program("experts-cpu", self.steps(2.0))
        for loss, passes in ((2.002, True), (2.1, False), ("NaN", False)):
            self.program("experts-cuda", self.steps(loss))
            part = self.run_part("experts as on CPUs", passes)
            self.assertEqual(len(part["found"]["on the GPU"]), 20)
            if loss == 2.1:
                self.assertIn("losses are 5.00e-02", part["fault"])
        self.program("experts-cuda", self.steps(2.002))
        self.program("experts-cpu", self.steps(2.0, lines=7, code=1))
        part = self.run_part("experts as on CPUs", False)  # both curves are kept
        self.assertIn("experts-cpu ended with 1", part["fault"])
        self.assertEqual(part["found"], {"on the GPU": [[2.002, 1.0]] * 20, "on CPUs": [[2.0, 1.0]] * 7})

    def test_a_rerun_needs_steps_and_the_same_bits(self):
        self.program("gpt2-124m-cuda", self.steps(2.0))
        self.run_part("rerun", True)
        for wrong in (self.steps(2.0, lines=0) + ":>$told", self.steps(2.0, norm="null"), self.steps(2.0, lines=3)):
            self.program("gpt2-124m-cuda", wrong)
            self.run_part("rerun", False)
        self.program("gpt2-124m-cuda", self.steps("2.$$"))
        self.assertIn("a rerun has other losses or norms", self.run_part("rerun", False)["fault"])

    def test_a_whole_program_counts_the_tests_that_ran(self):
        for name in ("tiny-cuda", "tiny-cpu", "megacpp_gpu"):
            self.program(name, "")
        for said, code, count, failed in (("Ran 9 tests in 1s\n\nOK (skipped=4)", 0, 5, []), ("OK", 0, 0, []),
                                          ("Ran 4 tests in 1s\n\nOK (skipped=4)", 0, 0, []),
                                          ("FAIL: test_a (Case)\nRan 1 test in 1s\n", 1, 1, ["test_a"])):
            python = self.folder / "python"
            python.write_text(f"#!/bin/sh\necho '{said}'; exit {code}\n")
            python.chmod(0o755)
            with mock.patch.object(sys, "executable", str(python)):
                part = self.run_part("a whole program", code == 0 and count > 0)
            self.assertEqual(part["found"], {"tests": count, "not passed": failed})

    def test_speed_is_that_of_attention_by_cudnn(self):
        profile = 'case "$*" in *--profile*) echo nodes; exit {};; esac\n'
        self.program("gpt2-124m-cuda", profile.format(0) + f"echo '{BENCH}'\n")
        self.assertEqual(self.run_part("gpt2-124m", True)["found"], {**json.loads(BENCH), "nodes": ["nodes"]})
        self.program("gpt2-124m-cuda", profile.format(5) + f"echo '{BENCH}'\n")
        part = self.run_part("gpt2-124m", False)  # what was measured before the profile is kept
        self.assertIn("ended with 5", part["fault"])
        self.assertEqual(part["found"], json.loads(BENCH))
        for attention in ("by own tiles", "by cuDNN 9.19.0, deterministic, in part by own tiles"):
            said = json.dumps({**json.loads(BENCH), "attention": attention})
            self.program("gpt2-124m-cuda", profile.format(0) + f"echo '{said}'\n")
            self.assertIn(f"attention is {attention}", self.run_part("gpt2-124m", False)["fault"])
        for memory, fault in ((None, "told nothing of the device's memory"),
                              ({"taken_bytes": 1021}, "1021 bytes of the device were taken, and 1000 planned"),
                              ({"taken_bytes": 979}, "979 bytes of the device were taken, and 1000 planned")):
            said = json.dumps({**json.loads(BENCH), "device_memory": memory})
            self.program("gpt2-124m-cuda", profile.format(0) + f"echo '{said}'\n")
            self.assertIn(fault, self.run_part("gpt2-124m", False)["fault"])
        said = json.dumps({**json.loads(BENCH), "products": "cuBLASLt, products of experts one by one"})
        self.program("gpt2-124m-cuda", profile.format(0) + f"echo '{said}'\n")
        self.assertIn("experts one by one", self.run_part("gpt2-124m", False)["fault"])

    def test_a_table_is_kept_and_has_to_be_used(self):
        shapes = '{"product_shapes": [{"kind": "forward"}], "name": "a"}'
        table = '{"machines": [1]}'
        for says, passes in (("cuBLASLt, 3 of 4 products by the product table", True), ("cuBLASLt", False),
                             ("cuBLASLt, 0 of 4 products by the product table", False)):
            self.program("gpt2-124m-cuda", f'case "$*" in describe*) echo note; echo \'{shapes}\'; exit;;\n'
                                           f'*--product-table*) cat $(after --product-table "$@") >{self.folder}/had\n'
                                           f'echo \'{{"products": "{says}", "median_ms": 1}}\'; exit;; esac\n'
                                           f'echo \'{{"products": "cuBLASLt", "median_ms": 2}}\'\n')
            self.program("megacpp_gpu", f'cat $(after --products "$@") >{self.folder}/asked; '
                                        f'echo \'{table}\' >$(after --tune "$@"); echo done\n')
            part = self.run_part("tuned gpt2-124m", passes)
            self.assertEqual(part["found"]["table"], json.loads(table))
            self.assertEqual(part["found"]["told"], ["done"])
            self.assertEqual([part["found"][name]["median_ms"] for name in ("without", "with")], [2, 1])
            self.assertEqual((self.folder / "had").read_text(), table + "\n")
            self.assertEqual(json.loads((self.folder / "asked").read_text()),
                             {"product_shapes": [{"kind": "forward"}]})
        # What was measured before a fault is kept.
        self.program("megacpp_gpu", f'echo \'{table}\' >$(after --tune "$@"); exit 9\n')
        part = self.run_part("tuned gpt2-124m", False)
        self.assertIn("megacpp_gpu ended with 9", part["fault"])
        self.assertEqual(part["found"], {"table": json.loads(table)})

    def test_decoding_tells_its_share_of_the_speed_of_copies(self):
        """127 passes in half a second, each of which reads 4 GB of weights and the caches, of which 15 GB are full."""
        self.program("megacpp_gpu", '[ "$(after --only "$@")" = copies ] && '
                                    'echo \'{"copy_TB/s": 3.2}\' >"$(after --json "$@")"\n')
        token = {"tokens": 1024, "read": 19 * 10**9, "caches": 15 * 10**9, "written": 5}
        for told, passes in (("new: 128 tokens in 0.500 s, 256 tokens/s", True), ("7 14 21", False),
                             ("new: 64 tokens in 0.500 s, 128 tokens/s", False), ("new: 128 tokens in 0.000 s", False)):
            self.program("gpt2-124m-cuda", f'echo "$*" >>{self.folder}/asked; case "$1" in describe) echo \''
                                           f'{json.dumps({"decoding": token})}\';; *) echo "prompts: 896 | {told}";; esac\n')
            part = self.run_part("decoding gpt2-124m", passes)
            found = part["found"]
            self.assertEqual((found["copy_TB/s"], found["token"]), (3.2, token))
            self.assertEqual("of_copy" in found, passes)
            if not passes:
                self.assertIn("told no time of 128 new tokens", part["fault"])
                continue
            self.assertAlmostEqual(found["tokens/s"], 127 / 0.5)
            self.assertAlmostEqual(found["read_bytes"], 19e9 - 15e9 / 16)
            self.assertAlmostEqual(found["of_copy"], (19e9 - 15e9 / 16) * 254 / 3.2e12)
        described, generated = (self.folder / "asked").read_text().splitlines()[:2]
        self.assertEqual(described, "describe --json")
        prompt = generated.split("--prompt ")[1].split(" --max")[0].split()
        self.assertEqual(len(prompt), 1024 - 128)  # so that the last token is the 1,024th
        for words in ("generate --random-weights --ids", "--greedy", "--max-new-tokens 128"):
            self.assertIn(words, generated)

    def test_steps_of_pytorch_are_in_turn_and_the_faster_mode_is_the_peer(self):
        """Ours takes 2 ms; PyTorch's modes 3 and 5 ms in the first turn, 7 and 4 in the second one."""
        turns, python = self.folder / "turns", self.folder / "python"
        steps = '{{"batch": {}, "sequence": 1024, "median_ms": {}, "attention": "by cuDNN 9", "products": "cuBLASLt"}}'
        python.write_text(f'#!/bin/sh\n{AFTER}mode=$(after --mode "$@"); echo $mode >>{turns}\n'
                          f'case "$mode $(grep -c $mode {turns})" in "compile 1") ms=3;; '
                          f'"max-autotune 1") ms=5;; "compile 2") ms=7;; *) ms=4;; esac\n'
                          f'echo "$TORCHINDUCTOR_CACHE_DIR" >>{self.folder}/cache\n'
                          "echo '" + steps.format(32, "'$ms'") + "'\n")
        python.chmod(0o755)
        for batch, attention, passes in ((32, "by cuDNN 9", True), (16, "by cuDNN 9", False), (32, "by own tiles", False)):
            for file in (turns, self.folder / "cache"):
                file.unlink(missing_ok=True)
            ours = steps.format(batch, 2).replace("by cuDNN 9", attention)
            self.program("gpt2-124m-cuda", f"echo ours >>{turns}; echo '{ours}'\n")
            with mock.patch.object(sys, "executable", str(python)):
                part = self.run_part("beside torch gpt2-124m", passes)
            found = part["found"]["turns"]
            self.assertEqual(found[0]["ours"]["median_ms"], 2)  # also of a turn that failed
            if not passes:
                self.assertNotIn("times as fast", found[0])
                self.assertIn("batch is 16 here and 32 there" if batch == 16 else "by own tiles", part["fault"])
                continue
            self.assertEqual(turns.read_text().split(), 2 * ["ours", "compile", "max-autotune"])
            self.assertEqual([(turn["peer"], turn["times as fast"]) for turn in found],
                             [("compile", 1.5), ("max-autotune", 2)])
            self.assertEqual([turn["compile"]["median_ms"] for turn in found], [3, 7])
            self.assertEqual(len(set((self.folder / "cache").read_text().split())), 1)

    def test_memcheck_needs_a_summary(self):
        for name in ("tiny-cuda", "experts-cuda"):
            self.program(name, "")
        for said, passes in (("ERROR SUMMARY: 0 errors", True), ("nothing", False)):
            self.program("compute-sanitizer", f"echo '========= {said}'\n")
            with mock.patch.dict(os.environ, PATH=f"{self.folder / 'bin'}:{os.environ['PATH']}"):
                self.run_part("memcheck", passes)

    def test_libraries_are_found_in_the_order_of_run_sh_and_python_keeps_its_own(self):
        packages = self.folder / "site-packages"
        for name in ("cu13", "cudnn"):
            (packages / "nvidia" / name / "lib").mkdir(parents=True)
        stand_in = self.folder / "bin" / "python3"  # run.sh asks it for the folders of packages
        stand_in.write_text(f"#!/bin/sh\necho {packages}\n")
        stand_in.chmod(0o755)
        self.program("shows", 'echo "$LD_LIBRARY_PATH"\n')
        seen = {}

        def part(kit, _):
            seen["program"] = kit.run(kit.program("shows")).strip().split(":")
            with mock.patch.object(sys, "executable", kit.program("shows")), contextlib.suppress(self.of.Failed):
                self.of.torch_step(kit, {}, "gpt2-124m", 1, "compile", 2)
            seen["python"] = kit.said.strip()
        self.of.PARTS = [("shows", 5, part)]
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        with mock.patch.dict(os.environ, LD_LIBRARY_PATH="/given", PATH=path), \
                mock.patch.object(sys, "path", [*sys.path, str(packages)]):
            self.run_part("shows", True)
            by_run_sh = subprocess.run([ROOT / "bench/gpu/run.sh", self.folder / "bin/shows"], text=True, check=True,
                                       capture_output=True).stdout.strip().split(":")
        own = [path for path in seen["program"] if "site-packages" not in path or str(packages) in path]
        self.assertEqual(own, [*by_run_sh, str(self.folder.resolve() / "lib")])
        self.assertEqual(by_run_sh, ["/given", f"{packages}/nvidia/cu13/lib", f"{packages}/nvidia/cudnn/lib",
                                     "/usr/local/cuda/lib64"])
        self.assertEqual(seen["python"], "/given")

    def test_parts_of_megacpp_gpu_have_its_names_and_more_than_its_seconds(self):
        text = (ROOT / "bench/gpu/main.cpp").read_text(encoding="utf-8")
        limits = {name: int(seconds) for name, seconds in re.findall(r'\n +\{"([^"]+)", (\d+), ', text)}
        mine = {run.part: seconds for _, seconds, run in self.of.PARTS if hasattr(run, "part")}
        self.assertEqual(mine.keys(), limits.keys())
        for name, seconds in mine.items():
            before = 0 if name == "copies" else limits["copies"]
            self.assertGreaterEqual(seconds, before + limits[name] + 25, name)

    def test_megacpp_gpu_writes_its_file_after_each_check(self):
        compiler = shutil.which("c++") or shutil.which("g++")
        if compiler is None:
            self.skipTest("there is no compiler")
        (self.folder / "killed.cpp").write_text(KILLED)
        subprocess.run([compiler, "-std=c++20", "-pthread", f"-I{ROOT / 'include'}", f"-I{ROOT / 'bench/gpu'}",
                        self.folder / "killed.cpp", ROOT / "bench/gpu/report.cpp", "-o", self.folder / "killed"],
                       check=True)
        self.result.write_text("the one before")
        with open(self.result, encoding="utf-8") as before:
            done = subprocess.run([self.folder / "killed", self.result], stdout=subprocess.DEVNULL, check=False)
            self.assertEqual(before.read(), "the one before")  # its place was taken, and it was not written to
        self.assertEqual(done.returncode, 9)
        told = json.loads(self.result.read_text())
        self.assertEqual(told["device"], "none")
        self.assertEqual(told["totals"], "1 passed, 1 failed")
        self.assertEqual(told["checks"], [
            {"part": "a part", "name": "first", "passed": True, "ms": 1.5},
            {"part": "a part", "name": "second", "passed": False, "fault": 'is "bad"'}])
        self.assertFalse((self.folder / "result.json.part").exists())

    def test_prepare_needs_cudnn_and_every_program_and_fits_60_MiB(self):
        root, build = self.folder / "root", self.folder / "build"
        (root / "bench/gpu").mkdir(parents=True)
        (build / "programs").mkdir(parents=True)
        shutil.copy(ROOT / "bench/gpu/prepare.sh", root / "bench/gpu")
        self.program("cmake", f'echo "$*" >>{self.folder}/asked\n')
        self.program("strip", 'cp "$3" "$2"\n')
        self.program("ldd", "")

        def prepare():
            environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                           "MEGACPP_GPU_BUILD": str(build)}
            return subprocess.run([root / "bench/gpu/prepare.sh", self.folder / "out"], env=environment, text=True,
                                  capture_output=True, check=False)
        for name in ("megacpp_gpu", "programs/tiny-cpu", "programs/tiny-cuda"):
            done = prepare()
            self.assertEqual(done.returncode, 1, done)
            self.assertIn(f"prepare.sh: there is no {build}/", done.stderr)
            (build / name).touch()
        done = prepare()
        self.assertEqual(done.returncode, 0, done)
        packed = self.folder / "out.tar.xz"
        self.assertEqual(done.stdout.splitlines()[-1], f"{packed}: {packed.stat().st_size} bytes")
        for size, code in ((60 << 20, 0), ((60 << 20) + 1, 1)):
            self.program("tar", f'truncate -s {size} {packed}\n')
            done = prepare()
            self.assertEqual(done.returncode, code, done)
            told = f"prepare.sh: {packed} has {size} bytes, more than 62914560 (60 MiB): leave a program out"
            self.assertEqual(done.stderr.startswith(told), code == 1, done.stderr)
        for line in (self.folder / "asked").read_text().splitlines():
            if line.startswith("-S"):
                self.assertIn("-DMEGACPP_WITH_CUDNN=ON -DMEGACPP_WITH_CUTLASS=ON", line)

    def test_a_step_of_pytorch_has_the_modes_and_on_a_gpu_is_not_called_fp32(self):
        names = ("torch", "torch.nn", "torch.nn.functional")
        torch, nn, functional = (types.ModuleType(name) for name in names)
        torch.nn, nn.functional, nn.Module = nn, functional, object
        with mock.patch.dict(sys.modules, dict(zip(names, (torch, nn, functional)))), \
                mock.patch.object(sys, "path", list(sys.path)):
            peer = module(ROOT / "bench/peers/gpt_step.py")
        self.assertEqual(tuple(peer.COMPILED), self.of.TORCH_MODES)
        self.assertEqual([peer.precision_of(on_gpu, autocast) for on_gpu in (False, True) for autocast in (False, True)],
                         ["fp32", "bf16-autocast", "tf32", "bf16-autocast"])


if __name__ == "__main__":
    ROOT = Path(sys.argv[1]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
