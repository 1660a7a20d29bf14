// The safetensors reader and writer: files of other writers, round trips byte for byte,
// conversions, and refusal of everything that the format forbids.
#define BOOST_TEST_MODULE safetensors
#include <boost/test/unit_test.hpp>

#include <megacpp/checkpoint/safetensors.hpp>
#include <megacpp/checkpoint/safetensors_writer.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <scratch.hpp>
#include <where.hpp>

namespace {

using mc::exit_code;
using mc::storage_type;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// A file of the given header text (unpadded, so data may be misaligned) and data.
std::string file_of(const std::string& header, const std::string& data = "") {
  const std::uint64_t n = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &n, 8);
  return file + header + data;
}

mc::safetensors_reader parse(const std::string& file) {
  return {bytes_of(file), "model.safetensors"};
}

std::string written(const mc::safetensors_layout& layout,
                    const std::map<std::string, std::string, std::less<>>& data) {
  std::string file;
  layout.write(
      [&file](std::span<const std::byte> b) {
        file.append(reinterpret_cast<const char*>(b.data()), b.size());
      },
      [&data](const mc::tensor_spec& t, const mc::byte_sink& sink) {
        sink(bytes_of(data.at(t.name)));
      });
  BOOST_TEST(file.size() == layout.file_size());
  return file;
}

BOOST_AUTO_TEST_CASE(files_of_the_reference_writer_are_read_and_written_back_byte_for_byte) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(test::shared_dir) / "fixtures";
  if (test::shared_dir.empty() || !fs::exists(root)) {
    test::left_out("there are no fixtures; set MEGACPP_SHARED_DIR");
    return;
  }
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".safetensors") continue;
    BOOST_TEST_CONTEXT(entry.path()) {
      const mc::safetensors_file file(entry.path().string());
      std::vector<mc::tensor_spec> specs;
      std::map<std::string, std::string, std::less<>> data;
      for (std::size_t i = file->size(); i-- > 0;) { // backwards: the writer sorts
        const mc::file_tensor t = file.tensors()[i];
        BOOST_TEST((file->find(t.name)->bytes.data() == t.bytes.data()));
        specs.push_back({std::string(t.name), t.type, {t.shape.begin(), t.shape.end()}});
        data.emplace(t.name,
                     std::string(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()));
      }
      const std::map<std::string, std::string> metadata(file->metadata().begin(),
                                                        file->metadata().end());
      const std::string again = written(mc::safetensors_layout(specs, metadata), data);
      BOOST_TEST((again == test::read_text(entry.path().string())));
    }
    ++files;
  }
  BOOST_TEST(files >= 3);
  const mc::safetensors_file gpt2((root / "hf/gpt2/model/model.safetensors").string());
  BOOST_TEST(gpt2->metadata().at("format") == "pt");
  const mc::file_tensor wte = gpt2->at("transformer.wte.weight");
  std::vector<float> values(static_cast<std::size_t>(wte.elements()));
  mc::read_values(wte, std::span(values));
  BOOST_TEST(std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }));
  CHECK_REFUSED(gpt2->at("lm_head"), exit_code::model, "has no tensor \"lm_head\"");
}

BOOST_AUTO_TEST_CASE(written_files_depend_on_contents_only_and_are_aligned) {
  const std::vector<mc::tensor_spec> specs{{"b", storage_type::f32, {2, 1}},
                                           {"a", storage_type::f32, {}},
                                           {"c", storage_type::bf16, {3}},
                                           {"quote\"\n\u00e9", storage_type::i64, {1, 0, 4}}};
  const std::map<std::string, std::string, std::less<>> data{
      {"a", "aaaa"}, {"b", "bbbbbbbb"}, {"c", "cccccc"}, {"quote\"\n\u00e9", ""}};
  const std::string file = written(mc::safetensors_layout(specs), data);
  std::uint64_t n = 0;
  std::memcpy(&n, file.data(), 8);
  BOOST_TEST(n % 8 == 0u);
  BOOST_TEST(file.substr(8, 34) == "{\"__metadata__\":{\"format\":\"pt\"},\"q");
  BOOST_TEST(file.substr(8 + n) == "aaaabbbbbbbbcccccc"); // wide types first, then names
  const auto view = parse(file);
  BOOST_TEST(view.size() == 4u);
  BOOST_TEST(view.at("a").elements() == 1);
  BOOST_TEST(view.at("quote\"\n\u00e9").shape.size() == 3u);
  BOOST_TEST(view.data_size() == 18u);
  std::vector<mc::tensor_spec> shuffled(specs.rbegin(), specs.rend());
  BOOST_TEST((written(mc::safetensors_layout(shuffled), data) == file));
  BOOST_TEST(parse(written(mc::safetensors_layout({}), {})).size() == 0u);
}

BOOST_AUTO_TEST_CASE(the_writer_refuses_what_it_could_not_read) {
  const auto layout = [](std::vector<mc::tensor_spec> t) {
    return mc::safetensors_layout(std::move(t));
  };
  CHECK_REFUSED(layout({{"a", storage_type::f32, {1}}, {"a", storage_type::f64, {1}}}),
                exit_code::internal, "two tensors");
  CHECK_REFUSED(layout({{"__metadata__", storage_type::f32, {1}}}), exit_code::internal,
                "__metadata__");
  CHECK_REFUSED(layout({{"a", storage_type::f32, {-1}}}), exit_code::internal, "no size");
  CHECK_REFUSED(layout({{"a", storage_type::f32, {1ll << 40, 1ll << 40}}}), exit_code::internal,
                "no size");
  CHECK_REFUSED(layout({{"a", storage_type::f4, {3}}}), exit_code::internal, "no size");
  const mc::safetensors_layout one = layout({{"a", storage_type::f32, {1}}});
  CHECK_REFUSED(written(one, {{"a", "abc"}}), exit_code::internal, "has 4 bytes, but 3 were given");
  CHECK_REFUSED(written(one, {{"a", "abcde"}}), exit_code::internal, "but 5 were given");
}

BOOST_AUTO_TEST_CASE(each_fault_of_a_file_is_refused_by_its_name) {
  const auto tensor = [](const std::string& name, const std::string& body) {
    return "\"" + name + "\":{" + body + "}";
  };
  const std::string a = tensor("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,4])");
  const auto b = [&](const char* begin, const char* end) {
    return tensor("b", std::string(R"("dtype":"F32","shape":[1],"data_offsets":[)") + begin + "," +
                           end + "]");
  };
  const std::string four = "0123", eight = "01234567";
  BOOST_TEST(parse(file_of("{" + a + "," + b("4", "8") + "}", eight)).size() == 2u);
  BOOST_TEST(parse(file_of("{" + a + "}   ", four)).size() == 1u);
  BOOST_TEST(parse(file_of("{}")).size() == 0u);

  struct fault {
    std::string file, says;
  };
  const std::string deep(100'000, '['), brackets = "{\"a\":" + std::string(5000, '{');
  std::string many_dims = "1";
  for (int i = 0; i < 40; ++i) many_dims += ",1";
  const std::vector<fault> faults{
      {"", "fewer than the 8"},
      {"1234567", "fewer than the 8"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8) + "{}", "above the limit"},
      {std::string("\x01\xe1\xf5\x05\0\0\0\0", 8) + "{}", "above the limit"}, // 100,000,001
      {std::string("PK\3\4\0\0\0\0", 8) + "....", "cut short"},
      {std::string("PK\3\4\x14\0\0\x08", 8) + "....", "PyTorch"},
      {std::string("\x10\0\0\0\0\0\0\0", 8) + "{}", "cut short"},
      {file_of(""), "does not begin with {"},
      {file_of("[]"), "does not begin with {"},
      {file_of(" {}"), "does not begin with {"},
      {file_of("\xef\xbb\xbf{}"), "does not begin with {"},
      {file_of("{" + a, four), "not valid JSON at byte"},
      {file_of("{" + a + "}x", four), "not valid JSON at byte"},
      {file_of("{" + a + "}{}", four), "not valid JSON at byte"},
      {file_of("{" + a + "}" + std::string(3, '\0'), four), "NUL"},
      {file_of("{\"\xff\":" + a.substr(4) + "}", four), "not valid JSON at byte"},
      {file_of("{\"a\":" + deep, four), "header holds a list under \"a\""},
      {file_of(brackets, four), "not valid JSON at byte"},
      {file_of("{" + a + "," + a + "}", four), "\"a\""},
      {file_of("{" + a + "," + b("4", "8") + "," + b("8", "12") + "}", eight + four),
       "\"b\" appears twice"},
      {file_of("{" + a + "," + b("5", "9") + "}", eight + "8"), "hole"},
      {file_of("{" + a + "," + b("3", "7") + "}", eight), "overlaps"},
      {file_of("{" + a + "," + b("0", "4") + "}", eight), "overlaps"},
      {file_of("{" + b("4", "8") + "}", eight), "hole"},
      {file_of("{" + a + "}", eight), "4 bytes, but 8 follow"},
      {file_of("{}", four), "0 bytes, but 4 follow"},
      {file_of("{" + a + "," + b("4", "8") + "}", "012345"), "lie outside the 6 bytes"},
      {file_of("{" + b("4", "0") + "}", four), "lie outside"},
      {file_of("{" + b("0", "18446744073709551615") + "}", four), "lie outside"},
      {file_of("{" + b("0", "18446744073709551616") + "}", four), "cannot hold"},
      {file_of("{" + b("0", "4.0") + "}", four), "cannot hold 4.0"},
      {file_of("{" + b("-0", "4") + "}", four), "cannot hold"},
      {file_of("{" + b("0,4", "4") + "}", four), "cannot hold the number 4"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":[1],"data_offsets":[4])") + "}", four),
       "not two numbers"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,4])") + "}", four),
       "takes 8 bytes, but its data_offsets give 4"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])") + "}", four),
       "cannot hold -1"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])") + "}",
               four),
       "cannot hold a list"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":1,"data_offsets":[0,4])") + "}", four),
       "cannot hold the number 1"},
      {file_of(
           "{" +
               tensor("a",
                      R"("dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,4])") +
               "}",
           four),
       "overflows"},
      {file_of(
           "{" +
               tensor("a", R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])") +
               "}",
           four),
       "too large"},
      {file_of("{" + tensor("a", R"("dtype":"F4","shape":[1],"data_offsets":[0,0])") + "}"),
       "not whole bytes"},
      {file_of(
           "{" +
               tensor("a", R"("dtype":"F32","shape":[)" + many_dims + R"(],"data_offsets":[0,4])") +
               "}",
           four),
       "more than 32 dimensions"},
      {file_of("{" + tensor("a", R"("dtype":"F31","shape":[1],"data_offsets":[0,4])") + "}", four),
       "\"F31\" is unknown"},
      {file_of("{" + tensor("a", R"("dtype":32,"shape":[1],"data_offsets":[0,4])") + "}", four),
       "dtype cannot hold"},
      {file_of("{" + tensor("a", R"("dtype":null,"shape":[1],"data_offsets":[0,4])") + "}", four),
       "cannot hold null"},
      {file_of("{" +
                   tensor("a", R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])") +
                   "}",
               four),
       "\"dtype\" appears twice"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1)") + "}",
               four),
       "unknown field \"x\""},
      {file_of("{" + tensor("a", R"("shape":[1],"data_offsets":[0,4])") + "}", four), "no dtype"},
      {file_of("{" + tensor("a", R"("dtype":"F32","data_offsets":[0,4])") + "}", four), "no shape"},
      {file_of("{" + tensor("a", R"("dtype":"F32","shape":[1])") + "}", four), "no data_offsets"},
      {file_of(R"({"a":"b"})"), "header holds the string"},
      {file_of(R"({"__metadata__":{"a":1}})"), "header holds the number 1 under \"a\""},
      {file_of(R"({"__metadata__":{"a":{}}})"), "header holds an object"},
      {file_of(R"({"__metadata__":{"a":"1","a":"2"}})"), "appears twice in __metadata__"},
      {file_of(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__ appears twice"},
  };
  for (const fault& f : faults) CHECK_REFUSED(parse(f.file), exit_code::model, f.says);
  for (const fault& f : faults) {
    const auto refused = test::refusal_of([&] { parse(f.file); });
    BOOST_TEST(refused->says("model.safetensors"));
    BOOST_TEST(refused->text.size() < 600u);
  }
}

BOOST_AUTO_TEST_CASE(names_from_a_file_cannot_command_a_terminal) {
  const auto refused =
      test::refusal_of([] { parse(file_of(R"({"\u001b[2J\u0007":{"dtype":"X"}})")); });
  BOOST_REQUIRE(refused);
  BOOST_TEST(!refused->says("\x1b"));
  BOOST_TEST(refused->says("??") == false);
  BOOST_TEST(refused->says("?[2J?"));
}

BOOST_AUTO_TEST_CASE(every_truncation_is_refused_and_every_changed_byte_is_harmless) {
  const std::string file = written(
      mc::safetensors_layout({{"w", storage_type::f32, {3, 2}}, {"v", storage_type::bf16, {5}}}),
      {{"w", std::string(24, 'w')}, {"v", std::string(10, 'v')}});
  for (std::size_t n = 0; n < file.size(); ++n)
    CHECK_REFUSED(parse(file.substr(0, n)), exit_code::model, "model.safetensors");
  CHECK_REFUSED(parse(file + "x"), exit_code::model, "follow the header");
  std::string header = file_of("{}");
  header.pop_back();
  CHECK_REFUSED(parse(header), exit_code::model, "its header of 2 bytes does not fit in the file");
  const std::size_t header_end = file.size() - 34;
  for (std::size_t at = 0; at < header_end; ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = file;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      // Accepted only as another consistent file: a name, a metadata text or a type of equal size.
      test::refusal_of([&] {
        const auto view = parse(changed);
        std::uint64_t total = 0;
        for (std::size_t i = 0; i < view.size(); ++i) total += view[i].bytes.size();
        BOOST_REQUIRE(total == 34u);
      });
    }
}

BOOST_AUTO_TEST_CASE(half_precision_is_read_exactly) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 31u);
    const double m = static_cast<double>(bits & 1023u);
    const double size = exponent == 0 ? std::ldexp(m, -24) : std::ldexp(1024 + m, exponent - 25);
    const float got = mc::half_to_float(static_cast<std::uint16_t>(bits));
    if (exponent == 31) {
      BOOST_REQUIRE(m != 0 ? std::isnan(got) : std::isinf(got));
    } else {
      BOOST_REQUIRE(static_cast<double>(std::fabs(got)) == size);
    }
    BOOST_REQUIRE(std::signbit(got) == ((bits & 0x8000u) != 0));
  }
}

template <class T> std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

BOOST_AUTO_TEST_CASE(elements_convert_between_types) {
  const auto one = [](storage_type type, std::int64_t n, const std::string& data) {
    return written(mc::safetensors_layout({{"t", type, {n}}}), {{"t", data}});
  };
  const std::vector<double> exact{0.0, -1.5, 3.25, 1024, -0.0078125};
  std::vector<float> floats(exact.begin(), exact.end());
  std::vector<mc::bf16> narrow(floats.size());
  std::transform(floats.begin(), floats.end(), narrow.begin(), [](float f) { return mc::bf16(f); });
  const std::vector<std::uint16_t> halves{0x0000, 0xbe00, 0x4280, 0x6400, 0xa000};
  for (const std::string& file :
       {one(storage_type::f64, 5, raw(exact)), one(storage_type::f32, 5, raw(floats)),
        one(storage_type::bf16, 5, raw(narrow)), one(storage_type::f16, 5, raw(halves))}) {
    // Also from an address that no type is aligned to.
    const std::string shifted = "x" + file;
    const mc::safetensors_reader view(bytes_of(shifted).subspan(1), "shifted");
    std::vector<float> f(5);
    std::vector<double> d(5);
    std::vector<mc::bf16> b(5);
    mc::read_values(view.at("t"), std::span(f));
    mc::read_values(view.at("t"), std::span(d));
    mc::read_values(view.at("t"), std::span(b));
    for (std::size_t i = 0; i < 5; ++i) {
      BOOST_TEST(d[i] == exact[i]);
      BOOST_TEST(f[i] == floats[i]);
      BOOST_TEST(b[i].bits == narrow[i].bits);
    }
  }
  const std::string ids = one(storage_type::i64, 3, raw<std::int64_t>({1, -100, 1ll << 31}));
  std::vector<std::int32_t> small(3);
  std::vector<std::int64_t> large(3);
  mc::read_values(parse(ids).at("t"), std::span(large));
  BOOST_TEST(large[2] == 1ll << 31);
  CHECK_REFUSED(mc::read_values(parse(ids).at("t"), std::span(small)), exit_code::model,
                "element 2 is 2147483648");
  std::vector<float> weights(3);
  CHECK_REFUSED(mc::read_values(parse(ids).at("t"), std::span(weights)), exit_code::model,
                "convert the model");
  const std::string f32 = one(storage_type::f32, 5, raw(floats));
  CHECK_REFUSED(mc::read_values(parse(f32).at("t"), std::span(weights)), exit_code::model,
                "has 5 elements, but 3");
  CHECK_REFUSED(mc::read_values(parse(f32).at("t"), std::span(large).first(0)), exit_code::model,
                "\"t\" (F32 [5])");
}

BOOST_AUTO_TEST_CASE(a_mapped_file_that_is_cut_is_noticed) {
  const test::scratch_folder dir;
  test::write_text(dir / "m.safetensors",
                   written(mc::safetensors_layout({{"t", storage_type::u8, {5000}}}),
                           {{"t", std::string(5000, 't')}}));
  mc::safetensors_file opened(dir / "m.safetensors");
  const mc::safetensors_file file = std::move(opened);
  file.check_unchanged();
  BOOST_TEST(std::to_integer<char>(file->at("t").bytes[4999]) == 't');
  std::filesystem::resize_file(dir / "m.safetensors", 100);
  CHECK_REFUSED(file.check_unchanged(), exit_code::model, "now has 100");
  CHECK_REFUSED(mc::safetensors_file(dir / "m.safetensors"), exit_code::model, "cut short");
}

} // namespace
