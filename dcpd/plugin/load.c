/*
 * Opens a plugin's shared object. It becomes part of the daemon, so nobody
 * but root and the daemon's own user may have been able to write it, or any
 * folder on the way to it. Main thread, at start.
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dcpd/plugin/plugin.h"

#define SYMBOL "dcp_plugin_get"

const char *
dcpd_plugin_dir(const struct dcpd_options *o)
{
	const char *dir = secure_getenv("DCPD_PLUGIN_DIR");

	if (o->plugin_dir != NULL)
		return o->plugin_dir;
	return dir != NULL && dir[0] != '\0' ? dir : DCPD_PKGLIBDIR "/plugins";
}

/*
 * Others must not be able to put another file in its place: not by owning it
 * nor by write permission. A sticky folder (/tmp) lets nobody rename what is
 * another's.
 */
static int
check_owner(const struct stat *st, const char *path, struct dcpd_err *err)
{
	bool sticky = S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX) != 0;

	if (st->st_uid != 0 && st->st_uid != geteuid())
		return dcpd_fail(err, -EPERM, "%.300s belongs to user %u; it "
		    "must be root's or that of dcpd's user (%u): chown it",
		    path, st->st_uid, geteuid());
	if ((st->st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky)
		return dcpd_fail(err, -EPERM, "%.300s may be written by its "
		    "group or others (mode %04o): chmod go-w it", path,
		    st->st_mode & 07777u);
	return 0;
}

/* One folder further down: *fd becomes the child's. */
static int
descend(int *fd, const char *name, const char *path, struct dcpd_err *err)
{
	struct stat st;
	int child;

	child = openat(*fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW |
	    O_CLOEXEC);
	if (child < 0)
		return dcpd_fail(err, -errno, "%.300s: %s", path,
		    strerror(errno));
	close(*fd);
	*fd = child;
	if (fstat(child, &st) != 0)
		return dcpd_fail(err, -errno, "%.300s: %s", path,
		    strerror(errno));
	return check_owner(&st, path, err);
}

/* The folder, with every one above it checked. */
static int
open_folder(const char *dir, int *out, struct dcpd_err *err)
{
	char path[PATH_MAX], part[PATH_MAX] = "/", *name, *save = NULL;
	size_t len = 0;
	int fd, rc;

	/* Links on the way may be root's; what they lead to is checked. */
	if (realpath(dir, path) == NULL)
		return dcpd_fail(err, -errno, "folder %.300s: %s; name the "
		    "one that has the plugins by --plugin-dir (in a build "
		    "tree: --plugin-dir plugins/.libs)", dir,
		    strerror(errno));
	fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return dcpd_fail(err, -errno, "/: %s", strerror(errno));
	rc = descend(&fd, ".", "/", err);
	for (name = strtok_r(path, "/", &save); rc == 0 && name != NULL;
	    name = strtok_r(NULL, "/", &save)) {
		len += (size_t)snprintf(part + len, sizeof part - len, "/%s",
		    name);
		rc = descend(&fd, name, part, err);
	}
	if (rc != 0)
		close(fd);
	else
		*out = fd;
	return rc;
}

static int
open_file(int folder, const char *file, const char *path, int *out,
    struct dcpd_err *err)
{
	struct stat st;
	int fd, rc = 0;

	/* A pipe of that name is refused, not waited for. */
	fd = openat(folder, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK |
	    O_CLOEXEC);
	if (fd < 0 && errno == ELOOP)
		return dcpd_fail(err, -ELOOP, "%.300s is a symbolic link; put "
		    "the file itself there", path);
	if (fd < 0)
		return dcpd_fail(err, -errno, "%.300s: %s%s", path,
		    strerror(errno), errno == ENOENT ? "; dcpd was built "
		    "without it, or --plugin-dir should name another folder" :
		    "");
	if (fstat(fd, &st) != 0)
		rc = dcpd_fail(err, -errno, "%.300s: %s", path,
		    strerror(errno));
	else if (!S_ISREG(st.st_mode))
		rc = dcpd_fail(err, -EINVAL, "%.300s is no regular file",
		    path);
	else
		rc = check_owner(&st, path, err);
	if (rc != 0)
		close(fd);
	else
		*out = fd;
	return rc;
}

static int
check_api(const struct dcp_plugin *p, const char *name, const char *path,
    struct dcpd_err *err)
{
	if (p->magic != DCP_PLUGIN_MAGIC)
		return dcpd_fail(err, -ELIBBAD, "%.300s: magic %08x, want "
		    "%08x: it is no plugin of dcpd", path, p->magic,
		    DCP_PLUGIN_MAGIC);
	if (p->major != DCP_PLUGIN_MAJOR || p->minor > DCP_PLUGIN_MINOR)
		return dcpd_fail(err, -ELIBBAD, "%.300s: plugin ABI %u.%u, "
		    "this dcpd has %d.%d; install both from one release",
		    path, p->major, p->minor, DCP_PLUGIN_MAJOR,
		    DCP_PLUGIN_MINOR);
	if (p->struct_size != sizeof *p)
		return dcpd_fail(err, -ELIBBAD, "%.300s: struct_size %u, want "
		    "%zu: it was built with another dcp_plugin.h", path,
		    p->struct_size, sizeof *p);
	if (p->capabilities != 0)
		return dcpd_fail(err, -ELIBBAD, "%.300s: capabilities %#x: "
		    "this dcpd has none", path, p->capabilities);
	if (p->name == NULL || strcmp(p->name, name) != 0)
		return dcpd_fail(err, -ELIBBAD, "%.300s calls itself \"%.60s\""
		    "; a plugin's file has its name", path,
		    p->name != NULL ? p->name : "");
	if (p->create == NULL || p->start == NULL || p->stop == NULL ||
	    p->destroy == NULL)
		return dcpd_fail(err, -ELIBBAD, "%.300s: create, start, stop "
		    "or destroy is missing", path);
	return 0;
}

int
dcpd_plugin_load(const char *dir, const char *name,
    const struct dcp_plugin **out, struct dcpd_err *err)
{
	const struct dcp_plugin *(*get)(uint32_t), *api;
	char file[80], path[PATH_MAX], by_fd[40];
	int folder = -1, fd = -1, rc;
	void *so;

	DCPD_ASSERT(dcpd_plugin_name_ok(name));
	snprintf(file, sizeof file, "%s.so", name);
	snprintf(path, sizeof path, "%.4000s/%s", dir, file);
	if ((rc = open_folder(dir, &folder, err)) != 0)
		return rc;
	rc = open_file(folder, file, path, &fd, err);
	close(folder);
	if (rc != 0)
		return rc;
	/*
	 * By descriptor: the file that was checked. It stays open for ever,
	 * since the loader tells objects apart by name too.
	 */
	snprintf(by_fd, sizeof by_fd, "/proc/self/fd/%d", fd);
	so = dlopen(by_fd, RTLD_NOW | RTLD_LOCAL);
	if (so == NULL) {
		close(fd);
		return dcpd_fail(err, -ELIBBAD, "%.200s: %.250s", path,
		    dlerror());
	}
	*(void **)&get = dlsym(so, SYMBOL);
	if (get == NULL)
		return dcpd_fail(err, -ELIBBAD, "%.300s: no " SYMBOL " in it: "
		    "it is no plugin of dcpd", path);
	api = get(DCP_PLUGIN_ABI);
	if (api == NULL)
		return dcpd_fail(err, -ELIBBAD, "%.300s has nothing for plugin "
		    "ABI %d.%d; install it and dcpd from one release", path,
		    DCP_PLUGIN_MAJOR, DCP_PLUGIN_MINOR);
	if ((rc = check_api(api, name, path, err)) == 0)
		*out = api;
	return rc;
}
