// A GPT on which every layout of the laws can be tried.
#pragma once

#include <megacpp/model/gpt.hpp>

namespace mc::laws {

/// The heads, hidden and ffn divide by 2, 3 and 4, and the vocabulary of 11 is padded.
inline gpt tiny_gpt() {
  gpt m;
  m.layers = 2, m.hidden = 24, m.heads = 12, m.ffn = 24, m.vocabulary = 11, m.positions = 30;
  m.dropout = 0.2, m.z_loss = 1e-2;
  return m;
}

} // namespace mc::laws
