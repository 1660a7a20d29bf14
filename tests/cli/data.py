"""megacpp-data: texts to ids and back, data sets, and what is refused.

    data.py MEGACPP_DATA
"""

import base64
import bz2
import gzip
import json
import lzma
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv[1]

BYTES = ([*range(33, 127), *range(161, 173), *range(174, 256)])


def characters():
    """What stands for each byte in GPT-2's files."""
    others = iter(range(256, 512))
    return [chr(b) if b in BYTES else chr(next(others)) for b in range(256)]


def small_tokenizer(merges=(("t", "h"), ("th", "e"), ("Ġ", "the"))):
    vocab = {c: i for i, c in enumerate(characters())}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    end = len(vocab)
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": end, "content": "<|endoftext|>", "special": True, "normalized": False}],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            "post_processor": None, "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": vocab, "merges": [f"{a} {b}" for a, b in merges]}}


class DataTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = pathlib.Path(self.folder.name)
        self.tokenizer = self.at / "tokenizer.json"
        self.tokenizer.write_text(json.dumps(small_tokenizer()))

    def run_program(self, *arguments, text=None, code=0, **more):
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True,
                              input=text.encode() if isinstance(text, str) else text, **more)
        self.assertEqual(done.returncode, code, done.stderr.decode())
        if code:
            self.assertEqual(len(done.stderr.splitlines()[-1:]), 1)
        return done

    def refused(self, code, says, *arguments, **more):
        said = self.run_program(*arguments, code=code, **more).stderr.decode().splitlines()[-1]
        self.assertIn(says, said)
        self.assertTrue(said.startswith("megacpp-data: "), said)
        return said

    def encode(self, *arguments, text):
        done = self.run_program("encode", "--tokenizer", self.tokenizer, *arguments, text=text)
        return [json.loads(line) for line in done.stdout.splitlines()]


class Texts(DataTest):
    def test_lines_are_texts_or_objects_with_one(self):
        self.assertEqual(self.encode(text='"the"\n{"text": " the", "id": [1]}\n\n"<|endoftext|>a"\n""'),
                         [[257], [258], [259, 97], []])
        self.assertEqual(self.encode("--json-keys", "body", text='{"body": "a"}'), [[97]])

    def test_decoding_is_the_inverse_for_any_number_of_workers(self):
        texts = ["the cat", "", "é€😀\n\t", "a" * 5000, " the the<|endoftext|>"] * 300
        lines = "\n".join(json.dumps(t) for t in texts)
        ids = [self.run_program("encode", "--tokenizer", self.tokenizer, "--workers", w, text=lines).stdout
               for w in (1, 2, 7)]
        self.assertEqual(ids[0], ids[1])
        self.assertEqual(ids[0], ids[2])
        back = self.run_program("decode", "--tokenizer", self.tokenizer, text=ids[0])
        self.assertEqual([json.loads(line) for line in back.stdout.splitlines()], texts)
        plain = self.run_program("decode", "--tokenizer", self.tokenizer, "--skip-special-tokens",
                                 text="[97, 259, 98]\n")
        self.assertEqual(json.loads(plain.stdout), "ab")

    def test_counts(self):
        text = '{"text": "the cat"}\n"the"\n'
        done = self.run_program("count", "--tokenizer", self.tokenizer, "--json", text=text)
        self.assertEqual(json.loads(done.stdout),
                         {"documents": 2, "bytes": 10, "tokens": 6, "longest": 5,
                          "bytes_per_token": 10 / 6, "replaced": 0})

    def test_bytes_that_are_not_utf8(self):
        bad = b'"a"\n"b\xff\xc3"\n'
        self.refused(4, "the standard input: line 2 is not UTF-8 at byte 3 (0xff)",
                     "encode", "--tokenizer", self.tokenizer, text=bad)
        done = self.run_program("encode", "--tokenizer", self.tokenizer, "--invalid-utf8", "replace", text=bad)
        ids = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(bytes(ids[1]).decode(), "b\ufffd\ufffd")
        self.assertIn("U+FFFD stands for 2 bytes that are not UTF-8", done.stderr.decode())

    def test_what_python_writes_beyond_json(self):
        line = json.dumps({"score": float("nan"), "most": float("-inf"), "text": "a\ud800b"})  # as it is read back
        done = self.run_program("count", "--tokenizer", self.tokenizer, "--json", "--invalid-utf8", "replace", text=line)
        counts = json.loads(done.stdout)
        self.assertEqual((counts["bytes"], counts["replaced"]), (5, 1))
        self.refused(4, "line 1 has half a surrogate pair at byte 45 (\\ud800), which is no text; correct it, or let",
                     "encode", "--tokenizer", self.tokenizer, text=line)

    def test_compressed_files_are_known(self):
        for packed, reader in ((gzip, "zcat"), (lzma, "xzcat"), (bz2, "bzcat")):
            (self.at / "packed").write_bytes(packed.compress(b'"a"\n'))
            self.refused(4, f"packed is compressed; give <({reader} FILE)", "encode", "--tokenizer", self.tokenizer,
                         "--input", self.at / "packed")

        for text in ("BZh", "BZh9"):  # begin as a compressed file does, and are none
            self.refused(4, "line 1 is not valid JSON", "encode", "--tokenizer", self.tokenizer, text=text)

    def test_files_of_other_forms_are_known(self):
        pointer, model, folder = (self.at / n for n in ("pointer", "tokenizer.model", "folder"))
        pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
        self.refused(4, "pointer is a pointer of Git LFS", "encode", "--tokenizer", pointer, text="")
        self.refused(4, "pointer is a pointer of Git LFS", "encode", "--tokenizer", self.tokenizer, "--input", pointer)
        folder.mkdir()
        ranks = "".join(f"{base64.b64encode(bytes([b])).decode()} {b}\n" for b in range(256)).encode()
        for data, says in ((b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02\n\x0c\n\x03<s>\x15\0\0\0\0\x18\x03", "SentencePiece"),
                           (ranks, "such as llama3.tiktoken for Llama 3's tokenizer.model")):
            model.write_bytes(data)
            shutil.copy(model, folder)
            for path in (model, folder):
                self.refused(4, f"tokenizer.model is a {'model' if data != ranks else 'file'} of", "encode",
                             "--tokenizer", path, text="")
                self.refused(4, says, "encode", "--tokenizer", path, text="")
        # Who says the rules need not rename it.
        done = self.run_program("encode", "--tokenizer", model, "--tiktoken-pattern", "regex:.", text='"abc"')
        self.assertEqual(json.loads(done.stdout), [97, 98, 99])

    def test_lines_that_are_refused(self):
        for line, says in (('{"a": "b", "n": 1, "c": ""}', 'line 2 has no text "text", but the texts "a", "c"; name'), ("5", "line 2 is no text"),
                           ('{"text": 5}', 'the field "text" is a number, not a text'),
                           ('{"text": null}', 'the field "text" is null, not a text'), ('"a', "not valid JSON")):
            self.refused(4, says, "encode", "--tokenizer", self.tokenizer, text='"a"\n' + line)
        for line, says in (("[300]", "line 1: 300 is no token"), ("[-1]", "-1 is no token"),
                           ('["a"]', "line 1"), ("{}", "line 1"), ("[1", "line 1 is not valid JSON")):
            self.refused(4, says, "decode", "--tokenizer", self.tokenizer, text=line)

    def test_a_line_above_16_mib_is_refused_by_its_number(self):
        long = '"a"\n"' + "b" * (16 << 20) + '"\n'
        self.refused(4, "line 2 is longer than 16 MiB", "encode", "--tokenizer", self.tokenizer, text=long)
        fits = '"a"\n"' + "b" * ((16 << 20) - 2) + '"'
        done = self.run_program("count", "--tokenizer", self.tokenizer, "--json", text=fits)
        self.assertEqual(json.loads(done.stdout)["longest"], (16 << 20) - 2)

    def test_flags_that_contradict(self):
        self.refused(2, "--tokenizer is missing", "encode", text="")
        self.refused(2, "did you mean --tokenizer?", "encode", "--tokeniser", "x", text="")
        self.refused(2, "give a command: encode, decode")
        self.refused(2, "--append-eod is a flag of prepare", "encode", "--append-eod", text="")
        self.refused(2, "belong together", "encode", "--vocab-file", "x", text="")
        for flag in ("--vocab-file", "--merge-file"):
            self.refused(2, f"{flag} is a flag of", "chat", flag, "x", text="")
        self.refused(2, "changes nothing without a --tokenizer that is a file of tiktoken's",
                     "encode", "--tokenizer", self.tokenizer, "--tiktoken-pattern", "gpt2", text="")
        self.refused(2, '--tiktoken-pattern "gpt4" is none of gpt2,', "encode", "--tokenizer", self.at / "a.tiktoken",
                     "--tiktoken-pattern", "gpt4", text="")
        self.refused(4, "does not exist", "encode", "--tokenizer", self.at / "none", text="")
        self.refused(4, "cannot read", "encode", "--tokenizer", self.tokenizer, "--input", self.at / "none")
        self.refused(2, "one --json-keys", "encode", "--tokenizer", self.tokenizer, "--json-keys", "a", "b",
                     text="")
        for keys, says in ((["a", "b", "a"], '"a" twice'), ([""], "an empty name")):
            self.refused(2, says, "prepare", "--tokenizer", self.tokenizer, "--output-prefix", self.at / "x",
                         "--json-keys", *keys, text="")

    def test_a_signal_ends_waiting_for_a_pipe(self):
        with subprocess.Popen([PROGRAM, "encode", "--tokenizer", self.tokenizer], stdin=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
            try:
                running.stdin.write(b'"a"\n' * 50000)  # more than a pipe holds, so that reading has begun
                running.stdin.flush()
                running.send_signal(signal.SIGINT)
                self.assertEqual(running.wait(60), 10)
            finally:
                running.kill()
            self.assertIn(b"SIGINT ended the work before its end, while it read the standard input",
                          running.stderr.read())

    def test_what_nobody_reads_is_an_error(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, "encode", "--tokenizer", self.tokenizer], input=b'"a"',
                                  stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 6)


def read_set(prefix):
    """An indexed data set by the format's description: type, documents as lists of sequences."""
    idx = pathlib.Path(f"{prefix}.idx").read_bytes()
    assert idx[:9] == b"MMIDIDX\0\0"
    version, code, sequences, ends = struct.unpack_from("<QBQQ", idx, 9)
    assert version == 1
    lengths = struct.unpack_from(f"<{sequences}i", idx, 34)
    offsets = struct.unpack_from(f"<{sequences}q", idx, 34 + 4 * sequences)
    documents = struct.unpack_from(f"<{ends}q", idx, 34 + 12 * sequences)
    assert len(idx) == 34 + 12 * sequences + 8 * ends
    letter, size = {8: ("H", 2), 4: ("i", 4)}[code]
    tokens = pathlib.Path(f"{prefix}.bin").read_bytes()
    assert list(offsets) == [size * sum(lengths[:i]) for i in range(sequences)] and \
        len(tokens) == size * sum(lengths)
    read = [list(struct.unpack_from(f"<{n}{letter}", tokens, at)) for n, at in zip(lengths, offsets)]
    return code, [read[a:b] for a, b in zip(documents, documents[1:])]


class Sets(DataTest):
    def prepare(self, prefix, *arguments, **more):
        return self.run_program("prepare", "--tokenizer", self.tokenizer, "--output-prefix", self.at / prefix,
                                *arguments, **more)

    def test_prepare_writes_what_preprocess_data_does(self):
        (self.at / "a.jsonl").write_text('{"text": "the"}\n{"text": ""}\n')
        (self.at / "b.txt").write_text("a\nb\n")
        self.prepare("web", "--input", self.at / "a.jsonl", self.at / "b.txt", "--append-eod")
        self.assertEqual(read_set(self.at / "web_text_document"),
                         (8, [[[257, 259]], [], [[*b"a\nb\n", 259]]]))
        names = sorted(p.name for p in self.at.iterdir())
        self.assertEqual([n for n in names if n.startswith("web")],
                         ["web_text_document.bin", "web_text_document.idx", "web_text_document.xxh64"])
        self.prepare("plain", "--input", self.at / "a.jsonl")
        self.assertEqual(read_set(self.at / "plain_text_document")[1], [[[257]], []])

    def test_the_line_of_preprocess_data(self):
        (self.at / "a.jsonl").write_text('{"text": "the"}\n{"text": "a the"}\n')
        folder = self.at / "model"
        folder.mkdir()
        small = small_tokenizer()
        small["added_tokens"].append({"id": 260, "content": "<|im_end|>", "special": True, "normalized": False})
        (folder / "tokenizer.json").write_text(json.dumps(small))
        line = ("--input", self.at / "a.jsonl", "--output-prefix", self.at / "web", "--append-eod", "--workers", 2)
        named = ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder)
        done = self.run_program("prepare", *line, *named, "--log-interval", 1000, "--dataset-impl", "mmap")
        self.assertIn("without effect here: --log-interval, --dataset-impl\n", done.stderr.decode())
        self.assertEqual(read_set(self.at / "web_text_document")[1], [[[257, 259]], [[97, 258, 259]]])
        # There eos_token ends a document.
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
        self.run_program("prepare", *line, *named)
        self.assertEqual(read_set(self.at / "web_text_document")[1], [[[257, 260]], [[97, 258, 260]]])
        self.run_program("prepare", *line, "--tokenizer", folder)
        self.assertEqual(read_set(self.at / "web_text_document")[1], [[[257, 259]], [[97, 258, 259]]])
        self.run_program("prepare", *line, *named, "--eod-token", "a")
        self.assertEqual(read_set(self.at / "web_text_document")[1], [[[257, 97]], [[97, 258, 97]]])
        # GPT-2's two files, by the begin of a name that argparse takes.
        (self.at / "vocab.json").write_text(json.dumps({**small["model"]["vocab"], "<|endoftext|>": 259}))
        (self.at / "merges.txt").write_text("\n".join(small["model"]["merges"]))
        self.run_program("prepare", *line, "--tokenizer-type", "GPT2BPETokenizer", "--vocab", self.at / "vocab.json",
                         "--merge-file", self.at / "merges.txt")
        self.assertEqual(read_set(self.at / "web_text_document")[1], [[[257, 259]], [[97, 258, 259]]])
        done = self.run_program("prepare", *line, *named, "--dataset-impl", "lazy", "--split-sentences",
                                "--partitions", 4, code=2)
        said = done.stderr.decode().splitlines()
        self.assertEqual(said[0], "megacpp-data: 3 things are refused:")
        for says in ("--dataset-impl lazy is not taken; ", "unknown flag --split-sentences; a document is one",
                     "--partitions 4 is not taken; documents keep the order"):
            self.assertTrue(any(one.startswith(f"  {says}") for one in said), said)
        self.refused(2, "--tokenizer-type is GPT2BPETokenizer, but --tokenizer is of HuggingFaceTokenizer", "prepare",
                     *line, "--tokenizer", folder, "--tokenizer-type", "GPT2BPETokenizer")
        self.refused(2, "must be one of HuggingFaceTokenizer|", "prepare", *line, "--tokenizer-type", "Llama2Tokenizer")
        self.refused(2, "--vocab-file and --merge-file are missing", "prepare", *line, "--tokenizer-type",
                     "GPT2BPETokenizer")
        # A file of tiktoken's is one by its name, whether or not flags say its rules.
        (self.at / "mine.tiktoken").write_text("AA== 0\n")
        self.refused(4, "does not say how texts are cut", "prepare", *line, "--tokenizer-type", "TikTokenizer",
                     "--tokenizer", self.at / "mine.tiktoken")

    def test_each_key_has_a_set(self):
        self.prepare("x", "--json-keys", "title", "body", text='{"title": "a", "body": "b"}\n' * 3)
        self.assertEqual(read_set(self.at / "x_title_document")[1], [[[97]]] * 3)
        self.assertEqual(read_set(self.at / "x_body_document")[1], [[[98]]] * 3)

    def texts(self, lines):
        path = self.at / "long.jsonl"
        with path.open("w") as f:
            for i in range(lines):
                f.write(json.dumps({"text": f"the {i} " * (i % 50)}) + "\n")
        return path

    def test_any_number_of_workers_writes_the_same(self):
        path = self.texts(20000)
        for workers in (1, 3):
            self.prepare(f"w{workers}", "--input", path, "--workers", workers)
        for end in ("bin", "idx"):
            self.assertEqual((self.at / f"w1_text_document.{end}").read_bytes(),
                             (self.at / f"w3_text_document.{end}").read_bytes())

    def test_work_that_was_stopped_goes_on(self):
        path = self.texts(20000)
        self.prepare("whole", "--input", path)
        command = [PROGRAM, "prepare", "--tokenizer", self.tokenizer, "--input", path, "--output-prefix",
                   self.at / "part", "--workers", "1"]
        for wait in (0.02, 0.1, 0.2, 0.3, 0.4, 60):
            running = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
            try:
                running.wait(wait)
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGINT)
            said = running.communicate()[1].decode()
            self.assertIn(running.returncode, (0, 10, -signal.SIGINT), said)
            if running.returncode == 10:
                self.assertIn("the same command goes on", said)
            if running.returncode == 0:
                break
        self.assertEqual(running.returncode, 0)
        for end in ("bin", "idx"):
            self.assertEqual((self.at / f"whole_text_document.{end}").read_bytes(),
                             (self.at / f"part_text_document.{end}").read_bytes())
        self.assertEqual([p.name for p in self.at.glob("part*partial")], [])
        self.assertFalse((self.at / "part.prepare.json").exists())
        # What is kept of another request, or is damaged, is not gone on from.
        for kept in ('{"request": "0"}', "{"):
            (self.at / "part.prepare.json").write_text(kept)
            self.assertIn("begins anew", self.prepare("part", "--input", path).stderr.decode())

    def fed(self, command, use):
        """Runs a command that reads a pipe last: use(process, end of the pipe) once it waits there."""
        with subprocess.Popen([PROGRAM, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
            end = None
            while end is None and running.poll() is None:
                try:
                    end = os.open(self.at / "pipe.jsonl", os.O_WRONLY | os.O_NONBLOCK)
                except OSError:  # it does not read yet
                    time.sleep(0.01)
            try:
                if end is not None:
                    use(running, end)
                    os.close(end)
                running.wait(60)
            finally:
                running.kill()
            return running.returncode, running.stderr.read().decode()

    def stopped(self, *arguments):
        """Prepares two documents, and is stopped while it waits for more; the command."""
        (self.at / "a.jsonl").write_text('"the"\n"cat"\n')
        os.mkfifo(self.at / "pipe.jsonl")
        command = ["prepare", "--output-prefix", self.at / "part", "--input", self.at / "a.jsonl",
                   self.at / "pipe.jsonl", *arguments]

        def stop(running, end):
            running.send_signal(signal.SIGINT)
            running.wait(60)
        code, said = self.fed(command, stop)
        self.assertEqual(code, 10, said)
        self.assertIn("SIGINT ended the work after 2 documents; the same command goes on", said)
        return command

    def ended(self, command):
        code, said = self.fed(command, lambda running, end: os.write(end, b'"a"\n'))
        self.assertEqual(code, 0, said)
        self.assertEqual(read_set(self.at / "part_text_document")[1][1:], [[[*b"cat"]], [[97]]])
        return said

    def test_work_goes_on_from_its_own_and_from_nothing_else(self):
        command = self.stopped("--tokenizer", self.tokenizer)
        parts = [self.at / f"part_text_document.{name}.partial" for name in ("bin", "lengths", "documents")]
        # Another request writes more into the same files, and ends before it has kept any of it.
        with subprocess.Popen([PROGRAM, "prepare", "--tokenizer", self.tokenizer, "--output-prefix",
                               self.at / "part"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
            while other.poll() is None and min(p.stat().st_size for p in parts) < 1 << 20:
                other.stdin.write(b'"b"\n' * 10000)
            other.kill()
        self.assertGreaterEqual(min(p.stat().st_size for p in parts), 1 << 20)
        self.ended(command)
        self.assertEqual(read_set(self.at / "part_text_document")[1][0], [[257]])

    def test_of_a_pipe_nothing_is_kept(self):
        (self.at / "a.jsonl").write_text('"the"\n"cat"\n')
        os.mkfifo(self.at / "pipe.jsonl")

        def stop(running, end):  # two batches of lines are read, so that one is added
            os.set_blocking(end, True)
            os.write(end, b'"b"\n' * 200000)
            running.send_signal(signal.SIGINT)
            running.wait(60)
        for before, says in ((["a.jsonl"], "; the same command goes on after 2, for a pipe cannot be read again"),
                             ([], ", and nothing of it is kept, for a pipe cannot be read again")):
            command = ["prepare", "--tokenizer", self.tokenizer, "--workers", "1", "--output-prefix",
                       self.at / "part", "--input", *(self.at / b for b in before), self.at / "pipe.jsonl"]
            code, said = self.fed(command, stop)
            self.assertEqual(code, 10, said)
            self.assertIn(says, said)
            code, said = self.fed(command, lambda running, end: os.write(end, b'"a"\n'))
            self.assertEqual(code, 0, said)
            self.assertEqual("going on after 2 documents" in said, bool(before), said)
            self.assertEqual(read_set(self.at / "part_text_document")[1],
                             [[[257]], [[*b"cat"]], [[97]]][0 if before else 2:])
            self.assertEqual([p.name for p in self.at.glob("part*") if "partial" in p.name or "prepare" in p.name],
                             [])

    def test_what_changes_ids_begins_the_work_anew(self):
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        ranks = self.at / "own.tiktoken"
        ranks.write_text("".join(f"{letters[b >> 2]}{letters[(b & 3) << 4]}== {b}\n" for b in range(256)))

        def merges(command):  # of the same vocabulary
            file = small_tokenizer()
            file["model"]["merges"].pop()
            self.tokenizer.write_text(json.dumps(file))

        def time_of_input(command):
            os.utime(self.at / "a.jsonl", (1, 1))

        def expression(command):
            command[-1] = "cl100k_base"

        def nothing(command):
            pass
        own, by_rules = ["--tokenizer", self.tokenizer], ["--tokenizer", ranks, "--tiktoken-pattern", "gpt2"]
        for change, arguments in ((nothing, own), (merges, own), (time_of_input, own),
                                  (nothing, by_rules), (expression, by_rules)):
            with self.subTest(change=change.__name__):
                command = self.stopped(*arguments)
                change(command)
                self.assertIn("going on after 2" if change is nothing else "was written for other arguments",
                              self.ended(command))
            (self.at / "pipe.jsonl").unlink()

    def test_what_fails_at_the_end_is_not_encoded_again(self):
        (self.at / "a.jsonl").write_text('{"title": "the", "body": "cat"}\n')
        arguments = ["--json-keys", "title", "body", "--input", self.at / "a.jsonl"]
        blocked = self.at / "x_body_document.idx"
        blocked.mkdir()
        self.assertIn("the same command goes on", self.prepare("x", *arguments, code=6).stderr.decode())
        first = self.at / "x_title_document.bin"
        before = first.stat()
        self.assertEqual(read_set(self.at / "x_title_document")[1], [[[257]]])
        self.assertFalse((self.at / "x_title_document.bin.partial").exists())
        blocked.rmdir()
        self.assertIn("going on after 1 documents", self.prepare("x", *arguments).stderr.decode())
        after = first.stat()
        self.assertEqual((before.st_ino, before.st_mtime_ns), (after.st_ino, after.st_mtime_ns))
        self.assertEqual(read_set(self.at / "x_body_document")[1], [[[*b"cat"]]])
        self.assertEqual([p.name for p in self.at.glob("x*") if "partial" in p.name or "prepare" in p.name], [])
        self.run_program("verify", "--input", self.at / "x_title_document", self.at / "x_body_document")

    def test_a_full_disk_is_told_and_leaves_what_was_there(self):
        (self.at / "a.jsonl").write_text('"the"\n')
        self.prepare("web", "--input", self.at / "a.jsonl")
        before = (self.at / "web_text_document.bin").read_bytes()
        path = self.texts(20000)
        limit = f"ulimit -f 64; exec {PROGRAM} prepare --tokenizer {self.tokenizer} --input {path} " \
                f"--output-prefix {self.at}/web"
        done = subprocess.run(["bash", "-c", limit], capture_output=True)
        self.assertEqual(done.returncode, 6, done.stderr.decode())
        self.assertIn("cannot write", done.stderr.decode())
        self.assertEqual((self.at / "web_text_document.bin").read_bytes(), before)
        self.assertEqual(list(self.at.glob("web*partial")), [])
        # With room for some of it, that is kept.
        done = subprocess.run(["bash", "-c", limit.replace("-f 64", "-f 1000")], capture_output=True)
        self.assertEqual(done.returncode, 6, done.stderr.decode())
        self.assertIn("the same command goes on", done.stderr.decode())
        self.assertIn("going on after", self.prepare("web", "--input", path).stderr.decode())
        self.prepare("whole", "--input", path)
        for end in ("bin", "idx"):
            self.assertEqual((self.at / f"web_text_document.{end}").read_bytes(),
                             (self.at / f"whole_text_document.{end}").read_bytes())

    def test_sets_are_merged_inspected_and_verified(self):
        self.prepare("a", "--append-eod", text='"the"\n')
        self.prepare("b", "--append-eod", text='"cat"\n""\n')
        a, b, both = (self.at / n for n in ("a_text_document", "b_text_document", "both"))
        self.run_program("merge", "--input", a, f"{b}.bin", "--output-prefix", both)
        self.assertEqual(read_set(both)[1], read_set(a)[1] + read_set(b)[1])
        seen = json.loads(self.run_program("inspect", "--input", both, "--tokenizer", self.tokenizer,
                                           "--json").stdout)
        self.assertEqual({k: seen[k] for k in ("documents", "sequences", "tokens", "type", "lengths", "text")},
                         {"documents": 3, "sequences": 2, "tokens": 6, "type": "u16",
                          "lengths": [1, 0, 1, 1], "text": "the<|endoftext|>"})
        self.assertIn(b"3 documents", self.run_program("inspect", "--input", both).stdout)
        whole = self.run_program("verify", "--input", both, "--tokenizer", self.tokenizer).stdout
        self.assertIn(b"the largest id is 259", whole)
        self.refused(4, "is 259, but the vocabulary has the ids 0 to 258",
                     "verify", "--input", both, "--vocab-size", 259)
        for end in ("bin", "idx", "xxh64"):  # by another name the checksums hold
            shutil.copy(f"{both}.{end}", self.at / f"renamed.{end}")
        self.assertIn(b"its checksums are those of", self.run_program("verify", "--input", self.at / "renamed").stdout)
        self.prepare("nothing", text="")
        self.assertIn(b"0 tokens; its checksums",
                      self.run_program("verify", "--input", self.at / "nothing_text_document").stdout)
        data = bytearray(pathlib.Path(f"{both}.bin").read_bytes())
        data[0] ^= 1
        pathlib.Path(f"{both}.bin").write_bytes(data)
        self.refused(4, "are not those in", "verify", "--input", both)
        pathlib.Path(f"{both}.bin").write_bytes(data[:-1])
        self.refused(4, "both", "verify", "--input", both)
        (self.at / "link").symlink_to(self.at)
        for spelled in (a.name, f"./{a.name}", f"link/{a.name}", a):  # the files are compared, not their names
            self.refused(2, "is one of --input", "merge", "--input", a.name, b, "--output-prefix", spelled,
                         cwd=self.at)
        self.assertEqual(read_set(a)[1], [[[257, 259]]])
        wide = self.at / "wide"  # of 8 bytes a token, more than an id has
        for ids, code in (([5, 2**31 - 1], 0), ([5, 2**31], 4)):
            pathlib.Path(f"{wide}.bin").write_bytes(struct.pack("<2q", *ids))
            pathlib.Path(f"{wide}.idx").write_bytes(
                b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 5, 1, 2, 2, 0, 0, 1))
            for command in ("verify", "inspect"):
                done = self.run_program(command, "--input", wide, code=code)
                self.assertIn(str(ids[1]), (done.stderr if code else done.stdout).decode())
        self.refused(2, "needs --input", "inspect")
        self.refused(4, "does not exist", "verify", "--input", self.at / "none")

    def test_the_end_of_documents_is_a_token_that_there_is(self):
        self.refused(2, "is no token of", "prepare", "--tokenizer", self.tokenizer, "--output-prefix",
                     self.at / "x", "--append-eod", "--eod-token", "<end>", text='"a"')
        self.refused(2, "changes nothing without --append-eod", "prepare", "--tokenizer", self.tokenizer,
                     "--output-prefix", self.at / "x", "--eod-token", "e", text='"a"')
        self.prepare("x", "--append-eod", "--eod-token", "e", text='"a"')
        self.assertEqual(read_set(self.at / "x_text_document")[1], [[[97, 101]]])
        self.refused(2, "--output-prefix is missing", "prepare", "--tokenizer", self.tokenizer, text='"a"')


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
