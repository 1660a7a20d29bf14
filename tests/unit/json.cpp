// JSON files: strict reading, and fields with sentences.
#define BOOST_TEST_MODULE json
#include <boost/test/unit_test.hpp>

#include <megacpp/io/json_file.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include <scratch.hpp>

namespace {

using mc::exit_code;

mc::json_value value_of(const std::string& text) {
  return {mc::parse_json(text, "config.json"), "config.json", exit_code::model};
}

BOOST_AUTO_TEST_CASE(what_is_valid_is_read) {
  BOOST_TEST(
      mc::parse_json(R"( {"a":[1,-2,3.5,"x\u00e9",true,null,{"b":{}}],"c":""} )", "f").dump() ==
      "{\"a\":[1,-2,3.5,\"x\u00e9\",true,null,{\"b\":{}}],\"c\":\"\"}");
  for (const char* text : {"1", "\"x\"", "null", "[]", "[[],[[]]]", "[{\"a\":1},{\"a\":2}]"})
    BOOST_TEST(mc::parse_json(text, "f").dump() == text);
  const std::string deep = std::string(64, '[') + std::string(64, ']');
  BOOST_TEST(mc::parse_json(deep, "f").dump() == deep);
}

BOOST_AUTO_TEST_CASE(what_is_not_valid_is_refused_with_its_place) {
  const auto parse = [](const std::string& text) { return mc::parse_json(text, "config.json"); };
  CHECK_REFUSED(parse(""), exit_code::model, "config.json is not valid JSON at byte 1");
  CHECK_REFUSED(parse("{\"a\":1,}"), exit_code::model, "at byte 8");
  CHECK_REFUSED(parse("{} x"), exit_code::model, "at byte 4");
  CHECK_REFUSED(parse("{}{}"), exit_code::model, "at byte 3");
  CHECK_REFUSED(parse(std::string("{}\0garbage", 10)), exit_code::model,
                "byte 3: it contains a NUL");
  CHECK_REFUSED(parse("{\"a\":1,\"b\":{\"c\":1,\"c\":2}}"), exit_code::model,
                "\"c\" appears twice");
  CHECK_REFUSED(parse("[NaN]"), exit_code::model, "not valid JSON");
  CHECK_REFUSED(parse("[1e999]"), exit_code::model, "not valid JSON");
  CHECK_REFUSED(parse("[01]"), exit_code::model, "not valid JSON");
  CHECK_REFUSED(parse("{a:1}"), exit_code::model, "not valid JSON");
  CHECK_REFUSED(parse("[1] // note"), exit_code::model, "not valid JSON");
  CHECK_REFUSED(parse("\"\xff\""), exit_code::model, "not valid JSON");
  CHECK_REFUSED(parse("\"\x1b[2J\""), exit_code::model, "not valid JSON");
  CHECK_REFUSED(parse(std::string(65, '[') + std::string(65, ']')), exit_code::model,
                "deeper than 64");
  CHECK_REFUSED(parse(std::string(1'000'000, '[')), exit_code::model, "deeper than 64");
  CHECK_REFUSED(parse(std::string((16u << 20) + 1, ' ')), exit_code::model, "16777217 bytes");
}

BOOST_AUTO_TEST_CASE(fields_have_types) {
  const mc::json_value v = value_of(
      R"({"n":12,"x":1e-5,"s":"gelu","t":true,"z":null,"o":{"p":[1,2],"q":{"r":-1}},
          "big":18446744073709551615,
          "list":[{"k":1},{"k":"two"}]})");
  BOOST_TEST(v.field<int>("n") == 12);
  BOOST_TEST(mc::field<std::int64_t>(v, "n") == 12);
  BOOST_TEST(v.field<double>("n") == 12.0);
  BOOST_TEST(v.field<double>("x") == 1e-5);
  BOOST_TEST(v.field<std::string>("s") == "gelu");
  BOOST_TEST(v.field<bool>("t"));
  BOOST_TEST(v.field<std::uint64_t>("big") == 18446744073709551615u);
  BOOST_TEST(v.field<mc::json_value>("o").field<std::vector<int>>("p") == (std::vector<int>{1, 2}),
             boost::test_tools::per_element());
  BOOST_TEST(v.has("n"));
  BOOST_TEST(!v.has("z"));
  BOOST_TEST(v.field<int>("n", 1, 12) == 12);

  CHECK_REFUSED(v.field<int>("none"), exit_code::model, "config.json: has no field \"none\"");
  CHECK_REFUSED(v.field<int>("z"), exit_code::model, "no field \"z\"");
  CHECK_REFUSED(v.field<int>("s"), exit_code::model,
                "field \"s\" is the string \"gelu\", but a whole number is needed");
  CHECK_REFUSED(v.field<int>("x"), exit_code::model, "is the number 1e-05, but a whole number");
  CHECK_REFUSED(v.field<int>("t"), exit_code::model, "is the value true, but a whole number");
  CHECK_REFUSED(v.field<bool>("n"), exit_code::model, "true or false is needed");
  CHECK_REFUSED(v.field<std::string>("o"), exit_code::model, "\"o\" is an object, but a string");
  CHECK_REFUSED(v.field<mc::json_value>("n"), exit_code::model, "an object is needed");
  CHECK_REFUSED(v.field<int>("n", 1, 11), exit_code::model,
                "field \"n\" is 12, but must be from 1 to 11");
  CHECK_REFUSED(v.field<std::int64_t>("big"), exit_code::model, "out of range");
  CHECK_REFUSED(v.field<std::int8_t>("big"), exit_code::model, "from -128 to 127");
  const mc::json_value o = v.field<mc::json_value>("o");
  CHECK_REFUSED(o.field<mc::json_value>("q").field<unsigned>("r"), exit_code::model,
                "field \"o.q.r\" is -1, which is out of range");
  CHECK_REFUSED(o.field<std::vector<bool>>("p"), exit_code::model,
                "field \"o.p[0]\" is the number 1");
  CHECK_REFUSED(v.field<std::vector<mc::json_value>>("list")[1].field<int>("k"), exit_code::model,
                "list[1].k");
}

BOOST_AUTO_TEST_CASE(files_hold_one_object) {
  const test::scratch_folder dir;
  test::write_text(dir / "config.json", "{\"n_layer\": 2}\n");
  BOOST_TEST(mc::read_json(dir / "config.json").field<int>("n_layer") == 2);
  test::write_text(dir / "list.json", "[1]");
  CHECK_REFUSED(mc::read_json(dir / "list.json", exit_code::usage), exit_code::usage,
                "the file is a list, but an object is needed");
  CHECK_REFUSED(mc::read_json(dir / "none.json"), exit_code::model, "does not exist");
  test::write_text(dir / "empty.json", "");
  CHECK_REFUSED(mc::read_json(dir / "empty.json"), exit_code::model, "is empty");
}

} // namespace
