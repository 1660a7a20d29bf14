// What programs read tokens from: which models take bytes for tokens, what a start reads, and what
// the flags of a run make of data sets and conversations.
#define BOOST_TEST_MODULE text
#include <megacpp/generate/token_text.hpp>
#include <megacpp/hf/model_folder.hpp>
#include <megacpp/inputs/open_data.hpp>
#include <megacpp/options/requests.hpp>
#include <megacpp/sets/indexed_writer.hpp>
#include <megacpp/states/start.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <initializer_list>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <scratch.hpp>

namespace {

using mc::exit_code;
using test::scratch_folder;
using test::write_text;

mc::program_view program_of(int vocabulary) {
  mc::program_view p;
  p.name = "model", p.vocabulary = vocabulary;
  p.numbers.batch = {1, 4};
  return p;
}

mc::options with(std::initializer_list<std::pair<const char*, std::string>> flags) {
  mc::options o;
  const auto list = mc::flags_of(o);
  for (const auto& [name, value] : flags) mc::find_flag(list, name)->flag->read(value, name);
  return o;
}

/// What `eval` measures with these flags, of a model in a folder.
mc::text_data evaluated(const mc::program_view& p, const mc::options& o,
                        std::optional<mc::character_set> characters) {
  return mc::open_text(p, mc::data_request_of(o, mc::command::eval), "folder",
                       std::move(characters), 0);
}
/// How `generate` reads the texts of such a model.
mc::token_text tokens_of(const mc::program_view& p, const mc::options& o,
                         std::optional<mc::character_set> characters) {
  const mc::generation_request r = mc::generation_request_of(o);
  return mc::token_text(p, r.tokenizer, "folder", std::move(characters), r.sampling.ids);
}

/// A part of many tokens, none of which is stored.
class endless_tokens final : public mc::token_source {
public:
  std::int64_t size() const override { return std::int64_t{1} << 40; }
  std::int32_t token(std::int64_t) const override { return 0; }
  void copy(std::int64_t first, std::span<std::int32_t> out) const override {
    first_ = std::min(first_, first), last_ = std::max(last_, first + std::ssize(out));
    read_ += std::ssize(out);
  }
  const std::string& name() const override { return name_; }

  mutable std::int64_t first_ = size(), last_ = 0, read_ = 0;

private:
  std::string name_ = "endless";
};

} // namespace

BOOST_AUTO_TEST_CASE(bytes_stand_in_for_the_tokens_of_a_tokenizer_only_where_asked_for) {
  const scratch_folder dir;
  const std::string path = dir / "text";
  write_text(path, std::string(1000, 'a'));
  const auto text = with({{"data-path", path}}),
             asked = with({{"data-path", path}, {"tokenizer-type", "byte"}}),
             characters = with({{"data-path", path}, {"tokenizer-type", "char"}}),
             ids = with({{"data-path", path}, {"data-type", "u16"}});
  const mc::character_set set({'a', 'b'});
  const auto train = [](const mc::program_view& p, const mc::options& o, bool loaded = false,
                        std::optional<mc::character_set> saved = std::nullopt) {
    return mc::open_text(p, mc::data_request_of(o, mc::command::train), loaded ? "folder" : "",
                         std::move(saved))
        .source->size();
  };
  const mc::program_view large = program_of(151936), small = program_of(256);
  const char* const says = "model has a vocabulary of 151936 tokens";

  CHECK_REFUSED(train(large, text), exit_code::usage, says);
  CHECK_REFUSED(train(large, text, true), exit_code::usage, "tokenizer_request::type byte");
  CHECK_REFUSED(train(program_of(257), text), exit_code::usage, "data_request::kind u16 or i32");
  CHECK_REFUSED(evaluated(large, text, std::nullopt), exit_code::usage, says);
  CHECK_REFUSED(tokens_of(large, with({}), std::nullopt), exit_code::usage,
                "sampling_request::ids");

  BOOST_TEST(train(small, text) == 1000);
  BOOST_TEST(train(large, asked) == 1000);
  BOOST_TEST(train(large, asked, true) == 1000);
  BOOST_TEST(train(large, characters) == 1000);
  BOOST_TEST(train(large, text, true, set) == 1000);
  BOOST_TEST(train(program_of(30000), ids) == 500);
  for (const auto& [p, o] : {std::pair(small, text), std::pair(large, asked)})
    BOOST_TEST(evaluated(p, o, std::nullopt).source->size() == 1000);
  BOOST_TEST(evaluated(large, text, set).source->size() == 1000);
  BOOST_TEST(tokens_of(small, with({}), std::nullopt).drawn() == 256);
  BOOST_TEST(tokens_of(large, with({{"tokenizer-type", "byte"}}), std::nullopt).drawn() == 256);
  BOOST_TEST(tokens_of(large, with({{"ids", "true"}}), std::nullopt).drawn() == 151936);
  BOOST_TEST(tokens_of(large, with({}), set).drawn() == 2);
}

BOOST_AUTO_TEST_CASE(the_tokenizer_is_that_of_the_model) {
  const scratch_folder dir;
  const std::string path = dir / "text";
  write_text(path, std::string(1000, 'a'));
  const mc::program_view p = program_of(256);
  const mc::character_set set({'a', 'b'});
  const auto byte = with({{"data-path", path}, {"load", "folder"}, {"tokenizer-type", "byte"}}),
             character =
                 with({{"data-path", path}, {"load", "folder"}, {"tokenizer-type", "char"}});
  CHECK_REFUSED(mc::open_text(p, mc::data_request_of(byte, mc::command::train), "folder", set),
                exit_code::mismatch, "folder was saved with char");
  CHECK_REFUSED(evaluated(p, byte, set), exit_code::mismatch, "saved with char");
  CHECK_REFUSED(tokens_of(p, byte, set), exit_code::mismatch, "saved with char");
  CHECK_REFUSED(evaluated(p, character, std::nullopt), exit_code::mismatch, "saved with byte");
  CHECK_REFUSED(tokens_of(p, character, std::nullopt), exit_code::mismatch, "saved with byte");
  BOOST_TEST(evaluated(p, character, set).source->size() == 1000);
}

// What is no token is found at the start wherever a run would meet it.
BOOST_AUTO_TEST_CASE(both_parts_of_a_run_are_read_at_its_start) {
  const scratch_folder dir;
  const std::string path = dir / "data";
  const auto u16 = with({{"data-path", path}, {"data-type", "u16"}, {"split", "50,25,25"}}),
             bytes = with({{"data-path", path}, {"split", "50,25,25"}});
  const auto opened = [&](const mc::options& o, std::size_t at) {
    std::string data(2000, '\1');
    data[at] = '\2';
    write_text(path, data);
    mc::open_text(program_of(o.data.data_type() == "u16" ? 0x102 : 2),
                  mc::data_request_of(o, mc::command::train), "", std::nullopt);
  };
  for (const std::size_t at : {3u, 999u, 1001u, 1499u}) {
    CHECK_REFUSED(opened(u16, at), exit_code::data, "at offset " + std::to_string(at - 1) + " is");
    CHECK_REFUSED(opened(bytes, at), exit_code::data, "at offset " + std::to_string(at) + " is");
  }
  BOOST_CHECK_NO_THROW(opened(u16, 1501));
  BOOST_CHECK_NO_THROW(opened(bytes, 1501));
}

BOOST_AUTO_TEST_CASE(a_fingerprint_is_of_all_of_a_part_or_of_places_all_over_it) {
  const endless_tokens few;
  mc::fingerprint(few, {1000, 11'000});
  BOOST_TEST(few.first_ == 1000);
  BOOST_TEST(few.read_ == 10'000);
  BOOST_TEST(few.last_ == 11'000);
  const endless_tokens many;
  constexpr std::int64_t all = std::int64_t{1} << 22, end = 1000 + 16 * all;
  mc::fingerprint(many, {1000, end});
  BOOST_TEST(many.first_ == 1000);
  BOOST_TEST(many.read_ == all);
  BOOST_TEST(many.last_ <= end);
  BOOST_TEST(many.last_ >= end - 16 * 4096);
}

BOOST_AUTO_TEST_CASE(a_start_reads_a_bounded_part_of_large_data) {
  const endless_tokens source;
  mc::detail::check_tokens(source, {1000, source.size()});
  BOOST_TEST(source.first_ == 1000);
  BOOST_TEST(source.read_ == mc::detail::checked_at_start);
  BOOST_TEST(source.last_ == 1000 + mc::detail::checked_at_start);
  const endless_tokens few;
  mc::detail::check_tokens(few, {7, 200'007});
  BOOST_TEST(few.read_ == 200'000);
  BOOST_TEST(few.last_ == 200'007);
}

namespace {

constexpr std::int64_t sequence = 4;

/// One sequence a micro-batch, with documents told apart.
mc::program_view packed_program() {
  mc::program_view p = program_of(1000);
  p.numbers.batch = {1, sequence};
  p.numbers.batch.packed = true;
  return p;
}

using asked_flags = std::vector<std::pair<const char*, std::string>>;

/// What the command line asks for.
mc::options asked(const asked_flags& flags) {
  mc::options o;
  const auto list = mc::flags_of(o);
  for (const auto& [name, value] : flags) mc::find_flag(list, name)->flag->ask(value, name);
  return o;
}
/// The data of `train` with these flags.
mc::run_data opened(const asked_flags& flags) {
  const mc::program_view p = packed_program();
  mc::options o = asked(flags);
  mc::refusals refused;
  mc::apply_rules(mc::command::train, o, refused);
  refused.raise();
  return mc::open_training_data(p, mc::data_request_of(o, mc::command::train),
                                mc::loop_request_of(p, o), nullptr, 2);
}

/// Ten documents of twenty tokens: of document d all are first + d.
std::string ten_documents(const std::string& prefix, std::int32_t first) {
  mc::indexed_writer w(prefix, mc::token_type::u16);
  for (std::int32_t d = 0; d < 10; ++d)
    w.add(std::vector<std::int32_t>(20, first + d)), w.end_document();
  w.commit();
  return prefix;
}

struct row_data {
  std::vector<std::int32_t> tokens = std::vector<std::int32_t>(sequence), labels = tokens,
                            positions = tokens, documents = tokens;
  row_data(const mc::sample_set& set, std::int64_t sample) {
    set.fill(sample, {tokens, labels, positions, documents});
  }
};

/// The labels of all samples of a set.
std::multiset<std::int32_t> labels_of(const mc::sample_set& set) {
  std::multiset<std::int32_t> all;
  for (std::int64_t i = 0; i < set.size(); ++i)
    for (const std::int32_t label : row_data(set, i).labels)
      if (label != mc::ignored_label) all.insert(label);
  return all;
}

} // namespace

// Megatron-LM takes the number of samples that is asked for, and so the epochs, the order and the
// shares of a blend: an epoch of 200 tokens has (200 - 1) / 4 = 49 samples.
BOOST_AUTO_TEST_CASE(the_order_of_a_run_is_that_of_the_samples_it_asks_for) {
  const scratch_folder dir;
  const std::string a = ten_documents(dir / "a", 100), b = ten_documents(dir / "b", 200);
  const auto run = [&](const char* flag, const char* number, std::vector<std::string> data) {
    asked_flags flags{{flag, number}, {"global-batch-size", "8"}, {"split", "1,0,0"}};
    for (std::string& word : data) flags.emplace_back("data-path", std::move(word));
    return opened(flags).training;
  };
  BOOST_TEST(run("train-iters", "6", {a})->size() == 49);
  const auto ours = run("train-samples", "50", {a}); // also six steps
  BOOST_TEST(ours->size() == (2 * 200 - 1) / sequence);
  const mc::gpt_dataset of_50(std::make_shared<const mc::indexed_dataset>(a, 1000), {0, 10},
                              {.sequence = sequence, .samples = 50, .seed = 1234}, {});
  for (std::int64_t i = 0; i < 50; ++i)
    BOOST_TEST(row_data(*ours, i).tokens == row_data(of_50, i).tokens,
               boost::test_tools::per_element());
  BOOST_TEST(run("train-samples", "50", {"1", a, "1", b})->size() == 50);
  BOOST_TEST(run("train-samples", "51", {"1", a, "1", b})->size() == 52);
  // What is not trained on need not be there.
  BOOST_TEST(run("train-samples", "103", {a, b})->size() == 98);
  CHECK_REFUSED(run("train-samples", "104", {a, b}), exit_code::data,
                "98 samples, for without weights each set is read once");
}

BOOST_AUTO_TEST_CASE(the_test_part_is_measured_whoever_names_it) {
  const scratch_folder dir;
  const std::string a = ten_documents(dir / "a", 100), b = ten_documents(dir / "b", 200);
  const mc::run_data whole =
      opened({{"data-path", a}, {"split", "70,20,10"}, {"train-iters", "3"}});
  BOOST_REQUIRE(whole.test.size() == 1u);
  BOOST_TEST(whole.test[0].samples_per_evaluation == 0);
  // All but the first token of the last document are predicted once.
  BOOST_TEST((labels_of(*whole.test[0].samples) ==
              labels_of(*opened({{"data-path", a}, {"split", "90,10,0"}, {"train-iters", "3"}})
                             .validation[0]
                             .samples)));
  BOOST_TEST(labels_of(*whole.test[0].samples).count(109) == 19u);
  const mc::run_data some = opened({{"data-path", a},
                                    {"data-path", b},
                                    {"split", "70,20,10"},
                                    {"train-iters", "3"},
                                    {"global-batch-size", "2"},
                                    {"eval-iters", "2"}});
  BOOST_REQUIRE(some.test.size() == 1u);
  BOOST_TEST(some.test[0].samples_per_evaluation == 4);
  for (const std::int32_t label : labels_of(*some.test[0].samples))
    BOOST_TEST((label == 109 || label == 209));
  const mc::run_data own = opened(
      {{"train-data-path", a}, {"test-data-path", a}, {"test-data-path", b}, {"train-iters", "3"}});
  BOOST_REQUIRE(own.test.size() == 2u);
  BOOST_TEST(own.test[0].name == a);
  BOOST_TEST(own.test[1].name == b);
  BOOST_TEST(labels_of(*own.test[1].samples).size() == 199u);
  BOOST_TEST(
      opened({{"data-path", a}, {"eval-iters", "0"}, {"split", "7,2,1"}, {"train-iters", "3"}})
          .test.empty());
}

BOOST_AUTO_TEST_CASE(conversations_of_several_files_are_one_set) {
  const scratch_folder dir;
  const auto written = [&](const char* name, int first, int n) {
    std::string lines;
    for (int i = 0; i < n; ++i)
      lines += fmt::format("{{\"ids\":[{},{}],\"mask\":[0,1]}}\n", first + i, first + i);
    write_text(dir / name, lines);
    return dir / name;
  };
  const std::string a = written("a", 100, 6), b = written("b", 200, 4);
  const mc::run_data all =
      opened({{"data-type", "chat"}, {"data-path", a}, {"data-path", b}, {"split", "80,10,10"}});
  BOOST_TEST(all.name == a + " and 1 more");
  BOOST_REQUIRE(all.validation.size() == 1u);
  BOOST_TEST((labels_of(*all.validation[0].samples) == std::multiset<std::int32_t>{202}));
  BOOST_TEST(all.test.empty()); // of a file nobody reads it
  const mc::run_data own = opened({{"data-type", "chat"},
                                   {"train-data-path", a},
                                   {"valid-data-path", b},
                                   {"test-data-path", a},
                                   {"test-data-path", b}});
  BOOST_REQUIRE(own.test.size() == 2u);
  BOOST_TEST(labels_of(*own.test[0].samples).size() == 6u);
  BOOST_TEST(labels_of(*own.test[1].samples).size() == 4u);

  // Epochs are whole, and no step more, however the batch grows: ten conversations, two a sequence.
  for (const int epochs : {1, 3, 7, 20})
    for (const auto& [global, rampup] : {std::pair{"4", "4 1 1"},
                                         {"4", "1 1 8"},
                                         {"8", "2 2 13"},
                                         {"4", "1 3 100"},
                                         {"8", "4 4 1"}}) {
      const asked_flags flags{{"data-type", "chat"},
                              {"data-path", a},
                              {"data-path", b},
                              {"split", "1,0,0"},
                              {"epochs", std::to_string(epochs)},
                              {"global-batch-size", global},
                              {"rampup-batch-size", rampup}};
      const mc::batch_schedule batches =
          mc::loop_request_of(packed_program(), asked(flags)).batches;
      const std::int64_t steps = opened(flags).steps.value(), samples = 5 * epochs;
      BOOST_TEST(batches.samples_of(steps, 0) >= samples, epochs << " epochs by " << rampup);
      BOOST_TEST((steps == 1 || batches.samples_of(steps - 1, 0) < samples),
                 epochs << " epochs by " << rampup);
    }
}

BOOST_AUTO_TEST_CASE(words_that_a_file_has_no_use_for_are_refused) {
  const scratch_folder dir;
  write_text(dir / "text", std::string(1000, 'a'));
  for (const char* flag : {"train-data-path", "valid-data-path", "test-data-path", "data-args-path",
                           "per-split-data-args-path"}) {
    for (const char* type : {"text", "u16", "i32"})
      CHECK_REFUSED(opened({{"data-path", dir / "text"}, {"data-type", type}, {flag, "x"}}),
                    exit_code::usage, "--" + std::string(flag) + " names");
    CHECK_REFUSED(opened({{"mock-data", "true"}, {flag, "x"}}), exit_code::usage,
                  "--" + std::string(flag) + " and --mock-data contradict");
  }
  CHECK_REFUSED(opened({{"data-path", dir / "text"}, {"data-path", dir / "more"}}),
                exit_code::usage, "takes one value");
}

// Of ranks that are threads the first opens the data, and all have the same.
BOOST_AUTO_TEST_CASE(ranks_of_a_process_open_their_data_once) {
  std::vector<mc::training_start> starts(1);
  while (starts.size() < 8) starts.push_back(mc::for_another_rank(starts[0]));
  std::atomic<int> times = 0;
  std::vector<std::shared_ptr<const mc::run_data>> had(starts.size());
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < starts.size(); ++r)
    ranks.emplace_back([&, r] {
      had[r] = starts[r].data([&] {
        ++times;
        return mc::run_data();
      });
    });
  for (std::thread& rank : ranks) rank.join();
  BOOST_TEST(times == 1);
  for (const auto& data : had) BOOST_TEST((data != nullptr && data == had[0]));
  // Another run has its own.
  BOOST_TEST((mc::training_start().data([] { return mc::run_data(); }) != had[0]));
}

// Whoever makes requests without flags has what flags that are left out come to.
BOOST_AUTO_TEST_CASE(requests_that_nobody_fills_in_are_those_of_flags_left_out) {
  const mc::options none;
  const mc::data_request d = mc::data_request_of(none, mc::command::train), data;
  BOOST_TEST((d.kind == data.kind && d.split == data.split && d.cache == data.cache &&
              d.learned == data.learned && !d.fields && !data.fields && d.seed == data.seed &&
              d.paths == data.paths));
  BOOST_TEST(none.data.split() == data.training_split());
  BOOST_TEST(none.data.tokenizer_type() == data.tokenizer.kind());
  mc::program_view p;
  p.numbers.batch = {1, 16};
  mc::loop_request loop;
  const mc::loop_request l = mc::loop_request_of(p, none);
  loop.steps = l.steps, loop.warmup = l.warmup; // which nothing is without
  BOOST_TEST((l.rates.lr == loop.rates.lr && l.rates.min_lr == loop.rates.min_lr &&
              l.rates.style == loop.rates.style && l.rates.wsd == loop.rates.wsd &&
              l.rates.warmup == loop.rates.warmup && l.rates.wsd_decay == loop.rates.wsd_decay));
  BOOST_TEST((l.numbers.seed == loop.numbers.seed && l.numbers.beta1 == loop.numbers.beta1 &&
              l.numbers.beta2 == loop.numbers.beta2 && l.numbers.clip == loop.numbers.clip &&
              l.numbers.epsilon == loop.numbers.epsilon &&
              l.numbers.weight_decay == loop.numbers.weight_decay));
  BOOST_TEST((l.save == loop.save && l.save_interval == loop.save_interval &&
              l.keep_latest == loop.keep_latest && l.keep_best == loop.keep_best &&
              l.takes_signals == loop.takes_signals && l.eval_interval == loop.eval_interval &&
              l.eval_iters == loop.eval_iters && l.sample_interval == loop.sample_interval &&
              l.sample_tokens == loop.sample_tokens && l.batches.last == loop.batches.last));
  BOOST_TEST(*l.max_shard == mc::hf_shard_limit);
  BOOST_TEST(!mc::export_request_of(none).max_shard);
  const mc::sampling_request s = mc::sampling_request_of(none), sampling;
  BOOST_TEST((s.thinks == sampling.thinks && s.samples == sampling.samples &&
              s.most == sampling.most && s.temperature == sampling.temperature &&
              s.top_k == sampling.top_k && s.top_p == sampling.top_p && s.seed == sampling.seed &&
              s.slides == sampling.slides && s.batch == sampling.batch &&
              s.caches == sampling.caches));
  BOOST_TEST(mc::report_request_of(none.report).log_interval == mc::report_request().log_interval);
}
