// Packed documents: a packed sequence has the same losses as its documents alone, and nothing leaks
// between them.
#define BOOST_TEST_MODULE packing
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/data/packing.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/session.hpp>

#include <chrono>

#include <kernels.hpp>

using namespace mc;

namespace {

constexpr qwen3 model{.layers = 2,
                      .hidden = 32,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 16,
                      .ffn = 48,
                      .vocabulary = 61,
                      .positions = 64};

template <class Model> double loss(const Model& m, const setup& s, const batch_view& b) {
  interpreted_program<Model> program(m, s, "packing");
  cpu device(product_type::automatic, 1);
  session run(program.view(), device, purpose::inference);
  run.weights().initialise(4);
  return run.evaluate(b).sum;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_packed_sequence_is_its_documents) {
  const std::vector<std::int32_t> cumulative{0, 5, 6, 20, 31};
  std::vector<std::int32_t> tokens, labels, documents(31), positions(31);
  for (int i = 0; i < 31; ++i) tokens.push_back(i * 17 % 61), labels.push_back(i * 29 % 61);
  unpack_lengths(cumulative, documents, positions);
  const double packed = loss(model, {.batch = {1, 31, true}, .precision = dtype::f64},
                             {tokens.data(), labels.data(), 0, positions.data(), documents.data()});
  double apart = 0;
  for (std::size_t i = 0; i + 1 < cumulative.size(); ++i)
    apart += loss(model, {.batch = {1, cumulative[i + 1] - cumulative[i]}, .precision = dtype::f64},
                  {tokens.data() + cumulative[i], labels.data() + cumulative[i]});
  BOOST_TEST(std::abs(packed - apart) <= 1e-10 * apart);
}

namespace {

/// A model with learned positions, and attention in the head.
struct attending_head : gpt {
  constexpr var final_norm(context& c, var x) const {
    const var a = gpt::final_norm(c, x);
    const extent h{dim::heads, heads}, width{dim::head_dim, head_dim()};
    const auto projected = [&](const char* name) {
      return column_parallel(c, name, a, {h, width}, false, 0.3);
    };
    const var q = projected("q"), k = projected("k"), v = projected("v");
    return a + row_parallel(c, "o", context_parallel_attention(c, q, k, v, {}), 2, hidden_extent(),
                            false, 0.3);
  }
};

} // namespace

// Positions and documents reach every row of a batch, and the head.
BOOST_AUTO_TEST_CASE(packed_sequences_of_a_batch_are_their_documents) {
  attending_head m;
  m.layers = 1, m.hidden = 12, m.heads = 3, m.ffn = 20, m.vocabulary = 61, m.positions = 16;
  m.std = 0.3;
  const std::vector<std::int32_t> cumulative{0, 5, 16, 19, 25, 32}; // the third begins a row
  std::vector<std::int32_t> tokens, labels, documents(32), positions(32);
  for (int i = 0; i < 32; ++i) tokens.push_back(i * 17 % 61), labels.push_back(i * 29 % 61);
  unpack_lengths(cumulative, documents, positions);
  const double packed = loss(m, {.batch = {2, 16, true}, .precision = dtype::f64},
                             {tokens.data(), labels.data(), 0, positions.data(), documents.data()});
  double apart = 0;
  for (std::size_t i = 0; i + 1 < cumulative.size(); ++i)
    apart += loss(m, {.batch = {1, cumulative[i + 1] - cumulative[i]}, .precision = dtype::f64},
                  {tokens.data() + cumulative[i], labels.data() + cumulative[i]});
  BOOST_TEST(std::abs(packed - apart) <= 1e-10 * apart);
}

// Positions turn RoPE and choose rows of tables. A token sees the tokens before it, wherever
// positions begin anew, and within one document, as in Megatron-LM without --reset-attention-mask.
BOOST_AUTO_TEST_CASE(no_token_sees_a_later_one_wherever_positions_begin_anew) {
  constexpr int size = 24, half = 9;
  std::vector<std::int32_t> tokens, labels, positions, plain;
  for (int i = 0; i < size; ++i) {
    tokens.push_back(i * 17 % 61), labels.push_back(i < half ? i * 29 % 61 : -100);
    positions.push_back(i < half - 3 ? i : i - (half - 3)), plain.push_back(i);
  }
  std::vector<std::int32_t> others = tokens;
  for (std::size_t i = half; i < size; ++i) others[i] = (others[i] + 11) % 61;
  const std::vector<std::int32_t> one_document(size, 0);
  const auto of = [&](const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& at,
                      bool packed, dtype t) {
    return loss(model, {.batch = {1, size, packed}, .precision = t},
                {ids.data(), labels.data(), 0, at.data(), packed ? one_document.data() : nullptr});
  };
  for (const dtype t : {dtype::f32, dtype::f64})
    for (const bool packed : {false, true}) {
      BOOST_TEST(of(tokens, positions, packed, t) == of(others, positions, packed, t));
      BOOST_TEST(of(tokens, positions, packed, t) != of(tokens, plain, packed, t));
    }
  // Under context parallelism each rank holds an early and a late part of the sequence.
  const double whole = of(tokens, positions, false, dtype::f64);
  for (const auto& ids : {tokens, others}) {
    const interpreted_program<qwen3> program(
        model, {.ranks = {.cp = 2}, .batch = {1, size}, .precision = dtype::f64}, "packing");
    thread_ranks(mesh_of({.cp = 2}, 1), std::chrono::seconds(60)).run([&](communicator& c) {
      cpu device(product_type::automatic, 1);
      const auto others = c.make_ranks(device);
      session run(program.view(), device, purpose::inference, *others);
      run.weights().initialise(4);
      const double sum =
          run.evaluate(batch_view{ids.data(), labels.data(), 0, positions.data()}).sum;
      if (c.rank() == 0) BOOST_TEST(std::abs(sum - whole) <= 1e-10 * whole);
    });
  }
}

BOOST_AUTO_TEST_CASE(documents_are_given_where_attention_keeps_to_them_and_nowhere_else) {
  const std::vector<std::int32_t> tokens(8, 3), labels(8, 5), documents(8, 0);
  for (const bool packed : {false, true}) {
    interpreted_program<qwen3> program(model, {.batch = {1, 8, packed}}, "packing");
    cpu device(product_type::automatic, 1);
    session run(program.view(), device, purpose::training);
    const batch_view with{tokens.data(), labels.data(), 0, nullptr, documents.data()},
        without{tokens.data(), labels.data()};
    const auto mismatch = [](const error& e) { return e.code() == exit_code::mismatch; };
    const batch_view &right = packed ? with : without, &wrong = packed ? without : with;
    BOOST_CHECK_EXCEPTION(run.step(wrong), error, mismatch);
    BOOST_CHECK_EXCEPTION(run.evaluate(wrong), error, mismatch);
    BOOST_TEST(run.step(right).loss.count == 8);
    BOOST_TEST(run.evaluate(right).count == 8);
  }
}

BOOST_AUTO_TEST_CASE(lengths_that_do_not_fit_are_refused) {
  std::vector<std::int32_t> documents(8), positions(8);
  for (const std::vector<std::int32_t>& bad :
       {std::vector<std::int32_t>{}, {1, 8}, {0, 7}, {0, 9}, {0, 5, 5, 8}, {0, 6, 4, 8}})
    BOOST_CHECK_THROW(unpack_lengths(bad, documents, positions), error);
}

// Tables have a row for each token, label and position that a batch may name.
BOOST_AUTO_TEST_CASE(integers_beyond_what_the_model_has_are_refused) {
  const interpreted_program<qwen3> program(model, {.batch = {1, 8}}, "packing");
  cpu device(product_type::automatic, 1);
  session run(program.view(), device, purpose::training);
  const auto refused = [&](const batch_view& b, const std::string& sentence) {
    const auto says = [&](const error& e) {
      BOOST_TEST(std::string(e.what()) == sentence);
      return e.code() == exit_code::data;
    };
    BOOST_CHECK_EXCEPTION(run.step(b), error, says);
    BOOST_CHECK_EXCEPTION(run.evaluate(b), error, says);
  };
  using ids = std::vector<std::int32_t>;
  const ids tokens{0, 60, 3, 3, 3, 3, 3, 3}, labels{-100, 60, 0, -1, 5, 5, 5, 5},
      positions{0, 1, 7, 0, 1, 0, 0, 0};
  const auto with = [](ids v, std::int32_t x) {
    v[2] = x;
    return v;
  };
  const batch_view fits{tokens.data(), labels.data(), 0, positions.data()};
  BOOST_TEST(run.step(fits).loss.count == 6);
  for (const std::int32_t x : {-1, 61, INT32_MAX, INT32_MIN}) {
    const std::string is = "[2] is " + std::to_string(x);
    refused({with(tokens, x).data(), labels.data()},
            "batch_view::tokens" + is + ": give tokens of at least 0 and below 61");
    if (x > 0)
      refused({tokens.data(), with(labels, x).data()},
              "batch_view::labels" + is + ": give labels below 61");
    refused({tokens.data(), labels.data(), 0, with(positions, x).data()},
            "batch_view::positions" + is + ": give positions of at least 0 and below 8");
  }
  refused({tokens.data(), labels.data(), 0, with(positions, 8).data()},
          "batch_view::positions[2] is 8: give positions of at least 0 and below 8");
  refused({tokens.data()}, "batch_view::labels is null: give labels");
  refused({}, "batch_view::tokens is null: give tokens");
}
