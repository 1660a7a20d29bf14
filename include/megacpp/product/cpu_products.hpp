// The constructor of the CPU device, which makes its matrix products.
#pragma once

#include <megacpp/exec/cpu.hpp>
#include <megacpp/product/product.hpp>

namespace mc {

inline cpu::cpu(product_type products, int threads, product_rows rows,
                void (*tell)(std::string_view))
    : threads_(threads > 0 ? threads : processors()) {
  set_thread_count(threads_);
  product_engine::options o;
  o.type = products, o.threads = threads_, o.rows = rows, o.tell = tell;
  products_ = std::make_unique<product_engine>(o);
}

} // namespace mc
