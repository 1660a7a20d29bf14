#!/usr/bin/env python3
"""megacpp-data against the tokenizers library: the same lines, in turn, and memory on hard lines.

    tokenizers.py PROGRAM VOCABULARY... [--text FILE] [--megabytes 20] [--pairs 5] [--python PYTHON]
                  [--prepared-megabytes 100]

PROGRAM is megacpp-data, VOCABULARY a tokenizer.json. The text is FILE and generated words of several
scripts, in turn, cut into JSON lines. Measured are, in pairs A B A B, `count` on one thread against
the library's encode_batch of the same texts on one thread (PYTHON has the library; lines of `count`
are parsed in its time, theirs before), `count` by two workers against one, in twice as many pairs,
and `prepare` against `count`. Loading the vocabulary, measured by encoding nothing, is taken off
ours and not in theirs. Beside seconds stand those of the processor, which other programs on the
machine change less. Peak resident memory is that of each run, and of `count` on one word of 16 MiB, on 16 MiB of marks
and on 16 MiB of Korean, the last two not composed. Medians, with the least and most, are printed and
written to bench/results/ with the CPU model, the command and the commit.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import unicodedata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402
from programs import last_json, spread  # noqa: E402

LIBRARY = """
import json, sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
texts = [json.loads(line)["text"] for line in open(sys.argv[2], encoding="utf-8", newline="\\n")]
tokens, seconds, busy = 0, 0.0, 0.0
for begin in range(0, len(texts), 1000):
    batch = texts[begin:begin + 1000]
    started, busy_before = time.perf_counter(), time.process_time()
    encoded = tokenizer.encode_batch(batch)
    seconds += time.perf_counter() - started
    busy += time.process_time() - busy_before
    tokens += sum(len(e) for e in encoded)
print(json.dumps({"seconds": seconds, "busy": busy, "tokens": tokens}))
"""
SCRIPTS = [("a", 26), ("\u00e0", 30), ("\u03b1", 25), ("\u0430", 32), ("\u05d0", 27), ("\u0627", 36), ("\u0905", 50),
           ("\u0e01", 46), ("\u3042", 80), ("\u4e00", 3000), ("\uac00", 3000)]
MIB = 1 << 20


def measured(command, **more):
    """Seconds, processor seconds, peak resident bytes, and the JSON that it prints."""
    with tempfile.TemporaryFile("w+") as out:
        started = time.perf_counter()
        process = subprocess.Popen([str(word) for word in command], stdout=out, **more)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        printed = out.read()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {process.returncode}\n{printed}")
    busy = usage.ru_utime + usage.ru_stime
    return seconds, busy, usage.ru_maxrss * 1024, last_json(printed) if "{" in printed else None


def lines(text, size):
    """JSON lines of about a kilobyte, English and others in turn."""
    r, at, written = random.Random(1), 0, 0
    words = {}
    for first, count in SCRIPTS:
        words[first] = ["".join(chr(ord(first) + min(int(r.expovariate(6 / count)), count - 1))
                                for _ in range(r.randint(1, 9))) for _ in range(3000)]
    while written < size:
        at = at if at + 1000 < len(text) else 0
        several = " ".join(r.choice(words[first]) + r.choice(["", "", "", ",", ".", " 12"])
                           for first in r.choices([s for s, _ in SCRIPTS], k=4) for _ in range(20))
        for document in text[at:at + 1000], several:
            line = json.dumps({"text": document}, ensure_ascii=False) + "\n"
            written += len(line.encode())
            yield line
        at += 1000


def hard_lines(folder):
    """JSON lines of almost 16 MiB."""
    r = random.Random(2)
    room = 16 * MIB - 16
    korean = "".join(unicodedata.normalize("NFD", chr(r.randint(0xAC00, 0xD7A3))) for _ in range(MIB))
    texts = {"one word": "".join(r.choices("etaoinshrdlu", k=room)), "one letter": "a" * room,
             "Korean, not composed": korean * 3, "marks": "e\u0323\u0301\u0308" * 3 * MIB,
             "spaces": " " * room}
    for name, text in texts.items():
        text = text.encode()[:room].decode(errors="ignore")
        path = folder / "hard.jsonl"
        path.write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n", encoding="utf-8")
        yield name, path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("vocabularies", nargs="+")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--prepared-megabytes", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--python", default=sys.executable)
    arguments = parser.parse_args()
    program, pairs = arguments.program, arguments.pairs
    text = arguments.text.read_text(encoding="utf-8") if arguments.text else "All the world. " * 999
    result = machine.facts()
    result["command"] = " ".join(["tokenizers.py", *(Path(word).name for word in sys.argv[1:])])
    alone = {**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        texts, large, none = (folder / f"{name}.jsonl" for name in ("texts", "large", "none"))
        none.write_text("")
        for path, megabytes in (texts, arguments.megabytes), (large, arguments.prepared_megabytes):
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.writelines(lines(text, megabytes * 1_000_000))
        for vocabulary in arguments.vocabularies:
            count = [program, "count", "--json", "--tokenizer", vocabulary]

            def counted(input_, workers, loading=(0.0, 0.0)):
                seconds, busy, bytes_, printed = measured(
                    [*count, "--input", input_, "--workers", workers])
                return seconds - loading[0], busy - loading[1], bytes_, printed

            starts = [counted(none, 1) for _ in range(3)]
            loading = tuple(statistics.median(start[i] for start in starts) for i in (0, 1))
            rows, memory = {}, {}

            def row(name, seconds, busy, bytes_):
                rows.setdefault(name, []).append(seconds)
                rows.setdefault(f"{name}, processor", []).append(busy)
                memory[name] = max(memory.get(name, 0), bytes_)

            for _ in range(pairs):
                *taken, ours = counted(texts, 1, loading)
                row("ours", *taken)
                _, _, bytes_, theirs = measured(
                    [arguments.python, "-c", LIBRARY, vocabulary, texts], env=alone)
                row("theirs", theirs["seconds"], theirs["busy"], bytes_)
                if ours["tokens"] != theirs["tokens"]:
                    raise SystemExit(f"{vocabulary}: {ours['tokens']} tokens, theirs {theirs['tokens']}")
            for _ in range(2 * pairs):
                row("one worker", *counted(texts, 1, loading)[:3])
                row("two workers", *counted(texts, 2, loading)[:3])
            for _ in range(pairs):
                row("count", *counted(large, 2, loading)[:3])
                seconds, busy, bytes_, _ = measured(
                    [program, "prepare", "--tokenizer", vocabulary, "--input", large, "--workers", 2,
                     "--output-prefix", folder / "set"], stderr=subprocess.DEVNULL)
                row("prepare", seconds - loading[0], busy - loading[1], bytes_)
                for made in folder.glob("set*"):
                    made.unlink()
            ratio = lambda a, b: spread([x / y for x, y in zip(rows[a], rows[b])])
            of = {"loading_s": loading[0], "bytes": ours["bytes"], "tokens": ours["tokens"],
                  "seconds": {name: spread(values) for name, values in rows.items()},
                  "peak_bytes": memory,
                  "theirs/ours": ratio("theirs", "ours"),
                  "theirs/ours, processor": ratio("theirs, processor", "ours, processor"),
                  "one worker/two workers": ratio("one worker", "two workers"),
                  "prepare/count": ratio("prepare", "count"),
                  "prepare/count, processor": ratio("prepare, processor", "count, processor")}
            for name, path in hard_lines(folder):
                seconds, busy, bytes_, _ = counted(path, 2, loading)
                of[name] = {"seconds": seconds, "processor": busy, "peak_bytes": bytes_}
            result[Path(vocabulary).stem] = of
            print(Path(vocabulary).stem, json.dumps(of))
    result["load_average_after"] = [round(value, 2) for value in os.getloadavg()]
    print(machine.write_result("tokenizers", result))


if __name__ == "__main__":
    sys.exit(main())
