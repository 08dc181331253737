/* Seeded random weights for --load-format dummy. */
#ifndef DCPD_MODEL_DUMMY_H
#define DCPD_MODEL_DUMMY_H

#include "dcpd/model/model.h"

int dcpd_dummy_load(const struct dcpd_model_config *, const struct dcpk_topo *,
    const struct dcpk_backend *, struct dcpk_ctx *,
    const struct dcpd_load_options *, struct dcpd_err *);

#endif
