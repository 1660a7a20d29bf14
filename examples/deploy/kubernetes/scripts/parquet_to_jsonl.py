"""Turns files of parquet into one file of JSON lines, as train --data-type chat reads it.

    parquet_to_jsonl.py FOLDER FILE [--columns NAME...]

FOLDER has the files, also in folders below it; they are read in the order of their names. --columns are those that
a line gets, by default all. FILE.made.json tells what FILE was made of: the columns, and the files with their sizes and
times. FILE is left as it is where that is the same, and else made anew. It needs the package pyarrow.
Exit code 1: there is nothing to turn, or something that JSON cannot hold.
"""

import argparse
import json
import sys
from pathlib import Path

import pyarrow.parquet


class failure(Exception):
    """A sentence about what could not be done, and what to do."""


def source(folder, paths, columns):
    """What a file of JSON lines is made of."""
    status = [path.stat() for path in paths]
    return {"columns": columns,
            "files": [[str(path.relative_to(folder)), of.st_size, of.st_mtime_ns] for path, of in zip(paths, status)]}


def told_by(mark):
    """What a mark tells, or None where there is none that can be read."""
    try:
        return json.loads(mark.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def lines_of(path, columns):
    """The rows of a file as objects."""
    table = pyarrow.parquet.ParquetFile(path)
    missing = [name for name in columns or [] if name not in table.schema_arrow.names]
    if missing:
        raise failure(f"{path} has no column {missing[0]}, but {', '.join(table.schema_arrow.names)}; name these by --columns")
    for batch in table.iter_batches(batch_size=1000, columns=columns):
        try:
            yield from batch.to_pylist()
        except ValueError as problem:
            raise failure(f"{path} has a row that cannot be read ({problem}); leave its column out by --columns") from None


def text_of(row, path, number):
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise failure(f"{path}, row {number} has what JSON cannot hold ({problem}); leave its column out by --columns") from None


def make(paths, columns, part):
    """Writes the rows of all files, and returns their number."""
    count = 0
    with part.open("w", encoding="utf-8") as out:
        for path in paths:
            for number, row in enumerate(lines_of(path, columns), 1):
                out.write(text_of(row, path, number) + "\n")
                count += 1
    return count


def main():
    parser = argparse.ArgumentParser(description="Turns parquet into JSON lines.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--columns", nargs="+")
    asked = parser.parse_args()
    mark, part, new = (asked.file.with_name(asked.file.name + ending) for ending in (".made.json", ".part", ".made.json.new"))
    try:
        paths = sorted(asked.folder.rglob("*.parquet"))
        if not paths:
            raise failure(f"{asked.folder} has no file of parquet; fetch some first")
        made_of = source(asked.folder, paths, asked.columns)
        if asked.file.exists() and told_by(mark) == made_of:
            print(f"{asked.file} is there already")
            return 0
        try:
            count = make(paths, asked.columns, part)
            new.write_text(json.dumps(made_of), encoding="utf-8")
            mark.unlink(missing_ok=True)  # whatever ends this, no mark stands beside a file of something else
            part.replace(asked.file)
            new.replace(mark)
        finally:
            part.unlink(missing_ok=True)
            new.unlink(missing_ok=True)
        print(f"{asked.file}: {count} lines of {len(paths)} files")
    except (failure, OSError, pyarrow.ArrowException) as sentence:
        print(f"parquet_to_jsonl.py: {sentence}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
