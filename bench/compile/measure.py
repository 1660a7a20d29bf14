#!/usr/bin/env python3
"""What compiling costs: seconds, memory, binary size, longest symbol, constexpr steps of clang.

Three measurements, alone from the command line or many from a plan (a JSON file):

  header  compiles a unit that holds one #include, against an empty unit
  build   runs a clean build, then touches files and builds again; looks at the binary
  steps   bisects the smallest -fconstexpr-steps under which a unit compiles

Every measurement takes limits ("at_most"); the exit status is 1 when one is exceeded, 2 when a
command fails. Results are printed as a table and written to bench/results/. A plan is a list:

  [{"kind": "header", "header": "megacpp/megacpp.hpp", "at_most": {"seconds": 2}},
   {"kind": "build", "name": "char", "prepare": "rm -rf build/c && cmake --preset c",
    "build": "cmake --build build/c -t char", "touch": ["char.cpp"], "binary": "build/c/char",
    "at_most": {"seconds": 60, "tree_bytes": 4294967296, "rebuild_s": 10}},
   {"kind": "steps", "unit": "char.hpp", "resolution": 0.02, "at_most": {"steps": 524288}}]

Memory is given twice: of the largest process (ru_maxrss of wait4, what /usr/bin/time -v prints) and
of all processes of the build together (resident sizes summed, sampled every 50 ms).
"""

import argparse
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402

MIB = 1 << 20
STEPS_CEILING = 1 << 31  # clang stores the limit in 32 bits
SAMPLE_SECONDS = 0.05
DEFAULT_FLAGS = ["-std=c++20", "-O3", "-I", str(machine.ROOT / "include")]
# Functions, variables, tables and function-local statics whose outermost namespace is mc.
OWN_SYMBOL = r"^_Z[A-Z]*N[A-Za-z]*2mc"
# What a limit may be set on, and how the table shows it: heading, unit divisor, format.
COLUMNS = {
    "seconds": ("cold s", 1, "{:.2f}"),
    "empty_s": ("empty s", 1, "{:.2f}"),
    "rebuild_s": ("rebuild s", 1, "{:.2f}"),
    "peak_bytes": ("largest MiB", MIB, "{:.0f}"),
    "tree_bytes": ("all MiB", MIB, "{:.0f}"),
    "lines": ("lines", 1, "{}"),
    "binary_bytes": ("binary MiB", MIB, "{:.2f}"),
    "longest_symbol": ("symbol", 1, "{}"),
    "longest_own_symbol": ("own symbol", 1, "{}"),
    "steps": ("steps", 1, "{}"),
}


class Failed(Exception):
    """A command that had to succeed did not, or a plan is wrong; the text says which and why."""


def words(value):
    """A command or flags as a list: lists stay, strings are split as a shell would."""
    return list(value) if isinstance(value, (list, tuple)) else shlex.split(value or "")


def tree_bytes(session):
    """Resident bytes of all processes of a session: pages that they share count for each."""
    pages = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                # After the name in parentheses: state ppid pgrp session ... rss is field 24.
                stat = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
            except (OSError, IndexError):
                continue
            if len(stat) > 21 and int(stat[3]) == session:
                pages += int(stat[21])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(command, directory=None):
    """Runs a command to its end; returns seconds, peak_bytes, tree_bytes. Raises Failed."""
    # A compiler cache would measure itself.
    environment = {**os.environ, "CCACHE_DISABLE": "1", "SCCACHE_RECACHE": "1", "LC_ALL": "C"}
    with tempfile.TemporaryFile() as log:
        start = time.monotonic()
        try:
            child = subprocess.Popen(command, cwd=directory, env=environment, stdout=log,
                                     stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
                                     start_new_session=True)
        except OSError as problem:
            raise Failed(f"cannot start {command[0]}: {problem.strerror}") from problem
        done, peak = threading.Event(), [0]

        def sample():
            while not done.wait(SAMPLE_SECONDS):
                peak[0] = max(peak[0], tree_bytes(child.pid))

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)  # a session of its own: Ctrl-C passed it by
            raise
        finally:
            seconds = time.monotonic() - start
            done.set()
            sampler.join()
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            log.seek(0)
            tail = log.read().decode(errors="replace").strip().splitlines()[-20:]
            raise Failed("exit status {} of: {}\n{}".format(
                child.returncode, shlex.join(command), "\n".join(tail)).rstrip())
    largest = usage.ru_maxrss * 1024
    return {"seconds": seconds, "peak_bytes": largest, "tree_bytes": max(peak[0], largest)}


def typical(runs):
    """The run of median time, with the largest memory seen in any."""
    middle = sorted(runs, key=lambda run: run["seconds"])[(len(runs) - 1) // 2]
    return {**middle, **{k: max(r[k] for r in runs) for k in ("peak_bytes", "tree_bytes")}}


def measure_header(item):
    """Keys: header; compiler (g++), flags, repeat (3)."""
    compiler, flags = item.get("compiler", "g++"), words(item.get("flags", DEFAULT_FLAGS))
    repeat = int(item.get("repeat", 3))
    with tempfile.TemporaryDirectory() as folder:
        unit, empty = Path(folder, "unit.cpp"), Path(folder, "empty.cpp")
        unit.write_text(f"#include <{item['header']}>\n")
        empty.write_text("")
        command = [*words(compiler), *flags, "-c", str(unit), "-o", str(Path(folder, "unit.o"))]
        result = typical([measure(command) for _ in range(repeat)])
        command[command.index(str(unit))] = str(empty)
        result["empty_s"] = statistics.median(measure(command)["seconds"] for _ in range(repeat))
        text = Path(folder, "unit.i")
        measure([*words(compiler), *flags, "-E", "-P", str(unit), "-o", str(text)])
        result["lines"] = text.read_bytes().count(b"\n")
    return result


def symbols(binary):
    """Names of all symbols of a binary, as the linker sees them."""
    found = subprocess.run(["nm", "--format=posix", str(binary)], capture_output=True, text=True)
    if found.returncode != 0:
        raise Failed(f"nm: {found.stderr.strip()}")
    return [line.split(" ", 1)[0] for line in found.stdout.splitlines() if line.strip()]


def readable(symbol):
    return subprocess.run(["c++filt", symbol], capture_output=True, text=True).stdout.strip()


def inspect_binary(path, own=OWN_SYMBOL):
    """Size in bytes, and the longest symbol of all and of ours (mangled length)."""
    path = Path(path)
    if not path.is_file():
        raise Failed(f"{path}: no such binary after the build")
    result, names = {"binary_bytes": path.stat().st_size}, symbols(path)
    for key, chosen in (("longest_symbol", names),
                        ("longest_own_symbol", [n for n in names if re.search(own, n)])):
        if chosen:
            longest = max(chosen, key=len)
            result[key] = len(longest)
            result[key + "_name"] = readable(longest)
    return result


def measure_build(item):
    """Keys: build; prepare, touch (list), rebuild (build), binary, directory, own, repeat (1).

    prepare runs unmeasured before every clean build: it removes and configures. touch names the
    files whose edit the rebuild answers; their contents stay.
    """
    directory = item.get("directory")
    base = Path(directory) if directory else Path.cwd()
    runs, again = [], []
    for _ in range(int(item.get("repeat", 1))):
        if item.get("prepare"):
            measure(["sh", "-c", item["prepare"]], directory)
        runs.append(measure(["sh", "-c", item["build"]], directory))
        if item.get("touch"):
            for name in words(item["touch"]):
                if not (base / name).is_file():
                    raise Failed(f"{base / name}: no such file to touch")
                os.utime(base / name)
            again.append(measure(["sh", "-c", item.get("rebuild", item["build"])], directory))
    result = typical(runs)
    if again:
        result["rebuild_s"] = statistics.median(run["seconds"] for run in again)
        result["rebuild_peak_bytes"] = max(run["peak_bytes"] for run in again)
    if item.get("binary"):
        result.update(inspect_binary(base / item["binary"], item.get("own", OWN_SYMBOL)))
    return result


def smallest(compiles, ceiling, resolution=0.0):
    """The smallest limit in [1, ceiling] for which compiles(limit), which must be monotone.

    Grows a limit until it suffices, then bisects down to max(1, resolution * limit); what is
    returned always suffices. Raises Failed when the ceiling itself does not.
    """
    low, high = 0, min(1024, ceiling)
    while not compiles(high):
        if high >= ceiling:
            raise Failed(f"needs more than {ceiling} steps")
        low, high = high, min(high * 4, ceiling)
    while high - low > max(1, resolution * high):
        middle = (low + high) // 2
        if compiles(middle):
            high = middle
        else:
            low = middle
    return high


def constexpr_steps(unit, evaluation="", compiler="clang++", flags=DEFAULT_FLAGS,
                    option="-fconstexpr-steps=", ceiling=STEPS_CEILING, resolution=0.0):
    """The smallest limit under which a unit compiles, with some more source text appended.

    The limit holds for each constant evaluation by itself, so this is the cost of the largest one
    of the unit: give a short unit and one evaluation to learn the cost of that one. With g++ use
    option="-fconstexpr-ops-limit=" (ceiling 2^31 - 1).
    """
    unit = Path(unit)
    if not unit.is_file():
        raise Failed(f"{unit}: no such file")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "unit.cpp")
        source.write_text(f'#include "{unit.resolve()}"\n{evaluation}\n')
        command = [*words(compiler), *words(flags), "-fsyntax-only", str(source)]
        # At the ceiling a failure is the unit's own: measure() raises with the compiler's words.
        measure([*command, f"{option}{ceiling}"])

        def compiles(limit):
            return subprocess.run([*command, f"{option}{limit}"], stdin=subprocess.DEVNULL,
                                  capture_output=True).returncode == 0

        return smallest(compiles, ceiling, resolution)


def measure_steps(item):
    """Keys: unit; evaluation, compiler (clang++), flags, option, ceiling, resolution (exact)."""
    names = ("evaluation", "compiler", "flags", "option", "ceiling", "resolution")
    return {"steps": constexpr_steps(item["unit"], **{k: item[k] for k in names if k in item})}


KINDS = {"header": (measure_header, "header"), "build": (measure_build, "build"),
         "steps": (measure_steps, "unit")}


def exceeded(row):
    """One sentence for every limit that the row does not keep."""
    found = []
    for key, limit in row.get("at_most", {}).items():
        if key not in row:
            found.append(f"{row['name']}: {key} has a limit and was not measured")
        elif row[key] > limit:
            heading, unit, form = COLUMNS[key]
            found.append(f"{row['name']}: {heading} " + form.format(row[key] / unit if unit > 1
                         else row[key]) + f" exceeds {limit / unit:g}")
    return found


def table(rows):
    """The rows as text, only with columns that some row has."""
    keys = [key for key in COLUMNS if any(key in row for row in rows)]
    cells = [["name", *(COLUMNS[key][0] for key in keys)]]
    for row in rows:
        cells.append([row["name"]])
        for key in keys:
            _, unit, form = COLUMNS[key]
            value = row.get(key)
            cells[-1].append("-" if value is None else
                             form.format(value / unit if unit > 1 else value))
    widths = [max(len(line[i]) for line in cells) for i in range(len(keys) + 1)]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *(
        cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]) for line in cells)


def check_plan(plan, source):
    if not isinstance(plan, list) or not plan:
        raise Failed(f"{source}: must be a list of measurements")
    for number, item in enumerate(plan, 1):
        kind = item.get("kind") if isinstance(item, dict) else None
        if kind not in KINDS:
            raise Failed(f"{source}: item {number}: kind must be one of {', '.join(KINDS)}")
        if not item.get(KINDS[kind][1]):
            raise Failed(f"{source}: item {number}: {kind} needs {KINDS[kind][1]}")
        unknown = sorted(set(item.get("at_most", {})) - set(COLUMNS))
        if unknown:
            raise Failed("{}: item {}: at_most has {}, but can have {}".format(
                source, number, unknown[0], ", ".join(COLUMNS)))
        if int(item.get("repeat", 1)) < 1:
            raise Failed(f"{source}: item {number}: repeat must be at least 1")
        item.setdefault("name", f"{item[KINDS[kind][1]]} ({item.get('compiler', kind)})")
    return plan


def limit(text):
    key, equals, value = text.partition("=")
    if not equals or key not in COLUMNS:
        raise argparse.ArgumentTypeError(f"{text}: want KEY=NUMBER, KEY of {', '.join(COLUMNS)}")
    return key, float(value)


def parse(argv):
    p = argparse.ArgumentParser(description="Measures what compiling costs.")
    commands = p.add_subparsers(dest="kind", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--out", metavar="FOLDER", help="default bench/results")
    shared.add_argument("--tag", default="compile", help="start of the result's file name")
    single = argparse.ArgumentParser(add_help=False)
    single.add_argument("--name")
    single.add_argument("--at-most", type=limit, action="append", default=[], metavar="KEY=NUMBER")
    tool = argparse.ArgumentParser(add_help=False)
    tool.add_argument("--compiler")
    tool.add_argument("--flags", help="instead of " + shlex.join(machine.portable(DEFAULT_FLAGS)))

    plan = commands.add_parser("plan", parents=[shared], help="all measurements of a JSON file")
    plan.add_argument("file")
    plan.add_argument("--only", metavar="REGEX", help="those whose name matches")
    header = commands.add_parser("header", parents=[shared, single, tool], help="one #include")
    header.add_argument("header", help="for example megacpp/megacpp.hpp")
    header.add_argument("--repeat", type=int)
    build = commands.add_parser("build", parents=[shared, single], help="clean build and rebuild")
    build.add_argument("build", help="shell command")
    for name in ("--prepare", "--rebuild", "--binary", "--directory", "--own"):
        build.add_argument(name)
    build.add_argument("--touch", action="append", metavar="FILE")
    build.add_argument("--repeat", type=int)
    steps = commands.add_parser("steps", parents=[shared, single, tool], help="constexpr steps")
    steps.add_argument("unit", help="source file")
    steps.add_argument("--evaluation", help="source text put after it")
    steps.add_argument("--option")
    steps.add_argument("--ceiling", type=int)
    steps.add_argument("--resolution", type=float, help="relative, 0 for exact")
    return p.parse_args(argv)


def plan_of(arguments):
    if arguments.kind != "plan":
        item = {k: v for k, v in vars(arguments).items()
                if v is not None and k not in ("out", "tag", "at_most")}
        return check_plan([{**item, "at_most": dict(arguments.at_most)}], "command line")
    try:
        plan = json.loads(Path(arguments.file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise Failed(f"{arguments.file}: {problem}") from problem
    plan = check_plan(plan, arguments.file)
    if arguments.only:
        plan = [item for item in plan if re.search(arguments.only, item["name"])]
        if not plan:
            raise Failed(f"{arguments.file}: no name matches {arguments.only}")
    return plan


def main(argv=None):
    arguments = parse(argv)
    try:
        result, rows = {"kind": "compile", **machine.facts()}, []
        for item in plan_of(arguments):
            print(f"{item['name']} ...", file=sys.stderr, flush=True)
            rows.append({**item, **KINDS[item["kind"]][0](item)})
        print(table(rows))
        for row in rows:
            for key in ("longest_symbol", "longest_own_symbol"):
                if key in row:
                    print(f"{row['name']}: {COLUMNS[key][0]}: {row[key + '_name'][:200]}")
        print("cpu: {cpu}, {cores} cores\ncommit: {commit}".format(**result))
        over = [sentence for row in rows for sentence in exceeded(row)]
        result["rows"], result["exceeded"] = rows, over
        print("written:", machine.write_result(arguments.tag, result, arguments.out))
    except (Failed, OSError) as problem:
        print(f"measure.py: {problem}", file=sys.stderr)
        return 2
    for sentence in over:
        print(f"measure.py: {sentence}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
