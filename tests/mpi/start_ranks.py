#!/usr/bin/env python3
"""Starts ranks with the variables of torchrun, without torch: TCP connects them.

    start_ranks.py N PROGRAM [ARGUMENT...]

The first rank that fails ends the others within two seconds, and its exit code is that of this script;
of one that a signal has ended it is 128 and the signal's number. Signals that end this script go to all
ranks.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time


def variables(rank, ranks, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main(ranks, *command):
    port = free_port()
    running = [subprocess.Popen(command, env={**os.environ, **variables(r, int(ranks), port)}, preexec_fn=end_with_parent)
               for r in range(int(ranks))]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda n, _: [rank.send_signal(n) for rank in running])
    failed, ends = [], None
    while True:
        alive = False
        for rank in running:
            code = rank.poll()
            alive |= code is None
            if code and rank not in failed and (ends is None or time.monotonic() < ends):
                failed.append(rank)
                ends = ends or time.monotonic() + 1.5
        if not alive:
            break
        if ends and time.monotonic() > ends:
            for rank in running:
                rank.kill()
        time.sleep(0.005)
    codes = [code if code > 0 else 128 - code for code in (rank.returncode for rank in failed)]
    # Ranks that only miss another one (11) are not the first, though they may be seen first.
    return next((code for code in codes if code != 11), codes[0] if codes else 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
