#!/usr/bin/env python3
"""How long a project waits for its first program with megacpp of Conan: with precompiled libraries, and with headers alone.

    conan.py [--rounds N] [--jobs N] [--only WAY] [--home FOLDER] [--conan PROGRAM] [--no-result]

Both packages are created in a cache of this script's own, which takes minutes and is told apart; --home keeps it, and
takes what an earlier call has created there. Then rounds build the
project of examples/own-project by each in turn: CMake configures a new folder, the program is built (the first build), a
number of its model is edited, and it is built again (the next build). Seconds are those of the clock, and of the processor,
which other programs beside this one disturb less. Each ratio is of the two builds of a round. The compiler's caches are
off. The result is written to bench/results.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import machine  # noqa: E402

WAYS = {"precompiled": True, "header-only": False}


def timed(command, **more):
    """Runs a command; returns seconds of the clock and of the processor, and what it says."""
    begin, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if ended.returncode:
        sys.exit(f"conan.py: {' '.join(map(str, command))}: exit code {ended.returncode}:\n{ended.stdout}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return (round(time.monotonic() - begin, 2), round(processor, 2)), ended.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds; 3 if not given")
    parser.add_argument("--jobs", type=int, default=machine.usable_cores(), help="units compiled at once; as many as cores")
    parser.add_argument("--only", choices=WAYS, help="one way alone, without ratios")
    parser.add_argument("--home", type=Path, help="folder of Conan's cache; a temporary one if not given")
    parser.add_argument("--conan", default=shutil.which("conan"), help="Conan 2; the one on the PATH if not given")
    parser.add_argument("--no-result", action="store_true", help="write no file")
    given = parser.parse_args()
    if not given.conan:
        sys.exit("conan.py: there is no conan on the PATH; pip install conan, or name it by --conan")
    result = {"benchmark": "conan", **machine.facts(), "command": " ".join(["bench/compile/conan.py", *sys.argv[1:]]),
              "jobs": given.jobs, "compiler": subprocess.run(["c++", "--version"], capture_output=True, text=True).stdout.split("\n")[0],
              "seconds": ["of the clock", "of the processor"], "create_s": {}, "rounds": []}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        env = {**os.environ, "CONAN_HOME": str((given.home or work / "home").resolve()), "CCACHE_DISABLE": "1"}
        timed([given.conan, "profile", "detect", "--exist-ok"], env=env)
        ways = {way: libraries for way, libraries in WAYS.items() if given.only in (None, way)}
        standard = ["-s", "compiler.cppstd=20"]
        projects = {}
        for way, libraries in ways.items():
            option = [f"-o=*:precompiled={libraries}"]
            result["create_s"][way], _ = timed(
                [given.conan, "create", machine.ROOT, "--no-remote", "--test-folder=", *standard, *option, "-c", f"tools.build:jobs={given.jobs}",
                 *(["--build=missing:megacpp/*"] if given.home else [])], env=env)
            project = projects[way] = work / way
            shutil.copytree(machine.ROOT / "examples/own-project", project)
            version = subprocess.run([given.conan, "inspect", machine.ROOT, "--format=json"], env=env, capture_output=True,
                                     text=True, check=True).stdout.split('"version": "')[1].split('"')[0]
            (project / "conanfile.txt").write_text(f"[requires]\nmegacpp/{version}\n[generators]\nCMakeToolchain\n", encoding="utf-8")
            timed([given.conan, "install", project, "--no-remote", *standard, *option, f"--output-folder={project / 'conan'}"], env=env)
        for number in range(given.rounds):
            row = {}
            for way in ways if number % 2 == 0 else reversed(ways):
                project, build = projects[way], projects[way] / "build"
                shutil.rmtree(build, ignore_errors=True)
                configured, said = timed(["cmake", "-S", project, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                                          f"-DCMAKE_TOOLCHAIN_FILE={project / 'conan/conan_toolchain.cmake'}"], env=env)
                if ("commands: precompiled" in said) != ways[way]:
                    sys.exit(f"conan.py: {way}: CMake says\n{said}")
                make = ["cmake", "--build", build, "--parallel", str(given.jobs)]
                first, _ = timed(make, env=env)
                header = project / "my_gpt.hpp"
                text = header.read_text(encoding="utf-8")
                header.write_text(text.replace(".layers = 4", ".layers = 5") if ".layers = 4" in text
                                  else text.replace(".layers = 5", ".layers = 4"), encoding="utf-8")
                again, _ = timed(make, env=env)
                row[way] = {"configure_s": configured, "first_s": first, "next_s": again}
                print(f"round {number + 1}, {way}: configured in {configured[0]:.1f} s, first build {first[0]:.1f} s "
                      f"({first[1]:.1f} of the processor), next build {again[0]:.1f} s ({again[1]:.1f})", flush=True)
            result["rounds"].append(row)
        for what in ("first", "next") if len(ways) == 2 else ():
            for at, of in enumerate(("clock", "processor")):
                ratios = [row["header-only"][f"{what}_s"][at] / row["precompiled"][f"{what}_s"][at] for row in result["rounds"]]
                result[f"header_only_over_precompiled_{what}_{of}"] = {
                    "median": round(statistics.median(ratios), 3), "least": round(min(ratios), 3), "most": round(max(ratios), 3)}
                print(f"{what} build, by the {of}: header-only takes {statistics.median(ratios):.2f} times as long as "
                      f"precompiled ({min(ratios):.2f} to {max(ratios):.2f})")
    print("created in", result["create_s"])
    if not given.no_result:
        print(machine.write_result("conan", result))


if __name__ == "__main__":
    main()
