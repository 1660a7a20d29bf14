// Packed documents: a packed sequence has the losses of its documents alone, and nothing leaks.
#define BOOST_TEST_MODULE packing
#include <boost/test/unit_test.hpp>

#include <megacpp/data/packing.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/run/session.hpp>

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
  run.begin_step();
  return run.evaluate(b).sum;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_packed_sequence_is_its_documents) {
  const std::vector<std::int32_t> cumulative{0, 5, 6, 20, 31};
  std::vector<std::int32_t> tokens, labels, documents(31), positions(31);
  for (int i = 0; i < 31; ++i) tokens.push_back(i * 17 % 61), labels.push_back(i * 29 % 61);
  unpack_lengths(cumulative, documents, positions);
  const double packed = loss(model, {.batch = {1, 31, true}, .type = dtype::f64},
                             {tokens.data(), labels.data(), 0, positions.data(), documents.data()});
  double apart = 0;
  for (std::size_t i = 0; i + 1 < cumulative.size(); ++i)
    apart += loss(model, {.batch = {1, cumulative[i + 1] - cumulative[i]}, .type = dtype::f64},
                  {tokens.data() + cumulative[i], labels.data() + cumulative[i]});
  BOOST_TEST(std::abs(packed - apart) <= 1e-10 * apart);
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
    run.begin_step();
    BOOST_CHECK_EXCEPTION(run.train(wrong), error, mismatch);
    BOOST_CHECK_EXCEPTION(run.evaluate(wrong), error, mismatch);
    BOOST_TEST(run.train(right).count == 8);
    BOOST_TEST(run.evaluate(right).count == 8);
  }
}

BOOST_AUTO_TEST_CASE(lengths_that_do_not_fit_are_refused) {
  std::vector<std::int32_t> documents(8), positions(8);
  for (const std::vector<std::int32_t>& bad :
       {std::vector<std::int32_t>{}, {1, 8}, {0, 7}, {0, 9}, {0, 5, 5, 8}, {0, 6, 4, 8}})
    BOOST_CHECK_THROW(unpack_lengths(bad, documents, positions), error);
}
