/*
 * The daemon's configuration: every flag acts, is checked or is refused; the
 * file and the command line agree; a message names the flag and what to do.
 */
#include "config.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcpd/config/memavail.h"
#include "dcpd/config/options.h"

#define ARGS 24

/* Parses "--model m --tp 8"; words are separated by one blank. */
static int
parse(const char *line, struct dcpd_options *o, struct dcpd_err *err)
{
	static char buf[8192];
	char *argv[ARGS] = { "dcpd" }, *save, *w;
	int argc = 1;

	memset(err, 0, sizeof *err);
	snprintf(buf, sizeof buf, "%s", line);
	for (w = strtok_r(buf, " ", &save); w != NULL && argc < ARGS;
	    w = strtok_r(NULL, " ", &save))
		argv[argc++] = w;
	return dcpd_options_parse(argc, argv, o, err);
}

static void
good(const char *line, struct dcpd_options *o)
{
	struct dcpd_err err;
	int rc = parse(line, o, &err);

	ck_assert_msg(rc == 0, "%s: %s", line, err.text);
}

/* Refused, and the message has both words. */
static void
bad(const char *line, const char *word, const char *word2)
{
	struct dcpd_options o;
	struct dcpd_err err;
	int rc = parse(line, &o, &err);

	ck_assert_msg(rc < 0, "%s: not refused", line);
	ck_assert_msg(strstr(err.text, word) != NULL &&
	    strstr(err.text, word2) != NULL,
	    "%s: \"%s\" has not \"%s\" and \"%s\"", line, err.text, word,
	    word2);
	ck_assert(strchr(err.text, '\n') == NULL);
}

START_TEST(defaults_and_values)
{
	struct dcpd_options o;
	struct dcpd_layout l;

	good("--model m", &o);
	ck_assert_uint_eq(o.tp, 1);
	ck_assert_uint_eq(o.dcp, 1);
	ck_assert_uint_eq(o.device, DCPD_DEVICE_CPU);
	ck_assert_uint_eq(o.kv_dtype, DCPK_KV_BF16);
	ck_assert_uint_eq(o.socket_mode, 0660);
	ck_assert_str_eq(o.socket, "/run/dcpd/dcpd.sock");
	ck_assert(!DCPD_GIVEN(&o, tp));
	ck_assert_int_eq(dcpd_options_way(&o), -1);
	dcpd_options_free(&o);

	good("--model-path m --tp-size=8 --attn-cp-size 2 --dcp-size 4 "
	    "--enable-cp-decode-attn-tp --cp-strategy zigzag "
	    "--kv-cache-dtype fp8_e4m3 --kv-bytes-per-rank 1.5MiB "
	    "--prefill-way kv --socket-mode 600 --log-level debug", &o);
	dcpd_options_layout(&o, &l);
	ck_assert_str_eq(o.model, "m");
	ck_assert_uint_eq(l.tp, 8);
	ck_assert_uint_eq(l.cp, 2);
	ck_assert_uint_eq(l.dcp, 4);
	ck_assert_uint_eq(l.strategy, DCPK_CP_ZIGZAG);
	ck_assert_uint_eq(o.kv_dtype, DCPK_KV_FP8);
	ck_assert_uint_eq(o.kv_bytes, 1536 << 10);
	ck_assert_uint_eq(o.socket_mode, 0600);
	ck_assert_int_eq(dcpd_options_way(&o), DCPK_WAY_KV);
	ck_assert_int_eq(dcpd_options_log_level(&o), LOG_DEBUG);
	dcpd_options_free(&o);

	/* Implied where it is needed, as in SGLang's own command lines. */
	good("--model m --tp 8 --attn-cp-size 8 --dcp-size 8", &o);
	ck_assert_uint_eq(o.dcp, 8);
	dcpd_options_free(&o);

	good("--model m --chat-template glm51", &o);
	ck_assert_uint_eq(o.chat_template, 2);
	dcpd_options_free(&o);

	good("--model m --tp 8 --dcp-size 8", &o);
	ck_assert_int_eq(dcpd_options_wire(&o), DCPK_WIRE_F32);
	dcpd_options_free(&o);
	good("--model m --tp 8 --dcp-size 8 --device cuda", &o);
	ck_assert_int_eq(dcpd_options_wire(&o), DCPK_WIRE_BF16);
	dcpd_options_free(&o);
	good("--model m --tp 8 --dcp-size 8 --dcp-wire fp8_e4m3", &o);
	ck_assert_int_eq(dcpd_options_wire(&o), DCPK_WIRE_FP8);
	dcpd_options_free(&o);

	good("--model m --tp 8 --dcp-size 8 --prefill-way a2a", &o);
	ck_assert_int_eq(dcpd_options_way(&o), DCPK_WAY_A2A);
	dcpd_options_free(&o);
}
END_TEST

START_TEST(checked_flags)
{
	struct dcpd_options o;

	good("--model m --page-size 64 --attention-backend nsa "
	    "--dsa-decode-backend flashmla_kv --nsa-prefill-backend "
	    "flashmla_kv --disable-shared-experts-fusion true "
	    "--trust-remote-code", &o);
	ck_assert(o.trust_remote_code);
	dcpd_options_free(&o);
	bad("--model m --page-size 128", "--page-size 128", "64");
	bad("--model m --attention-backend fa3", "--attention-backend", "dsa");
	bad("--model m --dsa-decode-backend fa3", "fa3", "flashmla_kv");
	bad("--model m --disable-shared-experts-fusion false",
	    "--disable-shared-experts-fusion", "true");
}
END_TEST

/* What a GPU does unasked: flags in peer memory where each rank has a GPU of
 * its own, and graphs; never what its own flags forbid. */
START_TEST(gpu_defaults)
{
	static const struct {
		const char *args;
		enum dcpk_comm comm;
		uint32_t graph_rows;
	} c[] = {
		{ "--model m --tp 8", DCPK_COMM_EVENT, 0 },
		{ "--model m --device cuda", DCPK_COMM_EVENT, 64 },
		{ "--model m --device cuda --tp 2", DCPK_COMM_PEER, 64 },
		{ "--model m --device cuda --tp 2 --ranks-per-gpu 2",
		    DCPK_COMM_EVENT, 64 },
		{ "--model m --device cuda --tp 2 --dcp-comm p2p",
		    DCPK_COMM_EVENT, 64 },
		{ "--model m --device cuda --tp 2 --dcp-comm nccl",
		    DCPK_COMM_NCCL, 0 },
		{ "--model m --device cuda --tp 2 --dcp-comm peer "
		    "--cuda-graph-max-bs 8", DCPK_COMM_PEER, 8 },
		{ "--model m --device cuda --tp 2 --disable-peer-access",
		    DCPK_COMM_NCCL, 0 },
		{ "--model m --device cuda --cuda-graph-max-bs 0",
		    DCPK_COMM_EVENT, 0 },
	};
	struct dcpd_options o;

	for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
		good(c[i].args, &o);
		ck_assert_msg(dcpd_options_comm(&o) == c[i].comm &&
		    dcpd_options_graph_rows(&o) == c[i].graph_rows, "%s",
		    c[i].args);
		dcpd_options_free(&o);
	}
}
END_TEST

START_TEST(refused_flags)
{
	bad("--model m --api-key secret", "--api-key", "--api-key-file");
	bad("--engine null --attn-dp-size 2 --tp 8", "--attn-dp-size",
	    "not built");
	bad("--model m --dcp-comm nccl", "--dcp-comm", "cuda");
	bad("--model m --device cuda --dcp-comm peer", "--dcp-comm peer",
	    "--tp 1");
	bad("--model m --device cuda --tp 2 --dcp-comm nccl --ranks-per-gpu 2",
	    "--dcp-comm nccl", "a GPU for each rank");
	bad("--model m --device cuda --tp 8 --dcp-comm peer --ranks-per-gpu 8",
	    "--dcp-comm peer", "p2p");
	bad("--model m --device cuda --tp 2 --dcp-comm nccl "
	    "--cuda-graph-max-bs 8", "--cuda-graph-max-bs 8", "nccl");
	bad("--model m --cuda-graph-max-bs 8", "--cuda-graph-max-bs", "cuda");
	bad("--model m --fp8-gemm-backend cublaslt", "--fp8-gemm-backend",
	    "cuda");
	bad("--model m --disable-peer-access", "--disable-peer-access",
	    "cuda");
	bad("--model m --device cuda --tp 2 --dcp-comm p2p "
	    "--disable-peer-access", "--dcp-comm p2p", "use nccl");
	bad("--model m --device cuda --tp 2 --dcp-comm peer "
	    "--disable-peer-access", "--dcp-comm peer", "use nccl");
	bad("--model m --device cuda --tp 2 --ranks-per-gpu 2 "
	    "--disable-peer-access", "--disable-peer-access",
	    "a GPU for each rank");
	bad("--model m --dcp-comm p2p", "--dcp-comm", "cuda");
	bad("--model m --tp 8 --dcp-wire fp8", "--dcp-wire", "--dcp-size");
	bad("--model m --device cuda --tp 8 --dcp-size 8 --dcp-wire f32",
	    "--dcp-wire f32", "bf16");
	bad("--model m --tp 8 --dcp-size 8 --dcp-wire fp16", "--dcp-wire",
	    "fp8_e4m3");
	bad("--model m --ranks-per-gpu 2", "--ranks-per-gpu", "cuda");
	bad("--model m --device cuda --cpu-threads 2", "--cpu-threads", "cpu");
	bad("--model m --device rocm", "--device rocm", "cpu or cuda");
	bad("--tp 8", "--model", "missing");
	bad("--model m --null-pages 4", "--null-pages", "--engine null");
	bad("--engine null --kv-bytes-per-rank 4096", "--kv-bytes-per-rank",
	    "--null-pages");
	bad("--engine null --kv-cache-dtype fp8", "--kv-cache-dtype", "null");
	bad("--engine null --index-cache-dtype f32", "--index-cache-dtype",
	    "null");
	bad("--engine null --load-format dummy", "--load-format", "null");
	bad("--engine null --latent-norm-eps config", "--latent-norm-eps",
	    "null");
	bad("--engine null --quantize-activations", "--quantize-activations",
	    "null");
	bad("--engine null --quantization fp8", "--quantization", "null");
	bad("--engine null --cpu-threads 2", "--cpu-threads", "null");
	bad("--model m --kv-bytes-per-rank 1MiB --mem-fraction-static 0.5",
	    "--mem-fraction-static", "--kv-bytes-per-rank");
	bad("--model m --max-context 1", "--max-context 1", "2 tokens");
	bad("--model m --max-bytes-per-user 0", "--max-bytes-per-user 0",
	    "256MiB");
	bad("--engine null --plan", "--plan", "null");
	bad("--model m --json", "--json", "--plan");
	bad("--model m --random-seed 3", "--random-seed", "dummy");
	bad("--model m --prefill-way kv", "--prefill-way", "--dcp-size");
	bad("--model m --tp 8 --attn-cp-size 8 --dcp-size 8 "
	    "--enable-cp-decode-attn-tp --prefill-way q", "--prefill-way",
	    "give kv");
	bad("--model m --tp 8 --attn-cp-size 8 --dcp-size 8 "
	    "--enable-cp-decode-attn-tp --prefill-way a2a", "--prefill-way",
	    "give kv");
	bad("--model m --cp-strategy zigzag", "--cp-strategy",
	    "--attn-cp-size");
	bad("--model m --enable-prefill-cp", "--enable-prefill-cp",
	    "--attn-cp-size");
	bad("--model m --tp 8 --attn-cp-size 8 --enable-prefill-cp=false",
	    "--enable-prefill-cp", "--attn-cp-size 8");
	bad("--model m --tp 8 --attn-cp-size 8 --dcp-size 8 "
	    "--enable-cp-decode-attn-tp=false",
	    "--enable-cp-decode-attn-tp false", "--dcp-size 8");
	bad("--model m --tp 8 --dcp-size 8 --enable-cp-decode-attn-tp",
	    "--enable-cp-decode-attn-tp", "leave it out");
	bad("--model m --tp 8 --dcp-size 3", "--dcp-size", "3");
	bad("--model m --socket /a --admin-socket /a", "--admin-socket",
	    "--socket");
}
END_TEST

START_TEST(mistakes)
{
	bad("--model m --dpc-size 8", "--dpc-size", "did you mean --dcp-size");
	bad("--model m --max-runing-requests 8", "did you mean",
	    "--max-running-requests");
	bad("--model m --zzzzzz 1", "no such flag", "--help");
	bad("--model m --tensor-paralel-size 8", "did you mean",
	    "--tensor-parallel-size");
	/* No guess at a flag that begins with another word. */
	bad("--model m --cpu-site 8", "no such flag; see", "--help");
	bad("--model m --host-size 8", "no such flag; see", "--help");
	bad("serve m", "serve", "dcpd --model m");
	bad("--model m -c 4096", "--config 4096", "--max-context");
	bad("--config -/nonexistent/f", "/nonexistent/f", "\"model\"");
}
END_TEST

/* Other servers' flags: what is said instead. */
START_TEST(what_to_give_instead)
{
	static const struct {
		const char *flags, *instead;
	} list[] = {
		{ "max-num-batched-tokens max-prefill-tokens batch-size b "
		  "ubatch-size ub", "--chunked-prefill-size" },
		{ "enforce-eager disable-cuda-graph", "--cuda-graph-max-bs 0" },
		{ "block-size", "a page is 64 tokens" },
		{ "kv-cache-memory-bytes max-total-tokens "
		  "num-gpu-blocks-override", "--kv-bytes-per-rank" },
		{ "dcp", "--dcp-size" },
		{ "parallel np", "--max-running-requests" },
		{ "threads t", "--cpu-threads" },
		{ "alias", "--served-model-name" },
		{ "enable-auto-tool-choice jinja enable-chunked-prefill "
		  "enable-prefix-caching", "always" },
		{ "enable-hierarchical-cache cpu-offload-gb swap-space",
		  "--host-cache-bytes" },
		{ "dtype", "checkpoint" }, { "seed", "request" },
		{ "tokenizer revision", "--model" },
		{ "schedule-policy", "priority" },
		{ "pp-size pipeline-parallel-size pp", "--tp" },
		{ "cors-origin", "cors_origin" },
		{ "disable-log-requests", "not logged" },
		{ "prefill-context-parallel-size", "--attn-cp-size" },
		{ "dcp-comm-backend", "--dcp-comm" },
	};
	char flag[64], args[100];
	const char *s;
	int n;

	for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
		for (s = list[i].flags; sscanf(s, "%63s%n", flag, &n) == 1;
		    s += n) {
			snprintf(args, sizeof args, "--model m %s%s 1",
			    strlen(flag) < 3 ? "-" : "--", flag);
			bad(args, "no such flag; ", list[i].instead);
		}
}
END_TEST

START_TEST(bad_values)
{
	bad("-model m", "-model", "no such flag");
	bad("m", "not a flag", "--model m");
	bad("--model", "--model", "missing");
	bad("--model=", "--model", "empty");
	bad("--model m --tp eight", "--tp eight", "from 1 to 64");
	bad("--model m --tp 0", "--tp 0", "from 1 to 64");
	bad("--model m --tp 65", "--tp 65", "from 1 to 64");
	bad("--model m --tp -1", "--tp -1", "from 1 to 64");
	bad("--model m --tp 8x", "--tp 8x", "whole number");
	bad("--model m --kv-bytes-per-rank 4Q", "--kv-bytes-per-rank",
	    "2GiB");
	bad("--model m --mem-fraction-static 1.5", "--mem-fraction-static",
	    "0.99");
	bad("--model m --mem-fraction-static nan", "--mem-fraction-static",
	    "0.99");
	bad("--model m --socket-mode 999", "--socket-mode", "octal");
	bad("--model m --trust-remote-code=maybe", "--trust-remote-code",
	    "true or false");
}
END_TEST

static void
write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	ck_assert_int_eq(fclose(f), 0);
}

static void
bad_file(const char *text, const char *word, const char *word2)
{
	char path[64], line[128];

	snprintf(path, sizeof path, "t_options.%d.json", (int)getpid());
	snprintf(line, sizeof line, "--model m --config %s", path);
	write_file(path, text);
	bad(line, word, word2);
	bad(line, path, "");
	unlink(path);
}

/* The message about it still says what it is of, and what to do. */
START_TEST(values_that_are_very_long)
{
	static const char *const flag[] = { "tp", "kv-cache-dtype", "log-level",
		"socket-mode", "stuck-after", "device", "host-cache-bytes" };
	static const char *const want[] = { "from 1 to 64", "or fp8_e4m3",
		"or debug", "to 0777", "to 86400", "or cuda", "or 2GiB" };
	char line[6000], name[40];

	for (size_t i = 0; i < sizeof flag / sizeof *flag; i++) {
		snprintf(name, sizeof name, "--%s ", flag[i]);
		snprintf(line, sizeof line, "--model m %s%05000d", name, 0);
		memset(strstr(line, name) + strlen(name), 'x', 5000);
		bad(line, name, want[i]);
	}
	/* Characters are not cut. */
	for (size_t cut = 0; cut < 4; cut++) {
		struct dcpd_options o;
		struct dcpd_err err;
		json_t *j;

		snprintf(line, sizeof line, "--model m --tp %.*s", (int)cut,
		    "xxx");
		for (size_t i = 0; i < 1000; i++)
			strcat(line, "\xf0\x9f\x8d\x90");
		ck_assert_int_lt(parse(line, &o, &err), 0);
		j = json_string(err.text);
		ck_assert_msg(j != NULL, "%s", err.text);
		json_decref(j);
	}
}
END_TEST

START_TEST(config_file)
{
	struct dcpd_options o;
	char path[64], line[128];

	snprintf(path, sizeof path, "t_options.%d.json", (int)getpid());
	write_file(path, "{\"model\": \"m\", \"tp\": 8, \"dcp-size\": 4,"
	    "\"trust-remote-code\": true, \"drain-timeout\": 0.5,"
	    "\"kv-bytes-per-rank\": 4096, \"socket-mode\": \"0600\"}");
	snprintf(line, sizeof line, "--config %s --dcp-size 8", path);
	good(line, &o);
	ck_assert_uint_eq(o.tp, 8);
	ck_assert_uint_eq(o.dcp, 8);	/* the command line goes first */
	ck_assert(o.trust_remote_code);
	ck_assert(o.drain_timeout == 0.5);
	ck_assert_uint_eq(o.kv_bytes, 4096);
	ck_assert_uint_eq(o.socket_mode, 0600);
	ck_assert(DCPD_GIVEN(&o, tp));
	dcpd_options_free(&o);
	unlink(path);

	bad("--config /nonexistent/c.json", "/nonexistent/c.json",
	    "--config");
	bad_file("{\"tp\": 8", "t_options", ":1");
	bad_file("[8]", "JSON object", "");
	bad_file("{\"tp\": 8, \"tp\": 4}", "duplicate", "");
	bad_file("{\"tp\": 8, \"tp-size\": 4}", "twice", "tp-size");
	bad_file("{\"dpc-size\": 8}", "dpc-size", "did you mean --dcp-size");
	bad_file("{\"tp\": [8]}", "tp", "want a string, a number");
	bad_file("{\"tp\": 8.5}", "tp", "whole number");
	bad_file("{\"api-key\": \"x\"}", "api-key", "--api-key-file");
	bad_file("{\"plugins\": [\"http\"]}", "plugins", "want an object");
	bad_file("{\"config\": \"x\"}", "config", "command line");
	bad_file("{\"help\": true}", "help", "command line");
	bad_file("{\"plan\": true}", "plan", "command line");
}
END_TEST

static void
group_file(const char *root, const char *name, const char *text)
{
	char path[200];

	snprintf(path, sizeof path, "%s/%s", root, name);
	write_file(path, text);
}

/* The least of a group and of those above it; "max" is no limit. */
START_TEST(memory_limits_of_parents_hold)
{
	char root[] = "/tmp/t_options.XXXXXX", line[200];
	uint64_t left = 1;

	ck_assert_ptr_nonnull(mkdtemp(root));
	snprintf(line, sizeof line, "mkdir -p %s/a/b/c", root);
	ck_assert_int_eq(system(line), 0);
	ck_assert_int_eq(dcpd_cgroup_left(root, "/a/b/c", &left), -ENOENT);
	ck_assert_uint_eq(left, 1);
	group_file(root, "a/b/c/memory.max", "max\n");
	group_file(root, "a/b/c/memory.current", "10\n");
	ck_assert_int_eq(dcpd_cgroup_left(root, "/a/b/c", &left), -ENOENT);
	group_file(root, "a/memory.max", "1000\n");
	group_file(root, "a/memory.current", "400\n");
	ck_assert_int_eq(dcpd_cgroup_left(root, "/a/b/c", &left), 0);
	ck_assert_uint_eq(left, 600);
	group_file(root, "a/b/memory.max", "900\n");
	group_file(root, "a/b/memory.current", "100\n");
	ck_assert_int_eq(dcpd_cgroup_left(root, "/a/b/c", &left), 0);
	ck_assert_uint_eq(left, 600);
	group_file(root, "a/b/c/memory.max", "20\n");
	ck_assert_int_eq(dcpd_cgroup_left(root, "/a/b/c", &left), 0);
	ck_assert_uint_eq(left, 10);
	/* Over its limit: nothing. */
	group_file(root, "memory.max", "5\n");
	group_file(root, "memory.current", "7\n");
	ck_assert_int_eq(dcpd_cgroup_left(root, "/", &left), 0);
	ck_assert_uint_eq(left, 0);
	ck_assert_int_eq(dcpd_cgroup_left(root, "", &left), 0);
	snprintf(line, sizeof line, "rm -r %s", root);
	ck_assert_int_eq(system(line), 0);
}
END_TEST

/* "plugins" is an object of objects, which goes to the plugins as it is; a
 * file after a '-' may be missing; what was changed is told with its source. */
START_TEST(plugins_of_the_file_and_what_was_changed)
{
	char path[] = "/tmp/t_options.XXXXXX", line[200];
	struct dcpd_options o;
	json_t *c, *v;
	int fd = mkstemp(path);
	FILE *f = fdopen(fd, "w");

	fputs("{\"tp\": 8, \"max-clients\": 256, \"plugins\": "
	    "{\"http\": {\"listen\": [\":8000\"]}}}", f);
	fclose(f);
	snprintf(line, sizeof line, "--model m --config -%s --dcp-size 4",
	    path);
	good(line, &o);
	v = json_object_get(json_object_get(o.plugin_conf, "http"), "listen");
	ck_assert_uint_eq(json_array_size(v), 1);
	c = dcpd_options_changed(&o);
	/* max-clients is what it is by default */
	ck_assert_uint_eq(json_object_size(c), 4);
	v = json_object_get(c, "tp");
	ck_assert_int_eq(json_integer_value(json_object_get(v, "value")), 8);
	ck_assert_int_eq(json_integer_value(json_object_get(v, "default")), 1);
	ck_assert_str_eq(json_string_value(json_object_get(v, "from")),
	    "file");
	v = json_object_get(c, "dcp-size");
	ck_assert_str_eq(json_string_value(json_object_get(v, "from")),
	    "command line");
	json_decref(c);
	dcpd_options_free(&o);
	unlink(path);
	good("--model m --config -/nonexistent/c.json", &o);
	ck_assert_ptr_null(o.plugin_conf);
	dcpd_options_free(&o);
	bad_file("{\"plugins\": {\"http\": 1}}", "http", "object");
}
END_TEST

/* What other servers' flags are told; a mistyped one of ours is no such. */
START_TEST(flags_of_other_servers)
{
	bad("--model m --dp-size 8", "no such flag", "data parallelism");
	bad("--model m --expert-parallel-size=8", "no such flag", "--tp");
	bad("--model m --ctx-size 8", "no such flag", "--max-context");
	bad("--model m --disable-radix-cache", "no such flag", "always on");
	bad("--model m --enable-metrics", "no such flag", "/metrics");
	bad("--model m --speculative-num-steps 3", "--speculative-num-steps",
	    "not there yet");
	bad("--model m --nnodes 2", "no such flag", "one host");
	bad("--model m --ssl-keyfile f", "no such flag", "proxy");
	bad("--model m --swap-space 4", "no such flag", "--host-cache-bytes");
	bad_file("{\"ctx-size\": 8}", "no such key", "--max-context");
}
END_TEST

/* Every line of the table: its default is legal, its alias finds it, the
 * effective configuration has it, and the manual and --help name it. */
START_TEST(table_is_whole)
{
	const struct dcpd_flag_def *d;
	struct dcpd_options o;
	char name[80], *help = NULL, *man = NULL;
	size_t n;
	FILE *f;
	json_t *j;

	good("--model m", &o);
	j = dcpd_options_json(&o);
	f = open_memstream(&help, &n);
	dcpd_flags_help(f);
	fclose(f);
	f = open_memstream(&man, &n);
	dcpd_flags_man(f);
	fclose(f);
	for (d = dcpd_flag_defs; d->group != NULL || d->name != NULL; d++) {
		if (d->name == NULL)
			continue;
		ck_assert_ptr_eq(dcpd_flag_find(d->name, -1), d);
		n = strcspn(d->aliases, "|");
		if (n > 0)
			ck_assert_ptr_eq(dcpd_flag_find(d->aliases, (int)n),
			    d);
		snprintf(name, sizeof name, "--%s", d->name);
		ck_assert_msg(strstr(help, name) != NULL, "%s", name);
		if (n > 1) {
			snprintf(name, sizeof name, "--%.*s", (int)n,
			    d->aliases);
			ck_assert_msg(strstr(help, name) != NULL, "%s", name);
		}
		ck_assert_msg(d->kind == DCPD_KIND_REFUSE ||
		    json_object_get(j, d->name) != NULL, "%s", name);
		ck_assert_msg(d->help[0] != '\0' && (d->legal[0] != '\0' ||
		    d->type == DCPD_TYPE_BOOL || d->type == DCPD_TYPE_BYTES),
		    "%s", name);
	}
	ck_assert_ptr_nonnull(strstr(man, "\\-\\-dcp\\-size"));
	json_decref(j);
	free(help);
	free(man);
	dcpd_options_free(&o);
}
END_TEST

START_TEST(parsers_follow_the_model)
{
	struct dcpd_options o;
	struct dcpd_err err = { 0 };
	enum dcpd_chat chat = DCPD_CHAT_GLM45;
	enum dcpd_parser parser;

	good("--model m", &o);
	ck_assert_int_eq(dcpd_options_chat(&o, "glm_moe_dsa", NULL, &chat,
	    &parser, &err), 0);
	ck_assert_int_eq(chat, DCPD_CHAT_NONE);
	ck_assert_int_eq(parser, DCPD_PARSE_RAW);
	dcpd_options_free(&o);
	good("--model m --reasoning-parser deepseek_v3", &o);
	ck_assert_int_eq(o.reasoning_parser, 3);
	dcpd_options_free(&o);
	good("--model m --reasoning-parser glm45", &o);
	ck_assert_int_lt(dcpd_options_chat(&o, "glm_moe_dsa", NULL, &chat,
	    &parser, &err), 0);
	ck_assert_ptr_nonnull(strstr(err.text, "--reasoning-parser"));
	dcpd_options_free(&o);
}
END_TEST

START_TEST(formats)
{
	struct dcpd_options o;
	struct dcpd_err err = { 0 };
	struct dcpk_model m = { .kv_lora = 512, .rope = 64, .idx_dim = 128 };
	struct dcpk_model small = { .kv_lora = 32, .rope = 16, .idx_dim = 32 };
	struct dcpd_model_config cfg = { .quant_method = "fp8" };
	enum dcpk_kv kv, idx;

	good("--model m --kv-cache-dtype auto", &o);
	ck_assert_uint_eq(o.kv_dtype, DCPK_KV_BF16);
	dcpd_options_free(&o);
	good("--model m --kv-cache-dtype fp8_e4m3 --quantization FP8", &o);
	ck_assert_int_eq(dcpd_options_formats(&o, &m, &kv, &idx, &err), 0);
	ck_assert_int_eq(kv, DCPK_KV_FP8);
	ck_assert_int_eq(idx, DCPK_KV_FP8);
	ck_assert_int_lt(dcpd_options_formats(&o, &small, &kv, &idx, &err), 0);
	ck_assert_int_eq(dcpd_options_quantization(&o, &cfg, &err), 0);
	cfg.quant_method[0] = '\0';
	ck_assert_int_lt(dcpd_options_quantization(&o, &cfg, &err), 0);
	ck_assert_ptr_nonnull(strstr(err.text, "--quantization"));
	dcpd_options_free(&o);

	good("--model m --kv-cache-dtype f32 --index-cache-dtype bf16", &o);
	ck_assert_int_eq(dcpd_options_formats(&o, &small, &kv, &idx, &err), 0);
	ck_assert_int_eq(kv, DCPK_KV_F32);
	ck_assert_int_eq(idx, DCPK_KV_BF16);
	dcpd_options_free(&o);
	good("--model m --kv-cache-dtype f32 --device cuda", &o);
	ck_assert_int_lt(dcpd_options_formats(&o, &m, &kv, &idx, &err), 0);
	dcpd_options_free(&o);
}
END_TEST

/* FP8 weights in blocks of 128 x 128, and int4 beside them, are kept on GPUs
 * unless told otherwise. */
START_TEST(fp8_weights)
{
	static const struct {
		const char *flags, *quant;
		uint32_t block_k, kept;
	} is[] = {
		{ "--model m --device cuda --tp 2", "fp8", 128,
		    DCPK_FP8_WEIGHTS },
		{ "--model m --device cuda --tp 2 --fp8-gemm-backend cublaslt",
		    "fp8", 128, DCPK_FP8_WEIGHTS },
		{ "--model m --device cuda --tp 2 --fp8-gemm-backend bf16",
		    "fp8", 128, 0 },
		{ "--model m --device cuda --tp 2", "fp8", 64, 0 },
		{ "--model m --device cuda --tp 2", "w4afp8", 128,
		    DCPK_FP8_WEIGHTS | DCPK_INT4_WEIGHTS },
		{ "--model m --device cuda --tp 2 --fp8-gemm-backend bf16",
		    "w4afp8", 128, 0 },
		{ "--model m --tp 2", "w4afp8", 128, 0 },
		{ "--model m --device cuda --tp 2", "", 128, 0 },
		{ "--model m --tp 2", "fp8", 128, 0 },
	};

	for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
		struct dcpd_model_config cfg = { .block_n = 128,
		    .block_k = is[i].block_k };
		struct dcpd_options o;

		snprintf(cfg.quant_method, sizeof cfg.quant_method, "%s",
		    is[i].quant);
		good(is[i].flags, &o);
		ck_assert_uint_eq(dcpd_options_keeps(&o, &cfg), is[i].kept);
		dcpd_options_free(&o);
	}
}
END_TEST

int
main(void)
{
	Suite *s = suite_create("options");
	TCase *t = tcase_create("options");
	SRunner *r;
	int failed;

	tcase_add_test(t, defaults_and_values);
	tcase_add_test(t, checked_flags);
	tcase_add_test(t, gpu_defaults);
	tcase_add_test(t, fp8_weights);
	tcase_add_test(t, refused_flags);
	tcase_add_test(t, mistakes);
	tcase_add_test(t, what_to_give_instead);
	tcase_add_test(t, bad_values);
	tcase_add_test(t, values_that_are_very_long);
	tcase_add_test(t, config_file);
	tcase_add_test(t, flags_of_other_servers);
	tcase_add_test(t, memory_limits_of_parents_hold);
	tcase_add_test(t, plugins_of_the_file_and_what_was_changed);
	tcase_add_test(t, table_is_whole);
	tcase_add_test(t, parsers_follow_the_model);
	tcase_add_test(t, formats);
	suite_add_tcase(s, t);
	r = srunner_create(s);
	srunner_run_all(r, CK_NORMAL);
	failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
