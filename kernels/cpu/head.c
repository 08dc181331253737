/*
 * The two ends of a step: embedding, and final norm, logits, sampling.
 * Logits of one block of samples live at a time; the vocabulary is split over
 * ranks and each writes its own columns.
 */
#include "config.h"

#include <string.h>

#include "kernels/cpu/ctx.h"

static void
embed_rows(struct dcpk_ctx *c, uint32_t r0, uint32_t r1, uint32_t layer,
    uint32_t thread)
{
	const struct dcpk_model *m = &c->s.model;
	const struct dcpk_row *row = DCPK_ROWS(c->plan);
	uint32_t i, j;
	float *x;

	for (i = r0; i < r1; i++) {
		x = c->x + (size_t)i * m->hidden;
		if (c->embed.m.bf16) {
			const uint16_t *e = (const uint16_t *)c->embed.m.data +
			    (size_t)row[i].token * m->hidden;

			for (j = 0; j < m->hidden; j++)
				x[j] = dcpc_bf16_to_f32(e[j]);
		} else {
			memcpy(x, (const float *)c->embed.m.data +
			    (size_t)row[i].token * m->hidden,
			    m->hidden * sizeof *x);
		}
		dcpc_rope_table(c->cos + (size_t)i * (m->rope / 2),
		    c->sin + (size_t)i * (m->rope / 2), row[i].pos,
		    m->inv_freq, m->rope, m->rope_factor);
	}
}

int
dcpc_embed(struct dcpk_ctx *c)
{
	dcpc_rows_and_products(c, c->rows, embed_rows, 0, NULL, 0);
	return 0;
}

/* --- logits ------------------------------------------------------------ */

struct block {
	struct dcpk_ctx *c;
	uint32_t s0, n;
};

static void
norm_sample(void *arg, uint32_t j, uint32_t thread)
{
	struct block *b = arg;
	struct dcpk_ctx *c = b->c;
	uint32_t H = c->s.model.hidden;
	uint32_t row = DCPK_SAMPLES(c->plan)[b->s0 + j].row;

	c->p->rmsnorm(c->hs + (size_t)j * H, c->x + (size_t)row * H,
	    c->final_norm, H, c->s.model.eps);
}

static void
logits(struct block *b)
{
	struct dcpk_ctx *c = b->c;
	struct dcpc_prod p[DCPK_MAX_RANKS];
	uint32_t r, n = 0, at = 0;

	dcpc_workers_run(c->workers, b->n, norm_sample, b);
	for (r = 0; r < c->W; r++) {
		if (c->lm_head[r].m.n == 0)
			continue;
		p[n++] = (struct dcpc_prod){ .w = &c->lm_head[r], .x = c->hs,
			.ldx = c->s.model.hidden, .y = c->logits + at,
			.ldy = c->s.model.vocab, .m = b->n };
		at += c->lm_head[r].m.n;
	}
	dcpc_products(c, p, n);
}

static struct block
block_at(struct dcpk_ctx *c, uint32_t s0)
{
	uint32_t left = c->plan->n_samples - s0;

	return (struct block){ c, s0,
		left < c->cap_samples ? left : c->cap_samples };
}

int
dcpc_head(struct dcpk_ctx *c)
{
	struct block b = block_at(c, 0);

	logits(&b);
	return 0;
}

/* --- sampling ---------------------------------------------------------- */

static void
sample_one(void *arg, uint32_t j, uint32_t thread)
{
	struct block *b = arg;
	struct dcpk_ctx *c = b->c;
	const struct dcpk_sample *all = DCPK_SAMPLES(c->plan);
	const struct dcpk_sample *s = &all[b->s0 + j];
	const uint32_t *mask = NULL;
	uint32_t V = c->s.model.vocab;

	if (s->flags & DCPK_S_MASK)
		mask = DCPK_MASK(c->plan) + s->mask;
	dcpc_sample(c->logits + (size_t)j * V, V, s,
	    DCPK_ADJUSTS(c->plan) + s->adj0, c->token_ok, mask,
	    &c->out[b->s0 + j], c->top + c->top_at[b->s0 + j],
	    c->thread[thread].sample);
}

int
dcpc_sample_op(struct dcpk_ctx *c)
{
	struct block b;
	uint32_t s0;

	for (s0 = 0; s0 < c->plan->n_samples; s0 += b.n) {
		b = block_at(c, s0);
		if (s0 != 0)	/* the first block's are there: head */
			logits(&b);
		dcpc_workers_run(c->workers, b.n, sample_one, &b);
	}
	return 0;
}
