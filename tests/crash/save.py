#!/usr/bin/env python3
"""A save that is killed, or fails, at every one of its system calls in turn.

    save.py PROGRAM

PROGRAM (tests/cli/tiny_gpt.hpp) goes on from a saved state, takes a step, saves and removes the
older state; with --keep-best it replaces the best state before. strace injects SIGKILL at each system
call of the saves, from the making of their temporary folder to the removal of the older state; then
an error (no space, I/O) at each, and a disk that stays full from each write on. Whatever happened:

- the state of the step before is there, bit for bit, until a whole state of the next one is;
- the best state is, bit for bit, the one before or the next one;
- a program that says it succeeded has saved the state, one that failed says why in one sentence;
- the same command line, started again, ends with the bits of the undisturbed run and leaves nothing
  of the disturbed one behind.

Power that fails is not injected: that an undisturbed run syncs what it names before it names it,
and names before it goes on, is read off its calls.

Ends with 77 where strace is missing or may not trace.
"""

import collections
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DATA, OUTPUT = 4, 6
BEFORE, AFTER = "iter_0000002", "iter_0000003"
HINT, BEST = "latest_checkpointed_iteration.txt", "best"
# What is learned fast, so that the loss falls in each step.
KEEP_BEST = ("--keep-best", "--eval-iters", 1, "--eval-interval", 1, "--split", "80,20", "--lr", "1e-2")
TEXT = "99 green bottles hanging on the wall, and if one should fall.\n" * 160
# Calls that say whether data arrived; an error of any other may be passed over.
MATTERS = {"mkdirat", "write", "fsync", "renameat2", "renameat"}
OF_MEMORY = {"brk", "mmap", "munmap", "mprotect", "madvise", "futex", "getpid"}


def contents(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def not_durable(log, folder):
    """What breaks the order of a save in the log of `strace -y`, beneath a folder: whatever gets a
    name by a rename, with all in it, is synced before; the name, and that of each folder made
    above, is synced before anything else is made, written, renamed or removed. And how many got
    one."""
    problems, dirty, unnamed, names = [], set(), None, 0
    for line in log.splitlines():
        match = re.match(r"\d+ +(mkdir|mkdirat|openat|write|fsync|renameat2?|unlinkat)\((.*)", line)
        if not match or " = -1 " in line or (match[1] == "openat" and "O_CREAT" not in match[2]):
            continue
        call, rest = match.groups()
        # What the call names: descriptors with the names after them, or a path of its own.
        paths = [os.path.join(*pair) for pair in
                 re.findall(r'[\w]+<([^>]*)>(?:\(deleted\))?, "([^"]*)"', rest)]
        if call in ("write", "fsync"):
            paths = re.findall(r"^\d+<([^>]*)>", rest)
        elif call == "mkdir":
            paths = re.findall(r'^"([^"]*)"', rest)
        if not paths or not paths[0].startswith(f"{folder}/") and paths[0] != str(folder):
            continue
        if call == "fsync":
            dirty.discard(paths[0])
            unnamed = None if unnamed == paths[0] else unnamed
            continue
        if unnamed:
            problems.append(f"{call} of {paths[0]} before {unnamed} is synced")
            unnamed = None
        above = os.path.dirname(paths[-1])
        if call in ("write", "openat"):
            dirty.add(paths[0])
        if call in ("openat", "mkdirat"):
            dirty.add(above)
        if call in ("mkdir", "renameat", "renameat2"):
            within = [d for d in sorted(dirty) if d == paths[0] or d.startswith(paths[0] + "/")]
            problems += [f"{d} is not synced before {call}" for d in within if call != "mkdir"]
            unnamed, names = above, names + 1
    if unnamed:
        problems.append(f"{unnamed} is never synced")
    return problems, names


class Crash:
    def __init__(self, program, folder, keep_best):
        self.program, self.folder, self.keep_best = program, folder, keep_best
        self.base, self.root = folder / "new" / "base", folder / "root"
        log, text = folder / "log", folder / "text"
        text.write_text(TEXT)
        flags = ("--data-path", text, *KEEP_BEST) if keep_best else ("--mock-data", "--eval-iters", 0)
        self.run(["strace", "-f", "-y", "-o", log, program, "train", "--train-iters", 2,
                  "--lr-decay-iters", 9, *flags, "--save", self.base], check=True)
        self.problems, names = not_durable(log.read_text(), folder)
        if names < 5:  # two folders, the rehearsal's, the state's and its hint's
            self.problems.append(f"a run that gives {names} names saves nothing")
        self.before = contents(self.base / BEFORE)
        self.best = [contents(self.base / BEST)] if keep_best else []
        self.reset()
        self.run(["strace", "-f", "-o", log, *self.command()], check=True)
        self.after = contents(self.root / AFTER)
        if keep_best:
            self.best.append(contents(self.root / BEST))
            if self.best[0] == self.best[1]:
                self.problems.append("the step has no lower loss, so that the best state stays")
        self.calls = self.calls_of_the_save(log.read_text())

    def run(self, command, check=False):
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=120)
        if check and done.returncode != 0:
            raise SystemExit(f"{command}: {done.returncode}\n{done.stderr.decode()}")
        return done

    def command(self):
        return [self.program, "train", "--load", self.root, "--save", self.root, "--train-iters", 3,
                "--keep-latest-k", 1, "--threads", 1]

    def reset(self):
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.base, self.root)

    def calls_of_the_save(self, log):
        """(name, which one of its name, arguments), from the last temporary folder that is made, with
        keep_best for the best state, to the last call that names an entry of the root. Without those
        that strace cannot tell from another thread's, such as the loader's calls for memory: it
        counts each thread's apart."""
        seen, calls, last = collections.Counter(), [], 0
        for line in log.splitlines():
            match = re.match(r"(\d+) +(\w+)\((.*)", line)
            if not match:
                continue
            thread, name, rest = match.groups()
            seen[thread, name] += 1
            if name == "mkdirat" and (BEST if self.keep_best else "") + ".megacpp-tmp-" in rest:
                calls, saving = [], thread
            calls.append((name, seen[thread, name], rest))
            if "iter_0" in rest or HINT in rest or f'"{BEST}' in rest:
                last = len(calls)
        others = {thread for thread, _ in seen} - {saving}
        return [c for c in calls[:last] if all(seen[t, c[0]] < c[1] for t in others)]

    def inject(self, name, what, when):
        self.reset()
        return self.run(["strace", "-f", "-o", "/dev/null", "-e", f"trace={name}", "-e",
                         f"inject={name}:{what}:when={when}", *self.command()])

    def check(self, about, done, sentences=1):
        """The laws above, after one disturbed run."""
        say = lambda text: self.problems.append(f"{about}: {text}")  # noqa: E731
        old, new = self.root / BEFORE, self.root / AFTER
        whole = new.is_dir() and contents(new) == self.after
        if new.exists() and not whole:
            say("a state that is not whole has the name of one")
        if not whole and not (old.is_dir() and contents(old) == self.before):
            say("neither state is whole")
        if self.best and contents(self.root / BEST) not in self.best:
            say("the best state is neither the one before nor the next one")
        if done.returncode == 0 and not whole:
            say("success without a state")
        errors = done.stderr.decode().splitlines()
        # A save also looks at whether the data are as they were.
        of_data = done.returncode == DATA and f"cannot examine {self.folder / 'text'}" in "".join(errors)
        expected = done.returncode == OUTPUT or of_data
        if done.returncode > 0 and (not expected or len(errors) != sentences):
            say(f"exit code {done.returncode}, {errors}")
        again = self.run(self.command())
        if again.returncode != 0:
            say(f"the next run ends with {again.returncode}: {again.stderr.decode()}")
        elif not new.is_dir() or contents(new) != self.after:
            say("the next run ends with other bits")
        elif self.best and contents(self.root / BEST) != self.best[1]:
            say("the next run ends with another best state")
        else:
            left = {p.name for p in self.root.iterdir()} - {BEFORE, AFTER, HINT, BEST}
            if left:
                say(f"the next run leaves {left}")

    def kills(self):
        killed = 0
        for name, when, rest in self.calls:
            done = self.inject(name, "signal=KILL", when)
            killed += done.returncode != 0
            self.check(f"killed at {name} {when} ({rest[:60]})", done)
        if killed < len(self.calls):
            self.problems.append(f"only {killed} of {len(self.calls)} runs were killed")
        return len(self.calls)

    def errors(self):
        points = 0
        for name, when, rest in self.calls:
            if name in OF_MEMORY:
                continue
            for what in ("ENOSPC", "EIO") if name in MATTERS | {"openat"} else ("EIO",):
                done = self.inject(name, f"error={what}", when)
                # A removal; a line of progress.
                aside = re.search(r'-tmp-\d+-old"', rest) or rest.startswith("1, ")
                if name in MATTERS and done.returncode == 0 and not aside:
                    self.problems.append(f"{what} at {name} {when} ({rest[:60]}) passed over")
                self.check(f"{what} at {name} {when} ({rest[:60]})", done)
                points += 1
            if name == "write":
                # The sentence cannot be written either.
                self.check(f"full from write {when} on",
                           self.inject(name, "error=ENOSPC", f"{when}+"), sentences=0)
                points += 1
        return points


def main():
    if not shutil.which("strace"):
        print("there is no strace; on Debian or Ubuntu, apt install strace")
        return 77
    probe = subprocess.run(["strace", "-f", "-o", "/dev/null", "true"], capture_output=True)
    if probe.returncode != 0:
        print(f"strace may not trace here: {probe.stderr.decode().strip()}")
        return 77
    kills, errors, problems = 0, 0, []
    for keep_best in (False, True):
        with tempfile.TemporaryDirectory(prefix="megacpp-crash-") as folder:
            crash = Crash(sys.argv[1], Path(folder).resolve(), keep_best)
            if len(crash.calls) < 40 * (1 + keep_best):
                crash.problems.append(f"saves of {len(crash.calls)} system calls are none")
            kills, errors = kills + crash.kills(), errors + crash.errors()
            problems += [f"with keep_best {keep_best}: {problem}" for problem in crash.problems]
    for problem in problems:
        print(problem)
    print(f"{kills} kills and {errors} errors, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
