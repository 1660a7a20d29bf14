// A device: memory, and lanes that compute on it. run/ and train/ know a device by this class, a
// task at a time. The code that runs the nodes of a part knows the device's own type D, which also
// has
//
//   D::lane_type            the type of its lanes, each of which has
//     l.launch(n, f)          calls f(), the kernel of node n, which starts its work on l
//     l.for_rows(rows, body)  starts body(team, row) for every row (exec/launch.hpp)
//     l.sort(x, n, first, bits, room)  sorts n different numbers (std::uint64_t). Numbers that
//                             agree in the `bits` bits from bit `first` on are sorted among
//                             themselves before. `room` has D::sort_bytes(n) bytes
//     l.slabs()               the best number of slabs of columns into which to cut a sum over
//                             rows
//     l.sums_by_partials      true where partial sums over rows are best made by bodies of their
//                             own; left out, one body sums a slab (kernel/rows/columns.hpp)
//     l.threads()             the number of threads of the host that work for the lane
//   D::sort_bytes(n)        bytes of room that a lane needs to sort n numbers
//   D::takes_constants      false where bodies take extents only as run-time numbers, so that the
//                           bodies are the same for every run; left out, extents may be constants
//   d.table()               returns numbers that kernels share
//   D::most_workspace(s, threads)  the most bytes that a lane needs for a product of shape s
//   D::most_attention_scratch(s)   the most bytes of scratch of a fused attention of shape s; left
//                           out, no library of the device computes attention
#pragma once

#include <megacpp/exec/attention_source.hpp>
#include <megacpp/exec/ending.hpp>
#include <megacpp/exec/product_source.hpp>
#include <megacpp/num/dtype.hpp>
#include <megacpp/num/reduction.hpp>
#include <megacpp/threads/function_ref.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace mc {

/// The memory that kernels see. Bodies, products, exchanges and the functions here read and write
/// the memory that a space reserves. Other code must not look at it, as it could not on a GPU.
/// Several threads may call fill, write, read, open and close at once, each for other bytes; one
/// thread at a time may call reserve and release. In the memory of a device these calls are ordered
/// behind the work that was started on its main lane: read and open wait for that work; fill and
/// write do not, and write has copied its bytes when it returns.
class memory_space {
public:
  memory_space() = default;
  memory_space(const memory_space&) = delete;
  memory_space& operator=(const memory_space&) = delete;
  virtual ~memory_space() = default;

  /// Reserves zeroed memory, aligned for any kernel. Throws mc::error(exit_code::memory), with
  /// `what` the memory is for and a `remedy`.
  virtual std::byte* reserve(std::int64_t bytes, const char* what, const char* remedy) = 0;
  /// Releases memory, after the work that was started before on any lane of the device.
  virtual void release(std::byte* p, std::int64_t bytes) = 0;
  virtual void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) = 0;
  virtual void write(std::byte* to, const void* from_host, std::int64_t bytes) = 0;
  virtual void read(void* to_host, const std::byte* from, std::int64_t bytes) const = 0;
  /// Returns where the host sees the bytes from p on until they are closed: in their place, or as a
  /// copy, which close() writes back if it was `changed`. Several ranges may be open, of any
  /// threads.
  virtual std::byte* open(std::byte* p, std::int64_t bytes) = 0;
  virtual void close(std::byte* p, std::int64_t bytes, std::byte* seen, bool changed) = 0;
  /// Returns true if the host may read at an address of this space, once the work that was started
  /// before is done.
  virtual bool host_sees() const { return false; }
};

/// The access of the host to bytes of a memory space, while this object lives.
class host_accessor {
public:
  host_accessor(memory_space& in, std::byte* p, std::int64_t bytes, bool changing = false)
      : in_(in),
        p_(p),
        bytes_(bytes),
        seen_(p != nullptr ? in.open(p, bytes) : nullptr),
        changing_(changing) {}
  host_accessor(const host_accessor&) = delete;
  host_accessor& operator=(const host_accessor&) = delete;
  /// Throws what writing the bytes back throws, unless another exception is on its way.
  ~host_accessor() noexcept(false) {
    if (p_ != nullptr) ending_.call([this] { in_.close(p_, bytes_, seen_, changing_); });
  }
  std::byte* data() const { return seen_; }

private:
  memory_space& in_;
  std::byte* p_;
  std::int64_t bytes_;
  std::byte* seen_;
  bool changing_;
  ending ending_;
};

/// A range of memory of a fixed size in a memory space, which must outlive it.
class arena {
public:
  arena() = default;
  arena(memory_space& of, std::int64_t bytes, const char* what, const char* remedy)
      : of_(&of), data_(bytes > 0 ? of.reserve(bytes, what, remedy) : nullptr), size_(bytes) {}
  arena(arena&& o) noexcept
      : of_(o.of_), data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  arena& operator=(arena&& o) noexcept {
    std::swap(of_, o.of_), std::swap(data_, o.data_), std::swap(size_, o.size_);
    return *this;
  }
  ~arena() {
    if (data_ != nullptr) of_->release(data_, size_);
  }

  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  /// Fills the arena with a pattern that is a NaN in every floating-point type, so that reads of
  /// values that were never written are noticed.
  void poison() {
    if (data_ != nullptr) of_->fill(data_, 0xff, size_);
  }

private:
  memory_space* of_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

/// A moment in the work of a lane: all work that was started before it is done.
class event {
public:
  event() = default;
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  virtual ~event() = default;
  /// Waits until the moment has come. An event that was never recorded has come.
  virtual void wait() = 0;
  /// Waits until the moment has come and returns its time by the device's clock, in
  /// monotonic_nanoseconds (io/clock.hpp); 0 for an event that was never recorded.
  virtual std::int64_t reached() = 0;
};

/// Bytes of memory that the work of a lane uses in turn.
struct lane_room {
  std::int64_t scratch = 0;   ///< bytes for kernels
  std::int64_t workspace = 0; ///< bytes for products
};

/// A queue of a device. Its work is done in the order in which it was started: bodies, products,
/// and the functions here, which throw mc::error while the lane has branches. Only events order the
/// work of several lanes.
class lane {
public:
  explicit lane(memory_space& of) : of_(of) {}
  lane(const lane&) = delete;
  lane& operator=(const lane&) = delete;
  virtual ~lane() = default;

  virtual void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) = 0;
  /// Copies bytes of the host to the device. The caller may change the bytes when the call returns.
  virtual void write(std::byte* to, const void* from_host, std::int64_t bytes) = 0;
  /// Copies memory of the device to memory of device::mirrored(). The copy is there when an event
  /// has come that is recorded after it.
  virtual void mirror(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  /// Copies memory of the device to other memory of the device.
  virtual void copy(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  /// Adds up arrays of n elements of the device, or takes their maximum. `out` gets the bits of
  /// reduce_in_rank_order (exec/rank_order.hpp).
  virtual void reduce(reduction by, dtype t, std::span<const void* const> arrays, void* out,
                      std::int64_t n) = 0;
  virtual void record(event& e) = 0;
  /// Orders the work that is started from here on behind the event, which may be another lane's.
  virtual void wait(event& e) = 0;
  /// Waits until all work that was started on the lane is done.
  virtual void finish() = 0;

  /// Returns true if a tool, such as a profiler of GPUs, shows people what is started on the lane.
  virtual bool is_shown() const { return false; }
  /// Tells the tool that the work started until end_range() has this name, and a number unless that
  /// is negative. Ranges of a thread nest. shown_range calls both functions.
  virtual void begin_range(const std::string& name, std::int64_t number) {
    static_cast<void>(name), static_cast<void>(number);
  }
  virtual void end_range() {}

  /// The work that a lane keeps, to start it again by one call.
  class kept_work {
  public:
    virtual ~kept_work() = default;
  };
  /// Returns true if the lane keeps work, to start it again by one call.
  virtual bool keeps_work() const { return false; }
  /// Starts the work of f(). For the same `work`, which begins as nullptr, f starts the same work
  /// on this lane each time, with the same addresses and numbers, and neither writes from the host
  /// nor waits: so a lane that keeps work calls f only the first times. No other thread may use the
  /// lane meanwhile.
  virtual void start_kept(std::unique_ptr<kept_work>& work, function_ref<> f) {
    static_cast<void>(work);
    f();
  }

  /// Grows the lane's memory to so much room. It waits for work in smaller memory before it
  /// releases that. Throws mc::error(exit_code::memory), with a `remedy`; the room is as before
  /// then.
  void reserve(const lane_room& need, const char* remedy = "a smaller micro-batch or sequence") {
    require_order();
    grow(scratch_, need.scratch, "the scratch of kernels", remedy);
    grow(workspace_, need.workspace, "the workspace of matrix products", remedy);
  }
  lane_room room() const { return {scratch_.size(), workspace_.size()}; }
  std::byte* scratch() const { return scratch_.data(); }
  std::byte* workspace() const { return workspace_.data(); }

protected:
  /// Throws mc::error while the lane has branches, since no branch would wait for the work.
  virtual void require_order() const {}

private:
  void grow(arena& a, std::int64_t bytes, const char* what, const char* remedy) {
    if (bytes > a.size()) a = arena(of_, bytes, what, remedy);
  }
  memory_space& of_;
  arena scratch_, workspace_;
};

/// An object that names the work on a lane, where a tool shows it, while the object lives. name()
/// returns a std::string and is called only there.
class shown_range {
public:
  template <class Name> shown_range(lane& on, Name name, std::int64_t number = -1)
      : on_(on.is_shown() ? &on : nullptr) {
    if (on_ != nullptr) on_->begin_range(name(), number);
  }
  shown_range(const shown_range&) = delete;
  shown_range& operator=(const shown_range&) = delete;
  ~shown_range() {
    if (on_ != nullptr) on_->end_range();
  }

private:
  lane* on_;
};

/// Bytes of memory that are left, and the name of the limit.
struct memory_room {
  std::int64_t bytes = 0;
  std::string of;
  /// The number of such memories over which the processes of a machine are spread.
  int spread_over = 1;
};

/// Bytes of a memory that all processes have taken.
struct memory_taken {
  std::int64_t before = 0; ///< bytes taken before the device opened its libraries
  std::int64_t now = 0;
};

class device : public memory_space {
public:
  /// Returns the number of threads of the host that work for the device.
  virtual int threads() const = 0;
  /// Returns a name that tells several devices apart, for people; "" where there is only one.
  virtual std::string name() const { return {}; }
  /// Returns memory of the host to which lanes copy numbers that the host has to know
  /// (lane::mirror).
  virtual memory_space& mirrored() = 0;
  /// Returns the lane that steps run on. It lives as long as the device.
  virtual lane& main_lane() = 0;
  /// Makes another lane, and an event for any lane. The device must outlive both. An event may
  /// outlive its device while lanes of another object for the same device wait for it.
  virtual std::unique_ptr<lane> make_lane() = 0;
  virtual std::unique_ptr<event> make_event() = 0;
  virtual product_source& products() = 0;
  /// Returns the source of fused attention; nullptr: kernels compute all attention.
  virtual attention_source* attention() { return nullptr; }
  /// Lends memory to the checks of the device's libraries (product_source::lend,
  /// attention_source::lend), and takes it back.
  void lend(std::byte* memory, std::int64_t bytes) {
    products().lend(memory, bytes);
    if (attention_source* const of = attention()) of->lend(memory, bytes);
  }
  std::int64_t take_back() {
    const std::int64_t used = products().take_back();
    attention_source* const of = attention();
    return of == nullptr ? used : std::max(used, of->take_back());
  }
  /// Returns the bytes of all tables that kernels have prepared.
  virtual std::int64_t table_bytes() const = 0;
  /// Returns the room that is left in the device's memory; nothing where the host sees that memory.
  virtual std::optional<memory_room> room() const { return std::nullopt; }
  /// Returns the bytes of the device's memory that are taken; nothing where the host sees that
  /// memory.
  virtual std::optional<memory_taken> taken() const { return std::nullopt; }
};

} // namespace mc
