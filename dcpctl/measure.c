/* Clock, random numbers, quantiles: what bench and top measure with. */
#include "config.h"

#include <stdlib.h>
#include <time.h>

#include "dcpctl/ctl.h"
#include "dcpctl/measure.h"

double
ctl_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

uint64_t
ctl_draw(uint64_t *state)
{
	return ctl_mix(*state += 0x9e3779b97f4a7c15u);
}

static int
by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double
ctl_quantile(double *v, size_t n, double q)
{
	if (n == 0)
		return 0;
	qsort(v, n, sizeof *v, by_value);
	return v[(size_t)(q * (double)(n - 1) + 0.5)];
}

int
ctl_vocab(struct dcp *dcp, uint32_t *vocab)
{
	char *text = NULL;
	json_t *info;
	int rc;

	if (*vocab > 0)
		return CTL_OK;
	rc = dcp_server_info(dcp, &text);
	info = rc == 0 ? json_loads(text, 0, NULL) : NULL;
	*vocab = (uint32_t)json_integer_value(json_object_get(info, "vocab"));
	json_decref(info);
	free(text);
	return *vocab > 0 ? CTL_OK : ctl_fail(CTL_FAILED, "the daemon does "
	    "not say how large its vocabulary is; give --vocab");
}

json_t *
ctl_status_json(void)
{
	json_t *s = NULL;

	ctl_admin(json_pack("{s:s}", "cmd", "status"), true, &s);
	return s;
}
