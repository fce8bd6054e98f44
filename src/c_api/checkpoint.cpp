#include "strata/c/checkpoint.h"

#include "c_api/arrays.h"
#include "c_api/convert.h"
#include "c_api/model_config.h"
#include "c_api/objects.h"
#include "strata/checkpoint.h"

namespace strata::c_api {

STRATA_STRUCT(strata_stored_tensor, 48);
STRATA_STRUCT(strata_synthesize_options, 40);

namespace {

static_assert(same(STRATA_STORED_BOOL, StoredDType::boolean) && same(STRATA_STORED_F4, StoredDType::f4) &&
              same(STRATA_STORED_F6_E2M3, StoredDType::f6_e2m3) && same(STRATA_STORED_F6_E3M2, StoredDType::f6_e3m2) &&
              same(STRATA_STORED_U8, StoredDType::u8) && same(STRATA_STORED_I8, StoredDType::i8) &&
              same(STRATA_STORED_E5M2, StoredDType::e5m2) && same(STRATA_STORED_E4M3, StoredDType::e4m3) &&
              same(STRATA_STORED_E8M0, StoredDType::e8m0) && same(STRATA_STORED_E4M3FNUZ, StoredDType::e4m3fnuz) &&
              same(STRATA_STORED_E5M2FNUZ, StoredDType::e5m2fnuz) && same(STRATA_STORED_I16, StoredDType::i16) &&
              same(STRATA_STORED_U16, StoredDType::u16) && same(STRATA_STORED_F16, StoredDType::f16) &&
              same(STRATA_STORED_BF16, StoredDType::bf16) && same(STRATA_STORED_I32, StoredDType::i32) &&
              same(STRATA_STORED_U32, StoredDType::u32) && same(STRATA_STORED_F32, StoredDType::f32) &&
              same(STRATA_STORED_C64, StoredDType::c64) && same(STRATA_STORED_F64, StoredDType::f64) &&
              same(STRATA_STORED_I64, StoredDType::i64) && same(STRATA_STORED_U64, StoredDType::u64) && StoredDType::kCount == 22);
// Every row of StoredDType's table, by its name: the number of a type is its Value.
StoredDType::Value value_of(StoredDType dtype) {
  for (int32_t i = 0; i < StoredDType::kCount; ++i) {
    if (StoredDType(static_cast<StoredDType::Value>(i)) == dtype) return static_cast<StoredDType::Value>(i);
  }
  return StoredDType::u8;
}

StoredTensor to_stored(const strata_stored_tensor& t) {
  const std::string name(to_text(t.name, "tensor.name"));
  const auto extents = to_span(t.shape, t.rank, "tensor.shape");
  require(t.bytes >= 0, "tensor {}: bytes: expected at least 0, is {}", name, t.bytes);
  return {.name = name,
          .dtype = to_enum(t.dtype, StoredDType::u64, "tensor.dtype"),
          .shape = {extents.begin(), extents.end()},
          .data = static_cast<const std::byte*>(t.data),
          .bytes = static_cast<size_t>(t.bytes)};
}

strata_stored_tensor from_stored(const StoredTensor& tensor) {
  strata_stored_tensor t = strata_stored_tensor_default();
  t.name = tensor.name.c_str();
  t.dtype = static_cast<int32_t>(value_of(tensor.dtype));
  t.rank = static_cast<int32_t>(tensor.shape.size());
  t.shape = tensor.shape.data();
  t.data = tensor.data;
  t.bytes = static_cast<int64_t>(tensor.bytes);
  return t;
}

// Writes what was found, if anything was.
void write_found(const StoredTensor* tensor, const StructResult<strata_stored_tensor>& out, int32_t* found) {
  if (tensor != nullptr) out.write(from_stored(*tensor));
  if (found != nullptr) *found = tensor != nullptr ? 1 : 0;
}

const StoredTensor& require_tensor(const Checkpoint& checkpoint, std::string_view name) {
  const StoredTensor* tensor = checkpoint.find(name);
  if (tensor == nullptr) {
    fail(ErrorCode::invalid_file, "{}: tensor {}: expected in the checkpoint, is missing", checkpoint.directory().string(), name);
  }
  return *tensor;
}

}  // namespace
}  // namespace strata::c_api

using namespace strata;
using namespace strata::c_api;

const char* strata_stored_dtype_name(strata_stored_dtype dtype) noexcept {
  const bool known = dtype >= 0 && dtype < StoredDType::kCount;
  return known ? c_text(StoredDType(static_cast<StoredDType::Value>(dtype)).name()) : nullptr;
}
strata_status strata_stored_dtype_from_name(const char* name, strata_stored_dtype* dtype) noexcept {
  return guarded([&] {
    strata_stored_dtype& out = result(dtype, "dtype");
    const auto known = StoredDType::from_name(to_text(name, "name"));
    require(known.has_value(), "name: expected a dtype of safetensors, is {}", name);
    out = static_cast<int32_t>(value_of(*known));
  });
}

strata_status strata_checkpoint_open(const char* directory, const strata_config_options* options, strata_checkpoint* checkpoint) noexcept {
  return guarded([&] {
    strata_checkpoint& out = result(checkpoint, "checkpoint");
    const std::filesystem::path path(to_text(directory, "directory"));
    out = make_handle<strata_checkpoint>(std::make_shared<Checkpoint>(path, to_config_options(options)));
  });
}
strata_status strata_checkpoint_create(strata_model_config config, const strata_stored_tensor* tensors, int64_t num_tensors,
                                       strata_checkpoint* checkpoint) noexcept {
  return guarded([&] {
    strata_checkpoint& out = result(checkpoint, "checkpoint");
    const auto of = find(config);
    check_structs(tensors, num_tensors, "tensors");
    std::vector<StoredTensor> given;
    for (int64_t i = 0; i < num_tensors; ++i) given.push_back(to_stored(read_element(tensors, i, "tensors")));
    out = make_handle<strata_checkpoint>(std::make_shared<Checkpoint>(*of, std::move(given)));
  });
}
strata_status strata_checkpoint_destroy(strata_checkpoint checkpoint) noexcept { return destroy(checkpoint); }

strata_status strata_checkpoint_get_config(strata_checkpoint checkpoint, strata_model_config* config) noexcept {
  return guarded([&] {
    strata_model_config& out = result(config, "config");
    out = make_handle<strata_model_config>(std::make_shared<ModelConfig>(find(checkpoint)->config()));
  });
}
strata_status strata_checkpoint_directory(strata_checkpoint checkpoint, char* text, int64_t size, int64_t* needed) noexcept {
  return guarded([&] { write_text(find(checkpoint)->directory().string(), text, size, needed); });
}
strata_status strata_checkpoint_attention_layers(strata_checkpoint checkpoint, int64_t* layers, int64_t capacity, int64_t* count) noexcept {
  return guarded([&] { write_values(find(checkpoint)->attention_layers(), layers, capacity, count, "layers"); });
}
strata_status strata_checkpoint_attention_names(strata_checkpoint checkpoint, int64_t layer, const char** names, int64_t capacity,
                                                int64_t* count) noexcept {
  return guarded([&] {
    const auto of = find(checkpoint);
    std::vector<const char*> texts;
    for (const std::string& name : of->attention_names(layer)) texts.push_back(name.c_str());
    write_values(texts, names, capacity, count, "names");
  });
}
strata_status strata_checkpoint_names(strata_checkpoint checkpoint, char* text, int64_t size, int64_t* needed, int64_t* count) noexcept {
  return guarded([&] {
    const std::vector<std::string> names = find(checkpoint)->names();
    std::string all;
    for (const std::string& name : names) all.append(name).push_back('\0');
    if (!all.empty()) all.pop_back();  // write_text adds the last zero
    write_text(all, text, size, needed);
    if (count != nullptr) *count = std::ssize(names);
  });
}

strata_status strata_checkpoint_find(strata_checkpoint checkpoint, const char* name, strata_stored_tensor* tensor,
                                     int32_t* found) noexcept {
  return guarded([&] {
    const StructResult out(tensor, "tensor");
    const auto of = find(checkpoint);
    const std::string_view wanted = to_text(name, "name");
    write_found(found == nullptr ? &require_tensor(*of, wanted) : of->find(wanted), out, found);
  });
}
strata_status strata_checkpoint_find_in_layer(strata_checkpoint checkpoint, int64_t layer, const char* suffix, strata_stored_tensor* tensor,
                                              int32_t* found) noexcept {
  return guarded([&] {
    const StructResult out(tensor, "tensor");
    const auto of = find(checkpoint);
    const std::string_view wanted = to_text(suffix, "suffix");
    write_found(found == nullptr ? &of->require(layer, wanted) : of->find(layer, wanted), out, found);
  });
}
strata_status strata_checkpoint_release(strata_checkpoint checkpoint, const char* name) noexcept {
  return guarded([&] {
    const auto of = find(checkpoint);
    of->release(require_tensor(*of, to_text(name, "name")));
  });
}
strata_status strata_checkpoint_kv_scale(strata_checkpoint checkpoint, int64_t layer, float* scale) noexcept {
  return guarded([&] {
    float& out = result(scale, "scale");
    out = find(checkpoint)->kv_scale(layer);
  });
}

strata_status strata_synthesize_checkpoint(strata_model_config config, const strata_synthesize_options* options, const char* directory,
                                           strata_progress progress, void* user) noexcept {
  return guarded([&] {
    const auto of = find(config);
    SynthesizeOptions o;
    if (options != nullptr) {
      const strata_synthesize_options given = read_struct(options, "options");
      o = {.num_layers = given.num_layers,
           .fp8 = to_bool(given.fp8, "options.fp8"),
           .seed = given.seed,
           .overwrite = to_bool(given.overwrite, "options.overwrite")};
    }
    const std::filesystem::path path(to_text(directory, "directory"));
    std::function<void(size_t, size_t)> call;
    if (progress != nullptr) {
      call = [&](size_t written, size_t total) {
        run_callback("progress", [&] { return progress(user, static_cast<int64_t>(written), static_cast<int64_t>(total)); });
      };
    }
    synthesize_checkpoint(*of, o, path, call);
  });
}
