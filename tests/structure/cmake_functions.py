#!/usr/bin/env python3
"""megacpp_add_run and megacpp_add_preset refuse wrong arguments with a sentence that says what they take.

    cmake_functions.py ROOT CMAKE
"""

import subprocess
import sys
import tempfile
from pathlib import Path

KEYWORDS = ("after the name come TP, PP, CP, EP, ETP, MICRO_BATCH, SEQUENCE, VIRTUAL_STAGES, "
            "FIRST_STAGE_LAYERS, LAST_STAGE_LAYERS, MICRO_BATCHES, MODEL, HF_CONFIG, PRECISION, "
            "RECOMPUTE, NUMERICS, DEVICE, ZERO, SCHEDULE, INCLUDE, STAGE_LAYERS, each with a value, "
            "and SEQUENCE_PARALLEL, COUNT_EMBEDDING, COUNT_LOSS, PACKED.")
TAKES = "takes NAME HEADER STRUCT and nothing else but DEVICE cpu or DEVICE cuda, and BODIES with headers of row bodies, as in megacpp_add_run(my-gpt my_gpt.hpp my_gpt)."
CASES = {
    "megacpp_add_run()": TAKES,
    "megacpp_add_run(x)": "megacpp_add_run(x): " + TAKES,
    "megacpp_add_run(x x.hpp x MICRO_BATCH 4)": "megacpp_add_run(x x.hpp x MICRO_BATCH 4): " + TAKES,
    "megacpp_add_run(x x.hpp x DEVICE gpu)": "megacpp_add_run(x x.hpp x DEVICE gpu): " + TAKES,
    "megacpp_add_run(x x.hpp x DEVICE cuda BODIES)": "megacpp_add_run(x x.hpp x DEVICE cuda BODIES): " + TAKES,
    "megacpp_add_run(x x.hpp x DEVICE cuda BODIES none.hpp)": "megacpp_add_run(x ...): there is no header",
    "megacpp_add_run(x none.hpp x)": "megacpp_add_run(x ...): there is no header",
    "megacpp_add_preset(x MODEL gpt2_124m MICROBATCH 4)":
        "megacpp_add_preset(x ...): unknown argument 'MICROBATCH'; " + KEYWORDS,
    "megacpp_add_preset(x MODEL gpt2_124m MICRO_BATCH)": "MICRO_BATCH has no value.",
    "megacpp_add_preset(x MODEL gpt2_124m NUMERICS batch-invariant)":
        "megacpp_add_preset(x ...): NUMERICS must be one of fast, batch_invariant, not 'batch-invariant'.",
}


def main(root, cmake):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "case.cmake"
        for call, says in CASES.items():
            script.write_text('cmake_minimum_required(VERSION 3.24)\n'
                              f'include("{root}/cmake/megacpp_add_preset.cmake")\n{call}\n')
            done = subprocess.run([cmake, "-P", script], capture_output=True, text=True, timeout=60)
            said = " ".join(done.stderr.split())
            if done.returncode == 0 or says not in said:
                wrong += 1
                print(f"{call}: exit code {done.returncode}, and not \"{says}\" but\n{said}", file=sys.stderr)
    print(f"{len(CASES)} calls, {wrong} answered wrongly")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2]))
