/* Implements trainer_experts.h. */
#include "train/trainer_experts.h"

#include "train/trainer.h"

DsvStatus dsvi_trainer_check_lent(const DsviTrainer *t)
{
    DsviStoredWeights weights;
    DSVI_TRY(dsvi_weights_open(t->experts->path[!t->experts->trained], &t->table, &weights));
    dsvi_weights_close(&weights);
    return DSV_OK;
}

/* Gives the sparse layer of sampled clips what it needs for the expert: what training has learned belongs to
 * the trained one. */
static DsvStatus use_sparse(DsviTrainer *t, bool trained)
{
    DsviSparse *sparse = t->generator ? dsvi_generator_sparse(t->generator) : NULL;
    if (sparse && trained)
        return dsvi_sparse_copy(sparse, t->sparse);
    if (sparse)
        dsvi_sparse_restart(sparse);
    return DSV_OK;
}

DsvStatus dsvi_trainer_use_expert(void *trainer, int expert)
{
    DsviTrainer *t = trainer;
    bool trained = expert == t->experts->trained;
    if (t->expert == expert)
        return DSV_OK;
    t->expert = -1;
    DSVI_TRY(dsvi_dit_frozen_load(t->frozen, t->backend->device, t->experts->path[expert], NULL));
    t->lora.off = !trained;
    t->expert = expert;
    return use_sparse(t, trained);
}
