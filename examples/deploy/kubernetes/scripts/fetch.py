"""Fetches a model or a data set of the Hugging Face hub, or a file by its URL.

    fetch.py hub [--data-set] [--revision REVISION] [--include PATTERN]... REPOSITORY FOLDER
    fetch.py url [--sha256 SUM] URL FILE

A repository comes by `hf download` of the package huggingface_hub, with the token of HF_TOKEN where it is set.
What comes as .xz or .gz is unpacked where FILE is not called so. Proxies are those of HTTPS_PROXY and NO_PROXY.
What is there already, whole and of the same source, is left as it is. Nothing has its name before it is whole.
Exit code 1: it could not be fetched.
"""

import argparse
import gzip
import hashlib
import http.client
import json
import lzma
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ATTEMPTS, BETWEEN = 4, float(os.environ.get("FETCH_WAIT", "10"))
MARK = ".fetched.json"


class failure(Exception):
    """A sentence about what could not be done, and what to do."""


def hub(asked):
    folder = Path(asked.folder)
    source = {"repository": asked.repository, "revision": asked.revision, "include": asked.include,
              "kind": "dataset" if asked.data_set else "model"}
    mark = folder / MARK
    if mark.exists() and json.loads(mark.read_text(encoding="utf-8")) == source:
        return f"{folder} has {asked.repository} already"
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "huggingface_hub.cli.hf", "download", asked.repository, "--repo-type", source["kind"],
             "--local-dir", str(folder), *(["--revision", asked.revision] if asked.revision else [])]
    for pattern in asked.include:
        words += ["--include", pattern]
    if subprocess.run(words, check=False).returncode != 0:
        raise failure(f"hf download could not fetch {asked.repository}; its message is above. A repository that asks "
                      "for consent needs a token: give it by the secret hf-token")
    if not any(p.is_file() and ".cache" not in p.parts for p in folder.rglob("*")):
        raise failure(f"{asked.repository} has no file {' or '.join(asked.include)}; name others by --include")
    new = folder / (MARK + ".new")
    new.write_text(json.dumps(source), encoding="utf-8")
    new.replace(mark)
    return f"{folder} has {asked.repository}"


def unpacked(stream, url, file):
    """The bytes of a stream, unpacked where the URL tells of packed ones and the file does not."""
    name = urllib.request.urlparse(url).path
    for ending, opener in ((".xz", lzma.open), (".gz", gzip.open)):
        if name.endswith(ending) and not file.name.endswith(ending):
            return opener(stream)
    return stream


def url(asked):
    file = Path(asked.file)
    if file.exists():
        return f"{file} is there already"
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    for attempt in range(1, ATTEMPTS + 1):
        total = hashlib.sha256()
        try:
            with urllib.request.urlopen(asked.url, timeout=60) as answer, part.open("wb") as out:
                whole = unpacked(answer, asked.url, file)
                while block := whole.read(1 << 20):
                    out.write(block)
                    total.update(block)
                if answer.length:  # of what the server has announced; reading in parts raises nothing
                    raise EOFError(f"{answer.length} bytes are missing")
            break
        except urllib.error.HTTPError as problem:
            if problem.code < 500 and problem.code != 429:
                raise failure(f"{asked.url} answers {problem.code} {problem.reason}; look at the URL") from None
            why = f"answers {problem.code} {problem.reason}"
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as problem:
            why = f"is damaged or was cut off ({problem})"
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as problem:
            why = f"cannot be read ({getattr(problem, 'reason', problem)})"
        print(f"attempt {attempt} of {ATTEMPTS}: {asked.url} {why}", file=sys.stderr)
        if attempt == ATTEMPTS:
            part.unlink(missing_ok=True)
            raise failure(f"{asked.url} {why}; look at the URL, HTTPS_PROXY and the network")
        time.sleep(BETWEEN)
    if asked.sha256 and total.hexdigest() != asked.sha256.lower():
        part.unlink()
        raise failure(f"{asked.url} has the SHA-256 {total.hexdigest()}, not {asked.sha256}; look at the URL")
    part.replace(file)
    return f"{file}: {file.stat().st_size} bytes"


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
