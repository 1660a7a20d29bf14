// These tables list fields of conversations that other programs read and megacpp does not. Whoever
// wrote such a field meant something by it, so a file that has one is refused.
#pragma once

#include <megacpp/io/ordered_json.hpp>

#include <array>
#include <cstddef>
#include <string_view>

namespace mc::detail {

struct foreign_field {
  std::string_view name, advice; ///< The field's name, and what its user does instead here.
};

inline constexpr std::string_view of_weights =
    "what is learned is said turn by turn here, by a \"weight\" of 0 or 1";
inline constexpr std::string_view of_whole_turns =
    "a turn is learned as a whole here: cut it into lines of \"ids\" and \"mask\"";
inline constexpr std::string_view of_media = "megacpp trains on text alone";
inline constexpr std::array<foreign_field, 18> foreign_to_lines{
    {{"weight", of_weights},
     {"loss", of_weights},
     {"train", of_weights},
     {"trainable", of_weights},
     {"loss_mask", of_weights},
     {"loss_scale", of_weights},
     {"functions", "tools are read from \"tools\" here"},
     {"history", "all turns stand in \"messages\" here"},
     {"documents", "templates are told of no documents here"},
     {"chat_template_kwargs", "templates have no switches of a line here"},
     {"enable_thinking", "templates have no switches of a line here"},
     {"image", of_media},
     {"images", of_media},
     {"video", of_media},
     {"videos", of_media},
     {"audio", of_media},
     {"audios", of_media},
     {"objects", of_media}}};
inline constexpr std::array<foreign_field, 13> foreign_to_turns{
    {{"train_detail", of_whole_turns},
     {"training_detail", of_whole_turns},
     {"loss_mask", of_whole_turns},
     {"loss_scale", of_whole_turns},
     {"mask", of_whole_turns},
     {"thinking", "thoughts are read from \"reasoning_content\" here"},
     {"reasoning", "thoughts are read from \"reasoning_content\" here"},
     {"image", of_media},
     {"images", of_media},
     {"video", of_media},
     {"videos", of_media},
     {"audio", of_media},
     {"audios", of_media}}};

/// Tells of no field that it is read.
inline bool is_read_nowhere(std::string_view) { return false; }

/// Returns the first of `fields` that an object has, or null. A field that is there but empty does
/// not count, nor one of which is_read(name) tells that it is read after all.
template <std::size_t N, class Read>
const foreign_field* foreign_field_in(const ordered_json& object,
                                      const std::array<foreign_field, N>& fields,
                                      const Read& is_read) {
  for (const foreign_field& f : fields) {
    if (is_read(f.name)) continue;
    const ordered_json* const found = object.find(f.name);
    const bool empty = found && (found->is_string() ? found->text.empty()
                                                    : (found->is_list() || found->is_object()) &&
                                                          found->items.empty());
    if (found && !empty) return &f;
  }
  return nullptr;
}

} // namespace mc::detail
