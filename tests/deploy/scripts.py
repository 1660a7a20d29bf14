#!/usr/bin/env python3
"""The scripts that containers of examples/deploy run: on files, a server on loopback, states of a program, and
stand-ins of huggingface_hub and boto3.

    scripts.py PROGRAM [unittest argument...]

Parquet needs pyarrow; models.sh runs it in an environment that has it.
"""

import gzip
import hashlib
import http.server
import importlib.util
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "examples/deploy/kubernetes/scripts"
PROGRAM = None
TEXT = b"".join(b"%d green bottles\n" % n for n in range(5000))


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="megacpp-scripts-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def run_script(self, name, *words, check=0, **environment):
        done = subprocess.run([sys.executable, "-B", SCRIPTS / name, *map(str, words)], capture_output=True, text=True, check=False,
                              cwd=self.folder, env={**os.environ, "FETCH_WAIT": "0", **environment}, timeout=60)
        self.assertEqual(done.returncode, check, done.stdout + done.stderr)
        if check:
            self.assertRegex(done.stderr.splitlines()[-1], rf"^{name}: .*")
        return done.stdout if check == 0 else done.stderr

    def stand_in(self, module, text):
        path = self.folder / "packages" / (module.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return {"PYTHONPATH": str(self.folder / "packages")}


class Fetch(Case):
    def setUp(self):
        super().setUp()
        self.answers = {"/text": [TEXT], "/text.xz": [lzma.compress(TEXT)], "/text.gz?x=1": [gzip.compress(TEXT)], "/busy": [503, 500, TEXT],
                        "/gone": [404] * 9, "/down": [500] * 9, "/damaged.xz": [lzma.compress(TEXT)[:-20]] * 9, "/cut": [-1, TEXT],
                        "/damaged.gz": [self.with_a_wrong_block()] * 9, "/slow": ["drops", TEXT], "/slow.xz": ["drops", lzma.compress(TEXT)], "/other": [TEXT[:100]]}
        test = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                test.asked.append(self.path)
                answer = test.answers[self.path].pop(0)
                if answer == "drops":
                    return self.drip()
                self.send_response(answer if isinstance(answer, int) and answer > 0 else 200)
                body = answer if isinstance(answer, bytes) else b"" if answer > 0 else TEXT[:1000]
                self.send_header("Content-Length", str(len(TEXT) if answer == -1 else len(body)))
                self.end_headers()
                self.wfile.write(body)

            def drip(self):
                """A byte now and then, each soon enough that no read of the socket takes long."""
                self.send_response(200)
                self.send_header("Content-Length", str(len(TEXT)))
                self.end_headers()
                try:
                    for byte in lzma.compress(TEXT).ljust(len(TEXT), b"x"):
                        self.wfile.write(bytes([byte]))
                        time.sleep(0.05)
                except OSError:
                    pass  # the other end has gone

            def log_message(self, *_):
                pass
        self.asked = []
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.at = f"http://127.0.0.1:{server.server_port}"

    @staticmethod
    def with_a_wrong_block():
        """The head of gzip, and behind it what no block begins with."""
        return gzip.compress(TEXT)[:10] + b"\xff" * 50

    def fetch(self, path, *words, check=0, **environment):
        return self.run_script("fetch.py", "url", *words, self.at + path, self.folder / "new/file", check=check, NO_PROXY="127.0.0.1",
                               no_proxy="127.0.0.1", **environment)

    def has(self, content, *others):
        """The file has the content, and stands beside its mark and other files alone."""
        self.assertEqual((self.folder / "new/file").read_bytes(), content)
        self.assertEqual(sorted(os.listdir(self.folder / "new")), sorted(["file", "file.fetched.json", *others]))

    def test_files(self):
        for path in ("/text", "/text.xz", "/text.gz?x=1", "/busy", "/cut"):
            with self.subTest(path):
                self.fetch(path)
                self.has(TEXT)
                asked = len(self.asked)
                self.assertIn("is there already", self.fetch(path))
                self.assertEqual(len(self.asked), asked)
                shutil.rmtree(self.folder / "new")

    def test_what_cannot_be_fetched_leaves_nothing(self):
        for path, sentence in (("/gone", "answers 404"), ("/down", "answers 500"), ("/damaged.xz", "is damaged or was cut off"),
                               ("/damaged.gz", "is damaged or was cut off")):
            with self.subTest(path):
                self.assertIn(sentence, self.fetch(path, check=1))
                self.assertEqual(os.listdir(self.folder / "new"), [])
        self.assertEqual(self.asked.count("/gone"), 1)
        self.assertEqual(self.asked.count("/down"), 4)

    def test_checksums(self):
        self.assertIn("has the SHA-256", self.fetch("/text", "--sha256", "0" * 64, check=1))
        self.assertEqual(os.listdir(self.folder / "new"), [])
        self.answers["/text"] = [TEXT]
        self.fetch("/text", "--sha256", hashlib.sha256(TEXT).hexdigest())
        self.assertIn("is no SHA-256", self.fetch("/text", "--sha256", "abc", check=1))

    def test_a_checksum_of_what_is_there(self):
        """It decides, whatever the mark says: a file of the sum is kept, another one is fetched anew."""
        wanted = ("--sha256", hashlib.sha256(TEXT).hexdigest().upper())
        self.fetch("/text")
        (self.folder / "new/file").write_bytes(TEXT[:-1])
        self.answers["/text"] = [TEXT[:-2], TEXT]
        self.assertIn("has the SHA-256", self.fetch("/text", *wanted, check=1))
        self.has(TEXT[:-1])  # what was there stays until the other one is whole
        self.fetch("/text", *wanted)
        self.has(TEXT)
        self.answers["/other"] = []
        for _ in range(2):
            self.assertIn("is there already", self.fetch("/other", *wanted))
        self.assertIn("is there already", self.fetch("/other"))  # the URL that was asked for last

    def test_another_source_is_fetched_anew(self):
        self.fetch("/text")
        self.fetch("/other")
        self.has(TEXT[:100])
        self.answers["/text"] = [503] * 4 + [TEXT]
        self.fetch("/text", check=1)
        self.has(TEXT[:100])
        self.assertIn("is there already", self.fetch("/other"))
        self.fetch("/text")
        self.has(TEXT)
        for content in ('"x"', "{"):
            (self.folder / "new/file.fetched.json").write_text(content)
            self.answers["/text"] = [TEXT]
            self.fetch("/text")
            self.assertEqual(self.answers["/text"], [])
        (self.folder / "new/file.fetched.json").unlink()
        self.answers["/text"] = [TEXT[:7]]
        self.fetch("/text")  # nothing tells where the file is from
        self.has(TEXT[:7])

    def test_what_was_made_of_the_old_file_goes(self):
        def made(*there):
            self.assertEqual([p.name for p in sorted((self.folder / "new").glob("set*"))], list(there))
        words = ("--made", self.folder / "new/set.*", "--made", self.folder / "new/none*")
        self.answers["/text"] = [TEXT, TEXT[:9]]
        self.answers["/other"] = [TEXT, TEXT, TEXT[:8], TEXT[:8]]
        self.fetch("/text", *words)
        for name in ("set.bin", "set.idx", "settled"):
            (self.folder / "new" / name).write_text("made")
        self.fetch("/text", *words)
        self.fetch("/other", *words)  # the same bytes of another URL
        (self.folder / "new/file").unlink()
        self.fetch("/other", *words)  # the same bytes again
        made("set.bin", "set.idx", "settled")
        self.assertIn("removed, since they are to be made anew: ", self.fetch("/text", *words))
        made("settled")
        (self.folder / "new/set.bin").write_text("made")
        (self.folder / "new/file").unlink()
        self.fetch("/other", *words)  # others than the mark tells of
        made("settled")
        (self.folder / "new/set.bin").write_text("made of something else")
        for name in ("file", "file.fetched.json"):
            (self.folder / "new" / name).unlink()
        self.fetch("/other", *words)  # nothing is replaced
        made("set.bin", "settled")

    def test_a_server_that_sends_a_byte_now_and_then(self):
        for path in ("/slow", "/slow.xz"):
            with self.subTest(path):
                self.fetch(path, FETCH_PATIENCE="1")
                self.has(TEXT)
                self.assertEqual(self.asked.count(path), 2)
                shutil.rmtree(self.folder / "new")

    def test_what_is_no_url(self):
        for url, sentence in (("foo/x", "is no URL of http or https"), ("file:///etc/passwd", "is no URL"), ("http://[x/", "cannot be asked for"),
                              ("http://127.0.0.1/한국어", "cannot be asked for"), ("http://127.0.0.1/a b", "cannot be asked for"),
                              ("http://127.0.0.1:x/", "cannot be asked for")):
            with self.subTest(url):
                said = self.run_script("fetch.py", "url", url, "new/file", check=1, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
                self.assertIn(sentence, said)
                self.assertEqual(said.count("\n"), 1)

    HUB = """import os, pathlib, sys
words = sys.argv[1:]
with open("asked", "a") as file:
    file.write(" ".join(words) + "|" + os.environ.get("HF_TOKEN", "") + "\\n")
if "broken" in words[1]:
    sys.exit("no such repository")
to = pathlib.Path(words[words.index("--local-dir") + 1])
(to / ".cache/huggingface").mkdir(parents=True, exist_ok=True)
(to / ".cache/huggingface/x").write_text("")
if "empty" not in words[1]:
    (to / (words[1].replace("/", "-") + ".parquet")).write_text("{}")
if os.environ.get("CUT_OFF"):
    sys.exit("the network has gone")
"""

    def hub(self, *words, check=0, **environment):
        """Runs fetch.py hub with a stand-in of hf; returns what it says and how often hf was asked so far."""
        said = self.run_script("fetch.py", "hub", *words, check=check, **self.stand_in("huggingface_hub.cli.hf", self.HUB), **environment)
        asked = self.folder / "asked"
        return said, len(asked.read_text().splitlines()) if asked.exists() else 0

    def test_repositories(self):
        # A folder of hf's own name above those that are filled.
        at, data = self.folder / ".cache/model", self.folder / ".cache/data"
        for _ in range(2):
            self.hub("Qwen/Qwen3", at, HF_TOKEN="canary")
        asked = self.folder / "asked"
        self.assertEqual(asked.read_text(), f"download Qwen/Qwen3 --repo-type model --local-dir {at}|canary\n")  # not in the words
        self.hub("--data-set", "--include", "data/*.parquet", "--revision", "v1", "a/b", data)
        self.assertIn(f"download a/b --repo-type dataset --local-dir {data} --revision v1 --include data/*.parquet|", asked.read_text())
        self.assertIn("could not fetch broken/x", self.hub("broken/x", self.folder / "m2", check=1)[0])
        self.assertIn("has no file *.parquet", self.hub("--include", "*.parquet", "empty/x", self.folder / "m3", check=1)[0])
        self.assertFalse((self.folder / "m2/.fetched.json").exists())
        self.hub("a/b", self.folder / "m2")  # nothing came of what was asked for first
        shutil.rmtree(data)
        data.mkdir()
        self.hub("--data-set", "c/d", data)

    def test_a_folder_has_one_source(self):
        at, data = self.folder / "data", ("--data-set", "--include", "x", "--include", "y")
        _, count = self.hub(*data, "a/b", at)
        files = {p: p.read_bytes() for p in at.rglob("*") if p.is_file()}
        for words in ((*data, "c/d", at), ("a/b", at), ("--data-set", "--include", "x", "a/b", at), (*data, "--revision", "v1", "a/b", at)):
            with self.subTest(words):
                said, now = self.hub(*words, check=1)
                self.assertRegex(said, r"\Afetch\.py: \S+/data has a/b \(x, y\); name another folder for [^\n]+, or remove this one\n\Z")
                self.assertEqual(now, count)
        self.assertEqual({p: p.read_bytes() for p in at.rglob("*") if p.is_file()}, files)
        self.assertEqual(self.hub("--data-set", "--include", "y", "--include", "x", "a/b", at)[1], count)
        (at / ".fetched.json").unlink()
        self.assertIn("of which nothing tells where they are from", self.hub(*data, "a/b", at, check=1)[0])
        for name in list(os.listdir(at)):
            if not name.startswith("."):
                (at / name).unlink()
        self.hub("c/d", at)
        self.assertEqual([p.name for p in at.glob("*.parquet")], ["c-d.parquet"])

    def test_a_mark_of_before(self):
        """It tells the source alone, of a folder that is whole."""
        at = self.folder / "model"
        at.mkdir()
        (at / "config.json").write_text("{}")
        (at / ".fetched.json").write_text(json.dumps({"repository": "a/b", "revision": None, "include": [], "kind": "model"}))
        self.assertIn("already", self.hub("a/b", at)[0])
        self.assertIn("has a/b; name", self.hub("c/d", at, check=1)[0])

    def test_a_download_that_was_cut_off_goes_on_for_its_source_alone(self):
        at = self.folder / "data"
        self.hub("a/b", at, check=1, CUT_OFF="1")
        self.assertIn("has a part of a/b; name another folder for c/d", self.hub("c/d", at, check=1)[0])
        said, count = self.hub("a/b", at)
        self.assertEqual(count, 2)
        self.assertNotIn("already", said)
        self.assertIn("already", self.hub("a/b", at)[0])
        (at / "a-b.parquet").unlink()  # as rm -r data/* does, which leaves what begins with a dot
        self.assertNotIn("already", self.hub("a/b", at)[0])


class SideBySide(Case):
    def folders(self, prompts=(("Who?", "Who?"),)):
        for number, when in enumerate(("before", "after")):
            (self.folder / when).mkdir(exist_ok=True)
            (self.folder / when / "perplexity.json").write_text(json.dumps({"perplexity": 9.5 - number, "loss": 2.25, "tokens": 70}) + "\n")
            (self.folder / when / "answers.jsonl").write_text("".join(
                json.dumps({"prompt": pair[number], "text": f"{when} | of\n{pair[number]}", "end": "stop"}) + "\n" for pair in prompts))
        return [self.folder / name for name in ("before", "after", "table.md")]

    def test_a_table(self):
        words = self.folders()
        self.run_script("side_by_side.py", *words)
        self.assertEqual((self.folder / "table.md").read_text(), "| | before | after |\n|---|---|---|\n| perplexity | 9.5 | 8.5 |\n"
                         "| loss | 2.25 | 2.25 |\n| tokens | 70 | 70 |\n| Who? | before \\| of<br>Who? | after \\| of<br>Who? |\n")

    def test_other_separators_of_lines(self):
        """They stand in texts as they are, and end neither a line of JSON nor a row."""
        words = self.folders()
        for when in ("before", "after"):
            (self.folder / when / "answers.jsonl").write_text("".join(json.dumps(
                {"prompt": f"a{c}b?", "text": f"a{c}b?{when}{c}c\r\nd"}, ensure_ascii=False) + "\n" for c in "\u2028\u2029\x85"))
        self.run_script("side_by_side.py", *words)
        self.assertEqual((self.folder / "table.md").read_text().splitlines()[5:], ["| a<br>b? | before<br>c<br>d | after<br>c<br>d |"] * 3)

    def test_a_number_that_is_none(self):
        words = self.folders()
        for content in ('{"perplexity": null, "loss": 1, "tokens": 1}', '{"perplexity": "x", "loss": 1, "tokens": 1}'):
            (self.folder / "after/perplexity.json").write_text(content)
            self.assertIn("a field is not what it should be", self.run_script("side_by_side.py", *words, check=1))
        (self.folder / "after/perplexity.json").write_bytes(b"\xff")
        self.assertIn("perplexity.json is not UTF-8", self.run_script("side_by_side.py", *words, check=1))
        (self.folder / "after/perplexity.json").write_text("{}")
        self.assertIn("a line has no field 'perplexity'", self.run_script("side_by_side.py", *words, check=1))

    def test_refusals(self):
        words = self.folders(prompts=(("a", "b"),))
        self.assertIn("answer different prompts", self.run_script("side_by_side.py", *words, check=1))
        (self.folder / "after/answers.jsonl").write_text("")
        self.assertIn("has no line of JSON", self.run_script("side_by_side.py", *words, check=1))
        (self.folder / "after/answers.jsonl").unlink()
        self.assertIn("No such file", self.run_script("side_by_side.py", *words, check=1))


class Tokenizer(Case):
    """examples/small_tokenizer.py, which reads lines of the same kind."""

    def test_other_separators_of_lines(self):
        program = SCRIPTS.parents[2] / "small_tokenizer.py"
        for separator in ("\u2028", "\x85", " "):
            (self.folder / "a.jsonl").write_text(json.dumps({"text": f"a{separator}b"}, ensure_ascii=False) + "\n\n")
            subprocess.run([sys.executable, "-B", program, self.folder / "made", self.folder / "a.jsonl", "--vocabulary", "300"], check=True,
                           capture_output=True)


class States(Case):
    BOTO = """import json, os, pathlib, shutil
import botocore.exceptions
from . import exceptions
class Client:
    def get_object(self, Bucket, Key):
        if os.environ.get("UNREADABLE") and os.environ["UNREADABLE"] in Key:
            raise botocore.exceptions.ClientError("403")
        path = os.path.join("s3", Bucket, Key)
        if not os.path.exists(path):
            raise botocore.exceptions.ClientError("NoSuchKey")
        return {"Body": open(path, "rb")}
    def put_object(self, Bucket, Key, Body):
        self.note(Key)
        self.place(Bucket, Key).write_bytes(Body)
    def upload_file(self, name, bucket, key):
        self.note(key)
        if os.environ.get("REFUSE") and os.environ["REFUSE"] in key:
            raise exceptions.Boto3Error("access denied")
        if os.environ.get("PRUNE") and os.environ["PRUNE"] in key:
            shutil.rmtree(os.path.dirname(name))
        if os.environ.get("ANEW") and os.environ["ANEW"] in key:
            with open(os.path.join(os.path.dirname(name), "megacpp_state.json"), "a") as file:
                file.write(" ")
        shutil.copy(name, self.place(bucket, key))
    def note(self, key):
        with open("uploads", "a") as file:
            file.write(key + "\\n")
    def place(self, bucket, key):
        to = pathlib.Path("s3", bucket, key)
        to.parent.mkdir(parents=True, exist_ok=True)
        return to
def client(service):
    assert service == "s3"
    if os.environ.get("NO_REGION"):
        raise botocore.exceptions.BotoCoreError("no region")
    return Client()
"""

    @classmethod
    def setUpClass(cls):
        cls.runs = Path(tempfile.mkdtemp(prefix="megacpp-scripts-"))
        cls.addClassCleanup(shutil.rmtree, cls.runs)
        (cls.runs / "text").write_bytes(TEXT[:5000])
        for run in ("one", "two"):
            subprocess.run([PROGRAM, "train", "--data-path", "text", "--train-iters", "4", "--save-interval", "2", "--eval-iters", "0",
                            "--save", f"root/{run}"], cwd=cls.runs, capture_output=True, check=True)

    def setUp(self):
        super().setUp()
        self.stand_in("boto3.__init__", self.BOTO)
        self.stand_in("boto3.exceptions", "class Boto3Error(Exception):\n    pass\n")
        self.stand_in("botocore.__init__", "")
        self.packages = self.stand_in("botocore.exceptions", "class BotoCoreError(Exception):\n    pass\nclass ClientError(Exception):\n"
                                      "    def __init__(self, code):\n        super().__init__(code)\n        self.response = {'Error': {'Code': code}}\n")
        shutil.copytree(self.runs, self.folder, dirs_exist_ok=True)

    def copy(self, check=0, **environment):
        return self.run_script("states_to_s3.py", "root", "bucket", "all/states", check=check, **self.packages, **environment)

    def uploads(self):
        path = self.folder / "uploads"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def test_whole_states_once_and_their_record_last(self):
        newest = ["two/iter_0000004", "one/iter_0000002", "two/iter_0000002", "one/iter_0000004"]
        for age, state in enumerate(newest):
            os.utime(self.folder / "root" / state / "megacpp_state.json", (10**9 - age, 10**9 - age))
        self.assertEqual([line.split(":")[0] for line in self.copy().splitlines()], newest)
        lines = self.uploads()
        for run in ("one", "two"):
            for step in (2, 4):
                own = [line for line in lines if line.startswith(f"all/states/{run}/iter_{step:07}/")]
                self.assertEqual(own[-1], f"all/states/{run}/iter_{step:07}/megacpp_state.json")
                there = self.folder / "s3/bucket" / own[-1]
                here = self.folder / "root" / run / f"iter_{step:07}"
                self.assertEqual({p.name: p.read_bytes() for p in there.parent.iterdir()}, {p.name: p.read_bytes() for p in here.iterdir()})
        self.assertEqual(self.copy().count("is there already"), 4)
        self.assertEqual(self.uploads(), [])
        # What is there is a state that a run goes on from.
        subprocess.run([PROGRAM, "train", "--load", self.folder / "s3/bucket/all/states/one", "--train-iters", "5", "--save", "again"],
                       cwd=self.folder, capture_output=True, check=True)

    def test_a_copy_that_was_cut_off_is_made_again(self):
        self.copy(check=1, REFUSE="one/iter_0000004/optimizer")
        self.assertFalse((self.folder / "s3/bucket/all/states/one/iter_0000004/megacpp_state.json").exists())
        self.assertTrue((self.folder / "s3/bucket/all/states/two/iter_0000004/megacpp_state.json").exists())
        self.uploads()
        self.copy()
        self.assertTrue(all(line.startswith("all/states/one/iter_0000004/") for line in self.uploads()))

    def is_there(self, *states):
        there = self.folder / "s3/bucket/all/states"
        self.assertEqual(sorted(str(p.parent.relative_to(there)) for p in there.glob("*/*/megacpp_state.json")), sorted(states))

    ALL = ("one/iter_0000002", "one/iter_0000004", "two/iter_0000002", "two/iter_0000004")

    def test_damaged_states_keep_no_other_from_being_copied(self):
        root, newest = self.folder / "root", time.time() + 100
        sound = (root / "one/iter_0000002/megacpp_state.json").read_bytes()

        def damage(name, content, sentence):
            path = root / "one/iter_0000004" / name
            path.unlink(missing_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif content is not None:
                path.mkdir()
            if (root / "one/iter_0000004/megacpp_state.json").is_file():
                os.utime(root / "one/iter_0000004/megacpp_state.json", (newest, newest))  # the first that is copied
            with self.subTest(name=name, content=content):
                said = self.copy(check=1)
                self.assertIn(f"one/iter_0000004 is not copied: {sentence}", said)
                self.assertEqual(said.count("\n"), 1)
                self.is_there(*(state for state in self.ALL if state != "one/iter_0000004"))
            shutil.rmtree(self.folder / "s3")
        damage("model.safetensors", b"x", "model.safetensors has 1 bytes")
        damage("model.safetensors", None, "[Errno 2]")
        for content in (b"", b"\xff", b"[]", b"{}", b'{"state": 1}', b'{"state": {"files": []}}', b'{"state": {"files": {"a": 1}}}', sound[:-30]):
            damage("megacpp_state.json", content, "its megacpp_state.json is damaged")
        damage("megacpp_state.json", "a folder", "[Errno 21]")

    def test_what_the_run_removes_is_left_out(self):
        done = self.copy(PRUNE="two/iter_0000002/model")
        self.assertIn("two/iter_0000002: left out, since the run has removed it", done)
        self.is_there(*(state for state in self.ALL if state != "two/iter_0000002"))

    def test_a_state_that_is_removed_while_states_are_looked_for(self):
        """The walk sees it, and the next look does not."""
        self.stand_in("sitecustomize", """import os, pathlib, shutil
whole = pathlib.Path.stat
def stat(self, **how):
    if self.name == "megacpp_state.json":
        shutil.rmtree("root/two/iter_0000002", ignore_errors=True)
    return whole(self, **how)
pathlib.Path.stat = stat
walk = os.walk
def other(*words, **how):
    for found in walk(*words, **how):
        if found[0] == "root":
            os.mkdir("root/gone")
            found[1].append("gone")
            os.rmdir("root/gone")
        yield found
os.walk = other
""")
        self.assertIn("two/iter_0000002: left out", self.copy())
        self.is_there(*(state for state in self.ALL if state != "two/iter_0000002"))

    def test_a_state_that_is_written_anew_meanwhile(self):
        said = self.copy(check=1, ANEW="two/iter_0000002/model")
        self.assertIn("two/iter_0000002 is not copied: it was written anew meanwhile", said)
        self.is_there(*(state for state in self.ALL if state != "two/iter_0000002"))
        self.assertIn("two/iter_0000002: copied", self.copy())

    def test_a_run_that_was_begun_anew(self):
        """Its states do not come among those of the older one, whose copies stay as they are."""
        self.copy()
        self.uploads()
        shutil.rmtree(self.folder / "root/one")
        subprocess.run([PROGRAM, "train", "--data-path", "text", "--train-iters", "6", "--save-interval", "2", "--eval-iters", "0", "--seed", "7",
                        "--save", "root/one"], cwd=self.folder, capture_output=True, check=True)
        shutil.copytree(self.folder / "root/two", self.folder / "root/three")
        said = self.copy(check=1)
        for step in (2, 4, 6):
            self.assertRegex(said, rf"one/iter_{step:07} is not copied: bucket has all/states/one/iter_000000[24] of another run of that name; "
                             "name another S3_PREFIX or run\n")
        self.assertEqual({line.split("/")[2] for line in self.uploads()}, {"three"})
        (self.folder / "root/one").rename(self.folder / "root/four")
        self.assertEqual(self.copy().count("copied"), 3)

    def test_refusals(self):
        self.assertIn("two/iter_0000004 is not copied: 403", self.copy(check=1, UNREADABLE="two/iter_0000004"))
        self.is_there(*self.ALL[:3])
        self.assertIn("there is no client of S3: no region", self.copy(check=1, NO_REGION="1"))
        shutil.rmtree(self.folder / "root")
        self.assertIn("root is no folder", self.copy(check=1))

    @unittest.skipIf(os.geteuid() == 0, "the superuser may look into all folders")
    def test_a_folder_that_cannot_be_looked_into(self):
        (self.folder / "root/one").chmod(0)
        self.addCleanup((self.folder / "root/one").chmod, 0o700)
        self.assertIn("Permission denied", self.copy(check=1))
        self.is_there(*self.ALL[2:])


@unittest.skipUnless(importlib.util.find_spec("pyarrow"), "it needs pyarrow")
class Parquet(Case):
    def write(self, name, rows):
        import pyarrow
        import pyarrow.parquet
        path = self.folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)

    def test_conversations(self):
        rows = [{"id": n, "messages": [{"role": "user", "content": f"{n} \"한국어\"\n"}, {"role": "assistant", "content": "Yes."}]} for n in range(2500)]
        self.write("train-00000.parquet", rows[:2000])
        self.write("more/train-00001.parquet", rows[2000:])
        words = ("data", "train.jsonl", "--columns", "messages")
        self.assertIn("2500 lines of 2 files", self.run_script("parquet_to_jsonl.py", *words))
        self.assertEqual(sorted(self.lines(), key=str), sorted(({"messages": row["messages"]} for row in rows), key=str))
        self.assertIn("is there already", self.run_script("parquet_to_jsonl.py", *words))

    def lines(self):
        return [json.loads(line) for line in (self.folder / "train.jsonl").read_text().split("\n")[:-1]]

    def test_what_is_asked_for_otherwise_is_made_anew(self):
        def made(*words):
            return "is there already" not in self.run_script("parquet_to_jsonl.py", "data", "train.jsonl", *words)
        separators = "a\u2028b\u2029c\x85d"
        self.write("a.parquet", [{"id": 1, "text": separators}])
        self.assertTrue(made())
        self.assertFalse(made())
        self.assertTrue(made("--columns", "text"))
        self.assertEqual(self.lines(), [{"text": separators}])
        self.assertTrue(made("--columns", "id"))
        self.write("b.parquet", [{"id": 2}])
        self.assertTrue(made("--columns", "id"))
        self.assertEqual(self.lines(), [{"id": 1}, {"id": 2}])
        old = (self.folder / "data/b.parquet").stat()
        (self.folder / "data/b.parquet").rename(self.folder / "data/c.parquet")
        self.assertTrue(made("--columns", "id"))
        self.write("c.parquet", [{"id": 3}])
        os.utime(self.folder / "data/c.parquet", ns=(0, old.st_mtime_ns - 10**9))  # an older file, as hf download of another revision may write it
        self.assertTrue(made("--columns", "id"))
        self.assertEqual(self.lines(), [{"id": 1}, {"id": 3}])
        (self.folder / "data/c.parquet").unlink()
        self.assertTrue(made("--columns", "id"))
        self.assertEqual(self.lines(), [{"id": 1}])
        (self.folder / "train.jsonl.made.json").write_text("{")
        self.assertTrue(made("--columns", "id"))
        (self.folder / "train.jsonl").unlink()
        self.assertTrue(made("--columns", "id"))
        self.assertLessEqual({p.name for p in self.folder.iterdir()}, {"data", "train.jsonl", "train.jsonl.made.json"})

    def test_refusals(self):
        self.assertIn("has no file of parquet", self.run_script("parquet_to_jsonl.py", "data", "out", check=1))
        self.write("a.parquet", [{"picture": b"\xff"}])
        self.assertIn("has what JSON cannot hold", self.run_script("parquet_to_jsonl.py", "data", "out", check=1))
        self.assertIn("has no column messages, but picture", self.run_script("parquet_to_jsonl.py", "data", "out", "--columns", "messages", check=1))
        (self.folder / "data/b.parquet").write_bytes(b"PAR1 and no more")
        self.run_script("parquet_to_jsonl.py", "data", "out", "--columns", "picture", check=1)
        (self.folder / "data/b.parquet").unlink()
        import pyarrow
        self.write("a.parquet", [{"x": 1}])
        wrong = pyarrow.array([b"\xff"]).view(pyarrow.string())
        pyarrow.parquet.write_table(pyarrow.table({"text": wrong}), self.folder / "data/a.parquet")
        self.assertIn("has a row that cannot be read", self.run_script("parquet_to_jsonl.py", "data", "out", check=1))
        self.assertEqual([p.name for p in self.folder.iterdir()], ["data"])


if __name__ == "__main__":
    PROGRAM = Path(sys.argv[1]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
