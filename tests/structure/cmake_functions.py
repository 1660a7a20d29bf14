#!/usr/bin/env python3
"""megacpp_add_run refuses wrong arguments with a sentence that says what it takes, and megacpp_add_preset a file that
is not there; what else is wrong of a preset, megacpp_write_run tells (build_keys.py).
A precompiled library serves programs that it fits, and is refused by others with a sentence that says why.
Its record names the headers that it may have been made of. A body that the library lacks is compiled by nvcc, or named in a sentence.

    cmake_functions.py ROOT CMAKE
"""

import subprocess
import sys
import tempfile
from pathlib import Path

TAKES = "takes NAME HEADER STRUCT and nothing else but DEVICE cpu or DEVICE cuda, and BODIES with headers of row bodies, as in megacpp_add_run(my-gpt my_gpt.hpp my_gpt)."
CASES = {
    "megacpp_add_run()": TAKES,
    "megacpp_add_run(x)": "megacpp_add_run(x): " + TAKES,
    "megacpp_add_run(x x.hpp x MICRO_BATCH 4)": "megacpp_add_run(x x.hpp x MICRO_BATCH 4): " + TAKES,
    "megacpp_add_run(x x.hpp x DEVICE gpu)": "megacpp_add_run(x x.hpp x DEVICE gpu): " + TAKES,
    "megacpp_add_run(x x.hpp x DEVICE cuda BODIES)": "megacpp_add_run(x x.hpp x DEVICE cuda BODIES): " + TAKES,
    "megacpp_add_run(x x.hpp x DEVICE cuda BODIES none.hpp)": "megacpp_add_run(x ...): there is no header",
    "megacpp_add_run(x none.hpp x)": "megacpp_add_run(x ...): there is no header",
    "megacpp_add_preset(x MODEL gpt2_124m DEVICE cuda BODIES none.hpp)":
        "megacpp_add_preset(x ...): there is no header",
    "megacpp_add_preset(x HF_CONFIG none.json TP 2)": "/none.json, which is no file; give the config.json",
    "megacpp_add_preset(x TP 2 HF_CONFIG tests)": "megacpp_add_preset(x ...): HF_CONFIG names ",
    # the values of a key, which end where the next one begins
    **{f'megacpp_values_of(v {words})\nmessage(FATAL_ERROR "[${{v}}]")': f"[{values}]" for words, values in {
        "DEVICE TP 2": "", "DEVICE DEVICE cuda TP 2": "cuda", "DEVICE TP 2 device=cuda PP 2": "cuda",
        "DEVICE TP 2 DEVICE": "", "DEVICE MODEL DEVICES cuda": "", "DEVICE DEVICE cuda tp=2 pp=3": "cuda",
        "BODIES BODIES a.hpp b.hpp TP 2": "a.hpp;b.hpp", "BODIES BODIES a.hpp tp=2 BODIES b.hpp": "a.hpp;b.hpp",
        "BODIES BODIES a.hpp tp=2 b.hpp": "a.hpp",
        "HF_CONFIG HF_CONFIG /a=b/config.json sp=1": "/a=b/config.json", "HF_CONFIG hf-config=a": "",
        "HF_CONFIG HF_CONFIG tp=2/config.json sp=1": "tp=2/config.json", "DEVICE PACKED device=cuda": "cuda",
        "BODIES BODIES a.hpp sub-dir=b/c.hpp device=cuda d.hpp": "a.hpp;sub-dir=b/c.hpp",
    }.items()},
}

# A precompiled library for two architectures by CUDA 13.1, whose bodies are made of one header, as a build
# records it.
LIBRARY = r"""
file(MAKE_DIRECTORY @/cuda_bodies)
file(WRITE @/megacpp/body.hpp "struct body { float* x; };")
set(megacpp_include @)
set(built_headers megacpp/body.hpp)
set(built_sources cuda_bodies.cu)
megacpp_hash_of_built(hash)
file(WRITE @/cuda_bodies/libmegacpp_cuda_bodies.a "")
file(WRITE @/cuda_bodies/record.cmake "set(built_with [==[options -O3;fmt 9.1.0]==])
set(built_architectures 80 90a)
set(built_toolkit 13.1.12)
set(built_cutlass 4.2.0)
set(built_sources cuda_bodies.cu)
set(built_headers megacpp/body.hpp)
set(built_hash ${hash})
")
set(built_headers)
set(MEGACPP_PRECOMPILED @)
set(CUDAToolkit_VERSION 13.1)
set(with "options -O3" "fmt 9.1.0")
set(wanted 90a)
"""
FIND = """
megacpp_find_precompiled(found lacks cuda_bodies libmegacpp_cuda_bodies.a "${with}" ${wanted})
message(FATAL_ERROR "found [${found}]: ${lacks}")
"""
FOUND = "found [@/cuda_bodies]"
BUILT_AGAIN = ": build it again, name another folder by MEGACPP_PRECOMPILED, or leave the variable out."
OTHER_HEADERS = "the precompiled library @/cuda_bodies was built from other headers than those in @" + BUILT_AGAIN
OTHER_RUNTIME = "was built by CUDA 13.1.12, which CUDA's runtime "
LIBRARIES = {
    "": FOUND,
    "set(wanted 80)": FOUND,
    "set(wanted 80 90a)": FOUND,
    "set(wanted 90a 100)": "is for GPUs of architecture 80, 90a, and not for 100" + BUILT_AGAIN,
    "set(CUDAToolkit_VERSION 13.2.20)": FOUND,
    "set(CUDAToolkit_VERSION 13.0.88)": OTHER_RUNTIME + "13.0.88 does not fit",
    "set(CUDAToolkit_VERSION 12.9)": OTHER_RUNTIME + "12.9 does not fit",
    "set(CUDAToolkit_VERSION 14.0)": OTHER_RUNTIME + "14.0 does not fit",
    'file(WRITE @/megacpp/body.hpp "struct body { double* x; };")': OTHER_HEADERS,
    "file(REMOVE @/megacpp/body.hpp)": OTHER_HEADERS,
    "set(megacpp_sources @)": OTHER_HEADERS,
    'set(with "options -O2" "fmt 9.1.0")': "was built with options -O3 in place of options -O2" + BUILT_AGAIN,
    'set(with "options -O3")': "was built with fmt 9.1.0, which this build has not" + BUILT_AGAIN,
    'list(APPEND with "MPI 3.1")': "was built without MPI 3.1, which this build has" + BUILT_AGAIN,
    "list(APPEND with A B C D E)": "was built without A, B, C, D, ..., which this build has" + BUILT_AGAIN,
    "set(MEGACPP_WITH_CUTLASS ON)": FOUND,
    'set(MEGACPP_WITH_CUTLASS ON)\nfile(APPEND @/cuda_bodies/record.cmake "set(built_cutlass)")':
        "has no kernels of CUTLASS, and MEGACPP_WITH_CUTLASS is ON" + BUILT_AGAIN,
    "file(REMOVE @/cuda_bodies/libmegacpp_cuda_bodies.a)": "lacks libmegacpp_cuda_bodies.a or its record",
    "file(REMOVE @/cuda_bodies/record.cmake)": "lacks libmegacpp_cuda_bodies.a or its record",
    "file(REMOVE_RECURSE @/cuda_bodies)": "lacks libmegacpp_cuda_bodies.a or its record",
    # a library of the host alone
    "set(CUDAToolkit_VERSION)\nfile(APPEND @/cuda_bodies/record.cmake \"set(built_toolkit)\nset(built_architectures)\")": FOUND,
    "set(MEGACPP_PRECOMPILED OFF)": "found []: MEGACPP_PRECOMPILED is OFF",
    "set(MEGACPP_PRECOMPILED)": "found []: no precompiled library is installed with megacpp",
    # what is installed with megacpp
    "set(MEGACPP_PRECOMPILED)\nset(megacpp_scripts @)\nfile(RENAME @/cuda_bodies @/precompiled)\nfile(MAKE_DIRECTORY @/precompiled/cuda_bodies)":
        "found []: the library that is installed with megacpp lacks libmegacpp_cuda_bodies.a",
}

# What a record says of a library for CPUs, of a device of CUDA, and of bodies, whose headers nvcc names.
RECORD = r"""
file(REMOVE_RECURSE @/library)
file(WRITE @/library/settings.cmake "set(built_sources commands.cpp)
set(built_toolkit)
set(built_architectures)
")
set(FOLDER @/library)
"""
NVCC_READ = 'file(WRITE @/library/a.o.d "a.o: ${megacpp_include}/megacpp/exec/launch.hpp /elsewhere/megacpp/exec/launch.hpp")\n'
RECORDED = r"""
include(${megacpp_scripts}/precompiled_record.cmake)
include(@/library/record.cmake)
megacpp_hash_of_built(hash)
list(FILTER built_headers INCLUDE REGEX "exec/launch.hpp|exec/cuda/launch.hpp|main.hpp|launch.cuh|faults.inc")
if(hash STREQUAL built_hash)
  message(FATAL_ERROR "of ${built_sources}: ${built_headers}.")
endif()
"""
RECORDS = {
    "": "of commands.cpp: megacpp/exec/launch.hpp;megacpp/graph/faults.inc;megacpp/main.hpp.",
    'file(APPEND @/library/settings.cmake "set(built_toolkit 13.0)\\n")':
        "of commands.cpp: megacpp/exec/cuda/launch.hpp;megacpp/exec/launch.hpp;megacpp/graph/faults.inc;megacpp/main.hpp.",
    NVCC_READ + 'file(APPEND @/library/settings.cmake "set(built_architectures 90a)\\n")':
        "of commands.cpp: megacpp/exec/launch.hpp.",
    'file(APPEND @/library/settings.cmake "set(built_architectures 90a)\\n")': "the compiler named no header of",
}

# A program that starts two bodies; nm tells that the library has one of them.
OWN_BODIES = r"""
file(WRITE @/nm [=[#!/bin/sh
body() { echo "  U int mc::launch_on_cuda<$1>(CUstream_st*, long, $1 const&)"; }
body 'mc::rows::add_block<float>'
[ "$2" = --defined-only ] || body "$(cat @/body)"
]=])
file(WRITE @/nvcc "#!/bin/sh\nexit 0\n")
file(CHMOD @/nm @/nvcc PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
file(WRITE @/body "own::block<float>")
set(PROGRAM mine)
set(OBJECTS run.o)
set(LIBRARY library.a)
set(HEADERS own.hpp)
set(FOLDER @)
set(NM @/nm)
set(NVCC @/nvcc|-std=c++20)
"""
LINK = """
include(${megacpp_scripts}/cuda_own_bodies.cmake)
file(READ @/own_bodies.rsp linked)
message(FATAL_ERROR "linked [${linked}]")
"""
LACKING = "mine starts bodies on a GPU that the library does not have, own::block<float>"
OWN = {
    "": 'linked ["@/own_bodies.o" ]',
    "set(NVCC)": LACKING + ", and there is no nvcc to compile them",
    "set(HEADERS)": LACKING + ": name the headers that define them by BODIES",
    'set(NVCC)\nset(HEADERS)\nfile(WRITE @/body "mc::rows::add_block<float>")': "linked [ ]",
    'file(WRITE @/nvcc "#!/bin/sh\\nexit 1\\n")': "nvcc cannot compile the bodies of mine",
    'file(WRITE @/body "(anonymous namespace)::block<float>")': "give the body a name in a namespace that has one",
}


def main(root, cmake):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "case.cmake"
        cases = {**CASES, **{LIBRARY + change + FIND: says for change, says in LIBRARIES.items()},
                 **{RECORD + change + RECORDED: says for change, says in RECORDS.items()},
                 **{OWN_BODIES + change + LINK: says for change, says in OWN.items()}}
        for call, says in cases.items():
            call, says = call.replace("@", folder), says.replace("@", folder)
            script.write_text('cmake_minimum_required(VERSION 3.24)\n'
                              f'include("{root}/cmake/megacpp_add_preset.cmake")\n{call}\n')
            done = subprocess.run([cmake, "-P", script], capture_output=True, text=True, timeout=60)
            said = " ".join(done.stderr.split())
            if done.returncode == 0 or says not in said:
                wrong += 1
                print(f"{call}: exit code {done.returncode}, and not \"{says}\" but\n{said}", file=sys.stderr)
    print(f"{len(cases)} calls, {wrong} answered wrongly")
    return wrong > 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2]))
