// config.json of a Hugging Face model as a header with the model: run by the builds of presets with
// HF_CONFIG.
//
//   megacpp_hf_preset CONFIG.json OUT.hpp NAME
//
// OUT.hpp then has mc::preset::NAME. What a reader should know is told in lines that begin with
// "note: ". A configuration that cannot be honoured is one sentence that
// names the field, exit code 5 (docs/errors.md), and no change of OUT.hpp.
#include <megacpp/hf/models.hpp>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

void write_text(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  bool whole = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr) whole = std::fclose(file) == 0 && whole;
  if (!whole)
    throw mc::error(mc::exit_code::output,
                    fmt::format("cannot write {}: {}", path, mc::reason_of(errno)));
}

} // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 4)
      throw mc::error(mc::exit_code::usage, "give CONFIG.json, OUT.hpp and the model's name");
    std::vector<std::string> told;
    const mc::hf_model model =
        mc::read_hf_model(mc::read_json(argv[1]), mc::hf_use::program, &told);
    for (const std::string& note : told)
      std::fputs(fmt::format("note: {}\n", note).c_str(), stderr);
    write_text(argv[2], fmt::format("// Written by megacpp from a config.json; edit that file.\n"
                                    "#pragma once\n\n"
                                    "#include <megacpp/preset/models.hpp>\n\n"
                                    "namespace mc::preset {{\n{}}} // namespace mc::preset\n",
                                    mc::hf_model_text(model, argv[3])));
    return 0;
  } catch (const mc::error& e) {
    std::fputs(fmt::format("megacpp_hf_preset: {}\n", e.what()).c_str(), stderr);
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    std::fputs(fmt::format("megacpp_hf_preset: {}\n", e.what()).c_str(), stderr);
    return static_cast<int>(mc::exit_code::internal);
  }
}
