/* Reads /proc/meminfo and the cgroup's files. Any thread. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "dcpd/config/memavail.h"

#define CGROUP "/sys/fs/cgroup"

/* A file of one number; "max" and a missing file are failures here. */
static int
read_number(const char *path, uint64_t *out)
{
	FILE *f = fopen(path, "re");
	uint64_t v;
	int n;

	if (f == NULL)
		return -errno;
	n = fscanf(f, "%" SCNu64, &v);
	fclose(f);
	if (n != 1)
		return -EINVAL;
	*out = v;
	return 0;
}

/* What one group may still take; -ENOENT: it has no limit. */
static int
group_left(const char *dir, uint64_t *out)
{
	char path[DCPD_CGROUP_PATH + 32];
	uint64_t max, used;

	snprintf(path, sizeof path, "%s/memory.max", dir);
	if (read_number(path, &max) != 0)
		return -ENOENT;
	snprintf(path, sizeof path, "%s/memory.current", dir);
	if (read_number(path, &used) != 0)
		return -ENOENT;
	*out = max > used ? max - used : 0;
	return 0;
}

int
dcpd_cgroup_left(const char *root, const char *group, uint64_t *out)
{
	uint64_t least = UINT64_MAX, left;
	char dir[DCPD_CGROUP_PATH];
	size_t top = strlen(root);

	if ((size_t)snprintf(dir, sizeof dir, "%s%s", root, group) >=
	    sizeof dir)
		return -ENAMETOOLONG;
	/* A limit of any group above holds too. */
	for (;;) {
		if (group_left(dir, &left) == 0 && left < least)
			least = left;
		if (strlen(dir) <= top)
			break;
		*strrchr(dir, '/') = '\0';
	}
	if (least == UINT64_MAX)
		return -ENOENT;
	*out = least;
	return 0;
}

/* The cgroup this process is in, as it is mounted here. */
static int
cgroup_left(uint64_t *out)
{
	char line[512];
	bool found = false;
	FILE *f = fopen("/proc/self/cgroup", "re");

	if (f == NULL)
		return -errno;
	/* Where version 1 is mounted too, its lines come first. */
	while (!found && fgets(line, sizeof line, f) != NULL)
		found = strncmp(line, "0::/", 4) == 0;
	fclose(f);
	line[strcspn(line, "\n")] = '\0';
	return found ? dcpd_cgroup_left(CGROUP, line + 3, out) : -ENOENT;
}

int
dcpd_memory_available(uint64_t *bytes, struct dcpd_err *err)
{
	FILE *f = fopen("/proc/meminfo", "re");
	uint64_t kib = 0, left = 0;
	char line[256];

	if (f == NULL)
		return dcpd_fail(err, -errno, "/proc/meminfo: %s; give "
		    "--kv-bytes-per-rank", strerror(errno));
	while (kib == 0 && fgets(line, sizeof line, f) != NULL)
		if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) != 1)
			kib = 0;
	fclose(f);
	if (kib == 0)
		return dcpd_fail(err, -ENOENT, "/proc/meminfo: no "
		    "MemAvailable; give --kv-bytes-per-rank");
	*bytes = kib << 10;
	if (cgroup_left(&left) == 0)
		*bytes = dcpd_min64(*bytes, left);
	return 0;
}
