#!/usr/bin/env python3
"""The command line of a program: what it does, and that bad input is one sentence and an exit code.

    cli.py PROGRAM [--part K/N] [unittest argument...]

PROGRAM is compiled from tiny_gpt.hpp. With --part every N-th test runs, from the K-th on.
"""

import base64
import calendar
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import http.server
import json
import math
import os
import platform
import random
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest
import unittest.mock
import urllib.request
import xml.dom.minidom
from pathlib import Path

PROGRAM = None
# Sanitizers reserve memory of their own; their look for leaks takes descriptors, and none traces it.
SANITIZED, WITHOUT_LEAKS = False, None
USAGE, MISMATCH, DATA, MODEL, OUTPUT, NONFINITE, MEMORY, INTERRUPTED = 2, 3, 4, 5, 6, 7, 9, 10
NOBODY = 65534

TEXT = "".join(f"{n} green bottles hanging on the wall, and if {n % 7} should fall.\n"
               for n in range(160))


def run(*arguments, check=0, **options):
    """Runs the program; a `check` of None accepts any exit code."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], timeout=240,
                          **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})
    if check is not None and done.returncode != check:
        raise AssertionError(f"{arguments}: exit code {done.returncode}, not {check}\n"
                             f"{(done.stdout or b'').decode()}\n{done.stderr.decode()}")
    return done


def contents(folder):
    """Names and hashes of the files of a folder and those in it."""
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in Path(folder).rglob("*") if p.is_file()}


def failing(call, problem):
    """A function for a child: from then on its system call of this number fails with `problem`."""
    # seccomp: of the number of the call, at offset 0, a jump over the error to what allows it.
    code = b"".join(struct.pack("HBBI", *line) for line in (
        (0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50000 | problem), (0x06, 0, 0, 0x7fff0000)))
    lines = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(code) // 8, ctypes.addressof(lines))
    prctl = ctypes.CDLL(None).prctl

    def begin():
        assert lines and prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program) == 0
    return begin


def newest(root):
    """The folder of the last step saved."""
    return max(Path(root).glob("iter_*"))


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="megacpp-cli-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.text = self.folder / "text"
        self.text.write_text(TEXT)

    def line(self):
        """A file of one line of the text, where little will do."""
        path = self.folder / "line"
        path.write_text(TEXT[:TEXT.index("\n") + 1])
        return path

    def train(self, *arguments, check=0, steps=8, **options):
        given = {str(a).partition("=")[0] for a in arguments if isinstance(a, str)}
        usual = {"--data-path": self.text, "--train-iters": steps, "--eval-iters": 1}
        if SANITIZED:  # two would wait for each other at steps as small as these
            usual["--threads"] = 1
        return run("train", *(word for name, value in usual.items() if name not in given
                              for word in (name, value)), *arguments, check=check, **options)

    def saved(self, *arguments, **options):
        """What --save has written: a root with the state of a run of some steps."""
        model = self.folder / "model"
        self.train("--save", model, *arguments, **options)
        return model

    def model(self, *arguments, **options):
        """The same as a plain model folder, as anyone may have written it."""
        folder = self.folder / "plain"
        shutil.copytree(newest(self.saved(*arguments, **options)), folder)
        for name in ("megacpp_state.json", "optimizer.safetensors"):
            (folder / name).unlink()
        return folder

    @contextlib.contextmanager
    def held(self, *arguments, env=None):
        """A training run among its first steps, which wait until the function that comes with it is
        called; that returns what the run says on the standard error up to its end."""
        reader, writer = os.pipe()
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)  # room for the lines of some 25 steps
        data = () if "--data-path" in arguments else ("--mock-data",)
        process = subprocess.Popen([PROGRAM, "train", *data, "--log-interval", "1", *map(str, arguments)],
                                   stdout=writer, stderr=subprocess.PIPE, env=env)
        os.close(writer)

        def on():
            while os.read(reader, 1 << 16):
                pass
            return process.communicate(timeout=120)[1].decode()
        try:
            said = b""
            while b"step 1/" not in said:
                self.assertTrue(select.select([reader], [], [], 60)[0])
                said += os.read(reader, 256)
                self.assertNotEqual(said[-1:], b"")
            yield process, on
        finally:
            os.close(reader)
            process.kill()
            process.wait()
            process.stderr.close()

    def left_out(self, why):
        """What cannot be tested here is an error where everything is to be tested."""
        if "MEGACPP_TESTS_COMPLETE" in os.environ:
            self.fail(f"cannot be tested here: {why}")
        self.skipTest(why)

    def refused(self, code, *arguments, says="", **options):
        """The program must end with `code` and one sentence with `says`, notes on the machine apart."""
        done = run(*arguments, check=code, **options)
        lines = [line for line in done.stderr.decode().splitlines()
                 if not line.startswith("this program was compiled without")
                 and not re.match(r"oneDNN \S+ fails in a product", line)]
        self.assertEqual(len(lines), 1, f"{arguments}: {lines}")
        self.assertTrue(lines[0].startswith(Path(PROGRAM).name + ": "), lines[0])
        self.assertIn(says, lines[0])
        return lines[0]


class Help(Case):
    def test_help_and_version(self):
        text = run("--help").stdout.decode()
        for command in ("train", "eval", "generate", "export", "describe"):
            self.assertIn(f"\n  {command} ", text)
            own = run(command, "--help").stdout.decode()
            self.assertEqual("--threads N" in own, command != "export")
            self.assertIn("--config FILE.json", own)
        self.assertIn("[default: 0.001]", run("train", "--help").stdout.decode())
        self.assertIn("[compiled in: 128]", run("train", "--help").stdout.decode())
        self.assertRegex(run("--version").stdout.decode(),
                         r"^tiny_gpt \(megacpp \d+\.\d+\.\d+, commit \w+\)\n$")

    def test_usage(self):
        self.refused(USAGE, says="train, eval, generate, export, describe")
        self.refused(USAGE, "trian", says='"trian"; did you mean train?')
        self.refused(USAGE, "traim", "--mock-data", says='"traim"; did you mean train?')
        self.refused(USAGE, "serve", says='"serve"; --help shows what there is')
        self.refused(USAGE, "train", "eval", says="two commands")
        self.refused(USAGE, "train", "extra", says='"extra"')
        self.refused(USAGE, "--lr", "1", says="--lr")
        self.refused(USAGE, "train", "--train-itres", "3", says="did you mean --train-iters?")
        self.refused(USAGE, "train", "--max-iters", "3", says="--max-iters; it is --train-iters here")
        self.refused(USAGE, "train", "--batch_size=3", says="MICRO_BATCH of megacpp_add_preset")
        self.refused(USAGE, "train", "--tp", "2", says="TP of megacpp_add_preset")
        self.refused(USAGE, "train", "--dtype", "bf16", says="PRECISION of megacpp_add_preset")
        # No command is sent to a flag that it does not have.
        hint = self.refused(USAGE, "export", "--batch-size", "4", says="or the struct of megacpp_add_run")
        self.assertNotIn("--global-batch-size", hint)
        self.refused(USAGE, "eval", "--num-epochs", "4", says="for train, --train-iters gives steps")
        self.refused(USAGE, "train", "-lr", "3", says="unknown flag -lr; did you mean --lr?")
        self.refused(USAGE, "train", "--seed", 10**30, says="at most 9223372036854775807")
        self.refused(USAGE, "train", "--seed", -10**30, says="at least 0")
        self.refused(DATA, "train", "--data-path", "no\nfile\n", says="no?file?")
        self.refused(USAGE, "train", "--temperature", "1", says="--temperature")
        self.refused(USAGE, "train", says="--data-path")
        self.refused(USAGE, "eval", "--data-path", self.text, says="--load")
        self.refused(USAGE, "generate", says="--load")
        self.refused(USAGE, "train", "--lr", says="--lr needs one value")
        self.refused(USAGE, "train", "--lr", "--save", "x", says="--lr needs one value")
        self.refused(USAGE, "train", "--mock-data=", says="--mock-data= has no value")
        # Nothing that is given is left unread.
        for words in (("--save", "run", "train"), ("--load=b", "train"), ("--config", "x", "train"),
                      ("export", "--load", "b", "--save", "x", "--", "--dtype", "bf16"),
                      ("train", "--data-path", self.text, "--lr", 1, "--", "--train-iters", 2)):
            flag = next(w for w in reversed(words) if str(w).startswith("--"))
            self.refused(USAGE, *words, says=f'{flag.partition("=")[0]} stands before the command')
        self.refused(USAGE, "foo", "train", "--mock-data", says='unknown argument "foo"')
        self.refused(USAGE, "train", "--lr", 1, "--", "foo", says='unknown argument "foo"')
        self.refused(USAGE, "--top-k", 1, "train", says="--top-k is a flag of generate")
        # It does not take what comes next.
        for flag, word in (("lr", "1"), ("save", "--profile"), ("config", "x"), ("metrics-jsonl", "x")):
            self.refused(USAGE, "train", "--mock-data", f"--{flag}=", word,
                         says=f"--{flag}= has no value; give --{flag}=VALUE, or leave")
        # argparse takes the last of a flag that is repeated.
        done = run("train", "--data-path", self.text, "--train-iters", 5, "--eval-iters", 0, "--train-iters", 1,
                   "--lr", 1, "--lr", 1)
        self.assertIn("given several times, of which the last counts: --train-iters\n", done.stderr.decode())
        self.assertIn("1 step in", done.stdout.decode())
        done = run("train", "--data-path", "a.txt", "--lr", "1", "--data-path", "b.txt", check=USAGE)
        self.assertIn('--data-path takes one value, but is given "a.txt" and "b.txt"; give one', done.stderr.decode())
        self.assertIn("of which all count: --data-path\n", done.stderr.decode())
        # All that is wrong is told at once, each in a line of its own.
        done = run("train", "--fp16", "--num-layers", 3, "--foo\nbar", 1, "--lr", "x", "--micro-batch-size", 4, check=USAGE)
        lines = done.stderr.decode().splitlines()
        self.assertEqual(lines[0], f"{Path(PROGRAM).name}: 4 things are refused:")
        for line, says in zip(lines[1:], ("unknown flag --fp16; no program computes in fp16", "unknown flag --foo?bar; ",
                                          '--lr is "x", but must be', "--num-layers is 3, but tiny_gpt"), strict=True):
            self.assertTrue(line.startswith(f"  {says}"), line)
        done = run("train", "--mock-data", "--train-iters", 1, "--num-layers", 2, "--use-flash-attn",
                   "--use-mcore-models")
        self.assertIn("flags that agree with this program: --num-layers; without effect here: --use-flash-attn, "
                      "--use-mcore-models\n", done.stderr.decode())
        # A launcher may say twice what it wants.
        self.refused(USAGE, "train", "--lr", "1", "--lr", "1", says="--data-path")

    def test_flags_out_of_range(self):
        for flag, value in (("lr", "nan"), ("lr", "inf"), ("lr", "-1"), ("lr", "abc"), ("lr", " "),
                            ("train-iters", "0"), ("train-iters", "-5"), ("train-iters", "1e3"),
                            ("global-batch-size", "0"), ("clip-grad", "-1"), ("adam-beta1", "1"),
                            ("adam-beta2", "2"), ("adam-eps", "0"), ("weight-decay", "nan"),
                            ("log-interval", "0"), ("eval-interval", "0"), ("threads", "-1"),
                            ("threads", "1000000"), ("seed", "-1"), ("lr-decay-style", "cosin"),
                            ("tokenizer-type", "words"), ("product-type", "fp8"), ("profile", "maybe")):
            with self.subTest(flag=flag, value=value):
                self.refused(USAGE, "train", "--mock-data", f"--{flag}={value}", says=f"--{flag} ")
        for flag in ("lr", "min-lr", "weight-decay", "clip-grad"):  # 0 in fp32
            self.refused(USAGE, "train", "--mock-data", f"--{flag}", "1e-46",
                         says=f'--{flag} is "1e-46", but must be 0 or at least 1.4')
        run("train", "--mock-data", "--train-iters", 1, "--lr", "1e-44", "--min-lr", 0,
            "--weight-decay", 0)
        for flag, value in (("temperature", "-1"), ("top-p", "0"), ("top-p", "1.1"),
                            ("top-k", "-1"), ("max-new-tokens", "-1")):
            with self.subTest(flag=flag, value=value):
                self.refused(USAGE, "generate", f"--{flag}={value}", says=f"--{flag} ")

    def test_flags_that_contradict_each_other(self):
        self.refused(USAGE, "train", "--mock-data", "--min-lr", 1, says="--min-lr")
        self.refused(USAGE, "train", "--mock-data", "--global-batch-size", 6, says="multiple")
        self.refused(USAGE, "train", "--mock-data", "--train-iters", 5, "--lr-warmup-iters", 5,
                     says="--lr-warmup-iters")
        self.refused(USAGE, "train", "--mock-data", "--lr-decay-style", "WSD",
                     says="--lr-wsd-decay-iters")
        self.refused(USAGE, "train", "--mock-data", "--data-path", self.text, says="--mock-data")
        self.refused(USAGE, "train", "--mock-data", "--split", "1,2,3,4", says="--split")

        # Keys of tokens in a step are 32 bits wide: 2^31 tokens, 32 a sequence.
        self.refused(USAGE, "train", "--mock-data", "--global-batch-size", 2**26 + 4,
                     says=f"at most {2**26}")

    def test_flags_that_would_change_nothing(self):
        ids = ("--data-path", self.text, "--data-type", "u16")
        steady = ("--mock-data", "--lr-decay-style", "constant")
        saving = ("--save", self.folder / "root")
        for command, says in ((("--mock-data", "--keep-latest-k", 2), "without --save"),
                              (("--mock-data", "--max-shard-size", "1GB"), "without --save"),
                              (("--mock-data", "--keep-best", "--eval-iters", 1), "without --save"),
                              ((*saving, "--mock-data", "--keep-best"), "only with --eval-iters"),
                              ((*saving, "--data-path", self.text, "--eval-iters", 0, "--keep-best"),
                               "nothing is evaluated"),
                              ((*saving, "--data-path", self.text, "--split", "90", "--keep-best"),
                               "--split 90 leaves nothing to validate"),
                              (("--mock-data", "--finetune"), "without --load"),
                              (("--mock-data", "--warmup", 2), "without --bench-json"),
                              (("--mock-data", "--tokenizer-type", "byte"), "--mock-data contradict"),
                              (("--mock-data", "--data-type", "u16"), "--mock-data contradict"),
                              (("--bench-json", "--tokenizer-type", "char"), "without --data-path"),
                              (("--mock-data", "--sample-prompt", 1), "without --sample-interval"),
                              (("--mock-data", "--max-new-tokens", 1), "without --sample-interval"),
                              (("--bench-json", "--sample-interval", 1), "number of steps"),
                              ((*ids, "--tokenizer-type", "byte"), "need no tokenizer"),
                              ((*steady, "--lr-wsd-decay-iters", 9), "without --lr-decay-style WSD"),
                              (("--mock-data", "--lr-wsd-decay-style", "cosine"), "style WSD"),
                              (("--mock-data", "--eval-interval", 5), "only with --eval-iters"),
                              (("--bench-json", "--eval-interval", 5), "only with --eval-iters"),
                              (("--bench-json", "--log-interval", 5), "shows no progress"),
                              (("--bench-json", "--exit-duration-in-mins", 5), "number of steps"),
                              (("--bench-json", "--show-mask", 1), "contradict each other"),
                              ((*ids, "--chat-keys", "user=q,assistant=a"), "without --data-type chat"),
                              (("--mock-data", "--stop-after-no-better", 2), "only with --eval-iters"),
                              (("--data-path", self.text, "--eval-iters", 0, "--stop-after-no-better", 2),
                               "--eval-iters 0 asks for none"),
                              (("--data-path", self.text, "--split", "90", "--stop-after-no-better", 2),
                               "--split 90 leaves nothing to validate")):
            with self.subTest(command=command):
                sentence = self.refused(USAGE, "train", "--train-iters", 1, *command, says=says)
                self.assertTrue(any(f": {flag} " in sentence for flag in command), sentence)
        run("train", "--mock-data", "--train-iters", 1, "--stop-after-no-better", 0)
        # Lines of Megatron-LM have these all the same, so that they are told.
        for command, told in (((*steady, "--min-lr", 0, "--lr-decay-iters", 9), "--min-lr, --lr-decay-iters"),
                              (("--data-path", self.text, "--eval-iters", 0, "--eval-interval", 5), "--eval-interval"),
                              (("--mock-data", "--tokenizer-type", "NullTokenizer"), "--tokenizer-type"),
                              (("--mock-data", "--save-interval", 2), "--save-interval"),
                              (("--mock-data", "--profile", "--profile-step-start", 1), "--profile-step-start")):
            done = run("train", "--train-iters", 1, *command)
            self.assertIn(f"without effect here: {told}\n", done.stderr.decode())
        self.refused(USAGE, "generate", "--load", self.folder, "--ids", "--prompt", 1,
                     "--tokenizer-type", "byte", says="--ids")
        self.refused(USAGE, "eval", "--load", self.folder, *ids, "--tokenizer-type", "byte",
                     says="need no tokenizer")
        for flag in (("--json",), ("--num-samples", 2), ("--batch-size", 2), ("--logprobs",)):
            self.refused(USAGE, "generate", "--load", self.folder, "--chat", *flag,
                         says=f": {flag[0]} changes nothing in a conversation")
        for greedy in (("--greedy",), ("--temperature", 0)):
            for flag, value in (("--top-k", 5), ("--top-p", 0.5), ("--seed", 1)):
                self.refused(USAGE, "generate", "--load", self.folder, *greedy, flag, value,
                             says=f": {flag} changes nothing")
        # A run that goes on has the schedule and the evaluations of its state.
        root = self.saved("--lr-decay-style", "WSD", "--lr-wsd-decay-iters", 2)
        run("train", "--load", root, "--lr-wsd-decay-iters", 3, "--train-iters", 9)
        shutil.rmtree(root)
        root = self.saved("--lr-decay-style", "constant", "--eval-iters", 0)
        new = self.folder / "new"
        new.mkdir()
        plain = self.folder / "weights"
        run("export", "--load", root, "--save", plain)
        for flags, says in ((("--lr-wsd-decay-iters", 9), "without --lr-decay-style WSD"),
                            (("--lr-wsd-decay-style", "cosine"), "without --lr-decay-style WSD"),
                            (("--keep-best",), "nothing is evaluated"),
                            (("--stop-after-no-better", 1), "--eval-iters 0 asks for none")):
            before = contents(root)
            with self.subTest(flags=flags):
                sentence = self.refused(USAGE, "train", "--load", root, "--save", root,
                                        "--train-iters", 9, *flags, says=says)
                self.assertIn(f": {flags[0]} ", sentence)
                self.assertEqual(contents(root), before)
        for start in (("--load", new, "--save", new), ("--load", plain), ("--load", root, "--finetune")):
            self.refused(USAGE, "train", *start, "--data-path", self.text, "--lr-wsd-decay-iters", 9,
                         says="--lr-wsd-decay-iters changes nothing without --lr-decay-style WSD")
        run("train", "--load", root, "--lr-decay-style", "cosine", "--min-lr", "1e-5", "--eval-iters", 1,
            "--eval-interval", 5, "--train-iters", 9)
        # A file of flags may serve many commands.
        config = self.folder / "run.json"
        config.write_text(json.dumps({"save-interval": 2, "keep-latest-k": 2, "finetune": True,
                                      "max-shard-size": "1GB", "warmup": 2, "tokenizer-type": "byte",
                                      "train-iters": 1}))
        run("train", "--config", config, "--mock-data")

    def test_a_batch_that_grows(self):
        metrics = self.folder / "metrics"
        growing = ("train", "--mock-data", "--global-batch-size", 12, "--rampup-batch-size")
        for numbers in ((4, 4, 16), ("4 4 16",)):
            run(*growing, *numbers, "--train-iters", 6, "--metrics-jsonl", metrics)
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            self.assertEqual([line["tokens"] // 32 for line in lines], [4, 4, 8, 12, 12, 12])
        self.refused(USAGE, *growing, 4, 4, says="must be 3 whole numbers above 0: START INCREMENT")
        self.refused(USAGE, *growing, 2, 5, 16, says="must be a multiple of 4")
        self.refused(USAGE, *growing, 4, 4, 16, "--bench-json", says="contradict each other")

    def test_what_is_compiled_in(self):
        agreeing = {"micro-batch-size": 4, "seq-length": 32, "tensor-model-parallel-size": 1,
                    "pipeline-model-parallel-size": 1, "context-parallel-size": 1,
                    "expert-model-parallel-size": 1, "expert-tensor-parallel-size": 1,
                    "sequence-parallel": "false", "use-distributed-optimizer": "false", "num-layers": 2, "hidden-size": 32,
                    "num-virtual-stages-per-pipeline-rank": 1,
                    "num-layers-per-virtual-pipeline-stage": 0,
                    "decoder-first-pipeline-num-layers": 0,
                    "decoder-last-pipeline-num-layers": 0,
                    "account-for-embedding-in-pipeline-split": "false",
                    "account-for-loss-in-pipeline-split": "false",
                    "num-attention-heads": 2, "num-query-groups": 2, "ffn-hidden-size": 64,
                    "num-experts": 0, "moe-ffn-hidden-size": 0, "moe-router-topk": 0,
                    "vocab-size": 128, "bf16": "false", "recompute-granularity": "none",
                    "recompute-activations": "false", "recompute-num-layers": 0,
                    "recompute-method": "none",
                    "accumulate-allreduce-grads-in-fp32": "true",
                    "moe-grouped-gemm": "true",
                    "moe-router-load-balancing-type": "none", "moe-aux-loss-coeff": 0,
                    "numerics": "fast"}
        run("train", "--mock-data", "--train-iters", 1,
            *(f"--{flag}={value}" for flag, value in agreeing.items()))
        for flag, value in {**dict.fromkeys(set(agreeing) - {"sequence-parallel"}, 3),
                            "account-for-embedding-in-pipeline-split": "true",
                            "account-for-loss-in-pipeline-split": "true",
                            "use-distributed-optimizer": "true", "bf16": "true", "recompute-granularity": "full",
                            "recompute-activations": "true", "recompute-method": "block",
                            "accumulate-allreduce-grads-in-fp32": "false",
                            "moe-grouped-gemm": "false",
                            "moe-router-load-balancing-type": "aux_loss",
                            "numerics": "batch_invariant"}.items():
            with self.subTest(flag=flag):
                sentence = self.refused(MISMATCH, "train", "--mock-data", f"--{flag}={value}",
                                        says=f"--{flag} is {value}")
                self.assertIn(f"compiled with {agreeing[flag]}", sentence)


class Configuration(Case):
    def written(self, text):
        path = self.folder / "run.json"
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    def test_file_and_flags(self):
        metrics = self.folder / "metrics"
        config = self.written({"train-iters": 6, "lr": 0.5, "metrics-jsonl": str(metrics),
                               "mock-data": True, "lr-decay-style": "constant", "prompt": "x"})
        run("train", "--config", config, "--lr", "0.25")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4, 5, 6])
        self.assertEqual({line["lr"] for line in lines}, {0.25})

    def test_keys_of_other_commands_change_nothing(self):
        model, ids = self.folder / "model", self.folder / "ids"
        self.train("--save", model)
        ids.write_bytes(bytes(b for n in range(1000) for b in (n % 100, 0)))
        plain = run("eval", "--load", model, "--data-path", ids, "--data-type", "u16").stdout
        self.assertIn(b"| 999 tokens", plain)
        for others in ({"mock-data": True}, {"bench-json": True}, {"train-data-path": ["x"]}, {"epochs": 2},
                       {"per-split-data-args-path": "x"}, {"greedy": True, "num-samples": 2}):
            done = run("eval", "--load", model, "--data-path", ids, "--data-type", "u16",
                       "--config", self.written(others))
            self.assertEqual(done.stdout, plain, others)
        # Steps that are measured are all alike, whatever a file asks for between them.
        run("train", "--bench-json", "--warmup", 1, "--train-iters", 2, "--config",
            self.written({"sample-interval": 1}))

    def test_wrong_files(self):
        for text, says in (({"train-itres": 3}, "did you mean train-iters?"),
                           ({"lr": "1"}, "must be a number"), ({"lr": -1}, "0 or at least"),
                           ({"profile": 1}, "true or false"), ('{"lr": 1,}', "not valid JSON"),
                           ('{"lr": NaN}', "not valid JSON"), ("[]", "object"), ("", "empty"),
                           ({"data-path": "a\0b"}, "NUL"), ({"help": True}, "--help shows")):
            with self.subTest(text=text):
                self.refused(USAGE, "train", "--config", self.written(text), says=says)
        self.refused(USAGE, "train", "--config", self.folder / "none", says="does not exist")
        self.refused(USAGE, "train", "--config", self.folder, says="directory")
        self.refused(USAGE, "train", "--config", "", says="--config needs")
        one = self.written({"lr": 1})
        self.refused(USAGE, "train", "--config", one, "--config", one, says="--config is given twice")
        self.refused(MISMATCH, "train", "--config", self.written({"num-layers": 3}),
                     says="--num-layers")


class Data(Case):
    def test_data_that_cannot_be_used(self):
        empty, short = self.folder / "empty", self.folder / "short"
        empty.touch()
        short.write_text("too short")
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        model = self.saved()
        before = contents(model)
        for command in (("train", "--save", model), ("eval", "--load", model)):
            for path, says in ((empty, "is empty"), (self.folder / "none", "does not exist"),
                               (self.folder, "is a directory"), (pipe, "not a regular file")):
                with self.subTest(command=command, path=path.name):
                    self.refused(DATA, *command, "--data-path", path, says=says)
        self.refused(DATA, "train", "--data-path", short, says="needs 33")
        self.refused(DATA, "train", "--data-path", self.text, "--split", "0,100,0", says="training")
        self.assertEqual(contents(model), before)

    def test_unreadable(self):
        self.text.chmod(0)
        self.folder.chmod(0o755)
        user = {"user": NOBODY, "group": NOBODY} if os.geteuid() == 0 else {}
        user["executable"] = shutil.copy(PROGRAM, self.folder)  # within the user's reach
        self.refused(DATA, "train", "--data-path", self.text, says="Permission denied", **user)

    def test_bytes_beyond_the_vocabulary(self):
        self.text.write_bytes(TEXT[:3000].encode() + b"\xe9" + TEXT.encode())
        sentence = self.refused(DATA, "train", "--data-path", self.text, "--train-iters", 1,
                                says="--tokenizer-type char")
        self.assertIn("offset 3000 is token 233", sentence)
        self.assertIn(str(self.text), sentence)
        run("train", "--data-path", self.text, "--train-iters", 1, "--tokenizer-type", "char")
        self.text.write_bytes(bytes(range(256)) * 40)
        self.refused(DATA, "train", "--data-path", self.text, "--tokenizer-type", "char",
                     says="256 distinct bytes")

    def test_characters_travel_with_the_model(self):
        model = self.saved("--tokenizer-type", "char")
        characters = json.loads((newest(model) / "characters.json").read_text())["characters"]
        self.assertEqual(characters, sorted(set(TEXT.encode())))
        run("eval", "--load", model, "--data-path", self.text)
        written = run("generate", "--load", model, "--prompt", "7 green",
                      "--max-new-tokens", 100).stdout
        self.assertLessEqual(set(written), set(TEXT.encode()))
        self.assertEqual(len(written), len("7 green") + 100 + 1)
        self.refused(USAGE, "generate", "--load", model, "--prompt", "7 Green", says="byte 71")
        other = self.folder / "other"
        other.write_text(TEXT + "X" + TEXT)
        self.refused(DATA, "eval", "--load", model, "--data-path", other,
                     says=f"offset {len(TEXT)} is 88")
        # Training on goes on with the same characters.
        self.train("--load", model, "--save", model, steps=10)
        self.assertEqual(
            json.loads((newest(model) / "characters.json").read_text())["characters"], characters)
        self.refused(MISMATCH, "train", "--load", model, "--data-path", self.text, "--tokenizer-type",
                     "byte", says="tokenizer-type is char there and byte here")
        self.refused(MISMATCH, "train", "--load", model, "--data-path", self.text, "--finetune",
                     "--tokenizer-type", "byte", says="--tokenizer-type")
        self.refused(MISMATCH, "eval", "--load", model, "--data-path", self.text, "--data-type",
                     "u16", says="characters")
        plain = self.folder / "plain"
        shutil.copytree(newest(model), plain)
        for name in ("megacpp_state.json", "optimizer.safetensors"):
            (plain / name).unlink()
        (plain / "characters.json").write_text('{"characters": [3, 3]}')
        self.refused(MODEL, "eval", "--load", plain, "--data-path", self.text,
                     says="characters.json")
        # More of them than the vocabulary of 128: the last ones are no tokens.
        (plain / "characters.json").write_text(json.dumps({"characters": list(range(256))}))
        beyond = self.folder / "beyond"
        beyond.write_bytes(b"\xff" * 5000)
        for command in (("eval", "--data-path", beyond), ("train", "--data-path", beyond),
                        ("generate", "--max-new-tokens", 1)):
            self.refused(MODEL, *command, "--load", plain, says='"characters" has 256 of them')


class Training(Case):
    def test_learns_and_evaluates(self):
        metrics, curve, begin = self.folder / "metrics", self.folder / "curve.svg", time.time()
        model = self.saved("--lr", "1e-2", "--metrics-jsonl", metrics, "--loss-curve", curve,
                           "--split", "90,10,0", "--eval-interval", 20, "--log-interval", 10,
                           steps=60)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        steps = [line for line in lines if "loss" in line]
        checks = [line for line in lines if "validation_loss" in line]
        self.assertEqual([line["step"] for line in steps], list(range(1, 61)))
        self.assertEqual([line["step"] for line in checks], [20, 40, 60])
        self.assertAlmostEqual(steps[0]["loss"], math.log(128), delta=0.1)
        self.assertLess(checks[-1]["validation_loss"], 3.2)
        self.assertAlmostEqual(checks[-1]["perplexity"], math.exp(checks[-1]["validation_loss"]))
        self.assertEqual(steps[0]["tokens"], 128)
        self.assertEqual([line["consumed_tokens"] for line in steps], [128 * n for n in range(1, 61)])
        for line in steps:
            self.assertAlmostEqual(line["tokens_per_s"] * line["step_ms"] / 1e3, 128, 6)
            self.assertIsNone(line["mfu"])
        times = [line["time"] for line in lines]
        self.assertEqual(times, sorted(times))
        self.assertTrue(begin - 1e-3 <= times[0] and times[-1] <= time.time())
        self.assertEqual(xml.dom.minidom.parse(str(curve)).documentElement.tagName, "svg")

        result = json.loads(run("eval", "--load", model, "--data-path", self.text, "--split",
                                "0,100,0", "--json").stdout)
        self.assertEqual(result["tokens"], len(TEXT) - 1)
        self.assertLess(result["loss"], 3.2)
        self.assertAlmostEqual(result["perplexity"], math.exp(result["loss"]))
        self.assertEqual(json.loads(run("eval", "--load", model, "--data-path", self.text,
                                        "--json").stdout), result)

    def test_same_seed_same_bits_for_any_number_of_threads(self):
        models = {}
        for name, (threads, seed) in {"one": (1, 1), "again": (1, 1), "two": (2, 1),
                                      "other": (1, 2)}.items():
            self.train("--save", self.folder / name, "--threads", threads, "--seed", seed)
            models[name] = contents(newest(self.folder / name))["model.safetensors"]
        self.assertEqual(models["one"], models["again"])
        self.assertEqual(models["one"], models["two"])
        self.assertNotEqual(models["one"], models["other"])

    def test_texts_on_the_way(self):
        plain, sampled, metrics = (self.folder / n for n in ("plain", "sampled", "metrics"))
        # Some go on beyond the positions.
        text = ("--sample-prompt", "7 green", "--max-new-tokens", 60)
        said = self.train("--save", sampled, "--lr", "1e-2", "--metrics-jsonl", metrics,
                          "--sample-interval", 8, *text, steps=20).stdout.decode().splitlines()
        self.train("--save", plain, "--lr", "1e-2", steps=20)
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(contents(newest(sampled))[name], contents(newest(plain))[name])
        lines = [line.split(" | sample: ") for line in said if " | sample: " in line]
        self.assertEqual([line[0] for line in lines], ["step 8/20", "step 16/20", "step 20/20"])
        samples = [json.loads(line[1]) for line in lines]
        told = map(json.loads, metrics.read_text().splitlines())
        self.assertEqual(samples, [m["sample"] for m in told if "sample" in m])
        self.assertEqual([len(s) for s in samples], [7 + 60] * 3)
        self.assertEqual(len({s[:7] for s in samples}), 1)
        self.assertEqual(len(set(samples)), 3)  # something was learned
        written = run("generate", "--load", sampled, "--prompt", "7 green", "--max-new-tokens", 60)
        self.assertEqual(written.stdout.decode(), samples[-1] + "\n")
        # A run that goes on writes on.
        said = run("train", "--load", sampled, "--train-iters", 24).stdout.decode()
        self.assertEqual(said.count(" | sample: \"7 green"), 1)
        self.assertIn("step 24/24 | sample: ", said)
        # Tokens of random data stand for nothing.
        mock = ("train", "--mock-data", "--train-iters", 1, "--sample-interval", 1)
        said = run(*mock, "--sample-prompt", "5, 7", "--max-new-tokens", 3).stdout.decode()
        self.assertRegex(said, r'\| sample: "5 7( \d+){3}"\n')
        self.refused(USAGE, *mock, says="needs --sample-prompt with token ids")
        self.refused(USAGE, *mock, "--sample-prompt", "128", says="--sample-prompt: token 128 is outside")
        self.refused(USAGE, "train", "--data-path", self.text, "--sample-interval", 1, "--sample-prompt",
                     "x" * 33, says="33 tokens, but tiny_gpt has 32 positions")

    def test_samples_are_shown_in_place_of_training(self):
        def shown(*arguments, load=("--data-path", self.text)):
            """Whether the lines of samples are learned, and their texts, by the number of the sample; the last line."""
            lines = run("train", *load, "--show-mask", *arguments).stdout.decode().splitlines()
            samples = {}
            for line in lines[1:]:
                if begun := re.fullmatch(r"sample (\d+): 32 tokens, 32 learned", line):
                    samples[int(begun[1])] = []
                elif line.startswith("    "):
                    samples[max(samples)].append((line[4:12], line[12:]))
            return list(samples.items()), lines[-1]
        # Windows of the text, and of its begin: what validates is not learned.
        samples, last = shown(300, "--train-iters", 72)
        self.assertEqual([number for number, _ in samples], list(range(288)))
        self.assertEqual(last, "the run has 288 samples in all")
        texts = []
        for _, ((mask, first), (learned, rest)) in samples:
            self.assertEqual((mask, learned), (" " * 8, "learned "))
            texts.append(json.loads(first) + json.loads(rest))
            self.assertIn(texts[-1], TEXT[:int(len(TEXT) * 0.97)])
            self.assertEqual(len(texts[-1]), 33)
        self.assertGreater(len(set(texts)), 200)
        # They are those that a run goes on with.
        root = self.saved("--global-batch-size", 8, steps=3)
        before = contents(root)
        for more in ((), ("--ranks", 2)):
            self.assertEqual(shown(2, "--train-iters", 9, *more, load=("--load", root, "--save", root))[0], samples[24:26])
        self.assertEqual(shown(9, load=("--load", root)), ([], "the run has 0 samples left"))
        self.assertEqual(shown(2, load=("--load", root, "--finetune", "--data-path", self.text))[0], samples[:2])
        self.assertEqual(contents(root), before)
        # A folder that a run saves to is left to that run.
        lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.assertEqual(shown(2, "--train-iters", 9, load=("--load", root, "--save", root))[0], samples[24:26])
        os.close(lock)
        # Nothing is made, and what a run would be refused is refused.
        run("train", "--data-path", self.text, "--show-mask", 1, "--save", self.folder / "new", "--metrics-jsonl",
            self.folder / "metrics")
        self.assertEqual([(self.folder / name).exists() for name in ("new", "metrics")], [False, False])
        self.refused(MISMATCH, "train", "--load", root, "--data-path", self.line(), "--show-mask", 1,
                     says="is not the data of the run in")
        self.refused(DATA, "train", "--data-path", self.folder / "none", "--show-mask", 1, says="none")
        for wrong in (0, -1, 1.5, "all"):
            self.refused(USAGE, "train", "--data-path", self.text, "--show-mask", wrong, says="--show-mask is")
        # Ids are numbers, and characters what the file has.
        ids = run("train", "--mock-data", "--show-mask", 1).stdout.decode().splitlines()
        self.assertRegex(ids[2] + ids[3], r"^            \d+    learned \d+( \d+){31}$")
        self.text.write_bytes(TEXT.replace("g", "\xe4").encode("latin1"))
        self.assertRegex(run("train", "--data-path", self.text, "--tokenizer-type", "char", "--show-mask", 1,
                             "--seed", 3).stdout.decode(), r' \\xe4reen ')

    def test_the_share_of_a_stated_peak(self):
        metrics = self.folder / "metrics"
        # 6 N a token, and of attention 2 products forward and 4 backward, each of S (S + 1) / 2 pairs: of
        # two micro-batches of 4 sequences.
        needed = 6 * 256 * (128 * 32 + 2 * (4 * 32 * 32 + 2 * 32 * 64)) + 6 * 2 * 8 * 2 * (32 * 33 // 2) * 32
        said = self.train("--global-batch-size", 8, "--peak-tflops", 0.001, "--metrics-jsonl", metrics, steps=3)
        for line in map(json.loads, metrics.read_text().splitlines()):
            if "mfu" in line:
                self.assertAlmostEqual(line["mfu"] * 1e9 * line["step_ms"] / 1e3 / needed, 1, 6)
        self.assertRegex(said.stdout.decode(), r"step 3/3 \| .* tokens/s \| [0-9.]+ ms/step \| MFU [0-9.]+% \|")
        self.refused(USAGE, "train", "--mock-data", "--peak-tflops", 0, says="--peak-tflops ")
        low = self.train("--peak-tflops", 1e-9, steps=3)
        self.assertEqual(low.stdout.count(b"--peak-tflops 1e-09 is too low"), 1)
        self.assertNotIn(b"is too low", self.train("--peak-tflops", 1000, steps=3).stdout)

    def test_progress_lines_have_the_loss_that_collectors_search(self):
        out = self.train("--log-interval", 2).stdout.decode()
        self.assertRegex(out, r" tokens/s \| [0-9.]+ ms/step \| ")
        self.assertNotIn("losses are means", out)
        self.assertRegex(out, r"step 2/8 \| loss: \d+\.\d{4} \| lr: ")
        self.assertRegex(out, r"step 8/8 \| validation loss: \d+\.\d{4} \| perplexity: ")

    def test_several_files_are_evaluated(self):
        model = self.saved("--lr", "1e-2", steps=20)
        files = [self.folder / name for name in ("short", "long", "odd \n name")]
        for file, text in zip(files, (TEXT[:50], TEXT[:4000].upper(), TEXT[1000:1500] * 2)):
            file.write_text(text)
        def measured(paths, *flags):  # noqa: E306
            done = run("eval", "--load", model, *(f for p in paths for f in ("--data-path", p)), *flags)
            return done.stdout.decode().splitlines()
        lines = [json.loads(line) for line in measured(files, "--json")]
        self.assertEqual([line.pop("file") for line in lines[:-1]], list(map(str, files)))
        self.assertEqual(lines[-1].pop("files"), 3)
        # Each is what it is alone; all are the sum over all tokens, not the mean of means.
        self.assertEqual(lines[:-1], [json.loads(measured([f], "--json")[0]) for f in files])
        tokens = sum(line["tokens"] for line in lines[:-1])
        self.assertEqual((tokens, lines[-1]["tokens"]), (49 + 3999 + 999, tokens))
        loss = sum(line["loss"] * line["tokens"] for line in lines[:-1]) / tokens
        self.assertAlmostEqual(lines[-1]["loss"], loss, places=9)
        self.assertGreater(abs(sum(line["loss"] for line in lines[:-1]) / 3 - loss), 0.01)
        text = measured(files)
        self.assertEqual([line.split(": loss: ")[0] for line in text],
                         [str(files[0]), str(files[1]), str(files[2]).replace("\n", "?"), "all 3 files"])
        self.assertTrue(all(line.endswith(f" | {n['tokens']} tokens") for line, n in zip(text, lines)))
        self.assertEqual(measured(files[:1]), [text[0][len(f"{files[0]}: "):]])
        # A file of flags may list them, too; none is read where one cannot be.
        config = self.folder / "run.json"
        config.write_text(json.dumps({"data-path": list(map(str, files))}))
        self.assertEqual(run("eval", "--load", model, "--config", config).stdout.decode().splitlines(),
                         text)
        done = run("eval", "--load", model, "--data-path", files[0], "--data-path", self.folder / "no",
                   check=DATA)
        self.assertEqual(done.stdout, b"")
        self.refused(USAGE, "train", "--config", config, says="--data-path takes one value, but is given")

    def test_a_saved_model_is_measured_as_its_run_measured_it(self):
        self.text.write_text(TEXT + TEXT[:4000].upper())  # so that not all windows are alike
        metrics, split = self.folder / "metrics", ("--split", "60,40,0")
        def told():  # noqa: E306
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
            return [line for line in lines if "validation_loss" in line]
        model = self.saved("--global-batch-size", 8, "--eval-interval", 5, "--eval-iters", 3, *split, "--save-interval",
                           10, "--metrics-jsonl", metrics, "--lr", "1e-2", steps=20)
        for step in (10, 20):
            of_run = next(line for line in told() if line["step"] == step)
            seen = json.loads(run("eval", "--load", model / f"iter_{step:07}", "--data-path", self.text, *split,
                                  "--eval-iters", 3, "--json").stdout)
            self.assertEqual((seen["tokens"], of_run["validation_tokens"]), (3 * 8 * 32, 3 * 8 * 32))
            self.assertAlmostEqual(seen["loss"], of_run["validation_loss"], 6)
        whole = json.loads(run("eval", "--load", model, "--data-path", self.text, *split, "--json").stdout)
        self.assertGreater(whole["tokens"], 3 * 8 * 32)
        more = json.loads(run("eval", "--load", model, "--data-path", self.text, *split, "--eval-iters", 2,
                              "--global-batch-size", 4, "--json").stdout)
        self.assertEqual(more["tokens"], 2 * 4 * 32)
        eval_ = ("eval", "--load", model, "--data-path", self.text)
        self.refused(USAGE, *eval_, "--global-batch-size", 4, says="changes nothing without --eval-iters")
        self.refused(USAGE, *eval_, "--eval-iters", 0, says="--eval-iters 0 would measure nothing")

    def test_global_batch_is_accumulated(self):
        metrics = self.folder / "metrics"
        self.train("--global-batch-size", 12, "--metrics-jsonl", metrics, steps=2)
        self.assertEqual(json.loads(metrics.read_text().splitlines()[0])["tokens"], 12 * 32)

    def test_a_split_without_validation_is_told(self):
        train = ("train", "--data-path", self.text, "--train-iters", 1)
        for split in ("90", "1,0,9"):
            out = run(*train, "--split", split).stdout.decode()
            self.assertIn(f"nothing is evaluated: --split {split} leaves nothing to validate", out)
        for flags in (("--split", "90", "--eval-iters", 0), ("--split", "90,10")):
            self.assertNotIn("nothing is evaluated", run(*train, *flags).stdout.decode())
        self.refused(DATA, *train, "--split", "90", "--eval-iters", 1, says="validation part")

    def test_evaluation_can_be_left_out(self):
        out = run("train", "--data-path", self.text, "--train-iters", 2, "--eval-iters",
                  0).stdout.decode()
        self.assertNotIn("validation loss", out)
        whole = run("train", "--data-path", self.text, "--train-iters", 1, "--split",
                    "90,10,0").stdout.decode()
        tokens = len(TEXT) - round(0.9 * len(TEXT)) - 1
        self.assertIn(f"| {tokens} tokens", whole)

    def test_signals_save(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1,
                       signal.SIGXCPU):
            model, metrics = self.folder / f"model-{number}", self.folder / f"metrics-{number}"
            process = subprocess.Popen(
                [PROGRAM, "train", "--data-path", self.text, "--train-iters", "1000000000",
                 "--save", model, "--metrics-jsonl", metrics, "--threads", "1"],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            end = time.monotonic() + 120
            while not (metrics.exists() and metrics.read_text().count("\n") > 3):
                self.assertLess(time.monotonic(), end, "training does not start")
                self.assertIsNone(process.poll())
                time.sleep(0.02)
            for _ in range(3):  # launchers send a request more than once
                process.send_signal(number)
            _, errors = process.communicate(timeout=120)
            self.assertEqual(process.returncode, INTERRUPTED)
            lines = errors.decode().splitlines()
            self.assertEqual(len(lines), 1, lines)
            self.assertIn(number.name, lines[0])
            steps = metrics.read_text().count("\n")
            self.assertIn(f"after step {steps} of 1000000000", lines[0])
            run("eval", "--load", model, "--data-path", self.line())
            # What goes on from there has the bits of a run without a signal.
            rest = ("--train-iters", steps + 5, "--lr-decay-iters", 1000000000)
            self.train("--load", model, "--save", model, *rest, "--threads", 2)
            whole = self.folder / f"whole-{number}"
            self.train("--save", whole, *rest)
            for name in ("model.safetensors", "optimizer.safetensors"):
                self.assertEqual(contents(newest(model))[name], contents(newest(whole))[name])

    def started(self, *arguments, wait=1.5, until=None, **options):
        """A training run that has begun: `wait` seconds after its start, and until() is true."""
        process = subprocess.Popen([PROGRAM, "train", *map(str, arguments)],
                                   stdin=subprocess.DEVNULL, **options)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        time.sleep(wait)
        end = time.monotonic() + 120
        while until and not until() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        self.assertIsNone(process.poll())
        return process

    def test_a_step_is_given_up(self):
        # A step of minutes, at the begin of a run.
        root = self.folder / "root"
        process = self.started("--mock-data", "--global-batch-size", 800000, "--train-iters", 10**6,
                               "--save", root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        self.assertEqual(process.returncode, INTERRUPTED)
        self.assertIn(b"SIGTERM ended the run after step 0 of 1000000", errors)
        run("train", "--load", root, "--save", root, "--mock-data", "--global-batch-size", 8,
            "--train-iters", 3)
        whole = self.folder / "whole"
        run("train", "--mock-data", "--global-batch-size", 8, "--train-iters", 3, "--save", whole)
        self.assertEqual(contents(newest(root))["model.safetensors"],
                         contents(newest(whole))["model.safetensors"])
        # One further on: the run that goes on takes it from its begin, with the same bits.
        size = 4000 if not SANITIZED else 200
        long = ("--mock-data", "--global-batch-size", size, "--train-iters", 3, "--save")
        losses = {}
        for end in ("given-up", "taken"):
            root, metrics = self.folder / end, self.folder / f"{end}.jsonl"
            if end == "given-up":
                process = self.started(*long, root, "--metrics-jsonl", metrics, wait=0,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                while not (metrics.exists() and metrics.read_text()):
                    self.assertIsNone(process.poll())
                    time.sleep(0.01)
                time.sleep(0.05)
                process.send_signal(signal.SIGTERM)
                self.assertIn(b"after step 1 of 3", process.communicate(timeout=20)[1])
            run("train", *long, root, "--load", root, "--metrics-jsonl", metrics)
            losses[end] = [[line[n] for n in ("step", "loss", "grad_norm")] for line in
                           map(json.loads, metrics.read_text().splitlines())]
            self.assertEqual([line[0] for line in losses[end]], [1, 2, 3])
        self.assertEqual(losses["given-up"], losses["taken"])
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(contents(newest(self.folder / "given-up"))[name],
                             contents(newest(self.folder / "taken"))[name])

    def test_a_signal_that_asks_for_a_state(self):
        root = self.folder / "root"
        for ranks in (1, 2):
            process = self.started("--mock-data", "--train-iters", 10**9, "--save", root, "--ranks", ranks,
                                   "--log-interval", 10**8, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            saved = []
            for _ in range(2):
                process.send_signal(signal.SIGUSR2)
                while b"saved to" not in (line := process.stdout.readline()):
                    self.assertTrue(line, "the run has ended")
                saved.append(int(re.search(rb"^step (\d+)/", line).group(1)))
                time.sleep(0.2)
            self.assertLess(*saved)  # it goes on
            process.send_signal(signal.SIGTERM)
            out, errors = process.communicate(timeout=20)
            self.assertEqual((process.returncode, out.count(b"saved to")), (INTERRUPTED, 1), errors)
            shutil.rmtree(root)

    def test_signals_that_the_parent_ignores_or_holds(self):
        root, train = self.folder / "root", ("--mock-data", "--train-iters", 10**9)
        # Ignored: nohup, a shell's background job.
        process = self.started(*train, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.assertIn(b"SIGTERM ended the run", process.communicate(timeout=20)[1])
        # Held back: nobody could stop such a run but by SIGKILL.
        held = lambda: signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))  # noqa: E731
        process = self.started(*train, "--save", root, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, preexec_fn=held)
        process.send_signal(signal.SIGTERM)
        self.assertIn(b"was saved to", process.communicate(timeout=20)[1])

    def test_output_that_nobody_reads_keeps_no_run_from_its_end(self):
        root = self.folder / "root"
        train = ("--mock-data", "--train-iters", 10**9, "--log-interval", 1, "--save", root)
        # The errors go the same way; the run stands still in the middle of its output.
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        fcntl.fcntl(writer, getattr(fcntl, "F_SETPIPE_SZ", 1031), 1 << 14)
        process = self.started(*train, stdout=writer, stderr=writer)
        os.close(writer)
        before, waits = -1, -2
        while waits != before:  # for whoever reads
            before, waits = waits, struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))[0]
            time.sleep(1)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
        self.assertEqual(process.returncode, INTERRUPTED)
        self.assertGreater(int(newest(root).name[5:]), 0)
        # Where somebody reads, however late, every line comes.
        with open(reader, "rb", closefd=False) as file:
            log = file.read().decode().splitlines()
        steps = [int(line.split("/")[0][5:]) for line in log if line.startswith("step ")]
        self.assertGreater(len(steps), 10)
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        count = 2000 if not SANITIZED else 300
        slow = self.started("--mock-data", "--train-iters", count, "--log-interval", 1, wait=0,
                            stdout=subprocess.PIPE)
        lines = [line for line in slow.communicate(timeout=240)[0].decode().splitlines()
                 if line.startswith("step ")]
        self.assertEqual(len(lines), count)

    def test_readers_that_cannot_be_waited_for(self):
        with self.held("--train-iters", 100, env=WITHOUT_LEAKS) as (process, on):
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (0, 0))  # poll is EINVAL
            time.sleep(0.2)  # for it to be asked again
            self.assertEqual(on(), "")
            self.assertEqual(process.returncode, 0)

    def test_reports_that_nobody_reads_keep_no_run_from_its_end(self):
        def filled(descriptor):
            os.set_blocking(descriptor, False)
            with contextlib.suppress(BlockingIOError):
                while os.write(descriptor, bytes(100)):
                    pass
            os.set_blocking(descriptor, True)
            self.addCleanup(os.close, descriptor)
        root, curve = self.folder / "root", self.folder / "curve"
        os.mkfifo(curve)
        filled(os.open(curve, os.O_RDWR))
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        filled(writer)
        train = ("--mock-data", "--train-iters", 10**9, "--load", root, "--save", root)
        # A curve, then lines before the first step.
        for out, number, flags in ((subprocess.DEVNULL, signal.SIGHUP, ("--loss-curve", curve)),
                                   (writer, signal.SIGTERM, ("--lr", 0.5))):
            process = self.started(*train, *flags, stdout=out, stderr=subprocess.PIPE)
            process.send_signal(number)
            errors = process.communicate(timeout=20)[1]
            self.assertEqual(process.returncode, INTERRUPTED, errors)
            self.assertIn(b"its state was saved to", errors)
        # A run that has saved its last step, and stands before the pipe.
        whole = self.folder / "whole"
        process = self.started("--mock-data", "--train-iters", 3, "--save", whole, "--loss-curve",
                               curve, until=(whole / "iter_0000003").exists,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=20)[1]
        self.assertEqual(process.returncode, INTERRUPTED, errors)
        self.assertIn(b"it may be cut; ", errors)
        self.assertIn(b"holds the state of step 3", errors)

    def test_any_limit_on_the_stack(self):
        unlimited = resource.RLIM_INFINITY
        model = self.saved("--threads", 2)
        for kib in (64, 256, 1024, unlimited):
            size = kib if kib == unlimited else kib << 10
            limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_STACK,  # noqa: B023
                                                              (size, unlimited))}
            text = ("--data-path", self.text, "--eval-iters", 1)
            for command in (("train", *text, "--train-iters", 2, "--threads", 3),
                            ("train", "--load", model, "--save", self.folder / "again", *text,
                             "--train-iters", 9, "--finetune"),
                            ("eval", "--load", model, "--data-path", self.line()),
                            ("describe",), ("--help",),
                            ("generate", "--load", model, "--max-new-tokens", 40),
                            ("export", "--load", model, "--save", self.folder / "exported")):
                with self.subTest(kib=kib, command=command):
                    run(*command, **limit)
                    for made in ("again", "exported"):
                        shutil.rmtree(self.folder / made, ignore_errors=True)

    def test_openmp_binds_no_thread(self):
        allowed, counts = os.sched_getaffinity(0), set()
        for name, value in (("X", ""), ("OMP_PROC_BIND", "true"), ("OMP_PLACES", "cores"),
                            ("GOMP_CPU_AFFINITY", str(min(allowed)))):
            with self.subTest(name=name), unittest.mock.patch.dict(os.environ, {name: value}), \
                    self.held("--train-iters", 100) as (process, on):
                threads = [int(p.name) for p in Path(f"/proc/{process.pid}/task").iterdir()]
                counts.add(len(threads))
                self.assertEqual([os.sched_getaffinity(t) for t in threads],
                                 [allowed] * len(threads))
                on()
        self.assertEqual(len(counts), 1)
        # A mask that a process is given stays its own.
        with unittest.mock.patch.dict(os.environ, {"OMP_PROC_BIND": "true"}):
            done = run("train", "--mock-data", "--train-iters", 1,
                       preexec_fn=lambda: os.sched_setaffinity(0, {max(allowed)}))
        self.assertIn(b", 1 thread,", done.stdout)

    def test_no_memory_for_code(self):
        # As of a systemd unit with MemoryDenyWriteExecute, where there is oneDNN to compile kernels.
        def refuse():
            assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0
        if run("describe").stdout.find(b"oneDNN") < 0:
            self.skipTest("this program has no oneDNN")
        train = ("train", "--mock-data", "--train-iters", 1)
        try:
            done = run(*train, check=None, preexec_fn=refuse, env=WITHOUT_LEAKS)
        except subprocess.SubprocessError:
            self.left_out("this kernel has no PR_SET_MDWE")
        self.assertEqual(done.returncode, MEMORY, done.stderr)
        self.refused(MEMORY, *train, says="writable and executable, which the system refuses "
                     "(Permission denied); allow it", preexec_fn=refuse, env=WITHOUT_LEAKS)

    def test_threads_that_cannot_be_started(self):
        if SANITIZED:
            self.skipTest("sanitizers reserve memory of their own")
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # noqa: E731
        self.refused(MEMORY, "train", "--data-path", self.text, "--train-iters", 1, "--threads",
                     2000, says="a thread could not be started (", preexec_fn=limit)
        self.train("--threads", 20, steps=1, preexec_fn=limit)
        # What cannot help is not advised.
        clone3 = 435
        for command, problem, says in (("describe", errno.EAGAIN, "raise the limits on processes"),
                                       ("describe", errno.EPERM, "(seccomp) allow clone3")):
            sentence = self.refused(MEMORY, command, says=says, preexec_fn=failing(clone3, problem))
            self.assertNotIn("--threads", sentence)

    def test_a_loss_that_is_not_finite(self):
        model = self.saved()
        before = contents(model)
        sentence = self.refused(NONFINITE, "train", "--load", model, "--save", model, "--lr", "1e30",
                                "--train-iters", 20, says=": the ")
        self.assertRegex(sentence, r": the (loss|gradient norm) of step \d+ is (nan|infinite); ")
        self.assertIn(f"{model} holds the state of step 8", sentence)
        self.assertEqual(contents(model), before)

    def test_an_update_that_is_not_finite(self):
        # The loss and the gradient of the only step are fine; what it leaves is not.
        model = self.saved()
        before = contents(model)
        train = ("train", "--data-path", self.text, "--eval-iters", 0, "--keep-latest-k", 1)
        for flags in (("--lr", "3e38"), ("--lr", "1e20", "--weight-decay", "1e20"),
                      ("--lr", "3e38", "--clip-grad", 0)):
            with self.subTest(flags=flags):
                sentence = self.refused(
                    NONFINITE, *train, "--load", model, "--save", model, "--train-iters", 9,
                    "--lr-decay-style", "constant", *flags, says="step 9, with the learning rate ")
                self.assertRegex(sentence, r"unusable: [\w.]*\[\d+\] is (nan|-?inf)")
                self.assertIn(f"{model} holds the state of step 8", sentence)
                fresh = self.folder / "fresh"
                sentence = self.refused(NONFINITE, *train, "--save", fresh, "--train-iters", 1, *flags,
                                        says="nothing was saved")
                self.assertFalse(fresh.exists())
        self.assertEqual(contents(model), before)
        for flag, value in (("lr", "1e39"), ("min-lr", "1e39"), ("weight-decay", "1e39"),
                            ("adam-eps", "1e-39")):
            self.refused(USAGE, "train", "--mock-data", f"--{flag}={value}", says=f"--{flag} ")

    def test_reports_that_fail_with_the_run(self):
        # What ends a run stays what is told, and no report that fails has a bad state saved.
        root = self.saved("--lr", "1e-2", steps=4)
        before = contents(root)
        bad = ("train", "--load", root, "--save", root, "--keep-latest-k", 1, "--clip-grad", 0,
               "--train-iters", 60, "--eval-iters", 0, "--lr")
        for lr in ("1e30", "3e38"):
            with self.subTest(lr=lr):
                sentence = self.refused(NONFINITE, *bad, lr, "--loss-curve", "/dev/full",
                                        says=f"; {root} holds the state of step 4; a lower --lr")
                self.assertIn("; besides, cannot write ", sentence)
                self.assertIn("/dev/full: No space left on device", sentence)
                self.assertEqual(contents(root), before)
        # Nor has one of a run that was asked to stop.
        root, curve = self.folder / "stopped", self.folder / "curve"
        with self.held("--train-iters", 10**6, "--save", root, "--loss-curve", curve) as (process, on):
            curve.mkdir()
            process.terminate()
            errors = on()
        self.assertEqual(process.returncode, INTERRUPTED, errors)
        self.assertRegex(errors, r"SIGTERM ended .* was saved to .*; besides, .*Is a directory")

    def test_ranks_that_plan_more_memory_than_there_is(self):
        # Of the plan of one, so many ranks as have more than the address space that is left to them.
        fresh, little = self.folder / "fresh", 1 << 30
        limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (little, little))}
        if SANITIZED:
            self.skipTest("sanitizers reserve address space of their own")
        for command in (("train", "--mock-data", "--save", fresh, "--train-iters", 1),
                        ("eval", "--load", self.saved(), "--data-path", self.text)):
            with self.subTest(command=command[0]):
                sentence = self.refused(MEMORY, *command, "--ranks", 4096, **limited,
                                        says="--no-memory-check starts all the same")
                found = re.search(r"4096 ranks of ([\d.]+) .iB each need ([\d.]+) (.iB) of memory, and the limit on "
                                  r"address space \(ulimit -v\) leaves ([\d.]+) (.iB): ", sentence)
                self.assertTrue(found, sentence)
        self.assertFalse(fresh.exists())
        run("train", "--mock-data", "--train-iters", 1, "--ranks", 2, "--no-memory-check")

    def test_bench_json(self):
        out = run("train", "--bench-json", "--warmup", 2, "--train-iters", 7).stdout.decode()
        result = json.loads(out.splitlines()[-1])
        self.assertGreater(result["median_ms"], 0)
        self.assertLessEqual(result["min_ms"], result["median_ms"])
        self.assertEqual((result["steps"], result["warmup"]), (5, 2))
        self.refused(USAGE, "train", "--bench-json", "--train-iters", 5, says="--warmup")
        self.refused(USAGE, "train", "--bench-json", "--warmup", 2**63 - 1, says="--warmup")
        # Room for the times of all steps is not asked for: this runs until somebody ends it.
        for steps in (10**15, 2 * 10**18):
            process = self.started("--bench-json", "--train-iters", steps, stderr=subprocess.PIPE)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)
            self.assertEqual(process.returncode, INTERRUPTED)

    def test_profile_covers_the_wall_time(self):
        share = 0
        for _ in range(5):  # other programs take the time between nodes, and add none to it
            out = self.train("--profile", steps=30).stdout.decode()
            self.assertIn("attention_grad", out)
            self.assertFalse([row for row in out.splitlines()
                              if " 0.0%" in row and not row.startswith("others")])
            line = next(line for line in out.splitlines() if line.startswith("sum of nodes"))
            share = float(line.split("(")[1].split("%")[0])
            self.assertLessEqual(share, 100.5)
            if share > 70:
                break
        self.assertGreater(share, 70)


class Ranks(Case):
    """Replicas as threads: the same run as that of one rank with the same global batch."""

    def losses(self, *arguments, ranks):
        metrics = self.folder / f"metrics-{ranks}-{len(list(self.folder.iterdir()))}"
        self.train("--ranks", ranks, "--global-batch-size", 16, "--metrics-jsonl", metrics,
                   *arguments)
        return [json.loads(line) for line in metrics.read_text().splitlines()]

    def test_replicas_learn_what_one_rank_does(self):
        of = {n: self.losses("--save", self.folder / f"saved-{n}", "--eval-interval", 4, ranks=n)
              for n in (1, 2, 4)}
        for n in (2, 4):
            of_ranks = {"slowest_rank", "slowest_compute_ms", "compute_ms"}
            self.assertEqual([m.keys() - of_ranks for m in of[n]], [m.keys() for m in of[1]])
            for m in of[n]:
                if "loss" in m:  # of each step
                    self.assertIn(m["slowest_rank"], range(n))
                    self.assertLessEqual(m["compute_ms"], m["slowest_compute_ms"])
                    self.assertGreater(m["compute_ms"], 0)
            for one, many in zip(of[1], of[n]):
                for name in {"loss", "grad_norm", "validation_loss"} & one.keys():
                    self.assertAlmostEqual(many[name], one[name], delta=2e-5 * one[name])
                for name in {"step", "tokens", "validation_tokens"} & one.keys():
                    self.assertEqual(many[name], one[name])
        again = self.losses("--save", self.folder / "again", "--eval-interval", 4, ranks=4)
        self.assertEqual([m["loss"] for m in again if "loss" in m],
                         [m["loss"] for m in of[4] if "loss" in m])
        self.assertEqual(contents(newest(self.folder / "again")).keys(),
                         contents(newest(self.folder / "saved-1")).keys())
        shown = [run("eval", "--load", self.folder / "saved-4", "--data-path", self.text, "--json",
                     "--ranks", n).stdout for n in (1, 2, 3)]
        for line in shown[1:]:
            self.assertAlmostEqual(json.loads(line)["loss"], json.loads(shown[0])["loss"], delta=1e-5)
            self.assertEqual(json.loads(line)["tokens"], json.loads(shown[0])["tokens"])

    def test_a_run_goes_on_with_other_replicas(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        usual = ("--global-batch-size", 16, "--lr-decay-iters", 20)
        self.train("--save", whole, "--ranks", 2, *usual)
        self.train("--save", parts, "--ranks", 2, *usual, steps=3)
        stopped = contents(newest(parts))
        self.train("--load", parts, "--save", parts, "--ranks", 2, *usual)
        names = ("model.safetensors", "optimizer.safetensors")
        self.assertEqual([contents(newest(parts))[n] for n in names],
                         [contents(newest(whole))[n] for n in names])
        self.assertEqual(contents(parts / "iter_0000003"), stopped)
        self.train("--load", parts, "--save", parts, "--ranks", 4, *usual, steps=10)
        self.train("--load", parts, "--save", parts, *usual, steps=12)
        self.assertEqual(newest(parts).name, "iter_0000012")

    def test_a_trace_is_of_the_steps_that_are_asked_for(self):
        trace, saved = self.folder / "trace", self.folder / "saved"

        def traced(*flags, steps):
            self.train("--global-batch-size", 16, "--lr-decay-iters", 30, "--trace", trace, *flags,
                       steps=steps)
            events = json.loads(trace.read_text())["traceEvents"]
            trace.unlink()
            return {r: [e["args"]["step"] for e in events if e["name"].startswith("step ")
                        and e["pid"] == r] for r in {e["pid"] for e in events}}

        self.assertEqual(traced("--ranks", 2, steps=14), {0: [11, 12], 1: [11, 12]})
        self.assertEqual(traced("--save", saved, steps=5), {0: [4, 5]})
        self.assertEqual(traced("--load", saved, "--ranks", 4, "--profile-step-start", 5,
                                "--profile-step-end", 6, steps=8), {r: [6] for r in range(4)})
        for flags in (("--profile-step-start", 4), ("--profile-step-end", 9),
                      ("--profile-step-start", 7, "--profile-step-end", 7)):
            self.refused(USAGE, "train", "--data-path", self.text, "--load", saved, "--train-iters", 8,
                         "--trace", trace, *flags, "--ranks", 2, says="--trace is to show the steps")
        self.refused(USAGE, "train", "--mock-data", "--profile-step-start", 1, says="without --trace")

    def test_a_signal_ends_all_ranks_after_a_step(self):
        saved = self.folder / "saved"
        process = subprocess.Popen(
            [PROGRAM, "train", "--data-path", self.text, "--train-iters", "1000000", "--ranks", "2",
             "--save", saved, "--log-interval", "1", "--trace", self.folder / "trace",
             "--profile-step-start", "0", "--profile-step-end", "64"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while b"step 3/" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, errors)
        self.assertIn(b"SIGTERM ended the run after step", errors)
        self.assertIn(str(newest(saved)).encode(), errors)
        self.assertGreater(len(json.loads((self.folder / "trace").read_text())["traceEvents"]), 100)
        self.train("--load", saved, "--train-iters",
                   int(newest(saved).name.removeprefix("iter_")) + 2, "--ranks", 2)

    def test_one_rank_tells_what_all_are_refused(self):
        self.refused(USAGE, "train", "--mock-data", "--ranks", 3, "--global-batch-size", 8,
                     says="--global-batch-size is 8, but must be a multiple of 12")
        self.refused(USAGE, "train", "--mock-data", "--ranks", 5000, says="--ranks")
        self.refused(DATA, "train", "--data-path", self.folder / "none", "--ranks", 2, says="none")
        self.refused(MODEL, "train", "--mock-data", "--load", self.folder / "none", "--ranks", 2,
                     says="none")
        self.refused(MISMATCH, "train", "--data-path", self.text, "--ranks", 2, "--sample-interval",
                     1, says="--sample-interval writes texts on one rank alone")
        save = self.folder / "saved"
        errors = run("train", "--mock-data", "--ranks", 2, "--lr", 1e30, "--train-iters", 9,
                     "--save", save, check=NONFINITE).stderr.decode()
        self.assertRegex(errors, r"^[^ ]+: the gradient norm of step \d+ is (nan|infinite); nothing was "
                                 r"saved")
        self.assertEqual(errors.count("\n"), 1)

    def test_a_report_that_cannot_be_written_ends_all_after_a_save(self):
        save = self.folder / "saved"
        error = self.refused(OUTPUT, "train", "--data-path", self.text, "--ranks", 2, "--save", save, "--trace",
                             "/dev/full", "--profile-step-start", 0, "--profile-step-end", 1, says="/dev/full")
        self.assertIn(f"{save} holds the state of step 1", error)
        run("eval", "--load", save, "--data-path", self.text)

    def test_ranks_write_the_text_of_one(self):
        model = self.saved("--ranks", 2)
        for flags in (("--greedy",), ("--temperature", 0.9, "--seed", 5, "--num-samples", 2)):
            texts = [run("generate", "--load", model, "--prompt", "green", "--max-new-tokens", 30,
                         "--json", "--ranks", n, *flags).stdout for n in (1, 2, 3)]
            self.assertEqual(texts[1:], texts[:1] * 2)
        shown = run("generate", "--load", model, "--prompt", "green", "--greedy", "--ranks", 2)
        self.assertEqual(shown.stdout.count(b"green"), 1, shown.stdout)
        self.assertEqual(shown.stderr.count(b"tokens/s"), 2)  # of the prompt, and of new tokens
        self.refused(USAGE, "generate", "--load", model, "--prompt", "", "--ranks", 2,
                     says="the prompt is empty")

    def test_metrics_that_cannot_be_written_end_no_rank(self):
        said = run("train", "--mock-data", "--ranks", 2, "--train-iters", 40, "--metrics-jsonl",
                   "/dev/full").stdout.decode()
        self.assertEqual(said.count("cannot write the metrics file /dev/full: No space left on device"), 1, said)
        self.assertIn("; the run goes on\n", said)
        self.assertRegex(said, r"the metrics file /dev/full lacks \d+ of the \d+ things")


class Output(Case):
    def test_targets_that_cannot_be_written(self):
        before = TEXT.encode()
        self.refused(OUTPUT, "train", "--mock-data", "--save", self.text, says="is not a folder")
        self.refused(OUTPUT, "train", "--mock-data", "--save", self.model(), says="it is a model")
        self.refused(OUTPUT, "train", "--mock-data", "--metrics-jsonl", self.folder / "no" / "x",
                     says="metrics")
        self.refused(OUTPUT, "train", "--mock-data", "--loss-curve", self.folder / "no" / "x",
                     says="cannot write")
        self.refused(OUTPUT, "train", "--mock-data", "--loss-curve", self.folder,
                     says="Is a directory")
        self.assertEqual(self.text.read_bytes(), before)

    def test_reports_leave_files_of_others_alone(self):
        model = self.model()
        weights = model / "model.safetensors"
        before = contents(self.folder)
        train = ("train", "--load", model, "--data-path", self.text, "--train-iters", 2)
        for flag in ("--loss-curve", "--metrics-jsonl", "--trace"):
            for file in (self.text, weights, model / "config.json"):
                self.refused(OUTPUT, *train, flag, file, says="is left as it is")
            self.refused(USAGE, *train, flag, "", says=flag)
        self.assertEqual(contents(self.folder), before)
        self.refused(USAGE, *train, "--loss-curve", self.folder / "one", "--metrics-jsonl",
                     self.folder / "." / "one", says="two files")
        self.refused(USAGE, *train, "--trace", self.folder / "one", "--metrics-jsonl",
                     self.folder / "one", says="two files")
        for _ in range(2):  # those of an earlier run are replaced
            run(*train, "--loss-curve", self.folder / "curve", "--metrics-jsonl",
                self.folder / "metrics", "--trace", self.folder / "trace")
        self.assertTrue((self.folder / "curve").read_text().startswith("<svg"))

    def test_reports_leave_unreadable_files_alone(self):
        # A file whose contents cannot be told is not one that an earlier run wrote.
        file = self.folder / "file"
        file.write_text(TEXT)
        self.folder.chmod(0o777)
        user = {"user": NOBODY, "group": NOBODY} if os.geteuid() == 0 else {}
        user["executable"] = shutil.copy(PROGRAM, self.folder)
        for flag, rights in (("--loss-curve", 0), ("--metrics-jsonl", 0), ("--metrics-jsonl", 0o222)):
            file.chmod(rights)
            self.refused(OUTPUT, "train", "--mock-data", "--train-iters", 1, flag, file,
                         says="cannot be read, so it is left as it is: Permission denied", **user)
            file.chmod(0o644)
            self.assertEqual(file.read_text(), TEXT)

    def test_reports_take_the_place_of_nothing(self):
        # Data that begins as a report does.
        data, train = self.folder / "data", ("train", "--train-iters", 1)
        for flag, begin in (("--metrics-jsonl", '{"step":'), ("--loss-curve", "<svg ")):
            data.write_text(begin + TEXT)
            other = self.folder / f"linked{flag}"
            os.link(data, other)
            for name in (data, other, self.folder / "." / "data"):
                self.refused(USAGE, *train, "--data-path", data, flag, name, says="--data-path")
            self.assertEqual(data.read_text(), begin + TEXT)
            # What the folder of states needs; a report of its own may lie in it.
            root = self.folder / "root"
            for name in ("config.json", "model.safetensors", "latest_checkpointed_iteration.txt",
                         "iter_0000003", "iter_0000001/x"):
                self.refused(USAGE, *train, "--mock-data", "--save", root, flag, root / name,
                             says="needs for its states")
            self.assertFalse(root.exists())
        root.mkdir()
        run(*train, "--mock-data", "--save", root, "--metrics-jsonl", root / "metrics.jsonl")
        run(*train[:1], "--load", root, "--save", root, "--mock-data", "--train-iters", 2,
            "--metrics-jsonl", root / "metrics.jsonl")
        self.assertEqual((root / "metrics.jsonl").read_text().count("\n"), 2)

    def test_reports_through_links_and_pipes(self):
        curve, link, pipe = (self.folder / n for n in ("curve", "link", "pipe"))
        link.symlink_to("curve")
        for _ in range(2):
            run("train", "--mock-data", "--train-iters", 2, "--loss-curve", link)
            self.assertTrue(link.is_symlink())
            self.assertTrue(curve.read_text().startswith("<svg "))
        os.mkfifo(pipe)
        for flag in ("--metrics-jsonl", "--loss-curve"):
            self.refused(OUTPUT, "train", "--mock-data", "--train-iters", 2, flag, pipe,
                         says="a pipe that nobody reads")
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
        time.sleep(0.2)
        reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        run("train", "--mock-data", "--train-iters", 3, "--metrics-jsonl", pipe)
        os.close(reading)
        self.assertEqual(reader.communicate(timeout=20)[0].count(b"\n"), 3)

    def test_reports_beside_what_is_said(self):
        log = self.folder / "log"
        train = ("train", "--mock-data", "--train-iters", "2")
        for flag in ("--metrics-jsonl", "--loss-curve"):
            for name, to in (("/dev/stdout", "output"), (log, "output"), ("/dev/stderr", "error")):
                files = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
                with self.subTest(flag=flag, name=name), open(log, "wb") as file:
                    files["stdout" if to == "output" else "stderr"] = file
                    done = subprocess.run([PROGRAM, *train, flag, name], timeout=60, **files)
                    self.assertEqual(done.returncode, USAGE)
                    said = done.stderr or log.read_bytes()
                    self.assertIn(f"the file of the standard {to}; give".encode(), said)
                    self.assertEqual(log.stat().st_size, len(said) if to == "error" else 0)
            run(*train, flag, "/dev/null", env={**os.environ, "LANG": "C"})
        # A pipe has an end only.
        out = run(*train, "--loss-curve", "/dev/stdout").stdout
        self.assertRegex(out, rb"(?s)^.*\nstep 2/2 [^\n]*\n<svg .*</svg>\n2 steps in [^\n]*\n$")
        out = run(*train, "--metrics-jsonl", "/dev/stdout").stdout
        self.assertEqual(out.count(b'\n{"step":'), 2)

    def test_closed_standard_descriptors(self):
        metrics = self.folder / "metrics"
        for closed in ((0,), (2,), (0, 2), (1,), (0, 1), (0, 1, 2)):
            with self.subTest(closed=closed):
                done = subprocess.run([PROGRAM, "train", "--mock-data", "--train-iters", "3",
                                       "--metrics-jsonl", metrics], timeout=60,
                                      stdout=None if 1 in closed else subprocess.DEVNULL,
                                      stderr=None if 2 in closed else subprocess.DEVNULL,
                                      preexec_fn=lambda: [os.close(n) for n in closed])  # noqa: B023
                self.assertEqual(done.returncode, OUTPUT if 1 in closed else 0)
                self.assertEqual(metrics.exists(), 1 not in closed)
                if 1 in closed:
                    continue
                lines = [json.loads(line) for line in metrics.read_text().splitlines()]
                self.assertEqual([line["step"] for line in lines], [1, 2, 3])
                metrics.unlink()
        done = subprocess.run([PROGRAM, "describe"], stderr=subprocess.PIPE, timeout=60,
                              preexec_fn=lambda: os.close(1))
        self.assertEqual(done.returncode, OUTPUT)
        self.assertIn(b"cannot write the standard output", done.stderr)

    def test_a_name_that_is_no_line(self):
        done = subprocess.run(["x\n\x1b[31m\x7f", "trian"], executable=PROGRAM, capture_output=True,
                              timeout=60)
        self.assertRegex(done.stderr, rb"^x\?\?\[31m\?: [ -~]*\n$")
        # A file is no step and no command to the terminal.
        text, root = (self.folder / f"{n}\nstep 9 | loss: 0\x1b]0;t\a" for n in "xy")
        shutil.copy(self.text, text)
        on = ("train", "--data-path", text, "--load", root, "--save", root, "--eval-iters", 1)
        said = [run(*on, "--train-iters", 2), run(*on, "--train-iters", 3),
                run("train", "--load", root, "--data-path", self.text, "--train-iters", 4)]
        (newest(root) / "model.safetensors").write_bytes(b"")
        said += [run(*on, "--train-iters", 4),
                 run("eval", "--load", root, "--data-path", text),
                 run("export", "--load", root, "--save", self.folder / "\nz")]
        for done in said:
            lines = (done.stdout + done.stderr).decode()
            self.assertNotRegex(lines, r"(?m)^step 9|[\x00-\x09\x0b-\x1f\x7f]")
            self.assertNotIn("\nz\n", lines)

    def test_a_state_is_not_saved_through_a_link(self):
        root, elsewhere = self.saved(), self.folder / "elsewhere"
        shutil.copytree(newest(root), elsewhere)
        (root / "iter_0000010").symlink_to(elsewhere)
        before = contents(elsewhere)
        self.refused(OUTPUT, "train", "--load", root, "--save", root, "--data-path", self.text,
                     "--train-iters", 10, says="symbolic link")
        self.assertEqual(contents(elsewhere), before)

    def test_standard_output_is_full(self):
        model = self.saved()
        for command in (("eval", "--load", model, "--data-path", self.text), ("describe",),
                        ("generate", "--load", model), ("--help",)):
            with self.subTest(command=command), open("/dev/full", "wb") as full:
                done = subprocess.run([PROGRAM, *map(str, command)], stdout=full,
                                      stderr=subprocess.PIPE, timeout=240)
                self.assertEqual(done.returncode, OUTPUT)
                self.assertIn(b"No space left on device", done.stderr)
                self.assertEqual(done.stderr.count(b"\n"), 1)

    def test_standard_output_is_closed(self):
        model = self.saved()
        text = ("--data-path", self.text)
        for command in (("eval", "--load", model, *text), ("describe",), ("--help",),
                        ("generate", "--load", model),
                        ("export", "--load", model, "--save", self.folder / "exported"),
                        ("train", *text, "--exit-signal-handler", "false", "--train-iters", 1)):
            with self.subTest(command=command):
                reading, writing = os.pipe()
                os.close(reading)
                done = subprocess.run([PROGRAM, *map(str, command)], stdout=writing,
                                      stderr=subprocess.PIPE, timeout=240)
                os.close(writing)
                self.assertEqual(done.returncode, OUTPUT)
                self.assertIn(b"Broken pipe, since whoever read it has closed it", done.stderr)
                self.assertNotIn(b"space", done.stderr)
                self.assertEqual(done.stderr.count(b"\n"), 1)

    def test_a_run_outlives_whoever_reads_its_lines(self):
        root, whole = self.folder / "root", self.folder / "whole"
        for steps in (20, 30):  # a new run, and one that goes on with lines about its flags
            reading, writing = os.pipe()
            os.close(reading)
            errors = self.train("--load", root, "--save", root, "--lr", 1 / steps, "--threads", 1, steps=steps,
                                check=OUTPUT, stdout=writing).stderr.decode()
            os.close(writing)
            self.assertRegex(errors, "^[^\n]*: cannot write the standard output: Broken pipe, since whoever read it "
                             f"has closed it; the run went on to its end; {root} holds the state of step {steps}\n$")
            self.train("--load", whole, "--save", whole, "--lr", 1 / steps, "--threads", 1, steps=steps)
            self.assertEqual(contents(newest(root))["model.safetensors"], contents(newest(whole))["model.safetensors"])

    def test_output_that_does_not_block(self):
        model = self.saved()
        long = ("generate", "--load", model, "--max-new-tokens", 1200, "--seed", 1, "--json")
        for command in (("describe", "--graphs"), ("describe", "--json"), ("train", "--help"), long):
            with self.subTest(command=command):
                reader, writer = os.pipe()
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
                os.set_blocking(writer, False)
                process = subprocess.Popen([PROGRAM, *map(str, command)], stdout=writer,
                                           stderr=subprocess.PIPE)
                os.close(writer)
                time.sleep(0.2)
                with open(reader, "rb") as file:
                    got = file.read()
                errors = process.communicate(timeout=60)[1]
                self.assertEqual((errors.count(b"\n"), process.returncode), (command == long, 0))
                # Checks of products tell how long they took, each time anew.
                timed = re.compile(rb"[0-9.e-]+ ms|(?<=seconds\":)[0-9.e-]+")
                self.assertEqual(timed.sub(b"", got), timed.sub(b"", run(*command).stdout))
                self.assertGreater(len(got), 4096)

    def test_file_size_limit_without_a_signal_handler(self):
        metrics, curve = self.folder / "metrics", self.folder / "curve"
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))  # noqa: E731
        flags = ("--train-iters", 100, "--exit-signal-handler", "false")
        self.refused(OUTPUT, "train", "--data-path", self.text, *flags, "--loss-curve", curve,
                     says="File too large (ulimit -f raises the limit)", preexec_fn=limit)
        says = self.train(*flags, "--metrics-jsonl", metrics, preexec_fn=limit).stdout.decode()
        self.assertEqual(says.count("File too large (ulimit -f raises the limit)"), 1, says)
        self.assertTrue(metrics.read_text().endswith("}\n"))

    def test_file_size_limit_while_saving(self):
        model = self.saved()
        before = contents(model)
        for size in (1500, 50000, 100000):  # of small files, of the weights, of the moments
            limit = lambda: resource.setrlimit(  # noqa: E731
                resource.RLIMIT_FSIZE, (size, size))
            self.refused(OUTPUT, "train", "--load", model, "--save", model, "--train-iters", 10,
                         says="File too large (ulimit -f raises the limit)", preexec_fn=limit)
        self.assertEqual(contents(model), before)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["model", "text"])

    def test_few_open_files(self):
        # As many as the start needs, but not the save of a run that has its metrics open beside it,
        # are refused at the start.
        root, metrics = self.folder / "root", self.folder / "metrics"
        codes = set()
        for files in range(5, 20):
            limit = lambda: resource.setrlimit(  # noqa: E731
                resource.RLIMIT_NOFILE, (files, files))  # noqa: B023
            done = run("train", "--mock-data", "--train-iters", 2, "--save", root, "--metrics-jsonl",
                       metrics, check=None, preexec_fn=limit, env=WITHOUT_LEAKS)
            codes.add(done.returncode)
            self.assertEqual(done.returncode == 0, (root / "iter_0000002").exists(), done.stderr)
            self.assertEqual(done.returncode == 0, b"step 1/2" in done.stdout, done.stderr)
            shutil.rmtree(root, ignore_errors=True)
        self.assertEqual(codes, {0, OUTPUT})

    @contextlib.contextmanager
    def small_disk(self, size, kind="tmpfs"):
        """`size`: an option of mount, or only the size."""
        option = size if "=" in size else f"size={size}"
        disk = self.folder / "disk"
        disk.mkdir(exist_ok=True)
        mounted = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", kind, "-o", option, kind, disk],
            capture_output=True).returncode == 0
        if not mounted:
            self.left_out("no small disk can be mounted")
        try:
            yield disk
        finally:
            subprocess.run(["umount", disk], check=True)

    def test_a_disk_that_metrics_fill(self):
        with self.small_disk("400k") as disk:
            metrics, others, log = disk / "metrics", disk / "others", self.folder / "log"
            others.write_bytes(bytes(100000))
            with log.open("wb") as out:
                process = subprocess.Popen([PROGRAM, "train", "--mock-data", "--train-iters", str(10**9),
                                            "--metrics-jsonl", metrics],
                                           stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE)
            self.addCleanup(process.kill)

            def wait_until(holds):
                while not holds():
                    self.assertIsNone(process.poll())
                    time.sleep(0.02)
            full = "cannot write the metrics file"
            wait_until(lambda: full in log.read_text())
            lines = metrics.read_text().count("\n")
            others.unlink()  # and the run goes on with a disk that has room again
            wait_until(lambda: metrics.read_text().count("\n") > lines)
            process.terminate()
            self.assertIn("SIGTERM", process.communicate(timeout=240)[1].decode())
            self.assertEqual(process.returncode, INTERRUPTED)
            self.assertEqual(log.read_text().count(full), 1)
            self.assertRegex(log.read_text(), f"the metrics file {metrics} lacks \\d+ of the \\d+ things")
            for line in metrics.read_text().splitlines():  # whole ones, also where the disk was full
                json.loads(line)
            self.assertTrue(metrics.read_text().endswith("\n"))

    def test_states_in_a_lower_layer(self):
        # As in the image of a container: overlayfs renames no folder of it.
        with self.small_disk("8m") as disk:
            low, high, work, top = layers = [disk / n for n in ("low", "high", "work", "top")]
            for folder in layers:
                folder.mkdir()
            self.train("--save", low / "root", "--save-interval", 4, "--eval-iters", 0)
            weights = newest(low / "root") / "model.safetensors"
            whole = weights.read_bytes()
            weights.write_bytes(b"")
            if subprocess.run(["mount", "-t", "overlay", "overlay", top, "-o",
                               f"lowerdir={low},upperdir={high},workdir={work}"],
                              capture_output=True).returncode != 0:
                self.left_out("overlayfs cannot be mounted")
            try:
                root = top / "root"
                on = ("train", "--load", root, "--save", root)
                self.assertIn(b"going on after step 4", run(*on).stdout)
                self.assertEqual((newest(root) / "model.safetensors").read_bytes(), whole)
                done = run(*on, "--train-iters", 9, "--keep-latest-k", 1)
                self.assertNotIn(b"is kept", done.stdout)
                self.assertEqual(sorted(p.name for p in root.iterdir()),
                                 ["iter_0000009", "latest_checkpointed_iteration.txt"])
            finally:
                subprocess.run(["umount", top], check=True)

    def test_full_disk_while_saving(self):
        # Room for one state of 270 kB, not for a second one beside it.
        with self.small_disk("400k") as disk:
            model = disk / "model"
            self.train("--save", model, "--eval-iters", 0, steps=2)
            before = contents(model)
            self.refused(OUTPUT, "train", "--load", model, "--save", model, "--train-iters", 4,
                         says="free some space")
            self.assertEqual(contents(model), before)
            self.assertEqual([p.name for p in disk.iterdir()], ["model"])
            self.assertEqual(sorted(p.name for p in model.iterdir()),
                             ["iter_0000002", "latest_checkpointed_iteration.txt"])
        # The second of three states would not fit, nor the new one beside the one that is kept.
        with self.small_disk("400k") as disk:
            root = disk / "root"
            for flags, says in (((), "get 3 states"), (("--keep-latest-k", 1), "get 2 states")):
                self.refused(OUTPUT, "train", "--mock-data", "--train-iters", 30, "--save", root,
                             "--save-interval", 10, *flags, says=says)
                self.assertEqual(list(disk.iterdir()), [])
        # Files are counted too: 6 a state, and its folder.
        with self.small_disk("nr_inodes=18") as disk:
            train = ("train", "--mock-data", "--train-iters", 3, "--save", disk / "root",
                     "--save-interval", 1)
            self.refused(OUTPUT, *train, says="get 3 states of 6 inodes")
            self.assertEqual(list(disk.iterdir()), [])
            run(*train, "--keep-latest-k", 1)
        # A file system that counts no blocks is not full.
        with self.small_disk("mode=755", "ramfs") as disk:
            run("train", "--mock-data", "--train-iters", 1, "--save", disk / "root")
        # What is said to fit does, at each size of the disk.
        for size in range(500, 900, 64):
            with self.small_disk(f"{size}k") as disk:
                done = run("train", "--mock-data", "--train-iters", 7, "--save", disk / "root",
                           "--save-interval", 2, "--keep-latest-k", 1, "--threads", 1, check=None)
                says = done.stderr.decode()
                if done.returncode == 0:
                    self.assertEqual([p.name for p in (disk / "root").glob("iter_*")], ["iter_0000007"])
                else:
                    self.assertEqual((done.returncode, list(disk.iterdir())), (OUTPUT, []), says)
                    self.assertIn("before any is removed", says)
                    self.assertLess(size, 600)


    def test_a_curve_that_cannot_be_drawn_at_the_end(self):
        root, curve = self.folder / "root", self.folder / "curve"
        with self.held("--train-iters", 100, "--save", root, "--loss-curve", curve) as (process, on):
            curve.mkdir()
            errors = on()
        self.assertEqual(process.returncode, OUTPUT, errors)
        self.assertIn("Is a directory", errors)
        self.assertIn(f"; {root} holds the state of step 100", errors)

    def test_reports_to_devices_sockets_and_loops(self):
        run("train", "--mock-data", "--train-iters", 1, "--metrics-jsonl", "/dev/random")
        train, path = ("train", "--mock-data", "--train-iters", 1), self.folder / "socket"
        with socket.socket(socket.AF_UNIX) as nobody:
            nobody.bind(str(path))
            self.refused(OUTPUT, *train, "--metrics-jsonl", path, says="it is a socket")
        loops = [self.folder / name for name in ("a", "b")]
        for link, to in zip(loops, reversed(loops)):
            link.symlink_to(to)
        for flag in ("--metrics-jsonl", "--loss-curve"):
            self.refused(OUTPUT, *train, flag, loops[0], says="Too many levels of symbolic links")
        self.assertTrue(all(link.is_symlink() for link in loops))


class Server:
    """A server of HTTP that keeps what is posted to it. `answers(n)` returns the status of the n-th
    answer, counted from 0, after whatever it waits for."""

    def __init__(self, case, answers=lambda n: 200, body=b"{}"):
        self.posts, self.answers = [], answers  # posts of path, headers, JSON and time

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(handler):  # noqa: N802, N805
                text = handler.rfile.read(int(handler.headers["Content-Length"]))
                self.posts.append((handler.path, dict(handler.headers), json.loads(text), time.monotonic()))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    handler.send_response(self.answers(len(self.posts) - 1))
                    handler.send_header("Content-Length", str(len(body)))
                    handler.end_headers()
                    handler.wfile.write(body)

            def log_message(handler, *_):  # noqa: N805
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        case.addCleanup(server.server_close)
        case.addCleanup(server.shutdown)

    def spans(self):
        return [span for _, _, text, _ in self.posts for of in text["resourceSpans"]
                for scope in of["scopeSpans"] for span in scope["spans"]]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Observers(Case):
    """What watches a run, and keeps none from its end."""

    CANARY = "canary-4711"

    def watched(self, *arguments, env, **options):
        out = self.train(*arguments, env={**os.environ, "no_proxy": "*", **env}, **options).stdout.decode()
        if "is built without libcurl" in out:
            self.left_out("libcurl is not there")
        return out

    def test_tensorboard(self):
        def records(folder):  # of its one file, all of them whole
            (file,) = folder.iterdir()
            bytes_, at, count = file.read_bytes(), 0, 0
            while at < len(bytes_):
                at += 16 + struct.unpack_from("<Q", bytes_, at)[0]
                count += 1
            self.assertEqual(at, len(bytes_))
            return count
        logs, plain, watched = (self.folder / n for n in ("logs/of/a/run", "plain", "watched"))
        self.train("--save", plain)
        self.train("--save", watched, "--tensorboard-dir", logs)
        # Version and values; 8 steps and an evaluation, by step and by sequences; the end.
        self.assertEqual(records(logs), 2 + 2 * 8 + 2 + 1)
        self.assertEqual(*((newest(root) / "model.safetensors").read_bytes() for root in (plain, watched)))
        few = self.folder / "few"
        self.train("--tensorboard-dir", few, "--tensorboard-log-interval", 3)
        self.assertEqual(records(few), 2 + 2 * 3 + 2 + 1)  # 3, 6 and the last one
        # What a folder or a disk does not take is told once, and the run goes on.
        says = self.train("--tensorboard-dir", self.text / "logs").stdout.decode()
        self.assertEqual(says.count(f"cannot make {self.text}/logs for TensorBoard: Not a directory"), 1)
        self.assertIn("; the run goes on", says)
        self.assertIn(f"TensorBoard's folder {self.text}/logs lacks 11 of the 11 things", says)
        self.refused(USAGE, "train", "--mock-data", "--tensorboard-dir", "", says="--tensorboard-dir needs the name of a folder")
        self.assertIn(b"without effect here: --tensorboard-log-interval", self.train("--tensorboard-log-interval", 2).stderr)
        small = self.folder / "small"
        done = self.train("--tensorboard-dir", small, steps=300, preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (20000, 20000)))
        says = done.stdout.decode()
        self.assertEqual(says.count("File too large (ulimit -f raises the limit); the run goes on"), 1)
        self.assertRegex(says, r"TensorBoard's folder \S+ lacks \d+ of the 303 things")
        self.assertGreater(records(small), 20)

    def test_prometheus(self):
        port, root = free_port(), self.folder / "root"
        process = subprocess.Popen([PROGRAM, "train", "--data-path", self.text, "--train-iters", str(10**9),
                                    "--eval-iters", "1", "--eval-interval", "50", "--save", root, "--metrics-port",
                                    str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        page, end = "", time.monotonic() + 120
        idle = None  # a client that does not end its question keeps nobody else from the page
        while "megacpp_evaluation_loss{" not in page:
            if process.poll() is not None and b"without which this program is built" in process.stderr.read():
                self.left_out("prometheus-cpp is not there")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
            with contextlib.suppress(OSError):
                if idle is None:
                    idle = socket.create_connection(("127.0.0.1", port))
                    self.addCleanup(idle.close)
                    idle.send(b"GET /met")
                begin = time.monotonic()
                page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
                self.assertLess(time.monotonic() - begin, 4)
        values = {}
        for line in page.splitlines():
            if not line.startswith("#"):
                self.assertRegex(line, r'^[a-z_]+({[a-z]+="[^"]*"(,[a-z]+="[^"]*")*})? [-+\d.e]+$|.*\+Inf"} \d+$')
                values[line.rpartition(" ")[0]] = float(line.rpartition(" ")[2])
        steps = values["megacpp_step"]
        self.assertGreaterEqual(steps, 50)
        # A page that is asked for between two numbers of a step has one of them before the other.
        self.assertIn(values["megacpp_step_seconds_count"] - steps, (0, 1))
        self.assertIn(values['megacpp_step_seconds_bucket{le="+Inf"}'] - steps, (0, 1))
        self.assertIn(values["megacpp_tokens_total"] / (4 * 32) - steps, (0, 1))
        self.assertEqual(values["megacpp_steps"], 1e9)
        self.assertEqual(values['megacpp_info{program="tiny_gpt"}'], 1)
        for name in ("loss", "grad_norm", "learning_rate", "tokens_per_second", "resident_memory_bytes",
                     "data_seconds_total", "remaining_seconds"):
            self.assertGreaterEqual(values[f"megacpp_{name}"], 0)
        self.assertNotIn("megacpp_mfu_ratio", values)  # without --peak-tflops it is not known
        # Nobody else can have the port, and no run ends for that.
        says = self.train("--metrics-port", port).stdout.decode()
        self.assertEqual(says.count(f"cannot listen on 127.0.0.1:{port} for Prometheus: Address already in use"), 1, says)
        self.assertIn("; the run goes on", says)
        process.terminate()
        self.assertEqual(process.wait(120), INTERRUPTED)
        process.stderr.close()
        for bad in (0, 65536):
            self.refused(USAGE, "train", "--mock-data", "--metrics-port", bad, says="--metrics-port")
        lines = self.folder / "lines"
        lines.write_text('{"step":1}\n')  # which a run that is refused leaves alone
        self.refused(USAGE, "train", "--mock-data", "--metrics-port", port, "--metrics-address", "::1", "--metrics-jsonl",
                     lines, says="--metrics-address is \"::1\"; give an address of IPv4")
        self.assertEqual(lines.read_text(), '{"step":1}\n')
        self.refused(USAGE, "train", "--mock-data", "--metrics-port", port, "--bench-json", says="has no observers")
        self.refused(USAGE, "train", "--mock-data", "--metrics-address", "0.0.0.0",
                     says="--metrics-address changes nothing without --metrics-port")

    def test_traces(self):
        server, root, plain = Server(self), self.folder / "root", self.folder / "plain"
        self.train("--save", plain, "--save-interval", 4)
        says = self.watched("--save", root, "--save-interval", 4, "--log-interval", 3, env={
            "OTEL_EXPORTER_OTLP_ENDPOINT": server.url + "/base/", "OTEL_SERVICE_NAME": "a service",
            "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={self.CANARY}%20b"})
        self.assertIn(f"{server.url}/base/v1/traces is told what happens, since OTEL_EXPORTER_OTLP_ENDPOINT is set",
                      says)
        self.assertEqual({path for path, *_ in server.posts}, {"/base/v1/traces"})
        for _, headers, text, _ in server.posts:
            self.assertEqual((headers["Content-Type"], headers["x-key"]), ("application/json", f"{self.CANARY} b"))
            attributes = text["resourceSpans"][0]["resource"]["attributes"]
            self.assertIn({"key": "service.name", "value": {"stringValue": "a service"}}, attributes)
        spans = server.spans()
        self.assertEqual([span["name"] for span in spans], [
            "start", "steps 1 to 3", "step 4", "save", "steps 5 to 6", "steps 7 to 8", "evaluation", "save",
            "tiny_gpt"])
        self.assertEqual(len({span["spanId"] for span in spans}), len(spans))
        whole = spans[-1]
        for span in spans:
            self.assertRegex(span["traceId"] + span["spanId"], "^[0-9a-f]{48}$")
            self.assertEqual(span["traceId"], whole["traceId"])
            self.assertEqual(span.get("parentSpanId"), None if span is whole else whole["spanId"])
            begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            self.assertTrue(int(whole["startTimeUnixNano"]) - 10**9 <= begin <= end <= int(whole["endTimeUnixNano"]))
            self.assertEqual(span["status"], {})
        numbers = {a["key"]: a["value"] for a in spans[1]["attributes"]}
        self.assertEqual(numbers["megacpp.step"], {"intValue": "3"})
        self.assertGreater(numbers["megacpp.loss"]["doubleValue"], 0)
        self.assertEqual(*(contents(newest(r))["model.safetensors"] for r in (plain, root)))
        # An error is told as one.
        server = Server(self)
        self.watched("--lr", "1e30", check=NONFINITE, env={"OTEL_EXPORTER_OTLP_ENDPOINT": server.url})
        self.assertEqual(server.spans()[-1]["status"]["code"], 2)
        self.assertIn("is nan", server.spans()[-1]["status"]["message"].replace("infinite", "nan"))

    def test_servers_that_fail(self):
        nobody = f"http://127.0.0.1:{free_port()}"
        refuses, garbage = Server(self, lambda n: 500), Server(self, body=b"\xff<html>")
        of_key, redirects = Server(self, lambda n: 401), Server(self, lambda n: 307)
        partly = Server(self, body=b'{"partialSuccess":{"rejectedSpans":"99","errorMessage":"no"}}')
        endless = Server(self, body=bytes(3 << 20))  # the status counts
        deep = Server(self, body=b'{"partialSuccess":{"rejectedSpans":' + b"[" * 30000 + b"]" * 30000 + b"}}")
        for url, says in ((nobody, r"cannot be reached: \S.*"), (refuses.url, "answered 500"),
                          (of_key.url, "answered 401, since it does not take the key or token"),
                          (redirects.url, "answered 307"), ("garbage", "cannot be reached: .*"), (garbage.url, None),
                          (endless.url, None), (deep.url, None), (partly.url, "refused 99 spans")):
            with self.subTest(url=url):
                out = self.watched(env={"OTEL_EXPORTER_OTLP_ENDPOINT": url})
                told = re.findall(f"{re.escape(url)}/v1/traces ({says}); the run goes on\n", out)
                self.assertEqual(len(told), 0 if says is None else 1, out)
                self.assertEqual(len(re.findall(r"lacks \d+ of the 11 things", out)), len(told), out)
        # One that is slow gets what came meanwhile in few posts.
        slow = Server(self, lambda n: time.sleep(3 if n == 0 else 0.1) or 200)
        out = self.watched("--log-interval", 1, steps=1000, env={"OTEL_EXPORTER_OTLP_ENDPOINT": slow.url})
        self.assertNotIn("lacks", out)
        self.assertEqual(sum(span["name"].startswith("step ") for span in slow.spans()), 1000)
        # One that is late makes the end wait for some seconds, and no step.
        late = Server(self, lambda n: time.sleep(60) or 200)
        begin = time.monotonic()
        out = self.watched(env={"OTEL_EXPORTER_OTLP_ENDPOINT": late.url, "OTEL_EXPORTER_OTLP_TIMEOUT": "60000"})
        self.assertIn("/v1/traces lacks 11 of the 11 things that it was to be told, since it did not answer before", out)
        self.assertRegex(out, r"8 steps in \d\.\d s\n")
        self.assertLess(time.monotonic() - begin, 40)
        # Once a signal asks for the end, they have six seconds.
        process = subprocess.Popen([PROGRAM, "train", "--mock-data", "--train-iters", str(10**9)], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, env={
                                       **os.environ, "no_proxy": "*", "OTEL_EXPORTER_OTLP_ENDPOINT": late.url,
                                       "OTEL_EXPORTER_OTLP_TIMEOUT": "60000"})
        self.addCleanup(process.kill)
        while b"step 1/" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        begin = time.monotonic()
        process.terminate()
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED)
        self.assertLess(time.monotonic() - begin, 15)
        count = len(late.posts)
        out = self.watched(env={"OTEL_EXPORTER_OTLP_ENDPOINT": late.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
        self.assertIn("OTEL_EXPORTER_OTLP_PROTOCOL is grpc, and this program sends JSON over HTTP", out)
        self.assertEqual(len(late.posts), count)
        out = self.watched(env={"LANGFUSE_PUBLIC_KEY": "pk"})
        self.assertIn("LANGFUSE_PUBLIC_KEY is set and LANGFUSE_SECRET_KEY is not", out)

    def test_secrets_are_never_shown(self):
        server, root, board = Server(self), self.folder / "root", self.folder / "board"
        token = self.folder.parent / f"{self.folder.name}-token"
        token.write_text(f"{self.CANARY}-token\n")
        self.addCleanup(token.unlink)
        url = server.url.replace("://", f"://user:{self.CANARY}-url@")
        env = {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": f"{self.CANARY}-key", "LANGFUSE_HOST": url,
               "OTEL_EXPORTER_OTLP_ENDPOINT": url, "KUBEFLOW_TRAINER_SERVER_URL": url + "/status",
               "OTEL_EXPORTER_OTLP_HEADERS": f"a={self.CANARY}-header", "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token)}
        with tempfile.TemporaryFile() as log:
            for answers in (lambda n: 200, lambda n: 500):
                server.answers = answers
                if server.posts:
                    env.pop("KUBEFLOW_TRAINER_SERVER_URL")  # whose end takes five seconds
                process = subprocess.Popen(
                    [PROGRAM, "train", "--data-path", self.text, "--train-iters", "8", "--eval-iters", "1", "--save",
                     root, "--metrics-jsonl", self.folder / "metrics", "--tensorboard-dir", board, "--katib-metrics",
                     self.folder / "katib", "--loss-curve", self.folder / "curve", "--trace", self.folder / "trace",
                     "--profile-step-start", "1", "--profile-step-end", "2"],
                    stdout=log, stderr=log, env={**os.environ, "no_proxy": "*", **env})
                self.assertEqual(process.wait(120), 0)
                shutil.rmtree(root)
            log.seek(0)
            said = log.read()
        if b"is built without libcurl" in said:
            self.left_out("libcurl is not there")
        self.assertNotIn(self.CANARY.encode(), said)
        bad = f"http://user:{self.CANARY}/4711?#@127.0.0.1:9"
        for more in ({"OTEL_EXPORTER_OTLP_ENDPOINT": bad},
                     {"OTEL_EXPORTER_OTLP_HEADERS": f"Authorization: Bearer {self.CANARY}"},
                     {"KUBEFLOW_TRAINER_SERVER_URL": server.url, "KUBEFLOW_TRAINER_SERVER_TOKEN": self.CANARY},
                     {"no_proxy": "", "http_proxy": f"foo://user:{self.CANARY}@127.0.0.1:9"},
                     {"no_proxy": "", "http_proxy": f"http://user:{self.CANARY}@127.0.0.1:99999999"}):
            done = self.train(env={**os.environ, "no_proxy": "*", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.invalid",
                                   **more})
            self.assertNotIn(self.CANARY.encode(), done.stdout + done.stderr, more)
            self.assertIn(b"; the run goes on", done.stdout, more)
        # What the server was to get, it got.
        keys = {headers.get("Authorization") for _, headers, _, _ in server.posts}
        pair = base64.b64encode(f"pk:{self.CANARY}-key".encode()).decode()
        self.assertLessEqual({f"Basic {pair}", f"Bearer {self.CANARY}-token"}, keys)
        self.assertIn(f"{self.CANARY}-header", {headers.get("a") for _, headers, _, _ in server.posts})
        self.assertNotIn(self.CANARY, json.dumps([text for _, _, text, _ in server.posts]))
        for path in self.folder.rglob("*"):
            if path.is_file():
                for form in (self.CANARY.encode(), pair.encode()):
                    self.assertNotIn(form, path.read_bytes(), path)

    def test_the_status_of_a_train_job(self):
        token = self.folder / "token"
        token.write_text("first\n")

        def answers(n):
            token.write_text("second")  # as Kubernetes renews it
            return 200
        server = Server(self, answers)
        self.watched(env={"KUBEFLOW_TRAINER_SERVER_URL": server.url + "/status",
                          "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token)})
        (path, headers, begin, _), (_, later, end, _) = server.posts[0], server.posts[-1]
        self.assertEqual((path, headers["Authorization"], later["Authorization"]),
                         ("/status", "Bearer first", "Bearer second"))
        for one, next_one in zip(server.posts, server.posts[1:]):
            self.assertGreater(next_one[3] - one[3], 4.9)
        self.assertEqual(begin["trainerStatus"]["progressPercentage"], 0)
        status = end["trainerStatus"]
        self.assertEqual((status["progressPercentage"], status["estimatedRemainingSeconds"]), (100, 0))
        metrics = {m["name"]: float(m["value"]) for m in status["metrics"]}
        self.assertEqual(metrics["step"], 8)
        self.assertLess(0, metrics["validation_loss"])
        for m in status["metrics"]:
            self.assertTrue(m.keys() == {"name", "value"} and 1 <= len(m["value"]) <= 64, m)
        self.assertRegex(status["lastUpdatedTime"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        for bad in (self.folder, "/dev/zero"):
            out = self.watched(env={"KUBEFLOW_TRAINER_SERVER_URL": server.url, "KUBEFLOW_TRAINER_SERVER_TOKEN": str(bad)})
            self.assertEqual(out.count(f"the file that KUBEFLOW_TRAINER_SERVER_TOKEN names, for {server.url}, cannot be read"), 1)

    def test_katib(self):
        file = self.folder / "made/katib.log"
        self.train("--katib-metrics", file)
        said = [line for line in self.train("--katib-metrics", "-").stdout.decode().splitlines() if " loss=" in line]
        lines = file.read_text().splitlines()
        self.assertEqual((len(lines), len(said)), (9, 8))
        for line in lines[:8]:
            self.assertRegex(line, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z step=\d+ loss=[\d.]+ grad_norm=")
        self.assertRegex(lines[8], r"Z step=8 validation_loss=[\d.]+$")
        self.refused(OUTPUT, "train", "--mock-data", "--katib-metrics", self.text, says="is left as it is")


class Starts(Case):
    """What a run would be refused at its end is refused before its first step, and a run that fails
    before it saves leaves the disk as it was."""

    def refused_at_start(self, code, *flags, says, train=(), **options):
        """Refused with 10^6 steps ahead."""
        before = contents(self.folder), sorted(map(str, self.folder.rglob("*")))
        sentence = self.refused(code, "train", *(train or ("--mock-data",)), "--train-iters", 10**6,
                                *flags, says=says, **options)
        self.assertEqual((contents(self.folder), sorted(map(str, self.folder.rglob("*")))), before)
        return sentence

    def test_files_that_cannot_be_saved(self):
        fresh = ("--save", self.folder / "new" / "deep")
        for size in (1500, 50000, 100000):  # of small files, of the weights, of the moments
            limit = lambda: resource.setrlimit(  # noqa: E731
                resource.RLIMIT_FSIZE, (size, size))
            self.refused_at_start(OUTPUT, *fresh, says="File too large (ulimit -f raises the limit)", preexec_fn=limit)
        link = self.folder / "link"  # to a file that is made for the metrics, and goes again
        link.symlink_to("nowhere")
        self.refused_at_start(OUTPUT, *fresh, "--metrics-jsonl", link, says="File too large",
                              preexec_fn=limit)
        root = self.saved("--save-interval", 4)
        on = ("--load", root, "--save", root)
        train = ("--data-path", self.text)
        hint = root / "latest_checkpointed_iteration.txt"
        # A hint that cannot be replaced, as one of another user in a folder such as /tmp.
        if os.geteuid() == 0:
            self.folder.chmod(0o755)
            root.chmod(0o1777)
            self.refused_at_start(OUTPUT, *on, train=train, says="cannot replace", user=NOBODY,
                                  group=NOBODY, executable=shutil.copy(PROGRAM, self.folder))
            root.chmod(0o755)
        hint.unlink()
        hint.mkdir()
        self.refused_at_start(OUTPUT, *on, train=train, says="Is a directory")
        hint.rmdir()
        # A damaged state that the run reaches again, in a folder that holds something else.
        (root / "iter_0000008" / "config.json").unlink()
        (root / "iter_0000008" / "notes").touch()
        before = contents(root)
        self.refused(OUTPUT, "train", *on, "--train-iters", 20, says="holds notes")
        self.assertEqual(contents(root), before)

    def test_reports_that_cannot_be_written(self):
        fresh = ("--save", self.folder / "fresh")
        for flag in ("--loss-curve", "--metrics-jsonl"):
            for path, says in (("x" * 256, "too long"), ("no/x", "No such file"),
                               (".", "Is a directory")):
                with self.subTest(flag=flag, path=path):
                    self.refused_at_start(OUTPUT, *fresh, flag, self.folder / path, says=says)
        self.refused_at_start(OUTPUT, *fresh, "--loss-curve", self.folder / ("x" * 250),
                              says="too long")  # room for the name, none for one beside it

    def test_a_failed_run_leaves_no_folder(self):
        fresh = ("--save", self.folder / "new" / "deep")
        short = self.folder / "short"
        short.write_text("x" * 60)
        bad = self.folder / "bad"
        bad.write_bytes(b"\xff" + TEXT.encode())
        plain = self.model()
        shutil.rmtree(self.folder / "model")
        for code, flags, train, says in (
                (USAGE, ("--lr", "x"), (), "--lr"),
                (USAGE, ("--min-lr", 1), (), "--min-lr"),
                (DATA, (), ("--data-path", self.folder / "none"), "does not exist"),
                (DATA, (), ("--data-path", short, "--split", "1,1,1"), "needs 33"),
                (DATA, (), ("--data-path", bad), "train with --tokenizer-type char"),
                (DATA, ("--eval-iters", 1), ("--data-path", self.text, "--split", "1"), "validation"),
                (MODEL, ("--load", self.folder / "none"), (), "does not exist"),
                (OUTPUT, ("--metrics-jsonl", self.text), (), "left as it is"),
                (OUTPUT, ("--loss-curve", self.folder / "new" / "deep"), (), "Is a directory"),
                (NONFINITE, ("--lr", "3e38"), (), "nothing was saved"),
                (NONFINITE, ("--lr", "3e38", "--load", plain), ("--data-path", self.text),
                 "nothing was saved")):
            with self.subTest(flags=flags, train=train):
                self.refused_at_start(code, *fresh, *flags, train=train, says=says)
        (self.folder / "new").mkdir()
        self.refused_at_start(NONFINITE, *fresh, "--lr", "3e38", says="nothing was saved")

    def test_a_path_that_is_not_utf8(self):
        path = os.fsencode(self.folder) + b"/caf\xe9"
        Path(os.fsdecode(path)).write_text(TEXT)
        train = (PROGRAM, "train", "--data-path", path, "--train-iters", "1", "--eval-iters", "0")
        for watched in ((), ("--tensorboard-dir", self.folder / "board")):  # observers are told as much as UTF-8 holds
            self.assertEqual(subprocess.run([*train, *watched], capture_output=True).returncode, 0)
        done = subprocess.run([*train, "--save", self.folder / "root"], capture_output=True)
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"/caf?, which is not UTF-8", done.stderr)
        self.assertFalse((self.folder / "root").exists())
        path = self.folder / "caf\u00e9"
        path.write_text(TEXT)
        self.train("--save", self.folder / "root", "--data-path", path, steps=1)
        run("train", "--load", self.folder / "root", "--train-iters", 2)

    def test_little_memory_is_one_sentence(self):
        if SANITIZED:
            return
        codes = []
        for size in range(60, 260, 10):
            root = self.folder / "root"
            limit = lambda: resource.setrlimit(  # noqa: E731
                resource.RLIMIT_AS, (size << 20, size << 20))
            if run("--version", check=None, preexec_fn=limit).returncode < 0:
                continue  # what a library does before main ends it: oneDNN 3.7 at 70 MiB
            done = run("train", "--mock-data", "--train-iters", 2, "--save", root, check=None,
                       preexec_fn=limit)
            if b"error while loading shared libraries" in done.stderr:
                continue
            codes.append(done.returncode)
            self.assertIn(done.returncode, (0, MEMORY), (size, done.stderr))
            self.assertEqual(done.stderr.count(b"\n"), done.returncode // MEMORY, done.stderr)
            self.assertEqual(root.exists(), done.returncode == 0, size)
            shutil.rmtree(root, ignore_errors=True)
        self.assertEqual(set(codes), {0, MEMORY})

    def test_the_first_process_of_a_container(self):
        inside = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
        if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
            self.left_out("there are no namespaces of processes")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = subprocess.Popen(
                [*inside, PROGRAM, "train", "--exit-signal-handler", "false", "--mock-data",
                 "--train-iters", "1000000000", "--log-interval", "1"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            while b"step 1/" not in process.stdout.readline():
                self.assertIsNone(process.poll())
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            first = int(children.split()[0])
            os.kill(first, number)
            try:
                process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                os.kill(first, signal.SIGKILL)
                process.communicate()
                self.fail(f"signal {number} did nothing")
            self.assertIn(process.returncode, (128 + number, -number))

    def test_a_signal_at_the_start_leaves_no_folder(self):
        root = self.folder / "root"
        for _ in range(5):
            process = subprocess.Popen(
                [PROGRAM, "train", "--mock-data", "--train-iters", "1000000000", "--save", root],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            end = time.monotonic() + 60
            while not root.exists():
                self.assertLess(time.monotonic(), end)
            process.terminate()
            errors = process.communicate(timeout=120)[1].decode()
            self.assertEqual(process.returncode, INTERRUPTED, errors)
            if "nothing was saved" in errors:
                self.assertFalse(root.exists())
            else:
                self.assertTrue(newest(root).is_dir())
                shutil.rmtree(root)

    def test_what_was_learned_before_a_report_fails_is_saved(self):
        root, metrics, curve, gone = (self.folder / name for name in ("root", "metrics", "curve", "gone"))
        gone.mkdir()
        with self.held("--train-iters", 10**6, "--save", root, "--metrics-jsonl", metrics, "--loss-curve", curve,
                       "--trace", gone / "trace", "--profile-step-start", 100, "--profile-step-end",
                       101) as (process, goes_on):
            gone.rmdir()
            sentence = goes_on()
            self.assertEqual(process.returncode, OUTPUT, sentence)
        self.assertEqual(sentence.count("\n"), 1)
        self.assertIn("No such file or directory", sentence)
        self.assertTrue(curve.read_text().startswith("<svg "))
        steps = metrics.read_text().count("\n")
        self.assertEqual(int(newest(root).name[5:]), steps)
        self.assertIn(f"the state of step {steps} was saved to {root}", sentence)
        self.assertIn(b"going on after", run("train", "--load", root, "--train-iters", 1).stdout)


class OneCommandLine(Case):
    """The first start of a run, and every later one."""

    def test_weights_of_another_model_until_there_is_a_state(self):
        base, out, other = (self.folder / name for name in ("base", "out", "other"))
        self.train("--save", base, "--train-iters", 3)
        flags = ("--load", out, "--save", out, "--pretrained-checkpoint", base, "--global-batch-size", 8,
                 "--train-iters", 6)
        self.assertIn(f"{out} has no saved state yet: a new run begins with the weights of {base}",
                      self.train(*flags).stdout.decode())
        self.train("--load", base, "--finetune", "--save", other, "--global-batch-size", 8, "--train-iters", 6)
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(contents(newest(out))[name], contents(newest(other))[name])
        self.assertIn("nothing is left to train", self.train(*flags).stdout.decode())  # and the exit code is 0
        self.assertIn("going on after step 6", self.train(*flags[:-1], 8).stdout.decode())
        self.train(*flags[:-1], 8, "--ranks", 2)
        self.refused(MODEL, "train", "--data-path", self.line(), "--load", self.folder / "new", "--save", self.folder / "new",
                     "--pretrained-checkpoint", self.folder, says="has neither a model nor a saved state; check the path of "
                     "--pretrained-checkpoint")
        self.refused(USAGE, "train", "--data-path", self.line(), "--pretrained-checkpoint", base,
                     says="--pretrained-checkpoint changes nothing without --load")
        model = self.model()
        self.refused(USAGE, "train", "--data-path", self.text, "--load", model, "--pretrained-checkpoint", base,
                     says=f"{model} holds a model and --pretrained-checkpoint names another")
        self.refused(USAGE, "export", "--load", base, "--save", out, "--dequantised",
                     says="--dequantised changes nothing without --merge")


class States(Case):
    def steps(self, root):
        return [int(p.name[5:]) for p in sorted(root.glob("iter_*"))]

    def test_ends_in_time_and_goes_on_with_the_bits_of_a_whole_run(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        self.train("--save", whole, steps=6)
        first = self.train("--load", parts, "--save", parts, "--exit-duration-in-mins", 1e-6, steps=6)
        self.assertRegex(first.stdout, rb"\na state is [\d.]+ [KM]iB and takes at least \d+\.\d s to write, .*\n"
                         rb"--exit-duration-in-mins 1e-06 ends the run behind the first step after 20\d\d-\d\d-\d\dT")
        self.assertIn(b"--exit-duration-in-mins 1e-06 ends the run after step 1 of 6; --load",
                      first.stdout)
        self.assertEqual(self.steps(parts), [1])
        self.train("--load", parts, "--save", parts, "--exit-duration-in-mins", 60, steps=6)
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual((newest(parts) / name).read_bytes(),
                             (newest(whole) / name).read_bytes())
        alone = self.train("--exit-duration-in-mins", 1e-6, steps=6)
        self.assertIn(b"after step 1 of 6; nothing was saved", alone.stdout)
        for minutes in (0, -1, "nan"):
            self.refused(USAGE, "train", "--mock-data", "--exit-duration-in-mins", minutes,
                         says="--exit-duration-in-mins")

    def test_goes_on_with_the_bits_of_a_whole_run(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        metrics = [self.folder / "whole.jsonl", self.folder / "parts.jsonl"]
        flags = ("--lr-decay-iters", 30, "--lr-warmup-iters", 3, "--global-batch-size", 8)
        self.train("--save", whole, *flags, "--metrics-jsonl", metrics[0], steps=30)
        # One command line, started four times: it begins, goes on twice, and has nothing left.
        for steps in (1, 8, 30, 30):
            done = self.train("--load", parts, "--save", parts, *flags, "--threads", steps % 2 + 1,
                              "--metrics-jsonl", metrics[1], steps=steps)
        self.assertIn(b"nothing is left to train", done.stdout)
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(contents(newest(whole))[name], contents(newest(parts))[name])
        read = [[json.loads(line) for line in path.read_text().splitlines()] for path in metrics]
        losses = [[(m["step"], m["loss"], m["lr"]) for m in lines if "loss" in m] for lines in read]
        self.assertEqual(*losses)

    def test_a_run_with_nothing_left_leaves_its_reports(self):
        root = self.folder / "root"
        reports = [self.folder / name for name in ("metrics", "curve")]
        line = ("--load", root, "--save", root, "--metrics-jsonl", reports[0], "--loss-curve", reports[1])
        self.train(*line)
        before = [path.read_bytes() for path in reports]
        self.assertIn(b"validation_loss", before[0])
        self.assertIn(b"nothing is left to train", self.train(*line).stdout)
        self.assertEqual([path.read_bytes() for path in reports], before)
        for path in reports:
            path.unlink()
        self.train(*line)
        # Steps are in the state, and so is their curve; what else was told of them is not.
        self.assertFalse(reports[0].exists())
        self.assertEqual(reports[1].read_bytes(), before[1])

    def test_a_curve_of_a_run_in_parts_is_that_of_the_whole(self):
        curves = [self.folder / name for name in ("whole.svg", "parts.svg")]
        flags = ("--eval-interval", 3, "--lr", "1e-2", "--split", "80,20")
        self.train(*flags, "--loss-curve", curves[0], steps=12)
        whole = curves[0].read_text()
        self.assertEqual(whole.count("valid dot"), 4)
        parts = self.folder / "parts"
        on = (*flags, "--load", parts, "--save", parts, "--keep-best", "--loss-curve", curves[1])
        for taken in range(1, 5):
            self.train(*on, "--exit-duration-in-mins", 1e-6, steps=12)
            # Two coordinates for each step so far.
            line = curves[1].read_text().split('class="train line" d="')[1].split('"')[0]
            self.assertEqual(line.count("L") + 1, taken)
        self.train(*on, steps=12)
        self.assertEqual(curves[1].read_text(), whole)
        # Of what a model is finetuned from, nothing is.
        self.train(*flags, "--load", parts, "--finetune", "--loss-curve", curves[1], steps=2)
        self.assertEqual(curves[1].read_text().count("valid dot"), 1)

    def test_profile_and_curve_of_a_run_that_is_ended(self):
        curve, root = self.folder / "curve", self.folder / "root"
        reports = ("--profile", "--loss-curve", curve, "--log-interval", 1)
        process = subprocess.Popen(
            [PROGRAM, "train", "--mock-data", "--train-iters", str(10**9), "--save", root,
             *map(str, reports)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        while b"step 3/" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        process.terminate()
        said, errors = process.communicate(timeout=60)
        self.assertEqual((process.returncode, errors.count(b"\n")), (INTERRUPTED, 1), errors)
        self.assertIn(b"\nsum of nodes ", said)
        self.assertTrue(curve.read_text().startswith("<svg "))
        # One step is none to measure, and is told.
        said = run("train", "--mock-data", "--train-iters", 1, "--profile").stdout
        self.assertIn(b"\n--profile measured nothing: it leaves out the first step", said)
        self.assertNotIn(b"sum of nodes", said)
        said = run("train", "--mock-data", "--train-iters", 9, "--exit-duration-in-mins", 1e-6,
                   "--profile").stdout
        self.assertIn(b"\n--profile measured nothing", said)

    def test_goes_on_behind_the_samples_that_were_taken(self):
        root = self.folder / "root"
        for size, steps in ((16, 2), (8, 5)):
            self.train("--load", root, "--save", root, "--global-batch-size", size,
                       steps=steps)
        state = json.loads((newest(root) / "megacpp_state.json").read_text())["state"]
        self.assertEqual(state["consumed_samples"], 2 * 16 + 3 * 8)

    def test_keeps_the_last_ones(self):
        root = self.saved("--save-interval", 2, "--keep-latest-k", 3, steps=11)
        self.assertEqual(self.steps(root), [8, 10, 11])
        self.assertEqual((root / "latest_checkpointed_iteration.txt").read_text(), "11\n")
        # The flags come from the state.
        run("train", "--load", root, "--save", root, "--train-iters", 15)
        self.assertEqual(self.steps(root), [12, 14, 15])
        run("train", "--load", root, "--save", root, "--train-iters", 17, "--keep-latest-k", 0)
        self.assertEqual(self.steps(root), [12, 14, 15, 16, 17])

    def test_keeps_the_best(self):
        root, best, metrics = self.folder / "root", self.folder / "root" / "best", self.folder / "m"
        on = ("--split", "80,20", "--eval-iters", 100, "--eval-interval", 4, "--keep-latest-k", 1,
              "--lr-decay-style", "constant", "--lr", "1e-2")

        def lowest():
            lines = map(json.loads, metrics.read_text().splitlines())
            return min((line["validation_loss"], line["step"]) for line in lines
                       if "validation_loss" in line)

        def state():
            return json.loads((best / "megacpp_state.json").read_text())["state"]
        self.train(*on, "--save", root, "--keep-best", "--metrics-jsonl", metrics, steps=12)
        # A resumed run has the flag of its state, and learns nothing at this rate.
        done = run("train", "--load", root, "--save", root, "--lr", 1, "--train-iters", 20,
                   "--metrics-jsonl", metrics)
        self.assertEqual(lowest()[1], 12)
        self.assertNotIn(b"lowest validation loss", done.stdout)
        self.assertEqual((self.steps(root), state()["step"]), ([20], 12))
        self.assertEqual(state()["validation"]["loss"], lowest()[0])
        measured = json.loads(run("eval", "--load", best, "--data-path", self.text, "--split",
                                  "80,20", "--json").stdout)
        self.assertEqual((measured["loss"], measured["tokens"]),
                         tuple(state()["validation"][n] for n in ("loss", "tokens")))
        self.assertIn(b"going on after step 12 of " + os.fsencode(best),
                      run("train", "--load", best, "--train-iters", 13).stdout)
        # A loss of other text is not compared with it.
        kept = contents(best)
        for other in (("--eval-iters", 3), ("--global-batch-size", 8, "--eval-iters", 4)):
            self.refused(MISMATCH, "train", "--load", root, "--save", root, "--train-iters", 24, *other,
                         says=f"{best} has the lowest validation loss so far, which was measured on other text")
        self.assertEqual(contents(best), kept)
        # One that is lower takes its place.
        run("train", "--load", best, "--save", self.folder / "other", "--train-iters", 40,
            "--lr", "1e-2")
        self.assertEqual(contents(best), kept)
        best = self.folder / "other" / "best"
        self.assertLess(state()["validation"]["loss"], lowest()[0])
        # The same run without the flag has the same bits.
        self.train(*on, "--save", self.folder / "plain", steps=12)
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(contents(newest(self.folder / "plain"))[name], kept[name])

    def test_ends_where_evaluations_find_nothing_better(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        # Nothing is learned once the rate is 0, behind step 6.
        flags = ("--split", "80,20", "--eval-iters", 100, "--eval-interval", 2, "--lr", "1e-2", "--lr-decay-iters", 6,
                 "--stop-after-no-better", 3)
        tensors = ("model.safetensors", "optimizer.safetensors")

        def state(root):
            return json.loads((newest(root) / "megacpp_state.json").read_text())["state"]

        def finished(root):
            return json.loads(run("describe", "--load", root, "--json").stdout)["finished"]

        def same(root):
            for name in tensors:
                self.assertEqual((newest(root) / name).read_bytes(), (newest(whole) / name).read_bytes())
            for name in ("no_better", "validation", "history", "step"):
                self.assertEqual(state(root)[name], state(whole)[name])
        done = self.train(*flags, "--save", whole, steps=40)
        self.assertRegex(done.stdout, rb"\nstep 12/40 \| the run ends: 3 evaluations in a row had no lower loss than "
                         rb"\d\.\d{4} of step 6, and --stop-after-no-better is 3\n(?s:.*)\n12 steps in ")
        self.assertEqual((self.steps(whole), finished(whole)), ([12], True))
        plain = self.folder / "plain"  # the bits of a run that takes as many steps
        self.train(*flags[:-2], "--save", plain, steps=12)
        self.assertEqual([contents(newest(plain))[n] for n in tensors], [contents(newest(whole))[n] for n in tensors])
        # The same command line takes one step at a time, up to the same end. Each process ends before the evaluation
        # behind its step, so that the next one measures it: the last takes no step.
        went = []
        while not went or not finished(parts):
            went.append(self.train(*flags, "--save", parts, "--load", parts, "--exit-duration-in-mins", 1e-6, steps=40))
            self.assertLess(len(went), 15)
        self.assertEqual((len(went), self.steps(parts)[-1]), (13, 12))
        self.assertIn(b"the run ends: 3 evaluations", went[-1].stdout)
        same(parts)
        # What has ended stays so, though it is started again, until more are asked for.
        for root in (whole, parts):
            before = contents(root)
            done = self.train(*flags, "--save", root, "--load", root, steps=40)
            self.assertRegex(done.stdout, rb"\nnothing is left to train: 3 evaluations in a row (?s:.*)\n0 steps in ")
            self.assertEqual(contents(root), before)
        with_more = run("train", "--load", parts, "--save", parts, "--stop-after-no-better", 4).stdout
        self.assertIn(b"step 14/40 | the run ends: 4 evaluations in a row", with_more)
        with_none = run("train", "--load", parts, "--save", parts, "--stop-after-no-better", 0, "--train-iters", 20).stdout
        self.assertIn(b"\n6 steps in ", with_none)
        self.assertNotIn("no_better", state(parts))
        # All ranks end behind the same step, with the state that they have together.
        ranked = self.folder / "ranked"
        self.train(*flags, "--save", ranked, "--ranks", 2, "--global-batch-size", 8, "--keep-best", steps=40)
        self.assertEqual((self.steps(ranked), finished(ranked)), ([12], True))
        self.assertEqual(json.loads((ranked / "best" / "megacpp_state.json").read_text())["state"]["step"], 6)

    def test_evaluations_that_are_better_end_no_run(self):
        flags = ("--split", "80,20", "--eval-iters", 100, "--eval-interval", 2, "--lr", "1e-2", "--lr-decay-style",
                 "constant")
        done = self.train(*flags, "--stop-after-no-better", 1, steps=8)
        self.assertNotIn(b"the run ends", done.stdout)
        # One that is as low as the first is no better.
        done = self.train(*flags[:-4], "--lr", 0, "--stop-after-no-better", 1, steps=8)
        self.assertIn(b"step 4/8 | the run ends: 1 evaluation in a row had", done.stdout)
        # A state of before has no count, and neither has one whose run measured other samples: it begins anew.
        root = self.saved(*flags, steps=6)
        on = ("train", "--load", root, "--save", root, "--lr", 0, "--train-iters")
        done = run(*on, 40, "--stop-after-no-better", 2)
        self.assertIn(b"step 12/40 | the run ends: 2 evaluations", done.stdout)
        done = run(*on, 40, "--eval-iters", 2)
        self.assertIn(b"was measured on other samples than this run measures: evaluations without a lower one are counted "
                      b"anew\n", done.stdout)
        self.assertIn(b"step 18/40 | the run ends: 2 evaluations", done.stdout)
        # Fewer than there were already end it behind the next one.
        run(*on, 21, "--stop-after-no-better", 9)
        done = run(*on, 40, "--stop-after-no-better", 1)
        self.assertIn(b"step 22/40 | the run ends: 5 evaluations in a row", done.stdout)

    def test_the_best_state_may_be_the_newest(self):
        root = self.saved("--split", "80,20", "--keep-best", "--eval-interval", 4, "--save-interval",
                          4, steps=8)
        tensors = ("model.safetensors", "optimizer.safetensors")
        whole = [contents(newest(root))[name] for name in tensors]
        # The run was killed between its last evaluation and its last save.
        shutil.rmtree(newest(root))
        self.assertIn(b"nothing is left to train",
                      run("train", "--load", root, "--save", root).stdout)
        self.assertEqual([contents(newest(root))[name] for name in tensors], whole)
        shutil.rmtree(newest(root))
        shutil.rmtree(newest(root))
        self.refused(OUTPUT, "train", "--data-path", self.text, "--save", root, says="state of step 8")
        run("eval", "--load", root, "--data-path", self.text)
        self.train("--load", root, "--save", root, steps=9)
        # A damaged one counts for nothing.
        weights = root / "best" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        done = run("train", "--load", root, "--save", root, "--train-iters", 10, "--lr", 1)
        self.assertIn(b"the best state cannot be used: " + os.fsencode(weights), done.stdout)
        self.assertIn(b"step 10/10 | lowest validation loss so far, saved to ", done.stdout)
        run("eval", "--load", root / "best", "--data-path", self.text)
        # So does one whose sizes do not tell, be it older than the newest state or newer; it is told
        # once, and replaced though the next loss is higher.
        for older in (True, False):
            if not older:
                shutil.rmtree(newest(root))
            moments = root / "best" / "optimizer.safetensors"
            moments.write_bytes(moments.read_bytes()[:-1] + b"~")
            done = run("train", "--load", root, "--save", root, "--train-iters",
                       self.steps(root)[-1] + 1, "--lr", 100, "--lr-decay-style", "constant")
            self.assertEqual(done.stdout.count(b"the best state cannot be used"), 1)
            self.assertIn(b"lowest validation loss so far, saved to ", done.stdout)
            run("eval", "--load", root / "best", "--data-path", self.text)
        # What is somebody's is left alone, and told at the start.
        shutil.rmtree(root / "best")
        (root / "best").mkdir()
        (root / "best" / "notes").touch()
        self.refused(OUTPUT, "train", "--load", root, "--save", root, "--train-iters", 11,
                     says="best holds notes")

    def test_a_file_system_without_locks(self):
        number = {"x86_64": 73, "aarch64": 32}.get(platform.machine())
        if number is None:
            self.left_out("the number of flock is not known")
        root = self.folder / "root"
        for problem in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            done = self.train("--load", root, "--save", root, preexec_fn=failing(number, problem))
            lines = [line for line in done.stdout.decode().splitlines() if "locked" in line]
            self.assertEqual(len(lines), 1, lines)
            self.assertTrue(lines[0].startswith(f"{root} cannot be locked ({os.strerror(problem)}"))
        self.assertNotIn(b"locked", run("train", "--load", root, "--save", root).stdout)

    def test_tells_what_changes(self):
        root = self.saved()
        out = run("train", "--load", root, "--train-iters", 10, "--lr", 0.5).stdout.decode()
        for line in ("lr: 0.001 -> 0.5 (may change)", "train-iters: 8 -> 10 (may change)",
                     "lr-decay-iters: 8 -> 10 (derived)", "going on after step 8"):
            self.assertIn(line + "\n" if "->" in line else line, out)
        for flags, says in ((("--seed", 1), "seed is 1234 there and 1 here"),
                            (("--split", "1,1,1"), "split is 969,30,1 there"),
                            (("--mock-data",), "mock-data is false there"),
                            (("--data-type", "u16"), "data-type is text there")):
            with self.subTest(flags=flags):
                sentence = self.refused(MISMATCH, "train", "--load", root, *flags, says=says)
                self.assertIn("--finetune", sentence)
        other = self.folder / "other"
        other.write_text(TEXT.replace("green", "brown"))
        self.refused(MISMATCH, "train", "--load", root, "--data-path", other, says="not the data")
        mock = self.folder / "mock"
        run("train", "--mock-data", "--train-iters", 1, "--save", mock)
        self.refused(MISMATCH, "train", "--load", mock, "--data-path", other,
                     says="megacpp_state.json is of a run on random tokens (--mock-data)")
        self.refused(USAGE, "train", "--load", mock, "--mock-data", "--data-path", other,
                     says="--data-path and --mock-data")
        # What is refused is not told as if it were taken.
        done = run("train", "--load", root, "--data-path", other, "--lr", 0.5, check=MISMATCH)
        self.assertEqual(done.stdout, b"")
        copy = self.folder / "copy"
        shutil.copy(self.text, copy)
        out = run("train", "--load", root, "--data-path", copy, "--train-iters", 9).stdout.decode()
        self.assertIn(f"data-path: {self.text} -> {copy} (may change)", out)

    def test_falls_back_to_the_state_before(self):
        root = self.saved("--save-interval", 4)
        before = contents(root / "iter_0000004")
        weights = newest(root) / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-1])
        out = run("train", "--load", root, "--save", root).stdout.decode()
        self.assertIn("the state of step 8 cannot be used", out)
        self.assertIn("going on after step 4", out)
        self.assertEqual(weights.read_bytes(), whole)  # written again, with the same bits
        weights.write_bytes(b"")
        done = run("eval", "--load", root, "--data-path", self.text)
        self.assertIn(b"the state of step 8 cannot be used", done.stderr)
        self.assertEqual(contents(root / "iter_0000004"), before)
        for path in root.glob("iter_*/config.json"):
            path.write_bytes(b"")
        self.refused(MODEL, "train", "--load", root, says="none of the 2 states")

    def test_a_newer_version_is_not_passed_over(self):
        root = self.saved("--save-interval", 4)
        path = newest(root) / "megacpp_state.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
        before = contents(root)
        for command in (("train", "--save", root), ("eval", "--data-path", self.text), ("generate",)):
            self.refused(MODEL, *command, "--load", root, says="no older one takes its place")
        self.assertEqual(contents(root), before)

    def test_two_runs_that_start_at_once(self):
        if not shutil.which("strace"):
            self.left_out("there is no strace")
        root = self.folder / "new" / "root"
        # The program is held between the making of its root and the lock on it.
        slow = ("strace", "-f", "-o", "/dev/null", "-e", "trace=flock", "-e",
                "inject=flock:delay_enter=1500000:when=1", PROGRAM, "train", "--mock-data",
                "--train-iters", "1", "--save", root)
        for other in ("saves", "gives up"):
            with self.subTest(other=other):
                process = subprocess.Popen(list(map(str, slow)), stdout=subprocess.DEVNULL,
                                           stderr=subprocess.PIPE, env=WITHOUT_LEAKS)
                end = time.monotonic() + 60
                while not root.exists():
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.001)
                if other == "saves":
                    lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                else:
                    root.parent.rename(self.folder / "gone")  # at once, wherever the program is
                errors = process.communicate(timeout=120)[1].decode()
                if other == "saves":
                    self.assertEqual(process.returncode, OUTPUT)
                    self.assertIn("another run is saving", errors)
                    self.assertTrue(root.is_dir())
                    os.close(lock)
                    shutil.rmtree(root.parent)
                else:
                    self.assertEqual(process.returncode, 0, errors)
                    self.assertEqual(self.steps(root), [1])

    def test_what_another_run_saved_before_the_lock(self):
        if not shutil.which("strace"):
            self.left_out("there is no strace")
        root = self.saved("--save-interval", 4)
        weights = newest(root) / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(b"")
        # One is held before its lock, until the other has written the damaged state again.
        slow = ("strace", "-f", "-o", "/dev/null", "-e", "trace=flock", "-e",
                "inject=flock:delay_enter=4000000:when=1", PROGRAM, "train", "--load", root, "--save",
                root, "--lr", 0.5, "--train-iters", 8)
        process = subprocess.Popen(list(map(str, slow)), stdout=subprocess.PIPE, text=True,
                                   env=WITHOUT_LEAKS)
        time.sleep(1)
        run("train", "--load", root, "--save", root)
        said = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 0, said)
        self.assertIn("going on after step 8", said)
        self.assertEqual(weights.read_bytes(), whole)

    def test_a_root_that_is_tidied_before_it_is_looked_at(self):
        # The run that was to replace a damaged state was killed between its two renames.
        root = self.saved("--save-interval", 4)
        weights = newest(root) / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(b"")
        newest(root).rename(root / "iter_0000008.megacpp-old-123")
        out = run("train", "--load", root, "--save", root).stdout.decode()
        self.assertIn("going on after step 4", out)
        self.assertEqual(weights.read_bytes(), whole)
        self.assertEqual(self.steps(root), [4, 8])

    def test_a_root_that_holds_what_is_no_state(self):
        # The first start reports into it, and fails before it has saved: so does its command line.
        root = self.folder / "root"
        line = ("train", "--data-path", self.text, "--load", root, "--save", root, "--eval-iters", 0,
                "--train-iters", 4)
        for flag in ("--metrics-jsonl", "--loss-curve"):
            with self.subTest(flag=flag):
                root.mkdir()
                self.refused(NONFINITE, *line, flag, root / "report", "--lr", "1e30", "--clip-grad", 0,
                             says="nothing was saved")
                self.assertEqual([p.name for p in root.iterdir()], ["report"])
                self.assertIn(b"has no saved state yet", run(*line, flag, root / "report").stdout)
                self.assertEqual(self.steps(root), [4])
                shutil.rmtree(root)
        root.mkdir()
        (root / "notes").touch()
        for command in (("train",), ("eval",)):
            self.refused(MODEL, *command, "--load", root, "--data-path", self.text,
                         says="has neither a model nor a saved state")

    def test_a_root_that_is_taken_away(self):
        root = self.folder / "root"

        def ends(then):
            with self.held("--train-iters", 10**9, "--save", root) as (process, on):
                root.rename(self.folder / "away")
                then()
                process.terminate()
                errors = on()
            shutil.rmtree(self.folder / "away")
            return process.returncode, errors
        code, errors = ends(lambda: None)
        self.assertEqual(code, INTERRUPTED, errors)
        self.assertEqual(len(self.steps(root)), 1)
        shutil.rmtree(root)
        code, errors = ends(lambda: run("train", "--mock-data", "--train-iters", 1, "--save", root))
        self.assertEqual(code, OUTPUT, errors)
        self.assertIn("replaced during the run", errors)
        self.assertIn("is not the folder any more that this run saved to", errors)
        self.assertEqual(self.steps(root), [1])

    def test_a_root_is_never_mixed(self):
        root = self.saved("--save-interval", 4)
        before = contents(root)
        for flags in ((), ("--load", root / "iter_0000004"), ("--load", root, "--finetune")):
            with self.subTest(flags=flags):
                self.refused(OUTPUT, "train", "--data-path", self.text, "--train-iters", 9, "--save",
                             root, *flags, says="holds the state of step 8")
        self.assertEqual(contents(root), before)
        empty = self.folder / "empty"
        empty.mkdir()
        self.refused(MODEL, "train", "--load", empty, "--data-path", self.text, says="neither")
        self.refused(MODEL, "eval", "--load", empty, "--data-path", self.text, says="neither")
        # A run that was killed while it first saved.
        (empty / "iter_0000008.megacpp-tmp-123").mkdir()
        self.train("--load", empty, "--save", empty)
        self.assertEqual(self.steps(empty), [8])

    def test_another_model(self):
        root = self.saved()
        path = newest(root) / "megacpp_state.json"
        self.assertEqual(json.loads(path.read_text())["state"]["consumed_samples"], 32)
        # Without the state's own file it is no state, though all of a model is there.
        path.unlink()
        self.refused(MODEL, "train", "--load", root, says="none of the 1 states")
        self.refused(MODEL, "train", "--load", newest(root), "--data-path", self.text,
                     says="damaged state")


class TokenIds(Case):
    def written(self, ids, kind):
        path = self.folder / kind
        path.write_bytes(b"".join(i.to_bytes(2 if kind == "u16" else 4, "little", signed=i < 0)
                                  for i in ids))
        return path

    def test_the_same_run_as_from_the_text(self):
        weights = set()
        for kind in ("text", "u16", "i32"):
            path = self.text if kind == "text" else self.written(TEXT.encode(), kind)
            run("train", "--data-path", path, "--data-type", kind, "--train-iters", 3,
                "--eval-iters", 1, "--save", self.folder / ("of-" + kind))
            weights.add(contents(newest(self.folder / ("of-" + kind)))["model.safetensors"])
            result = json.loads(run("eval", "--load", self.folder / "of-text", "--data-path", path,
                                    "--data-type", kind, "--json").stdout)
            self.assertEqual(result["tokens"], len(TEXT) - 1)
        self.assertEqual(len(weights), 1)

    def test_ids_that_are_none(self):
        model = self.saved()
        ids = list(TEXT.encode()[:2000])
        for kind, wrong in (("u16", 128), ("u16", 65535), ("i32", 128), ("i32", -1),
                            ("i32", 2**31 - 1)):
            path = self.written(ids[:700] + [wrong] + ids[700:], kind)
            offset = 700 * (2 if kind == "u16" else 4)
            for command in (("train", "--train-iters", 1), ("eval", "--load", model)):
                with self.subTest(kind=kind, wrong=wrong, command=command[0]):
                    sentence = self.refused(DATA, *command, "--data-path", path, "--data-type",
                                            kind, says=f"offset {offset} is {wrong}")
                    self.assertIn(str(path), sentence)
        for kind, extra in (("u16", 1), ("i32", 1), ("i32", 2), ("i32", 3)):
            path = self.written(ids, kind)
            path.write_bytes(path.read_bytes() + bytes(extra))
            self.refused(DATA, "train", "--data-path", path, "--data-type", kind, says="no whole")
        self.refused(USAGE, "train", "--data-path", path, "--data-type", "i32", "--tokenizer-type",
                     "char", says="contradict")
        self.refused(USAGE, "train", "--data-path", path, "--data-type", "u8", says="u16")


class IndexedSets(Case):
    """Data sets as Megatron-LM has them: PREFIX.bin and PREFIX.idx."""

    END = 127  # of a document

    def documents(self, seed, count=60):
        numbers = random.Random(seed)
        return [[*(numbers.randrange(32, 32 + 8 * seed) for _ in range(numbers.randrange(1, 90))), self.END]
                for _ in range(count)]

    def written(self, name, documents, kind="H"):
        prefix = self.folder / name
        tokens = [t for d in documents for t in d]
        size, code = {"H": (2, 8), "i": (4, 4)}[kind]
        Path(f"{prefix}.bin").write_bytes(struct.pack(f"<{len(tokens)}{kind}", *tokens))
        lengths, n = [len(d) for d in documents], len(documents)
        starts = [size * sum(lengths[:i]) for i in range(n)]
        Path(f"{prefix}.idx").write_bytes(
            b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, n, n + 1) + struct.pack(f"<{n}i", *lengths) +
            struct.pack(f"<{n}q", *starts) + struct.pack(f"<{n + 1}q", *range(n + 1)))
        return prefix

    def sets(self):
        return self.written("one", self.documents(1)), self.written("two", self.documents(2), "i")

    def result(self, *arguments, data=(), name="result", steps=8, **options):
        """Weights and what was told of a run on sets."""
        model, metrics = self.folder / name, self.folder / f"{name}.jsonl"
        done = run("train", *data, "--train-iters", steps, "--save", model, "--metrics-jsonl", metrics,
                   *arguments, **options)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        weights = hashlib.sha256((newest(model) / "model.safetensors").read_bytes()).hexdigest()
        return weights, lines, done.stdout.decode() + done.stderr.decode()

    def test_a_prefix_is_trained_on_and_measured(self):
        one, two = self.sets()
        weights, lines, told = self.result("--split", "80,20,0", data=("--data-path", one), name="a")
        self.assertIn("samples of 32 tokens to train on", told)
        losses = [line["loss"] for line in lines if "loss" in line]
        self.assertEqual(len(losses), 8)
        self.assertLess(losses[-1], losses[0])
        self.assertTrue(all(line["data_ms"] >= 0 for line in lines if "loss" in line))
        # All tokens behind the first of a set are predicted once.
        tokens = {p: sum(len(d) for d in self.documents(s)) for p, s in ((one, 1), (two, 2))}
        seen = json.loads(run("eval", "--load", self.folder / "a", "--data-path", one, "--json").stdout)
        self.assertEqual(seen["tokens"], tokens[one] - 1)
        both = run("eval", "--load", self.folder / "a", "--data-path", one, two, "--json").stdout
        by_file = [json.loads(line) for line in both.splitlines()]
        self.assertEqual([line["tokens"] for line in by_file],
                         [tokens[one] - 1, tokens[two] - 1, sum(tokens.values()) - 2])

    def test_sets_without_tokens_and_names_that_are_none_are_refused(self):
        one, two = self.sets()
        none, empty = self.written("none", []), self.written("empty", [[], []])
        short = self.written("short", [[self.END]])
        for lacking in (none, empty):
            for flags in (("--data-path", 0.5, one, 0.5, lacking), ("--data-path", lacking),
                          ("--train-data-path", one, "--valid-data-path", lacking),
                          ("--train-data-path", one, "--test-data-path", lacking)):
                self.refused(DATA, "train", *flags, "--train-iters", 1, says=f"{lacking} has no token; leave it out")
        model = self.folder / "model"
        run("train", "--data-path", one, "--train-iters", 1, "--save", model)
        self.refused(DATA, "eval", "--load", model, "--data-path", one, short, says=f"{short} has no token to predict")
        parts = self.folder / "parts.json"
        parts.write_text(json.dumps({"train": [str(one)], "validation": [str(two)]}))
        self.refused(DATA, "train", "--per-split-data-args-path", parts, "--train-iters", 1,
                     says='has the field "validation", which is none of train, valid and test')
        self.refused(DATA, "train", "--data-path", self.folder / "typo", "--train-iters", 1,
                     says=f"{self.folder / 'typo'} does not exist, and neither does a data set")
        self.refused(USAGE, "train", "--data-path", f"{one}.bin", "--train-iters", 1, says="leave .bin out")
        self.refused(DATA, "train", "--data-path", self.folder, "--train-iters", 1, says="is a directory; give a file")
        self.written("web_text_document", [[self.END]])
        self.refused(DATA, "train", "--data-path", self.folder / "web", "--train-iters", 1,
                     says="web_text_document is one")
        self.refused(DATA, "train", "--data-path", one, "--tokenizer-model", self.folder / "hub/name",
                     "--train-iters", 1, says="does not exist; give the path of a tokenizer's folder or file")
        told = run("train", "--train-data-path", one, "--train-iters", 1)
        self.assertIn("name data by --valid-data-path", (told.stdout + told.stderr).decode())

    def test_a_step_without_a_token_to_learn_is_counted_and_changes_nothing(self):
        # Many ends of documents, behind which nothing is learned, among texts.
        padded = self.written("padded", [[40, 41, 42] * 40 + [self.END], [self.END] * 2000, [50, 51] * 60 + [self.END]])
        flags = ("--eod-mask-loss", "--tokenizer-type", "NullTokenizer")
        data = ("--data-path", padded, "--split", "1,0,0", *flags)
        every = ("--save-interval", 1, "--keep-latest-k", 0, "--log-interval", 1, "--weight-decay", 0.1, "--lr", "1e-2")
        _, lines, told = self.result(*every, data=data, name="whole", steps=16)
        empty = [line["step"] for line in lines if line["loss"] is None]
        self.assertTrue(4 <= len(empty) <= 12, empty)
        for line in lines:
            self.assertEqual((line["learned_tokens"] == 0, line["grad_norm"] is None, line["tokens"]),
                             (line["step"] in empty, line["step"] in empty, 4 * 32))
            self.assertLessEqual(line["product_ceiling_share"] or 0, 1)
        self.assertRegex(told, r"step 1/16 \| .* tokens/s, \S+ learned")
        self.assertEqual(told.count("losses are means over the tokens that are learned, which are all but what follows "
                                    "the end of a document\n"), 1)
        some = next(line for line in lines if 0 < line["learned_tokens"] < 128)
        self.assertIn(f"step {some['step']}/16 | loss: {some['loss']:.4f} (mean of {some['learned_tokens']} of 128 tokens) "
                      "| lr: ", told)
        self.assertEqual(told.count("has no token to learn: it is counted"), 1)
        self.assertIn(f", {len(empty)} of which had no token to learn\n", told)

        def files(step):
            all_files = contents(self.folder / "whole" / f"iter_{step:07}")
            return all_files["model.safetensors"], all_files["optimizer.safetensors"]
        self.assertEqual([step for step in range(2, 17) if files(step) == files(step - 1)],
                         [step for step in empty if step > 1])
        # The steps that follow are those of a run that has taken no other: going on has their bits.
        for stop in (empty[1], 15):
            parts = self.folder / f"parts-{stop}"
            shutil.copytree(self.folder / "whole", parts)
            for step in range(stop + 1, 17):
                shutil.rmtree(parts / f"iter_{step:07}")
            run("train", "--load", parts, "--save", parts)
            state = contents(newest(parts))
            self.assertEqual((state["model.safetensors"], state["optimizer.safetensors"]), files(16))
        state = json.loads((newest(parts) / "megacpp_state.json").read_text())["state"]
        self.assertEqual((state["step"], state["empty_steps"]), (16, len(empty)))
        # Without any, there is no loss of it, which is found before anything begins.
        none, one = self.written("none", [[self.END] * 130]), self.written("one", self.documents(1))
        fresh = ("--train-iters", 1, "--save", self.folder / "fresh", *flags)
        for part in ("train", "valid", "test"):
            paths = {p: none if p == part else one for p in ("train", "valid", "test")}
            self.refused(DATA, "train", *(word for p, path in paths.items()
                                          for word in (f"--{p}-data-path", path)),
                         *fresh, says=f"{none} has no token to learn in what there is to ")
        self.refused(DATA, "eval", "--load", self.folder / "whole", "--data-path", one, none, *flags,
                     says=f"{none} has no token to learn in what there is to measure")
        self.assertFalse((self.folder / "fresh").exists())

    def test_what_was_learned_is_saved_when_an_evaluation_fails(self):
        # A token that is none stands late in the validation part.
        one, valid = self.written("one", self.documents(1)), self.documents(2)
        valid[41][:1] = [128]
        valid = self.written("valid", valid)
        for ranks in (1, 2):
            model = self.folder / f"of-{ranks}"
            self.refused(DATA, "train", "--train-data-path", one, "--valid-data-path", valid, "--ranks", ranks,
                         "--global-batch-size", 8, "--train-iters", 3, "--save", model, says="is 128")
            self.assertEqual([p.name for p in model.glob("iter_*")], ["iter_0000003"])
            run("eval", "--load", model, "--data-path", one)
        # The weights of the only step are finite, but too large to compute with.
        model = self.folder / "large"
        self.train("--save", model, "--lr", "3e37", "--clip-grad", 0, steps=1, check=NONFINITE)
        self.assertTrue((model / "iter_0000001").exists())

    def test_data_that_are_overwritten_in_place_end_the_run_before_it_saves(self):
        ids = self.folder / "ids"
        ids.write_bytes(struct.pack("<5000H", *(i * i % 127 for i in range(5000))))
        self.written("one", self.documents(1))
        rest = ("--train-iters", 200, "--eval-iters", 0, "--save-interval", 100, "--save")
        sets, weights = ("--data-path", self.folder / "one", *rest), "iter_0000200/model.safetensors"
        run("train", *sets, self.folder / "whole")
        with self.held(*sets, self.folder / "touched") as (process, on):  # which changes nothing
            os.utime(self.folder / "one.bin")
            errors = on()
        self.assertEqual((process.returncode, contents(self.folder / "touched")[weights]),
                         (0, contents(self.folder / "whole")[weights]), errors)
        for path, data in ((self.text, (self.text, "--data-type", "text")), (ids, (ids, "--data-type", "u16")),
                           (self.folder / "one.idx", (self.folder / "one",)),
                           (self.folder / "one.bin", (self.folder / "one", "--ranks", 2, "--global-batch-size", 8))):
            root, before = self.folder / "overwritten", path.read_bytes()
            with self.subTest(data=data), self.held("--data-path", *data, *rest, root) as (process, on):
                with path.open("r+b") as file:  # two documents exchange their lengths, or all tokens are one
                    file.write(before[:34] + before[38:42] + before[34:38] if path.suffix == ".idx" else
                               b"\5\0" * (len(before) // 2))
                errors = on()
                self.assertEqual(process.returncode, DATA, errors)
                self.assertIn(f"{path} was written to during the run and holds other tokens", errors)
                self.assertFalse(root.exists())
            path.write_bytes(before)

    def test_an_index_that_is_cut_during_a_run_is_named(self):
        idx = Path(f"{self.written('one', self.documents(1))}.idx")
        for size in (50, 34, 0):
            before = idx.read_bytes()
            with self.held("--data-path", self.folder / "one", "--train-iters", 10**6, "--eval-iters", 0) as (process, on):
                os.truncate(idx, size)
                errors = on()
            self.assertEqual(process.returncode, DATA, errors)
            self.assertRegex(errors, r"one\.idx (changed|became shorter) while it was being read")
            idx.write_bytes(before)

    def test_a_blend_is_its_sets_in_order_and_their_weights(self):
        one, two = self.sets()
        model = self.folder / "model"
        flags = ("--split", "1,0,0", "--lr-decay-iters", 2)
        run("train", "--data-path", 0.3, two, 0.7, one, *flags, "--train-iters", 1, "--save", model)
        on = ("train", "--load", model, "--split", "1,0,0", "--train-iters", 2, "--data-path")
        for blend in ((0.1, two, 0.9, one), (0.7, one, 0.3, two), (two, one)):
            self.refused(MISMATCH, *on, *blend, says="is not the data of the run")
        # Of sets without weights it counts, too, how often each is trained on, and which are only measured.
        alone = self.folder / "alone"
        run("train", "--train-data-path", one, "--valid-data-path", two, "--eval-iters", 1, "--train-iters", 1,
            "--save", alone)
        for sets in ((one, one), (one, two)):
            self.refused(MISMATCH, "train", "--load", alone, "--train-iters", 2, "--train-data-path", *sets,
                         says="is not the data of the run")
        # Copies of any name are the data.
        for copy, of in (("a", one), ("b", two)):
            for end in (".bin", ".idx"):
                shutil.copy(f"{of}{end}", f"{self.folder / copy}{end}")
        run(*on, 0.3, self.folder / "b", 0.7, self.folder / "a")

    def test_going_on_and_replicas_give_the_bits_of_one_run(self):
        one, two = self.sets()
        data = ("--data-path", 0.4, one, 0.6, two, "--eval-iters", 1, "--split", "80,20,0")
        whole = self.result(data=data, name="whole", steps=8)[0]
        self.result("--lr-decay-iters", 8, data=data, name="part", steps=4)
        # The number of samples is that of the first run's steps, and so is their order.
        more = run("train", "--load", self.folder / "part", "--save", self.folder / "part",
                   "--train-iters", 4)
        self.assertIn("nothing is left to train", (more.stdout + more.stderr).decode())
        caches = ("--data-cache-path", self.folder / "cache")
        self.assertEqual(self.result(*caches, data=data, name="cached")[0], whole)
        kept = contents(self.folder / "cache")
        self.assertTrue(kept)
        self.assertEqual(self.result(*caches, data=data, name="again")[0], whole)
        self.assertEqual(contents(self.folder / "cache"), kept)
        for path in (self.folder / "cache").iterdir():
            path.write_bytes(path.read_bytes()[:-1])
        self.assertEqual(self.result(*caches, data=data, name="mended")[0], whole)
        self.assertEqual(contents(self.folder / "cache"), kept)

    def test_a_run_that_goes_on_beyond_an_epoch(self):
        one, two = self.sets()
        root, data = self.folder / "root", ("--split", "1,0,0", "--lr", "1e-3")
        on = ("train", "--load", root, "--save", root, "--train-iters")
        # Sets without weights are read once, and what was learned from them cannot be given weights.
        run("train", "--data-path", one, two, *data, "--train-iters", 3, "--save", root)
        sentence = self.refused(DATA, *on, 10000, says="for without weights each set is read once, but the run takes 40000;")
        most = int(re.search(r"; give --train-iters (\d+) at most, or, to a new run, weights", sentence)[1])
        self.assertIn(f"have {sum((sum(map(len, self.documents(s))) - 1) // 32 for s in (1, 2))} samples", sentence)
        self.refused(MISMATCH, *on, 10000, "--data-path", 1, one, 1, two, says="is not the data of the run")
        self.refused(DATA, *on, most + 1, says=f"--train-iters {most} at most")
        run(*on, most)
        # The order of one set depends on the number of its epochs, as in Megatron-LM.
        shutil.rmtree(root)
        an_epoch = (sum(map(len, self.documents(1))) - 1) // 32 // 4
        run("train", "--data-path", one, *data, "--train-iters", 3, "--save", root)
        self.assertNotIn(b"epochs of the data", run(*on, an_epoch).stdout)
        self.assertIn(b"epochs of the data: 1 -> 1+1 (may change): samples come in another order", run(*on, an_epoch + 2).stdout)
        self.assertNotIn(b"epochs of the data", run(*on, an_epoch + 3).stdout)

    def test_a_run_that_is_stopped_goes_on_with_the_next_sample(self):
        one, _ = self.sets()
        data = ("--data-path", one, "--eval-iters", 0)
        whole = self.result(data=data, name="whole", steps=6)[0]
        self.result("--save-interval", 2, "--exit-duration-in-mins", 1e-9, data=data, name="part", steps=6)
        for _ in range(6):
            run("train", "--load", self.folder / "part", "--save", self.folder / "part",
                "--exit-duration-in-mins", 1e-9)
        self.assertEqual(newest(self.folder / "part").name, "iter_0000006")
        self.assertEqual(hashlib.sha256((newest(self.folder / "part") / "model.safetensors").read_bytes())
                         .hexdigest(), whole)

    def test_saved_models_are_measured_as_their_runs_measured_them(self):
        one, two = self.sets()
        flags = ("--eval-iters", 2, "--eval-interval", 3, "--split", "50,50,0", "--global-batch-size", 8)
        for name, data, more, steps in (("set", (one,), ("--save-interval", 6), (6, 8)),
                                        ("blend", (0.3, one, 0.7, two), (), (8,)),
                                        ("apart", (0.3, one, 0.7, two), ("--multiple-validation-sets",), (8,)),
                                        ("best", (one,), ("--keep-best",), (8,)),
                                        ("stop", (one,), ("--stop-after-no-better", 9), (8,))):
            lines = self.result(*flags, *more, "--seed", 5, data=("--data-path", *data), name=name, steps=8)[1]
            for step in steps:
                told = [(line.get("set"), line["validation_tokens"], round(line["validation_loss"], 6)) for line in lines
                        if "validation_loss" in line and line["step"] == step]
                done = run("eval", "--load", self.folder / name / f"iter_{step:07}", "--data-path", *data, "--split",
                           "50,50,0", "--eval-iters", 2, "--json")
                seen = [json.loads(line) for line in done.stdout.splitlines()]
                with self.subTest(name=name, step=step):
                    self.assertEqual(len(told), 3 if name == "apart" else 1)
                    for (of, tokens, loss), line in zip(told, seen):
                        self.assertEqual((of, tokens), (line.get("file"), line["tokens"]))
                        self.assertAlmostEqual(loss, line["loss"], 5)

        # Losses that are compared are of the same samples: where nothing is learned, they are equal.
        lines = self.result(*flags, "--lr", 0, "--stop-after-no-better", 2, data=("--data-path", one), name="same",
                            steps=30)[1]
        losses = [(line["step"], line["validation_loss"]) for line in lines if "validation_loss" in line]
        self.assertEqual(losses, [(step, losses[0][1]) for step in (3, 6, 9)])

    def test_the_tokenizer_of_a_run_need_not_be_named_again(self):
        # Its type decides which tokens are learned, and so what is measured.
        documents = [[ord("#"), *d] for d in self.documents(1)]
        one = self.written("one", documents)
        words = self.words("<|endoftext|>")
        (words / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>", "pad_token": "!"}))
        kinds = {"HuggingFaceTokenizer": ("--tokenizer-model", words), "NullTokenizer": ()}
        for kind, more in kinds.items():
            self.result("--tokenizer-type", kind, *more, "--split", "50,50,0", data=("--data-path", one), name=kind)
            end = ("--eod-mask-loss",)
            seen = [json.loads(run("eval", "--load", self.folder / kind, "--data-path", one, *end, *again, "--json").stdout)
                    for again in ((), ("--tokenizer-type", kind))]
            self.assertEqual(seen[0], seen[1])
            tokens = [t for d in documents for t in d]
            ends, pads = tokens.count(self.END) - 1, tokens.count(ord("!"))
            self.assertEqual(seen[0]["tokens"], len(tokens) - 1 - ends - (pads if more else 0))
        self.refused(USAGE, "generate", "--load", self.folder / "NullTokenizer", "--prompt", "#",
                     says="NullTokenizer has ids and no text; give the ids with --ids")
        run("generate", "--load", self.folder / "NullTokenizer", "--prompt", 35, "--ids", "--max-new-tokens", 1)
        # GPT-2's files are in the state.
        (words / "merges.txt").write_text("#version: 0.2\n")
        vocabulary = json.loads((words / "tokenizer.json").read_text())["model"]["vocab"]
        (words / "vocab.json").write_text(json.dumps(vocabulary))
        self.result("--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", words / "vocab.json", "--merge-file",
                    words / "merges.txt", data=("--data-path", one), name="gpt2")
        shutil.rmtree(words)
        text = json.loads(run("generate", "--load", self.folder / "gpt2", "--prompt", "#", "--json", "--max-new-tokens",
                              3).stdout)
        self.assertEqual(text["prompt_tokens"], [35])

    def test_words_may_stand_in_files(self):
        one, two = self.sets()
        plain = self.result("--eval-iters", 0, data=("--data-path", 1, one, 3, two), name="plain")[0]
        (self.folder / "words.txt").write_text(f"1 {one}\n3 {two}\n", encoding="utf-8-sig")  # as on Windows
        self.assertEqual(self.result("--eval-iters", 0, data=("--data-args-path", self.folder / "words.txt"),
                                     name="words")[0], plain)
        # A run that goes on may be told of them in another way.
        more = run("train", "--load", self.folder / "plain", "--save", self.folder / "plain", "--train-iters", 8,
                   "--data-args-path", self.folder / "words.txt")
        self.assertIn(f"data-path: 1, {one}, 3, {two} -> left out, for --data-args-path is given (may change)",
                      (more.stdout + more.stderr).decode())
        state = json.loads((newest(self.folder / "plain") / "megacpp_state.json").read_text())
        self.assertEqual(state["state"]["flags"]["data-type"], "indexed")
        self.refused(MISMATCH, "train", "--load", self.folder / "plain", "--data-type", "u16",
                     says="data-type is indexed there and u16 here")
        by_set = run("eval", "--load", self.folder / "plain", "--data-path", one, two).stdout
        self.assertEqual(run("eval", "--load", self.folder / "plain", "--data-path", 0.9, one, 0.1, two).stdout, by_set)
        for words in ((0.3, one, two), ("0,3", one, "0,7", two), (one, two, 0.5), (0.3, one, 0.7)):
            self.refused(USAGE, "train", "--data-path", *words, "--train-iters", 1, says="and is no weight there: one")
        parts = self.result(data=("--train-data-path", 1, one, 3, two, "--valid-data-path", one, two,
                                  "--test-data-path", two), name="parts")
        (self.folder / "parts.json").write_text(json.dumps(
            {"train": ["1", str(one), "3", str(two)], "valid": f"{one} {two}", "test": [str(two)]}))
        same = self.result(data=("--per-split-data-args-path", self.folder / "parts.json"), name="same")
        self.assertEqual(parts[0], same[0])
        by_name = {line["set"]: line["validation_loss"] for line in parts[1] if "validation_loss" in line
                   if "set" in line}
        self.assertEqual(set(by_name), {str(one), str(two)})
        self.assertEqual(len([line for line in parts[1] if "test_loss" in line]), 1)
        self.assertIn("test loss", parts[2])

    def test_the_test_part_is_measured_at_the_end(self):
        one, two = self.sets()
        tokens = {p: sum(len(d) for d in self.documents(s)) for p, s in ((one, 1), (two, 2))}

        def tests(name, *data):
            lines = self.result(data=data, name=name, steps=2)[1]
            return [line for line in lines if "test_loss" in line]
        # Of a split the documents that are left, also where nothing is validated.
        share = sum(len(d) for d in self.documents(1)[54:])
        for name, split in (("all", "80,10,10"), ("none", "90,0,10")):
            seen = tests(name, "--data-path", one, "--split", split)
            self.assertEqual([line["test_tokens"] for line in seen], [share - 1])
            self.assertEqual(seen[0]["step"], 2)
            last = json.loads(run("eval", "--load", self.folder / name, "--data-path", one, "--split",
                                  "90,10,0", "--json").stdout)  # the same documents
            self.assertEqual(last["tokens"], share - 1)
            self.assertAlmostEqual(last["loss"], seen[0]["test_loss"], 5)
        self.assertEqual(tests("off", "--data-path", one, "--split", "80,10,10", "--eval-iters", 0), [])
        # Of several sets each by its name, and all together.
        seen = tests("both", "--train-data-path", one, "--test-data-path", one, two)
        self.assertEqual([(line.get("set"), line["test_tokens"]) for line in seen],
                         [(str(one), tokens[one] - 1), (str(two), tokens[two] - 1),
                          (None, sum(tokens.values()) - 2)])
        mean = sum(line["test_loss"] * line["test_tokens"] for line in seen[:2]) / seen[2]["test_tokens"]
        self.assertAlmostEqual(seen[2]["test_loss"], mean, 5)
        for line, path in zip(seen, (one, two)):
            of = json.loads(run("eval", "--load", self.folder / "both", "--data-path", path, "--json").stdout)
            self.assertAlmostEqual(line["test_loss"], of["loss"], 5)
        some = tests("some", "--data-path", one, "--split", "80,10,10", "--eval-iters", 2,
                     "--global-batch-size", 8)
        self.assertEqual([line["test_tokens"] for line in some], [2 * 8 * 32])

    def test_a_run_may_be_counted_in_samples(self):
        one, _ = self.sets()
        data = ("--data-path", one, "--eval-iters", 0, "--global-batch-size", 8)
        rates = ("--lr-warmup-iters", 2, "--lr-decay-iters", 7)
        steps = self.result(*rates, data=data, name="steps", steps=6)
        model = self.folder / "samples"
        run("train", *data, "--train-samples", 50, "--lr-warmup-samples", 16, "--lr-decay-samples", 56,
            "--save", model, "--metrics-jsonl", self.folder / "s.jsonl")
        self.assertEqual(newest(model).name, "iter_0000006")
        shutil.copytree(model, self.folder / "steps-then")
        more = run("train", "--load", self.folder / "steps-then", "--train-iters", 7)  # in another way
        told = (more.stdout + more.stderr).decode()
        for flag in ("train-samples: 50", "lr-warmup-samples: 16", "lr-decay-samples: 56"):
            self.assertIn(f"{flag} -> left out, for --train-iters is given", told)
        self.assertIn("step 7/7", told)
        more = run("train", "--load", model, "--train-samples", 48)
        self.assertIn("nothing is left to train of --train-samples 48, which are 6 steps: give",
                      (more.stdout + more.stderr).decode())
        lines = [json.loads(line) for line in (self.folder / "s.jsonl").read_text().splitlines()]
        self.assertEqual([line["lr"] for line in lines if "lr" in line],
                         [line["lr"] for line in steps[1] if "lr" in line])
        for flags, says in ((("--train-samples", 50, "--train-iters", 3), "contradict"),
                            (("--train-samples", 50, "--lr-decay-iters", 3), "contradict"),
                            (("--lr-decay-samples", 9), "without --train-samples"),
                            (("--train-samples", 7), "a step has 8 sequences"),
                            (("--epochs", 1), "counts conversations")):
            self.refused(USAGE, "train", *data, *flags, says=says)

    def test_whole_evaluations_pass_over_the_number_of_a_file(self):
        one, _ = self.sets()
        (self.folder / "flags.json").write_text(json.dumps({"eval-iters": 1}))
        data = ("--data-path", one, "--split", "50,50,0")
        counts = [[line["validation_tokens"] for line in self.result(*more, data=data, name=name)[1]
                   if "validation_tokens" in line]
                  for name, more in (("whole", ()), ("flag", ("--config", self.folder / "flags.json",
                                                              "--full-validation")),
                                     ("some", ("--config", self.folder / "flags.json")))]
        self.assertEqual(counts[0], counts[1])
        self.assertLess(counts[2][0], counts[0][0])

    def test_ends_of_documents(self):
        one, _ = self.sets()
        data = ("--data-path", one, "--eval-iters", 0)
        plain = self.result(data=data, name="plain")[1]
        for flag in ("--reset-position-ids", "--eod-mask-loss"):
            lines = self.result(flag, "--tokenizer-type", "NullTokenizer", data=data, name=flag)[1]
            self.assertNotEqual(lines[0]["loss"], plain[0]["loss"])
        said = run("eval", "--load", self.folder / "plain", "--data-path", one, "--eod-mask-loss", "--tokenizer-type",
                   "NullTokenizer").stdout.decode()
        self.assertRegex(said, r" \d+ tokens, which are all but what follows the end of a document\n$")
        said = self.result("--eod-mask-loss", "--tokenizer-type", "NullTokenizer", data=("--data-path", one, "--split",
                           "80,20,0"), name="told", steps=1)[2]
        self.assertRegex(said, r"\| validation loss: .* \| \d+ tokens that are learned\n")
        # So it is shown: all are learned but what follows the end of a document.
        shown = run("train", *data, "--eod-mask-loss", "--tokenizer-type", "NullTokenizer", "--train-iters", 4,
                    "--show-mask", 16).stdout.decode().split("\nsample ")[1:]
        self.assertEqual(len(shown), 16)
        for sample in shown:
            head, *lines = sample.splitlines()
            tokens = [(int(token), line.startswith("    learned ")) for line in lines for token in line[12:].split()]
            self.assertEqual(head.partition(": ")[2], f"32 tokens, {sum(learned for _, learned in tokens)} learned")
            self.assertEqual([learned for _, learned in tokens[1:]], [token != self.END for token, _ in tokens[:-1]])
        ends = sum(d.count(self.END) for d in self.documents(1))
        seen = [json.loads(run("eval", "--load", self.folder / "plain", "--data-path", one, "--json", *more).stdout)
                for more in ((), ("--eod-mask-loss", "--tokenizer-type", "NullTokenizer"))]
        self.assertEqual(seen[0]["tokens"] - seen[1]["tokens"], ends - 1)  # nothing follows the last
        self.refused(USAGE, "train", *data, "--eod-mask-loss", says="--tokenizer-model")
        self.refused(MISMATCH, "train", *data, "--reset-attention-mask", "--tokenizer-type", "NullTokenizer",
                     says="PACKED")

    def words(self, *special):
        """The folder of a tokenizer: bytes are their own ids, but for special tokens, the last of which
        is the end of a document, the one before it has the id before."""
        words = self.folder / "words"
        words.mkdir()
        prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = iter(range(256, 512))
        letters = [chr(b) if b in prints else chr(next(others)) for b in range(256)]
        ids = {self.END - i: token for i, token in enumerate(reversed(special))}
        (words / "tokenizer.json").write_text(json.dumps({
            "added_tokens": [{"id": i, "content": token, "special": True} for i, token in ids.items()],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "merges": [],
                      "vocab": {c: b + 256 if b in ids else b for b, c in enumerate(letters)}}}))
        return words

    def test_which_token_ends_a_document(self):
        # In their order, whatever it is, no mark of exclamation is the first token or behind an end.
        documents = [[ord("#"), *d] for d in self.documents(1)]
        one = self.written("one", documents)
        words = self.words("<|endoftext|>", "<|im_end|>")
        config = words / "tokenizer_config.json"
        config.write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}, "pad_token": "!"}))
        self.result(data=("--data-path", one), name="a")
        tokens = [t for d in documents for t in d]
        whole, ends, pads = len(tokens) - 1, tokens.count(self.END) - 1, tokens.count(ord("!"))
        self.assertGreater(pads, 0)
        model = ("--tokenizer-model", words)
        megatron = (*model, "--tokenizer-type", "HuggingFaceTokenizer")
        mask = ("--eod-mask-loss",)
        for flags, learned in (((*model, *mask), whole),  # there is no <|endoftext|>
                               ((*model, *mask, "--eod-token", "<|im_end|>"), whole - ends),
                               ((*model, *mask, "--eod-token", "!"), whole - pads),
                               (megatron, whole - pads),
                               ((*megatron, *mask), whole - ends - pads),
                               # What ends documents is no padding.
                               ((*megatron, "--eod-token", "!"), whole),
                               ((*megatron, *mask, "--eod-token", "!"), whole - pads)):
            with self.subTest(flags=flags):
                seen = run("eval", "--load", self.folder / "a", "--data-path", one, "--json", *flags).stdout
                self.assertEqual(json.loads(seen)["tokens"], learned)
        for token, told in (("<|endoftext|>", True), ("<|im_end|>", False)):
            seen = self.result(*mask, *model, "--eod-token", token, data=("--data-path", one), name=f"b{told}",
                               steps=1)[2]
            self.assertEqual("no document that was looked at ends with it, but one with 127: let megacpp-data append it" in seen, told)
            self.assertIn("the tokenizer has 384 tokens, but the vocabulary of", seen)
        train = ("train", "--data-path", one)
        self.refused(USAGE, *train, *model, "--eod-token", "!", says="--eod-token changes nothing without")
        self.refused(USAGE, *train, *mask, *model, "--eod-token", "<end>", says='"<end>", which is to end')
        self.refused(USAGE, *train, *mask, "--tokenizer-type", "NullTokenizer", "--eod-token", "!",
                     says="NullTokenizer has none")
        self.refused(USAGE, "train", "--data-path", self.text, "--eod-token", "!", says="changes nothing")
        shutil.rmtree(words)
        words = self.words("<end>")
        self.refused(USAGE, *train, *mask, *model, says="by --eod-token")
        self.refused(USAGE, "generate", "--load", self.folder / "a", *model,
                     says="give what texts begin with by --prompt")

    def test_a_tokenizer_of_sentencepiece_is_not_read(self):
        one, _ = self.sets()
        named = ("--tokenizer-type", "Llama2Tokenizer", "--tokenizer-model", self.folder / "tokenizer.model")
        data = ("--data-path", one)
        plain, with_it = self.result(data=data, name="a"), self.result(*named, data=data, name="b")
        self.assertEqual(plain[0], with_it[0])
        self.assertIn("; the tokenizer is not read, for ids need none", with_it[2])
        self.assertEqual([p.name for p in newest(self.folder / "b").glob("token*")], [])
        for flag in ("--eod-mask-loss", "--reset-position-ids"):
            self.refused(USAGE, "train", *data, *named, flag, says="is of a file of SentencePiece")
        self.refused(USAGE, "train", "--data-path", self.text, *named, says="does not read texts here")
        self.refused(USAGE, "generate", "--load", self.folder / "a", *named, "--prompt", "a", says="of SentencePiece")
        # Names of Megatron-LM that are followed: the warm-up is a share of the decay.
        steps = ("--train-iters", 8, "--lr-decay-iters", 10, "--lr-decay-style", "constant", "--lr", 1)
        _, lines, _ = self.result(*steps, "--lr-warmup-fraction", 0.25, data=data, name="c")
        rates = [line["lr"] for line in lines if "lr" in line]
        for found, step in zip(rates, range(8), strict=True):
            self.assertAlmostEqual(found, min(1, step / 2.5), places=6)

    def test_a_tiktoken_file_goes_along(self):
        one, _ = self.sets()
        ranks = self.folder / "r50k_base.tiktoken"
        ranks.write_text("".join(f"{base64.b64encode(bytes([b])).decode()} {b}\n" for b in range(256)))
        a, out = self.folder / "a", self.folder / "out"
        self.result("--tokenizer-model", ranks, data=("--data-path", one), name="a")
        run("export", "--load", a, "--save", out)
        for folder in (newest(a), out):
            self.assertEqual((folder / ranks.name).read_bytes(), ranks.read_bytes())
            text = json.loads(run("generate", "--load", folder, "--prompt", "#", "--json", "--max-new-tokens",
                                  9).stdout)
            self.assertEqual(text["text"].encode(), bytes([35, *text["tokens"]]))

    def test_the_tokenizer_goes_along(self):
        one, _ = self.sets()
        words = self.words("<|endoftext|>")
        (words / "chat_template.jinja").write_text("any")
        said = self.result("--tokenizer-model", words, "--sample-interval", 8, "--sample-prompt", "#",
                           "--max-new-tokens", 9, data=("--data-path", one), name="a")[2]
        a, out = self.folder / "a", self.folder / "out"
        self.assertIn('sample: "#', said)  # texts on the way are texts
        for folder in (newest(a), out):
            if folder == out:
                for _ in range(2):  # the second one replaces what the first has written
                    run("export", "--load", a, "--save", out)
            for name in ("tokenizer.json", "chat_template.jinja"):
                self.assertEqual((folder / name).read_bytes(), (words / name).read_bytes())
            text = json.loads(run("generate", "--load", folder, "--prompt", "#", "--json", "--max-new-tokens", 9,
                                  "--stop", "<|endoftext|>").stdout)
            self.assertEqual(text["prompt_tokens"], [35])
            self.assertEqual(text["text"].encode(), bytes([35, *(t for t in text["tokens"] if t != self.END)]))
        run("train", "--load", a, "--save", a, "--train-iters", 9)
        (newest(a) / "tokenizer.json").write_text("{}")
        told = run("train", "--load", a, "--save", a, "--train-iters", 9)
        self.assertIn("tokenizer.json", told.stdout.decode() + told.stderr.decode())  # a state that is not whole

    def test_what_is_refused(self):
        one, two = self.sets()
        beyond = self.written("beyond", [[5, 6], [7, 200, 8]])
        self.refused(DATA, "train", "--data-path", beyond, "--split", "1,0,0",
                     says="at byte 6, of document 1, sequence 1, is 200")
        self.refused(USAGE, "train", "--data-path", 0, one, 1, two, says="the weight 0 of")
        self.refused(USAGE, "train", "--data-path", -1, one, 1, two, says="the weight -1 of")
        self.refused(DATA, "train", "--data-path", one, self.folder / "none", says="none.idx does not exist")
        self.refused(USAGE, "train", "--data-path", one, "--train-data-path", one, says="contradict")
        self.refused(USAGE, "train", "--train-data-path", one, "--split", "1", says="contradict")
        self.refused(USAGE, "train", "--data-path", one, "--seed", 1 << 32, says="below 2^32")
        self.refused(USAGE, "train", "--data-path", self.text, "--reset-position-ids", says="changes nothing")
        self.refused(USAGE, "train", "--data-path", one, "--full-validation", "--eval-iters", 1,
                     says="contradict")
        self.refused(DATA, "train", "--data-path", one, "--split", "1,0,0", "--eval-iters", 1,
                     says="nothing of")
        self.refused(USAGE, "train", "--data-path", self.text, "--tokenizer-type", "HuggingFaceTokenizer",
                     says="megacpp-data prepare")
        # Conversations may stand in several files; this program lacks something else.
        self.refused(MISMATCH, "train", "--data-type", "chat", "--data-path", self.text, self.text,
                     says="which conversations must have")
        self.refused(USAGE, "train", "--data-path", self.text, self.text, says="--data-path takes one value")
        self.refused(USAGE, "eval", "--load", self.saved(), "--data-type", "text", "--data-path", self.text,
                     "--data-args-path", self.text, says="--data-args-path names")
        idx = Path(f"{one}.idx")
        whole = idx.read_bytes()
        for at, wrong in ((0, b"X"), (9, b"\2"), (17, b"\7"), (18, b"\xff" * 8), (26, b"\xff" * 8)):
            idx.write_bytes(whole[:at] + wrong + whole[at + len(wrong):])
            self.assertIn(str(idx), self.refused(DATA, "train", "--data-path", one))
        idx.write_bytes(whole[:-1])
        self.refused(DATA, "train", "--data-path", one)
        idx.write_bytes(whole)
        bin_file = Path(f"{one}.bin")
        bin_file.write_bytes(bin_file.read_bytes()[:-2])
        self.refused(DATA, "train", "--data-path", one, says=str(one))


class Models(Case):
    def test_folders_that_are_no_model(self):
        model = self.model()
        self.refused(MODEL, "eval", "--load", self.folder / "none", "--data-path", self.text,
                     says="does not exist")
        self.refused(MODEL, "generate", "--load", self.text,
                     says="is not a folder; give one that train --save wrote, or one that holds config")
        self.refused(MODEL, "train", "--load", self.folder, "--data-path", self.text,
                     says="neither a model nor a saved state")
        (model / "config.json").rename(model / "config")
        self.refused(MODEL, "train", "--load", model, "--data-path", self.text,
                     says="has no file config.json")
        (model / "config").rename(model / "config.json")
        weights = model / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-1])
        self.refused(MODEL, "eval", "--load", model, "--data-path", self.text,
                     says="model.safetensors")
        weights.write_bytes(whole)
        config = json.loads((model / "config.json").read_text())
        config["n_layer"] = 3
        (model / "config.json").write_text(json.dumps(config))
        self.refused(MODEL, "generate", "--load", model, says="n_layer")

    LFS = (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 988097824\n")

    def test_pointers_of_git_lfs_are_named(self):
        model, root, pointer = self.model(), self.folder / "model", self.folder / "pointer"
        pointer.write_bytes(self.LFS)
        says = " is a pointer of Git LFS, and the file that it stands for was not downloaded; install git-lfs"
        for name in ("model.safetensors", "config.json"):
            whole = (model / name).read_bytes()
            (model / name).write_bytes(self.LFS)
            self.refused(MODEL, "eval", "--load", model, "--data-path", self.text, says=f"{model / name}{says}")
            (model / name).write_bytes(whole)
        for command in (("train",), ("eval", "--load", model)):
            self.refused(DATA, *command, "--data-path", pointer, says=f"{pointer}{says}")
        self.refused(DATA, "generate", "--load", model, "--tokenizer-model", pointer, says=f"{pointer}{says}")
        # Nothing older is taken in the place of a state that may be whole.
        self.train("--load", root, "--save", root, steps=9)
        (newest(root) / "model.safetensors").write_bytes(self.LFS)
        self.refused(MODEL, "eval", "--load", root, "--data-path", self.text, says=f"model.safetensors{says}")

    def test_weights_of_another_form_are_named(self):
        model, other = self.model(), self.folder / "other"
        (model / "adapter_config.json").write_text("{}")
        self.refused(MODEL, "eval", "--load", model, "--data-path", self.text,
                     says="has an adapter_config.json beside its weights")
        (model / "adapter_config.json").unlink()
        (model / "model.safetensors").unlink()
        other.mkdir()
        pickle = "files that torch.save wrote are not read"
        for name, says in (("pytorch_model.bin", pickle), ("pytorch_model.bin.index.json", pickle),
                           ("pytorch_model-00001-of-00002.bin", pickle), ("model.pt", pickle),
                           ("consolidated.00.pth", "from the form of the model that transformers reads"),
                           ("adapter_model.safetensors", "merge it into that model"),
                           ("model.gguf", "a model in a form of another program"),
                           ("model-00001-of-00002.safetensors", "without model.safetensors.index.json"),
                           ("model.fp16.safetensors", "weights are read from model.safetensors")):
            for command, folder in (("eval", model), ("train", other)):
                (folder / name).write_bytes(b"x")
                sentence = self.refused(MODEL, command, "--load", folder, "--data-path", self.text, says=says)
                self.assertIn(f"it has {name}", sentence)
                (folder / name).unlink()
        for name in ("training_args.bin", "optimizer.pt", "README.md"):  # which say nothing of weights
            (model / name).write_bytes(b"x")
        self.refused(MODEL, "eval", "--load", model, "--data-path", self.text,
                     says="has no file model.safetensors; it is incomplete or not a model")

    @staticmethod
    def spoil(folder, name, element, number):
        """Overwrites an element of an F32 tensor."""
        for path in folder.glob("*.safetensors"):
            data = bytearray(path.read_bytes())
            length = int.from_bytes(data[:8], "little")
            header = json.loads(data[8:8 + length])
            if name not in header:
                continue
            at = 8 + length + header[name]["data_offsets"][0] + 4 * element
            data[at:at + 4] = struct.pack("<f", number)
            path.write_bytes(data)
            return path
        raise AssertionError(name)

    def test_what_is_not_finite_is_not_loaded(self):
        model = self.model()
        path = self.spoil(model, "transformer.h.1.mlp.c_fc.weight", 37, math.nan)
        commands = (("train", "--data-path", self.text), ("eval", "--data-path", self.text),
                    ("generate",), ("export", "--save", self.folder / "exported"),
                    ("export", "--save", self.folder / "exported", "--dtype", "bf16"))
        for command in commands:
            with self.subTest(command=command):
                sentence = self.refused(MODEL, *command, "--load", model, says=f"{path}: element 37")
                self.assertIn('tensor "transformer.h.1.mlp.c_fc.weight" is nan', sentence)
        self.assertFalse((self.folder / "exported").exists())
        # What overflows on the way: a number that bf16 cannot hold.
        self.spoil(model, "transformer.h.1.mlp.c_fc.weight", 37, 3.4e38)
        self.refused(NONFINITE, *commands[-1], "--load", model, says="element 37 is not finite as BF16")
        self.assertFalse((self.folder / "exported").exists())
        run(*commands[-2], "--load", model)

    def test_training_goes_on_from_a_model(self):
        first, second = self.saved("--lr", "1e-2", steps=30), self.folder / "second"
        metrics = self.folder / "metrics"
        self.train("--load", first, "--save", second, "--lr", 0, "--metrics-jsonl", metrics,
                   "--finetune", steps=2)
        self.assertLess(json.loads(metrics.read_text().splitlines()[0])["loss"], 4.5)
        # A learning rate of zero changes nothing.
        weights = "model.safetensors"
        self.assertEqual(contents(newest(first))[weights], contents(newest(second))[weights])


class Export(Case):
    """Formats are read with Python's own means: the header is JSON behind its length."""

    @staticmethod
    def tensors(folder):
        """Name: (dtype, shape, bytes) over all files; and of each file its data's size."""
        all_of_them, sizes = {}, {}
        for path in Path(folder).glob("model*.safetensors"):
            data = path.read_bytes()
            length = int.from_bytes(data[:8], "little")
            header = json.loads(data[8:8 + length])
            for name, t in header.items():
                if name != "__metadata__":
                    begin, end = (8 + length + at for at in t["data_offsets"])
                    assert name not in all_of_them
                    all_of_them[name] = (t["dtype"], t["shape"], data[begin:end])
            sizes[path.name] = len(data) - 8 - length
        return all_of_them, sizes

    def exported(self, model, *flags):
        to = self.folder / "exported"
        out = run("export", "--load", model, "--save", to, *flags).stdout.decode()
        self.assertEqual(out.count("\n"), 1)
        return to, out

    def test_several_files(self):
        model = self.saved()
        before, _ = self.tensors(newest(model))
        to, out = self.exported(model, "--max-shard-size", "20KB")
        after, sizes = self.tensors(to)
        self.assertEqual(after, before)
        self.assertGreater(len(sizes), 3)
        self.assertIn(f"{len(before)} tensors", out)
        self.assertIn(f"{len(sizes)} files", out)
        index = json.loads((to / "model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"]["total_size"], sum(sizes.values()))
        self.assertEqual(set(index["weight_map"]), set(before))
        self.assertEqual(set(index["weight_map"].values()), set(sizes))
        self.assertEqual(sorted(sizes), [f"model-{i + 1:05}-of-{len(sizes):05}.safetensors"
                                         for i in range(len(sizes))])
        # All commands read it, and train writes it.
        evaluated = [run("eval", "--load", m, "--data-path", self.text).stdout for m in (model, to)]
        self.assertEqual(*evaluated)
        again = self.folder / "again"
        self.train("--load", to, "--save", again, "--lr", 0, "--max-shard-size", "20KB")
        self.assertEqual(self.tensors(newest(again)), self.tensors(to))
        # A state in several files goes on.
        self.assertIn(b"going on after step 8", self.train("--load", again, steps=9).stdout)
        self.assertEqual(self.tensors(self.exported(again)[0])[0], before)

    def test_ranks_write_what_one_does(self):
        model = self.saved()
        for flags in ((), ("--dtype", "bf16"), ("--dtype", "fp64", "--max-shard-size", "20KB")):
            one = contents(self.exported(model, *flags)[0])
            for ranks in (2, 5):
                to, _ = self.exported(model, *flags, "--ranks", ranks, "--check-collectives")
                self.assertEqual(contents(to), one)
        run("export", "--load", to, "--save", to, "--dtype", "fp32", "--ranks", 3)  # in its own place
        self.assertEqual(self.tensors(to), self.tensors(self.exported(model)[0]))

    def test_types(self):
        model = self.saved()
        before, _ = self.tensors(newest(model))
        to, _ = self.exported(model, "--dtype", "bf16")
        after, _ = self.tensors(to)
        for name, (dtype, shape, data) in after.items():
            self.assertEqual((dtype, shape), ("BF16", before[name][1]))
            exact = int.from_bytes(before[name][2][:4], "little")
            rounded = (exact + 0x7fff + (exact >> 16 & 1)) >> 16
            self.assertEqual(int.from_bytes(data[:2], "little"), rounded)
        config = json.loads((to / "config.json").read_text())
        self.assertEqual(config["torch_dtype"], "bfloat16")
        run("eval", "--load", to, "--data-path", self.text)

    def test_bad_input(self):
        model = self.model()
        before = contents(model)
        self.refused(USAGE, "export", "--load", model, says="--save FOLDER")
        self.refused(USAGE, "export", "--save", self.folder / "x", says="--load FOLDER")
        for size in ("0", "5XB", "-1GB", "99999999999TB", " "):
            self.refused(USAGE, "export", "--load", model, "--save", self.folder / "x",
                         f"--max-shard-size={size}", says="--max-shard-size")
            self.refused(USAGE, "train", "--mock-data", "--save", self.folder / "x",
                         f"--max-shard-size={size}", says="--max-shard-size ")
        self.refused(USAGE, "export", "--load", model, "--save", self.folder / "x", "--dtype=fp8",
                     says="--dtype")
        self.refused(USAGE, "export", "--load", model, "--threads", 1, says="unknown flag --threads")
        self.refused(OUTPUT, "export", "--load", model, "--save", self.text, says="is not a folder")
        root = self.folder / "model"  # the states that it is from
        states = contents(root)
        for source, to in ((root, root), (root, newest(root)), (model, root)):
            self.refused(OUTPUT, "export", "--load", source, "--save", to,
                         says=f"{to} holds the state of a run, which export leaves as it is: choose")
        self.assertEqual(contents(root), states)
        to, _ = self.exported(model, "--max-shard-size", "20KB")
        kept = contents(to)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "attention_sinks": 4}))
        self.refused(MODEL, "export", "--load", model, "--save", to, says="attention_sinks")
        (model / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        self.assertEqual(contents(model), before)
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (15000, 15000))  # noqa: E731
        self.refused(OUTPUT, "export", "--load", model, "--save", to, says="File too large (ulimit -f raises the limit)",
                     preexec_fn=limit)
        self.assertEqual(contents(to), kept)
        (to / "model-00002-of-" f"{len(list(to.glob('*.safetensors'))):05}.safetensors").unlink()
        self.refused(MODEL, "eval", "--load", to, "--data-path", self.text, says="has no file")

    def test_links_are_not_followed(self):
        model = self.model()
        weights = model / "model.safetensors"
        weights.rename(self.folder / "blob")
        weights.symlink_to(self.folder / "blob")
        self.refused(MODEL, "eval", "--load", model, "--data-path", self.text, says="cp -rL")


class Generation(Case):
    @classmethod
    def setUpClass(cls):
        once = Case()
        once.setUp()
        cls.addClassCleanup(once.doCleanups)
        cls.trained = once.saved("--lr", "1e-2", steps=40)

    def setUp(self):
        super().setUp()
        self.model = shutil.copytree(self.trained, self.folder / "model")

    def generate(self, *flags, **options):
        return run("generate", "--load", self.model, *flags, **options)

    def test_one_prompt(self):
        def written(*flags):
            return self.generate("--prompt", "12 green", "--max-new-tokens", 60, *flags).stdout
        greedy = written("--temperature", 0)
        self.assertTrue(greedy.startswith(b"12 green") and greedy.endswith(b"\n"))
        self.assertEqual(len(greedy), 8 + 60 + 1)
        self.assertEqual(greedy, written("--greedy"))
        self.assertEqual(greedy, written("--top-k", 1))
        self.assertEqual(greedy, written("--top-p", "1e-9", "--threads", 1))
        self.assertEqual(written("--seed", 1), written("--seed", 1))
        self.assertNotEqual(written("--seed", 1), written("--seed", 2))
        for flags in (("--greedy",), ("--seed", 5), ("--seed", 6, "--overflow", "stop")):
            with self.subTest(flags=flags):
                self.assertEqual(written(*flags), written(*flags, "--use-cache", "false"))
        self.assertEqual(self.generate("--max-new-tokens", 0).stdout, b"\n")
        speed = self.generate("--prompt", "12", "--max-new-tokens", 9).stderr.decode()
        self.assertRegex(speed, r"^prompts: 2 tokens in [\d.]+ s, [\d.kM]+ tokens/s \| "
                                r"new: 9 tokens in [\d.]+ s, [\d.kM]+ tokens/s\n$")

    def test_a_text_beyond_the_positions(self):
        def ids(prompt, *flags):
            done = self.generate("--prompt", prompt, "--greedy", "--json", *flags)
            return json.loads(done.stdout), done.stderr.decode().splitlines()
        # 32 positions: the later half goes on as if it were the whole text.
        text, lines = ids("7 green bottles", "--max-new-tokens", 40)
        self.assertEqual((len(text["tokens"]), text["end"], len(lines)), (40, "length", 1))
        half = bytes(text["prompt_tokens"] + text["tokens"])[17:33].decode()
        self.assertEqual(ids(half, "--max-new-tokens", 15)[0]["tokens"], text["tokens"][18:33])
        # Texts that the model does not know, each of which goes on its own way.
        def after(texts, steps):
            flags = [f for t in texts for f in ("--prompt", " ".join(map(str, t)))]
            done = self.generate("--ids", "--json", "--greedy", "--max-new-tokens", steps, *flags)
            return [json.loads(line)["tokens"] for line in done.stdout.splitlines()]
        draw = random.Random(1)
        texts = [[draw.randrange(97, 123) for _ in range(32)] for _ in range(32)]
        two = after(texts, 2)
        self.assertEqual(after([t[17:] + new[:1] for t, new in zip(texts, two)], 1),
                         [new[1:] for new in two])
        text, lines = ids("7 green bottles", "--max-new-tokens", 40, "--overflow", "stop")
        self.assertEqual((len(text["tokens"]), text["end"]), (18, "positions"))
        self.assertEqual(lines[0], "text 1 ends after 18 of 40 tokens: tiny_gpt has 32 positions")
        self.assertEqual(len(ids("x" * 32, "--max-new-tokens", 1, "--overflow", "stop")[0]["tokens"]),
                         1)
        self.refused(USAGE, "generate", "--load", self.model, "--prompt", "x" * 33,
                     says="33 tokens, but tiny_gpt has 32 positions")

    def test_several_prompts(self):
        prompts = ["12 green", "7", "bottles hanging on the wa", "and if "]
        flags = ["--max-new-tokens", 20, "--seed", 3]
        several = [f for p in prompts for f in ("--prompt", p)]
        lines = [json.loads(line) for line in
                 self.generate(*several, *flags, "--json").stdout.splitlines()]
        self.assertEqual([line["prompt"] for line in lines], prompts)
        self.assertEqual([len(line["tokens"]) for line in lines], [20] * 4)
        texts = [line["text"] for line in lines]
        self.assertTrue(all(t.startswith(p) for t, p in zip(texts, prompts)))
        plain = self.generate(*several, *flags).stdout.decode()
        self.assertEqual(plain, "\n---------------\n".join(texts) + "\n")
        for size in (1, 3):
            self.assertEqual(self.generate(*several, *flags, "--batch-size", size).stdout.decode(),
                             plain)
        # The first of a batch is what it is alone; the same prompt further on draws other tokens.
        self.assertEqual(self.generate("--prompt", prompts[0], *flags).stdout.decode(),
                         texts[0] + "\n")
        twice = self.generate("--prompt", "7", "--prompt", "7", *flags, "--json").stdout
        first, second = (json.loads(line)["tokens"] for line in twice.splitlines())
        self.assertNotEqual(first, second)
        # Greedily, every text is what it is alone.
        greedy = [json.loads(line)["tokens"] for line in
                  self.generate(*several, "--greedy", "--json").stdout.splitlines()]
        for prompt, tokens in zip(prompts, greedy):
            alone = self.generate("--prompt", prompt, "--greedy", "--json").stdout
            self.assertEqual(json.loads(alone)["tokens"], tokens)
        # From a file, and from a configuration file, which the command line overrides.
        file, config = self.folder / "prompts", self.folder / "run.json"
        for mark in "", "\ufeff":
            file.write_bytes((mark + "\n".join(prompts)).encode())
            self.assertEqual(self.generate("--prompts-file", file, *flags).stdout.decode(), plain)
        file.write_bytes("\r\n".join([*prompts[1:], ""]).encode())
        self.assertEqual(self.generate("--prompt", prompts[0], "--prompts-file", file,
                                       *flags).stdout.decode(), plain)
        config.write_text(json.dumps({"prompt": prompts, "seed": 3, "max-new-tokens": 20}))
        self.assertEqual(self.generate("--config", config).stdout.decode(), plain)
        self.assertEqual(self.generate("--config", config, "--prompt", prompts[0]).stdout.decode(),
                         texts[0] + "\n")

    def test_random_weights_are_those_that_a_run_begins_with(self):
        prompt = ("generate", "--ids", "--prompt", "7 8 9", "--max-new-tokens", 20)

        def written(*flags):
            return run(*prompt, "--random-weights", "--greedy", *flags).stdout
        begun = self.folder / "begun"  # by a step that changes no weight
        self.train("--save", begun, "--lr", "1e-44", "--min-lr", 0, "--seed", 5, steps=1)
        self.assertEqual(written("--seed", 5), run(*prompt, "--greedy", "--load", begun).stdout)
        self.assertNotEqual(written("--seed", 5), written())
        self.assertEqual(written("--ranks", 2), written())
        config = self.folder / "run.json"
        config.write_text(json.dumps({"load": str(self.model)}))
        for load in (("--load", self.model), ("--config", config)):
            self.refused(USAGE, *prompt, "--random-weights", *load, says="--load and --random-weights contradict")
        for flags, says in ((("--prompt", "7"), "--random-weights needs --ids"), (("--chat",), "needs --ids"),
                            (("--ids", "--prompt", "7", "--ignore-eos"), "--ignore-eos changes nothing")):
            self.refused(USAGE, "generate", "--random-weights", *flags, says=says)
        self.refused(USAGE, "eval", "--random-weights", "--data-path", self.text, says="random-weights")

    def test_several_samples(self):
        def texts(*flags):
            done = self.generate(*flags, "--max-new-tokens", 20, "--seed", 3, "--json")
            return [json.loads(line) for line in done.stdout.splitlines()]
        one, two = ("--prompt", "12 green"), ("--prompt", "12 green", "--prompt", "7")
        many = texts(*two, "--num-samples", 5)
        self.assertEqual([(t["prompt"], t["sample"]) for t in many],
                         [(p, k) for p in ("12 green", "7") for k in range(1, 6)])
        self.assertEqual(len({t["text"] for t in many}), 10)
        for size in (1, 3, 16):
            self.assertEqual(texts(*two, "--num-samples", 5, "--batch-size", size), many)
        # A sample is what it is among fewer, and the first one what there is without the flag.
        self.assertEqual(texts(*one, "--num-samples", 3), many[:3])
        first = texts(*two)
        self.assertEqual([t["tokens"] for t in first], [many[0]["tokens"], many[5]["tokens"]])
        self.assertNotIn("sample", first[0])
        plain = self.generate(*one, "--max-new-tokens", 20, "--seed", 3, "--num-samples", 3)
        self.assertEqual(plain.stdout.decode(),
                         "\n---------------\n".join(t["text"] for t in many[:3]) + "\n")
        # Greedily, they would be one.
        config = self.folder / "run.json"
        config.write_text('{"num-samples": 2}')
        for greedy in (("--greedy",), ("--temperature", 0)):
            self.refused(USAGE, "generate", "--load", self.model, *greedy, "--num-samples", 2,
                         says="--num-samples changes nothing beside --greedy")
            self.refused(USAGE, "generate", "--load", self.model, *greedy, "--config", config,
                         says="--num-samples changes nothing beside --greedy")
        self.refused(USAGE, "generate", "--load", self.model, "--num-samples", 0, says="--num-samples")

    def test_log_probabilities(self):
        # The loss of a text is the mean of its tokens' log probabilities, however they were drawn.
        drawn = ("--prompt", 55, "--ids", "--max-new-tokens", 32, "--temperature", 0.8, "--top-k", 9, "--seed", 2)
        line = json.loads(self.generate(*drawn, "--json", "--logprobs").stdout)
        plain = json.loads(self.generate(*drawn, "--json").stdout)
        self.assertEqual({k: v for k, v in line.items() if k != "logprobs"}, plain)
        (self.folder / "written").write_bytes(bytes([55, *line["tokens"]]))
        seen = json.loads(run("eval", "--load", self.model, "--data-path", self.folder / "written", "--json").stdout)
        self.assertEqual((seen["tokens"], len(line["logprobs"])), (32, 32))
        self.assertAlmostEqual(-sum(line["logprobs"]) / 32, seen["loss"], 5)
        # They are told as lines, too, behind each text.
        prompts = ("--prompt", "12 green", "--prompt", "7", "--max-new-tokens", 3, "--logprobs")
        texts = [json.loads(line) for line in self.generate(*prompts, "--json").stdout.splitlines()]
        parts = self.generate(*prompts).stdout.decode().split("\n---------------\n")
        one = self.generate(*prompts[:2], *prompts[4:]).stdout.decode()
        self.assertEqual(one, parts[0] + "\n")
        for text, part in zip(texts, parts):
            lines = part.removesuffix("\n").split("\n")
            self.assertEqual(lines[:2], [text["text"], "   logprob    token  text"])
            self.assertEqual(lines[2:-1], [f"{p:10.4f} {t:8}  {json.dumps(chr(t))}"
                                           for p, t in zip(text["logprobs"], text["tokens"])])
            mean = sum(text["logprobs"]) / 3
            self.assertEqual(lines[-1], f"{3 * mean:10.4f} in all, {mean:.4f} a token, "
                                        f"perplexity {math.exp(-mean):.4f}")

    def test_stops(self):
        def tokens(*flags):
            line = json.loads(self.generate("--prompt", "7 gr", "--seed", 4, "--json", *flags).stdout)
            return line["tokens"], line["end"]
        whole, end = tokens()
        self.assertEqual((len(whole), end), (200, "length"))
        rare = whole[11]
        first = whole.index(rare)
        self.assertEqual(tokens("--stop-tokens", rare), (whole[:first + 1], "stop"))
        self.assertEqual(tokens("--stop-tokens", f"1, {rare} 2"), (whole[:first + 1], "stop"))
        self.assertEqual(tokens("--stop-tokens", 1, "--stop-tokens", rare),
                         (whole[:first + 1], "stop"))
        written = bytes(whole).decode()
        words = written[9:12]
        self.assertEqual(tokens("--stop", "never", "--stop", words),
                         (whole[:written.index(words) + 3], "stop"))
        # The prompt stops nothing: "gr" is in it.
        self.assertGreater(len(tokens("--stop", "gr")[0]), 0)
        self.assertGreater(len(tokens("--stop-tokens", ord("r"))[0]), 0)

    def test_stops_where_the_model_says(self):
        model = shutil.copytree(newest(self.model), self.folder / "plain")
        for name in ("megacpp_state.json", "optimizer.safetensors"):
            (model / name).unlink()

        def tokens(*flags):
            done = run("generate", "--load", model, "--prompt", "7 gr", "--seed", 4, "--json", *flags)
            line = json.loads(done.stdout)
            return line["tokens"], line["end"]
        whole, _ = tokens()
        rare = whole[11]
        cut = (whole[:whole.index(rare) + 1], "stop")
        for name in ("config.json", "generation_config.json"):  # the second one is asked first
            said = json.loads((model / name).read_text())
            for ends in (rare, [127, rare]):
                (model / name).write_text(json.dumps({**said, "eos_token_id": ends}))
                self.assertEqual(tokens(), cut)
                self.assertEqual(tokens("--ignore-eos"), (whole, "length"))
            (model / name).write_text(json.dumps({**said, "eos_token_id": 127}))
            self.assertEqual(tokens(), (whole, "length"))
        (model / "generation_config.json").write_text('{"eos_token_id": "end"}')
        self.refused(MODEL, "generate", "--load", model, says="eos_token_id")

    def test_token_ids(self):
        def lines(*flags):
            return self.generate("--ids", "--greedy", "--max-new-tokens", 5, *flags).stdout.decode()
        text = json.loads(self.generate("--prompt", "7 gr", "--greedy", "--json",
                                        "--max-new-tokens", 5).stdout)
        ids = [55, 32, 103, 114]
        self.assertEqual(text["prompt_tokens"], ids)
        self.assertEqual(lines("--prompt", "55 32,103, 114"),
                         " ".join(map(str, ids + text["tokens"])) + "\n")
        as_json = json.loads(lines("--prompt", "55 32 103 114", "--json"))
        self.assertEqual(as_json, {"prompt_tokens": ids, "tokens": text["tokens"], "end": "length"})
        for prompt, says in (("128", "token 128 is outside the vocabulary of 0 to 127"),
                             ("-1", "token -1 is outside"), ("99999999999999999999", "outside"),
                             ("1 x", '"x" is not a token id'), ("1 2.5", '"2.5"'),
                             (" ", "the prompt is empty")):
            with self.subTest(prompt=prompt):
                self.refused(USAGE, "generate", "--load", self.model, "--ids", f"--prompt={prompt}",
                             says=says)

    def test_bad_input(self):
        def refused(code, *flags, says):
            with self.subTest(flags=flags):
                self.refused(code, "generate", "--load", self.model, *flags, says=says)
        refused(USAGE, "--prompt", "", says="--prompt: the prompt is empty")
        refused(USAGE, "--prompt", "x", "--prompt", "", says="--prompt: the prompt is empty")
        refused(USAGE, "--prompt=", "--greedy", says="--prompt= has no value")
        refused(USAGE, "--prompt", "caf\u00e9", says="byte 195 at position 3 is not a token")
        refused(USAGE, "--greedy", "--temperature", "0.5", says="--temperature and --greedy")
        refused(USAGE, "--stop-tokens", "128", says="--stop-tokens: token 128 is outside")
        refused(USAGE, "--stop-tokens", " ", says="names no token")
        for list_ in (",", "1,", ",1", "1,,2", "1, ,2"):
            refused(USAGE, "--stop-tokens", list_, says='--stop-tokens: "" is not a token id')
        refused(USAGE, "--stop", "", says="--stop is empty")
        refused(USAGE, "--ids", "--prompt", "1", "--stop", "x", says="give --stop-tokens")
        refused(USAGE, "--ids", says="--prompt or --prompts-file")
        refused(USAGE, "--batch-size", "0", says="--batch-size")
        refused(USAGE, "--overflow", "wrap", says="slide|stop")
        refused(USAGE, "--prompt", "--greedy", says="--prompt needs one value")
        self.generate("--prompt=--greedy", "--max-new-tokens", 1)
        file = self.folder / "prompts"
        refused(DATA, "--prompts-file", file, says="does not exist")
        refused(DATA, "--prompts-file", self.folder, says="is a directory")
        for content, says in ((b"", "is empty"), (b"a\n\nb", "line 2: the prompt is empty"),
                              (b"a\nb\xff", "line 2: byte 255 at position 1"),
                              (b"a\n" + b"b" * 40, "line 2: the prompt has 40 tokens")):
            file.write_bytes(content)
            refused(DATA, "--prompts-file", file, says=says)
        # A line of any length is refused before it takes memory.
        room = None if SANITIZED else (
            lambda: resource.setrlimit(resource.RLIMIT_DATA, (10**8, 10**8)))
        for ids in ((), ("--ids",)):
            says = "at least 33 tokens" if ids else "line 2: the prompt has 200000000 tokens"
            file.write_bytes(b"1\n" + b"1 " * 10**8)
            self.refused(DATA, "generate", "--load", self.model, *ids, "--prompts-file", file,
                         "--threads", 1, says=says, preexec_fn=room)
        config = self.folder / "run.json"
        config.write_text('{"prompt": ["a", 1]}')
        refused(USAGE, "--config", config, says="list of texts")


class Describe(Case):
    def test_text_and_json_agree(self):
        text = run("describe").stdout.decode()
        result = json.loads(run("describe", "--json").stdout)
        parameters = 128 * 32 + 32 * 32 + 2 * (2 * 32 + 4 * 32 * 32 + 2 * 32 * 64) + 32
        self.assertEqual(result["parameters"], parameters)
        self.assertIn(f"parameters            {parameters}\n", text)
        self.assertIn("generates             yes\n", text)
        self.assertTrue(result["generates"])
        checked = result["product_checks"]  # on the machine of the tests no library is wrong
        self.assertGreater(checked["tiles"], 0)
        self.assertEqual(checked["wrong"], [])
        self.assertRegex(text, rf"\n  checked +{checked['tiles']} kinds of tiles in .*; 0 wrong\n")
        shapes = result["product_shapes"]
        self.assertEqual({shape["kind"] for shape in shapes}, {"forward", "input_gradient", "weight_gradient"})
        self.assertTrue(all(shapes.count(shape) == 1 for shape in shapes))
        up = {"kind": "forward", "M": 128, "N": 64, "K": 32, "a": "f32", "b": "f32", "out": "f32"}
        self.assertEqual(len([shape for shape in shapes if up.items() <= shape.items()]), 1)
        memory = result["memory"]
        self.assertEqual(memory["in all"], sum(v for k, v in memory.items() if k != "in all"))
        self.assertEqual(memory["moments"], 2 * memory["weights"])
        for part in ("stem", "block", "head"):
            self.assertEqual(list(result["graphs"][part]),
                             ["the model", "differentiate", "pending", "fuse", "split"])
        # Products: 2 operations per weight and token forward, 4 backward. Attention has 2 products
        # of S(S+1)/2 x H forward and 5 backward.
        dense = 2 * 128 * (2 * (4 * 32 * 32 + 2 * 32 * 64) + 128 * 32)
        attention = 2 * 4 * 2 * (32 * 33 // 2) * 32
        flops = sum(stage["flops"] for stage in result["work"].values())
        self.assertAlmostEqual(flops, 3 * dense + 7 * attention, delta=0.02 * flops)
        # A decoded token reads all weights but the other rows of the positions' table, and the caches: keys
        # and values of two layers. Values on the way are some thousand bytes.
        decoding, caches = result["decoding"], 2 * 2 * 32 * 32 * 4
        self.assertEqual((decoding["tokens"], decoding["caches"]), (32, caches))
        read = caches + 4 * (parameters - 31 * 32)
        self.assertAlmostEqual(decoding["read"], read + 3000, delta=3000)
        self.assertEqual(result["collectives"], [])  # one rank has nobody to talk to
        self.assertIn("(dp 1)\n  none\n", text)
        # The text tells what there is to know at a glance; the graphs are asked for.
        self.assertLessEqual(len(text.splitlines()), 60)
        self.assertNotIn(" after ", text.replace("after each pass", ""))
        self.assertIn("\n--graphs lists ", text)
        graphs = run("describe", "--graphs").stdout.decode()
        self.assertTrue(graphs.startswith("Parameters\n  stem "))
        for part in ("stem", "block", "head"):
            for name, nodes in result["graphs"][part].items():
                listed = "".join(f"  {i:3} {node}\n" for i, node in enumerate(nodes))
                self.assertIn(f"\n{part} after {name}: {len(nodes)} nodes\n{listed}", graphs)
        self.assertIn("(dp 1)\n  none\n", graphs)
        sent = run("describe", "--ranks", 2).stdout.decode()
        listed = run("describe", "--graphs", "--ranks", 2).stdout.decode()
        self.assertRegex(sent, r"(?m)^  all-reduce +over dp +\d+ times +[0-9.]+ \w+ sent by a rank$")
        self.assertRegex(listed, r"(?m)^  update .* all-reduce +over dp ")
        for flag in (("--json",), ("--pictures", self.folder / "a")):
            self.refused(USAGE, "describe", "--graphs", *flag, says=f"--graphs changes nothing beside {flag[0]}")
        self.refused(USAGE, "describe", "--graphs", "--load", self.folder, says="--graphs is for the description of a program")

    def test_roofline(self):
        result = json.loads(run("describe", "--roofline", "h100", "--json").stdout)
        work = json.loads(run("describe", "--json").stdout)["work"]
        for what in ("flops", "read", "written"):
            self.assertEqual(sum(op[what] for op in result["ops"]), sum(part[what] for part in work.values()))
        # Bytes of (T, H), of (T, F), of the table, and of a number of each token. In a block a norm reads the
        # sum before it no more; the gradients of two norms and of two products, and the one that GELU's slope
        # is multiplied by, are no more written and read. The head no more reads stream, table and labels again
        # in the gradient of the loss, nor writes and reads what goes from one to the other.
        stream, wide, table, row = 4 * 128 * 32, 4 * 128 * 64, 4 * 128 * 32, 4 * 128
        lse, dlse, target, dtarget, labels = 4 * 2 * row, 2 * 2 * row, 3 * row, 2 * row, 3 * row
        self.assertEqual(result["bytes_fused_away"], 2 * ((1 + 4 * 2) * stream + 2 * wide) + stream + table
                         + lse + dlse + target + dtarget + labels)
        text = run("describe", "--roofline", "h200").stdout.decode()
        for op in result["ops"]:
            self.assertRegex(text, rf"(?m)^  {re.escape(op['op'])} +{op['nodes']} .* (memory|arithmetic|both)$")
        self.assertIn(" on an H200, about, of one rank\n", text)
        self.assertRegex(text, r"tokens/s of a GPU and an MFU of [0-9.]+ % in steps of many micro-batches")
        self.refused(USAGE, "describe", "--roofline", "b300", says="h100")
        self.refused(USAGE, "describe", "--roofline", "h100", "--graphs",
                     says="--graphs changes nothing beside --roofline")
        self.refused(USAGE, "describe", "--roofline", "h100", "--load", self.folder,
                     says="--roofline is for the description")

    def test_replicas(self):
        self.refused(USAGE, "describe", "--load", self.model(), "--ranks", 2,
                     says="--ranks is for the description")
        result = json.loads(run("describe", "--json", "--ranks", 3).stdout)
        gradients = [c for c in result["collectives"] if c["part"] == "update"]
        self.assertEqual([(c["what"], c["axes"], c["ranks"]) for c in gradients],
                         [("all-reduce", ["dp"], 3)] * len(gradients))
        self.assertEqual(sum(c["bytes"] * c["per_step"] for c in gradients),
                         result["memory"]["main grads"])
        self.assertIn("for training (dp 3)\n", run("describe", "--ranks", 3).stdout.decode())

    def test_pictures(self):
        folder = self.folder / "a" / "b"
        self.assertEqual(run("describe", "--pictures", folder).stdout.decode().splitlines(),
                         [f"{folder}/mesh.svg"])  # of one rank there is no schedule
        self.assertIn(">rank 0<", (folder / "mesh.svg").read_text())
        (folder / "mesh.svg").write_text(TEXT)
        self.refused(OUTPUT, "describe", "--pictures", folder, says="is there and is no picture")
        self.refused(OUTPUT, "describe", "--pictures", self.text, says="cannot create")

    def test_states(self):
        begin, metrics = int(time.time()), self.folder / "metrics"
        root = self.saved("--split", "80,20", "--eval-interval", 6, "--save-interval", 4, "--keep-best",
                          "--metrics-jsonl", metrics, "--lr", "1e-2", steps=10)

        def listed():
            lines = run("describe", "--load", root).stdout.decode().splitlines()
            return json.loads(run("describe", "--load", root, "--json").stdout), lines

        def resumed():
            said = run("train", "--load", root, "--data-path", self.text, check=None)
            return said.stdout.decode() + said.stderr.decode()
        told = list(map(json.loads, metrics.read_text().splitlines()))
        losses = {line["step"]: line["loss"] for line in told if "loss" in line}
        validation = {line["step"]: line["validation_loss"] for line in told
                      if "validation_loss" in line}
        best = min(validation, key=validation.get)
        result, lines = listed()
        self.assertEqual([(s["folder"], s["step"]) for s in result["states"]],
                         [("iter_0000010", 10), ("iter_0000008", 8), ("iter_0000004", 4),
                          ("best", best)])
        for state in result["states"]:
            self.assertEqual((state["loss"], state.get("validation_loss"), state["whole"]),
                             (losses[state["step"]], validation.get(state["step"]), True))
            self.assertEqual(state["bytes"], sum(p.stat().st_size
                                                 for p in (root / state["folder"]).iterdir()))
            committed = time.strptime(state["committed"], "%Y-%m-%dT%H:%M:%SZ")
            self.assertTrue(begin <= calendar.timegm(committed) <= time.time())
        self.assertEqual((result["train"], result["best"], result["finished"]), ("iter_0000010", "best", True))
        self.assertEqual([s["steps"] for s in result["states"]], [10] * 4)
        self.assertEqual([line.split()[0] for line in lines],
                         ["state", "iter_0000010", "iter_0000008", "iter_0000004", "best", "train"])
        self.assertIn("train --load goes on from iter_0000010, whose run has finished", lines)
        # What is listed as damaged is what a run passes over, for the same reason.
        before = contents(root)
        for name, folder in (("optimizer.safetensors", "iter_0000010"), ("config.json", "best")):
            path = root / folder / name
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        result, lines = listed()
        self.assertEqual([s["whole"] for s in result["states"]], [False, True, True, False])
        self.assertEqual((result["train"], result["finished"]), ("iter_0000008", False))
        for state, line in zip(result["states"], lines[1:]):
            self.assertEqual(line.endswith("Z  whole"), state["whole"])
            self.assertEqual(f"  damaged: {state.get('damage')}" in line, not state["whole"])
        self.assertIn(str(root / "iter_0000010" / "optimizer.safetensors") + " is damaged",
                      result["states"][0]["damage"])
        self.assertIn(f"cannot be used, so the one before is: {result['states'][0]['damage']}\n",
                      resumed())
        self.assertIn("going on after step 8", resumed())
        # Nothing is taken in the place of one that may be whole.
        path = root / "iter_0000008" / "megacpp_state.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
        result, lines = listed()
        self.assertNotIn("train", result)
        self.assertIn(result["refused"], resumed())
        self.assertIn("no older one takes its place", lines[-1])
        self.assertEqual(len(contents(root)), len(before))
        # One state; and none.
        result = json.loads(run("describe", "--load", root / "iter_0000004", "--json").stdout)
        self.assertEqual([s["step"] for s in result["states"]], [4])
        self.refused(MODEL, "describe", "--load", self.folder, says="has no saved state")
        self.refused(MODEL, "describe", "--load", self.folder / "none", says="does not exist")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    PROGRAM = str(Path(sys.argv.pop(1)).resolve())
    if b"__asan_init" in Path(PROGRAM).read_bytes():
        SANITIZED, WITHOUT_LEAKS = True, {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    if sys.argv[1:2] == ["--part"]:
        k, n = map(int, sys.argv[2].split("/"))
        del sys.argv[1:3]
        tests = [test for of_class in unittest.defaultTestLoader.loadTestsFromModule(
            sys.modules["__main__"]) for test in of_class]
        sys.argv += [test.id().removeprefix("__main__.") for test in tests[k - 1::n]]
    unittest.main()
