// Files of tensors that are finite: asked of whatever is saved, exported and loaded, so that a run
// that diverged neither replaces a good state nor is taken for one.
#pragma once

#include <megacpp/checkpoint/finite.hpp>
#include <megacpp/checkpoint/safetensors_writer.hpp>

#include <span>
#include <utility>

namespace mc {

/// Throws mc::error of the file's class, naming tensor and element, unless a tensor of a file, or
/// the part of it that lies in `part`, is finite.
inline void require_finite(const safetensors_file& file, const tensor_view& t,
                           std::span<const std::byte> part) {
  file.check_unchanged();
  const auto wrong = first_nonfinite_in_parallel(part, t.type);
  if (!wrong) return;
  const auto size = static_cast<std::int64_t>(bits_of(t.type) / 8);
  const std::int64_t element = *wrong + (part.data() - t.bytes.data()) / size;
  const std::int64_t one = 1;
  double value = 0;
  read_values(tensor_view{t.name, t.type, std::span(&one, 1),
                          t.bytes.subspan(static_cast<std::size_t>(element * size),
                                          static_cast<std::size_t>(size))},
              std::span(&value, 1));
  throw error(file.tensors().code(),
              fmt::format("{}: element {} of tensor \"{}\" is {}; whoever saved it had diverged: "
                          "load an earlier state, or train anew with a lower learning rate",
                          file->path(), element, printable(t.name), value));
}
/// The same of all tensors of a file.
inline void require_finite(const safetensors_file& file) {
  for (std::size_t i = 0; i < file->size(); ++i)
    require_finite(file, file.tensors()[i], file.tensors()[i].bytes);
}

/// Writes a file as safetensors_layout::write does, but for what is not finite: throws
/// mc::error(exit_code::nonfinite) naming tensor and element before it passes any byte of the piece
/// that holds it on. Pieces are whole elements.
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
