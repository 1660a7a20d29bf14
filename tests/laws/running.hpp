// A training run without files, on drawn tokens, for laws about the bits of steps.
#pragma once

#include <megacpp/data/micro_batches.hpp>
#include <megacpp/data/random_tokens.hpp>
#include <megacpp/data/windows.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/session.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <kernels.hpp>

namespace test {

/// A text of random tokens, cut into windows of a sequence.
struct drawn_text {
  mc::random_tokens source;
  mc::training_windows windows;

  drawn_text(const drawn_text&) = delete;
  drawn_text& operator=(const drawn_text&) = delete;
  drawn_text(std::int64_t tokens, std::int64_t vocabulary, std::int64_t sequence)
      : source(tokens, vocabulary, 3), windows(source, {0, tokens}, sequence, 5) {}
};

template <class Model> struct running {
  mc::interpreted_program<Model> program;
  mc::cpu device;
  mc::session run;
  mc::micro_batch batch;

  running(const Model& m, const mc::setup& s, int threads = 1)
      : program(m, s, "running"),
        device(mc::product_type::widened, threads),
        run(program.view(), device, mc::purpose::training),
        batch(s.batch.micro, s.batch.sequence) {
    mc::step_numbers& n = run.numbers();
    n.seed = 5, n.learning_rate = 1e-2, n.weight_decay = 0.1, n.clip = 1;
  }
  /// Returns a function that gives a session the micro-batches from sample `from` on.
  auto feed(const drawn_text& text, std::int64_t from) {
    return [this, &text, from](int i, mc::batch_view& b) {
      const int micro = run.micro_batch();
      batch.fill(text.windows, from + i * micro);
      b = {batch.tokens().data(), batch.labels().data(), i * micro};
      return true;
    };
  }
  /// Returns the masters and moments, byte for byte.
  std::string stores() const {
    const mc::stores& s = run.weights();
    const std::int64_t main = s.total() * size_of(s.precision().master);
    std::string bytes;
    for (const std::byte* store : {s.masters(), s.first_moments(), s.second_moments()})
      bytes.append(reinterpret_cast<const char*>(store), static_cast<std::size_t>(main));
    return bytes;
  }
};

} // namespace test
