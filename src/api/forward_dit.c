/* A forward pass of a transformer, and optionally a backward pass, on tensors from a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/forward_parts.h"
#include "backend/backend.h"
#include "device/carve.h"
#include "run/model_path.h"
#include "base/safetensors.h"
#include "model/dit/dit.h"

/* Names of the input tensors. */
static const char LATENTS[] = "hidden_states", TIMESTEP[] = "timestep", TEXT[] = "encoder_hidden_states",
                  IMAGE[] = "encoder_hidden_states_image", TARGET[] = "target";

typedef struct Pass {
    const DsvConfig *settings;
    bool grad;
    DsviBackend backend;
    DsviModelPath model;
    DsviDitConfig config;
    DsviParamTable table;
    DsviDitShape shape;
    int64_t latent_elements, output_elements, text_elements, image_elements; /* of the whole batch */
    int64_t image_shape[3];                                                  /* as in the file */
    DsviSparse *sparse;
    DsviDit *dit;

    DsviLora lora;           /* zeroed without a LoRA */
    DsviLoraParams adapters; /* of the LoRA's matrices */
    DsviDitWeights adapter_weights;

    void *memory;
    DsviDitWeights weights;
    /* device memory */
    float *latents, *timestep, *text, *image, *target, *output, *loss, *dlatents, *dtext, *dimage;

    float *host; /* staging buffer for the flat parameters or any one tensor */
    int64_t host_elements;
} Pass;

/* Checks the shape of the image rows. As for diffusers, a model with a table of positions takes the rows of a
 * sample in two halves, one for each of two images: (2 B, R / 2, image_dim). */
static DsvStatus read_image_shape(Pass *p, const DsviSafetensors *in)
{
    const DsviStoredTensor *image;
    int64_t halves = p->config.pos_embed_seq_len > 0 ? 2 : 1;
    if (p->config.image_dim == 0)
        return DSV_OK;
    DSVI_TRY(dsvi_safetensors_require_floating(
        in, IMAGE, 3, (int64_t[]){halves * p->shape.batch, -1, p->config.image_dim}, &image));
    p->shape.image_len = halves * image->shape[1];
    p->image_elements = image->count;
    memcpy(p->image_shape, image->shape, sizeof p->image_shape);
    return DSV_OK;
}

/* Checks the shape of the timesteps: one of each sample, or also one of the sample's first latent frame. */
static DsvStatus read_times(Pass *p, const DsviSafetensors *in)
{
    const DsviStoredTensor *timestep = dsvi_safetensors_find(in, TIMESTEP);
    const int64_t shape[2] = {p->shape.batch, 2};
    p->shape.given_first = timestep && timestep->ndim == 2;
    p->shape.loss = p->grad && p->shape.given_first;
    return dsvi_safetensors_require_floating(in, TIMESTEP, p->shape.given_first ? 2 : 1, shape, &timestep);
}

/* Checks the shapes of the input tensors and takes the batch's shape from them. */
static DsvStatus read_shapes(Pass *p, const DsviSafetensors *in)
{
    const DsviStoredTensor *latents, *other;
    int64_t channels = p->config.in_channels;
    DSVI_TRY(
        dsvi_safetensors_require_floating(in, LATENTS, 5, (int64_t[]){-1, channels, -1, -1, -1}, &latents));
    p->shape.batch = latents->shape[0];
    p->shape.frames = latents->shape[2];
    p->shape.height = latents->shape[3];
    p->shape.width = latents->shape[4];
    DSVI_TRY(read_times(p, in));
    DSVI_TRY(dsvi_safetensors_require_floating(in, TEXT, 3,
                                               (int64_t[]){p->shape.batch, -1, p->config.text_dim}, &other));
    p->shape.text_len = other->shape[1];
    p->text_elements = other->count;
    p->latent_elements = latents->count;
    p->output_elements = latents->count / channels * p->config.out_channels;
    DSVI_TRY(read_image_shape(p, in));
    const int64_t output_shape[5] = {p->shape.batch, p->config.out_channels, p->shape.frames, p->shape.height,
                                     p->shape.width};
    if (p->grad)
        DSVI_TRY(dsvi_safetensors_require_floating(in, TARGET, 5, output_shape, &other));
    p->shape.act = dsvi_dit_act(p->settings);
    p->shape.backward = p->grad;
    p->shape.keep = dsvi_dit_keep(p->settings);
    return DSV_OK;
}

static DsvStatus forward_make_sparse(Pass *p)
{
    DsvConfig settings = *p->settings;
    DsviSparseShape shape = dsvi_dit_sparse_shape(&p->config, &p->shape);
    settings.sparse_measure_cost = false; /* use lists even if dense attention is faster */
    settings.sparse_max_density = settings.sparse_list_memory = 1;
    settings.sparse_offload_lists = false; /* lists must be on the device during the pass */
    return dsvi_sparse_create(&p->backend, &settings, &shape, NULL, NULL, &p->sparse);
}

/* Takes the arrays of all parameters of a table, with gradients if `grad`. */
static DsviDitWeights carve_weights(const Pass *p, DsviArena *arena, int64_t elements, bool grad)
{
    size_t flat = (size_t)elements;
    DsviDitWeights weights = {0};
    weights.master = dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, flat * sizeof(float));
    weights.compute = p->shape.act == DSVI_F32
                          ? weights.master
                          : dsvi_arena_take(arena, DSVI_MEM_WEIGHTS, flat * dsvi_dtype_size(p->shape.act));
    weights.grad = grad ? dsvi_arena_take(arena, DSVI_MEM_GRADIENTS, flat * sizeof(float)) : NULL;
    return weights;
}

static void forward_carve(void *context, DsviArena *arena)
{
    Pass *p = context;
    size_t latent = (size_t)p->latent_elements * sizeof(float);
    size_t output = (size_t)p->output_elements * sizeof(float);
    size_t image = (size_t)p->image_elements * sizeof(float);
    size_t text = (size_t)p->text_elements * sizeof(float), batch = (size_t)p->shape.batch * sizeof(float);
    p->weights = carve_weights(p, arena, p->table.elements, p->grad && !p->lora.file);
    p->adapter_weights = carve_weights(p, arena, p->adapters.table.elements, p->grad);
    p->latents = dsvi_arena_take(arena, DSVI_MEM_DATA, latent);
    p->output = dsvi_arena_take(arena, DSVI_MEM_DATA, output);
    p->target = dsvi_arena_take(arena, DSVI_MEM_DATA, p->grad ? output : 0);
    p->dlatents = dsvi_arena_take(arena, DSVI_MEM_DATA, p->grad ? latent : 0);
    p->timestep = dsvi_arena_take(arena, DSVI_MEM_DATA, (p->shape.given_first ? 2 : 1) * batch);
    p->loss = dsvi_arena_take(arena, DSVI_MEM_DATA, batch);
    p->text = dsvi_arena_take(arena, DSVI_MEM_DATA, text);
    p->dtext = dsvi_arena_take(arena, DSVI_MEM_DATA, p->grad ? text : 0);
    p->image = dsvi_arena_take(arena, DSVI_MEM_DATA, image);
    p->dimage = dsvi_arena_take(arena, DSVI_MEM_DATA, p->grad ? image : 0);
    if (p->sparse)
        dsvi_sparse_carve(p->sparse, arena);
    dsvi_dit_carve(p->dit, arena);
    dsvi_dit_carve_pass(p->dit, arena);
}

static int64_t larger_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static DsvStatus forward_allocate(Pass *p)
{
    DSVI_TRY(dsvi_device_alloc_layout(p->backend.device, forward_carve, p, &p->memory));
    p->host_elements = larger_of(larger_of(p->table.elements, p->adapters.table.elements),
                                 larger_of(p->image_elements, p->text_elements));
    p->host_elements = larger_of(p->host_elements, larger_of(p->latent_elements, p->output_elements));
    p->host = calloc((size_t)p->host_elements, sizeof(float));
    if (!p->host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld numbers on the host",
                         (long long)p->host_elements);
    return DSV_OK;
}

/* Adds to the weights in p->host what the LoRA changes otherwise than by matrices beside a linear layer of a
 * block. */
static DsvStatus merge_other_changes(Pass *p)
{
    for (int64_t i = 0; i < p->table.count && p->lora.file; i++) {
        const DsviParam *param = &p->table.params[i];
        DsviLoraChange change;
        DSVI_TRY(dsvi_lora_change(&p->lora, param->name, param->shape[0], param->count, &change));
        change.product = !dsvi_lora_params_find(&p->adapters, param->offset);
        if (change.layer)
            DSVI_TRY(dsvi_lora_add(&p->lora, &change, 1, p->host + param->offset));
    }
    return DSV_OK;
}

/* Uploads the LoRA's matrices in F32 and in the compute dtype. */
static DsvStatus load_adapters(Pass *p)
{
    DsviDevice *device = p->backend.device;
    const DsviDitWeights *weights = &p->adapter_weights;
    int64_t n = p->adapters.table.elements;
    DsviAddArgs cast = {.n = n,
                        .a = 1,
                        .x_dtype = DSVI_F32,
                        .y_dtype = p->shape.act,
                        .x = weights->master,
                        .y = weights->compute};
    if (!p->lora.file)
        return DSV_OK;
    dsvi_lora_params_read(&p->adapters, &p->lora, p->host);
    DSVI_TRY(device->upload(device->stream, weights->master, p->host, (size_t)n * sizeof(float)));
    DSVI_TRY(device->sync(device->stream));
    return weights->compute == weights->master ? DSV_OK : p->backend.ops.add.run(device->stream, &cast);
}

static DsvStatus load_weights(Pass *p)
{
    DsviDevice *device = p->backend.device;
    DSVI_TRY(dsvi_weights_read(p->model.weights, &p->table, p->host));
    DSVI_TRY(merge_other_changes(p));
    DSVI_TRY(device->upload(device->stream, p->weights.master, p->host,
                            (size_t)p->table.elements * sizeof(float)));
    DSVI_TRY(device->sync(device->stream));
    if (p->sparse) {
        DSVI_TRY(dsvi_sparse_setup(p->sparse));
        if (p->model.sparse[0])
            DSVI_TRY(dsvi_sparse_load(p->sparse, p->model.sparse));
        dsvi_sparse_force(p->sparse, true);
    }
    if (p->lora.file)
        p->weights.lora = &p->adapter_weights;
    DSVI_TRY(dsvi_dit_setup(p->dit, &p->weights));
    DSVI_TRY(dsvi_dit_refresh_compute(p->dit));
    return load_adapters(p);
}

/* Converts a stored tensor to F32 and uploads it. read_shapes has checked that its dtype is floating. */
static DsvStatus upload_tensor(Pass *p, const DsviSafetensors *in, const char *name, float *device_memory)
{
    DsviDevice *device = p->backend.device;
    const DsviStoredTensor *tensor = dsvi_safetensors_find(in, name);
    dsvi_convert(DSVI_F32, p->host, tensor->dtype, tensor->data, tensor->count);
    DSVI_TRY(device->upload(device->stream, device_memory, p->host, (size_t)tensor->count * sizeof(float)));
    return device->sync(device->stream);
}

static DsvStatus upload_inputs(Pass *p, const DsviSafetensors *in)
{
    DSVI_TRY(upload_tensor(p, in, LATENTS, p->latents));
    DSVI_TRY(upload_tensor(p, in, TIMESTEP, p->timestep));
    DSVI_TRY(upload_tensor(p, in, TEXT, p->text));
    if (p->image_elements > 0) {
        DSVI_TRY(upload_tensor(p, in, IMAGE, p->image));
        dsvi_dit_set_image(p->dit, p->image, p->grad && !p->lora.file ? p->dimage : NULL);
    }
    return p->grad ? upload_tensor(p, in, TARGET, p->target) : DSV_OK;
}

/* Runs the backward pass of the loss that the model computes, which leaves the first latent frame out. */
static DsvStatus run_loss_backward(Pass *p)
{
    const DsviDitLoss loss = {.target = p->target, .grad_scale = 1, .loss = p->loss};
    DSVI_TRY(dsvi_dit_forward(p->dit, p->latents, p->timestep, p->text, NULL, &loss));
    return p->lora.file ? dsvi_dit_backward(p->dit, NULL, NULL, NULL)
                        : dsvi_dit_backward(p->dit, NULL, p->dlatents, p->dtext);
}

/* Computes the loss and runs the backward pass. The gradient of the output overwrites the target, because the
 * output itself is written to the file later. */
static DsvStatus run_backward(Pass *p)
{
    DsviMseArgs args = {
        .batch = p->shape.batch,
        .n = p->output_elements / p->shape.batch,
        .grad_scale = 1,
        .acc = DSVI_F32,
        .output = p->output,
        .target = p->target,
        .loss = p->loss,
        .doutput = p->target,
    };
    if (p->shape.given_first)
        return run_loss_backward(p);
    DSVI_TRY(p->backend.ops.mse.run(p->backend.device->stream, &args));
    return p->lora.file ? dsvi_dit_backward(p->dit, p->target, NULL, NULL)
                        : dsvi_dit_backward(p->dit, p->target, p->dlatents, p->dtext);
}

/* The tensors to be written, copied to one block of host memory. */
typedef struct Results {
    DsviStoredTensor *tensors; /* (capacity) */
    char (*names)[128];        /* (capacity) */
    float *data;               /* contents of all tensors */
    size_t count, capacity;
    int64_t used; /* elements of `data` in use */
} Results;

static DsvStatus add_result(Pass *p, Results *r, const char *prefix, const char *name, int ndim,
                            const int64_t *shape, const float *device_memory)
{
    DsviDevice *device = p->backend.device;
    DSVI_ASSERT(r->count < r->capacity);
    DsviStoredTensor *tensor = &r->tensors[r->count];
    snprintf(r->names[r->count], sizeof r->names[0], "%s%s", prefix, name);
    *tensor = (DsviStoredTensor){.name = r->names[r->count], .dtype = DSVI_F32, .ndim = ndim, .count = 1};
    for (int i = 0; i < ndim; i++) {
        tensor->shape[i] = shape[i];
        tensor->count *= shape[i];
    }
    tensor->bytes = (size_t)tensor->count * sizeof(float);
    tensor->data = r->data + r->used;
    DSVI_TRY(device->download(device->stream, r->data + r->used, device_memory, tensor->bytes));
    r->used += tensor->count;
    r->count++;
    return DSV_OK;
}

static DsvStatus forward_collect(Pass *p, Results *r)
{
    const DsviDitShape *s = &p->shape;
    int64_t in_shape[5] = {s->batch, p->config.in_channels, s->frames, s->height, s->width};
    int64_t out_shape[5] = {s->batch, p->config.out_channels, s->frames, s->height, s->width};
    int64_t text_shape[3] = {s->batch, s->text_len, p->config.text_dim};
    DSVI_TRY(add_result(p, r, "", "output", 5, out_shape, p->output));
    if (!p->grad)
        return DSV_OK;
    DSVI_TRY(add_result(p, r, "", "loss", 1, &s->batch, p->loss));
    for (int64_t i = 0; i < p->adapters.table.count; i++) {
        const DsviParam *param = &p->adapters.table.params[i];
        DSVI_TRY(add_result(p, r, "grad.", dsvi_lora_params_tensor(&p->adapters, &p->lora, i)->name,
                            param->ndim, param->shape,
                            (const float *)p->adapter_weights.grad + param->offset));
    }
    if (p->lora.file)
        return DSV_OK;
    DSVI_TRY(add_result(p, r, "", "grad_hidden_states", 5, in_shape, p->dlatents));
    DSVI_TRY(add_result(p, r, "", "grad_encoder_hidden_states", 3, text_shape, p->dtext));
    if (p->image_elements > 0)
        DSVI_TRY(add_result(p, r, "", "grad_encoder_hidden_states_image", 3, p->image_shape, p->dimage));
    for (int64_t i = 0; i < p->table.count; i++) {
        const DsviParam *param = &p->table.params[i];
        DSVI_TRY(add_result(p, r, "grad.", param->name, param->ndim, param->shape,
                            (const float *)p->weights.grad + param->offset));
    }
    return DSV_OK;
}

/* Replaces tensor 1 of the results, which holds the loss of each sample, by the mean loss. */
static void average_loss(const Pass *p, Results *r)
{
    if (!p->grad)
        return;
    DsviStoredTensor *tensor = &r->tensors[1];
    float *loss = (float *)tensor->data;
    double sum = 0;
    for (int64_t b = 0; b < p->shape.batch; b++)
        sum += loss[b];
    loss[0] = (float)(sum / (double)p->shape.batch);
    tensor->shape[0] = tensor->count = 1;
    tensor->bytes = sizeof(float);
}

static DsvStatus write_results(Pass *p, const char *out_path)
{
    DsvStatus status;
    Results r = {.capacity = (size_t)(p->table.count + p->adapters.table.count) + 5};
    int64_t elements = 5 * p->host_elements + p->table.parameters + p->adapters.table.parameters +
                       p->shape.batch;
    r.tensors = calloc(r.capacity, sizeof *r.tensors);
    r.names = calloc(r.capacity, sizeof *r.names);
    r.data = malloc((size_t)elements * sizeof(float));
    if (!r.tensors || !r.names || !r.data) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld numbers of results", (long long)elements);
        goto done;
    }
    DSVI_TRY_GOTO(status, forward_collect(p, &r), done);
    DSVI_TRY_GOTO(status, p->backend.device->sync(p->backend.device->stream), done);
    average_loss(p, &r);
    status = dsvi_safetensors_replace(out_path, r.tensors, r.count, NULL, 0);
done:
    free(r.tensors);
    free(r.names);
    free(r.data);
    return status;
}

/* Makes the table of the LoRA's matrices. Gradients exist for matrices inside blocks only. */
static DsvStatus make_adapters(Pass *p, const char *lora_path)
{
    DSVI_TRY(dsvi_lora_check(&p->lora, &p->table));
    DSVI_TRY(dsvi_lora_params_of_file(&p->table, &p->lora, &p->adapters));
    int64_t pairs = 0;
    for (size_t i = 0; i < p->lora.count; i++)
        pairs += p->lora.layers[i].rank > 0;
    if (p->grad && pairs != p->adapters.count)
        return DSVI_FAIL(
            DSV_E_UNSUPPORTED,
            "%s: %lld of its %lld layers lie outside the transformer's blocks, where no gradients of "
            "a LoRA are computed",
            lora_path, (long long)(pairs - p->adapters.count), (long long)pairs);
    p->shape.lora = &p->adapters;
    return DSV_OK;
}

static DsvStatus run_pass(Pass *p, const DsviSafetensors *in, const char *out_path)
{
    DSVI_TRY(read_shapes(p, in));
    DSVI_TRY(dsvi_param_table_make(&p->config, &p->table));
    if (p->lora.file)
        DSVI_TRY(make_adapters(p, dsvi_safetensors_path(p->lora.file)));
    if (p->settings->sparse_enabled)
        DSVI_TRY(forward_make_sparse(p));
    DSVI_TRY(dsvi_dit_create(&p->backend, &p->config, &p->table, &p->shape, p->sparse, &p->dit));
    DSVI_TRY(forward_allocate(p));
    DSVI_TRY(load_weights(p));
    DSVI_TRY(upload_inputs(p, in));
    DSVI_TRY(dsvi_dit_forward(p->dit, p->latents, p->timestep, p->text, p->output, NULL));
    if (p->grad)
        DSVI_TRY(run_backward(p));
    return write_results(p, out_path);
}

DsvStatus dsvi_forward_dit(const DsviForwardFiles *files, bool grad, const DsvConfig *settings)
{
    DsvStatus status;
    Pass pass = {.settings = settings, .grad = grad};
    DsviSafetensors *in = NULL;
    DSVI_TRY_GOTO(status, dsvi_model_find(files->model, &pass.model), done);
    DSVI_TRY_GOTO(status, dsvi_model_verify(&pass.model), done);
    DSVI_TRY_GOTO(status, dsvi_model_config(&pass.model, &pass.config), done);
    if (files->lora)
        DSVI_TRY_GOTO(status, dsvi_lora_open(files->lora, &pass.lora), done);
    DSVI_TRY_GOTO(status, dsvi_safetensors_open(files->in, &in), done);
    DSVI_TRY_GOTO(status, dsvi_backend_open(settings, &pass.backend), done);
    DSVI_TRY_GOTO(status, run_pass(&pass, in, files->out), done);
done:
    dsvi_dit_free(&pass.dit);
    dsvi_sparse_free(&pass.sparse);
    dsvi_param_table_free(&pass.table);
    dsvi_lora_params_free(&pass.adapters);
    dsvi_lora_close(&pass.lora);
    if (pass.memory)
        pass.backend.device->mem_free(pass.backend.device, pass.memory);
    free(pass.host);
    dsvi_backend_close(&pass.backend);
    dsvi_safetensors_close(&in);
    return status;
}
