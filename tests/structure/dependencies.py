#!/usr/bin/env python3
"""CMake believes nothing of the machine: each library absent, there in part, or too old.

    dependencies.py ROOT CMAKE GENERATOR COMPILER

Each case configures a project that includes cmake/megacpp_dependencies.cmake, with stand-ins for what a
machine may have. What is required and missing is named in one sentence, with the Debian packages that hold
it; what is optional is used where a program with it compiles and links, and asking for it by ON is refused
elsewhere.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = """cmake_minimum_required(VERSION 3.24)
project(probe LANGUAGES CXX)
include("{root}/cmake/megacpp_dependencies.cmake")
"""
# A package whose version is that of its folder's name, and no target.
VERSION = """set(PACKAGE_VERSION 1.0)
set(PACKAGE_VERSION_COMPATIBLE FALSE)
"""
WITHOUT = "-DCMAKE_DISABLE_FIND_PACKAGE_"
OLD = ["-DCMAKE_PROJECT_probe_INCLUDE={work}/no_packages.cmake"]  # this machine's own packages are not seen
NO_ONEDNN = ["-DMEGACPP_ONEDNN_INCLUDE=", "-DMEGACPP_ONEDNN_LIBRARY="]
NO_MPI = ["-DMPI_CXX_COMPILER=MPI_CXX_COMPILER-NOTFOUND", WITHOUT + "MPI=ON"]

# Arguments, and what is said: of a refusal after "megacpp lacks", else of the line about products and ranks.
REFUSED = [
    ([WITHOUT + "fmt=ON"], "fmt; on Debian or Ubuntu: apt install libfmt-dev."),
    ([WITHOUT + "fmt=ON", WITHOUT + "Eigen3=ON", WITHOUT + "Boost=ON",
      WITHOUT + "nlohmann_json=ON", "-DMEGACPP_PCRE2_INCLUDE=", "-DMEGACPP_PCRE2_LIBRARY=",
      "-DMEGACPP_utf8proc_INCLUDE=", "-DMEGACPP_utf8proc_LIBRARY=", "-DMEGACPP_xxHash_INCLUDE=", "-DMEGACPP_xxHash_LIBRARY=",
      "-DMEGACPP_OpenSSL_INCLUDE=", "-DMEGACPP_OpenSSL_LIBRARY="],
     "fmt, Eigen3, Boost, nlohmann_json, PCRE2, utf8proc, xxHash and OpenSSL; on Debian or Ubuntu: apt install "
     "libfmt-dev libeigen3-dev libboost-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev libxxhash-dev libssl-dev."),
    (OLD + ["-Dfmt_DIR={work}/old/fmt"], "fmt 9 or later (found: 1.0), Eigen3"),
    (OLD + ["-DEigen3_DIR={work}/old/Eigen3"], "fmt, Eigen3 3.4 or later (found: 1.0), "),
    (OLD + ["-Dnlohmann_json_DIR={work}/old/nlohmann_json"], "fmt, Eigen3, Boost, nlohmann_json 3.11 or later (found: 1.0), "),
    (["-DMEGACPP_utf8proc_INCLUDE="], "the header utf8proc.h of utf8proc;"),
    (["-DMEGACPP_PCRE2_LIBRARY="], "the library pcre2-8 of PCRE2;"),
    (["-DMEGACPP_WITH_ONEDNN=ON"] + NO_ONEDNN, "oneDNN, since MEGACPP_WITH_ONEDNN is ON;"),
    (["-DMEGACPP_WITH_ONEDNN=ON", "-DMEGACPP_ONEDNN_INCLUDE={work}/old", "-DMEGACPP_ONEDNN_LIBRARY={work}/libempty.so"],
     "oneDNN 2.6 or later, whose headers and library fit each other"),
    (["-DMEGACPP_WITH_MPI=ON"] + NO_MPI, "MPI whose programs compile and link, since MEGACPP_WITH_MPI is ON;"),
    (["-DMEGACPP_WITH_MPI=ON", "-DMPI_CXX_COMPILER={work}/without-headers"], "MPI whose programs compile and link,"),
    (["-DMEGACPP_WITH_PROMETHEUS=ON", WITHOUT + "prometheus-cpp=ON"],
     "prometheus-cpp, since MEGACPP_WITH_PROMETHEUS is ON; on Debian or Ubuntu: apt install prometheus-cpp-dev."),
    (["-DMEGACPP_WITH_CURL=ON", WITHOUT + "CURL=ON"],
     "libcurl 7.85 or later, since MEGACPP_WITH_CURL is ON; on Debian or Ubuntu: apt install libcurl4-openssl-dev."),
    (["-DMEGACPP_WITH_MPI=perhaps"], "MEGACPP_WITH_MPI=perhaps, which must be AUTO, ON or OFF."),
]
ACCEPTED = [
    (["-DMEGACPP_WITH_ONEDNN=OFF", "-DMEGACPP_WITH_MPI=OFF", "-DMEGACPP_WITH_PROMETHEUS=OFF",
      "-DMEGACPP_WITH_CURL=OFF"],
     "products by Eigen; ranks are threads -- Configuring done"),
    (NO_ONEDNN + NO_MPI + ["-DMEGACPP_WITH_PROMETHEUS=ON"], "; numbers for Prometheus by /"),
    (NO_ONEDNN + NO_MPI + ["-DMEGACPP_WITH_PROMETHEUS=OFF"], "is missing); servers are told by libcurl"),
    (NO_ONEDNN + NO_MPI, "products by Eigen; ranks are threads"),
    (["-DMEGACPP_ONEDNN_LIBRARY=", "-DMEGACPP_ONEDNN_INCLUDE={work}/new"] + NO_MPI,
     "products by Eigen, for lack of the library of oneDNN ({work}/new/dnnl.h is there); ranks"),
    (["-DMEGACPP_ONEDNN_LIBRARY={work}/libempty.so", "-DMEGACPP_ONEDNN_INCLUDE="] + NO_MPI,
     "products by Eigen, for lack of the headers of oneDNN ({work}/libempty.so is there); ranks"),
    (["-DMEGACPP_ONEDNN_LIBRARY={work}/libempty.so", "-DMEGACPP_ONEDNN_INCLUDE={work}/new"] + NO_MPI,
     "for lack of oneDNN 2.6 or later, whose headers and library fit each other ("),
    (NO_ONEDNN + ["-DMPI_CXX_COMPILER={work}/without-headers"],
     "ranks are threads (of MPI, mpi.h or its library is missing)"),
    (NO_ONEDNN + ["-DMPI_CXX_COMPILER={work}/without-library"],
     "ranks are threads (of MPI, mpi.h or its library is missing)"),
]


def stand_ins(work, compiler):
    for name in ("fmt", "Eigen3", "nlohmann_json"):
        folder = work / "old" / name
        folder.mkdir(parents=True)
        (folder / f"{name}Config.cmake").write_text("")
        (folder / f"{name}ConfigVersion.cmake").write_text(VERSION)
    (work / "old" / "dnnl.h").write_text("#define DNNL_VERSION_MAJOR 1\n#define DNNL_VERSION_MINOR 4\n")
    (work / "no_packages.cmake").write_text("set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)\n"
                                            "set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)\n")
    (work / "new").mkdir()
    (work / "new" / "dnnl.h").write_text(
        "#define DNNL_VERSION_MAJOR 3\n#define DNNL_VERSION_MINOR 7\n"
        "typedef long dnnl_dims_t[12]; typedef void* dnnl_memory_desc_t; enum { dnnl_f32 };\n"
        'extern "C" int dnnl_memory_desc_create_with_strides(void*, int, const long*, int, const long*);\n')
    (work / "empty.cpp").write_text("")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", work / "libempty.so", work / "empty.cpp"], check=True)
    # Wrappers of MPI's kind: of a machine with the library and no headers, and the other way round.
    (work / "headers").mkdir()
    (work / "headers" / "mpi.h").write_text(
        '#pragma once\n#define MPI_VERSION 3\n#define MPI_SUBVERSION 1\n'
        'extern "C" int MPI_Init(int*, char***); extern "C" int MPI_Finalize(void);\n')
    for name, flags in (("without-headers", f"-I{work}/none -L{work} -lempty"),
                        ("without-library", f"-I{work}/headers -L{work} -lmpi_that_is_not_there")):
        wrapper = work / name
        wrapper.write_text(f'#!/bin/sh\ncase "$*" in *show*) echo "{compiler} {flags}" ;;\n'
                           f'*) exec "{compiler}" {flags} "$@" ;; esac\n')
        wrapper.chmod(0o755)


def main(root, cmake, generator, compiler):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        stand_ins(work, compiler)
        (work / "CMakeLists.txt").write_text(PROJECT.format(root=root))
        for number, (arguments, says) in enumerate(REFUSED + ACCEPTED):
            refused = number < len(REFUSED)
            arguments, says = [a.format(work=work) for a in arguments], says.format(work=work)
            done = subprocess.run([cmake, "-G", generator, "-S", work, "-B", work / f"build-{number}",
                                   f"-DCMAKE_CXX_COMPILER={compiler}", *arguments],
                                  capture_output=True, text=True, timeout=120)
            said = " ".join((done.stdout + done.stderr).split())
            if (done.returncode != 0) != refused or ("megacpp lacks " if refused else "") + says not in said:
                wrong += 1
                print(f"{' '.join(arguments)}: exit code {done.returncode}, and not \"{says}\" but\n{said}\n",
                      file=sys.stderr)
    print(f"{len(REFUSED) + len(ACCEPTED)} machines, {wrong} misjudged")
    return wrong > 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve(), *sys.argv[2:5]))
