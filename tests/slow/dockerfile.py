"""Builds images from Dockerfiles on a machine without Docker, and runs programs in them.

A base image is a folder with a root, as debootstrap makes it. Each stage of a Dockerfile is an overlay above its base:
what it adds stands in a folder of its own, as in Docker's layers. `RUN` is done in a root, with processes and mounts of
its own. What an instruction says that is not known here is an error, so that no line of a Dockerfile goes untried.

Mounts are made in a namespace of the test's own (`in_namespace`) and end with it. That takes root's rights.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

DEVICES = ("null", "zero", "full", "random", "urandom")
# In a namespace of processes: /proc, /dev and /sys as in a container, and then the command as a user, as process 1.
ENTER = """
root=$1 user=$2 folder=$3 shm=$4; shift 4
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sys "$root/sys"
mount -t tmpfs -o mode=755 dev "$root/dev"
for device in %s; do touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
mkdir "$root/dev/shm"
mount -t tmpfs -o mode=1777,size="$shm" shm "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
exec chroot --userspec="$user" --groups= "$root" /bin/sh -c 'cd "$1" && shift && exec "$@"' enter "$folder" "$@"
""" % " ".join(DEVICES)


class Unusable(Exception):
    """This machine cannot make such roots."""


def in_namespace():
    """Starts this script again in a namespace of mounts, unless it is in one; Unusable where that is not allowed."""
    if os.environ.get("MEGACPP_IMAGES_MOUNTS") == str(os.getppid()):
        return
    if os.geteuid() != 0:
        raise Unusable("a root folder is made by root alone")
    for tool in ("unshare", "debootstrap"):
        if not shutil.which(tool):
            raise Unusable(f"{tool} is missing; on Debian or Ubuntu, apt install util-linux debootstrap")
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], stderr=subprocess.DEVNULL).returncode:
        raise Unusable("this machine lets root make no namespaces")
    ended = subprocess.run(["unshare", "--mount", "--", sys.executable, *sys.argv],
                           env={**os.environ, "MEGACPP_IMAGES_MOUNTS": str(os.getpid())})
    sys.exit(ended.returncode)


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def debootstrap(folder, suite):
    """A minimal Debian, kept in the folder for later runs."""
    root, complete, log = folder / suite, folder / f"{suite}.complete", folder / f"{suite}.log"
    if not complete.exists():
        shutil.rmtree(root, ignore_errors=True)
        with open(log, "w", encoding="utf-8") as out:
            ended = subprocess.run(["debootstrap", "--variant=minbase", suite, root], stdout=out, stderr=out)
        if ended.returncode:
            raise Unusable(f"debootstrap could not make {suite}; is there a mirror, and is it reached? {log} has its output")
        complete.touch()
    return Image(layers=[root])


class Image:
    """Layers, the lowest first, and what a container of it begins with."""

    def __init__(self, layers, env=None, user="0:0", folder="/", entry=(), words=()):
        self.layers, self.env = list(layers), dict(env or {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
        self.user, self.folder, self.entry, self.words = user, folder, list(entry), list(words)
        self.root = None  # where it is mounted

    def copy(self):
        return Image(self.layers, self.env, self.user, self.folder, self.entry, self.words)

    def added(self, base):
        """The folders of files that the image has beyond those of a base."""
        assert self.layers[:len(base.layers)] == base.layers
        return self.layers[len(base.layers):]

    def mounted(self, work, name):
        """A root with the layers, to read."""
        if self.root is None:
            self.root = work / f"{name}.root"
            self.root.mkdir(exist_ok=True)
            layers = ":".join(str(layer) for layer in reversed(self.layers))
            if len(self.layers) == 1:
                mount("--bind", self.layers[0], self.root)
            else:
                mount("-t", "overlay", "overlay", "-o", f"lowerdir={layers}", self.root)
        return self.root

    def stage(self, work, name):
        """A new layer above, mounted to be written."""
        above = self.copy()
        upper, scratch, above.root = (work / f"{name}.{what}" for what in ("added", "scratch", "root"))
        for path in (upper, scratch, above.root):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        lower = ":".join(str(layer) for layer in reversed(self.layers))
        mount("-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={scratch}", above.root)
        above.layers.append(upper)
        return above


def enter(root, command, env, user="0:0", folder="/", shm="64m", start=subprocess.run, **more):
    """Runs a command in a root, as process 1 of a namespace; or starts it, by subprocess.Popen."""
    return start(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--", "bash", "-euc", ENTER, "enter",
                  str(root), user, folder, shm, *command],
                 env={"TERM": "dumb", "HOME": "/root" if user.startswith("0:") else "/", **env}, stdin=subprocess.DEVNULL, **more)


def expand(text, values):
    """$NAME, ${NAME}, ${NAME:-text} and ${NAME:+text} of Dockerfiles."""
    def value(match):
        name, how, other = match.group(1) or match.group(2), match.group(3), match.group(4)
        if how == ":-":
            return values.get(name) or other
        if how == ":+":
            return other if values.get(name) else ""
        return values.get(name, "")
    return re.sub(r"\$(?:(\w+)|\{(\w+)(?:(:[-+])([^}]*))?\})", value, text)


def instructions(text):
    """The instructions of a Dockerfile, each with its number of a line."""
    joined, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"\s*#", line) or (not joined and not line.strip()):
            continue
        first = first or number
        joined += line.rstrip()
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        word, _, rest = joined.strip().partition(" ")
        yield first, word.upper(), rest.strip()
        joined, first = "", 0


def words_of(text):
    """The words of ENTRYPOINT or CMD, which must be a list: a shell would not pass signals on."""
    words = json.loads(text)
    assert isinstance(words, list)
    return words


def build(path, context, images, arguments, work, name):
    """Builds a Dockerfile; returns the image and the one that its last stage began with."""
    given, stages, base = dict(arguments), {}, None
    globals_, here, now, base_name, used = {}, {}, None, "", set()

    def flags_of(rest):
        flags = {}
        while match := re.match(r"--([a-z]+)=(\S+)\s+", rest):
            flags[match.group(1)] = match.group(2)
            rest = rest[match.end():]
        return flags, rest

    def image_of(word):
        found = stages.get(word) or images.get(word)
        if not found:
            raise SystemExit(f"{path}: there is no image {word}")
        return found

    for number, word, rest in instructions(Path(path).read_text(encoding="utf-8")):
        where = f"{path}:{number}"
        values = {**(now.env if now else {}), **here}
        if word == "ARG":
            key, _, default = rest.partition("=")
            default = default.strip('"')
            used.add(key)
            value = given.get(key, globals_.get(key, expand(default, values)))
            (here if now else globals_)[key] = value
        elif word == "FROM":
            parts = rest.split()
            base_name = expand(parts[0], globals_)
            base = image_of(base_name)
            alias = parts[2] if len(parts) == 3 and parts[1].upper() == "AS" else f"stage {len(stages)}"
            now, here = base.stage(work, f"{name}.{len(stages)}"), {}
            stages[alias] = now
        elif word == "RUN":
            flags, rest = flags_of(rest)
            bound = None
            if "mount" in flags:
                what = dict(pair.split("=") for pair in flags["mount"].split(","))
                if what.pop("type") != "bind":
                    raise SystemExit(f"{where}: only mounts of type bind are known here")
                bound = now.root / what["target"].lstrip("/")
                bound.mkdir()
                source = image_of(what["from"])
                mount("--bind", "-o", "ro", source.root or source.mounted(work, f"{name}.from"), bound)
            print(f"+ {word} {rest}", flush=True)
            # One unit at a time: other tests run beside this one.
            ended = enter(now.root, ["/bin/sh", "-c", rest], {**now.env, **here, "CMAKE_BUILD_PARALLEL_LEVEL": "1"},
                          now.user, now.folder)
            if bound:
                subprocess.run(["umount", bound], check=True)
                bound.rmdir()
            if ended.returncode:
                raise SystemExit(f"{where}: exit code {ended.returncode}")
        elif word == "COPY":
            flags, rest = flags_of(rest)
            *sources, target = shlex.split(expand(rest, values))
            root = image_of(flags["from"]).root if "from" in flags else Path(context)
            to = now.root / target.lstrip("/")
            for source in sources:
                source = root / source.lstrip("/")
                if source.is_dir():
                    to.mkdir(parents=True, exist_ok=True)
                    subprocess.run(["cp", "-a", "--no-preserve=ownership", f"{source}/.", f"{to}/"], check=True)
                else:
                    goal = to / source.name if target.endswith("/") else to
                    goal.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source, goal)
        elif word == "ENV":
            for pair in shlex.split(expand(rest, values)):
                key, _, value = pair.partition("=")
                now.env[key] = value
        elif word == "USER":
            now.user = expand(rest, values)
        elif word == "WORKDIR":
            now.folder = expand(rest, values)
            (now.root / now.folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "ENTRYPOINT":
            now.entry, now.words = words_of(rest), []
        elif word == "CMD":
            now.words = words_of(rest)
        else:
            raise SystemExit(f"{where}: {word} is not known here")
    if unknown := sorted(set(given) - used):
        raise SystemExit(f"{path} has no argument {', '.join(unknown)}")
    return now, base
