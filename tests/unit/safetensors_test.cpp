// SafetensorsFile and write_safetensors: round trips, and every way in which a file can be wrong.

#include <fmt/format.h>
#include <sys/stat.h>

#include "checkpoint/safetensors_writer.h"
#include "checkpoint_files.h"

namespace strata::test {
namespace {

constexpr const char* kGood =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";

TEST(Safetensors, ReadsTensorsByNameAscending) {
  const TempDir dir;
  const SafetensorsFile file(dir.write("x.safetensors", safetensors_bytes(std::string(kGood) + "   ", 11)));
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, "b");
  const StoredTensor* b = file.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::u8);
  EXPECT_EQ(b->numel(), 3);
  EXPECT_EQ(std::to_integer<int>(b->data[0]), 8);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(file.find(""), nullptr);
}

TEST(Safetensors, RoundTripOfEveryDtype) {
  const TempDir dir;
  TensorList list;
  // Names are not in order and sizes leave later tensors unaligned, as the format allows.
  list.add<uint8_t>("z", DType::u8, {3}, {1, 2, 3});
  list.add<double>("f64", DType::f64, {1, 2}, {0.5, -1.0});
  list.add<float>("f32", DType::f32, {2}, {0.25f, 3.0f});
  list.add<uint16_t>("bf16", DType::bf16, {1}, {0x3F80});
  list.add<uint16_t>("f16", DType::f16, {1}, {0x3C00});
  list.add<uint8_t>("e4m3", DType::e4m3, {2, 1}, {0x38, 0xB8});
  list.add<uint8_t>("e8m0", DType::e8m0, {1}, {127});
  list.add<int64_t>("i64", DType::i64, {1}, {-5});
  list.add<int32_t>("i32", DType::i32, {1}, {-6});
  list.add<int16_t>("i16", DType::i16, {1}, {-7});
  list.add<int8_t>("i8", DType::i8, {1}, {-8});
  list.add<uint8_t>("bool", DType::boolean, {1}, {1});
  // Types that are only stored. Elements of less than a byte are packed without gaps.
  list.add<uint8_t>("f4", StoredDType::f4, {2, 3}, {0x21, 0x43, 0x65});
  list.add<uint8_t>("f6_e2m3", StoredDType::f6_e2m3, {4}, {1, 2, 3});
  list.add<uint8_t>("f6_e3m2", StoredDType::f6_e3m2, {2, 2}, {4, 5, 6});
  list.add<uint8_t>("e5m2", StoredDType::e5m2, {1}, {7});
  list.add<uint8_t>("e4m3fnuz", StoredDType::e4m3fnuz, {1}, {8});
  list.add<uint8_t>("e5m2fnuz", StoredDType::e5m2fnuz, {1}, {9});
  list.add<uint16_t>("u16", StoredDType::u16, {1}, {10});
  list.add<uint32_t>("u32", StoredDType::u32, {1}, {11});
  list.add<uint64_t>("u64", StoredDType::u64, {1}, {12});
  list.add<float>("c64", StoredDType::c64, {1}, {13.0f, 14.0f});
  list.add<float>("scalar", DType::f32, {}, {7.0f});
  list.add<float>("empty", DType::f32, {0, 4}, {});
  list.write(dir.path() / "x.safetensors");
  const SafetensorsFile file(dir.path() / "x.safetensors");
  ASSERT_EQ(std::ssize(file.tensors()), StoredDType::kCount + 2);
  EXPECT_EQ(file.find("f4")->bytes, 3u);
  EXPECT_EQ(file.find("f6_e3m2")->bytes, 3u);
  EXPECT_EQ(file.find("c64")->bytes, 8u);
  for (const StoredTensor& t : file.tensors()) {
    if (t.name == "z" || t.name == "scalar" || t.name == "empty") continue;
    EXPECT_EQ(t.dtype, list.dtype(t.name)) << t.name;
  }
  EXPECT_EQ(file.find("i64")->dtype, DType::i64);
  int64_t value = 0;
  std::memcpy(&value, file.find("i64")->data, sizeof(value));
  EXPECT_EQ(value, -5);
  EXPECT_EQ(file.find("e4m3")->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(file.find("scalar")->numel(), 1);
  EXPECT_EQ(file.find("empty")->numel(), 0);
  for (const StoredTensor& tensor : file.tensors()) {
    const std::string before(reinterpret_cast<const char*>(tensor.data), tensor.bytes);
    file.release(tensor);
    EXPECT_EQ(before, std::string(reinterpret_cast<const char*>(tensor.data), tensor.bytes)) << tensor.name;
  }
}

TEST(Safetensors, DtypesAreThoseOfTheFormat) {
  // name and bits, as the format has them, in its order.
  const std::vector<std::pair<const char*, int>> format{
      {"BOOL", 8},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
      {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16}, {"F16", 16}, {"BF16", 16},   {"I32", 32},
      {"U32", 32},    {"F32", 32},        {"C64", 64},        {"F64", 64},    {"I64", 64}, {"U64", 64}};
  ASSERT_EQ(std::ssize(format), StoredDType::kCount);
  for (size_t i = 0; i < format.size(); ++i) {
    const StoredDType dtype = static_cast<StoredDType::Value>(i);
    EXPECT_EQ(dtype.name(), format[i].first);
    EXPECT_EQ(dtype.bits(), format[i].second) << format[i].first;
    EXPECT_EQ(StoredDType::from_name(format[i].first), dtype);
    if (dtype.dtype()) {
      EXPECT_EQ(StoredDType(*dtype.dtype()), dtype) << "a DType and its stored type are one";
      EXPECT_EQ(static_cast<int64_t>(size_of(*dtype.dtype())) * 8, dtype.bits());
      EXPECT_EQ(to_string(dtype), to_string(*dtype.dtype()));
    } else {
      EXPECT_EQ(to_string(dtype), dtype.name());
    }
  }
  EXPECT_EQ(StoredDType::from_name("F8"), std::nullopt);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::e4m3, DType::e8m0, DType::i64, DType::i32, DType::i16,
                            DType::i8, DType::u8, DType::boolean}) {
    EXPECT_EQ(StoredDType(dtype).dtype(), dtype) << to_string(dtype);
  }
}

TEST(Safetensors, HeaderIsPaddedSoThatDataIsAligned) {
  const TempDir dir;
  TensorList list;
  list.add<float>("odd name", DType::f32, {1}, {1.0f});
  list.write(dir.path() / "x.safetensors");
  std::ifstream in(dir.path() / "x.safetensors", std::ios::binary);
  EXPECT_EQ(in.get() % 8, 0);
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "x.safetensors.partial"));
}

TEST(Safetensors, MovedFileKeepsItsTensors) {
  const TempDir dir;
  SafetensorsFile first(dir.write("x.safetensors", safetensors_bytes(kGood, 11)));
  const StoredTensor* a = first.find("a");
  SafetensorsFile second(std::move(first));
  EXPECT_EQ(second.find("a"), a);
  first = std::move(second);
  EXPECT_EQ(first.find("a")->bytes, 8u);
}

struct Malformed {
  const char* name;
  std::string header;
  size_t data_bytes;
  std::vector<std::string> parts;  // of the message
};
class MalformedHeader : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedHeader, IsRefused) {
  const TempDir dir;
  const auto path = dir.write("bad.safetensors", safetensors_bytes(GetParam().header, GetParam().data_bytes));
  const std::string message = message_of(ErrorCode::invalid_file, [&] { SafetensorsFile file(path); });
  expect_parts(message, {"bad.safetensors"});
  expect_parts(message, GetParam().parts);
}

std::string one(const std::string& entry) { return R"({"t":)" + entry + "}"; }

INSTANTIATE_TEST_SUITE_P(
    Cases, MalformedHeader,
    ::testing::Values(
        Malformed{"empty", "", 0, {"header", "expected to begin with '{'", "is empty"}},
        Malformed{"array", "[]", 0, {"header", "expected to begin with '{'", "0x5b"}},
        Malformed{"leading_space", " {}", 0, {"expected to begin with '{'", "0x20"}},
        Malformed{"not_json", "{\"t\":", 0, {"header", "expected valid JSON"}},
        Malformed{"trailing_text", "{} x", 0, {"expected valid JSON"}}, Malformed{"not_utf8", "{\"\xff\":1}", 0, {"expected valid JSON"}},
        Malformed{"deep", "{\"t\":" + std::string(5000, '['), 0, {"nesting", "at most 64 levels"}},
        Malformed{"duplicate_name",
                  R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                  2,
                  {"\"t\"", "expected once", "found twice"}},
        Malformed{"entry_not_object", one("3"), 0, {"\"t\"", "expected an object", "is 3"}},
        Malformed{"unknown_key", one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1})"), 1, {"\"t\"", "data_offsets", "\"x\""}},
        Malformed{"no_dtype", one(R"({"shape":[1],"data_offsets":[0,1]})"), 1, {"\"t\"", "dtype", "missing"}},
        Malformed{
            "unknown_dtype", one(R"({"dtype":"F7","shape":[1],"data_offsets":[0,1]})"), 1, {"\"t\"", "dtype", "BF16, I32, U32", "\"F7\""}},
        Malformed{
            "half_a_byte", one(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})"), 1, {"\"t\"", "whole number of bytes of F4", "[3]"}},
        Malformed{"three_quarters", one(R"({"dtype":"F6_E2M3","shape":[1],"data_offsets":[0,1]})"), 1, {"whole number of bytes", "[1]"}},
        Malformed{"sub_byte_size", one(R"({"dtype":"F4","shape":[4],"data_offsets":[0,4]})"), 4, {"2 bytes for F4[4]", "is 4 bytes"}},
        Malformed{"dtype_number", one(R"({"dtype":4,"shape":[1],"data_offsets":[0,1]})"), 1, {"\"t\"", "dtype", "is 4"}},
        Malformed{"no_shape", one(R"({"dtype":"U8","data_offsets":[0,1]})"), 1, {"\"t\"", "shape", "missing"}},
        Malformed{"shape_text", one(R"({"dtype":"U8","shape":"1","data_offsets":[0,1]})"), 1, {"shape", "array of integers", "\"1\""}},
        Malformed{"shape_negative", one(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})"), 1, {"shape", ">= 0", "[-1]"}},
        Malformed{"shape_fraction", one(R"({"dtype":"U8","shape":[1.5],"data_offsets":[0,1]})"), 1, {"shape", "integers", "[1.5]"}},
        Malformed{"shape_beyond_63_bits",
                  one(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]})"),
                  1,
                  {"shape", "integers", "18446744073709551615"}},
        Malformed{"shape_overflow",
                  one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
                  0,
                  {"\"t\"", "shape", "fits 63 bits", "4294967296"}},
        Malformed{"no_offsets", one(R"({"dtype":"U8","shape":[1]})"), 1, {"\"t\"", "data_offsets", "missing"}},
        Malformed{"one_offset", one(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})"), 1, {"data_offsets", "two integers", "[0]"}},
        Malformed{"negative_offset", one(R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})"), 1, {"data_offsets", "[-1,0]"}},
        Malformed{"decreasing", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})"), 1, {"data_offsets", "begin <= end", "[1, 0]"}},
        Malformed{
            "out_of_file", one(R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})"), 8, {"data", "expected 9 bytes", "is 8", "truncated"}},
        Malformed{"size_contradicts_shape",
                  one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
                  4,
                  {"\"t\"", "8 bytes for F32[2]", "is 4 bytes"}},
        Malformed{"overlap",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                  3,
                  {"\"b\"", "expected to begin at 2", "is 1", "overlap"}},
        Malformed{"hole",
                  R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                  3,
                  {"\"b\"", "expected to begin at 1", "is 2", "hole"}},
        Malformed{"hole_at_the_start", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})"), 2, {"begin at 0", "is 1", "hole"}},
        Malformed{"data_not_covered", one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})"), 2, {"data", "expected 1 bytes", "is 2"}},
        Malformed{"metadata_not_strings", R"({"__metadata__":{"format":1}})", 0, {"__metadata__", "object of strings", "{\"format\":1}"}},
        Malformed{"metadata_not_object", R"({"__metadata__":"pt"})", 0, {"__metadata__", "object of strings", "\"pt\""}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Safetensors, MetadataIsAccepted) {
  const TempDir dir;
  const SafetensorsFile file(dir.write("x.safetensors", safetensors_bytes(R"({"__metadata__":{"format":"pt"}})", 0)));
  EXPECT_TRUE(file.tensors().empty());
}

TEST(Safetensors, FilesThatAreTooShort) {
  const TempDir dir;
  expect_parts(message_of(ErrorCode::invalid_file, [&] { SafetensorsFile f(dir.write("empty", "")); }),
               {"at least 8 bytes", "is 0", "an empty file"});
  expect_parts(message_of(ErrorCode::invalid_file, [&] { SafetensorsFile f(dir.write("short", "1234567")); }),
               {"short", "at least 8 bytes", "is 7"});
  // Every truncation of a good file.
  const std::string good = safetensors_bytes(kGood, 11);
  for (size_t size = 0; size < good.size(); ++size) {
    const auto path = dir.write("cut", good.substr(0, size));
    message_of(ErrorCode::invalid_file, [&] { SafetensorsFile f(path); });
  }
}

TEST(Safetensors, HeaderLengthBeyondFileOrLimit) {
  const TempDir dir;
  std::string bytes = safetensors_bytes("{}", 0);
  bytes[0] = 3;
  expect_parts(message_of(ErrorCode::invalid_file, [&] { SafetensorsFile f(dir.write("x", bytes)); }),
               {"header length", "at most the 2 bytes", "is 3", "truncated"});
  bytes[7] = '\x7f';
  expect_parts(message_of(ErrorCode::invalid_file, [&] { SafetensorsFile f(dir.write("x", bytes)); }),
               {"header length", "at most 100000000 bytes", "is 9151314442816847875"});
}

// What a file contains instead when a download or a clone went wrong, or the format is another.
TEST(Safetensors, OtherFilesAreCalledWhatTheyAre) {
  const TempDir dir;
  const auto refusal = [&](const std::string& bytes) {
    return message_of(ErrorCode::invalid_file, [&] { SafetensorsFile f(dir.write("x.safetensors", bytes)); });
  };
  expect_parts(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4791080\n"),
               {"x.safetensors", "git-lfs pointer", "git lfs pull"});
  expect_parts(refusal("<!DOCTYPE html><html>"), {"HTML page", "download the file again"});
  expect_parts(refusal("\xef\xbb\xbf\r\n <HTML lang=en>"), {"HTML page"});
  expect_parts(refusal("<?xml version=\"1.0\"?><Error><Code>AccessDenied"), {"XML page"});
  expect_parts(refusal(std::string("PK\x03\x04\0\0\0\0", 8)), {"PyTorch pickle", "safetensors"});
  expect_parts(refusal("\x80\x02}q\x01X\x03..."), {"PyTorch pickle"});
  expect_parts(refusal(std::string("GGUF\x03\0\0\0", 8)), {"GGUF"});
  expect_parts(refusal("\x1f\x8b\x08......"), {"gzip"});
  for (const char* page : {"<html", "<head><title>", "<body>", "<!-- cached -->"}) expect_parts(refusal(page), {"HTML page"});
  for (const char* text : {"\xff\xfe{", "\xfe\xff{"}) expect_parts(refusal(text), {"UTF-16 text", "UTF-8"});
  // Neither: eight bytes of length, of which any values are possible.
  expect_parts(refusal("<htm...."), {"header length"});
}

// More elements than 32 bits count, more bytes than 4 GiB: a file with a hole, which takes no space.
TEST(Safetensors, TensorsOfAnySize) {
  const TempDir dir;
  const auto path =
      dir.write("x.safetensors", safetensors_bytes(R"({"a":{"dtype":"U8","shape":[65537,65536],"data_offsets":[0,4295032832]},)"
                                                   R"("b":{"dtype":"F4","shape":[4294967298],"data_offsets":[4295032832,6442516481]}})",
                                                   0));
  const auto begin = std::filesystem::file_size(path);
  const std::string cut = message_of(ErrorCode::invalid_file, [&] { SafetensorsFile f(path); });
  expect_parts(cut, {"expected 6442516481 bytes", "is 0", "truncated"});
  std::filesystem::resize_file(path, begin + 6'442'516'481);
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(begin + 6'442'516'480));
  out.put('\x2a');
  out.seekp(static_cast<std::streamoff>(begin + 4'295'032'831));
  out.put('\x29');
  out.close();
  const SafetensorsFile file(path);
  const StoredTensor& a = *file.find("a");
  EXPECT_EQ(a.numel(), 4'295'032'832);
  EXPECT_EQ(std::to_integer<int>(a.data[a.bytes - 1]), 0x29);
  EXPECT_EQ(std::to_integer<int>(a.data[int64_t{1} << 31]), 0);
  const StoredTensor& b = *file.find("b");
  EXPECT_EQ(b.bytes, 2'147'483'649u);
  EXPECT_EQ(std::to_integer<int>(b.data[b.bytes - 1]), 0x2a);
  file.release(a);
}

// As many as a model of one file has: reading them takes time in proportion, not a minute.
TEST(Safetensors, ManyTensors) {
  constexpr int kTensors = 100'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    header += fmt::format(R"({}"model.layers.{}.mlp.experts.{}.weight":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                          i == 0 ? "" : ",", i / 1000, i % 1000);
  }
  const TempDir dir;
  const SafetensorsFile file(dir.write("x.safetensors", safetensors_bytes(header + "}", 0)));
  EXPECT_EQ(file.tensors().size(), size_t{kTensors});
  EXPECT_NE(file.find("model.layers.99.mlp.experts.999.weight"), nullptr);
}

TEST(Safetensors, NotAFile) {
  const TempDir dir;
  expect_parts(message_of(ErrorCode::invalid_file, [&] { SafetensorsFile f(dir.path()); }), {"regular file", "directory"});
  expect_parts(message_of(ErrorCode::invalid_file, [&] { SafetensorsFile f(dir.path() / "absent"); }), {"absent", "open", "No such file"});
}

TEST(Safetensors, WriterRefusesWhatCannotBeAFile) {
  const TempDir dir;
  const auto path = dir.path() / "x.safetensors";
  const std::byte data[8] = {};
  const StoredTensor good{.name = "a", .dtype = DType::f32, .shape = {2}, .data = data, .bytes = 8};
  StoredTensor wrong = good;
  wrong.bytes = 4;
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { write_safetensors(path, {wrong}); }),
               {"\"a\"", "expected 8 for F32[2]", "is 4"});
  wrong = good;
  wrong.shape = {-2};
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { write_safetensors(path, {wrong}); }), {"\"a\"", "shape", "[-2]"});
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { write_safetensors(path, {good, good}); }), {"unique", "\"a\"", "given twice"});
  wrong = good;
  wrong.name = "__metadata__";
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { write_safetensors(path, {wrong}); }), {"__metadata__", "reserved"});
  wrong = good;
  wrong.data = nullptr;
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { write_safetensors(path, {wrong}); }), {"8 bytes", "null"});
  wrong = good;
  wrong.name = "\xff";
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { write_safetensors(path, {wrong}); }), {"UTF-8"});
  expect_parts(message_of(ErrorCode::invalid_file, [&] { write_safetensors(dir.path() / "no" / "x", {good}); }), {"cannot be written"});
  wrong = good;
  wrong.name.assign(17'000'000, '\x01');  // six bytes each in JSON
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { write_safetensors(path, {wrong}); }), {"header", "at most 100000000 bytes"});
  wrong = good;
  wrong.dtype = StoredDType::f4;
  wrong.shape = {17};
  expect_parts(message_of(ErrorCode::invalid_argument, [&] { write_safetensors(path, {wrong}); }),
               {"\"a\"", "whole number of bytes of F4"});
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Safetensors, WriterTakesTheBytesThatItWasTold) {
  const TempDir dir;
  const auto path = dir.path() / "x.safetensors";
  const std::byte data[8] = {};
  const std::vector<StoredTensor> list{{.name = "a", .dtype = DType::f32, .shape = {2}, .data = nullptr, .bytes = 8}};
  {
    SafetensorsWriter writer(path, list);
    writer.append(data, 6);
    expect_parts(message_of(ErrorCode::invalid_argument, [&] { writer.append(data, 3); }), {"expected 8 bytes", "got at least 9"});
    expect_parts(message_of(ErrorCode::invalid_argument, [&] { writer.finish(); }), {"expected 8 bytes", "got 6"});
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "what was not finished stays";
  {
    SafetensorsWriter writer(path, list);
    writer.append(data, 8);
    std::filesystem::create_directories(path / "not empty");
    expect_parts(message_of(ErrorCode::invalid_file, [&] { writer.finish(); }), {"x.safetensors", "cannot be put in place"});
  }
  expect_parts(message_of(ErrorCode::invalid_file, [&] { SafetensorsWriter(path, list); }), {"x.safetensors", "Is a directory"});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1) << "what was not finished stays";
}

std::vector<StoredTensor> two_floats() {
  static const float values[2] = {1, 2};
  return {{.name = "a", .dtype = DType::f32, .shape = {2}, .data = reinterpret_cast<const std::byte*>(values), .bytes = 8}};
}

// What is no regular file is written to and stays what it is; a link is followed; a file that is replaced keeps its permissions.
TEST(Safetensors, WritesThroughDevicesAndLinks) {
  namespace fs = std::filesystem;
  const TempDir dir;
  write_safetensors("/dev/null", two_floats());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));

  const fs::path file = dir.path() / "file.safetensors", link = dir.path() / "link.safetensors";
  write_safetensors(file, {});
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("file.safetensors", link);
  write_safetensors(link, two_floats());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(SafetensorsFile(file).tensors().size(), 1U);
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 2);
}

TEST(Safetensors, DoesNotWaitForPipes) {
  const TempDir dir;
  const auto pipe = dir.path() / "model.safetensors";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_parts(message_of(ErrorCode::invalid_file, [&] { SafetensorsFile{pipe}; }),
               {"model.safetensors", "expected a regular file, is a pipe"});
}

// Headers whose lengths are, as bytes, what pickles and gzip files begin with.
TEST(Safetensors, LengthsThatLookLikeOtherFiles) {
  const TempDir dir;
  for (const size_t length : {0x280U, 0x380U, 0x480U, 0x18b1fU}) {
    std::string text = R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})";
    text.resize(length, ' ');
    std::string bytes(8, '\0');
    for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
    EXPECT_EQ(SafetensorsFile(dir.write("x.safetensors", bytes + text)).tensors().size(), 1U) << length;
  }
}

}  // namespace
}  // namespace strata::test
