"""Facts printed beside every figure: CPU model, memory, commit; and where results are written."""

import datetime
import json
import os
import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


def cpu_model():
    """Model name and family/model/stepping: virtual machines often hide the marketing name."""
    fields = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if not line.strip():
                break
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields:
        name += " ({}/{}/{})".format(
            fields["cpu family"], fields.get("model", "?"), fields.get("stepping", "?"))
    return name


def peak_rss_bytes():
    """High-water mark of this process (VmHWM); getrusage also counts the program before exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def memory_bytes():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_cores():
    return len(os.sched_getaffinity(0))


def commit():
    """Short hash of the checkout, "+changes" when the tree differs, "none" without a commit."""
    def git(*arguments):
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True)
    try:
        head = git("rev-parse", "--short=12", "HEAD")
        if head.returncode != 0:
            return "none"
        return head.stdout.strip() + ("+changes" if git("status", "--porcelain").stdout else "")
    except OSError:
        return "none"


def facts():
    return {
        "utc": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "kernel": platform.release(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def portable(value):
    """The same value with the checkout's own path written as ".", so results do not name a home."""
    if isinstance(value, str):
        # Only where the path ends: a sibling "<root>-old" keeps its name.
        return re.sub(re.escape(str(ROOT)) + r"(?![\w.-])", ".", value)
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(item) for item in value]
    return value


def write_result(name, result, folder=None):
    """Writes result as <folder>/<name>-<utc>.json, never over an earlier file; returns the path."""
    folder = Path(folder) if folder else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "result"
    stem += "-" + re.sub(r"[-:]", "", result["utc"])
    text = json.dumps(portable(result), indent=1) + "\n"
    for attempt in range(1000):
        path = folder / (stem + ("" if attempt == 0 else f"-{attempt}") + ".json")
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
            return path
        except FileExistsError:
            continue
    raise OSError(f"{folder}: no free name for {stem}.json")
