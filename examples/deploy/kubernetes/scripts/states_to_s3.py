"""Copies the whole states of all runs below a folder to S3.

    states_to_s3.py FOLDER BUCKET PREFIX

A state is a folder iter_NUMBER with a megacpp_state.json, which names its files and their sizes. It goes to
PREFIX/RUN/iter_NUMBER/. The megacpp_state.json goes last, so that a state whose file is there is whole there, and
is not copied again. Newer states go first. A state that the run removes while it is copied, since it keeps only
some, is left out and told. It needs the package boto3, which finds credentials in its environment.
Exit code 1: a state is damaged, or S3 refused something; the others are copied.
"""

import json
import re
import sys
from pathlib import Path

import boto3
import botocore.exceptions

STATE = "megacpp_state.json"


def states_below(folder):
    """The folders of states, the newest first."""
    found = [p.parent for p in Path(folder).rglob(f"iter_*/{STATE}") if re.fullmatch(r"iter_\d+", p.parent.name)]
    return sorted(found, key=lambda state: (state / STATE).stat().st_mtime, reverse=True)


def is_there(s3, bucket, key):
    try:
        s3.head_object(Bucket=bucket, Key=key)
        return True
    except botocore.exceptions.ClientError as problem:
        if problem.response["Error"]["Code"] in ("404", "NoSuchKey", "NotFound"):
            return False
        raise


def copy(s3, state, bucket, prefix):
    """Copies a state, and returns a sentence about it. Throws ValueError for one that is damaged."""
    if is_there(s3, bucket, f"{prefix}/{STATE}"):
        return "is there already"
    files = json.loads((state / STATE).read_text(encoding="utf-8"))["state"]["files"]
    for name, of in sorted(files.items()):
        size = (state / name).stat().st_size
        if size != of["bytes"]:
            raise ValueError(f"{name} has {size} bytes and should have {of['bytes']}")
    for name in [*sorted(files), STATE]:
        s3.upload_file(str(state / name), bucket, f"{prefix}/{name}")
    return f"copied, {sum(of['bytes'] for of in files.values())} bytes"


def main(words):
    if len(words) != 3:
        print("states_to_s3.py: give FOLDER, BUCKET and PREFIX", file=sys.stderr)
        return 2
    folder, bucket, prefix = words
    s3, failed = boto3.client("s3"), False
    for state in states_below(folder):
        name = state.relative_to(folder)
        try:
            print(f"{name}: {copy(s3, state, bucket, f'{prefix}/{name}')}", flush=True)
        except FileNotFoundError:
            print(f"{name}: left out, since the run has removed it", flush=True)
        except (ValueError, KeyError, botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError,
                boto3.exceptions.Boto3Error) as problem:
            print(f"states_to_s3.py: {name} is not copied: {problem}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
