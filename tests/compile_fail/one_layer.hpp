// What the cases share: a small GPT whose block or numbers a case replaces, and the rest of a run.
#pragma once

#include <megacpp/graph/letters.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/run/program.hpp>

constexpr mc::gpt small() {
  mc::gpt m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.ffn = 32, m.vocabulary = 64, m.positions = 32;
  return m;
}

struct small_run {
  static constexpr mc::batching batch{2, 16};
  using precision = mc::fp32;
};

constexpr mc::layout tensor_parallel(int ranks) {
  mc::layout l;
  l.tp = ranks;
  return l;
}
constexpr mc::layout sequence_parallel(int ranks) {
  mc::layout l = tensor_parallel(ranks);
  l.sequence_parallel = true;
  return l;
}
constexpr mc::layout context_parallel(int ranks) {
  mc::layout l;
  l.cp = ranks;
  return l;
}
