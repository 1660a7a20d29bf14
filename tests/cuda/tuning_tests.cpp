// Tuned products: how the fastest way is measured (product/cuda/tune.hpp), kept in a file, and taken
// from it, over stand-ins of CUDA's runtime and of cuBLASLt, whose ways take what a test says by the
// clock of events.
#define BOOST_TEST_MODULE cuda_tuning
#include <boost/test/unit_test.hpp>

#include <cuda/machine.hpp>

#include <megacpp/product/cuda/devices.hpp>
#include <megacpp/product/cuda/product_table_file.hpp>
#include <megacpp/product/cuda/tune.hpp>

#include <scratch.hpp>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace mc;
using std::int64_t;
using test::refused;

namespace {

constexpr int64_t second = 1'000'000'000;

std::vector<std::string> told;
void tell(std::string_view sentence) { told.emplace_back(sentence); }

/// A device whose ways take so many seconds, with a table's products.
class machine {
public:
  explicit machine(const std::vector<int64_t>& seconds, std::vector<tuned_product> tuned = {},
                   product_rows rows = product_rows::together, bool tf32 = false) {
    stand_in::machine is;
    is.ways.clear();
    for (const int64_t s : seconds) is.ways.push_back(s * second);
    stand_in::begin(is);
    told.clear();
    on_.emplace(0, 1, [&](cuda& on) {
      return cuda_libraries{
          std::make_unique<cublaslt_products>(on, rows, &tell, tf32, std::move(tuned)), nullptr};
    });
  }
  cuda& on() { return *on_; }
  cublaslt_products& products() { return static_cast<cublaslt_products&>(on_->products()); }
  /// Whole seconds that a product takes.
  int64_t seconds(const product_shape& s) {
    const product_operands with(on(), s);
    return std::lround(seconds_of(on(), products().prepare(s), with));
  }
  std::optional<product_tuner::found> tune(const product_shape& s, bool tf32 = false) {
    product_tuner tuner(on(), tf32);
    return tuner.tune(call_of(s), [] { return false; });
  }

private:
  std::optional<cuda> on_;
};

constexpr product_shape forward{.M = 12, .N = 8, .K = 16};

/// Its way is the second of two, and the faster one.
tuned_product tuned_of(const product_shape& s, bool tf32 = false) {
  machine m({100, 1});
  return m.tune(s, tf32).value().product;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
bool same(const tuned_product& a, const tuned_product& b) {
  return a.call == b.call && a.tf32 == b.tf32 && a.seconds == b.seconds &&
         a.first_seconds == b.first_seconds &&
         std::memcmp(a.way.data, b.way.data, sizeof a.way.data) == 0;
}

} // namespace

BOOST_AUTO_TEST_CASE(the_fastest_way_is_kept) {
  for (const product_kind kind :
       {product_kind::forward, product_kind::input_gradient, product_kind::weight_gradient})
    for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64}) {
      product_shape s = make_product_shape(kind, type, 12, 8, 16);
      s.bias = kind == product_kind::forward;
      machine m({50, 10, 30});
      const auto found = m.tune(s).value();
      BOOST_TEST(found.ways == 3);
      BOOST_TEST(found.refused == 0);
      BOOST_TEST(std::lround(found.product.seconds) == 10);
      BOOST_TEST(std::lround(found.product.first_seconds) == 50);
      BOOST_TEST((found.product.call == call_of(s)));
    }
  // Of more ways than a program asks for.
  std::vector<int64_t> seconds(12, 20);
  seconds[10] = 3;
  machine m(seconds);
  const auto found = m.tune(forward).value();
  BOOST_TEST(found.ways == 12);
  BOOST_TEST(std::lround(found.product.seconds) == 3);
  // Rows of a part are what the library is asked for, and TF32 is of fp32 alone.
  product_shape s{.M = 12, .N = 8, .K = 16, .dynamic_rows = true, .segment = 4};
  BOOST_TEST(m.tune(s).value().product.call.M == 4);
  BOOST_TEST(m.tune(s, true).value().product.tf32);
  s.a = s.b = s.out = dtype::bf16;
  BOOST_TEST(!m.tune(s, true).value().product.tf32);
}

BOOST_AUTO_TEST_CASE(a_way_that_fails_its_check_is_not_kept) {
  machine m({50, 10, 30});
  stand_in::fail("way 2", cudaErrorUnknown);
  auto found = m.tune(forward).value();
  BOOST_TEST(std::lround(found.product.seconds) == 30);
  BOOST_TEST(found.refused == 1);
  // Without a table the second way is taken where the first one fails.
  stand_in::fail("way 1", cudaErrorUnknown);
  found = m.tune(forward).value();
  BOOST_TEST(std::lround(found.product.first_seconds) == 10);
  // A way that cannot be started is none.
  stand_in::fail("cublasLtMatmul", cudaErrorUnknown);
  found = m.tune(forward).value();
  BOOST_TEST(found.ways == 2);
  BOOST_TEST(std::lround(found.product.first_seconds) == 10);
  for (const char* const way : {"way 1", "way 2", "way 3"}) stand_in::fail(way, cudaErrorUnknown);
  BOOST_TEST(refused([&] { m.tune(forward); }) ==
             "a forward product of 12 x 8 x 16 (f32 x f32 to f32) has no way of cuBLASLt that "
             "passes its check: install another version of cuBLASLt");
  // Time that is over at any point leaves nothing half.
  product_tuner tuner(m.on(), false);
  for (int after = 0; after < 4; ++after)
    BOOST_TEST(!tuner.tune(forward, [left = after]() mutable { return left-- <= 0; }).has_value());
  BOOST_TEST(told.empty());
}

BOOST_AUTO_TEST_CASE(operands_are_random_and_no_call_finds_those_of_the_call_before) {
  machine m({0});
  for (const product_kind kind :
       {product_kind::forward, product_kind::input_gradient, product_kind::weight_gradient}) {
    const product_shape s{
        .kind = kind, .M = 12, .N = 8, .K = 16, .x_stride = 20, .y_stride = 9, .bias = true};
    const product_operands with(m.on(), s);
    BOOST_TEST(with.bytes() >= 4 << 14); // of the cache, 16 KiB
    BOOST_TEST(with.call(0).a == with.call(with.copies()).a);
    for (int64_t i = 1; i < with.copies(); ++i) BOOST_TEST(with.call(i).a != with.call(0).a);
    for (const void* const p : {with.call(1).a, with.call(1).b,
                                static_cast<const void*>(with.call(1).out), with.call(1).bias}) {
      std::vector<float> x(8);
      m.on().read(x.data(), static_cast<const std::byte*>(p), 32);
      std::ranges::sort(x);
      BOOST_TEST((std::ranges::adjacent_find(x) == x.end()));
      BOOST_TEST((x.front() >= -1 && x.front() < 0 && x.back() > 0 && x.back() < 1));
      BOOST_TEST(std::ranges::count(x, 0.0f) == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_way_of_the_table_is_taken_first) {
  const tuned_product tuned = tuned_of(forward);
  {
    machine without({100, 1});
    BOOST_TEST(without.seconds(forward) == 100);
    BOOST_TEST(!contains(without.products().describe(dtype::f32), "table"));
  }
  {
    machine m({100, 1}, {tuned});
    BOOST_TEST(m.seconds(forward) == 1);
    BOOST_TEST(m.products().checks().checked == 1); // it is checked, and no other is
    BOOST_TEST(
        contains(m.products().describe(dtype::f32), ", 1 of 1 products by the product table"));
    // The same call of other shapes; rows that vary are checked in its way, too.
    product_shape s = forward;
    s.M = 36, s.segment = 12, s.sums = numerics::fast;
    BOOST_TEST(m.seconds(s) == 3);
    s = forward, s.dynamic_rows = true;
    BOOST_TEST(m.seconds(s) == 1);
    BOOST_TEST(contains(m.products().describe(dtype::f32), ", 3 of 3 products"));
    // All that makes it another call.
    using change = void (*)(product_shape&);
    int others = 0;
    for (const change f : std::initializer_list<change>{
             [](product_shape& x) { x.M = 11; }, [](product_shape& x) { x.N = 9; },
             [](product_shape& x) { x.K = 17; }, [](product_shape& x) { x.x_stride = 17; },
             [](product_shape& x) { x.y_stride = 9; }, [](product_shape& x) { x.bias = true; },
             [](product_shape& x) { x.groups = 4; }, [](product_shape& x) { x.segment = 4; },
             [](product_shape& x) { x.a = x.b = x.out = dtype::f64; },
             [](product_shape& x) { x.kind = product_kind::input_gradient; },
             [](product_shape& x) { x.kind = product_kind::weight_gradient; }}) {
      s = forward, f(s);
      ++others;
      BOOST_TEST(m.seconds(s) >= 100);
      BOOST_TEST(contains(m.products().describe(dtype::f32),
                          ", 3 of " + std::to_string(3 + others) + " products"));
    }
  }
  BOOST_TEST(machine({100, 1}, {tuned}, product_rows::together, true).seconds(forward) == 100);
  BOOST_TEST(machine({100, 1}, {tuned}, product_rows::apart).seconds(forward) == 1200);
  product_shape s = forward; // as `describe` lists what is generated with
  s.segment = 1;
  product_shape of_four = forward, of_seven = forward; // groups are calls of one kind
  of_four.groups = 4, of_seven.groups = 7, of_seven.group_rows = 3;
  BOOST_TEST(machine({100, 1}, {tuned_of(of_four)}).seconds(of_seven) == 1);
  const tuned_product each = tuned_of(s);
  BOOST_TEST(machine({100, 1}, {each}, product_rows::apart).seconds(forward) == 12);
}

// What a product ends in makes it another call; a call whose end no way computes right is tuned as
// programs compute it then, without the end.
BOOST_AUTO_TEST_CASE(what_a_product_ends_in_is_tuned_with_it) {
  product_shape s{.M = 12, .N = 8, .K = 16, .bias = true};
  const product_shape plain = s;
  s.ends_in = product_end::gelu_kept;
  product_shape slope{.kind = product_kind::input_gradient, .M = 12, .N = 8, .K = 16};
  slope.ends_in = product_end::gelu_gradient;
  const std::vector<tuned_product> both{tuned_of(s), tuned_of(slope)};
  BOOST_TEST((both[0].call == call_of(s)));
  {
    machine m({100, 1}, both);
    BOOST_TEST(m.seconds(s) == 1);
    BOOST_TEST(m.seconds(slope) == 1);
    BOOST_TEST(m.seconds(plain) == 100);
    BOOST_TEST(contains(m.products().describe(dtype::f32), ", 2 of 3 products"));
  }
  machine m({5, 1});
  stand_in::fail("way 1 leaves GELU out", cudaErrorUnknown);
  stand_in::fail("way 2 leaves GELU out", cudaErrorUnknown);
  const auto found = m.tune(s).value();
  BOOST_TEST((found.product.call == call_of(plain)));
  BOOST_TEST(std::lround(found.product.seconds) == 1);
}

BOOST_AUTO_TEST_CASE(a_way_of_the_table_that_fails_its_check_is_not_used) {
  tuned_product wrong{.call = call_of(forward)}, of_another = tuned_of({.M = 7, .N = 5, .K = 3});
  {
    machine m({0});
    stand_in::fail("way 1", cudaErrorUnknown);
    wrong.way = m.products().make(forward)->proposals(1).at(0);
  }
  of_another.call = call_of(forward);
  for (const auto& [bad, says] :
       {std::pair{&wrong,
                  "cuBLASLt computes row 0 wrong in the product table's way of a forward "
                  "product of 12 x 8 x 16 (f32 x f32 to f32), checked with 12 rows"},
        {&of_another,
         "cuBLASLt refuses to compute in the product table's way of a forward product "
         "of 12 x 8 x 16 (f32 x f32 to f32), checked with 12 rows"}}) {
    machine m({5, 1}, {*bad});
    BOOST_TEST(m.seconds(forward) == 5);
    BOOST_TEST(
        contains(m.products().describe(dtype::f32), ", 0 of 1 products by the product table"));
    BOOST_TEST(contains(m.products().describe(dtype::f32), "but for 1 of 2 ways, which fail"));
    BOOST_REQUIRE(told.size() == 1u);
    BOOST_TEST(contains(told[0], says), told[0]);
    BOOST_TEST(contains(told[0], ": the next way that it proposes is tried"));
    // Where no other way is right either, the run ends.
    stand_in::fail("way 1", cudaErrorUnknown), stand_in::fail("way 2", cudaErrorUnknown);
    product_shape s = forward;
    s.dynamic_rows = true;
    BOOST_TEST(contains(refused([&] { m.products().prepare(s); }), "has no way of cuBLASLt"));
  }
}

namespace {

/// Of two machines, with every field of a shape that a call has.
product_table table_of_all() {
  product_table table;
  const tuned_machine here{"stand-in", "9.0", cublasLtGetVersion()}, there{"A \"GPU\"", "8.0", 7};
  table.put(here, tuned_of(forward));
  table.put(here, tuned_of(forward, true));
  table.put(here, tuned_of({.M = 3,
                            .N = 5,
                            .K = 7,
                            .x_stride = 11,
                            .y_stride = 6,
                            .a = dtype::bf16,
                            .b = dtype::bf16,
                            .out = dtype::bf16,
                            .bias = true,
                            .groups = 4}));
  product_shape ends{.M = 3, .N = 8, .K = 4, .bias = true};
  ends.ends_in = product_end::gelu;
  table.put(here, tuned_of(ends));
  table.put(there, tuned_of({.kind = product_kind::input_gradient,
                             .M = 2,
                             .N = 2,
                             .K = 2,
                             .a = dtype::f64,
                             .b = dtype::f64,
                             .out = dtype::f64,
                             .accumulate = true}));
  table.put(there,
            tuned_of(make_product_shape(product_kind::weight_gradient, dtype::bf16, 4, 3, 2)));
  return table;
}
product_table read_text(const std::string& text) {
  return product_table_of(json_value(parse_json(text, "a file"), "a file", exit_code::usage));
}

} // namespace

BOOST_AUTO_TEST_CASE(a_file_holds_a_table) {
  const product_table table = table_of_all(), read = read_text(text_of(table));
  BOOST_REQUIRE(read.machines.size() == 2u);
  for (std::size_t m = 0; m < 2; ++m) {
    const auto &was = table.machines[m], &is = read.machines[m];
    BOOST_TEST((was.machine == is.machine));
    BOOST_REQUIRE(was.products.size() == is.products.size());
    for (std::size_t i = 0; i < was.products.size(); ++i)
      BOOST_TEST(same(was.products[i], is.products[i]), text_of(table));
  }
  BOOST_TEST(text_of(read) == text_of(table));
  BOOST_TEST(read_text(text_of(product_table{})).machines.empty());
  // A product takes the place of the one before.
  product_table twice = table;
  tuned_product slower = table.machines[0].products[0];
  slower.seconds = 77;
  twice.put(table.machines[0].machine, slower);
  BOOST_TEST(twice.machines[0].products.size() == table.machines[0].products.size());
  BOOST_TEST(find_tuned(twice.machines[0].products, slower.call, false)->seconds == 77);
}

// Each field in turn is missing, of another type or out of range, and the sentence names it.
BOOST_AUTO_TEST_CASE(what_is_damaged_is_named) {
  using json = nlohmann::json;
  const json good = json::parse(text_of(table_of_all()));
  const auto says = [](const json& file) { return refused([&] { read_text(file.dump()); }); };
  BOOST_TEST(says(good) == "nothing was refused");
  const auto with = [&](const char* at, const json& value) {
    json file = good;
    file[json::json_pointer(at)] = value;
    return says(file);
  };
  const auto names = [&](const std::string& sentence, const std::string& field) {
    BOOST_TEST(sentence.starts_with("a file: "), sentence);
    BOOST_TEST(contains(sentence, "field \"" + field + "\""), sentence);
  };
  const auto dotted = [](const std::string& pointer) { // /a/0/b as a[0].b
    std::string text;
    for (std::size_t at = 1, end; at < pointer.size(); at = end + 1) {
      end = std::min(pointer.find('/', at), pointer.size());
      const std::string part = pointer.substr(at, end - at);
      text += std::isdigit(part[0]) != 0 ? "[" + part + "]" : (text.empty() ? "" : ".") + part;
    }
    return text;
  };
  // Every field that there is, of the machine whose product has most of them.
  const std::string product = "/machines/0/products/2";
  std::vector<std::string> fields{"/format", "/version", "/machines"};
  for (const char* const name : {"gpu", "compute_capability", "cublaslt", "products"})
    fields.push_back(std::string("/machines/0/") + name);
  for (const auto& [name, value] : good[json::json_pointer(product)].items())
    fields.push_back(product + "/" + name);
  for (const auto& [name, value] : good[json::json_pointer(product + "/product")].items())
    fields.push_back(product + "/product/" + name);
  BOOST_TEST(fields.size() == 3u + 4 + 5 + 11);
  for (const std::string& field : fields) {
    const json::json_pointer at(field);
    json file = good;
    const bool number = file[at].is_number(), optional = contains(field, "stride") ||
                                                         contains(field, "/bias") ||
                                                         contains(field, "groups");
    file[at.parent_pointer()].erase(at.back());
    if (optional) BOOST_TEST(says(file) == "nothing was refused");
    else names(says(file), dotted(field));
    file = good, file[at] = number ? json("word") : json(17.5);
    names(says(file), dotted(field));
    if (!number) continue;
    file[at] = contains(field, "seconds") ? json(-1.0) : json(-1);
    names(says(file), dotted(field));
  }
  // What no machine or product has.
  for (const char* const inside :
       {"", "/machines/1", "/machines/0/products/0", "/machines/0/products/0/product"}) {
    const std::string at = std::string(inside) + "/unheard_of";
    names(with(at.c_str(), 1), dotted(at));
  }
  const std::string digits = good[json::json_pointer(product + "/algorithm")];
  for (const std::string& bad :
       {digits.substr(1), digits + "0", 'g' + digits.substr(1), 'A' + digits.substr(1)})
    names(with((product + "/algorithm").c_str(), bad), dotted(product + "/algorithm"));
  const auto of_product = [&](const char* name, const json& value) {
    const std::string at = product + "/product/" + name;
    names(with(at.c_str(), value), dotted(at));
  };
  of_product("kind", "backward"), of_product("a", "i32"), of_product("M", 0);
  of_product("x_stride", 6), of_product("y_stride", 4), of_product("part", 2);
  names(with((product + "/product/part").c_str(), 3), dotted(product + "/product"));
  names(with((product + "/product/dynamic_rows").c_str(), true), dotted(product + "/product"));
  names(with("/machines/1", good[json::json_pointer("/machines/0")]), "machines[1]");
  names(with("/machines/0/products/1", good[json::json_pointer("/machines/0/products/0")]),
        "machines[0].products[1]");
}

// As a program reads it.
BOOST_AUTO_TEST_CASE(a_device_takes_what_is_for_it) {
  const test::scratch_folder folder;
  const std::string path = folder / "table";
  const product_table table = table_of_all();
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  const auto seconds_on = [&](const device_options& o) {
    stand_in::machine is;
    is.ways = {100 * second, second}, is.cublaslt = CUBLAS_VERSION;
    stand_in::begin(is);
    told.clear();
    const std::unique_ptr<device> made = make_cuda_device(typeid(cuda), o);
    auto& on = static_cast<cuda&>(*made);
    const product_operands with(on, forward);
    return std::lround(seconds_of(on, on.products().prepare(forward), with));
  };
  const device_options given{.threads = 1, .product_table = path, .tell = &tell};
  BOOST_TEST(seconds_on({.threads = 1, .tell = &tell}) == 100);
  write(text_of(table));
  BOOST_TEST(seconds_on(given) == 1);
  BOOST_TEST(told.empty());
  const std::string here = "stand-in and cuBLASLt " + dotted_version(cublasLtGetVersion());
  using change = void (*)(tuned_machine&);
  for (const change f :
       std::initializer_list<change>{[](tuned_machine& m) { m.gpu = "another"; },
                                     [](tuned_machine& m) { m.capability = "9.1"; },
                                     [](tuned_machine& m) { ++m.cublaslt; }}) {
    product_table other = table;
    f(other.machines[0].machine);
    write(text_of(other));
    BOOST_TEST(seconds_on(given) == 100);
    BOOST_REQUIRE(told.size() == 1u);
    BOOST_TEST(told[0] == "the product table " + path + " has nothing for " + here +
                              ", on which this runs, but for " + other.machines[0].machine.text() +
                              ", A \"GPU\" and cuBLASLt 0.0.7: it is not used; megacpp_gpu --tune "
                              "measures products here");
    device_options quiet = given;
    quiet.tell = nullptr; // as another rank than the first
    BOOST_TEST(seconds_on(quiet) == 100);
    BOOST_TEST(told.empty());
  }
  // What is wrong with the file shows before there is a device.
  write("{\"format\": 3}");
  stand_in::begin({.devices = 0});
  for (const bool there : {true, false}) {
    if (!there) std::filesystem::remove(path);
    try {
      (void)make_cuda_device(typeid(cuda), given);
      BOOST_TEST(false);
    } catch (const error& e) {
      BOOST_TEST((e.code() == exit_code::usage));
      BOOST_TEST(contains(e.what(), path), e.what());
      BOOST_TEST(contains(e.what(), there ? "field \"format\" is the number 3" : "does not exist"),
                 e.what());
    }
  }
}

// Before anything is started on a device, it is asked whether it can run the program.
BOOST_AUTO_TEST_CASE(a_device_that_cannot_run_the_program_is_refused) {
  const auto make = [] { const auto made = make_cuda_device(typeid(cuda), {.threads = 1}); };
  struct machine_refused {
    stand_in::machine is;
    std::string says;
  };
  for (const auto& [is, says] : {
           machine_refused{{.capability = {8, 0}},
                           "device 0 (stand-in) has compute capability 8.0, and the kernels of "
                           "this program are compiled for 9.0: build it with "
                           "-DMEGACPP_CUDA_ARCHITECTURES=80, give another device, or build it with "
                           "device=cpu"},
           machine_refused{{.capability = {10, 3}}, "-DMEGACPP_CUDA_ARCHITECTURES=103a, "},
           machine_refused{{.cublaslt = 120300},
                           "cuBLASLt 12.3.0 is older than " + dotted_version(CUBLAS_VERSION) +
                               ", with which this program was built: let it find that version or "
                               "a later one (LD_LIBRARY_PATH), or build it where it runs"},
       }) {
    stand_in::begin(is);
    try {
      make();
      BOOST_ERROR("nothing was refused");
    } catch (const error& e) {
      BOOST_TEST((e.code() == exit_code::machine));
      BOOST_TEST(contains(e.what(), says), e.what());
    }
    BOOST_TEST(stand_in::calls("kernel").empty());
  }
  for (const int more : {0, 100}) {
    stand_in::begin({.cublaslt = static_cast<std::size_t>(CUBLAS_VERSION + more)});
    make();
  }
}
