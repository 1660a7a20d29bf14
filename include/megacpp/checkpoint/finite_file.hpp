// Weights and states must be finite to be saved, exported or loaded. So a run that diverged does
// not replace a good state, and nobody goes on from its weights.
#pragma once

#include <megacpp/checkpoint/finite.hpp>
#include <megacpp/checkpoint/safetensors_writer.hpp>

#include <span>
#include <utility>

namespace mc {

/// Throws mc::error of the file's class that names tensor and element where a tensor is not finite.
/// `part` holds the bytes of the tensor that are checked: all of them, or a range.
inline void require_finite(const safetensors_file& file, const file_tensor& t,
                           std::span<const std::byte> part) {
  file.check_unchanged();
  const auto wrong = first_nonfinite_in_parallel(part, t.type);
  if (!wrong) return;
  const auto size = static_cast<std::int64_t>(bits_of(t.type) / 8);
  const std::int64_t element = *wrong + (part.data() - t.bytes.data()) / size;
  const std::int64_t one = 1;
  double value = 0;
  read_values(file_tensor{t.name, t.type, std::span(&one, 1),
                          t.bytes.subspan(static_cast<std::size_t>(element * size),
                                          static_cast<std::size_t>(size))},
              std::span(&value, 1));
  throw error(file.tensors().code(),
              fmt::format("{}: element {} of tensor \"{}\" is {}; whoever saved it had diverged: "
                          "load an earlier state, or train anew with a lower learning rate",
                          file->path(), element, printable(t.name), value));
}
/// Throws mc::error of the file's class that names tensor and element where a tensor of the file is
/// not finite.
inline void require_finite(const safetensors_file& file) {
  for (std::size_t i = 0; i < file->size(); ++i)
    require_finite(file, file.tensors()[i], file.tensors()[i].bytes);
}

/// Writes a file as safetensors_layout::write does, with finite elements alone. `give` passes whole
/// elements at a time. Throws mc::error(exit_code::nonfinite) that names tensor and element, before
/// it writes any of the bytes that were passed with an infinite element or NaN.
template <class Give>
void write_finite(const safetensors_layout& layout, const byte_sink& out, Give&& give) {
  layout.write(out, [&](const tensor_spec& t, const byte_sink& data) {
    std::int64_t before = 0;
    give(t, [&](std::span<const std::byte> bytes) {
      if (const auto wrong = first_nonfinite(bytes, t.type))
        throw error(exit_code::nonfinite,
                    fmt::format("tensor \"{}\" is not saved: its element {} is not finite as {}; "
                                "train with a lower learning rate, or export in a wider type",
                                printable(t.name), before + *wrong, name_of(t.type)));
      before += static_cast<std::int64_t>(bytes.size() * 8 / bits_of(t.type));
      data(bytes);
    });
  });
}

} // namespace mc
