// The baseline of the quickstart: an add-one bigram model over bytes, fitted on one file, measured
// on another. Prints bits per byte:
//   -1/n sum_i log2 (count(x[i-1], x[i]) + 1) / (count(x[i-1]) + 256)
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

std::string read(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

unsigned byte(char c) { return static_cast<unsigned char>(c); }

} // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: bigram FIT MEASURE\n", stderr);
    return 2;
  }
  const std::string fit = read(argv[1]), measure = read(argv[2]);
  if (fit.empty() || measure.empty()) {
    std::fputs("bigram: a file is empty or missing\n", stderr);
    return 4;
  }

  std::vector<std::array<double, 256>> pair(256);
  std::array<double, 256> first{};
  for (std::size_t i = 1; i < fit.size(); ++i) {
    pair[byte(fit[i - 1])][byte(fit[i])] += 1;
    first[byte(fit[i - 1])] += 1;
  }
  double bits = 0;
  char before = fit.back(); // the second file goes on where the first ends
  for (const char c : measure) {
    bits -= std::log2((pair[byte(before)][byte(c)] + 1) / (first[byte(before)] + 256));
    before = c;
  }
  std::printf("%.4f\n", bits / static_cast<double>(measure.size()));
}
