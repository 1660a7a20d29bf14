// A device: memory, and lanes that compute on it. run/ and train/ know it by this class, a task at
// a time. What runs the nodes of a part knows the device's own type, and asks it beside this for
//
//   D::lane_type            its lanes, of which each has
//     l.launch(n, f)          f() calls the kernel of node n, which starts what it does on l
//     l.for_rows(rows, body)  starts body(team, row) for every row (exec/launch.hpp)
//     l.sort(x, n, first, bits, room)  puts n different numbers (std::uint64_t) in order. Numbers
//                             that agree in the `bits` bits from bit `first` on are in order among
//                             themselves before. `room` has D::sort_bytes(n) bytes
//     l.slabs()               the number of pieces, by columns, into which a sum over rows is best
//                             cut
//     l.sums_by_parts         true where parts of a sum over rows are best summed by bodies of
//                             their own; left out, one body sums a slab (kernel/rows/columns.hpp)
//     l.threads()             of the host, that work for it
//   D::sort_bytes(n)        bytes of room that a lane needs to sort n numbers
//   D::takes_constants      false where bodies get extents as run-time numbers alone, so that the
//                           bodies are the same for every run; left out, extents may be constants
//   d.table()               numbers that kernels share
//   D::most_workspace(s, threads)  bytes that a lane needs at most for a product of shape s
//   D::most_attention_scratch(s)   bytes of scratch for a fused attention of shape s at most; left
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

/// Memory that kernels see. What it reserves is read and written by the bodies that kernels start,
/// by products, by exchanges, and by the functions here; nobody else may look at it, as nobody
/// could on a GPU. Several threads may call fill, write, read, open and close at once, of other
/// bytes each; reserve and release are for one. Those of a device are done behind what was started
/// on its main lane: read and open wait for that; fill and write do not, and write has copied what
/// it was given when it returns.
class memory_space {
public:
  memory_space() = default;
  memory_space(const memory_space&) = delete;
  memory_space& operator=(const memory_space&) = delete;
  virtual ~memory_space() = default;

  /// Zeroed memory, aligned for any kernel. Throws mc::error(exit_code::memory), which names `what`
  /// it is for and a `remedy`.
  virtual std::byte* reserve(std::int64_t bytes, const char* what, const char* remedy) = 0;
  /// Waits for what has been started before, on any lane of the device.
  virtual void release(std::byte* p, std::int64_t bytes) = 0;
  virtual void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) = 0;
  virtual void write(std::byte* to, const void* from_host, std::int64_t bytes) = 0;
  virtual void read(void* to_host, const std::byte* from, std::int64_t bytes) const = 0;
  /// Where the host sees the bytes from p on until they are closed: in their place, or as a copy,
  /// which closing puts back if they were `changed`. Several may be open, of any threads.
  virtual std::byte* open(std::byte* p, std::int64_t bytes) = 0;
  virtual void close(std::byte* p, std::int64_t bytes, std::byte* seen, bool changed) = 0;
  /// Whether the host may follow an address of it, once what was started before is done.
  virtual bool host_sees() const { return false; }
};

/// Bytes of a memory space as the host sees them while this lives.
class host_view {
public:
  host_view(memory_space& in, std::byte* p, std::int64_t bytes, bool changing = false)
      : in_(in),
        p_(p),
        bytes_(bytes),
        seen_(p != nullptr ? in.open(p, bytes) : nullptr),
        changing_(changing) {}
  host_view(const host_view&) = delete;
  host_view& operator=(const host_view&) = delete;
  /// Throws what putting the bytes back throws, unless something else is on its way.
  ~host_view() noexcept(false) {
    if (p_ != nullptr) ending_.run([this] { in_.close(p_, bytes_, seen_, changing_); });
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

/// Memory of a fixed size. Its space must outlive it.
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
  /// Fills with a pattern that is a NaN in every floating-point type, so that reads of values
  /// nobody wrote are seen.
  void poison() {
    if (data_ != nullptr) of_->fill(data_, 0xff, size_);
  }

private:
  memory_space* of_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

/// A moment of a lane: all that was started on it before is done.
class event {
public:
  event() = default;
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  virtual ~event() = default;
  /// Waits until the moment has come. An event that nobody has recorded has come.
  virtual void wait() = 0;
  /// Waits, too, and tells when the moment came, by the device's clock, in monotonic_nanoseconds
  /// (io/clock.hpp); 0 where nobody has recorded the event.
  virtual std::int64_t reached() = 0;
};

/// Bytes that the work of a lane has in turn.
struct lane_room {
  std::int64_t scratch = 0;   ///< of kernels
  std::int64_t workspace = 0; ///< of products
};

/// A queue of a device. What is started on it is done in the order in which it was started: bodies,
/// products, and the functions here, which throw mc::error while the lane has branches. What is
/// done on several lanes is ordered by events alone.
class lane {
public:
  explicit lane(memory_space& of) : of_(of) {}
  lane(const lane&) = delete;
  lane& operator=(const lane&) = delete;
  virtual ~lane() = default;

  virtual void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) = 0;
  /// The lane has copied what it was given when the call returns.
  virtual void write(std::byte* to, const void* from_host, std::int64_t bytes) = 0;
  /// Copies memory of the device to memory of device::mirrored(), which is there when an event that
  /// is recorded behind it has come.
  virtual void mirror(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  /// Copies memory of the device to other memory of it.
  virtual void copy(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  /// Adds up arrays of n elements of the device, or takes their maximum: `out` gets the bits of
  /// reduce_in_rank_order (exec/rank_order.hpp).
  virtual void reduce(reduction by, dtype t, std::span<const void* const> parts, void* out,
                      std::int64_t n) = 0;
  virtual void record(event& e) = 0;
  /// The lane does what is started on it from here on behind the event, which may be another
  /// lane's.
  virtual void wait(event& e) = 0;
  /// Waits until all that was started on the lane is done.
  virtual void finish() = 0;

  /// Whether a tool shows people what is started on the lane, as profilers of GPUs do.
  virtual bool is_shown() const { return false; }
  /// The tool is told that what is started until end_range() is one thing of this name, with a
  /// number where that is not negative. Ranges of a thread nest. shown_range calls both.
  virtual void begin_range(const std::string& name, std::int64_t number) {
    static_cast<void>(name), static_cast<void>(number);
  }
  virtual void end_range() {}

  /// Work that a lane keeps, to start it again at once.
  class kept_work {
  public:
    virtual ~kept_work() = default;
  };
  /// Whether the lane keeps work.
  virtual bool keeps_work() const { return false; }
  /// Starts what f() starts. For the same `work`, which begins as nullptr, f starts the same on
  /// this lane each time, with the same addresses and numbers, and neither writes from the host nor
  /// waits: so a lane that keeps work calls f for the first times alone. No other thread uses the
  /// lane meanwhile.
  virtual void start_kept(std::unique_ptr<kept_work>& work, function_ref<> f) {
    static_cast<void>(work);
    f();
  }

  /// Sees to it that there is so much room, and waits for whatever has less before it takes that
  /// away. Throws mc::error(exit_code::memory), which names a `remedy`; then the room is as it was.
  void reserve(const lane_room& need, const char* remedy = "a smaller micro-batch or sequence") {
    require_order();
    grow(scratch_, need.scratch, "the scratch of kernels", remedy);
    grow(workspace_, need.workspace, "the workspace of matrix products", remedy);
  }
  lane_room room() const { return {scratch_.size(), workspace_.size()}; }
  std::byte* scratch() const { return scratch_.data(); }
  std::byte* workspace() const { return workspace_.data(); }

protected:
  /// Throws mc::error while the lane has branches, of which none would wait for what it is given.
  virtual void require_order() const {}

private:
  void grow(arena& a, std::int64_t bytes, const char* what, const char* remedy) {
    if (bytes > a.size()) a = arena(of_, bytes, what, remedy);
  }
  memory_space& of_;
  arena scratch_, workspace_;
};

/// While this lives, what is started on a lane has a name where a tool shows it. name(), which is
/// called there alone, gives a std::string.
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

/// Bytes of memory that are left, and what leaves no more.
struct memory_room {
  std::int64_t bytes = 0;
  std::string of;
  /// The number of such memories over which the processes of a machine are spread.
  int spread_over = 1;
};

/// Bytes that all processes have taken of a memory.
struct memory_taken {
  std::int64_t before = 0; ///< before the device opened its libraries and reserved anything
  std::int64_t now = 0;
};

class device : public memory_space {
public:
  /// The number of threads of the host that work for it.
  virtual int threads() const = 0;
  /// The name tells people which of several devices it is; it is "" where there is only one.
  virtual std::string name() const { return {}; }
  /// Memory of the host to which lanes copy what the host has to know (lane::mirror).
  virtual memory_space& mirrored() = 0;
  /// The lane that steps run on. It lives as long as the device.
  virtual lane& main_lane() = 0;
  /// These make another lane, and an event of any lane. The device must outlive both. An event may
  /// outlive it while lanes of another object of the same device wait for it.
  virtual std::unique_ptr<lane> make_lane() = 0;
  virtual std::unique_ptr<event> make_event() = 0;
  virtual product_source& products() = 0;
  /// Where attention of a library comes from; nullptr: kernels compute all of it.
  virtual attention_source* attention() { return nullptr; }
  /// Lends memory to the checks of its libraries (product_source::lend, attention_source::lend),
  /// and takes it back.
  void lend(std::byte* memory, std::int64_t bytes) {
    products().lend(memory, bytes);
    if (attention_source* const of = attention()) of->lend(memory, bytes);
  }
  std::int64_t take_back() {
    const std::int64_t used = products().take_back();
    attention_source* const of = attention();
    return of == nullptr ? used : std::max(used, of->take_back());
  }
  /// The bytes of all tables that kernels have prepared.
  virtual std::int64_t table_bytes() const = 0;
  /// The room that is left in memory that the host does not see; none where it sees it.
  virtual std::optional<memory_room> room() const { return std::nullopt; }
  /// The bytes that are taken of memory that the host does not see; none where the host sees it.
  virtual std::optional<memory_taken> taken() const { return std::nullopt; }
};

} // namespace mc
