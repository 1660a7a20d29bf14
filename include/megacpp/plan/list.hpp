// A list that grows, in constant evaluation and at run time, and is indexed by int. (In clang 14 a
// std::vector of g++ 12's standard library is no constant, and each access is several calls.)
#pragma once

#include <cstddef>
#include <utility>

namespace mc {

template <class T> class list {
public:
  constexpr list() = default;
  constexpr explicit list(int n, const T& x = T{}) { resize(n, x); }
  constexpr list(const list& o) { *this = o; }
  constexpr list(list&& o) noexcept { swap(o); }
  constexpr list& operator=(const list& o) {
    if (this == &o) return *this;
    list copy;
    copy.reserve(o.size_);
    for (int i = 0; i < o.size_; ++i) copy.push(o.at_[i]);
    swap(copy);
    return *this;
  }
  constexpr list& operator=(list&& o) noexcept {
    swap(o);
    return *this;
  }
  constexpr ~list() { delete[] at_; }

  constexpr int size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr T& operator[](int i) { return at_[i]; }
  constexpr const T& operator[](int i) const { return at_[i]; }
  constexpr T* begin() { return at_; }
  constexpr T* end() { return at_ + size_; }
  constexpr const T* begin() const { return at_; }
  constexpr const T* end() const { return at_ + size_; }
  constexpr T& back() { return at_[size_ - 1]; }
  constexpr void push(const T& x) {
    if (size_ == room_) reserve(size_ + 1);
    at_[size_++] = x;
  }
  constexpr void pop() { --size_; }
  constexpr void insert(int at, const T& x) {
    push(x);
    for (int i = size_ - 1; i > at; --i) at_[i] = at_[i - 1];
    at_[at] = x;
  }
  /// Removes the elements from, ..., to - 1.
  constexpr void erase(int from, int to) {
    if (from == to) return;
    for (int i = to; i < size_; ++i) at_[from + i - to] = at_[i];
    size_ -= to - from;
  }
  constexpr void resize(int n, const T& x = T{}) {
    reserve(n);
    while (size_ < n) at_[size_++] = x;
    size_ = n;
  }
  /// Makes room for n elements, or for twice as many as there are, if that is more.
  constexpr void reserve(int n) {
    if (n <= room_) return;
    if (n < 2 * size_) n = 2 * size_;
    T* const larger = new T[static_cast<std::size_t>(n)]{};
    for (int i = 0; i < size_; ++i) larger[i] = std::move(at_[i]);
    delete[] at_;
    at_ = larger, room_ = n;
  }

private:
  constexpr void swap(list& o) {
    std::swap(at_, o.at_), std::swap(size_, o.size_), std::swap(room_, o.room_);
  }

  T* at_ = nullptr;
  int size_ = 0, room_ = 0;
};

} // namespace mc
