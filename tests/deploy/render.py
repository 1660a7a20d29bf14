#!/usr/bin/env python3
"""examples/deploy/render.sh: what becomes of values, also of hostile ones, and what is refused.

    render.py ROOT [unittest argument...]
"""

import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

DEPLOY = PROGRAM = None
USAGE = 2
VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")
# What a shell or YAML would do something with, and what people paste.
HOSTILE = ["$(touch hacked)", "`touch hacked`", "; touch hacked", "a b  c", "it's", 'say "no"', "'", '"', "\\", "\\n\\", "a: b",
           "# no comment", "a #b", "- x", "{a: 1}", "[1, 2]", "!!python/object", "&a *a", "| >", "%x", "@y", "~", "null", "yes",
           "1e3", "0x10", "${HOME}", "$HOME", "$0 $@", "* * * * *", "a\tb", "한국어", "=", "a=b=c", "--flag", ">out", "a&&b", "!x"]

# What Kubernetes would do something with in a manifest; a script takes it as it is.
EXPANDED = ["a$(HF_TOKEN)b", "$$", "a$$b", "$$$", "$$(HOME)", "a$(A)$$"]


def render(*words, check=0):
    """What render.sh does, in this process, since there are hundreds of values."""
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        code = PROGRAM.main([str(word) for word in words])
    if code != check:
        raise AssertionError(f"{words}: exit code {code}, not {check}\n{out.getvalue()}{said.getvalue()}")
    return out.getvalue() if check == 0 else said.getvalue()


def templates():
    return {str(p.relative_to(DEPLOY))[:-len(".in")]: p.read_text() for p in sorted(DEPLOY.rglob("*.in"))}


def example():
    return dict(line.split("=", 1) for line in (DEPLOY / "values.example").read_text().splitlines()
                if line and not line.startswith("#"))


def written(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Render(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="megacpp-deploy-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def values(self, text=None, **changed):
        path = self.folder / "values"
        if text is None:
            text = "".join(f"{name}={value}\n" for name, value in {**example(), **changed}.items() if value is not None)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def refused(self, pattern, values, *names, out=None):
        said = render(values, out or self.folder / "out", *names, check=USAGE)
        self.assertRegex(said, pattern)
        self.assertRegex(said, r"\Arender\.sh: [^\n]+\n\Z")  # one sentence
        self.assertFalse((self.folder / "out").exists(), "something was written all the same")

    def test_the_example_fills_all_templates_and_again_the_same(self):
        for out in ("one", "two"):
            render(DEPLOY / "values.example", self.folder / out)
        one, two = (written(self.folder / out) for out in ("one", "two"))
        self.assertEqual(one.keys(), templates().keys())
        self.assertEqual(one, two)
        for name, text in one.items():
            self.assertIsNone(VARIABLE.search(text.decode()), name)
        self.assertEqual(one, written(self.folder / "one"))
        render(DEPLOY / "values.example", self.folder / "one")  # over what is there
        self.assertEqual(one, written(self.folder / "one"))

    def test_envsubst_of_the_same_variables_gives_the_same(self):
        render(DEPLOY / "values.example", self.folder / "out")
        environment = {**os.environ, **example()}
        tool = shutil.which("envsubst")
        for name, text in templates().items():
            names = render("--names", name.split(".")[0])
            if tool:
                by_envsubst = subprocess.run([tool, names], input=text, env=environment, capture_output=True, text=True, check=True).stdout
            else:
                by_envsubst = VARIABLE.sub(lambda match: environment[match.group(1)], text)
            self.assertEqual((self.folder / "out" / name).read_text(), by_envsubst, name)
            if tool and ".yaml" in name:  # also where all variables are replaced
                by_envsubst = subprocess.run([tool], input=text, env=environment, capture_output=True, text=True, check=True).stdout
                self.assertEqual((self.folder / "out" / name).read_text(), by_envsubst, name)

    def test_hostile_values_in_yaml(self):
        text = templates()["kubernetes/states-to-s3.yaml"]
        line = next(line for line in text.splitlines() if "${S3_SCHEDULE}" in line)
        for value in HOSTILE:
            with self.subTest(value):
                render(self.values(S3_SCHEDULE=value), self.folder / "out", "kubernetes/states-to-s3")
                lines = (self.folder / "out/kubernetes/states-to-s3.yaml").read_text().splitlines()
                filled = lines[text.splitlines().index(line)]
                self.assertEqual(len(lines), len(text.splitlines()))
                # Quoted scalars of YAML are texts of JSON where they have no other escapes than these.
                self.assertEqual(json.loads(filled.split(": ", 1)[1]), value)

    def test_hostile_values_in_scripts(self):
        for value in [*HOSTILE, *EXPANDED]:
            with self.subTest(value):
                render(self.values(SLURM_DATA=value, SLURM_RUN=value), self.folder / "out", "slurm/bare")
                # The words that the script gives srun, in whose place a function tells them.
                script = (self.folder / "out/slurm/bare.sbatch").read_text()
                asked = subprocess.run(["bash", "-c", "srun() { printf '%s\\0' \"$@\"; exit 0; }\n" + script], capture_output=True,
                                       cwd=self.folder, env={**os.environ, "HOME": "/nowhere"}, check=True).stdout
                words = asked.decode().split("\0")
                self.assertEqual(words[words.index("--data-path") + 1], value)
                self.assertEqual(words[words.index("--load") + 1], value)
                self.assertFalse((self.folder / "hacked").exists())

    def test_values_that_slurm_reads_are_words(self):
        for value in HOSTILE:
            if value in ("yes", "null", "1e3", "0x10", "@y", "%x", "--flag", "=", "a=b=c"):
                continue  # words
            with self.subTest(value):
                self.refused("SLURM_TIME is .* Slurm does not take as one word", self.values(SLURM_TIME=value), "slurm/bare")

    def test_a_number_must_be_one(self):
        for value in [*HOSTILE, "1 # one", "01", "-1", "1.5", "1e3", "9" * 19]:
            with self.subTest(value):
                self.refused("FULL_GRACE_SECONDS is .* needs an integer", self.values(FULL_GRACE_SECONDS=value),
                             "kubernetes/full-pytorchjob")

    def test_a_number_that_kubernetes_does_not_hold(self):
        for name, most in (("FULL_GRACE_SECONDS", 2**31 - 1), ("METRICS_PORT", 65535)):
            for value in (most, 1):
                render(self.values(**{name: value}), self.folder / "fits", "kubernetes/full-pytorchjob")
            for value in (most + 1, "9" * 18):
                self.refused(f"{name} is {value}, but .* takes no number above {most};", self.values(**{name: value}),
                             "kubernetes/full-pytorchjob")

        self.refused("METRICS_PORT is 0, but .* needs a port, which is at least 1;", self.values(METRICS_PORT=0), "kubernetes/network-policy")
        render(self.values(NUM_WORKERS=0), self.folder / "none", "hyperpod/pytorchjob")

    def test_a_variable_of_the_container(self):
        self.refused(r"MODEL has \$\(HF_TOKEN\), in whose place Kubernetes would put", self.values(MODEL="a$(HF_TOKEN)b"))
        self.refused(r"MODEL has \$\$, in whose place Kubernetes would put \$ ", self.values(MODEL="a$$b"))
        for value in EXPANDED:
            for name in ("MODEL", "S3_SCHEDULE", "HTTPS_PROXY", "PIPELINE_RUN"):
                with self.subTest(value, name=name):
                    self.refused(f"{name} has .*, in whose place Kubernetes would put", self.values(**{name: value}))
        # Nor do a value and what stands around it make one together.
        for name, text in templates().items():
            if ".sbatch" not in name:
                self.assertNotRegex(text, r"\$\$|\$\{[A-Z][A-Z0-9_]*\}[$(]", name)

    def test_an_unset_value(self):
        self.refused("does not set MODEL, which kubernetes/compare-full needs", self.values(MODEL=None))
        render(self.values(MODEL=None), self.folder / "out", "slurm")  # which has no MODEL
        self.assertEqual({Path(name).parts[0] for name in written(self.folder / "out")}, {"slurm"})

    def test_an_unknown_name(self):
        self.refused("sets MODELL, which no template has", self.values(MODELL="x"))

    def test_workers_are_nodes_but_the_first(self):
        self.refused("NUM_WORKERS is 1 and NUM_NODES is 4; the first node is no worker", self.values(NUM_NODES=4))
        render(self.values(NUM_NODES=4, NUM_WORKERS=3), self.folder / "out", "hyperpod")
        render(self.values(NUM_NODES=4), self.folder / "out", "kubernetes")  # which has neither

    def test_empty_values(self):
        self.refused("MODEL has no value", self.values(MODEL=""))
        render(self.values(HTTPS_PROXY="", NO_PROXY=""), self.folder / "out")

    def test_lines_that_are_none(self):
        for text, pattern in ((b"MODEL\n", "line 1 is no NAME=value"), (b"\n\nexport MODEL=x\n", "line 3 is no NAME=value"),
                              (b"model=x\n", "is no NAME=value"), (b"MODEL =x\n", "is no NAME=value"), (b"MODEL= x\n", "begins or ends with a blank"),
                              (b"MODEL=x \n", "begins or ends with a blank"), (b"MODEL=x\r\n", "carriage return"), (b"MODEL=\x1b[31m\n", "no terminal shows"),
                              (b"MODEL=a\x00b\n", "no terminal shows"), (b"MODEL=\xff\n", "not UTF-8"), (b"\xef\xbb\xbf# \nMODEL=a\n", "byte order mark"), ("MODEL=a\n".encode("utf-16"), "byte order mark"), *((f"MODEL=a{c}b\n".encode(), "no terminal shows") for c in "\u2028\u200b\u202e\u00a0\u3000\u3164\ufeff\x85\uffff\ue000\u00ad"),
                              (b"MODEL=a\nMODEL=b\n", "line 2: MODEL is set for the second time")):
            with self.subTest(text):
                self.refused(pattern, self.values(text))

    def test_files(self):
        self.refused("nowhere cannot be read", self.folder / "nowhere")
        self.refused("cannot be read", self.folder)
        file = self.folder / "file"
        file.write_text("")
        self.refused("cannot be written", DEPLOY / "values.example", out=file)
        self.refused("there is no template kubernetes/none", DEPLOY / "values.example", "kubernetes/none")
        self.assertRegex(render(check=USAGE), "give VALUES and OUT")
        self.assertRegex(render("--what", "a", "b", check=USAGE), "give VALUES and OUT")
        self.assertIn("render.sh VALUES OUT", render("--help"))
        self.assertEqual(render("--list").split(), [name.split(".")[0] for name in templates()])

    def test_the_script_itself_from_another_folder(self):
        subprocess.run([DEPLOY / "render.sh", DEPLOY / "values.example", "out", "slurm"], cwd=self.folder, check=True)
        self.assertTrue((self.folder / "out/slurm/bare.sbatch").is_file())
        done = subprocess.run([DEPLOY / "render.sh", "nowhere", "new"], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (USAGE, ""))
        self.assertRegex(done.stderr, r"\Arender\.sh: nowhere cannot be read \([^\n]+\n\Z")

    def test_the_example(self):
        """Values that follow from others, and every name with its use."""
        values = example()
        self.assertEqual(int(values["NUM_WORKERS"]), int(values["NUM_NODES"]) - 1)
        self.assertEqual(set(values), {name for text in templates().values() for name in VARIABLE.findall(text)})
        # A save of the state of Qwen3-30B-A3B, 12 bytes a parameter, at 1 GB/s, twice, a step, and half a minute.
        self.assertGreaterEqual(int(values["FULL_GRACE_SECONDS"]), 2 * 30_532_122_624 * 12 / 1e9 + 60 + 30)
        self.assertIn("366.4 GB", (DEPLOY / "values.example").read_text())
        self.assertEqual(f"{30_532_122_624 * 12 / 1e9:.1f}", "366.4")


if __name__ == "__main__":
    DEPLOY = Path(sys.argv[1]).resolve() / "examples/deploy"
    spec = importlib.util.spec_from_file_location("render_program", DEPLOY / "render.py")
    PROGRAM = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(PROGRAM)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
