#include "checkpoint/file_kind.h"

#include <algorithm>
#include <array>

namespace strata {
namespace {

struct Kind {
  std::string_view begin;
  std::string_view what;
};
// Two bytes may also be the length of a safetensors header, after which JSON begins.
constexpr size_t kHeaderLengthBytes = 8;
bool begins(std::string_view text, const Kind& kind) {
  const bool may_be_length = kind.begin.size() < 3 && text.size() > kHeaderLengthBytes && text[kHeaderLengthBytes] == '{';
  return text.starts_with(kind.begin) && !may_be_length;
}
constexpr std::string_view kPickle = "a PyTorch pickle (.bin, .pt): convert it to safetensors";
constexpr std::array<Kind, 11> kKinds{{
    {"version https://git-lfs.github.com/spec/", "a git-lfs pointer, not the file that it stands for: run \"git lfs pull\""},
    {std::string_view("PK\x03\x04", 4), kPickle},  // a zip, as torch.save writes it
    {"\x80\x02", kPickle},                         // the pickle protocols 2 to 4
    {"\x80\x03", kPickle},
    {"\x80\x04", kPickle},
    {"GGUF", "a GGUF file: safetensors of the original model are needed"},
    {"\x1f\x8b", "compressed by gzip: decompress it"},
    {"(\xb5\x2f\xfd", "compressed by zstd: decompress it"},
    {"\x89HDF", "an HDF5 file: convert it to safetensors"},
    {"\xff\xfe", "UTF-16 text: save it as UTF-8"},
    {"\xfe\xff", "UTF-16 text: save it as UTF-8"},
}};

bool begins_ignoring_case(std::string_view text, std::string_view begin) {
  return text.size() >= begin.size() && std::equal(begin.begin(), begin.end(), text.begin(), [](char a, char b) {
           return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b - 'A' + 'a') : b);
         });
}

}  // namespace

std::optional<std::string> file_kind(std::string_view begin) {
  for (const Kind& kind : kKinds) {
    if (begins(begin, kind)) return std::string(kind.what);
  }
  if (begin.starts_with("\xef\xbb\xbf")) begin.remove_prefix(3);  // a byte order mark
  begin.remove_prefix(std::min(begin.find_first_not_of(" \t\r\n"), begin.size()));
  const auto is_html = [&](std::string_view tag) { return begins_ignoring_case(begin, tag); };
  if (is_html("<!doctype") || is_html("<html") || is_html("<head") || is_html("<body") || is_html("<!--")) {
    return "an HTML page, such as a login or error page: download the file again";
  }
  if (begins_ignoring_case(begin, "<?xml") || begins_ignoring_case(begin, "<error")) {
    return "an XML page, such as an error of the server: download the file again";
  }
  return std::nullopt;
}

}  // namespace strata
