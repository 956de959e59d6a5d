/* UniPC of order 2, variant bh2 (W. Zhao et al., "UniPC: A Unified Predictor-Corrector Framework for Fast
 * Sampling of Diffusion Models", NeurIPS 2023), on flow sigmas, as diffusers' UniPCMultistepScheduler.
 *
 * With alpha = 1 - sigma and lambda = ln(alpha / sigma), a step from point s to n = s + 1 is
 *     h = lambda_n - lambda_s,  phi = exp(-h) - 1,  r = (lambda_{s-1} - lambda_s) / h
 *     x_n = sigma_n / sigma_s x_s - alpha_n phi (X_s + rho1 (X_{s-1} - X_s) / r + rho2 (X_n - X_s))
 * where X are estimates of the clean latent. The predictor has rho2 = 0. Once X_n is known, the corrector
 * repeats the step from the same x_s; the next predictor starts from the corrected x_n. */
#include "sample/sampler_type.h"

#include <math.h>
#include <stdbool.h>

enum { TRAIN_STEPS = 1000 };

/* Arrays that are kept between steps; s is the point at which the present step begins. */
enum {
    ANCHOR, /* x_s, corrected */
    NOW,    /* X_s */
    BEFORE, /* X_{s-1} */
    HISTORIES
};

/* Coefficients of x_n, the latent after a step, as a weighted sum of x_s (anchor), X_s (now), X_{s-1}
 * (before) and X_n (next). */
typedef struct Weights {
    double anchor, now, before, next;
} Weights;

static void sampler_unipc_schedule(DsviSampler *s, double flow_shift)
{
    for (int64_t i = 0; i < s->steps; i++) {
        double sigma = dsvi_sampler_shifted(dsvi_sampler_linspace(1.0, 1.0 / TRAIN_STEPS, i, s->steps + 1),
                                            flow_shift);
        if (i == 0 && fabs(sigma - 1) < 1e-6)
            sigma -= 1e-6; /* with sigma = 1 lambda would be infinite */
        s->sigma[i] = (float)sigma;
        s->timestep[i] = trunc(sigma * TRAIN_STEPS);
    }
}

static double lambda_of(const DsviSampler *s, int64_t i)
{
    return log(1 - s->sigma[i]) - log(s->sigma[i]);
}

/* Solves the corrector's order conditions; for order 2 they are rho1 + rho2 = b1 and r rho1 + rho2 = b2. */
static void corrector_rho(int order, double h, double phi, double r, double *rho1, double *rho2)
{
    double k1 = phi / -h - 1, k2 = k1 / -h - 0.5;
    double b1 = k1 / phi, b2 = 2 * k2 / phi;
    *rho1 = order == 2 ? (b1 - b2) / (1 - r) : 0;
    *rho2 = order == 2 ? b1 - *rho1 : 0.5;
}

/* Returns the coefficients of the predictor, or corrector, for the step from point `from`. */
static Weights weights_of(const DsviSampler *s, int64_t from, bool correct)
{
    double sigma_n = s->sigma[from + 1];
    if (sigma_n == 0) /* last step: h is infinite, and only order 1 has a limit */
        return (Weights){.now = 1};
    int order = from == 0 ? 1 : 2; /* the first step has no estimate of a step before */
    double h = lambda_of(s, from + 1) - lambda_of(s, from), phi = expm1(-h);
    double r = order == 2 ? (lambda_of(s, from - 1) - lambda_of(s, from)) / h : 1;
    double rho1 = order == 2 ? 0.5 : 0, rho2 = 0;
    if (correct)
        corrector_rho(order, h, phi, r, &rho1, &rho2);
    double scale = -(1 - sigma_n) * phi;
    return (Weights){
        .anchor = sigma_n / s->sigma[from],
        .now = scale * (1 - rho1 / r - rho2),
        .before = scale * rho1 / r,
        .next = scale * rho2,
    };
}

static void sampler_unipc_step(DsviSampler *s, int64_t i, const float *velocity, float *state)
{
    float *anchor = s->history + ANCHOR * s->elements;
    float *now = s->history + NOW * s->elements;
    float *before = s->history + BEFORE * s->elements;
    bool correct = i > 0;
    Weights c = correct ? weights_of(s, i - 1, true) : (Weights){0};
    Weights p = weights_of(s, i, false);
    for (int64_t e = 0; e < s->elements; e++) {
        double x = state[e];
        double next = x - s->sigma[i] * velocity[e];
        if (correct)
            x = c.anchor * anchor[e] + c.now * now[e] + c.before * before[e] + c.next * next;
        before[e] = now[e];
        now[e] = (float)next;
        anchor[e] = (float)x;
        state[e] = (float)(p.anchor * x + p.now * next + p.before * before[e]);
    }
}

const DsviSamplerType dsvi_sampler_unipc = {
    .name = "unipc",
    .histories = HISTORIES,
    .schedule = sampler_unipc_schedule,
    .step = sampler_unipc_step,
};
