// The loop of an inference engine around Strata's C API: the C99 twin of engine_loop.cpp. It loads the attention layers, allocates paged
// caches, and serves requests by continuous batching. Prompts are prefilled in chunks together with requests that decode; finished requests
// give their pages back. What else an engine has (embedding, norms, MoE, sampling) is left out: a token is a row of a table of random
// hidden states, and every layer gets the same row. Requests, rows and printed lines are those of engine_loop.cpp, and so are the outputs'
// bits.
//
//   example_engine_loop_c MODEL_DIRECTORY      one that `strata synthesize` made, say
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "strata/strata.h"

enum {
  VOCABULARY = 512,
  MAX_TOKENS = 128,     // of a step
  MAX_SEQS = 4,         // requests of a step
  MAX_MODEL_LEN = 512,  // positions of a request
  CACHED_TOKENS = 1024  // positions that the running requests may hold
};

// Every call of the library goes through it.
static void check(strata_status status, const char* call) {
  if (status == STRATA_OK) return;
  fprintf(stderr, "%s: %s: %s\n", call, strata_status_name(status), strata_last_error());
  exit(EXIT_FAILURE);
}
#define CHECK(call) check((call), #call)

static const strata_stream default_stream = {0};

static void* allocate(size_t count, size_t size) {
  void* const memory = calloc(count > 0 ? count : 1, size);
  if (memory == NULL) {
    fprintf(stderr, "out of host memory\n");
    exit(EXIT_FAILURE);
  }
  return memory;
}
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

// MT19937, the generator of std::mt19937.
typedef struct mt19937 {
  uint32_t state[624];
  int next;
} mt19937;
static mt19937 mt19937_of(uint32_t seed) {
  mt19937 random;
  int i;
  random.state[0] = seed;
  for (i = 1; i < 624; ++i) random.state[i] = 1812433253u * (random.state[i - 1] ^ random.state[i - 1] >> 30) + (uint32_t)i;
  random.next = 624;
  return random;
}
static uint32_t mt19937_draw(mt19937* random) {
  uint32_t* const s = random->state;
  uint32_t y;
  if (random->next == 624) {
    int i;
    for (i = 0; i < 624; ++i) {
      y = (s[i] & 0x80000000u) | (s[(i + 1) % 624] & 0x7FFFFFFFu);
      s[i] = s[(i + 397) % 624] ^ y >> 1 ^ (y & 1 ? 0x9908B0DFu : 0);
    }
    random->next = 0;
  }
  y = s[random->next++];
  y ^= y >> 11;
  y ^= y << 7 & 0x9D2C5680u;
  y ^= y << 15 & 0xEFC60000u;
  return y ^ y >> 18;
}

// FNV-1a over the two bytes of a value, the low one first.
static uint64_t hash(uint64_t seed, uint16_t value) {
  seed = (seed ^ (value & 0xFF)) * UINT64_C(0x100000001B3);
  return (seed ^ value >> 8) * UINT64_C(0x100000001B3);
}

typedef struct request {
  int64_t id;
  int64_t prompt;     // tokens
  int64_t total;      // tokens of the prompt, and those that sampling will add
  int32_t* tokens;    // [total]
  int64_t computed;   // tokens whose keys are in the caches
  int64_t scheduled;  // tokens of the step
} request;

static request make_request(int64_t prompt) {
  mt19937 random = mt19937_of((uint32_t)prompt);
  request r;
  int64_t i;
  memset(&r, 0, sizeof r);
  r.id = prompt;
  r.prompt = prompt;
  r.total = prompt + 12;
  r.tokens = allocate((size_t)r.total, sizeof *r.tokens);
  for (i = 0; i < r.total; ++i) r.tokens[i] = (int32_t)(mt19937_draw(&random) % VOCABULARY);
  return r;
}

// The attention layers of a model with their caches, batch metadata and workspace. Device memory is shared by all layers.
typedef struct engine {
  strata_device device;
  strata_batch_limits limits;
  int64_t hidden_size;
  int64_t num_layers;
  strata_layer* layers;  // [num_layers]
  int64_t* index_topk;   // [num_layers]
  strata_pool pool;      // pages and block tables
  strata_batch_builder builder;
  void* workspace;
  int64_t workspace_bytes;
  void* topk;           // i32 [MAX_TOKENS, the largest index_topk]
  void* hidden;         // bf16 [MAX_TOKENS, hidden_size]
  void* out;            // bf16 [MAX_TOKENS, hidden_size]
  uint16_t* embedding;  // host, bf16 [VOCABULARY, hidden_size]
  uint16_t* outputs;    // host, bf16 [num_layers, MAX_TOKENS, hidden_size]: of the last step
} engine;

// Pages for all layers, and the builder of the steps' metadata.
static void make_caches(engine* e, const strata_cache_group_spec* specs, const int64_t* num_specs, int64_t window) {
  strata_layer_groups groups = strata_layer_groups_default();
  strata_pool_params pool = strata_pool_params_default();
  strata_batch_builder_params builder = strata_batch_builder_params_default();
  int64_t pages[STRATA_NUM_CACHE_GROUPS];
  groups.specs = specs;
  groups.num_specs = num_specs;
  groups.num_layers = e->num_layers;
  CHECK(strata_plan_pages(&groups, &e->limits, CACHED_TOKENS, pages, STRATA_NUM_CACHE_GROUPS));
  pool.layer_groups = &groups;
  pool.pages = pages;
  pool.num_groups = STRATA_NUM_CACHE_GROUPS;
  CHECK(strata_pool_create(e->device, &pool, &e->pool));
  builder.limits = &e->limits;
  builder.pool = e->pool;
  builder.window = window;
  CHECK(strata_batch_builder_create(e->device, &builder, &e->builder));
}

static void make_layers(engine* e, strata_checkpoint checkpoint, int64_t window) {
  strata_layer_options options = strata_layer_options_default();
  strata_layer_params params = strata_layer_params_default();
  strata_cache_group_spec* specs;  // of all layers, one layer after the other
  int64_t *numbers, *num_specs;
  int64_t l, total = 0, topk = 1;
  CHECK(strata_checkpoint_attention_layers(checkpoint, NULL, 0, &e->num_layers));
  numbers = allocate((size_t)e->num_layers, sizeof *numbers);
  num_specs = allocate((size_t)e->num_layers, sizeof *num_specs);
  specs = allocate((size_t)e->num_layers * STRATA_NUM_CACHE_GROUPS, sizeof *specs);
  e->layers = allocate((size_t)e->num_layers, sizeof *e->layers);
  e->index_topk = allocate((size_t)e->num_layers, sizeof *e->index_topk);
  CHECK(strata_checkpoint_attention_layers(checkpoint, numbers, e->num_layers, NULL));

  options.limits = &e->limits;
  params.checkpoint = checkpoint;
  params.device = e->device;
  params.options = &options;
  CHECK(strata_rope_tables_create(e->device, MAX_MODEL_LEN, &params.rope_tables));
  CHECK(strata_side_streams_create(e->device, &params.side_streams));  // on a GPU a layer overlaps work that is independent
  e->workspace_bytes = 1;
  for (l = 0; l < e->num_layers; ++l) {
    strata_layer_info info = strata_layer_info_default();
    params.layer = numbers[l];
    CHECK(strata_layer_create(&params, &e->layers[l]));
    CHECK(strata_layer_get_info(e->layers[l], &info));
    e->index_topk[l] = info.index_topk;
    e->workspace_bytes = greatest(e->workspace_bytes, info.workspace_bytes);
    topk = greatest(topk, info.index_topk);
    specs[total] = strata_cache_group_spec_default();  // its struct_size holds for all that are written
    CHECK(strata_layer_cache_groups(e->layers[l], &specs[total], STRATA_NUM_CACHE_GROUPS, &num_specs[l]));
    total += num_specs[l];
  }
  // The layers keep them.
  CHECK(strata_side_streams_destroy(params.side_streams));
  CHECK(strata_rope_tables_destroy(params.rope_tables));

  CHECK(strata_device_allocate(e->device, e->workspace_bytes, &e->workspace));
  CHECK(strata_device_allocate(e->device, MAX_TOKENS * topk * (int64_t)sizeof(int32_t), &e->topk));
  make_caches(e, specs, num_specs, window);
  free(specs);
  free(num_specs);
  free(numbers);
}

static engine make_engine(strata_checkpoint checkpoint) {
  strata_config settings = strata_config_default();
  strata_model_config config;
  strata_model_info info = strata_model_info_default();
  mt19937 random = mt19937_of(1);
  int64_t i;
  engine e;
  memset(&e, 0, sizeof e);
  e.limits = strata_batch_limits_default();
  e.limits.max_num_batched_tokens = MAX_TOKENS;
  e.limits.max_num_seqs = MAX_SEQS;
  e.limits.max_model_len = MAX_MODEL_LEN;
  settings.from_environment = 1;
  CHECK(strata_device_open("cpu", &settings, &e.device));
  CHECK(strata_checkpoint_get_config(checkpoint, &config));
  CHECK(strata_model_config_get_info(config, &info));
  CHECK(strata_model_config_destroy(config));
  e.hidden_size = info.hidden_size;
  make_layers(&e, checkpoint, info.sliding_window);
  CHECK(strata_device_allocate(e.device, MAX_TOKENS * e.hidden_size * (int64_t)sizeof(uint16_t), &e.hidden));
  CHECK(strata_device_allocate(e.device, MAX_TOKENS * e.hidden_size * (int64_t)sizeof(uint16_t), &e.out));
  e.outputs = allocate((size_t)(e.num_layers * MAX_TOKENS * e.hidden_size), sizeof *e.outputs);
  e.embedding = allocate((size_t)(VOCABULARY * e.hidden_size), sizeof *e.embedding);
  for (i = 0; i < VOCABULARY * e.hidden_size; ++i) {  // 0.5 to 2, either sign
    const uint32_t sign = mt19937_draw(&random) & 0x8000;
    e.embedding[i] = (uint16_t)(sign | (0x3F00 + mt19937_draw(&random) % 256));
  }
  return e;
}

static void destroy_engine(engine* e) {
  int64_t l;
  CHECK(strata_device_deallocate(e->device, e->workspace));
  CHECK(strata_device_deallocate(e->device, e->topk));
  CHECK(strata_device_deallocate(e->device, e->hidden));
  CHECK(strata_device_deallocate(e->device, e->out));
  CHECK(strata_batch_builder_destroy(e->builder));
  CHECK(strata_pool_destroy(e->pool));
  for (l = 0; l < e->num_layers; ++l) CHECK(strata_layer_destroy(e->layers[l]));
  CHECK(strata_device_close(e->device));
  free(e->layers);
  free(e->index_topk);
  free(e->embedding);
  free(e->outputs);
}

// Runs the step's batch through every layer, and reads each layer's outputs.
static void run_layers(engine* e, int64_t num_tokens) {
  strata_forward_args args = strata_forward_args_default();
  strata_device_id id;
  int64_t hidden_shape[2], topk_shape[2], l;
  hidden_shape[0] = num_tokens;
  hidden_shape[1] = e->hidden_size;
  CHECK(strata_device_get_id(e->device, &id));
  CHECK(strata_tensor_view_contiguous(e->hidden, STRATA_BF16, id, 2, hidden_shape, &args.hidden));
  CHECK(strata_tensor_view_contiguous(e->out, STRATA_BF16, id, 2, hidden_shape, &args.out));
  args.batch = e->builder;
  args.pool = e->pool;
  args.workspace = e->workspace;
  args.workspace_bytes = e->workspace_bytes;
  for (l = 0; l < e->num_layers; ++l) {
    args.pool_layer = l;
    memset(&args.topk_indices, 0, sizeof args.topk_indices);
    if (e->index_topk[l] > 0) {
      topk_shape[0] = MAX_TOKENS;
      topk_shape[1] = e->index_topk[l];
      CHECK(strata_tensor_view_contiguous(e->topk, STRATA_I32, id, 2, topk_shape, &args.topk_indices));
    }
    CHECK(strata_layer_forward(e->layers[l], &args));
    CHECK(strata_device_copy_to_host(e->device, e->outputs + l * MAX_TOKENS * e->hidden_size, e->out,
                                     num_tokens * e->hidden_size * (int64_t)sizeof(uint16_t), default_stream));
  }
  CHECK(strata_stream_synchronize(e->device, default_stream));
}

// Runs the scheduled tokens of the running requests through every layer. row_of[r]: the first row of request r in the outputs.
static void step(engine* e, const request* running, int64_t num_running, int64_t* row_of, strata_batch_info* info) {
  strata_batch_request requests[MAX_SEQS], ordered[MAX_SEQS];
  int64_t order[MAX_SEQS], r, i, row = 0;
  const int64_t row_bytes = e->hidden_size * (int64_t)sizeof(uint16_t);
  for (r = 0; r < num_running; ++r) {  // pages that the windows have left go back
    CHECK(strata_pool_mark_computed(e->pool, running[r].id, running[r].computed));
  }
  for (r = 0; r < num_running; ++r) {
    const int64_t end = running[r].computed + running[r].scheduled;
    int32_t extended = 0;
    CHECK(strata_pool_extend(e->pool, running[r].id, running[r].computed, end, &extended));
    if (!extended) {
      fprintf(stderr, "the caches are full\n");
      exit(EXIT_FAILURE);
    }
    requests[r] = strata_batch_request_default();
    requests[r].seq_len = end;
    requests[r].query_len = running[r].scheduled;
    requests[r].pool = e->pool;
    requests[r].pool_request = running[r].id;
    requests[r].id = running[r].id;
  }
  CHECK(strata_decode_first_order(requests, num_running, e->limits.num_speculative_tokens, order));
  for (i = 0; i < num_running; ++i) {
    const request* const of = &running[order[i]];
    int64_t t;
    ordered[i] = requests[order[i]];
    row_of[order[i]] = row;
    for (t = of->computed; t < of->computed + of->scheduled; ++t) {
      CHECK(strata_device_copy_from_host(e->device, (char*)e->hidden + row++ * row_bytes, e->embedding + of->tokens[t] * e->hidden_size,
                                         row_bytes, default_stream));
    }
  }
  CHECK(strata_batch_build(e->builder, ordered, num_running, NULL, default_stream));
  *info = strata_batch_info_default();
  CHECK(strata_batch_get_info(e->builder, info));
  run_layers(e, info->num_tokens);
}

// The hash of the outputs of a request's scheduled tokens: token by token, of all layers.
static uint64_t hash_outputs(const engine* e, const request* r, int64_t row, uint64_t seed) {
  int64_t t, l, i;
  for (t = row; t < row + r->scheduled; ++t) {
    for (l = 0; l < e->num_layers; ++l) {
      const uint16_t* const out = e->outputs + (l * MAX_TOKENS + t) * e->hidden_size;
      for (i = 0; i < e->hidden_size; ++i) seed = hash(seed, out[i]);
    }
  }
  return seed;
}

static void serve(engine* e) {
  static const int64_t prompts[] = {250, 60, 400, 5, 130, 300};
  const int64_t num_prompts = (int64_t)(sizeof prompts / sizeof *prompts);
  request running[MAX_SEQS];
  request waiting = make_request(prompts[0]);
  int64_t num_started = 0, num_running = 0;
  int64_t reserved = 0;  // positions that the running requests will hold
  uint64_t outputs = UINT64_C(0xCBF29CE484222325);
  int number;
  printf("step  decode tokens  prefill tokens  longest context\n");
  for (number = 0; num_started < num_prompts || num_running > 0; ++number) {
    strata_batch_info info;
    int64_t row_of[MAX_SEQS], budget = MAX_TOKENS, kept = 0, r;
    while (num_started < num_prompts && num_running < MAX_SEQS && reserved + waiting.total <= CACHED_TOKENS) {
      reserved += waiting.total;
      CHECK(strata_pool_add_request(e->pool, waiting.id));
      running[num_running++] = waiting;
      if (++num_started < num_prompts) waiting = make_request(prompts[num_started]);
    }
    for (r = 0; r < num_running; ++r) {  // a chunk of the prompt, or one token, or none where the budget is spent
      running[r].scheduled = least(budget, greatest(running[r].prompt - running[r].computed, 1));
      budget -= running[r].scheduled;
    }
    step(e, running, num_running, row_of, &info);
    printf("%4d  %13d  %14d  %15d\n", number, (int)info.num_decode_tokens, (int)info.num_prefill_tokens, (int)info.max_seq_len);
    for (r = 0; r < num_running; ++r) {
      outputs = hash_outputs(e, &running[r], row_of[r], outputs);
      running[r].computed += running[r].scheduled;
      if (running[r].computed < running[r].total) {
        running[kept++] = running[r];
        continue;
      }
      reserved -= running[r].total;
      CHECK(strata_pool_remove_request(e->pool, running[r].id));
      free(running[r].tokens);
    }
    num_running = kept;
  }
  printf("outputs: %016" PRIx64 "\n", outputs);
}

int main(int argc, char** argv) {
  strata_checkpoint checkpoint;
  engine e;
  if (argc != 2) {
    fprintf(stderr, "usage: %s MODEL_DIRECTORY\n", argv[0]);
    return EXIT_FAILURE;
  }
  CHECK(strata_checkpoint_open(argv[1], NULL, &checkpoint));
  e = make_engine(checkpoint);
  CHECK(strata_checkpoint_destroy(checkpoint));  // the layers have copied what they need
  serve(&e);
  destroy_engine(&e);
  return EXIT_SUCCESS;
}
