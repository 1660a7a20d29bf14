// A program for CUDA over the stand-in, compiled as DEVICE cuda compiles it: that of tests/cli, but for
// its device. MEGACPP_STAND_IN is what the machine has, as in "devices=1 bytes=1000000 lose=100":
// memory of the device, and pieces of work after which it is lost.
#include "tiny_gpt_on_cuda.hpp"

#include <cuda/stand_in.hpp>

#include <megacpp/program.hpp>

#include <cstdlib>
#include <sstream>
#include <string>

int megacpp_run_program(const mc::program_source& source, int argc,
                        char** argv); // command_line.cpp

int main(int argc, char** argv) {
  const char* const said = std::getenv("MEGACPP_STAND_IN");
  std::istringstream words(said != nullptr ? said : "");
  stand_in::machine has;
  int lost_after = -1;
  for (std::string word; words >> word;) {
    const std::size_t at = word.find('=');
    const long number = std::stol(word.substr(at + 1));
    if (word.starts_with("devices=")) has.devices = static_cast<int>(number);
    else if (word.starts_with("bytes=")) has.bytes = static_cast<std::size_t>(number);
    else if (word.starts_with("lose=")) lost_after = static_cast<int>(number);
    else return 99;
  }
  stand_in::begin(has);
  if (lost_after >= 0) stand_in::lose_device(lost_after);
  return megacpp_run_program(mc::source_of<tiny_gpt_on_cuda>("unknown"), argc, argv);
}
