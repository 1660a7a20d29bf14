"""A project that takes megacpp from Conan's cache: the program of a preset is built, describes itself, and trains."""

from pathlib import Path

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout


class MegacppTest(ConanFile):
    settings = "os", "arch", "compiler", "build_type"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False  # nothing is written beside the sources
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if can_run(self):
            program = Path(self.build_folder) / self.cpp.build.bindir / "tiny-gpt"
            self.run(f'"{program}" describe', env="conanrun")
            self.run(f'"{program}" train --mock-data --train-iters 3 --threads 1', env="conanrun")
