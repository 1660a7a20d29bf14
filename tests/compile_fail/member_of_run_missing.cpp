// expect-error: MEGA-C005
// expect-text: add using precision = mc::bf16_mixed;
//
// A run that does not say in which precision it computes: one sentence, although everything that is
// made of the run needs it.
#include "one_layer.hpp"

#include <megacpp/plan/count.hpp>

struct run {
  static constexpr mc::gpt model = small();
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch{2, 16};
#ifdef MEGACPP_EXPECT_ERROR
#else
  using precision = mc::fp32;
#endif
};
static_assert(mc::program<run>::parameters == mc::parameter_count(small()));
static_assert(mc::program<run>::ok && mc::memory<run>().total() > 0);

// Each member, missing, of another type, no constant, private, or under another name.
namespace {

using found = mc::detail::run_member;
template <class Run> constexpr found wrong = mc::detail::wrong_member<Run>();

struct good : small_run {
  static constexpr mc::gpt model = small();
  static constexpr mc::layout layout{};
};
static_assert(wrong<good> == found::none);
static_assert(wrong<int> == found::run);

struct no_model : small_run {
  static constexpr mc::layout layout{};
};
static_assert(wrong<no_model> == found::model);
struct model_of_each_object : small_run {
  mc::gpt model = small();
  static constexpr mc::layout layout{};
};
static_assert(wrong<model_of_each_object> == found::model);
struct model_at_run_time : good {
  static const mc::gpt model;
};
static_assert(wrong<model_at_run_time> == found::model);
class hidden_model : public good {
  static constexpr mc::gpt model = small();
};
static_assert(wrong<hidden_model> == found::model);

template <class Model> struct run_of : good { static constexpr Model model{}; };
static_assert(wrong<run_of<int>> == found::numbers);
struct one_kind : mc::gpt {
  int kinds = 1;
};
static_assert(wrong<run_of<one_kind>> == found::kinds);
struct no_contradiction : mc::gpt {
  constexpr bool contradiction() const { return false; }
};
static_assert(wrong<run_of<no_contradiction>> == found::texts);
struct no_name : mc::gpt {
  static constexpr mc::family_name<no_name> family{};
};
static_assert(wrong<run_of<no_name>> == found::texts);
struct name_at_run_time : mc::gpt {
  static mc::family_name<name_at_run_time> family;
};
static_assert(wrong<run_of<name_at_run_time>> == found::texts);
struct name_of_its_own : mc::gpt {
  static constexpr mc::family_name<name_of_its_own> family{"own"};
};
static_assert(wrong<run_of<name_of_its_own>> == found::none);
struct name_alone : mc::gpt { // a struct that derives from it would bear it too
  static constexpr const char* family = "own";
};
static_assert(wrong<run_of<name_alone>> == found::texts);
struct name_of_the_base : name_of_its_own {};
static_assert(wrong<run_of<name_of_the_base>> == found::none);
struct number_of_its_own : mc::gpt {
  double theta = 1e4;
};
static_assert(wrong<run_of<number_of_its_own>> == found::members);
struct number_that_is_listed : mc::gpt {
  double theta = 1e4;
  static constexpr auto members =
      mc::gpt::members + mc::member_list<&number_that_is_listed::theta>{};
};
static_assert(wrong<run_of<number_that_is_listed>> == found::none);
struct number_listed_alone : mc::gpt {
  double theta = 1e4;
  static constexpr mc::member_list<&number_listed_alone::theta> members{};
};
static_assert(wrong<run_of<number_listed_alone>> == found::members);
struct one_number_listed_of_two : mc::gpt {
  double theta = 1e4, scale = 1;
  static constexpr auto members =
      mc::gpt::members + mc::member_list<&one_number_listed_of_two::scale>{};
};
static_assert(wrong<run_of<one_number_listed_of_two>> == found::members);
struct number_of_a_number : number_that_is_listed {
  bool scaled = false;
};
static_assert(wrong<run_of<number_of_a_number>> == found::members);
struct no_list : mc::gpt {
  static constexpr int members = 3;
};
static_assert(wrong<run_of<no_list>> == found::members);
struct number_of_the_type : mc::gpt {
  static constexpr double theta = 1e4;
};
static_assert(wrong<run_of<number_of_the_type>> == found::none);
struct other_stem : mc::gpt {
  constexpr mc::var stem(mc::var x) const { return x; }
};
static_assert(wrong<run_of<other_stem>> == found::ends);
struct block_that_changes : mc::gpt {
  constexpr mc::var block(mc::context&, int, mc::var x) { return x; }
};
static_assert(wrong<run_of<block_that_changes>> == found::block);
// A context counts dropouts and caches: one that is not taken by reference would count apart.
static_assert(!std::is_copy_constructible_v<mc::context> &&
              !std::is_copy_assignable_v<mc::context>);
struct block_of_a_copy : mc::gpt {
  constexpr mc::var block(mc::context, int, mc::var x) const { return x; }
};
static_assert(wrong<run_of<block_of_a_copy>> == found::block);
struct stem_of_a_copy : mc::gpt {
  constexpr mc::var stem(mc::context, mc::var x) const { return x; }
};
static_assert(wrong<run_of<stem_of_a_copy>> == found::ends);

struct no_layout : small_run {
  static constexpr mc::gpt model = small();
};
static_assert(wrong<no_layout> == found::layout);
struct layout_of_numbers : good {
  static constexpr int layout = 1;
};
static_assert(wrong<layout_of_numbers> == found::layout);
struct no_batch {
  static constexpr mc::gpt model = small();
  static constexpr mc::layout layout{};
  using precision = mc::fp32;
};
static_assert(wrong<no_batch> == found::batch);
struct batch_of_one_number : good {
  static constexpr int batch = 4;
};
static_assert(wrong<batch_of_one_number> == found::batch);
struct precision_of_integers : good {
  struct precision {
    static constexpr mc::dtype type = mc::dtype::i32;
  };
};
static_assert(wrong<precision_of_integers> == found::precision);
struct precision_as_value {
  static constexpr mc::gpt model = small();
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch{2, 16};
  static constexpr mc::fp32 precision{};
};
static_assert(wrong<precision_as_value> == found::precision);
struct device_as_value : good {
  static constexpr int device = 0;
};
static_assert(wrong<device_as_value> == found::device);
struct recompute_as_bool : good {
  static constexpr bool recompute = true;
};
static_assert(wrong<recompute_as_bool> == found::recompute);
struct numerics_as_bool : good {
  static constexpr bool numerics = true;
};
static_assert(wrong<numerics_as_bool> == found::numerics);
struct numerics_as_type : good {
  struct numerics {};
};
static_assert(wrong<numerics_as_type> == found::numerics);
struct recompute_of_each_object : good {
  mc::recompute recompute = mc::recompute::full;
};
static_assert(wrong<recompute_of_each_object> == found::recompute);
struct numerics_of_each_object : good {
  mc::numerics numerics = mc::numerics::fast;
};
static_assert(wrong<numerics_of_each_object> == found::numerics);
struct batch_invariant : good {
  static constexpr auto numerics = mc::numerics::batch_invariant;
};
static_assert(wrong<batch_invariant> == found::none);
static_assert(mc::program<batch_invariant>::numbers.sums == mc::numerics::batch_invariant);
static_assert(mc::program<good>::numbers.sums == mc::numerics::fast);
struct memory_as_text : good {
  static constexpr const char* device_memory = "80 GiB";
};
static_assert(wrong<memory_as_text> == found::device_memory);
struct other_name : good {
  static constexpr auto recomputation = mc::recompute::full;
};
static_assert(wrong<other_name> == found::other_recompute);
struct other_memory : good {
  static constexpr std::int64_t gpu_memory = 1 << 30;
};
static_assert(wrong<other_memory> == found::other_memory);
struct checkpointing_as_bool : good {
  static constexpr bool checkpointing = true;
};
static_assert(wrong<checkpointing_as_bool> == found::other_recompute);
struct of_its_own : good {
  static constexpr std::int64_t memory() { return 1 << 30; }
  static constexpr const char* checkpointing = "every epoch";
  static inline int recomputing = 0;
  double gpu_memory = 0;
  using device_mem = std::int64_t;
};
static_assert(wrong<of_its_own> == found::none);

} // namespace
