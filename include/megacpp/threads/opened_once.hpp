// A value that several threads share, made by the first that asks.
#pragma once

#include <memory>
#include <mutex>

namespace mc {

/// A value that threads share, such as the data that the ranks of a process read. The first thread
/// that asks opens it, while others wait. Copies of this object share the value, too.
template <class T> class opened_once {
public:
  template <class Open> std::shared_ptr<const T> operator()(const Open& open) const {
    const std::scoped_lock hold(all_->lock);
    if (!all_->opened) all_->opened = std::make_shared<const T>(open());
    return all_->opened;
  }

private:
  struct state {
    std::mutex lock;
    std::shared_ptr<const T> opened;
  };
  std::shared_ptr<state> all_ = std::make_shared<state>();
};

} // namespace mc
