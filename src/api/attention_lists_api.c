/* Attention over lists of the caller (dsv_lists_forward and dsv_lists_backward of dsv/attention.h). */
#include <string.h>

#include "api/attention_api.h"

static DsvStatus check_sizes(const DsvLists *lists, int64_t head_dim)
{
    const struct {
        const char *name;
        int64_t size, least, most;
    } sizes[] = {
        {"batch", lists->batch, 1, 65536},           {"heads", lists->heads, 1, 1000},
        {"queries", lists->queries, 1, 1 << 30},     {"keys", lists->keys, 1, 1 << 30},
        {"group", lists->group, 16, 1024},           {"grain", lists->grain, 1, 128},
        {"capacity", lists->capacity, 0, INT64_MAX},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].size < sizes[i].least || sizes[i].size > sizes[i].most)
            return DSVI_FAIL(DSV_E_SHAPE, "attention over lists: %s is %lld, expected %lld to %lld",
                             sizes[i].name, (long long)sizes[i].size, (long long)sizes[i].least,
                             (long long)sizes[i].most);
    if (head_dim < 32 || head_dim > DSVI_HEAD_DIM_MAX || head_dim % 2)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "attention over lists: head size is %lld, expected an even number from 32 "
                         "to %d",
                         (long long)head_dim, DSVI_HEAD_DIM_MAX);
    return DSV_OK;
}

/* Checks one list; n is its number. */
static DsvStatus check_list(const DsviLists *lists, int64_t n)
{
    int64_t begin = lists->offsets[n], end = lists->offsets[n + 1], all = dsvi_lists_full(lists);
    if (begin < 0 || end < begin || end > lists->capacity)
        return DSVI_FAIL(
            DSV_E_FORMAT,
            "list %lld: offsets %lld and %lld, expected ascending numbers up to the capacity, %lld",
            (long long)n, (long long)begin, (long long)end, (long long)lists->capacity);
    for (int64_t i = begin; i < end; i++) {
        int64_t before = i > begin ? lists->spans[i - 1] : -1;
        if (lists->spans[i] <= before || lists->spans[i] >= all)
            return DSVI_FAIL(DSV_E_FORMAT,
                             "list %lld: span %d after span %lld, expected ascending numbers below %lld",
                             (long long)n, lists->spans[i], (long long)before, (long long)all);
    }
    return DSV_OK;
}

static DsvStatus check_lists(const DsvDevice *device, const DsviLists *lists)
{
    if (!lists->offsets || (!lists->spans && lists->capacity > 0))
        return DSVI_FAIL(DSV_E_SHAPE, "attention over lists: the offsets or spans are missing");
    if (device->backend.device->kind != DSVI_DEVICE_CPU)
        return DSV_OK;
    if (lists->offsets[0] != 0)
        return DSVI_FAIL(DSV_E_FORMAT, "the offset of list 0 is %lld, expected 0",
                         (long long)lists->offsets[0]);
    for (int64_t n = 0; n < dsvi_lists_count(lists); n++)
        DSVI_TRY(check_list(lists, n));
    return DSV_OK;
}

/* The operation that serves a pass, with its arguments. `lists` belongs to `args`. */
typedef struct ListPass {
    DsviLists lists;
    DsviAttentionArgs args;
    dsvi_attention_fn *run;
    dsvi_attention_workspace_fn *workspace;
} ListPass;

static DsvStatus make_pass(const DsvDevice *device, DsvDtype dtype, int64_t head_dim, const DsvLists *lists,
                           DsviPassKind kind, ListPass *pass)
{
    const DsviOps *ops = &device->backend.ops;
    bool backward = kind == DSVI_PASS_BACKWARD;
    DsviDtype act;
    if (!lists)
        return DSVI_FAIL(DSV_E_SHAPE, "attention over lists: the lists are missing");
    DSVI_TRY(dsvi_attention_dtype(device, dtype, &act));
    DSVI_TRY(check_sizes(lists, head_dim));
    pass->lists = (DsviLists){
        .batch = lists->batch,
        .heads = lists->heads,
        .queries = lists->queries,
        .keys = lists->keys,
        .group = lists->group,
        .groups = (lists->queries + lists->group - 1) / lists->group,
        .grain = lists->grain,
        .capacity = lists->capacity,
        .offsets = (int64_t *)lists->offsets,
        .spans = (int32_t *)lists->spans,
    };
    pass->args = (DsviAttentionArgs){
        .batch = lists->batch,
        .heads = lists->heads,
        .queries = lists->queries,
        .keys = lists->keys,
        .head_dim = head_dim,
        .act = act,
        .acc = act == DSVI_F64 ? DSVI_F64 : DSVI_F32,
        .lists = &pass->lists,
    };
    pass->run = backward ? ops->attention_list_bwd.run : ops->attention_list_fwd.run;
    pass->workspace = backward ? ops->attention_list_bwd.workspace : ops->attention_list_fwd.workspace;
    return DSV_OK;
}

static size_t workspace_of(DsvDevice *device, const ListPass *pass)
{
    return pass->workspace ? pass->workspace(device->backend.device->stream, &pass->args) : 0;
}

static DsvStatus lists_run_locked(DsvDevice *device, ListPass *pass, const DsvAttentionCall *call)
{
    DsviDevice *base = device->backend.device;
    DsviAttentionArgs *args = &pass->args;
    DSVI_TRY(base->use_stream(base, call->stream));
    args->scale = call->scale;
    args->q = dsvi_attention_rows(&call->q);
    args->k = dsvi_attention_rows(&call->k);
    args->v = dsvi_attention_rows(&call->v);
    args->out = dsvi_attention_rows(&call->out);
    args->lse = call->lse;
    args->dout = dsvi_attention_rows(&call->dout);
    args->dq = dsvi_attention_rows(&call->dq);
    args->dk = dsvi_attention_rows(&call->dk);
    args->dv = dsvi_attention_rows(&call->dv);
    args->workspace_bytes = workspace_of(device, pass);
    DSVI_TRY(dsvi_attention_workspace(device, call, args->workspace_bytes, &args->workspace));
    return pass->run(base->stream, args);
}

static DsvStatus lists_run(DsvDevice *device, DsvDtype dtype, int64_t head_dim, const DsvLists *lists,
                           const DsvAttentionCall *call, DsviPassKind kind)
{
    ListPass pass;
    DSVI_TRY(make_pass(device, dtype, head_dim, lists, kind, &pass));
    DSVI_TRY(dsvi_attention_check_call(call, pass.args.act, head_dim, kind));
    DSVI_TRY(check_lists(device, &pass.lists));
    pthread_mutex_lock(&device->lock);
    DsvStatus status = lists_run_locked(device, &pass, call);
    pthread_mutex_unlock(&device->lock);
    return status;
}

DsvStatus dsv_lists_forward(DsvDevice *device, DsvDtype dtype, int64_t head_dim, const DsvLists *lists,
                            const DsvAttentionCall *call)
{
    return lists_run(device, dtype, head_dim, lists, call, DSVI_PASS_FORWARD);
}

DsvStatus dsv_lists_backward(DsvDevice *device, DsvDtype dtype, int64_t head_dim, const DsvLists *lists,
                             const DsvAttentionCall *call)
{
    return lists_run(device, dtype, head_dim, lists, call, DSVI_PASS_BACKWARD);
}

DsvStatus dsv_lists_workspace(DsvDevice *device, DsvDtype dtype, int64_t head_dim, const DsvLists *lists,
                              bool backward, size_t *bytes)
{
    ListPass pass;
    DSVI_TRY(
        make_pass(device, dtype, head_dim, lists, backward ? DSVI_PASS_BACKWARD : DSVI_PASS_FORWARD, &pass));
    pthread_mutex_lock(&device->lock);
    *bytes = workspace_of(device, &pass);
    pthread_mutex_unlock(&device->lock);
    return DSV_OK;
}
