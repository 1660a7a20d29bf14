#!/usr/bin/env python3
"""A program whose ranks are processes: the bits of ranks that are threads, and what happens to all
when one of them cannot go on.

    processes.py mpirun|tcp PROGRAM WITHOUT-MPI COMMUNICATORS STRUCK [unittest argument...]

MPI connects the ranks that mpirun starts, and TCP those of start_ranks.py. PROGRAM is compiled from ../cli/tiny_gpt.hpp; WITHOUT-MPI (without_mpi.cpp) without MPI;
COMMUNICATORS from communicators.cpp; STRUCK from struck.cpp.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
import cli  # noqa: E402
from cli import (DATA, INTERRUPTED, MISMATCH, MODEL, NONFINITE, USAGE,  # noqa: E402
                 contents, newest, run)

RANKS = 11
BY = None  # mpirun or tcp
WITHOUT_MPI = COMMUNICATORS = STRUCK = None
# What mpirun says of its own accord, of OpenMPI 4 and 5.
LAUNCHER = ("MPI_ABORT was invoked", "with errorcode", "NOTE: invoking", "You may or may not see",
            "exactly when Open MPI", "Primary job", "a non-zero exit code", "mpirun ", "mpirun:",
            "  Process name", "  Exit code", "the job to be terminated", "-----", "[",
            "  Proc:", "  Errorcode:", "prterun has exited", "prterun noticed", "signal 9 (Killed)", "terminated by signals sent by",
            '"abort". This may have caused', "Unable to find reachable pairing")


def on(ranks, *words, **options):
    """The same for every rank by the launcher, which may run more ranks than there are processors."""
    if BY == "tcp":
        return subprocess.Popen([sys.executable, Path(__file__).parent / "start_ranks.py", str(ranks), *map(str, words)],
                                env={**os.environ, **options.pop("env", {})}, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "OMPI_MCA_rmaps_base_oversubscribe": "1",  # OpenMPI 4; 5:
                   "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", **options.pop("env", {})}
    return subprocess.Popen(["mpirun", "-n", str(ranks), *map(str, words)], env=environment,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, **options)


def own(errors):
    """The lines that the program has said, sorted."""
    lines = (line.strip("\0") for line in errors.splitlines())
    return sorted(line for line in lines if line and not line.startswith(LAUNCHER))


def processes(folder):
    """The ranks that run in a folder or below it, by number."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
            at = os.readlink(process / "cwd")
            if (process / "comm").read_text() in ("mpirun\n", "python3\n") or not at.startswith(str(folder)):
                continue
            if (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
        except (OSError, NotADirectoryError):
            continue
        for v in variables:
            if v.startswith(b"OMPI_COMM_WORLD_RANK=" if BY == "mpirun" else b"RANK="):
                found[int(v.partition(b"=")[2])] = int(process.name)
    return found


class Faults(unittest.TestCase):
    """What a rank does that others do not expect is named, not waited for without an end."""

    def test_faults(self):
        waits = "at mine.hpp:7, for which rank 3 waits"
        for name, code, says in (
                ("late", RANKS, f"rank 2 did not come to exchange 0 of its group, barrier over tp {waits} "),
                ("gone", RANKS, "rank 2 has ended without exchange 0 of its group, barrier over "),
                ("crossed", RANKS, "ranks wait for each other: rank "),
                ("throws", DATA, "rank 2: it has no data"),
                ("count", 1, "ranks ask for different exchanges: rank 0 for all-reduce of 3 f32 over tp "
                             "at mine.hpp:7, where rank 1 gives 4 f32 at line 7: let all"),
                ("type", 1, "rank 0 for all-reduce of 3 f32 over tp, where rank 1 gives 3 i32"),
                ("reduction", 1, "rank 0 for all-reduce of 3 f32 over tp at mine.hpp:7, where rank 1 gives the maximum of 3 "
                              "f32 at line 7"),
                ("longer", 1, "all-gather of 3 f32 over tp at mine.hpp:7, where rank 1 gives more than 12 "
                              "bytes"),
                ("shorter", 1, "all-gather of 7 f32 over tp at mine.hpp:7, where rank 1 gives 12 bytes, not "
                               "28"),
                ("unwaited", 1, "barrier over tp at mine.hpp:7: it was started and not waited for"),
                ("twice", 1, "a ticket was waited for twice")):
            with self.subTest(name):
                launched = on(4, COMMUNICATORS, "fault", name)
                errors = launched.communicate(timeout=60)[1]
                self.assertEqual(launched.returncode, code, errors)
                self.assertEqual(len(own(errors)), 1, errors)
                self.assertIn(says, own(errors)[0])

    def test_a_rank_that_vanishes(self):
        if BY == "mpirun":
            self.skipTest("mpirun itself ends the other ranks")
        launched = on(4, COMMUNICATORS, "fault", "vanished")
        errors = own(launched.communicate(timeout=60)[1])
        self.assertEqual(launched.returncode, RANKS, errors)
        self.assertIn("rank 0: rank 2 has ended without exchange 0 of its group, barrier over dp", "\n".join(errors))

    def test_a_rank_that_is_last(self):
        """The others wait for it when all is done, since it would miss them."""
        launched = on(4, COMMUNICATORS, "fault", "slow")
        errors = own(launched.communicate(timeout=60)[1])
        self.assertEqual((launched.returncode, errors), (0, []))


class Processes(cli.Case):
    def setUp(self):
        super().setUp()
        self.line()

    def done(self, ranks, *words, check=0, **options):
        launched = on(ranks, *words, cwd=self.folder, **options)
        out, errors = launched.communicate(timeout=120)
        self.assertEqual(launched.returncode, check, errors)
        return out, own(errors)

    def program(self, ranks, *flags, **options):
        return self.done(ranks, cli.PROGRAM, *flags, **options)

    def refused(self, code, says, ranks, *words, **options):
        """One sentence, of one rank."""
        errors = self.done(ranks, *words, check=code, **options)[1]
        self.assertEqual(len(errors), 1, errors)
        self.assertRegex(errors[0], says)

    def each(self, script):
        """A program that every rank is started by; $r is its number."""
        path = self.folder / "each"
        path.write_text(f'#!/bin/sh\nr=${{OMPI_COMM_WORLD_RANK:-$RANK}}\n{script}\nexec "$@"\n')
        path.chmod(0o755)
        return path

    def apart(self, ranks):
        """A working folder with the data for each rank, and what goes to them."""
        for r in range(ranks):
            (self.folder / f"of-{r}").mkdir()
            shutil.copy(self.text, self.folder / f"of-{r}")
        return self.each("cd of-$r")

    TRAIN = ("train", "--data-path", "text", "--eval-iters", 1, "--eval-interval", 3)

    def test_the_bits_of_threads(self):
        train = (*self.TRAIN, "--train-iters", 6, "--metrics-jsonl", "metrics")
        run(*train, "--save", "threads", "--ranks", 8, cwd=self.folder)
        of_threads = self.losses(self.folder / "metrics")
        (self.folder / "metrics").unlink()
        out, errors = self.program(8, *train, "--save", "threads-too")
        self.assertEqual(errors, [])
        self.assertEqual(out.count("6 steps in"), 1)  # one rank tells
        self.assertEqual(self.losses(self.folder / "metrics"), of_threads)
        self.assertEqual(*map(self.state, ("threads", "threads-too")))
        # Over sockets, as between machines, each rank in a folder of its own.
        each = self.apart(8)
        sockets = ("--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo") if BY == "mpirun" else ()
        self.done(8, *sockets, each, cli.PROGRAM, *train, "--save", "sockets")
        self.assertEqual(self.losses(self.folder / "of-0/metrics"), of_threads)
        self.assertEqual(self.state("threads"), self.state("of-0/sockets"))
        self.assertEqual(list(self.folder.glob("of-[1-9]/*s")), [])  # the first rank writes

    def losses(self, metrics):
        names = ("step", "loss", "grad_norm", "validation_loss")
        return [{n: m[n] for n in names if n in m}
                for m in map(json.loads, metrics.read_text().splitlines())]

    def state(self, name):
        return contents(newest(self.folder / name))

    def test_other_commands_and_runs_that_go_on(self):
        train = (*self.TRAIN, "--lr-decay-iters", 20, "--global-batch-size", 16)
        run(*train, "--train-iters", 6, "--save", "whole", "--ranks", 2, cwd=self.folder)
        self.program(2, *train, "--train-iters", 3, "--save", "parts")
        out, errors = self.program(2, *train, "--train-iters", 6, "--save", "parts", "--load", "parts",
                                   "--ranks", 2)
        self.assertIn("going on after step 3", out)
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(self.state("whole")[name], self.state("parts")[name])
        for flags in (("eval", "--data-path", "text", "--json"),
                      ("generate", "--prompt", "green", "--max-new-tokens", 20, "--json")):
            threads = run(*flags, "--load", "whole", "--ranks", 3, cwd=self.folder).stdout.decode()
            self.assertEqual(self.program(3, *flags, "--load", "whole")[0], threads)
        run("export", "--load", "whole", "--save", "one", cwd=self.folder)
        out, errors = self.program(3, "export", "--load", "whole", "--save", "three")
        self.assertEqual((out.count("tensors"), errors), (1, []))
        self.assertEqual(contents(self.folder / "one"), contents(self.folder / "three"))
        self.assertEqual(self.program(2, "--version")[0], run("--version").stdout.decode())

    def test_what_all_are_refused_is_said_once(self):
        self.refused(USAGE, "^[^ ]+: unknown flag --nonsense", 3, cli.PROGRAM, "train", "--nonsense")
        self.refused(MISMATCH, "--ranks is 2, but 3 processes were started", 3, cli.PROGRAM,
                     *self.TRAIN, "--ranks", 2)
        self.refused(USAGE, "--global-batch-size is 8, but must be a multiple of 12", 3, cli.PROGRAM,
                     *self.TRAIN, "--global-batch-size", 8)

    def test_ranks_that_are_started_otherwise(self):
        flags = (*self.TRAIN, "--train-iters", 2)
        each = self.each('[ $r != 1 ] || set -- "$@" --lr 0.5')
        self.refused(MISMATCH, ": rank 1: this rank has other flags", 3, each, cli.PROGRAM, *flags)
        each = self.each('[ $r != 1 ] || set -- "$@" --nonsense')
        self.refused(USAGE, ": rank 1: unknown flag --nonsense", 3, each, cli.PROGRAM, *flags)
        shutil.copy(cli.PROGRAM, self.folder / "other")
        with (self.folder / "other").open("a") as program:
            program.write("of another build")
        each = self.each('[ $r != 1 ] || { shift; set -- ./other "$@"; }')
        self.refused(MISMATCH, ": rank 1: (this rank has|rank 1 was started from) another program", 3, each,
                     cli.PROGRAM, *flags)

    def test_ranks_that_see_other_files(self):
        flags = (cli.PROGRAM, *self.TRAIN, "--train-iters", 3, "--save", "saved", "--load", "saved")
        each = self.apart(3)
        text = self.folder / "of-2/text"
        text.write_text(text.read_text().replace("bottles", "baskets"))
        self.refused(MISMATCH, ": rank 2: this rank has other data", 3, each, *flags)
        text.unlink()
        self.refused(DATA, ": rank 2: .*text", 3, each, *flags)
        shutil.copy(self.text, text)
        self.done(3, each, *flags)
        before = self.state("of-0/saved")
        shutil.copytree(self.folder / "of-0/saved", self.folder / "of-1/saved")
        self.refused(MODEL, ": rank 2: .*saved/iter_0000003 does not exist", 3, each, *flags)
        self.refused(MODEL, ": rank 2: .*saved/iter_0000003 does not exist", 3, each, cli.PROGRAM, "eval",
                     "--data-path", "text", "--load", "saved")
        shutil.copytree(self.folder / "of-0/saved", self.folder / "of-2/saved")
        evaluated = (cli.PROGRAM, "eval", "--data-path", "text", "--load", "saved")
        continued = (cli.PROGRAM, "generate", "--prompts-file", "text", "--load", "saved",
                     "--max-new-tokens", 2)
        lines = "green\nbottles\n"
        for r, prompts in enumerate((lines, lines, lines.replace("green", "seven"))):
            (self.folder / f"of-{r}/text").rename(self.folder / f"of-{r}/whole")
            (self.folder / f"of-{r}/text").write_text(prompts)
        self.refused(MISMATCH, ": rank 2: this rank has other prompts", 3, each, *continued)
        self.refused(MISMATCH, ": rank 2: this rank has other data", 3, each, *evaluated)
        for r in range(3):
            (self.folder / f"of-{r}/whole").rename(self.folder / f"of-{r}/text")
        self.done(3, each, *evaluated)
        config = newest(self.folder / "of-2/saved") / "config.json"
        config.write_text(config.read_text() + "\n")
        self.refused(MODEL, ": rank 2: .*config.json has .* bytes, but was saved with", 3, each, *flags)
        shutil.rmtree(self.folder / "of-2/saved")
        (self.folder / "other").mkdir()
        (self.folder / "other/text").write_text(text.read_text().replace("bottles", "baskets"))
        run(*flags[1:], "--ranks", 3, cwd=self.folder / "other")
        shutil.move(self.folder / "other/saved", self.folder / "of-2/saved")
        self.refused(MISMATCH, ": rank 2: this rank has another state or model", 3, each, *flags)
        self.assertEqual(self.state("of-0/saved"), before)

    def test_a_launcher_of_processes_that_are_alone(self):
        three = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}
        self.refused_alone(cli.PROGRAM, "has started 3 processes, .*MPI knows of 1", three)
        self.refused_alone(WITHOUT_MPI, "mpirun has started 3 processes, and this program is built "
                           "without MPI", three)

    def test_one_rank_that_is_asked_for_help(self):
        each = self.folder / "each"
        for flag in ("--help", "--version"):
            each.write_text(f'#!/bin/sh\n[ ${{OMPI_COMM_WORLD_RANK:-$RANK}} != 1 ] || set -- {flag}\nexec {cli.PROGRAM} "$@"\n')
            each.chmod(0o755)
            launched = on(3, each, *self.TRAIN, "--train-iters", 2, "--global-batch-size", 12, cwd=self.folder)
            errors = own(launched.communicate(timeout=60)[1])
            self.assertEqual((launched.returncode, len(errors)), (MISMATCH, 1), errors)
            self.assertIn(f"rank 1: this rank was started with {flag}, and rank 0 was not: give all", errors[0])

    def test_an_environment_of_several_processes_that_nothing_connects(self):
        torch = {"RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "3"}  # of a script that srun has not started
        for variable, besides in (("WORLD_SIZE", {}), ("PMI_SIZE", {}), ("SLURM_NTASKS", batch)):
            self.refused_alone(cli.PROGRAM, f"{variable} is 3, but no launcher has connected this process with "
                               "others, .* mpirun -n 3 or .* by --ranks 3", {**besides, variable: "3"})
        self.refused_alone(cli.PROGRAM, "RANK 1 and WORLD_SIZE 2 are there, and LOCAL_RANK not set",
                           {**torch, "WORLD_SIZE": "2"}, "--ranks", 2)
        one = ("--train-iters", 1, "--ranks", 1)
        for alone in ({**torch, "RANK": "0", "WORLD_SIZE": "1"}, batch):
            run(*self.TRAIN, *one, cwd=self.folder, env={**os.environ, **alone})
        done = on(2, cli.PROGRAM, *self.TRAIN, "--train-iters", 1, "--global-batch-size", 8, cwd=self.folder,
                  env={**torch, "WORLD_SIZE": "4"})
        self.assertIn("2 ranks", done.communicate(timeout=60)[0])
        self.assertEqual(done.returncode, 0)
        run("describe", cwd=self.folder, env={**os.environ, "WORLD_SIZE": "4"})

    def refused_alone(self, program, says, variables, *flags):
        done = subprocess.run([program, *map(str, (*self.TRAIN, *flags))], cwd=self.folder, text=True,
                              capture_output=True, env={**os.environ, **variables}, timeout=60)
        self.assertEqual(done.returncode, MISMATCH, done.stderr)
        self.assertRegex(done.stderr, says)
        self.assertEqual(done.stderr.count("\n"), 1)

    def struck(self, f, *flags, ranks=3):
        """The exit code and what is said of a run among its steps, when f has been told its
        processes; none is left of them."""
        launched = on(ranks, cli.PROGRAM, "train", "--mock-data", "--train-iters", 10**6, "--save",
                      "saved", "--save-interval", 10, "--log-interval", 1, *flags, cwd=self.folder)
        while "saved to" not in (line := launched.stdout.readline()):
            self.assertTrue(line, "the run has ended")
        f(launched, processes(self.folder))
        errors = launched.communicate(timeout=60)[1]
        self.assertEqual(processes(self.folder), {})
        run("eval", "--load", "saved", "--data-path", "text", cwd=self.folder)  # earlier states are whole
        return launched.returncode, own(errors)

    def test_a_rank_that_is_killed(self):
        code, errors = self.struck(lambda _, ranks: os.kill(ranks[1], signal.SIGKILL))
        self.assertEqual(code, 128 + signal.SIGKILL)
        self.of_a_killed_rank(1, errors)

    def of_a_killed_rank(self, rank, errors):
        """mpirun ends the others before they miss it; those that TCP connects do so by themselves."""
        self.assertTrue(bool(errors) <= (BY == "tcp"), errors)
        for line in errors:
            self.assertRegex(line, rf"rank {rank} has ended (without exchange|while this one computed)")

    def test_a_rank_that_is_stopped(self):
        code, errors = self.struck(lambda _, ranks: os.kill(ranks[1], signal.SIGSTOP),
                                   "--collective-timeout", 4)
        self.assertEqual(code, RANKS)
        self.assertTrue(errors)
        for line in errors:
            self.assertRegex(line, r"rank 1 did not come to exchange \d+ of its group, .* over .*, for "
                                   r"which rank [02] waits \d+ s: see what that rank does")

    def test_a_rank_that_is_struck_at_a_place_of_a_step(self):
        train = ("data-path", "text", "train-iters", 6, "save", "saved", "save-interval", 2,
                 "eval-iters", 0)

        def is_intact(place):
            if place != "loader":  # that runs steps alone
                self.assertEqual([f.name for f in self.folder.glob("saved/iter_???????")],
                                 ["iter_0000002"])
                self.assertEqual(self.done(1, *evaluate)[1], [])

        self.assertEqual(self.done(3, STRUCK, "nowhere", "-", 1, *train)[1], [])
        evaluate = (STRUCK, "eval", "-", 0, "data-path", "text", "load", "saved", "ranks", 1)
        for place in ("loader", "optimizer", "save"):
            for rank, how in ((1, "throw"), (1, "kill"), (1, "stop"), (0, "throw"), (0, "kill")):
                with self.subTest(place=place, rank=rank, how=how):
                    shutil.rmtree(self.folder / "saved", ignore_errors=True)
                    launched = on(3, STRUCK, place, how, rank, *train, "collective-timeout",
                                  4 if how == "stop" else 60, cwd=self.folder)
                    began = time.monotonic()
                    errors = own(launched.communicate(timeout=60)[1])
                    if how != "stop":
                        self.assertLess(time.monotonic() - began, 15)
                    self.assertEqual(launched.returncode, {
                        "throw": DATA, "kill": 128 + signal.SIGKILL, "stop": RANKS}[how], errors)
                    self.assertEqual(processes(self.folder), {})
                    if how == "kill":
                        self.of_a_killed_rank(rank, errors)
                    else:
                        self.assertTrue(errors)
                    for line in errors if how != "kill" else ():
                        self.assertIn({"throw": f"it has no {place}",
                                       "stop": f"rank {rank} did not come to exchange"}[how], line)
                    is_intact(place)
        for place in ("loader", "optimizer", "save"):  # ranks that are threads
            shutil.rmtree(self.folder / "saved", ignore_errors=True)
            done = subprocess.run([STRUCK, place, "throw", "1", *map(str, train), "ranks", "3"],
                                  cwd=self.folder, capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (DATA, f"it has no {place}\n"))
            is_intact(place)

    def test_a_rank_whose_data_is_cut_while_it_reads(self):
        launched = on(3, self.apart(3), cli.PROGRAM, *self.TRAIN, "--train-iters", 10**6, "--save",
                      "saved", "--save-interval", 10, "--log-interval", 1, cwd=self.folder)
        while "saved to" not in (line := launched.stdout.readline()):
            self.assertTrue(line, "the run has ended")
        os.truncate(self.folder / "of-1/text", 0)
        errors = own(launched.communicate(timeout=60)[1])
        self.assertEqual((launched.returncode, len(errors)), (DATA, 1), errors)
        self.assertIn("text", errors[0])
        self.assertEqual(processes(self.folder), {})
        run("eval", "--load", "of-0/saved", "--data-path", "text", cwd=self.folder)

    def test_a_rank_whose_numbers_are_none(self):
        train = ("break", 1, "data-path", "text", "train-iters", 6, "save", "saved", "save-interval",
                 2, "eval-iters", 0)
        says = r"^the loss of step 4 is nan, and not of all: look at rank 1; saved holds the state of step 2"
        launched = on(3, STRUCK, "weights", *train, cwd=self.folder)
        errors = own(launched.communicate(timeout=60)[1])
        self.assertEqual((launched.returncode, len(errors)), (NONFINITE, 1), errors)
        self.assertRegex(errors[0], says)
        shutil.rmtree(self.folder / "saved")
        done = subprocess.run([STRUCK, "weights", *map(str, train), "ranks", "3"], cwd=self.folder,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, NONFINITE)
        self.assertRegex(done.stderr, says)

    def test_a_rank_that_is_asked_to_stop(self):
        for strike in (lambda launched, _: launched.send_signal(signal.SIGUSR1),
                       lambda _, ranks: os.kill(ranks[1], signal.SIGTERM)):
            code, errors = self.struck(strike)
            self.assertEqual((code, len(errors)), (INTERRUPTED, 1), errors)
            self.assertRegex(errors[0], r"SIG(USR1|TERM) ended the run after step \d+ of 1000000; its "
                                        "state was saved to saved/iter_")
            shutil.rmtree(self.folder / "saved")

    def test_a_launcher_that_is_killed_leaves_no_rank(self):
        launched = on(3, cli.PROGRAM, "train", "--mock-data", "--train-iters", 10**6,
                      "--log-interval", 1, cwd=self.folder)
        while "step 2" not in launched.stdout.readline():
            pass
        launched.kill()
        launched.communicate()
        for _ in range(200):
            if not processes(self.folder):
                return
            time.sleep(0.05)
        self.fail(f"{processes(self.folder)} are left")


if __name__ == "__main__":
    BY = sys.argv[1]
    cli.PROGRAM, WITHOUT_MPI, COMMUNICATORS, STRUCK = map(os.path.abspath, sys.argv[2:6])
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]])
