// The arguments of a torch op. A function `fields(visitor, params)` for each op (ops/*.h) lists them once: SchemaWriter makes the op's
// schema of that list, Reader (reader.h) the params of a call. docs/python.md says how arguments are named.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "strata/kv_format.h"
#include "strata/ops/linear.h"
#include "strata/tensor.h"

namespace strata::torch_ops {

// "query_prologue_positions" is {"query_prologue", "positions", ""}; "cache_page_size" is {"", "cache", "page_size"}.
struct ArgumentName {
  std::string_view group{};
  std::string_view name{};
  std::string_view suffix{};

  // Of the schema: joined by '_'.
  std::string text() const {
    std::string result(group);
    if (!group.empty()) result += '_';
    result += name;
    if (!suffix.empty()) result += '_';
    return result += suffix;
  }
};

// How an op uses a tensor.
struct TensorUse {
  bool is_written = false;
  bool is_optional = false;
  std::optional<DType> bytes_are{};  // a tensor of bytes is read as this dtype, which torch's stable ABI cannot name
};

// What a value of torch's stack owns.
enum class ArgumentKind : uint8_t { plain, tensor, optional_tensor, optional_text };

// A list is visited twice: arguments without a default come first.
enum class Pass : uint8_t { required, optional };

// The calls that a list of arguments consists of. Self has tensor_argument(), cache_memory(), cache_complete(), check_rows_of_slot(),
// scalar_argument(), text_argument(), begin_group(), end_group() and own_weight().
template <class Self>
class Visitor {
 public:
  explicit Visitor(Pass pass) : pass_(pass) {}

  void in(std::string_view name, TensorView& view, std::optional<DType> bytes_are = {}) { tensor(name, view, {false, false, bytes_are}); }
  void in_opt(std::string_view name, TensorView& view, std::optional<DType> bytes_are = {}) {
    tensor(name, view, {false, true, bytes_are});
  }
  void out(std::string_view name, TensorView& view) { tensor(name, view, {true, false, {}}); }
  void out_opt(std::string_view name, TensorView& view, std::optional<DType> bytes_are = {}) {
    tensor(name, view, {true, true, bytes_are});
  }
  void cache_in(std::string_view name, PagedCache& c) { cache(name, c, {false, false, {}}); }
  void cache_in_opt(std::string_view name, PagedCache& c) { cache(name, c, {false, true, {}}); }
  void cache_out(std::string_view name, PagedCache& c) { cache(name, c, {true, false, {}}); }
  void cache_out_opt(std::string_view name, PagedCache& c) { cache(name, c, {true, true, {}}); }
  // A number, flag or enumeration that every call gives.
  template <class T>
  void value(std::string_view name, T& field) {
    scalar({group_, name}, field, false);
  }
  // One whose default is the field's.
  template <class T>
  void option(std::string_view name, T& field) {
    scalar({group_, name}, field, true);
  }
  void text(std::string_view name, std::string& field) {
    if (!skips(true)) self().text_argument({group_, name}, field);
  }
  // A prologue or epilogue. It is present if one of its tensors is given.
  template <class Group>
  void group(std::string_view name, std::optional<Group>& field) {
    if (pass_ == Pass::required) return;
    group_ = name;
    self().begin_group();
    Group members{};
    fields(self(), members);
    if (self().end_group()) field = members;
    group_ = {};
  }
  // The last cache has this many rows a slot.
  void rows_of_slot(std::string_view name, const PagedCache& c, int64_t rows) {
    if (pass_ == Pass::optional) self().check_rows_of_slot({group_, name}, c, rows);
  }
  void weight(const LinearWeight*& field) {
    LinearWeight& weight = self().own_weight();
    fields(self(), weight);
    field = &weight;
  }
  void set_pass(Pass pass) { pass_ = pass; }

 private:
  Self& self() { return static_cast<Self&>(*this); }
  // Members of a group have defaults, since the group may be absent.
  bool is_optional(bool optional) const { return optional || !group_.empty(); }
  bool skips(bool optional) const { return is_optional(optional) != (pass_ == Pass::optional); }
  void tensor(std::string_view name, TensorView& view, TensorUse use) {
    if (skips(use.is_optional)) return;
    use.is_optional = is_optional(use.is_optional);
    self().tensor_argument({group_, name}, view, use);
  }
  void cache(std::string_view name, PagedCache& c, TensorUse use) {
    use.is_optional = is_optional(use.is_optional);
    if (!skips(use.is_optional)) self().cache_memory({group_, name}, c, use);
    scalar({group_, name, "format"}, c.format, use.is_optional);
    scalar({group_, name, "row_dim"}, c.row_dim, use.is_optional);
    scalar({group_, name, "page_size"}, c.page_size, use.is_optional);
    scalar({group_, name, "num_pages"}, c.num_pages, use.is_optional);
    scalar({group_, name, "page_stride"}, c.page_stride, use.is_optional);
    scalar({group_, name, "scale"}, c.scale, true);
    if (!skips(use.is_optional)) self().cache_complete({group_, name}, c);
  }
  template <class T>
  void scalar(ArgumentName name, T& field, bool optional) {
    if (!skips(optional)) self().scalar_argument(name, field, is_optional(optional));
  }

  Pass pass_;
  std::string_view group_{};
};

// Writes "Tensor x, int weight_n, Tensor(a!) y, float eps=1e-06".
class SchemaWriter : public Visitor<SchemaWriter> {
 public:
  // Without marks no tensor is marked as written.
  explicit SchemaWriter(bool has_marks) : Visitor(Pass::required), has_marks_(has_marks) {}

  void tensor_argument(ArgumentName name, const TensorView&, TensorUse use);
  void cache_memory(ArgumentName name, const PagedCache&, TensorUse use) { tensor_argument(name, {}, use); }
  void cache_complete(ArgumentName, const PagedCache&) {}
  void check_rows_of_slot(ArgumentName, const PagedCache&, int64_t) {}
  template <class T>
  void scalar_argument(ArgumentName name, const T& field, bool optional) {
    constexpr std::string_view kType = std::is_same_v<T, bool> ? "bool" : std::is_floating_point_v<T> ? "float" : "int";
    add(kType, name, optional ? default_text(field) : std::string(), ArgumentKind::plain);
  }
  void text_argument(ArgumentName name, const std::string&) { add("str?", name, "None", ArgumentKind::optional_text); }
  void begin_group() {}
  bool end_group() { return false; }
  LinearWeight& own_weight() { return weight_; }

  const std::string& arguments() const { return arguments_; }
  const std::vector<ArgumentKind>& kinds() const { return kinds_; }

 private:
  void add(std::string_view type, ArgumentName name, const std::string& value, ArgumentKind kind);
  template <class T>
  static std::string default_text(T value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value ? "True" : "False";
    } else if constexpr (std::is_floating_point_v<T>) {
      return shortest_text(value);
    } else {
      return std::to_string(static_cast<int64_t>(value));
    }
  }
  static std::string shortest_text(float value);

  bool has_marks_;
  char next_mark_ = 'a';
  LinearWeight weight_{};
  std::string arguments_{};
  std::vector<ArgumentKind> kinds_{};
};

}  // namespace strata::torch_ops
