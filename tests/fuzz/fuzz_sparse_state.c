/* Fuzzes the sparse layer's state in a checkpoint, with the projection and with the predictor. A loaded
 * state must be written and loaded again. */
#include "base/arena.h"
#include "cpu/conv_onednn.h"
#include "cpu/cpu.h"
#include "cpu/gemm_onednn.h"
#include "cpu/onednn_engine.h"
#include "sparse/sparse.h"
#include "fuzz.h"

/* Replaces oneDNN, which the reference operations do not call, so that this program does not link to it. */
void dsvi_onednn_limit(DsviIsa isa)
{
    (void)isa;
}

DsvStatus dsvi_gemm_onednn_create(DsviGemmOnednn **out)
{
    *out = NULL;
    return DSV_OK;
}

void dsvi_gemm_onednn_free(DsviGemmOnednn **gemm)
{
    (void)gemm;
}

void dsvi_gemm_onednn_fill(DsviGemmOnednn *gemm, DsviOps *ops)
{
    (void)gemm, (void)ops;
}

DsvStatus dsvi_conv_onednn_create(DsviIsa isa, DsviConvOnednn **out)
{
    (void)isa;
    *out = NULL;
    return DSV_OK;
}

void dsvi_conv_onednn_free(DsviConvOnednn **conv)
{
    (void)conv;
}

void dsvi_conv_onednn_fill(DsviOps *ops)
{
    (void)ops;
}

typedef struct Layer {
    DsviSparse *sparse;
    void *memory;
} Layer;

static DsvConfig settings;

static void open_layer(DsviBackend *backend, const char *selector, Layer *layer)
{
    const DsviSparseShape shape = {.blocks = 2,
                                   .batch = 1,
                                   .tokens = 32,
                                   .heads = 1,
                                   .head_dim = 32,
                                   .grid = {2, 4, 4},
                                   .act = DSVI_F32,
                                   .backward = true};
    char assignment[64];
    DsviArena arena;
    snprintf(assignment, sizeof assignment, "sparse.selector=%s", selector);
    dsv_config_defaults(&settings);
    fuzz_expect(dsv_config_set(&settings, assignment) == DSV_OK);
    fuzz_expect(dsv_config_set(&settings, "sparse.measure_cost=false") == DSV_OK);
    fuzz_expect(dsv_config_set(&settings, "sparse.group=16") == DSV_OK);
    fuzz_expect(dsv_config_set(&settings, "sparse.rank=4") == DSV_OK);
    fuzz_expect(dsvi_sparse_create(backend, &settings, &shape, NULL, NULL, &layer->sparse) == DSV_OK);
    dsvi_arena_plan(&arena);
    dsvi_sparse_carve(layer->sparse, &arena);
    dsvi_sparse_carve_call(layer->sparse, &arena);
    size_t bytes = arena.used;
    fuzz_expect(backend->device->mem_alloc(backend->device, bytes, &layer->memory) == DSV_OK);
    dsvi_arena_bind(&arena, layer->memory, bytes);
    dsvi_sparse_carve(layer->sparse, &arena);
    dsvi_sparse_carve_call(layer->sparse, &arena);
    fuzz_expect(dsvi_sparse_setup(layer->sparse) == DSV_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const selectors[] = {"projection", "predictor"};
    static DsviBackend backend;
    static Layer layers[2];
    DsviSparseReport report;
    if (!backend.device) {
        fuzz_expect(dsvi_cpu_open("ref", 1, &backend) == DSV_OK);
        for (int i = 0; i < 2; i++)
            open_layer(&backend, selectors[i], &layers[i]);
    }
    fuzz_files_clear();
    fuzz_file_put("sparse.safetensors", data, size);
    for (int i = 0; i < 2; i++) {
        if (dsvi_sparse_load(layers[i].sparse, FUZZ_ROOT "/sparse.safetensors") != DSV_OK)
            continue;
        fuzz_accept();
        dsvi_sparse_report(layers[i].sparse, &report);
        fuzz_expect(report.sparse_blocks >= 0 && report.sparse_blocks <= report.blocks);
        fuzz_expect(dsvi_sparse_save(layers[i].sparse, FUZZ_ROOT "/again.safetensors") == DSV_OK);
        fuzz_expect(dsvi_sparse_load(layers[i].sparse, FUZZ_ROOT "/again.safetensors") == DSV_OK);
    }
    return 0;
}
