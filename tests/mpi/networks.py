#!/usr/bin/env python3
"""A program on two nodes, each with a network of its own: the bits of threads.

    networks.py PROGRAM [unittest argument...]

PROGRAM is compiled from ../cli/tiny_gpt.hpp. The nodes are namespaces of this machine, which root alone may make.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))
sys.path.insert(0, str(Path(__file__).parent))
import cli  # noqa: E402
from launch import TRAIN, Case, done, started  # noqa: E402


@unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip"), "only root may make networks, by ip of iproute2")
class TwoNetworks(Case):
    """Two nodes, each in a network of its own, with a cable between them."""

    def setUp(self):
        super().setUp()
        self.names = [f"megacpp-{os.getpid()}-{n}" for n in range(2)]
        for name in self.names:
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
            if made.returncode:
                self.skipTest("ip can make no network: " + made.stderr)
            self.addCleanup(self.ip, "netns", "delete", name)
        self.ip("link", "add", "megacpp0", "netns", self.names[0], "type", "veth", "peer", "name", "megacpp0", "netns",
                self.names[1])
        for n, name in enumerate(self.names):
            self.ip("-n", name, "address", "add", f"10.77.0.{n + 1}/24", "dev", "megacpp0")
            self.ip("-n", name, "address", "add", f"fd77::{n + 1}/64", "dev", "megacpp0", "nodad")
            for link in ("lo", "megacpp0"):
                self.ip("-n", name, "link", "set", link, "up")

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True)

    def nodes(self, each, env, *words):
        launched = [started("ip", "netns", "exec", name, *each(n), *words, env=env(n), folder=self.folder)
                    for n, name in enumerate(self.names)]
        return [done(one)[0] for one in launched]


class Nodes(TwoNetworks):
    def test_nodes_that_start_their_ranks(self):
        of_threads = self.of_threads()
        for master in ("10.77.0.1", "fd77::1"):
            self.nodes(lambda _: (cli.PROGRAM,), lambda n, master=master: {
                "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": str(n), "PET_MASTER_ADDR": master,
                "PET_MASTER_PORT": "29500", "MEGACPP_RENDEZVOUS_SECRET": "of both"}, *TRAIN, "--train-iters", 6, "--save", master)
            self.assertEqual(self.state(master), of_threads)


class Pods(TwoNetworks):
    """Two pods of a job of Kubeflow: in each the program is the first process, with a root, a name and a network of its own."""

    def setUp(self):
        super().setUp()
        self.root = self.folder / "root"
        (self.root / "etc").mkdir(parents=True)
        for name in ("proc", "tmp", "data"):
            (self.root / name).mkdir()
        (self.root / "etc" / "nsswitch.conf").write_text("hosts: files\n")
        listed = subprocess.run(["ldd", cli.PROGRAM], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            there = self.root / library[1:]
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, there)
        shutil.copy(cli.PROGRAM, self.root / "program")

    def pod(self, node, host, env, *words):
        inside = (f"hostname {host} && mount --bind {self.folder} {self.root}/data && mount -t proc proc {self.root}/proc && "
                  f'exec chroot {self.root} /program "$@"')
        return started("ip", "netns", "exec", self.names[node], "unshare", "--pid", "--fork", "--kill-child", "--uts", "--mount", "sh",
                       "-c", inside, "pod", "train", "--data-path", "/data/text", *TRAIN[3:], "--train-iters", 6, *words, env=env,
                       folder=self.folder)

    def check(self, pods, name, ranks):
        for launched in pods:
            done(launched)
        shutil.rmtree(self.folder / "threads", ignore_errors=True)
        of_threads, of_pods = self.of_threads(ranks), self.state(name)
        for state in (of_threads, of_pods):
            del state["megacpp_state.json"]  # it holds the paths of the data
        self.assertEqual(of_pods, of_threads)

    def test_pytorchjob(self):
        hosts = self.root / "etc" / "hosts"
        env = {"PYTHONUNBUFFERED": "1", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "WORLD_SIZE": "4",
               **{f"{of}MASTER_{what}": value for of in ("", "PET_") for what, value in (("ADDR", "job-master-0"), ("PORT", "23456"))}}
        pods = [self.pod(n, host, {**env, "RANK": str(n), "PET_NODE_RANK": str(n)}, "--save", "/data/pytorchjob")
                for n, host in ((1, "job-worker-0"), (0, "job-master-0"))]
        time.sleep(1)  # the name of the master is known late
        hosts.write_text("10.77.0.1 job-master-0\n")
        self.check(pods, "pytorchjob", 4)

    def test_trainjob(self):
        (self.root / "etc" / "hosts").write_text("10.77.0.1 job-node-0-0.job\n")
        env = {"PET_NNODES": "2", "PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29500"}
        for per_node, ranks in (("2", 4), ("auto", 2)):
            pods = [self.pod(n, f"job-node-0-{n}", {**env, "PET_NPROC_PER_NODE": per_node, "PET_NODE_RANK": str(n)}, "--save",
                             f"/data/trainjob-{per_node}") for n in range(2)]
            self.check(pods, f"trainjob-{per_node}", ranks)


if __name__ == "__main__":
    cli.PROGRAM = os.path.abspath(sys.argv[1])
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
