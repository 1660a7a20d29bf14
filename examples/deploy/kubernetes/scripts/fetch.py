"""Fetches a model or a data set of the Hugging Face hub, or a file by its URL.

    fetch.py hub [--data-set] [--revision REVISION] [--include PATTERN]... REPOSITORY FOLDER
    fetch.py url [--sha256 SUM] [--made PATTERN]... URL FILE

A repository comes by `hf download` of the package huggingface_hub, with the token of HF_TOKEN where it is set.
What comes as .xz or .gz is unpacked where FILE is not called so. Proxies are those of HTTPS_PROXY and NO_PROXY.

FOLDER/.fetched.json and FILE.fetched.json tell the source. What is there whole and of the same source is left as it is.
hub goes on with a download of the same source that was cut off, and refuses a folder of another one, since the files of
the two would be mixed. url fetches FILE anew where its URL is another one, where nothing tells its URL, or where it does
not have SUM, the SHA-256 of FILE as it is stored. Where the bytes are others, the files of --made, which were made of the
old ones, are removed. Nothing has its name before it is whole.
Exit code 1: it could not be fetched.
"""

import argparse
import glob
import gzip
import hashlib
import http.client
import json
import lzma
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from pathlib import Path

ATTEMPTS, BETWEEN = 4, float(os.environ.get("FETCH_WAIT", "10"))
# Seconds after which a server that sends nothing, or less than SLOWEST bytes a second, is asked anew.
PATIENCE, SLOWEST = float(os.environ.get("FETCH_PATIENCE", "60")), 1024
MARK = ".fetched.json"


class failure(Exception):
    """A sentence about what could not be done, and what to do."""


class cut_off(Exception):
    """Why a server's answer cannot be read to its end."""


def mark_of(path):
    """What a mark tells, or None where there is none that can be read."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def write_mark(path, told):
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(told), encoding="utf-8")
    new.replace(path)


def described(source):
    """A source of hub in words."""
    words = str(source.get("repository"))
    if source.get("revision"):
        words += f" at {source['revision']}"
    if source.get("include"):
        words += f" ({', '.join(source['include'])})"
    return words


def has_files(folder):
    """Whether a folder has a file that is neither a mark nor one of hf's own."""
    return any(p.is_file() and ".cache" not in p.relative_to(folder).parts and not p.name.startswith(MARK) for p in folder.rglob("*"))


def hub(asked):
    folder = Path(asked.folder)
    source = {"repository": asked.repository, "revision": asked.revision, "include": sorted(set(asked.include)),
              "kind": "dataset" if asked.data_set else "model"}
    mark = folder / MARK
    told = mark_of(mark)
    whole = told is not None and told.pop("is", "whole") == "whole"
    if told is not None:
        told["include"] = sorted(set(told.get("include") or []))
    there = has_files(folder)
    if told == source and whole and there:
        return f"{folder} has {described(source)} already"
    if told != source and there:
        what = "files of which nothing tells where they are from" if told is None else ("" if whole else "a part of ") + described(told)
        raise failure(f"{folder} has {what}; name another folder for {described(source)}, or remove this one")
    folder.mkdir(parents=True, exist_ok=True)
    write_mark(mark, {**source, "is": "begun"})
    words = [sys.executable, "-m", "huggingface_hub.cli.hf", "download", asked.repository, "--repo-type", source["kind"],
             "--local-dir", str(folder), *(["--revision", asked.revision] if asked.revision else [])]
    for pattern in asked.include:
        words += ["--include", pattern]
    code = subprocess.run(words, check=False).returncode
    came = has_files(folder)
    if not came:
        mark.unlink()
    if code != 0:
        raise failure(f"hf download could not fetch {asked.repository}; its message is above. A repository that asks "
                      "for consent needs a token: give it by the secret hf-token")
    if not came:
        raise failure(f"{asked.repository} has no file {' or '.join(asked.include)}; name others by --include")
    write_mark(mark, {**source, "is": "whole"})
    return f"{folder} has {described(source)}"


class reader:
    """The bytes of an answer, which may be few at a time, but neither too slow nor fewer than the server has announced."""

    def __init__(self, answer):
        self.answer, self.came, self.waited, self.before = answer, 0, 0.0, 0
        announced = answer.headers.get("Content-Length")
        self.announced = int(announced) if announced and announced.isdecimal() and not getattr(answer, "chunked", False) else None

    def some(self, most):
        """At least one byte, or none at the end."""
        if self.announced is not None:
            most = min(most, self.announced - self.came)
        begun = time.monotonic()
        try:
            block = self.answer.read1(most) if most else b""
        except (OSError, http.client.HTTPException) as problem:
            raise cut_off(f"cannot be read ({problem})") from None
        self.waited += time.monotonic() - begun
        self.came += len(block)
        if most and not block and self.announced is not None:
            raise cut_off(f"is damaged or was cut off ({self.announced - self.came} bytes are missing)")
        if self.waited >= PATIENCE:
            if self.came - self.before < SLOWEST * self.waited:
                raise cut_off(f"comes too slowly ({self.came - self.before} bytes in {self.waited:.0f} s)")
            self.waited, self.before = 0.0, self.came
        return block

    def read(self, size):
        """As many bytes, or fewer at the end, as those who unpack want it."""
        out = bytearray()
        while len(out) < size and (block := self.some(size - len(out))):
            out += block
        return bytes(out)


def unpacked(stream, url, file):
    """The bytes of a stream, unpacked where the URL tells of packed ones and the file does not."""
    name = urllib.parse.urlsplit(url).path
    for ending, opener in ((".xz", lzma.open), (".gz", gzip.open)):
        if name.endswith(ending) and not file.name.endswith(ending):
            return opener(stream)
    return stream


def sum_of(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(url, file, part):
    """Writes what a URL answers to a file, in several attempts, and returns its SHA-256."""
    for attempt in range(1, ATTEMPTS + 1):
        total = hashlib.sha256()
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer, part.open("wb") as out:
                whole = unpacked(reader(answer), url, file)
                while block := whole.read(1 << 20):
                    out.write(block)
                    total.update(block)
            return total.hexdigest()
        except urllib.error.HTTPError as problem:
            if problem.code < 500 and problem.code != 429:
                raise failure(f"{url} answers {problem.code} {problem.reason}; look at the URL") from None
            why = f"answers {problem.code} {problem.reason}"
        except cut_off as problem:
            why = str(problem)
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as problem:
            why = f"is damaged or was cut off ({problem})"
        except (http.client.InvalidURL, ValueError) as problem:
            raise failure(f"{url} cannot be asked for ({problem}); write it as https://HOST/PATH, other characters as %XX") from None
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as problem:
            why = f"cannot be read ({getattr(problem, 'reason', problem)})"
        print(f"attempt {attempt} of {ATTEMPTS}: {url} {why}", file=sys.stderr)
        if attempt < ATTEMPTS:
            time.sleep(BETWEEN)
    raise failure(f"{url} {why}; look at the URL, HTTPS_PROXY and the network")


def url(asked):
    file, wanted = Path(asked.file), (asked.sha256 or "").lower()
    if not re.match("https?://", asked.url, re.IGNORECASE):
        raise failure(f"{asked.url} is no URL of http or https; write it as https://HOST/PATH")
    if wanted and not re.fullmatch("[0-9a-f]{64}", wanted):
        raise failure(f"--sha256 {asked.sha256} is no SHA-256, which has 64 digits of 0-9 and a-f; look at it")
    mark = file.with_name(file.name + MARK)
    there = sum_of(file) if wanted and file.exists() else None
    told = mark_of(mark)
    if file.exists() and (there == wanted if wanted else told is not None and told.get("url") == asked.url):
        if told is None or told.get("url") != asked.url:
            write_mark(mark, {"url": asked.url, "sha256": there})
        return f"{file} is there already"
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    try:
        total = download(asked.url, file, part)
        if wanted and total != wanted:
            raise failure(f"{asked.url} has the SHA-256 {total}, not {wanted}; look at the URL")
        removed = []
        before = there or sum_of(file) if file.exists() else (told or {}).get("sha256")
        # Whatever ends this, the mark of one source never stands beside the file of another.
        mark.unlink(missing_ok=True)
        if before and before != total:
            removed = sorted(path for pattern in asked.made for path in glob.glob(pattern))
            for path in removed:
                os.unlink(path)
        if not file.exists() or before != total:
            part.replace(file)
        write_mark(mark, {"url": asked.url, "sha256": total})
    finally:
        part.unlink(missing_ok=True)
    return f"{file}: {file.stat().st_size} bytes" + (f"; removed, since they are to be made anew: {', '.join(removed)}" if removed else "")


def main():
    parser = argparse.ArgumentParser(description="Fetches a model, a data set or a file.")
    ways = parser.add_subparsers(required=True)
    way = ways.add_parser("hub")
    way.add_argument("--data-set", action="store_true")
    way.add_argument("--revision")
    way.add_argument("--include", action="append", default=[])
    way.add_argument("repository")
    way.add_argument("folder")
    way.set_defaults(run=hub)
    way = ways.add_parser("url")
    way.add_argument("--sha256")
    way.add_argument("--made", action="append", default=[])
    way.add_argument("url")
    way.add_argument("file")
    way.set_defaults(run=url)
    asked = parser.parse_args()
    try:
        print(asked.run(asked))
    except (failure, OSError) as sentence:
        print(f"fetch.py: {sentence}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
