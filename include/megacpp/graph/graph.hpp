// Values, nodes and the graph, as plain constexpr data. A value has a dtype, named dims, extents
// and a placement; a node has an op, inputs, outputs, attributes and a source line.
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
#include <span>

namespace mc {

inline constexpr int max_rank = 4, max_inputs = 10, max_outputs = 5;
inline constexpr int max_nodes = 512, max_values = 896, max_parameters = 64, max_regions = 4;

using value_id = std::int16_t;
using node_id = std::int16_t;
using region_id = std::int8_t;

/// The order in which ranks share the elements of a dim: contiguous, or balanced. In balanced order
/// the dim has 2n slices for n ranks, and rank i holds the slices i and 2n-1-i, so that causal
/// attention costs every rank the same.
enum class order : std::uint8_t { contiguous, balanced };

/// A named extent of a whole tensor. Over an axis whose size is known only at start, the extent is
/// that of one rank; only the elements of a range of the stores have their whole extent there
/// (range_axis).
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
  intermediate, // value that a node produces
  input,        // value that the caller gives: the stream, token ids, positions, a cotangent
  parameter,    // value in the store of weights
  gradient,     // value in the store of main gradients; every node that outputs one adds to it
  scratch       // memory that lives during one node only
};

/// The source of an input: a value of role::input is fed from here.
enum class feed : std::uint8_t {
  none,
  stream,
  tokens,
  labels,
  positions,
  documents,
  order,     ///< places of tokens in their sequences: 0 ... S-1, whatever the positions are
  all_order, ///< places of the tokens of all cp ranks
  all_documents,
  token_keys,
  last,
  key_cache,
  value_cache,
  slots, ///< slots of the new tokens in the caches
  d_output,
  declared_gradient, ///< update graph: gradient of a tied parameter from the part that declares it
  tied_gradient,     ///< update graph: gradient of a tied parameter from its other use
  gradient,          ///< update graph: gradients of a bucket of parameters
  master,
  first_moment,
  second_moment,
  origin, ///< table that says which elements of which parameters a bucket has
  weight,
  total, ///< sums of a step (op/totals.hpp)
  seed,  ///< numbers of a step (op/numbers.hpp)
  step,
  learning_rate,
  adapters ///< 1 at the adapter that a token has, of those that generation holds, and 0 elsewhere
};
inline constexpr int feeds = 28;
constexpr const char* name_of(feed f) {
  constexpr const char* names[] = {
      "none",          "stream",     "tokens",        "labels",
      "positions",     "documents",  "order",         "all order",
      "all documents", "token keys", "last",          "key cache",
      "value cache",   "slots",      "d output",      "declared gradient",
      "tied gradient", "gradient",   "master",        "first moment",
      "second moment", "origin",     "weight",        "total",
      "seed",          "step",       "learning rate", "adapters"};
  static_assert(std::size(names) == feeds);
  return names[static_cast<int>(f)];
}
/// Returns whether a feed describes the whole sequence; every cp rank is fed it, beside the feeds
/// of its own tokens.
constexpr bool is_of_all(feed f) { return f == feed::all_order || f == feed::all_documents; }
/// Returns whether a feed is 0, 1, 2, ... along a sequence, whatever a batch says.
constexpr bool counts_tokens(feed f) { return f == feed::order || f == feed::all_order; }
/// Returns whether a feed is a cache of keys or values, in which generation keeps earlier tokens.
constexpr bool is_cache(feed f) { return f == feed::key_cache || f == feed::value_cache; }
/// Returns whether a feed is a range of the flat stores, which the update graph reads.
constexpr bool is_store(feed f) { return f >= feed::declared_gradient && f <= feed::weight; }
/// The meaning of the integers of a value. An op that finds memory by integers takes only one kind.
enum class integer_kind : std::uint8_t {
  unknown, ///< integers of an op that does not say
  documents,
  order,       ///< places of tokens in their sequences
  token_keys,  ///< numbers of tokens in the global batch, by which dropout draws
  slots,       ///< slots of tokens in the caches of their sequences; -1: padding
  expert_rows, ///< rows that the choices of tokens have among the rows of their rank; -1: dropped
  expert_counts,
  /// Token ids to predict; negative: none. All kinds after this one are never negative, and may
  /// stand for labels.
  labels,
  indices, ///< numbers of rows of a table. All kinds after this one are indices, too
  tokens,
  positions,
  last, ///< the token of each sequence whose logits are read
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
/// Returns whether integers of kind `have` may stand where an op reads `need`.
constexpr bool serves(integer_kind have, integer_kind need) {
  using enum integer_kind;
  return have == need || (have > need && (need == labels || need == indices));
}

inline constexpr int max_feed_inputs = 8; ///< most inputs of one feed

struct value {
  const char* scope = ""; ///< scope of a parameter, whose full name is "scope.name"; else empty
  const char* name = "";
  dtype type = dtype::f32;
  role is = role::intermediate;
  feed from = feed::none;
  std::int8_t feed_index = 0; ///< number among the inputs of one feed
  std::int8_t rank = 0;
  integer_kind holds = integer_kind::unknown; ///< meaning of i32 integers
  extent dims[max_rank]{};
  std::int64_t below = 0; ///< i32: every integer is less than this; 0: no bound is known
  bool counts = false;    ///< i32: along dim 1 the integers are 0, 1, 2, ...
  placement at{};
  node_id producer = -1;
  value_id grad_of = -1; ///< forward value of which this is the cotangent or gradient; -1: none

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

/// Reads the full name of a parameter, "scope.name", one character at a time. Files have the
/// parameter under this name, behind the number of the layer if it is one of a block.
class name_reader {
public:
  constexpr explicit name_reader(const value& v) : at_(v.scope), then_(v.name) {}
  /// Returns the next character; 0 at the end.
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

/// The time when a node runs. The prologue (values derived from parameters) and the epilogue (its
/// transpose) run once a step; the forward pass and the three parts of the backward pass
/// (pass/split.hpp) run once for each micro-batch.
enum class phase : std::uint8_t {
  prologue,
  forward,
  input_gradient,
  weight_gradient,
  stream_gradient,
  epilogue
};

/// Phases that run together, from the first to the last.
struct phases {
  phase first, last;

  constexpr phases(phase one) : first(one), last(one) {}
  constexpr phases(phase from, phase to) : first(from), last(to) {}
  constexpr bool holds(phase p) const { return first <= p && p <= last; }
  constexpr bool operator==(const phases&) const = default;
};
inline constexpr phases backward_pass{phase::input_gradient, phase::stream_gradient};
/// The backward pass of a graph below which nothing is trained: it leaves out the nodes that only
/// the cotangent of the incoming stream needs.
inline constexpr phases lowest_backward_pass{phase::input_gradient, phase::weight_gradient};
constexpr bool is_backward(phases when) {
  return when == backward_pass || when == lowest_backward_pass;
}
/// The phases of a graph that a step runs as tasks, each as a whole.
inline constexpr phases phases_of_step[] = {phase::prologue, phase::forward, backward_pass,
                                            phase::epilogue, lowest_backward_pass};
inline constexpr int step_phases = 5;
/// Returns the index of `when` in phases_of_step.
constexpr int number_of(phases when) {
  if (when.first == phase::epilogue) return 3;
  if (is_backward(when)) return when == backward_pass ? 2 : 4;
  return static_cast<int>(when.first);
}

struct op_info;

// Members that passes index by the million are plain arrays: indexing a std::array is two calls,
// which a constant evaluation executes and counts.

/// Replaces a node's inputs or outputs. Those that `ids` does not give become absent.
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
  region_id region = -1; ///< region in whose trips the node runs; -1: it runs once
  source_line line{};
};

/// A loop: the nodes that name the region run together, in order, `trips` times. The nodes that the
/// backward pass derives from them run as often (pass/regions.hpp).
struct region {
  value_id trips = -1; ///< number of trips: one i32, made before the first trip
};

enum class init : std::uint8_t { zeros, ones, normal, uniform };

/// The way in which a step changes a parameter: AdamW with its gradient, or a step of fixed size
/// against the sign of the collected sum (the bias that balances experts, op/router.hpp).
enum class update_rule : std::uint8_t { adamw, balance };

inline constexpr int max_arrays = 3;               ///< arrays in which one parameter may be stored
inline constexpr std::int64_t most_in_block = 512; ///< elements that may be encoded together

/// One array of a parameter that is stored in several arrays.
struct stored_array {
  const char* name = "";
  dtype type = dtype::u8;
  /// Changes the dims of a box of the parameter into the dims of this array for that box.
  void (*shape)(value& box) = nullptr;
  /// The array is of a whole matrix, and all ranks that hold a shard of the matrix have all of it.
  bool of_matrix = false;
};
/// The way in which a frozen parameter is stored in several arrays: codes, and the numbers by which
/// its op decodes them.
struct parameter_encoding {
  const char* name = "";
  /// Elements that are encoded together, at most 512, which follow each other in a flat matrix. No
  /// shard cuts them.
  std::int64_t block = 1;
  int count = 0;
  stored_array arrays[max_arrays]{};
  /// Encodes `block` elements x, and writes the bytes of array k to to[k].
  void (*encode)(const double* x, std::byte* const* to) = nullptr;
  /// Encodes a whole matrix x in place of `encode`, where codes depend on more than their block.
  /// `scratch` has a number for each block.
  void (*encode_matrix)(std::span<const float> x, std::span<float> scratch,
                        std::byte* const* to) = nullptr;
};

/// Divides the dims of a box into blocks that follow each other in its flat order: the last dim
/// first, and where blocks are longer than that, the dims before. Returns the number of the first
/// dim that was divided; -1 if the box is not made of whole blocks.
constexpr int divide_into_blocks(value& box, std::int64_t block) {
  int i = box.rank;
  while (i > 0 && (block > 1 || i == box.rank)) {
    const std::int64_t n = box.dims[--i].n;
    std::int64_t common = block, rest = n;
    while (rest != 0) {
      const std::int64_t next = common % rest;
      common = rest, rest = next;
    }
    box.dims[i].n = n / common, block /= common;
  }
  return block == 1 ? i : -1;
}

/// The properties of a parameter beside those of its value; the registry reads them.
struct parameter_info {
  value_id v = -1;
  init how = init::zeros;
  double std = 0;         ///< standard deviation of a normal or uniform initialisation
  bool decay = false;     ///< weight decay applies to the parameter
  bool frozen = false;    ///< no gradient is derived for the parameter
  bool added = false;     ///< a factor of an adapter, which the model does not declare
  value_id gradient = -1; ///< finished gradient, which the pass `differentiate` sets
  /// Axes over which `gradient` is a pending sum that the end of the step reduces
  /// (pass/pending.hpp).
  axis_set pending{};
  bool tied = false; ///< a second use of the parameter of this name in the stem or the head
  /// The number of rows that exist, where the first dim is padded; 0: all rows. The other rows are
  /// counted nowhere and are in no file. It is for a table that is read by rows
  /// (inference::table_rows), such as that of vocabulary_table.
  std::int64_t valid_rows = 0;
  source_line line{}; ///< line of the parameter's declaration
  update_rule update = update_rule::adamw;
  double rate = 0;                              ///< size of a step of update_rule::balance
  const parameter_encoding* encoding = nullptr; ///< how it is stored; null: as one array
  value_id arrays[max_arrays]{-1, -1, -1}; ///< arrays of `encoding`, which ops read instead of `v`

  /// Returns whether a tied use describes its parameter as the declaration does.
  constexpr bool declares_alike(const parameter_info& o) const {
    return how == o.how && std == o.std && decay == o.decay && frozen == o.frozen &&
           valid_rows == o.valid_rows && update == o.update && rate == o.rate &&
           encoding == o.encoding;
  }
};

struct graph {
  node nodes[max_nodes]{};
  value values[max_values]{};
  parameter_info parameters[max_parameters]{};
  region regions[max_regions]{};
  int node_count = 0, value_count = 0, parameter_count = 0, region_count = 0;
  std::array<value_id, 2> outputs{-1, -1}; ///< the stream; or loss and token count; or logits
  value_id d_stream = -1;                  ///< cotangent of the stream that comes in
  value_id side_loss = -1;                 ///< summed loss that is added to the head's loss
  mesh ranks{};
  numerics sums = numerics::fast; ///< order in which its nodes sum over tokens
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

/// A number of elements on one rank, or the index of one of them. local_count and global_count
/// convert to nothing, so that they cannot be mixed up (plan/boxes.hpp translates between them).
struct local_count {
  std::int64_t n = 0;
  constexpr bool operator==(const local_count&) const = default;
};
/// A number of elements of the whole tensor, or the index of one of them.
struct global_count {
  std::int64_t n = 0;
  constexpr bool operator==(const global_count&) const = default;
};

/// The most elements that a value may have. With it, sums of the sizes of all values fit into
/// int64.
inline constexpr std::int64_t max_elements = std::int64_t{1} << 48;
/// Returns whether a value, whose extents are not negative, has at most max_elements.
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

/// Returns the number of elements of a parameter without the rows that pad it, which are the last
/// ones.
constexpr global_count unpadded_size(const value& v, const parameter_info& p) {
  const std::int64_t n = global_size(v).n;
  return {p.valid_rows > 0 ? n / v.dims[0].n * p.valid_rows : n};
}

/// Returns whether a value is a range of the stores: (elements), or (layers, elements).
constexpr bool is_range(const value& v) {
  return v.rank > 0 && v.dims[v.rank - 1].d == dim::elements &&
         (v.rank == 1 || (v.rank == 2 && v.dims[0].d == dim::layers));
}
/// Returns the axis of unknown size over which a range of the stores is sharded; -1: there is none,
/// or v is no range. No other value may be sharded over an axis whose size is known only at start.
/// Where the size is unknown, the extent on a rank is the most that it may hold. Where it is known,
/// every rank has an equal extent, and the elements behind the last one are padding.
constexpr int range_axis(const mesh& m, const value& v) {
  if (!is_range(v)) return -1;
  for (int a = 0; a < axes; ++a)
    if (v.at.at[a].s == state::shard && !m.sized(static_cast<axis>(a))) return a;
  return -1;
}

/// Returns the extent on one of n ranks: that of a range is rounded up, any other extent divides.
constexpr std::int64_t sharded_extent(const extent& e, std::int64_t whole, std::int64_t n) {
  return e.d == dim::elements ? (whole + n - 1) / n : whole / n;
}

/// Returns the extent of dim i of a value on one rank.
constexpr std::int64_t local_extent(const mesh& m, const value& v, int i) {
  const extent& e = v.dims[i];
  std::int64_t n = e.n;
  for (int a = 0; a < axes; ++a)
    if (v.at.at[a].is_shard(e.d) && m.sized(static_cast<axis>(a)))
      n = sharded_extent(e, n, m.of(static_cast<axis>(a)));
  return n;
}

constexpr local_count local_size(const mesh& m, const value& v) {
  std::int64_t n = 1;
  for (int i = 0; i < v.rank; ++i) n *= local_extent(m, v, i);
  return {n};
}

/// Returns how many sequences of a value a rank holds that a sum over tokens adds up one by one. 1:
/// the sum takes all tokens at once, as it does wherever the first dim is not the batch.
constexpr std::int64_t sequences_apart(numerics sums, const mesh& m, const value& v) {
  const bool apart = sums == numerics::batch_invariant && v.rank > 0 && v.dims[0].d == dim::batch;
  return apart ? local_extent(m, v, 0) : 1;
}
/// Returns how many of `rows` local rows of a value a sum over rows takes at once.
constexpr std::int64_t rows_at_once(numerics sums, const mesh& m, const value& v,
                                    std::int64_t rows) {
  const std::int64_t n = sequences_apart(sums, m, v);
  return n > 0 && rows % n == 0 ? rows / n : rows;
}

constexpr std::int64_t local_bytes(const mesh& m, const value& v) {
  return local_size(m, v).n * size_of(v.type);
}

/// Returns a value that is the cotangent of v: with its dims and type, the dual placement, no name
/// and no producer yet. `of` is the id of v.
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
