#include "arguments.h"

#include <array>
#include <charconv>

namespace strata::torch_ops {

void SchemaWriter::tensor_argument(ArgumentName name, const TensorView&, TensorUse use) {
  std::string type = "Tensor";
  if (use.is_written && has_marks_) {
    type += '(';
    type += next_mark_++;
    type += "!)";
  }
  if (use.is_optional) type += '?';
  add(type, name, use.is_optional ? "None" : "", use.is_optional ? ArgumentKind::optional_tensor : ArgumentKind::tensor);
}

void SchemaWriter::add(std::string_view type, ArgumentName name, const std::string& value, ArgumentKind kind) {
  if (!arguments_.empty()) arguments_ += ", ";
  arguments_ += type;
  arguments_ += ' ';
  arguments_ += name.text();
  if (!value.empty()) arguments_ += '=' + value;
  kinds_.push_back(kind);
}

std::string SchemaWriter::shortest_text(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  std::string result(text.data(), end.ptr);
  // A schema's float has a point or an exponent.
  if (result.find_first_of(".e") == std::string::npos) result += ".0";
  return result;
}

}  // namespace strata::torch_ops
