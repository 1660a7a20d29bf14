#!/usr/bin/env python3
"""A whole program for CUDA, over the stand-in of tests/cuda, beside the same program for CPUs.

    program.py CUDA_PROGRAM CPU_PROGRAM [--on-gpu] [--tune MEGACPP_GPU] [unittest argument...]

Both are compiled from tests/cli/tiny_gpt.hpp. With --on-gpu the first one computes on a GPU, and what
needs a machine of several devices, or one that fails, is left out. MEGACPP_GPU measures products for it;
what needs a table of these is left out where it is not given.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CUDA = CPU = None
ON_GPU = "--on-gpu" in sys.argv
TUNE = sys.argv[sys.argv.index("--tune") + 1] if "--tune" in sys.argv else None
needs_stand_in = unittest.skipIf(ON_GPU, "of a machine that stands in for one with GPUs")
LISTENER = os.environ.get("MEGACPP_RANGES_LISTENER")  # ranges_listener.cpp, built
MACHINE, MEMORY, INTERNAL, USAGE = 8, 9, 1, 2
TEXT = "".join(f"{n} green bottles hanging on the wall, and if {n % 7} should fall.\n"
               for n in range(160))
# What mpirun needs as root, and for more ranks than processors, of OpenMPI 4 and 5.
MPIRUN = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
          "OMPI_MCA_rmaps_base_oversubscribe": "1",
          "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
# fp32 sums in another order, over ten steps of a model this small.
BOUND = 2e-5


def run(program, *arguments, check=0, machine="", **environment):
    done = subprocess.run([program, *map(str, arguments)], timeout=240, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True,
                          env={**os.environ, **MPIRUN, "MEGACPP_STAND_IN": machine, **environment})
    if check is not None and done.returncode != check:
        raise AssertionError(f"{arguments}: exit code {done.returncode}, not {check}\n"
                             f"{done.stdout}\n{done.stderr}")
    return done


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="megacpp-cuda-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.text = self.folder / "text"
        self.text.write_text(TEXT)

    def left_out(self, why):
        """What cannot be tested here is an error where everything is to be tested."""
        if "MEGACPP_TESTS_COMPLETE" in os.environ:
            self.fail(f"cannot be tested here: {why}")
        self.skipTest(why)

    def train(self, program, steps, *more, **options):
        """What steps told, as (loss, norm) by step."""
        told = self.folder / "told"
        told.unlink(missing_ok=True)
        run(program, "train", "--data-path", self.text, "--train-iters", steps, "--lr-decay-iters", 10,
            "--lr", "1e-2", "--eval-iters", 1, "--metrics-jsonl", told, *more, **options)
        lines = [json.loads(line) for line in told.read_text().splitlines()]
        return {line["step"]: (line["loss"], line["grad_norm"]) for line in lines if "grad_norm" in line}

    def near(self, mine, theirs):
        self.assertEqual(mine.keys(), theirs.keys())
        for step, numbers in mine.items():
            for a, b in zip(numbers, theirs[step]):
                self.assertAlmostEqual(a, b, delta=BOUND * abs(b), msg=f"step {step}")

    def test_trains_as_on_cpus(self):
        mine = self.train(CUDA, 6)
        self.assertEqual(len(mine), 6)
        self.near(mine, self.train(CPU, 6))
        self.assertEqual(mine, self.train(CUDA, 6))  # a rerun has the same bits

    def test_states_go_from_one_to_the_other(self):
        whole = self.train(CPU, 6)
        for first, second in ((CUDA, CPU), (CPU, CUDA), (CUDA, CUDA)):
            root = self.folder / "root"
            shutil.rmtree(root, ignore_errors=True)
            self.train(first, 3, "--save", root)
            told = self.train(second, 6, "--load", root, "--save", root)
            self.assertEqual(sorted(told), [4, 5, 6])
            self.near(told, {k: v for k, v in whole.items() if k > 3})

    def test_evaluates_exports_and_generates_as_on_cpus(self):
        root = self.folder / "root"
        self.train(CPU, 10, "--save", root)
        said = [json.loads(run(p, "eval", "--load", root, "--data-path", self.text, "--json").stdout)
                for p in (CUDA, CPU)]
        self.assertAlmostEqual(said[0]["loss"], said[1]["loss"], delta=BOUND * said[1]["loss"])
        texts = [run(p, "generate", "--load", root, "--prompt", "1 green", "--max-new-tokens", 20,
                     "--temperature", 0).stdout for p in (CUDA, CPU)]
        self.assertEqual(*texts)
        for name, program in (("cuda", CUDA), ("cpu", CPU)):
            run(program, "export", "--load", root, "--save", self.folder / name)
        self.assertEqual(*((self.folder / name / "model.safetensors").read_bytes()
                           for name in ("cuda", "cpu")))

    def ranges(self, *arguments, **options):
        """The ranges that a tool is told of by each thread: (name, those within it) in order. Every range
        has ended, and no name was told twice."""
        told = self.folder / "ranges"
        told.unlink(missing_ok=True)
        run(CUDA, *arguments, NVTX_INJECTION64_PATH=LISTENER, MEGACPP_RANGES=str(told), **options)
        open_ones, names = {}, {}
        for line in told.read_text().splitlines():
            thread, what, *name = line.split(" ", 2)
            around = open_ones.setdefault(thread, [("", [])])
            if what == "+":
                around[-1][1].append((name[0], []))
                around.append(around[-1][1][-1])
            elif what == "-":
                around.pop()
            else:
                names.setdefault(thread, []).append(name[0])
        for thread, around in open_ones.items():
            self.assertEqual(len(around), 1, f"{around[1:]} has not ended")
            self.assertEqual(len(names[thread]), len(set(names[thread])), names[thread])
        return [around[0][1] for around in open_ones.values()]

    @unittest.skipUnless(LISTENER, "there is no nvtx3/nvToolsExt.h")
    def test_a_tool_is_shown_tasks_and_nodes(self):
        """The tasks of a step as --trace has them, and in each its nodes as describe lists them."""
        mock = ("train", "--mock-data", "--global-batch-size", 8, "--train-iters", 4)
        trace = self.folder / "trace"
        shown, = self.ranges(*mock, "--trace", trace, "--no-cuda-graphs")
        events = json.loads(trace.read_text())["traceEvents"]
        step = [e["name"] + (f" of {e['args']['micro_batch']}" if "micro_batch" in e["args"] else "")
                for e in events if e.get("cat") == "task" and e["args"]["step"] == 4]
        self.assertGreater(len(step), 20)
        self.assertEqual([task for task, _ in shown], 4 * step)

        graphs = json.loads(run(CUDA, "describe", "--json").stdout)["graphs"]
        described = re.compile(r"(\w+) +(?:.*? = )?([^ (]+)\(.*?(?:  (\S+:\d+))?")
        for task, part, phases in (("forward(layer 1) of 1", "block", ("forward",)),
                                   ("forward(head) of 0", "head", ("forward",)),
                                   ("backward(layer 0) of 0", "block", ("dgrad", "wgrad"))):
            nodes = [described.fullmatch(n).groups() for n in list(graphs[part].values())[-1]]
            listed = [f"{op} at {line}" if line else op
                      for phase, op, line in nodes if phase in phases and op != "to"]
            self.assertGreater(len(listed), 3)
            for of_task in (nodes for name, nodes in shown if name == task):
                self.assertEqual([name for name, _ in of_task], listed)

        # The third time that tasks come together they are started as a graph, which is one range.
        kept, = self.ranges(*mock)
        begun = [name for of, tasks in kept for name in ([n for n, _ in tasks if n in step] or [of])]
        self.assertEqual(begun[:2 * len(step)], 2 * step)
        self.assertEqual(begun[2 * len(step):], 2 * [
            "clear forward to prologue(head)", "feed forward of 0", "forward(stem) to backward(stem)",
            "feed forward of 1", "forward(stem) to epilogue(the update)"])

    @unittest.skipUnless(LISTENER, "there is no nvtx3/nvToolsExt.h")
    @needs_stand_in
    def test_ranges_end_where_an_error_is_thrown(self):
        mock = ("train", "--mock-data", "--train-iters", 2, "--global-batch-size", 8)
        first, second = self.ranges(*mock, "--ranks", 2)
        self.assertEqual(first, second)
        for flags in ((), ("--no-cuda-graphs",), ("--ranks", 2)):  # ranks wait for the device amid a step
            self.ranges(*mock, *flags, check=INTERNAL, machine="lose=400")

    def refused(self, code, machine, *arguments, **environment):
        """The one sentence with which a program ends."""
        done = run(CUDA, *arguments, check=code, machine=machine, **environment)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    @needs_stand_in
    def test_what_the_machine_lacks_is_one_sentence(self):
        refused, mock = self.refused, ("train", "--mock-data", "--train-iters", 2)
        self.assertIn("CUDA finds no device to run on", refused(MACHINE, "devices=0", *mock))
        for hidden in ("", "7"):
            said = refused(MACHINE, "devices=0", *mock, CUDA_VISIBLE_DEVICES=hidden)
            self.assertIn(f'CUDA_VISIBLE_DEVICES is "{hidden}", which hides', said)
        said = refused(MACHINE, "capability=80", *mock)
        self.assertIn("has compute capability 8.0, and the kernels of this program are compiled for 9.0: "
                      "build it with -DMEGACPP_CUDA_ARCHITECTURES=80", said)
        self.assertIn("cuBLASLt 12.3.0 is older than", refused(MACHINE, "cublaslt=120300", *mock))
        self.assertIn("device 0 is not available (cudaErrorDevicesUnavailable)",
                      refused(MACHINE, "unavailable=0", *mock))
        self.assertIn("--product-type widened is for CPUs", refused(USAGE, "", *mock, "--product-type", "widened"))
        # What needs no device runs without one.
        said = run(CUDA, "describe", machine="devices=0").stdout
        self.assertIn("cuBLASLt", said)
        self.assertRegex(said, "attention  +by own tiles\n +attention is computed by megacpp's own tiles, and not by a library, since "
                               "its elements are not bf16, which libraries take\n")

    def needed(self):
        """Bytes that `describe` plans for training, and those of the product that measures speed."""
        plan = json.loads(run(CUDA, "describe", "--json", machine="devices=0").stdout)["memory"]
        return plan["in all"] + 3 * 4 * 1024**2

    @needs_stand_in
    def test_memory_that_is_needed_is_enough_and_less_is_refused(self):
        mock, needed = ("train", "--mock-data", "--train-iters", 2), self.needed()
        # As another process leaves it; nothing is loaded before.
        for load in ((), ("--load", "/nowhere")):
            said = self.refused(MEMORY, f"taken={2**32 - needed + 1}", *mock, *load)
            told = re.search(r"1 rank of (\S+) MiB each need (\S+) MiB of memory, and device 0 leaves (\S+) MiB: ", said)
            for number in told.groups():
                self.assertAlmostEqual(float(number), needed / 2**20, delta=0.005 * needed / 2**20)
        # The check of that product takes some KiB more. Less than is needed is told before it is reserved.
        for more in range(0, 2**16 + 1, 2**13):
            done = run(CUDA, *mock, machine=f"bytes={needed + more}", check=None)
            if done.returncode != 0:
                self.assertEqual(done.returncode, MEMORY)
                self.assertIn("of memory, and device 0 leaves", done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)

    @needs_stand_in
    def test_memory_that_is_taken_is_told_beside_the_plan(self):
        bench = ("train", "--mock-data", "--bench-json", "--warmup", 1, "--train-iters", 3)
        told = json.loads(run(CUDA, *bench, machine="taken=12345").stdout.splitlines()[-1])
        self.assertEqual(told["device_memory"], {"before_bytes": 12345, "taken_bytes": told["planned_bytes"]})
        self.assertIsNone(json.loads(run(CPU, *bench).stdout.splitlines()[-1])["device_memory"])

    @needs_stand_in
    def test_memory_that_another_process_takes_meanwhile_is_one_sentence(self):
        """As memory of the device is reserved, piece by piece."""
        mock, pieces = ("train", "--mock-data", "--train-iters", 2), 0
        while (done := run(CUDA, *mock, machine=f"malloc={pieces}", check=None)).returncode != 0:
            self.assertEqual(done.returncode, MEMORY, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertRegex(done.stderr, r"cannot reserve \d+ MiB of device 0 for [^,]*, which has \d+ MiB left: use ")
            pieces += 1
        self.assertGreater(pieces, 6)

    @needs_stand_in
    def test_a_device_that_is_lost_leaves_the_last_state(self):
        root = self.folder / "root"
        whole = self.train(CPU, 4)
        self.train(CPU, 2, "--save", root)
        # As it is opened, while products are checked, weights are loaded, and in a step.
        for after in (0, 3, 25, 90, 400):
            for flags, told in (((), "behind a graph of kernels, which --no-cuda-graphs starts one by one: "),
                                (("--no-cuda-graphs",), "behind the kernel of ")):
                done = run(CUDA, "train", "--load", root, "--save", root, "--data-path", self.text,
                           "--train-iters", 4, *flags, check=INTERNAL, machine=f"lose={after}")
                self.assertIn("cudaErrorLaunchFailure", done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                if after == 400:
                    self.assertIn(told, done.stderr)
        self.assertIn("holds the state of step 2", done.stderr)
        self.near(self.train(CUDA, 4, "--load", root), {k: v for k, v in whole.items() if k > 2})

    def test_ranks_share_a_device(self):
        root = self.folder / "root"
        told = self.train(CUDA, 4, "--ranks", 2, "--global-batch-size", 8, "--save", root)
        self.near(told, self.train(CPU, 4, "--ranks", 2, "--global-batch-size", 8))
        self.near(self.train(CPU, 5, "--load", root, "--global-batch-size", 8),
                  self.train(CUDA, 5, "--load", root, "--ranks", 2, "--global-batch-size", 8))

    @needs_stand_in
    def test_ranks_say_how_they_exchange(self):
        """As threads, and as processes, which start under mpirun."""
        mock = ("train", "--mock-data", "--train-iters", 1, "--global-batch-size", 8)
        said = run(CUDA, *mock, "--ranks", 2, "--device", 1, machine="devices=2")
        self.assertIn("2 ranks that exchange within the device, each micro-batch", said.stdout)
        self.assertIn(", device 1 (stand-in), cuBLASLt", said.stdout)
        self.assertIn(", without TF32, attention by own tiles, ", said.stdout)
        threads = re.findall(r"loss: .* grad norm: [0-9.]+", said.stdout)
        self.assertEqual(len(threads), 1, said.stdout)
        if shutil.which("mpirun") is None:
            self.left_out("there is no mpirun")
        processes = run("mpirun", "-n", 2, CUDA, *mock, machine="devices=2")
        self.assertIn("2 ranks that exchange through memory of the host, each", processes.stdout)
        self.assertIn(", device 0 (stand-in), cuBLASLt", processes.stdout)
        self.assertEqual(threads, re.findall(r"loss: .* grad norm: [0-9.]+", processes.stdout))
        # A device that has room for one rank: a process each, and not two ranks of one.
        planned = float(re.search(r"([0-9.]+) MiB planned", said.stdout).group(1))
        room = f"bytes={int(1.6 * planned) << 20} devices="
        run("mpirun", "-n", 2, CUDA, *mock, machine=room + "2")
        for program in ((CUDA, *mock, "--ranks", 2), ("mpirun", "-n", 2, CUDA, *mock, "--device", 0)):
            refused = run(*program, machine=room + "2", check=MEMORY)
            self.assertIn("of memory, and device 0 leaves", refused.stderr)

    @needs_stand_in
    def test_another_device_is_refused_in_a_sentence(self):
        mock = ("train", "--mock-data", "--train-iters", 1)
        said = run(CUDA, *mock, "--device", 2, machine="devices=2", check=USAGE)
        self.assertIn("there is no device 2: 2 are visible, numbers 0 to 1", said.stderr)
        self.assertEqual(said.stderr.count("\n"), 1, said.stderr)
        said = run(CPU, *mock, "--device", 0, check=USAGE)
        self.assertIn("--device chooses among GPUs, and this program computes on CPUs", said.stderr)

    def test_tf32_is_used_where_it_is_asked_for(self):
        mock = ("train", "--mock-data", "--train-iters", 1)
        for flags, told in (((), ", without TF32, "), (("--tf32",), ", by TF32, ")):
            self.assertIn(told, run(CUDA, *mock, *flags).stdout)
        exact, rounded = self.train(CUDA, 2), self.train(CUDA, 2, "--tf32")
        for step, (loss, norm) in exact.items():
            if not ON_GPU:  # a GPU may compute products this small without its units for TF32
                self.assertNotEqual(norm, rounded[step][1])
            self.assertAlmostEqual(loss, rounded[step][0], delta=1e-2 * loss)
            self.assertAlmostEqual(norm, rounded[step][1], delta=2e-2 * norm)
        for program, told in ((CPU, "is for GPUs, and attention on CPUs"),
                              (CUDA, "is for programs of bf16")):
            said = run(program, *mock, "--no-deterministic-attention", check=USAGE)
            self.assertIn(f"--no-deterministic-attention {told}", said.stderr)
        said = run(CPU, *mock, "--no-cuda-graphs", check=USAGE)
        self.assertIn("--no-cuda-graphs is for GPUs, and this program computes on CPUs", said.stderr)
        self.assertEqual(self.train(CUDA, 6), self.train(CUDA, 6, "--no-cuda-graphs"))
        said = run(CPU, *mock, "--tf32", check=USAGE)
        self.assertIn("--tf32 is for GPUs, and this program computes on CPUs", said.stderr)

    def test_a_cpu_goes_on_from_a_state_with_tf32(self):
        state, mock = self.folder / "rounded", ("train", "--mock-data", "--train-iters")
        run(CUDA, *mock, 1, "--tf32", "--save", state)
        said = run(CPU, *mock, 2, "--load", state, check=USAGE)
        self.assertIn("give --tf32 false to go on from a state that has it", said.stderr)
        said = run(CPU, *mock, 2, "--load", state, "--tf32", "false")
        self.assertIn("tf32: true -> false (may change)", said.stdout)

    @unittest.skipIf(TUNE is None, "without a program that measures products")
    def test_products_are_computed_as_a_table_says(self):
        described, table = self.folder / "described.json", self.folder / "table.json"
        shapes = json.loads(run(CUDA, "describe", "--json", machine="devices=0").stdout)["product_shapes"]
        of_speed = {"kind": "forward", "M": 1024, "N": 1024, "K": 1024, "a": "f32", "b": "f32", "out": "f32"}
        self.assertEqual(shapes.count(of_speed), 1)
        shapes.remove(of_speed)  # which takes seconds without a GPU
        described.write_text(json.dumps({"product_shapes": shapes}))

        def tune(*more, check=0):
            # A GPU measures products so small for minutes: of a few of them.
            bound = ("--seconds", 20) if ON_GPU and "--seconds" not in more else ()
            return run(TUNE, "--tune", table, "--products", described, *bound, *more, check=check,
                       machine="way=9000 way=1000").stdout
        # Of what was measured in the time that there was, the file is whole.
        self.assertRegex(tune("--seconds", 0), r"(?m)^\d+ products were left out, since 0 seconds were over")
        self.assertFalse(table.exists())
        before = 0
        if not ON_GPU:  # of a run that ends in the middle, too, and the next one goes on
            run(TUNE, "--tune", table, "--products", described, check=1, machine="way=9000 way=1000 lose=500")
            before = len(json.loads(table.read_text())["machines"][0]["products"])
            self.assertTrue(0 < before < len(shapes) - 1)
        tuned = before + int(re.search(rf"(\d+) of them are new, {before} were there before", tune())[1])
        machine, = json.loads(table.read_text())["machines"]
        self.assertEqual(len(machine["products"]), tuned)
        if not ON_GPU:
            self.assertIn(f"0 of them are new, {tuned} were there before", tune())
        for one in machine["products"] if not ON_GPU else []:
            self.assertAlmostEqual(one["first_seconds"] / one["seconds"], 9, delta=0.5)
        # All that training, evaluation and generation prepare is in the list of `describe`.
        flags = ("--product-table", table)
        said = run(CUDA, "train", "--mock-data", "--train-iters", 1, *flags).stdout
        taken, of = map(int, re.search(r", (\d+) of (\d+) products by the product table, ", said).groups())
        self.assertTrue(0 < taken < of if ON_GPU else taken == of - 1, said)
        root = self.folder / "root"
        mine = self.train(CUDA, 4, *flags, "--save", root)
        self.assertEqual(mine, self.train(CUDA, 4, *flags))  # a rerun has the same bits
        self.near(mine, self.train(CPU, 4))
        for command in (("eval", "--data-path", self.text, "--json"),
                        ("generate", "--prompt", "1 green", "--max-new-tokens", 8, "--temperature", 0)):
            texts = [run(CUDA, *command, "--load", root, *with_table).stdout for with_table in (flags, ())]
            if command[0] == "generate" and not ON_GPU:  # where other bits may be another token
                self.assertEqual(*texts)
        # A way that the library refuses is told, and the next one is taken.
        broken = self.folder / "broken.json"
        broken.write_text(re.sub(r'"algorithm": ?"[0-9a-f]+"', f'"algorithm": "{"00" * 64}"', table.read_text()))
        if not ON_GPU:
            for command in (("train", "--mock-data", "--train-iters", 1),
                            ("generate", "--load", root, "--prompt", "1", "--max-new-tokens", 2)):
                done = run(CUDA, *command, "--product-table", broken)
                self.assertRegex(done.stdout + done.stderr,
                                 "cuBLASLt refuses to compute in the product table's way of a forward product")
        # For another version of the library it is not used, and that is told once, of several ranks, too.
        other = self.folder / "other.json"
        other.write_text(table.read_text().replace(f'"cublaslt": {machine["cublaslt"]}', '"cublaslt": 70000'))
        done = run(CUDA, "train", "--mock-data", "--train-iters", 1, "--ranks", 2, "--global-batch-size", 8,
                   "--product-table", other)
        self.assertEqual((done.stdout + done.stderr).count("has nothing for"), 1, done)
        self.assertNotIn("by the product table", done.stdout)
        if not ON_GPU and shutil.which("mpirun") is not None:  # ways decide bits, on each of several machines
            mock = ("train", "--mock-data", "--train-iters", 1, "--global-batch-size", 8, "--product-table")
            copy = self.folder / "copy.json"
            shutil.copy(table, copy)
            run("mpirun", "-n", 1, CUDA, *mock, table, ":", "-n", 1, CUDA, *mock, copy)
            done = run("mpirun", "-n", 1, CUDA, *mock, table, ":", "-n", 1, CUDA, *mock, other, check=None)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("has another file of --product-table than rank 0: give all of them copies of one",
                          done.stdout + done.stderr)

    def test_a_product_table_that_is_of_no_use_is_refused_in_a_sentence(self):
        table = self.folder / "table.json"
        for text, says in (("", "table.json is empty"), ('{"format": ', "table.json is not valid JSON at byte 12"),
                           ('{"format": "megacpp-product-table", "version": 2, "machines": []}',
                            'table.json: field "version" is 2, but must be from 1 to 1'),
                           (None, "table.json does not exist")):
            table.unlink(missing_ok=True)
            if text is not None:
                table.write_text(text)
            said = run(CUDA, "train", "--mock-data", "--train-iters", 1, "--product-table", table, check=USAGE,
                       machine="devices=1").stderr
            self.assertIn(says, said)
            self.assertEqual(said.count("\n"), 1, said)
            if TUNE is not None and text is not None:
                described = self.folder / "described.json"
                described.write_text('{"product_shapes": []}')
                said = run(TUNE, "--tune", table, "--products", described, check=USAGE).stderr
                self.assertIn(says, said)
                self.assertEqual(table.read_text(), text)  # what it does not know it does not write over
        said = run(CPU, "train", "--mock-data", "--train-iters", 1, "--product-table", table, check=USAGE).stderr
        self.assertIn("--product-table is for GPUs, and this program computes on CPUs", said)

    @unittest.skipIf(TUNE is None, "without a program that measures products")
    def test_words_that_tuning_does_not_know_are_refused(self):
        table, described = self.folder / "table.json", self.folder / "described.json"
        for words in (("--tune",), ("--tune", table, "--seconds", "-1"), ("--tune", table, "--seconds", "1x"),
                      ("--tune", table, "--tune", table), ("--tune", table, "--tf32", "--tf32"),
                      ("--tune", table, "--only", "copies"), ("--tune", table, "--products")):
            self.assertIn("usage: megacpp_gpu --tune TABLE", run(TUNE, *words, check=USAGE).stderr)
        for text, says in (("{}", 'field "product_shapes" is missing'),
                           ('{"product_shapes": [{"kind": "forward"}]}', 'has no field "product_shapes[0].M"')):
            described.write_text(text)
            said = run(TUNE, "--tune", table, "--products", described, check=USAGE).stderr
            self.assertIn(f"described.json: {says}", said)
        described.write_text('{"product_shapes": []}')
        said = run(TUNE, "--tune", self.folder / "none" / "table.json", "--products", described, check=6).stderr
        self.assertIn("cannot write", said)
        self.assertFalse(table.exists())

    def test_profile_lists_nodes_with_times(self):
        said = run(CUDA, "train", "--mock-data", "--train-iters", 4, "--profile").stdout
        rows = re.findall(r"(?m)^\w\S* +\d+  (\S+) +(?:forward|dgrad|wgrad|epilogue) +\d+ +\d+ +([0-9.]+) +[0-9.]+% ",
                          said)
        rest = re.findall(r"(?m)^others +\d+  of less than 0.05% each +([0-9.]+) ", said)
        self.assertLessEqual({"linear", "attention", "attention_grad", "adamw"}, {op for op, _ in rows}, said)
        total, wall = map(float, re.search(r"sum of nodes ([0-9.]+) ms of ([0-9.]+) ms wall", said).groups())
        times = [float(ms) for _, ms in rows] + [float(ms) for ms in rest]
        self.assertAlmostEqual(sum(times), total, delta=0.001 * len(times))
        self.assertLess(total, wall)

    def test_exchanges_on_a_device_are_checked(self):
        flags = ("--ranks", 2, "--global-batch-size", 8)
        self.assertEqual(self.train(CUDA, 2, *flags, "--check-collectives"), self.train(CUDA, 2, *flags))


if __name__ == "__main__":
    CUDA, CPU = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *(word for word in sys.argv[3:] if word not in ("--on-gpu", "--tune", TUNE))])
