// megacpp-data: tokenizers and data sets, without a model.
#include <megacpp/tool/data_program.hpp>

int main(int argc, char** argv) { return mc::run_data_program(argc, argv, MEGACPP_GIT_HASH); }
