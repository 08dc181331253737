/* The backend that --device names: linked in (cpu), or a module (cuda). */
#ifndef DCPD_DEVICE_H
#define DCPD_DEVICE_H

#include "dcpd/base/base.h"
#include "kernels/kernels.h"

/*
 * device: DCPD_DEVICE_*. A module stays loaded until the process ends.
 * -ENOENT: no module was built; -ELIBBAD: it is not one of this release.
 */
int dcpd_device(uint32_t device, const struct dcpk_backend **,
    struct dcpd_err *);

#endif
