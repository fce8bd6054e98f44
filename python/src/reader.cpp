#include "reader.h"

namespace strata::torch_ops {

OwnedArguments::~OwnedArguments() {
  for (size_t i = 0; i < kinds_.size(); ++i) {
    switch (kinds_[i]) {
      case ArgumentKind::plain: break;
      case ArgumentKind::tensor: aoti_torch_delete_tensor_object(pointer_of<AtenTensorOpaque>(stack_[i])); break;
      case ArgumentKind::optional_tensor:
      case ArgumentKind::optional_text:
        if (stack_[i] == 0) break;
        auto* value = pointer_of<StableIValue>(stack_[i]);
        if (kinds_[i] == ArgumentKind::optional_tensor) {
          aoti_torch_delete_tensor_object(pointer_of<AtenTensorOpaque>(*value));
        } else {
          torch_delete_string(pointer_of<StringOpaque>(*value));
        }
        delete value;
    }
  }
}

void Reader::text_argument(ArgumentName, std::string& field) {
  const StableIValue value = *next_++;
  if (value == 0) return;
  StringOpaque* const handle = pointer_of<StringOpaque>(*pointer_of<StableIValue>(value));
  const char* text = nullptr;
  size_t length = 0;
  check_torch(torch_string_c_str(handle, &text), "torch_string_c_str");
  check_torch(torch_string_length(handle, &length), "torch_string_length");
  field.assign(text, length);
}

void Reader::check_range(ArgumentName name, int64_t value, int64_t low, int64_t high) const {
  if (value >= low && value <= high) return;
  throw_invalid(op_, name, "must be " + std::to_string(low) + " to " + std::to_string(high) + ", is " + std::to_string(value));
}

}  // namespace strata::torch_ops
