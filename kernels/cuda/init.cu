/*
 * What must happen on a device before its first launch.
 */
#include "kernels/cuda/dcpg.h"

namespace dcpg {
int attend_init(void);
int index_init(void);
int index_rows_init(void);
int select_init(void);
int value_init(void);
int query_init(void);
int route_rows_init(void);
int experts_init(void);
int experts4_init(void);
int linear_init(void);
}

extern "C" int
dcpg_init(void)
{
	int rc = dcpg::attend_init();

	if (rc == 0)
		rc = dcpg::index_init();
	if (rc == 0)
		rc = dcpg::index_rows_init();
	if (rc == 0)
		rc = dcpg::select_init();
	if (rc == 0)
		rc = dcpg::value_init();
	if (rc == 0)
		rc = dcpg::query_init();
	if (rc == 0)
		rc = dcpg::route_rows_init();
	if (rc == 0)
		rc = dcpg::experts_init();
	if (rc == 0)
		rc = dcpg::experts4_init();
	return rc != 0 ? rc : dcpg::linear_init();
}
