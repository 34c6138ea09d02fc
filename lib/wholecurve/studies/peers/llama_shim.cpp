// A small C interface to llama.cpp: one model, one or more contexts on it, one llama_decode per step.
// Only plain integers and pointers cross it, so that no struct of llama.h has to be described anywhere else.

#include <cstdint>
#include <cstdio>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

struct Context {
    llama_context *ctx;
    int n_vocab;
    std::vector<int32_t> counts;        // 1 for every token: each belongs to one sequence
    std::vector<llama_seq_id> ids;      // [n_batch]
    std::vector<llama_seq_id *> id_of;  // [n_batch + 1] pointers into ids, ended by a null
};

void only_errors(ggml_log_level level, const char *text, void *) {
    if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

// Lowest index of the largest value. Two passes, so that the first one vectorises.
int argmax(const float *row, int n) {
    float best = row[0];
    for (int i = 1; i < n; ++i) best = row[i] > best ? row[i] : best;
    for (int i = 0; i < n; ++i)
        if (row[i] == best) return i;
    return 0;  // every value is NaN
}

}  // namespace

extern "C" {

// Loads a GGUF file; null when it cannot be read. `repack` lets ggml choose its own layout of the weights.
void *wc_load(const char *path, int repack) {
    llama_log_set(only_errors, nullptr);
    ggml_backend_load_all();
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    params.use_extra_bufts = repack != 0;
    return llama_model_load_from_file(path, params);
}

// A context of n_seq sequences with n_ctx cells of cache together; types are GGML's numbers. Null when refused.
void *wc_open(void *model, int n_ctx, int n_batch, int n_ubatch, int n_seq, int threads, int flash_attention,
              int unified, int type_k, int type_v) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = n_ctx;
    params.n_batch = n_batch;
    params.n_ubatch = n_ubatch;
    params.n_seq_max = n_seq;
    params.n_threads = threads;
    params.n_threads_batch = threads;
    params.flash_attn_type = flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.kv_unified = unified != 0;
    params.type_k = static_cast<ggml_type>(type_k);
    params.type_v = static_cast<ggml_type>(type_v);
    params.offload_kqv = false;
    params.no_perf = true;
    auto *llama = static_cast<llama_model *>(model);
    llama_context *ctx = llama_init_from_model(llama, params);
    if (!ctx) return nullptr;
    auto *context = new Context{ctx, llama_vocab_n_tokens(llama_model_get_vocab(llama)), {}, {}, {}};
    context->counts.assign(n_batch, 1);
    context->ids.resize(n_batch);
    context->id_of.resize(n_batch + 1, nullptr);
    return context;
}

// One llama_decode of n tokens; wanted[i] asks for the greedy token after token i. `chosen` gets those, in order.
// Returns 0, or llama_decode's own code; 1 means that the cache has no room.
int wc_decode(void *handle, int n, const int32_t *tokens, const int32_t *positions, const int32_t *sequences,
              const int8_t *wanted, int32_t *chosen) {
    auto *context = static_cast<Context *>(handle);
    if (n < 1 || n > static_cast<int>(context->ids.size())) return -100;
    for (int i = 0; i < n; ++i) {
        context->ids[i] = sequences[i];
        context->id_of[i] = &context->ids[i];
    }
    llama_batch batch = {};
    batch.n_tokens = n;
    batch.token = const_cast<llama_token *>(tokens);
    batch.pos = const_cast<llama_pos *>(positions);
    batch.n_seq_id = context->counts.data();
    batch.seq_id = context->id_of.data();
    batch.logits = const_cast<int8_t *>(wanted);
    if (const int code = llama_decode(context->ctx, batch)) return code;
    int found = 0;
    for (int i = 0; i < n; ++i)
        if (wanted[i]) chosen[found++] = argmax(llama_get_logits_ith(context->ctx, i), context->n_vocab);
    return 0;
}

// Frees the cache cells of one sequence.
int wc_remove(void *handle, int sequence) {
    auto *context = static_cast<Context *>(handle);
    return llama_memory_seq_rm(llama_get_memory(context->ctx), sequence, -1, -1) ? 0 : 1;
}

// What a context has: 0 cells, 1 cells per sequence, 2 batch, 3 micro-batch, 4 sequences, 5 threads, 6 vocabulary.
int wc_number(void *handle, int which) {
    auto *context = static_cast<Context *>(handle);
    switch (which) {
        case 0: return llama_n_ctx(context->ctx);
        case 1: return llama_n_ctx_seq(context->ctx);
        case 2: return llama_n_batch(context->ctx);
        case 3: return llama_n_ubatch(context->ctx);
        case 4: return llama_n_seq_max(context->ctx);
        case 5: return llama_n_threads(context->ctx);
        case 6: return context->n_vocab;
        default: return -1;
    }
}

const char *wc_system() { return llama_print_system_info(); }

void wc_describe(void *model, char *text, int size) { llama_model_desc(static_cast<llama_model *>(model), text, size); }

void wc_close(void *handle) {
    auto *context = static_cast<Context *>(handle);
    llama_free(context->ctx);
    delete context;
}

void wc_free(void *model) { llama_model_free(static_cast<llama_model *>(model)); }

}  // extern "C"
