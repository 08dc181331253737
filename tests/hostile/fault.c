/*
 * Preloaded into a daemon: the n-th call of one function fails, once. Which
 * and when stands in a file that the test maps too ($DCPD_FAULT), so that a
 * fault can be armed at any time, and the test sees whether it came.
 *
 * Interposes calls of the daemon and of its libraries; what libc calls within
 * itself is not seen, except for memory. $DCPD_FAULT_TRACE: each fault's
 * backtrace goes to standard error.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MALLOC, MMAP, MEMFD_CREATE, RECVMSG, READ, WRITE, ACCEPT,
	PTHREAD_CREATE, DLOPEN, PIPE2, SENDMSG, EPOLL_CTL, N_FUNCS };

struct control {
	int32_t func;		/* which; -1: none */
	int32_t pad;
	int64_t left;		/* calls until it fails */
	int64_t calls;		/* of it, while armed */
	int64_t hits;		/* how often it failed: 0 or 1 */
};

#define FRAMES 24
static struct control *ctl;
static int trace;

/* A real function, looked up at its first call. */
#define REAL(ret, name, ...) \
	static ret (*real)(__VA_ARGS__); \
	if (real == NULL) \
		real = (ret (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void
map_control(void)
{
	const char *path = getenv("DCPD_FAULT");
	int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
	void *p;

	if (fd < 0)
		return;
	p = mmap(NULL, sizeof *ctl, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	trace = getenv("DCPD_FAULT_TRACE") != NULL;
	/* The first call loads the unwinder. */
	if (trace)
		backtrace((void *[1]){ 0 }, 1);
	if (p != MAP_FAILED)
		__atomic_store_n(&ctl, p, __ATOMIC_RELEASE);
}

/* Is this call of func the one that fails? */
static int
fails(int func)
{
	struct control *c = __atomic_load_n(&ctl, __ATOMIC_ACQUIRE);
	void *frame[FRAMES];

	if (c == NULL || __atomic_load_n(&c->func, __ATOMIC_ACQUIRE) != func)
		return 0;
	__atomic_fetch_add(&c->calls, 1, __ATOMIC_RELAXED);
	if (__atomic_sub_fetch(&c->left, 1, __ATOMIC_ACQ_REL) != 0)
		return 0;
	__atomic_fetch_add(&c->hits, 1, __ATOMIC_RELEASE);
	if (trace)
		backtrace_symbols_fd(frame, backtrace(frame, FRAMES), 2);
	return 1;
}

/*
 * libevent is left alone: its evhttp reads through NULL when it finds no
 * memory for a request (2.1.12), which nobody but libevent can mend. On its
 * thread libc is too, whose strdup it calls.
 */
static int
no_memory_for(const void *caller)
{
	struct control *c = __atomic_load_n(&ctl, __ATOMIC_ACQUIRE);
	char thread[16] = "";
	Dl_info of;

	if (c == NULL || __atomic_load_n(&c->func, __ATOMIC_ACQUIRE) != MALLOC)
		return 0;
	prctl(PR_GET_NAME, thread);
	if (dladdr(caller, &of) != 0 && of.dli_fname != NULL &&
	    (strstr(of.dli_fname, "libevent") != NULL ||
	    (strcmp(thread, "http") == 0 &&
	    strstr(of.dli_fname, "/libc.") != NULL)))
		return 0;
	return fails(MALLOC);
}

#define NO_MEMORY no_memory_for(__builtin_return_address(0))

static void *
no_memory(void)
{
	errno = ENOMEM;
	return NULL;
}

void *
malloc(size_t n)
{
	REAL(void *, malloc, size_t);
	return NO_MEMORY ? no_memory() : real(n);
}

void *
calloc(size_t n, size_t size)
{
	REAL(void *, calloc, size_t, size_t);
	return NO_MEMORY ? no_memory() : real(n, size);
}

void *
realloc(void *p, size_t n)
{
	REAL(void *, realloc, void *, size_t);
	return NO_MEMORY ? no_memory() : real(p, n);
}

int
posix_memalign(void **p, size_t align, size_t n)
{
	REAL(int, posix_memalign, void **, size_t, size_t);
	return NO_MEMORY ? ENOMEM : real(p, align, n);
}

void *
aligned_alloc(size_t align, size_t n)
{
	REAL(void *, aligned_alloc, size_t, size_t);
	return NO_MEMORY ? no_memory() : real(align, n);
}

void *
mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	REAL(void *, mmap, void *, size_t, int, int, int, off_t);
	if (fails(MMAP)) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return real(at, n, prot, flags, fd, off);
}

int
memfd_create(const char *name, unsigned flags)
{
	REAL(int, memfd_create, const char *, unsigned);
	if (fails(MEMFD_CREATE)) {
		errno = EMFILE;
		return -1;
	}
	return real(name, flags);
}

ssize_t
recvmsg(int fd, struct msghdr *m, int flags)
{
	REAL(ssize_t, recvmsg, int, struct msghdr *, int);
	if (fails(RECVMSG)) {
		errno = ENOMEM;
		return -1;
	}
	return real(fd, m, flags);
}

ssize_t
sendmsg(int fd, const struct msghdr *m, int flags)
{
	REAL(ssize_t, sendmsg, int, const struct msghdr *, int);
	if (fails(SENDMSG)) {
		errno = ENOBUFS;
		return -1;
	}
	return real(fd, m, flags);
}

/* send and sendmsg are one to who counts. */
ssize_t
send(int fd, const void *p, size_t n, int flags)
{
	REAL(ssize_t, send, int, const void *, size_t, int);
	if (fails(SENDMSG)) {
		errno = ENOBUFS;
		return -1;
	}
	return real(fd, p, n, flags);
}

/* An eventfd's read and write fail only when it is empty, or full. */
static int
fails_on(int func, int fd)
{
	struct control *c = __atomic_load_n(&ctl, __ATOMIC_ACQUIRE);
	char path[32], to[32] = "";

	if (c == NULL || __atomic_load_n(&c->func, __ATOMIC_ACQUIRE) != func)
		return 0;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (readlink(path, to, sizeof to - 1) > 0 &&
	    strstr(to, "[eventfd]") != NULL)
		return 0;
	return fails(func);
}

ssize_t
read(int fd, void *p, size_t n)
{
	REAL(ssize_t, read, int, void *, size_t);
	if (fails_on(READ, fd)) {
		errno = EIO;
		return -1;
	}
	return real(fd, p, n);
}

ssize_t
write(int fd, const void *p, size_t n)
{
	REAL(ssize_t, write, int, const void *, size_t);
	if (fails_on(WRITE, fd)) {
		errno = ENOMEM;
		return -1;
	}
	return real(fd, p, n);
}

int
accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	REAL(int, accept4, int, struct sockaddr *, socklen_t *, int);
	if (fails(ACCEPT)) {
		errno = EMFILE;
		return -1;
	}
	return real(fd, sa, len, flags);
}

int
pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *),
    void *arg)
{
	REAL(int, pthread_create, pthread_t *, const pthread_attr_t *,
	    void *(*)(void *), void *);
	return fails(PTHREAD_CREATE) ? EAGAIN : real(t, a, f, arg);
}

void *
dlopen(const char *path, int flags)
{
	REAL(void *, dlopen, const char *, int);
	return real(fails(DLOPEN) ? "/nonexistent/fault.so" : path, flags);
}

int
pipe2(int fds[2], int flags)
{
	REAL(int, pipe2, int *, int);
	if (fails(PIPE2)) {
		errno = EMFILE;
		return -1;
	}
	return real(fds, flags);
}

struct epoll_event;
int
epoll_ctl(int ep, int op, int fd, struct epoll_event *e)
{
	REAL(int, epoll_ctl, int, int, int, struct epoll_event *);
	if (fails(EPOLL_CTL)) {
		errno = ENOMEM;
		return -1;
	}
	return real(ep, op, fd, e);
}
