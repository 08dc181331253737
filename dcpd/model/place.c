/*
 * Cutting a tensor for the ranks, and the progress of a load. Main thread, at
 * start.
 */
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/model/place.h"

#define BAR_CELLS 30
#define BAR_EVERY 0.1			/* seconds */

void
dcpd_place_start(struct dcpd_place *p)
{
	p->done = 0;
	p->shown = 0;
	p->start = dcpd_now();
	p->bar = p->opt->progress && isatty(STDERR_FILENO);
}

int
dcpd_place(struct dcpd_place *p, struct dcpk_weight *w, const char *name,
    struct dcpd_err *err)
{
	struct dcpd_slice s[DCPK_MAX_RANKS];
	struct dcpk_err ke = { "" };
	uint32_t n, i;
	int rc;

	n = dcpd_slices(&p->cfg->m, p->topo, w->tensor, w->n, w->k, s);
	for (i = 0; i < n; i++) {
		w->ranks = s[i].ranks;
		w->n0 = s[i].n0;
		w->n1 = s[i].n1;
		w->k0 = s[i].k0;
		w->k1 = s[i].k1;
		rc = p->be->load(p->ctx, w, &ke);
		if (rc != 0)
			return dcpd_fail(err, rc, "%s: %s: %s", p->be->name,
			    name, ke.text[0] != '\0' ? ke.text :
			    strerror(-rc));
	}
	return 0;
}

static void
show_bar(const struct dcpd_place *p, double now)
{
	double part = p->total == 0 ? 1 : (double)p->done / (double)p->total;
	double took = now - p->start;
	char cells[BAR_CELLS + 1], done[32], total[32];
	int i;

	for (i = 0; i < BAR_CELLS; i++)
		cells[i] = i < (int)(part * BAR_CELLS) ? '#' : '.';
	cells[BAR_CELLS] = '\0';
	fprintf(stderr, "\rweights [%s] %3.0f%%  %s of %s  %.2f GB/s\033[K",
	    cells, part * 100, dcpd_bytes(done, sizeof done, p->done),
	    dcpd_bytes(total, sizeof total, p->total),
	    took > 0 ? (double)p->done / took / 1e9 : 0);
	fflush(stderr);
}

void
dcpd_place_advance(struct dcpd_place *p, uint64_t bytes)
{
	double now;

	p->done += bytes;
	if (p->opt->tick != NULL)
		p->opt->tick(p->opt->tick_arg, p->done, p->total);
	if (!p->bar)
		return;
	now = dcpd_now();
	if (now - p->shown < BAR_EVERY)
		return;
	p->shown = now;
	show_bar(p, now);
}

void
dcpd_place_abort(struct dcpd_place *p)
{
	if (p->bar)
		fputs("\r\033[K", stderr);
	p->bar = false;
}

void
dcpd_place_end(struct dcpd_place *p, const char *what)
{
	double took = dcpd_now() - p->start;
	char bytes[32];

	dcpd_place_abort(p);
	dcpd_log(LOG_INFO, "weights: %s %s in %.2f s (%.2f GB/s)", what,
	    dcpd_bytes(bytes, sizeof bytes, p->done), took,
	    took > 0 ? (double)p->done / took / 1e9 : 0);
}
