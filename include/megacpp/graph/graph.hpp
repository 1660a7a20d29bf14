// Values, nodes and the graph: plain constexpr data. Values (dtype, named dims, extents, placement)
// are apart from nodes (op, inputs, outputs, attributes, source line).
#pragma once

#include <megacpp/graph/attributes.hpp>
#include <megacpp/graph/fault.hpp>
#include <megacpp/graph/placement.hpp>
#include <megacpp/num/dtype.hpp>
#include <megacpp/recipe/numerics.hpp>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iterator>

namespace mc {

inline constexpr int max_rank = 4, max_inputs = 10, max_outputs = 5;
inline constexpr int max_nodes = 512, max_values = 896, max_parameters = 64, max_regions = 4;

using value_id = std::int16_t;
using node_id = std::int16_t;
using region_id = std::int8_t;

/// Order of a dim's elements over the ranks that share it: contiguous, or balanced (rank i of n
/// holds the chunks i and 2n-1-i of 2n, so that causal attention costs every rank the same).
enum class order : std::uint8_t { contiguous, balanced };

/// A named, global extent. Over an axis whose size is known only at start it is local, but for the
/// elements of a range (range_axis).
struct extent {
  dim d = dim::none;
  order o = order::contiguous;
  std::int64_t n = 0;

  constexpr extent() = default;
  constexpr extent(dim name, std::int64_t size, order how = order::contiguous)
      : d(name), o(how), n(size) {}
  constexpr bool operator==(const extent&) const = default;
};

enum class role : std::uint8_t {
  intermediate, // produced by a node
  input,        // given by the caller: the stream, token ids, positions, a cotangent
  parameter,    // lies in the weights store
  gradient,     // lies in the main-grad store; every node that outputs one adds to it
  scratch       // lives during its node only
};

/// Which forward input of the model a role::input value is.
enum class feed : std::uint8_t {
  none,
  stream,
  tokens,
  labels,
  positions,
  documents,
  order,     ///< where tokens stand in their sequences: 0 ... S-1, whatever positions a batch gives
  all_order, ///< that of the tokens of all cp ranks
  all_documents,
  token_keys,
  last,
  key_cache,
  value_cache,
  slots, ///< of the new tokens in the caches
  d_output,
  declared_gradient, ///< of the update graph: of a tied parameter, where it is declared
  tied_gradient,     ///< and of its other use
  gradient,          ///< of the update graph, by group
  master,
  first_moment,
  second_moment,
  origin, ///< which elements of which parameters a group has
  weight,
  total, ///< what a step sums, by op/totals.hpp
  seed,  ///< numbers of the step (op/numbers.hpp)
  step,
  learning_rate
};
inline constexpr int feeds = 27;
constexpr const char* name_of(feed f) {
  constexpr const char* names[] = {
      "none",          "stream",     "tokens",       "labels",
      "positions",     "documents",  "order",        "all order",
      "all documents", "token keys", "last",         "key cache",
      "value cache",   "slots",      "d output",     "declared gradient",
      "tied gradient", "gradient",   "master",       "first moment",
      "second moment", "origin",     "weight",       "total",
      "seed",          "step",       "learning rate"};
  static_assert(std::size(names) == feeds);
  return names[static_cast<int>(f)];
}
/// What each rank is fed of the whole sequence, whose other tokens it does not have.
constexpr bool is_of_all(feed f) { return f == feed::all_order || f == feed::all_documents; }
/// True for the feeds that are 0, 1, 2, ... along a sequence, whatever a batch says.
constexpr bool counts_tokens(feed f) { return f == feed::order || f == feed::all_order; }
/// What generation keeps of earlier tokens.
constexpr bool is_cache(feed f) { return f == feed::key_cache || f == feed::value_cache; }
/// Ranges of the flat stores, which the update reads.
constexpr bool is_store(feed f) { return f >= feed::declared_gradient && f <= feed::weight; }
/// What the integers of a value are. An op that finds memory by them takes no others.
enum class integer_kind : std::uint8_t {
  unknown, ///< made by an op that does not say
  documents,
  order,       ///< of tokens in their sequences
  token_keys,  ///< of tokens in the global batch
  slots,       ///< of tokens in the caches of their sequences; -1: padding
  expert_rows, ///< of choices among their rank's rows; -1: dropped
  expert_counts,
  labels,  ///< words; negative: none. All that follow are never negative, and may be labels
  indices, ///< of rows of something. All that follow are indices, too
  tokens,
  positions,
  last, ///< the token of each sequence that is read out
  experts
};
constexpr const char* name_of(integer_kind k) {
  constexpr const char* names[] = {"unknown integers",  "document numbers", "places in sequences",
                                   "keys of dropout",   "slots of caches",  "rows of experts",
                                   "counts of experts", "labels",           "indices",
                                   "token ids",         "positions",        "last tokens",
                                   "numbers of experts"};
  return names[static_cast<int>(k)];
}
/// True if integers of kind `have` can stand where an op reads `need`.
constexpr bool serves(integer_kind have, integer_kind need) {
  using enum integer_kind;
  return have == need || (have > need && (need == labels || need == indices));
}

inline constexpr int max_slots = 8; ///< inputs of one feed

struct value {
  const char* scope = ""; ///< parameters: "scope.name"; else empty
  const char* name = "";
  dtype type = dtype::f32;
  role is = role::intermediate;
  feed from = feed::none;
  std::int8_t slot = 0; ///< which of several inputs of one feed
  std::int8_t rank = 0;
  integer_kind holds = integer_kind::unknown; ///< of i32
  extent dims[max_rank]{};
  std::int64_t below = 0; ///< i32: what the integers are below; 0: that is not known
  bool counts = false;    ///< i32: along dim 1 they are 0, 1, 2, ...
  placement at{};
  node_id producer = -1;
  value_id grad_of = -1; ///< for cotangents and gradients: the forward value

  constexpr const extent& back() const { return dims[rank > 0 ? rank - 1 : 0]; }
  constexpr int find(dim d) const {
    for (int i = 0; i < rank; ++i)
      if (dims[i].d == d) return i;
    return -1;
  }
  constexpr bool same_dims(const value& o) const {
    bool same = rank == o.rank;
    for (unsigned i = 0; same && i < static_cast<unsigned>(rank); ++i) same = dims[i] == o.dims[i];
    return same;
  }
  /// Takes the dims of another value.
  constexpr void take_dims(const value& o) {
    rank = o.rank;
    for (int i = 0; i < max_rank; ++i) dims[i] = o.dims[i];
  }
  constexpr bool differentiable() const { return type <= dtype::bf16; }
};

/// Reads the full name of a parameter, "scope.name", which is what files call it (in a block with
/// its layer's number before it).
class name_reader {
public:
  constexpr explicit name_reader(const value& v) : at_(v.scope), then_(v.name) {}
  /// The next character; 0 at the end.
  constexpr char next() {
    if (*at_ != 0) return *at_++;
    if (then_ == nullptr) return 0;
    at_ = then_, then_ = nullptr;
    return '.';
  }

private:
  const char *at_, *then_;
};
constexpr bool same_name(name_reader a, name_reader b) {
  for (char c = a.next(); c == b.next(); c = a.next())
    if (c == 0) return true;
  return false;
}
constexpr bool same_name(const value& a, const value& b) {
  return same_name(name_reader(a), name_reader(b));
}

/// When a node runs. prologue and epilogue: once a step (values derived from parameters, and the
/// transpose of that); forward and the two halves of the backward pass: once a micro-batch.
enum class phase : std::uint8_t { prologue, forward, input_gradient, weight_gradient, epilogue };

/// Phases that run together, from the first to the last.
struct phases {
  phase first, last;

  constexpr phases(phase one) : first(one), last(one) {}
  constexpr phases(phase from, phase to) : first(from), last(to) {}
  constexpr bool holds(phase p) const { return first <= p && p <= last; }
  constexpr bool operator==(const phases&) const = default;
};
inline constexpr phases backward_pass{phase::input_gradient, phase::weight_gradient};
/// What tasks of a step run of a graph, each as a whole.
inline constexpr phases phases_of_step[] = {phase::prologue, phase::forward, backward_pass,
                                            phase::epilogue};
inline constexpr int step_phases = 4;
/// The place of `when` in phases_of_step.
constexpr int number_of(phases when) {
  if (when.first == phase::epilogue) return 3;
  return when == backward_pass ? 2 : static_cast<int>(when.first);
}

struct op_info;

// Members that passes index by the million are plain arrays: to index a std::array is two calls,
// each of which a compiler counts and makes.

/// Replaces a node's inputs or outputs; those not given are absent.
template <int N> constexpr void set(value_id (&list)[N], std::initializer_list<value_id> ids) {
  int k = 0;
  for (value_id v : ids) list[k++] = v;
  for (; k < N; ++k) list[k] = -1;
}
template <int N> constexpr void set(value_id (&list)[N], const value_id (&ids)[N]) {
  for (int k = 0; k < N; ++k) list[k] = ids[k];
}

struct node {
  const op_info* op = nullptr;
  value_id in[max_inputs]{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  value_id out[max_outputs]{-1, -1, -1, -1, -1};
  attributes attr{};
  phase when = phase::forward;
  bool derived = false;  ///< written by a pass, not by the model
  region_id region = -1; ///< with whose nodes it runs in trips, or -1: once
  source_line line{};
};

/// A loop: the nodes that name it run together, one after another, as often as `trips` says, and in
/// the backward pass what was derived of them as often again (pass/regions.hpp).
struct region {
  value_id trips = -1; ///< i32, one number, made before the first trip
};

enum class init : std::uint8_t { zeros, ones, normal };

/// How a step changes a parameter: AdamW by its gradient, or by a fixed step against the sign of
/// what was collected (the bias that balances experts, op/router.hpp).
enum class update_rule : std::uint8_t { adamw, balance };

inline constexpr int max_arrays = 3;               ///< of a stored parameter
inline constexpr std::int64_t most_in_block = 512; ///< elements that are encoded together

/// One array of a parameter that is stored in several.
struct stored_array {
  const char* name = "";
  dtype type = dtype::u8;
  /// Changes the dims of a box of the parameter into those of this array's part of it.
  void (*shape)(value& box) = nullptr;
};
/// How a parameter is stored in several arrays: codes, and the numbers that its op needs to decode
/// them. Only what is frozen is stored so.
struct stored_form {
  const char* name = "";
  std::int64_t block = 1; ///< elements along the last dim that no shard may cut: at most 512
  int count = 0;
  stored_array arrays[max_arrays]{};
  /// Encodes `block` elements x, and writes each array's bytes to to[k].
  void (*encode)(const double* x, std::byte* const* to) = nullptr;
};

/// What the registry knows of a parameter beside its value.
struct parameter_info {
  value_id v = -1;
  init how = init::zeros;
  double std = 0;         ///< of a normal initialisation
  bool decay = false;     ///< weight decay applies
  bool frozen = false;    ///< no gradient is derived
  value_id gradient = -1; ///< set by differentiate: the finished gradient
  axis_set pending{}; ///< over which that is a sum that the step's end reduces (pass/pending.hpp)
  bool tied = false;  ///< the parameter of this name in the stem or the head is meant
  /// Of a padded first dim, the rows that exist; 0: all. The others are counted nowhere and in no
  /// file: for a table that is read by rows (inference::table_rows), as vocabulary_table pads it.
  std::int64_t valid_rows = 0;
  source_line line{}; ///< of its declaration
  update_rule update = update_rule::adamw;
  double rate = 0;                   ///< of update_rule::balance: the step
  const stored_form* form = nullptr; ///< null: one array of the value's type, which is the value
  value_id arrays[max_arrays]{-1, -1, -1}; ///< of a form: what ops read in place of the value

  /// True if a tied use says the same of its parameter as the declaration does.
  constexpr bool declares_alike(const parameter_info& o) const {
    return how == o.how && std == o.std && decay == o.decay && frozen == o.frozen &&
           valid_rows == o.valid_rows && update == o.update && rate == o.rate && form == o.form;
  }
};

struct graph {
  node nodes[max_nodes]{};
  value values[max_values]{};
  parameter_info parameters[max_parameters]{};
  region regions[max_regions]{};
  int node_count = 0, value_count = 0, parameter_count = 0, region_count = 0;
  std::array<value_id, 2> outputs{-1, -1}; ///< the stream, or loss and token count, or logits
  value_id d_stream = -1;                  ///< cotangent of the stream that comes in
  value_id side_loss = -1;                 ///< a summed loss that joins the head's
  mesh ranks{};
  numerics sums = numerics::fast; ///< how its nodes sum over tokens
  fault_record wrong{};

  constexpr const value& at(value_id v) const { return values[v]; }
  constexpr value& at(value_id v) { return values[v]; }
  constexpr const node& at_node(int i) const { return nodes[i]; }
  constexpr node& at_node(int i) { return nodes[i]; }
  constexpr const parameter_info* parameter_of(value_id v) const {
    for (int i = 0; i < parameter_count; ++i)
      if (parameters[i].v == v) return &parameters[i];
    return nullptr;
  }
};

/// Number of elements that one rank holds, or of one among them. Types of their own that convert to
/// nothing: numbers of one rank and of the whole tensor do not mix (plan/boxes.hpp translates).
struct local_count {
  std::int64_t n = 0;
  constexpr bool operator==(const local_count&) const = default;
};
/// Number of elements of the whole tensor, or of one among them.
struct global_count {
  std::int64_t n = 0;
  constexpr bool operator==(const global_count&) const = default;
};

/// Elements that a value may have: sums of the sizes of a program's values stay within int64.
inline constexpr std::int64_t max_elements = std::int64_t{1} << 48;
/// Whether a value has at most max_elements; its extents are not negative.
constexpr bool countable(const value& v) {
  std::int64_t room = max_elements;
  for (int i = 0; i < v.rank; ++i) {
    const std::int64_t n = v.dims[i].n;
    if (n > 0) room /= n;
  }
  return room > 0;
}

constexpr global_count global_size(const value& v) {
  std::int64_t n = 1;
  for (int i = 0; i < v.rank; ++i) n *= v.dims[i].n;
  return {n};
}

/// Elements of a parameter without the rows that pad it, which come last.
constexpr global_count unpadded_size(const value& v, const parameter_info& p) {
  const std::int64_t n = global_size(v).n;
  return {p.valid_rows > 0 ? n / v.dims[0].n * p.valid_rows : n};
}

/// Whether a value is a range of the stores: (elements), or (layers, elements).
constexpr bool is_range(const value& v) {
  return v.rank > 0 && v.dims[v.rank - 1].d == dim::elements &&
         (v.rank == 1 || (v.rank == 2 && v.dims[0].d == dim::layers));
}
/// Only a range of the stores may be cut over an axis whose size is known only at start. Gives that
/// axis; -1: there is none, or v is no range. Of a range, the mesh of the graph gives the most that
/// a rank may hold, and one with all sizes what each does: every rank as many, of which those
/// behind the last element are padding.
constexpr int range_axis(const mesh& m, const value& v) {
  if (!is_range(v)) return -1;
  for (int a = 0; a < axes; ++a)
    if (v.at.at[a].s == state::shard && !m.sized(static_cast<axis>(a))) return a;
  return -1;
}

/// One of n parts of an extent: elements of a range are padded, all else divides.
constexpr std::int64_t share_of(const extent& e, std::int64_t whole, std::int64_t n) {
  return e.d == dim::elements ? (whole + n - 1) / n : whole / n;
}

/// Extent of dim i of a value on one rank.
constexpr std::int64_t local_extent(const mesh& m, const value& v, int i) {
  const extent& e = v.dims[i];
  std::int64_t n = e.n;
  for (int a = 0; a < axes; ++a)
    if (v.at.at[a].is_shard(e.d) && m.sized(static_cast<axis>(a)))
      n = share_of(e, n, m.of(static_cast<axis>(a)));
  return n;
}

constexpr local_count local_size(const mesh& m, const value& v) {
  std::int64_t n = 1;
  for (int i = 0; i < v.rank; ++i) n *= local_extent(m, v, i);
  return {n};
}

/// Sequences of a value on one rank, each of which a sum over its tokens takes apart; 1: it takes
/// all tokens at once, as it does wherever the first dim is not the batch.
constexpr std::int64_t sequences_apart(numerics sums, const mesh& m, const value& v) {
  const bool apart = sums == numerics::batch_invariant && v.rank > 0 && v.dims[0].d == dim::batch;
  return apart ? local_extent(m, v, 0) : 1;
}
/// Of `rows` local rows of a value, those that a sum over rows takes at once.
constexpr std::int64_t rows_at_once(numerics sums, const mesh& m, const value& v,
                                    std::int64_t rows) {
  const std::int64_t n = sequences_apart(sums, m, v);
  return n > 0 && rows % n == 0 ? rows / n : rows;
}

constexpr std::int64_t local_bytes(const mesh& m, const value& v) {
  return local_size(m, v).n * size_of(v.type);
}

/// The cotangent of a value `of`: same dims and type, dual placement, no name and no producer yet.
constexpr value cotangent(const value& v, value_id of) {
  value c = v;
  c.at = cotangent(v.at);
  c.scope = "";
  c.name = "";
  c.is = role::intermediate;
  c.from = feed::none;
  c.producer = -1;
  c.grad_of = of;
  return c;
}

} // namespace mc
