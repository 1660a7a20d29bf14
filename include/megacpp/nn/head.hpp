// The two ends of a language model: embeddings and the loss, both vocabulary parallel.
#pragma once

#include <megacpp/nn/context.hpp>
#include <megacpp/op/dropout.hpp>
#include <megacpp/op/embedding.hpp>
#include <megacpp/op/loss.hpp>

namespace mc {

/// Returns the rows of a vocabulary-parallel table: the vocabulary, padded to a multiple of tp.
constexpr extent vocabulary_rows(const context& c, std::int64_t vocabulary) {
  const std::int64_t tp = c.ranks().of(axis::tp);
  return {dim::vocabulary, (vocabulary + tp - 1) / tp * tp};
}

/// Returns the table (V, H) of the stem, or the same table for the head (`tied`).
constexpr var vocabulary_table(context& c, const char* scope, std::int64_t vocabulary,
                               extent hidden, double std, bool tied, source_line line = here()) {
  parameter_info info = normal_weights(std);
  info.tied = tied;
  info.valid_rows = vocabulary;
  return weight(c, scope, "weight", {vocabulary_rows(c, vocabulary), hidden},
                on(axis::tp, shard(dim::vocabulary)), info, line);
}

/// Returns the embeddings (B, S, H) of tokens (B, S) on the residual stream.
constexpr var token_embedding(context& c, var tokens, var table, source_line line = here()) {
  return to(embedding(tokens, table, line), axis::tp, c.stream, line);
}

/// Returns the learned embeddings of positions, from a table (P, H), for the tokens of the stream.
constexpr var position_embedding(context& c, const char* scope, extent positions, extent hidden,
                                 double std, source_line line = here()) {
  const var table = weight(c, scope, "weight", {positions, hidden}, {}, normal_weights(std), line);
  return embedding(to(c.positions, axis::tp, c.stream, line),
                   to(table, axis::tp, beside(c.stream), line), line);
}

/// Applies dropout to the residual stream. Generation returns x.
constexpr var stream_dropout(context& c, var x, double p, source_line line = here()) {
  if (c.generating) return x;
  return dropout(x, to(c.token_keys, axis::tp, c.stream, line), p, c.salt++, line);
}

/// Returns the summed loss and the token count of x (B, S, H) on the residual stream, with the
/// table (V, H). Both are pending sums over dp and cp.
constexpr summed_loss vocabulary_loss(var x, var table, var labels, std::int64_t vocabulary,
                                      double z, source_line line = here()) {
  const auto part =
      vocabulary_partial(to(x, axis::tp, replicate, line), table, labels, vocabulary, line);
  return cross_entropy(
      {to(part.local_lse, axis::tp, invariant, line), to(part.target, axis::tp, invariant, line)},
      labels, z, line);
}

} // namespace mc
