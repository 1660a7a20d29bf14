"""Turns files of parquet into one file of JSON lines, as train --data-type chat reads it.

    parquet_to_jsonl.py FOLDER FILE [--columns NAME...]

FOLDER has the files, also in folders below it; they are read in the order of their names. --columns are those that
a line gets, by default all. A file that is newer than all of FOLDER is left as it is. It needs the package pyarrow.
Exit code 1: there is nothing to turn, or something that JSON cannot hold.
"""

import argparse
import json
import sys
from pathlib import Path

import pyarrow.parquet


class failure(Exception):
    """A sentence about what could not be done, and what to do."""


def lines_of(path, columns):
    """The rows of a file as objects."""
    table = pyarrow.parquet.ParquetFile(path)
    missing = [name for name in columns or [] if name not in table.schema_arrow.names]
    if missing:
        raise failure(f"{path} has no column {missing[0]}, but {', '.join(table.schema_arrow.names)}; name these by --columns")
    for batch in table.iter_batches(batch_size=1000, columns=columns):
        yield from batch.to_pylist()


def text_of(row, path, number):
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise failure(f"{path}, row {number} has what JSON cannot hold ({problem}); leave its column out by --columns") from None


def main():
    parser = argparse.ArgumentParser(description="Turns parquet into JSON lines.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--columns", nargs="+")
    asked = parser.parse_args()
    try:
        paths = sorted(asked.folder.rglob("*.parquet"))
        if not paths:
            raise failure(f"{asked.folder} has no file of parquet; fetch some first")
        if asked.file.exists() and asked.file.stat().st_mtime > max(p.stat().st_mtime for p in paths):
            print(f"{asked.file} is there already")
            return 0
        part = asked.file.with_name(asked.file.name + ".part")
        count = 0
        with part.open("w", encoding="utf-8") as out:
            for path in paths:
                for number, row in enumerate(lines_of(path, asked.columns), 1):
                    out.write(text_of(row, path, number) + "\n")
                    count += 1
        part.replace(asked.file)
        print(f"{asked.file}: {count} lines of {len(paths)} files")
    except (failure, OSError, pyarrow.ArrowException) as sentence:
        print(f"parquet_to_jsonl.py: {sentence}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
