#!/usr/bin/env python3
"""The images of examples/deploy/docker, built and run without Docker (dockerfile.py).

    images.py SOURCE WORK [--bases FOLDER] [--mpi] [--march NAME] [--cuda TOOLKIT] [--keep]

The Dockerfiles are built above a minimal Debian 12, line by line. The image of a program must add no more to its base
than a page promises (docs/deploying/images.md). The program must work in it as an ordinary user whose root is read-only
and who may write one volume alone: it describes itself, trains, generates, exports, trains as two ranks by threads, by
the environment of torchrun, and by that of a PyTorchJob's pod, whose ranks it starts itself as process 1. All three have
the same weights. On a processor that lacks what the program was built for it says so, and ends with 8.

  --bases   where the minimal Debian is kept, which fresh_machine.sh keeps, too; WORK/bases if not given
  --mpi     ranks by MPI, too: the builder gets libopenmpi-dev, and mpirun of this machine starts two ranks
  --march   the processors to build for, x86-64-v3 if not given
  --cuda    a program for GPUs: the base gets this folder as /usr/local/cuda, in place of an image of CUDA; without a GPU
            the program describes itself, and one sentence says that it cannot train
  --keep    a builder that is there is taken as it is, to try the rest again

Exit code 77, for "skipped": this machine cannot make such roots.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import dockerfile

BYTES = {False: 60_000_000, True: 100_000_000}  # what an image adds at most, without MPI and with it
BASE = "debian:bookworm-slim"
USER = "10001:10001"
CONFIG = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 64, "vocab_size": 256,
          "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
TEXT = "".join(f"{n} green bottles hanging on the wall, and if {n % 7} should fall\n" for n in range(400))
TRAIN = ["train", "--data-path", "/data/text", "--split", "100,0,0", "--eval-iters", "0", "--tokenizer-type", "byte",
         "--train-iters", "20", "--global-batch-size", "4", "--threads", "1"]


def fail(sentence):
    sys.exit(f"images: {sentence}")


class Container:
    """An image as a cluster runs it: the root read-only, a volume at /data, an ordinary user."""

    def __init__(self, image, work):
        self.image, self.root, self.data = image, work / "container", work / "data"
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir()
        (self.data / "text").write_text(TEXT, encoding="utf-8")
        os.chown(self.data, *map(int, USER.split(":")))
        self.root.mkdir(exist_ok=True)
        # The place of a volume is made by whoever starts a container.
        place = work / "volume"
        (place / "data").mkdir(parents=True, exist_ok=True)
        layers = ":".join(str(layer) for layer in [place, *reversed(image.layers)])
        dockerfile.mount("-t", "overlay", "overlay", "-o", f"ro,lowerdir={layers}", self.root)
        dockerfile.mount("--bind", self.data, self.root / "data")

    def run(self, *words, env=None, **more):
        return dockerfile.enter(self.root, [*self.image.entry, *(words or self.image.words)], {**self.image.env, **(env or {})},
                                self.image.user, self.image.folder, text=True, errors="replace", **({"capture_output": True} if not more else more))

    def stopped(self, *words):
        """The exit code of a run that gets SIGTERM as process 1, as a pod that is deleted does, once it has begun."""
        running = self.run(*words, start=subprocess.Popen, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = ""
        for line in running.stdout:
            said += line
            if line.startswith("step "):
                child = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text(encoding="utf-8").split()[0]
                os.kill(int(child), signal.SIGTERM)
                break
        said += running.communicate()[0]
        return running.returncode, said

    def shell(self, script, env):
        """Runs a script of the base's shell in the same place; the program is "$@"."""
        return dockerfile.enter(self.root, ["/bin/sh", "-euc", script, "sh", *self.image.entry], {**self.image.env, **env},
                                self.image.user, self.image.folder, capture_output=True, text=True, errors="replace")

    def must(self, *words, env=None):
        ended = self.run(*words, env=env)
        if ended.returncode:
            fail(f"{' '.join(words)}: exit code {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    def weights(self, name):
        """The bytes of the weights that a run has saved, exported."""
        self.must("export", "--load", f"/data/{name}", "--save", f"/data/{name}-exported")
        return (self.data / f"{name}-exported/model.safetensors").read_bytes()


def with_toolkit(base, toolkit, work):
    """A base that has CUDA's toolkit, as images of CUDA have it."""
    above = base.stage(work, "toolkit")
    linked = above.layers[-1] / "usr/local" / toolkit.name  # a link takes no time and no room
    linked.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["umount", above.root], check=True)
    if subprocess.run(["cp", "-al", toolkit, linked], stderr=subprocess.DEVNULL).returncode:
        subprocess.run(["cp", "-a", toolkit, linked], check=True)
    (linked.parent / "cuda").symlink_to(toolkit.name)
    loader = above.layers[-1] / "etc/ld.so.conf.d/cuda.conf"
    loader.parent.mkdir(parents=True)
    loader.write_text("/usr/local/cuda/lib64\n", encoding="utf-8")
    cached = dockerfile.Image(above.layers).stage(work, "loader")
    dockerfile.enter(cached.root, ["ldconfig"], cached.env, check=True)
    return cached


def built(source, work, bases, mpi, march, toolkit, keep):
    bases.mkdir(parents=True, exist_ok=True)
    base = dockerfile.debootstrap(bases, "bookworm")
    # What this machine reaches mirrors by.
    here = work / "reached"
    for name, text in {"etc/resolv.conf": Path("/etc/resolv.conf").read_text(encoding="utf-8"),
                       "etc/apt/apt.conf.d/proxy": "".join(
                           line + "\n" for line in subprocess.run(["apt-config", "dump"], capture_output=True, text=True)
                           .stdout.split("\n") if line.startswith(("Acquire::http::Proxy", "Acquire::https::Proxy")))}.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text, encoding="utf-8")
    base = dockerfile.Image(layers=[*base.layers, here])
    if toolkit:
        base = with_toolkit(base, toolkit.resolve(), work)
    docker, config = source / "examples/deploy/docker", work / "context"
    config.mkdir(exist_ok=True)
    (config / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    more, keys = {}, "precision=fp32 sequence=32 micro-batch=2"
    if mpi:
        more["PACKAGES"] = "libopenmpi-dev openmpi-bin"
    if toolkit:
        more["DEVICES"], keys = "cuda", keys + " device=cuda"
    kept = work / "builder.0.added"
    if keep and kept.exists():
        builder = dockerfile.Image(layers=[*base.layers, kept])
    else:
        builder, _ = dockerfile.build(docker / "builder.Dockerfile", source, {BASE: base}, {"MARCH": march, **more}, work, "builder")
    program, beneath = dockerfile.build(docker / "program.Dockerfile", config, {BASE: base, "megacpp-builder": builder},
                                        {"KEYS": keys}, work, "program")
    tool_for_data(docker, base, builder, work)
    refuses(docker, config, base, builder, work)
    # What the builder has compiled is not compiled again.
    (log,) = (work / "program.1.added/root/.cache/megacpp/presets").glob("*/build.log")
    if "commands.cpp" in (text := log.read_text(encoding="utf-8")) or "run.cpp" not in text:
        fail(f"the program's stage compiles more than its run, or less:\n{text}")
    return program, program.added(base)


def tool_for_data(docker, base, builder, work):
    """The image of megacpp-data, which must show its commands as an ordinary user."""
    tool, _ = dockerfile.build(docker / "data.Dockerfile", work, {BASE: base, "megacpp-builder": builder}, {}, work, "data")
    ended = dockerfile.enter(tool.root, [*tool.entry, *tool.words], tool.env, tool.user, tool.folder, capture_output=True, text=True)
    if tool.user != USER or ended.returncode or "prepare" not in ended.stdout:
        fail(f"megacpp-data as {tool.user}: exit code {ended.returncode}: {ended.stdout}{ended.stderr}")


def refuses(docker, config, base, builder, work):
    """What cannot become an image is refused in one sentence, before anything is compiled."""
    bases = {BASE: base, "megacpp-builder": builder}
    for number, (name, arguments) in enumerate([("builder", {"MARCH": "native"}), ("program", {"MARCH": "native"}),
                                                ("program", {"KEYS": "tp=two"}), ("program", {"CONFIG": "none.json"})]):
        file = docker / f"{name}.Dockerfile"
        try:
            dockerfile.build(file, config, bases, arguments, work, f"refused{number}")
        except (SystemExit, FileNotFoundError) as refused:
            print(f"refused: {arguments}: {refused}")
        else:
            fail(f"{file.name} takes {arguments}")
    script = docker / "image_files.sh"
    for arguments, code, words in ((["/bin/true"], 2, "give PROGRAM"), (["/none", "/none"], 5, "no program"),
                                   (["/bin/true", work / "none", "/none"], 5, "no folder"), (["/bin/true", work], 6, "not empty")):
        ended = subprocess.run([script, *arguments], capture_output=True, text=True)
        if ended.returncode != code or words not in ended.stderr or ended.stderr.count("\n") != 1:
            fail(f"{script.name} {arguments}: exit code {ended.returncode}: {ended.stderr}")


def size_of(folders, limit):
    """The bytes of du -sb, which must be within the limit; prints the files."""
    files = [path for folder in folders for path in Path(folder).rglob("*") if path.is_file() and not path.is_symlink()]
    for path in sorted(files, key=lambda p: -p.stat().st_size)[:12]:
        print(f"{path.stat().st_size:12,}  {path.name}")
    total = sum(int(subprocess.run(["du", "-sb", folder], check=True, capture_output=True, text=True).stdout.split()[0])
                for folder in folders)
    print(f"{total:12,}  bytes in all, of {len(files)} files; {limit:,} are allowed")
    if total > limit:
        fail(f"the image adds {total} bytes to its base, more than {limit}")
    return total


def older_processor(program, march):
    """Runs the program under emulated processors: one that has the instructions, and one that lacks them."""
    if not shutil.which("qemu-x86_64"):
        print("left out: there is no qemu-x86_64; on Debian or Ubuntu, apt install qemu-user")
        return
    libraries = program.root / "usr/lib/x86_64-linux-gnu"
    loader = program.root / "lib64/ld-linux-x86-64.so.2"
    for processor, lacks in {"Nehalem": "AVX", "Haswell": "AVX512F" if march == "x86-64-v4" else None}.items():
        ended = subprocess.run(["qemu-x86_64", "-cpu", processor, loader, "--library-path", libraries,
                                program.root / "opt/megacpp/program", "describe"],
                               capture_output=True, text=True)
        # qemu itself tells what it does not emulate.
        said = "\n".join(line for line in ended.stderr.split("\n") if not line.startswith("qemu-x86_64: warning: "))
        if lacks is None:
            if ended.returncode or f"built for             {march}" not in ended.stdout:
                fail(f"under {processor}: exit code {ended.returncode}: {ended.stdout}{ended.stderr}")
        elif ended.returncode != 8 or said.count("\n") != 1 or f" {lacks}" not in said or \
                not said.startswith("error: this program was built for a processor with "):
            fail(f"under {processor}, which lacks {lacks}: exit code {ended.returncode}: {ended.stdout}{ended.stderr}")
        print(f"under an emulated {processor}: " + (said.strip() if lacks else f"the program is built for {march}"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--mpi", action="store_true")
    parser.add_argument("--march", default="x86-64-v3")
    parser.add_argument("--bases", type=Path)
    parser.add_argument("--cuda", type=Path)
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    try:
        dockerfile.in_namespace()
        work = given.work.resolve()
        work.mkdir(parents=True, exist_ok=True)
        program, added = built(given.source.resolve(), work, (given.bases or work / "bases").resolve(), given.mpi, given.march, given.cuda, given.keep)
    except dockerfile.Unusable as lacks:
        print(f"images: {lacks}")
        return 77
    size_of(added, BYTES[given.mpi])
    if program.user.split(":")[0] in ("", "0", "root"):
        fail("the program runs as root")
    container = Container(program, work)

    if (ended := container.run("--version")).returncode == 8 and given.march != "x86-64-v3":
        print(f"left out: this machine is none of {given.march}: {ended.stderr.strip()}")
        older_processor(program, given.march)
        return 0
    if "usage" not in container.must().lower():
        fail("without words the image does not show its help")
    described = container.must("describe")
    if f"built for             {given.march}\n" not in described:
        fail(f"describe does not tell of {given.march}:\n{described}")
    if given.cuda:
        ended = container.run(*TRAIN, "--save", "/data/alone")
        if ended.returncode != 8 or ended.stderr.count("\n") != 1:
            fail(f"without a GPU: exit code {ended.returncode}: {ended.stderr}")
        print(f"built, and described; without a GPU: {ended.stderr.strip()}")
        return 0
    container.must(*TRAIN, "--save", "/data/alone")
    if not container.must("generate", "--load", "/data/alone", "--prompt", "green", "--max-new-tokens", "8"):
        fail("generate writes nothing")
    if not container.weights("alone"):
        fail("export writes nothing")
    code, said = container.stopped(*TRAIN, "--train-iters", "1000000", "--log-interval", "1", "--save", "/data/stopped")
    if code != 10 or "finished" not in container.must("describe", "--load", "/data/stopped", "--json"):
        fail(f"SIGTERM to process 1: exit code {code}: {said[-2000:]}")
    # What is no volume cannot be written.
    ended = container.run(*TRAIN, "--save", "/alone")
    if ended.returncode != 6 or "/alone" not in ended.stderr:
        fail(f"a state in a read-only root: exit code {ended.returncode}: {ended.stderr}")

    container.must(*TRAIN, "--ranks", "2", "--save", "/data/threads")
    # torchrun starts ranks so.
    ended = container.shell(f'RANK=1 LOCAL_RANK=1 "$@" {shlex.join(TRAIN)} --save /data/torchrun & '
                            f'RANK=0 LOCAL_RANK=0 "$@" {shlex.join(TRAIN)} --save /data/torchrun; wait $!',
                            {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29571"})
    if ended.returncode:
        fail(f"by torchrun's environment: exit code {ended.returncode}: {ended.stdout}{ended.stderr}")
    container.must(*TRAIN, "--save", "/data/pod", env={"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0",
                                                     "MASTER_ADDR": "localhost", "MASTER_PORT": "29572"})
    ways = ["threads", "torchrun", "pod"]
    if given.mpi:
        # As Enroot does: the launcher is the user's, and a namespace of users lets the user change the root.
        user, group = USER.split(":")
        mpirun = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "mpirun", "--oversubscribe", "-n", "2",
                  "unshare", "--user", f"--map-user={user}", f"--map-group={group}", "--keep-caps",
                  "chroot", container.root, *program.entry]
        for folder in ("proc", "dev", "tmp"):  # as Pyxis and Enroot share them with the launcher
            dockerfile.mount("--rbind", f"/{folder}", container.root / folder)
        for words, says in ((["describe", "--launch"], r"connected by +MPI"), ([*TRAIN, "--save", "/data/mpi"], "")):
            ended = subprocess.run([*mpirun, *words], capture_output=True, text=True, timeout=120, cwd="/",
                                   env={"PATH": os.environ["PATH"], "HOME": "/"})
            if ended.returncode or not re.search(says, ended.stdout):
                fail(f"{words[0]} by mpirun: exit code {ended.returncode}: {ended.stdout}{ended.stderr}")
        ways.append("mpi")
    weights = {way: container.weights(way) for way in ways}
    for way in ways[1:]:
        if weights[way] != weights[ways[0]]:
            fail(f"two ranks by {way} have other weights than by {ways[0]}")
    older_processor(program, given.march)
    print(f"built, and ran as told: {', '.join(ways)} have the same weights")
    return 0


if __name__ == "__main__":
    sys.exit(main())
