/*
 * The wire ABI between libdcpclient and dcpd: messages of the set-up, the two
 * shared regions, and the entries of their rings. Layout only, no code.
 *
 * Set-up, on an AF_UNIX SOCK_SEQPACKET socket: the client sends dcpr_hello,
 * the daemon answers with dcpr_welcome and, when status is 0, four file
 * descriptors: client region, server region, and the doorbell, a pipe's end to
 * read and its end to write. The client writes it, and empties it when it is
 * full; the daemon sees each write and never reads. Afterwards
 * the client sends nothing more on the socket; the daemon sends single bytes
 * that wake a sleeping reader. End of file means that the other side is gone.
 *
 * Everything is little-endian and naturally aligned. Ring indices are
 * free-running 32-bit counters, masked on use. doc/ring.md has the protocol.
 */
#ifndef DCP_RING_H
#define DCP_RING_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define DCPR_ASSERT(x) static_assert(x, #x)
#else
#define DCPR_ASSERT(x) _Static_assert(x, #x)
#endif

#define DCPR_MAGIC 0x52504344u		/* "DCPR" */
#define DCPR_MAJOR 1			/* differs: no connection */
#define DCPR_MINOR 0			/* larger: more ops or fields */
#define DCPR_FEATURES 0ull		/* optional parts; none so far */

#define DCPR_LINE 128u			/* words of two writers are apart */
#define DCPR_PAGE 4096u

/* --- set-up --- */

struct dcpr_hello {
	uint32_t magic;
	uint16_t major, minor;
	uint64_t features;		/* must be among the daemon's */
};

struct dcpr_welcome {
	uint32_t magic;
	uint16_t major, minor;
	int32_t status;			/* 0, or -errno and text says why */
	uint32_t client;		/* upper half of its request ids */
	uint64_t features;		/* the daemon's */
	uint64_t client_bytes, server_bytes;	/* sizes of the regions */
	uint32_t vocab;			/* token ids are below it */
	uint32_t pad;
	char text[200];			/* NUL-terminated */
};

/* --- the regions --- */

/* First page of the server region: only the daemon writes here. */
struct dcpr_server_page {
	/* constant after set-up; offsets are bytes from a region's start */
	uint32_t magic;
	uint16_t major, minor;
	uint64_t features;
	uint64_t epoch;			/* differs in each life of the daemon */
	uint32_t sq_off, sq_entries;	/* client region; entries: 2^n */
	uint32_t arena_off, arena_size;	/* client region; size: 2^n bytes */
	uint32_t cq_off, cq_entries;	/* server region */
	uint32_t stream_off, stream_size;	/* server region */
	uint8_t pad0[DCPR_LINE - 56];

	uint32_t sq_head;		/* submissions taken */
	uint8_t pad1[DCPR_LINE - 4];

	uint32_t cq_tail;		/* completions written */
	uint8_t pad2[DCPR_LINE - 4];

	/*
	 * Requests for a doorbell. Each new value asks for one ring of the
	 * doorbell: sq_bell when a submission is published, space_bell when
	 * at least half of the completion ring is free.
	 */
	uint32_t sq_bell, space_bell;
	uint8_t pad3[DCPR_LINE - 8];
};

/* First page of the client region: only the client writes here. */
struct dcpr_client_page {
	uint32_t sq_tail;		/* submissions written */
	uint8_t pad0[DCPR_LINE - 4];

	uint32_t cq_head;		/* completions taken */
	uint8_t pad1[DCPR_LINE - 4];

	uint32_t cq_bell;		/* each new value asks for one byte */
	uint8_t pad2[DCPR_LINE - 4];
};

/* --- submissions --- */

enum {
	DCPR_OP_SUBMIT = 1,	/* id: this client's next; off, len: request */
	DCPR_OP_CANCEL = 2,	/* id: which */
	DCPR_OP_INFO = 3,	/* id: comes back with the answer */
};

struct dcpr_sqe {
	uint32_t op;
	uint32_t flags;			/* 0 */
	uint64_t id;
	uint64_t user_data;
	uint32_t off, len;		/* in the arena, off a multiple of 8 */
	uint64_t reserved[4];		/* 0 */
};

/* Bytes [off, off+len) of the request's block; off is a multiple of 8. */
struct dcpr_section {
	uint32_t off, len;
};

/*
 * A request's block in the arena starts with this; the sections follow. The
 * block may be reused once sq_head has passed its entry. Fields as in
 * struct dcp_request.
 */
struct dcpr_request {
	uint32_t input, flags, max_tokens, min_tokens;
	float temperature, top_p, min_p;
	float repetition_penalty, presence_penalty, frequency_penalty;
	int32_t top_k;
	uint32_t top_logprobs;
	int32_t priority;
	uint32_t deadline_ms;
	uint64_t seed;
	uint32_t n_stop, n_stop_ids, n_logit_bias;
	uint32_t pad;			/* 0 */
	struct dcpr_section data;
	struct dcpr_section stop;	/* n_stop strings, each with its NUL */
	struct dcpr_section stop_ids;	/* uint32_t [n_stop_ids] */
	struct dcpr_section logit_bias;	/* dcpr_pair [n_logit_bias] */
	struct dcpr_section options;	/* JSON text, no NUL */
};

struct dcpr_pair {
	uint32_t token;
	float value;			/* bias, or logprob */
};

/* --- completions --- */

enum {
	DCPR_EV_INFO = 100,		/* besides DCP_EV_*: a piece of JSON */
};

enum {
	DCPR_CQE_MORE = 1 << 0,		/* not the last of its id */
	DCPR_CQE_STREAM = 1 << 1,	/* payload is a record in the stream */
};

#define DCPR_INLINE 32u			/* bytes of payload in an entry */

/*
 * Inline payload, in this order: usage (16 bytes, not with DCP_EV_DELTA), token
 * ids, text. Else a dcpr_where.
 */
struct dcpr_cqe {
	uint64_t id;
	uint64_t user_data;
	uint32_t seq;			/* of this id's entries, from 0 */
	uint8_t type;			/* DCP_EV_* or DCPR_EV_INFO */
	uint8_t channel;
	uint8_t finish;
	uint8_t flags;			/* DCPR_CQE_* */
	uint16_t call;			/* inline only */
	uint8_t n_tokens, text_len;	/* inline only */
	int32_t error;
	uint8_t payload[DCPR_INLINE];
};

struct dcpr_where {
	uint32_t off, len;		/* in the stream, off multiple of 8 */
};

/*
 * A record in the stream, never wrapped round the end. After it, in this
 * order: uint32_t tokens[n_tokens]; dcpr_logprob[n_logprobs]; dcpr_pair
 * top[n_top], those of each logprob in turn; text.
 */
struct dcpr_record {
	uint32_t n_tokens, n_logprobs, n_top, text_len;
	uint32_t call;
	uint32_t prompt_tokens, cached_tokens;
	uint32_t completion_tokens, reasoning_tokens;
	uint32_t pad;
};

struct dcpr_logprob {
	uint32_t token;
	float logprob;
	uint32_t n_top;
};

DCPR_ASSERT(sizeof(struct dcpr_hello) == 16);
DCPR_ASSERT(sizeof(struct dcpr_welcome) == 248);
DCPR_ASSERT(offsetof(struct dcpr_server_page, sq_head) == 1 * DCPR_LINE);
DCPR_ASSERT(offsetof(struct dcpr_server_page, cq_tail) == 2 * DCPR_LINE);
DCPR_ASSERT(offsetof(struct dcpr_server_page, sq_bell) == 3 * DCPR_LINE);
DCPR_ASSERT(sizeof(struct dcpr_server_page) <= DCPR_PAGE);
DCPR_ASSERT(offsetof(struct dcpr_client_page, cq_head) == 1 * DCPR_LINE);
DCPR_ASSERT(offsetof(struct dcpr_client_page, cq_bell) == 2 * DCPR_LINE);
DCPR_ASSERT(sizeof(struct dcpr_client_page) <= DCPR_PAGE);
DCPR_ASSERT(sizeof(struct dcpr_sqe) == 64);
DCPR_ASSERT(sizeof(struct dcpr_request) == 120);
DCPR_ASSERT(sizeof(struct dcpr_pair) == 8);
DCPR_ASSERT(sizeof(struct dcpr_cqe) == 64);
DCPR_ASSERT(offsetof(struct dcpr_cqe, payload) == 32);
DCPR_ASSERT(sizeof(struct dcpr_record) == 40);
DCPR_ASSERT(sizeof(struct dcpr_logprob) == 12);

#ifdef __cplusplus
}
#endif
#endif
