/*
 * Loads a device's module. dcpd itself links neither CUDA nor NCCL, so that it
 * starts on any machine; libdcp_cuda.so is opened only when asked for. Main
 * thread, once.
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "dcpd/config/device.h"
#include "dcpd/config/options.h"

#define MODULE "libdcp_cuda.so"
#define SYMBOL "dcpk_backend_get"

/* Where modules live; a build tree points elsewhere by its environment. */
static const char *
module_dir(void)
{
	const char *dir = secure_getenv("DCPD_MODULE_DIR");

	return dir != NULL && dir[0] != '\0' ? dir : DCPD_PKGLIBDIR;
}

static int
load_module(const struct dcpk_backend **out, struct dcpd_err *err)
{
	const struct dcpk_backend *b;
	dcpk_backend_get_fn *get;
	char path[4096];
	void *so;

	snprintf(path, sizeof path, "%s/" MODULE, module_dir());
	if (access(path, F_OK) != 0)
		return dcpd_fail(err, -ENOENT, "--device cuda: no CUDA module: "
		    "%.200s is not there, dcpd was built without it or it is "
		    "not installed (DCPD_MODULE_DIR: another folder); use "
		    "--device cpu, or install the module of this release",
		    path);
	so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (so == NULL)
		return dcpd_fail(err, -ELIBBAD, "--device cuda: %.400s; "
		    "install the CUDA libraries it names, or use --device cpu",
		    dlerror());
	*(void **)&get = dlsym(so, SYMBOL);
	b = get == NULL ? NULL : get(DCPK_ABI);
	if (b == NULL || b->abi != DCPK_ABI || b->size != sizeof *b) {
		dlclose(so);
		return dcpd_fail(err, -ELIBBAD, "--device cuda: %.200s is of "
		    "another release (%s, want ABI %u, %zu bytes); install "
		    "dcpd and its module from one build", path,
		    get == NULL ? "no " SYMBOL : b == NULL ?
		    "it refuses this ABI" : "another ABI", DCPK_ABI,
		    sizeof *b);
	}
	*out = b;
	return 0;
}

int
dcpd_device(uint32_t device, const struct dcpk_backend **out,
    struct dcpd_err *err)
{
	if (device == DCPD_DEVICE_CUDA)
		return load_module(out, err);
	*out = &dcpk_cpu;
	return 0;
}
