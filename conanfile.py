"""megacpp as a package of Conan 2: headers, CMake functions, and the sources of every program.

    conan create . -s compiler.cppstd=20                        # headers alone, one package for all
    conan create . -s compiler.cppstd=20 -o '&:precompiled=True'

docs/using-megacpp.md says how a project uses it.
"""

import re
from pathlib import Path

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, load

X86_64_V3 = "x86-64-v3"  # what programs of the package are compiled for, if nothing else is said


class Megacpp(ConanFile):
    name = "megacpp"
    license = "Apache-2.0"
    description = "One LLM training run, compiled into one program"
    topics = ("llm", "training", "header-only", "cuda")
    settings = "os", "arch", "compiler", "build_type"
    options = {
        # What programs have in common is compiled into the package, and megacpp-data with it.
        "precompiled": [True, False],
        # With precompiled: the processor that programs are compiled for, as -march takes it. It is part of the
        # package's id. A project whose MEGACPP_MARCH is another one compiles everything itself.
        "march": ["ANY"],
        # With precompiled: whether the libraries are compiled with MPI, where it is found.
        "mpi": [True, False],
    }
    default_options = {"precompiled": False, "march": X86_64_V3, "mpi": True}
    exports_sources = ("CMakeLists.txt", "LICENSE", "CHANGELOG.md", "cmake/*", "include/*", "src/*",
                       "examples/data/*", "examples/build_preset.sh")
    no_copy_source = True

    # Libraries that packages of the system hold, found by find_package(megacpp) where a project is built; they
    # are no requirements, so that no package of another recipe is needed. The list is cmake/apt_install.sh's.
    # Needed: fmt 9, Eigen 3.4, Boost 1.74 (Hana), nlohmann_json 3.11, PCRE2, utf8proc, xxHash, OpenSSL.
    # Used where they are found: oneDNN 2.6, MPI, prometheus-cpp, libcurl 7.85, and for GPUs CUDA's toolkit with
    # cuBLASLt, cuDNN, CUTLASS.

    def set_version(self):
        text = load(self, str(Path(self.recipe_folder) / "include/megacpp/config/config.hpp"))
        self.version = ".".join(re.search(rf"MEGACPP_VERSION_{part} (\d+)", text).group(1)
                                for part in ("MAJOR", "MINOR", "PATCH"))

    def configure(self):
        self.package_type = "static-library" if self.options.precompiled else "header-library"
        if not self.options.precompiled:  # one package for all projects, which give these to CMake
            del self.options.march
            del self.options.mpi

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.arch != "x86_64":
            raise ConanInvalidConfiguration(f"megacpp's programs are for x86_64, and settings.arch is {self.settings.arch}")
        march = str(self.options.get_safe("march", X86_64_V3))
        if not re.fullmatch(r"[a-z0-9][a-z0-9._+-]*", march) or march == "native":
            raise ConanInvalidConfiguration(f"the option march is '{march}', and must name a processor as -march does, "
                                            "such as x86-64-v4; native would name another one on each machine")

    def package_id(self):
        if not self.info.options.precompiled:
            self.info.clear()

    def generate(self):
        toolchain = CMakeToolchain(self)
        variables = toolchain.cache_variables
        variables["MEGACPP_BUILD_TESTS"] = False
        variables["MEGACPP_BUILD_EXAMPLES"] = False
        variables["MEGACPP_MARCH"] = str(self.options.get_safe("march", X86_64_V3))
        if self.options.precompiled:
            variables["MEGACPP_INSTALL_PRECOMPILED"] = "cpu"
            variables["MEGACPP_WITH_MPI"] = "AUTO" if self.options.mpi else "OFF"
            variables["MEGACPP_CXX_STANDARD"] = str(self.settings.compiler.cppstd).replace("gnu", "")
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        if self.options.precompiled:
            cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, str(Path(self.package_folder) / "licenses"))

    def package_info(self):
        # CMake finds megacpp's own configuration, which looks for libraries on the machine that builds a program.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/megacpp"]
        self.cpp_info.bindirs = ["bin"]
        self.cpp_info.libdirs = []
