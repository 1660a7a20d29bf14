"""Copies the whole states of all runs below a folder to S3.

    states_to_s3.py FOLDER BUCKET PREFIX

A state is a folder iter_NUMBER with a megacpp_state.json, which names its files and their sizes. It goes to
PREFIX/RUN/iter_NUMBER/. The megacpp_state.json goes last, so that a state whose file is there is whole there; it is
not copied again where the two files are the same. Where they differ, a run was begun anew under the name of an older one,
and none of its states is copied, since those of the two would be mixed. Newer states go first. A state that the run
removes meanwhile, since it keeps only some, is left out and told. It needs the package boto3, which finds credentials in
its environment.
Exit code 1: a state is damaged or of another run, or S3 or a folder refused something; the others are copied.
"""

import json
import os
import re
import sys
from pathlib import Path

import boto3
import boto3.exceptions
import botocore.exceptions

STATE = "megacpp_state.json"
REFUSALS = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, boto3.exceptions.Boto3Error)


def states_below(folder, refused):
    """The folders of states, the newest first. What cannot be looked at is appended to refused; what is gone is no state."""
    found = []
    for path, folders, _ in os.walk(folder, onerror=refused.append):
        own = [name for name in folders if re.fullmatch(r"iter_\d+", name) and os.path.exists(os.path.join(path, name, STATE))]
        found += [Path(path, name) for name in own]
        folders[:] = [name for name in folders if name not in own]
    refused[:] = [problem for problem in refused if not isinstance(problem, FileNotFoundError)]

    def written(state):
        try:
            return (state / STATE).stat().st_mtime
        except OSError:
            return 0
    return sorted(found, key=written, reverse=True)


def there(s3, bucket, key):
    """The content of an object, or None where there is none."""
    try:
        return s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    except botocore.exceptions.ClientError as problem:
        if problem.response["Error"]["Code"] in ("404", "NoSuchKey", "NotFound"):
            return None
        raise


def sizes(record):
    """The sizes of a state's files by name. Throws ValueError for a record that is none."""
    try:
        return {name: of["bytes"] for name, of in sorted(json.loads(record)["state"]["files"].items())}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"its {STATE} is damaged") from None


def copy(s3, state, record, bucket, prefix):
    """Copies a state, whose megacpp_state.json has been read. Throws ValueError for one that is damaged."""
    files = sizes(record)
    for name, wanted in files.items():
        size = (state / name).stat().st_size
        if size != wanted:
            raise ValueError(f"{name} has {size} bytes and should have {wanted}")
    for name in files:
        s3.upload_file(str(state / name), bucket, f"{prefix}/{name}")
    if (state / STATE).read_bytes() != record:
        raise ValueError("it was written anew meanwhile, so it is copied the next time")
    s3.put_object(Bucket=bucket, Key=f"{prefix}/{STATE}", Body=record)
    return f"copied, {sum(files.values())} bytes"


def copy_all(s3, states, bucket, name_of, key_of):
    """Copies states, and tells of each. Returns whether none failed, but for those that have been removed."""
    failed, plan = [], []

    def attempt(state, act):
        try:
            return act()
        except (OSError, ValueError, *REFUSALS) as problem:
            if not (state / STATE).exists():
                print(f"{name_of(state)}: left out, since the run has removed it", flush=True)
            else:
                print(f"states_to_s3.py: {name_of(state)} is not copied: {problem}", file=sys.stderr, flush=True)
                failed.append(state)
            return None

    def compare(state):
        record = (state / STATE).read_bytes()
        plan.append((state, record, there(s3, bucket, f"{key_of(state)}/{STATE}")))

    for state in states:
        attempt(state, lambda state=state: compare(state))
    others = {state.parent: state for state, record, content in plan if content not in (None, record)}

    def carry_out(state, record, content):
        if content == record:
            return "is there already"
        if state.parent in others:
            raise ValueError(f"{bucket} has {key_of(others[state.parent])} of another run of that name; name another S3_PREFIX or run")
        return copy(s3, state, record, bucket, key_of(state))

    for step in plan:
        said = attempt(step[0], lambda step=step: carry_out(*step))
        if said:
            print(f"{name_of(step[0])}: {said}", flush=True)
    return not failed


def main(words):
    if len(words) != 3:
        print("states_to_s3.py: give FOLDER, BUCKET and PREFIX", file=sys.stderr)
        return 2
    folder, bucket, prefix = words[0], words[1], words[2].strip("/")
    refused = []
    if not os.path.isdir(folder):
        refused.append(f"{folder} is no folder; name the one that has the runs")
    states = states_below(folder, refused)
    for problem in refused:
        print(f"states_to_s3.py: {problem}", file=sys.stderr, flush=True)
    try:
        s3 = boto3.client("s3")
    except REFUSALS as problem:
        print(f"states_to_s3.py: there is no client of S3: {problem}", file=sys.stderr)
        return 1
    whole = copy_all(s3, states, bucket, lambda state: state.relative_to(folder), lambda state: f"{prefix}/{state.relative_to(folder)}")
    return 0 if whole and not refused else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
