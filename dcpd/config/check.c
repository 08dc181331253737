/*
 * What the flags mean together: relations that one line of flags.h cannot
 * say, and the values that other parts take. Each refusal names the flag to
 * change. Main thread, at start.
 */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>
#include <unistd.h>

#include "dcpd/config/options.h"

/* Flags of --device cuda among themselves. */
static int
check_cuda(const struct dcpd_options *o, struct dcpd_err *err)
{
	const char *comm = o->dcp_comm == DCPD_COMM_PEER ? "peer" : "nccl";

	if (DCPD_GIVEN(o, cpu_threads))
		return dcpd_fail(err, -EINVAL,
		    "--cpu-threads: only with --device cpu; leave it out");
	if (o->quantize_activations)
		return dcpd_fail(err, -EINVAL, "--quantize-activations: only "
		    "with --device cpu, a GPU does it anyway; leave it out");
	if (o->no_peers && o->tp > 1 && o->ranks_per_gpu > 1)
		return dcpd_fail(err, -EINVAL, "--disable-peer-access: leaves "
		    "NCCL, which needs a GPU for each rank; leave out "
		    "--ranks-per-gpu %u", o->ranks_per_gpu);
	if (o->no_peers && (o->dcp_comm == DCPD_COMM_P2P ||
	    o->dcp_comm == DCPD_COMM_PEER))
		return dcpd_fail(err, -EINVAL, "--dcp-comm %s: GPUs read each "
		    "other's memory, not with --disable-peer-access; use nccl",
		    o->dcp_comm == DCPD_COMM_P2P ? "p2p" : "peer");
	if (o->dcp_comm == DCPD_COMM_AUTO || o->dcp_comm == DCPD_COMM_P2P)
		return 0;
	if (o->tp == 1)
		return dcpd_fail(err, -EINVAL, "--dcp-comm %s: with --tp 1 "
		    "there is nobody to exchange with; leave it out", comm);
	if (o->ranks_per_gpu > 1)
		return dcpd_fail(err, -EINVAL, "--dcp-comm %s: needs a GPU for "
		    "each rank, --ranks-per-gpu is %u; use --dcp-comm p2p",
		    comm, o->ranks_per_gpu);
	if (o->dcp_comm == DCPD_COMM_NCCL &&
	    DCPD_GIVEN(o, cuda_graph_max_bs) && o->cuda_graph_max_bs > 0)
		return dcpd_fail(err, -EINVAL, "--cuda-graph-max-bs %u: not "
		    "with --dcp-comm nccl, whose calls are not captured; use "
		    "p2p or peer, or 0", o->cuda_graph_max_bs);
	return 0;
}

static int
check_device(const struct dcpd_options *o, struct dcpd_err *err)
{
	if (o->device == DCPD_DEVICE_CUDA)
		return check_cuda(o, err);
	if (DCPD_GIVEN(o, dcp_comm))
		return dcpd_fail(err, -EINVAL, "--dcp-comm: only with --device "
		    "cuda; on the CPU ranks share memory; leave it out");
	if (DCPD_GIVEN(o, no_peers))
		return dcpd_fail(err, -EINVAL, "--disable-peer-access: only "
		    "with --device cuda; leave it out");
	if (DCPD_GIVEN(o, ranks_per_gpu))
		return dcpd_fail(err, -EINVAL, "--ranks-per-gpu: only with "
		    "--device cuda; leave it out");
	if (DCPD_GIVEN(o, cuda_graph_max_bs))
		return dcpd_fail(err, -EINVAL, "--cuda-graph-max-bs: only with "
		    "--device cuda; leave it out");
	if (DCPD_GIVEN(o, fp8_gemm))
		return dcpd_fail(err, -EINVAL, "--fp8-gemm-backend: only with "
		    "--device cuda; leave it out");
	return 0;
}

static int
check_cp(const struct dcpd_options *o, struct dcpd_err *err)
{
	if (DCPD_GIVEN(o, prefill_cp) && o->prefill_cp != (o->cp > 1))
		return dcpd_fail(err, -EINVAL, "--enable-prefill-cp %s with "
		    "--attn-cp-size %u: give --attn-cp-size %s",
		    o->prefill_cp ? "true" : "false", o->cp,
		    o->prefill_cp ? "2 or more" : "1");
	if (DCPD_GIVEN(o, cp_strategy) && o->cp == 1)
		return dcpd_fail(err, -EINVAL, "--cp-strategy: only with "
		    "--attn-cp-size above 1; leave it out");
	if (o->cp > 1 && o->dcp > 1 && DCPD_GIVEN(o, cp_decode_tp) &&
	    !o->cp_decode_tp)
		return dcpd_fail(err, -EINVAL, "--enable-cp-decode-attn-tp "
		    "false with --attn-cp-size %u and --dcp-size %u: decode "
		    "works on head slices then; leave it out", o->cp, o->dcp);
	if (o->cp_decode_tp && (o->cp == 1 || o->dcp == 1))
		return dcpd_fail(err, -EINVAL, "--enable-cp-decode-attn-tp: "
		    "only with --attn-cp-size and --dcp-size both above 1; "
		    "leave it out");
	if (DCPD_GIVEN(o, prefill_way) && o->prefill_way != 0 && o->dcp == 1)
		return dcpd_fail(err, -EINVAL, "--prefill-way: only with "
		    "--dcp-size above 1; leave it out");
	if (o->device == DCPD_DEVICE_CUDA && o->dcp_wire == 1 +
	    DCPK_WIRE_F32)
		return dcpd_fail(err, -EINVAL, "--dcp-wire f32: for the CPU "
		    "alone; use bf16 or fp8_e4m3");
	if (o->dcp_wire != 0 && o->dcp == 1)	/* 0: auto */
		return dcpd_fail(err, -EINVAL, "--dcp-wire: only with "
		    "--dcp-size above 1, else no partial output is sent; "
		    "leave it out");
	if (o->cp > 1 && dcpd_options_way(o) >= 0 &&
	    dcpd_options_way(o) != DCPK_WAY_KV)
		return dcpd_fail(err, -EINVAL, "--prefill-way: with "
		    "--attn-cp-size above 1 the ranks of a group have "
		    "different rows, so KV is gathered: leave it out, or "
		    "give kv");
	return 0;
}

/* A flag that would say something to a model's engine, or NULL. */
static const char *
model_flag(const struct dcpd_options *o)
{
	return DCPD_GIVEN(o, load_format) ? "load-format" :
	    DCPD_GIVEN(o, latent_norm_eps) ? "latent-norm-eps" :
	    DCPD_GIVEN(o, quantize_activations) ? "quantize-activations" :
	    DCPD_GIVEN(o, quantization) ? "quantization" :
	    DCPD_GIVEN(o, cpu_threads) ? "cpu-threads" :
	    DCPD_GIVEN(o, kv_dtype) ? "kv-cache-dtype" :
	    DCPD_GIVEN(o, index_dtype) ? "index-cache-dtype" : NULL;
}

static int
check_null(const struct dcpd_options *o, struct dcpd_err *err)
{
	if (o->plan)
		return dcpd_fail(err, -EINVAL, "--plan: the null engine has "
		    "no memory to plan; leave out --engine null");
	if (o->device == DCPD_DEVICE_CUDA)
		return dcpd_fail(err, -EINVAL, "--device cuda: the null engine "
		    "runs on no device; leave it out");
	if (o->cp > 1)
		return dcpd_fail(err, -EINVAL, "--attn-cp-size %u: the null "
		    "engine has no prefill to split; leave it out", o->cp);
	if (o->dp > 1)
		return dcpd_fail(err, -EINVAL, "--attn-dp-size %u: attention "
		    "data parallelism is not built yet; leave it out", o->dp);
	if (DCPD_GIVEN(o, kv_bytes) || DCPD_GIVEN(o, mem_fraction))
		return dcpd_fail(err, -EINVAL, "--%s: the null engine has no "
		    "pool; give --null-pages instead",
		    DCPD_GIVEN(o, kv_bytes) ? "kv-bytes-per-rank" :
		    "mem-fraction-static");
	if (model_flag(o) != NULL)
		return dcpd_fail(err, -EINVAL, "--%s: the null engine has no "
		    "weights and no cache; leave it out", model_flag(o));
	return 0;
}

static int
no_model(const struct dcpd_options *o, struct dcpd_err *err)
{
	/* Of a unit, where nobody has written the file yet. */
	if (o->config != NULL && o->config[0] == '-' &&
	    access(o->config + 1, F_OK) != 0)
		return dcpd_fail(err, -EINVAL, "--model: missing, and %.300s "
		    "is not there; write {\"model\": \"DIR\"} into it, see "
		    "dcpd.conf(5)", o->config + 1);
	return dcpd_fail(err, -EINVAL, "--model: missing; give a model "
	    "folder, for example --model models/dcp-tiny");
}

static int
check_engine(const struct dcpd_options *o, struct dcpd_err *err)
{
	if (o->engine == DCPD_ENGINE_MODEL) {
		if (o->model == NULL)
			return no_model(o, err);
		if (DCPD_GIVEN(o, null_vocab) || DCPD_GIVEN(o, null_pages) ||
		    DCPD_GIVEN(o, null_step_us) ||
		    DCPD_GIVEN(o, null_fail_after))
			return dcpd_fail(err, -EINVAL, "--null-%s: only with "
			    "--engine null; leave it out",
			    DCPD_GIVEN(o, null_vocab) ? "vocab" :
			    DCPD_GIVEN(o, null_pages) ? "pages" :
			    DCPD_GIVEN(o, null_step_us) ? "step-us" :
			    "fail-after");
		return 0;
	}
	return check_null(o, err);
}

static int
check_sockets(const struct dcpd_options *o, struct dcpd_err *err)
{
	struct sockaddr_un sa;
	size_t n = strlen(o->socket);

	if (n + strlen(".admin") >= sizeof sa.sun_path)
		return dcpd_fail(err, -ENAMETOOLONG, "--socket %.200s: longer "
		    "than the %zu bytes that a socket's path may have with "
		    ".admin after it", o->socket, sizeof sa.sun_path - 1);
	if (o->admin_socket == NULL)
		return 0;
	if (strlen(o->admin_socket) >= sizeof sa.sun_path)
		return dcpd_fail(err, -ENAMETOOLONG, "--admin-socket %.200s: "
		    "longer than %zu bytes", o->admin_socket,
		    sizeof sa.sun_path - 1);
	if (strcmp(o->socket, o->admin_socket) == 0)
		return dcpd_fail(err, -EINVAL, "--admin-socket %.200s: the "
		    "same path as --socket; give another", o->socket);
	return 0;
}

int
dcpd_options_check(const struct dcpd_options *o, struct dcpd_err *err)
{
	struct dcpd_layout layout;
	int rc;

	if (o->json && !o->plan)
		return dcpd_fail(err, -EINVAL, "--json: only with --plan");
	if (DCPD_GIVEN(o, random_seed) && o->load_format != DCPD_LOAD_DUMMY)
		return dcpd_fail(err, -EINVAL, "--random-seed: only with "
		    "--load-format dummy; a request has its own seed");
	if (o->max_clients_uid > o->max_clients &&
	    DCPD_GIVEN(o, max_clients_uid))
		return dcpd_fail(err, -EINVAL, "--max-clients-per-user %u: "
		    "above --max-clients %u", o->max_clients_uid,
		    o->max_clients);
	if (o->max_context == 1)
		return dcpd_fail(err, -EINVAL, "--max-context 1: a prompt and "
		    "its answer take 2 tokens at least; give more, or 0");
	if (DCPD_GIVEN(o, max_bytes_uid) && o->max_bytes_uid == 0)
		return dcpd_fail(err, -EINVAL, "--max-bytes-per-user 0: no "
		    "request would be taken; give for example 256MiB");
	if (DCPD_GIVEN(o, kv_bytes) && o->kv_bytes != 0 &&
	    DCPD_GIVEN(o, mem_fraction) && o->mem_fraction > 0)
		return dcpd_fail(err, -EINVAL, "--mem-fraction-static: "
		    "--kv-bytes-per-rank decides already; leave one out");
	if ((rc = check_engine(o, err)) != 0 ||
	    (rc = check_device(o, err)) != 0 ||
	    (rc = check_sockets(o, err)) != 0)
		return rc;
	dcpd_options_layout(o, &layout);
	if ((rc = dcpd_layout_check(&layout, err)) != 0)
		return rc;
	return check_cp(o, err);
}

enum dcpk_comm
dcpd_options_comm(const struct dcpd_options *o)
{
	if (o->dcp_comm != DCPD_COMM_AUTO)
		return (enum dcpk_comm)(o->dcp_comm - DCPD_COMM_P2P);
	if (o->device != DCPD_DEVICE_CUDA || o->tp == 1 ||
	    o->ranks_per_gpu > 1)
		return DCPK_COMM_EVENT;
	return o->no_peers ? DCPK_COMM_NCCL : DCPK_COMM_PEER;
}

uint32_t
dcpd_options_graph_rows(const struct dcpd_options *o)
{
	return o->device == DCPD_DEVICE_CUDA &&
	    dcpd_options_comm(o) != DCPK_COMM_NCCL ? o->cuda_graph_max_bs : 0;
}

enum dcpk_wire
dcpd_options_wire(const struct dcpd_options *o)
{
	if (o->dcp_wire != 0)		/* 0: auto */
		return (enum dcpk_wire)(o->dcp_wire - 1);
	return o->device == DCPD_DEVICE_CPU ? DCPK_WIRE_F32 : DCPK_WIRE_BF16;
}

void
dcpd_options_layout(const struct dcpd_options *o, struct dcpd_layout *l)
{
	memset(l, 0, sizeof *l);
	l->tp = o->tp;
	l->dp = o->dp;
	l->cp = o->cp;
	l->dcp = o->dcp;
	l->strategy = o->cp_strategy == 0 ? DCPK_CP_INTERLEAVE : DCPK_CP_ZIGZAG;
}

int
dcpd_options_formats(const struct dcpd_options *o, const struct dcpk_model *m,
    enum dcpk_kv *kv, enum dcpk_kv *idx, struct dcpd_err *err)
{
	enum dcpk_kv k = (enum dcpk_kv)o->kv_dtype, i;

	if (k == DCPK_KV_F32 && o->device != DCPD_DEVICE_CPU)
		return dcpd_fail(err, -EINVAL, "--kv-cache-dtype f32: only "
		    "with --device cpu; give bf16 or fp8_e4m3");
	if (dcpd_kv_format_check(k, m, err) != 0)
		return err->code;
	i = o->index_dtype == 0 ? dcpd_index_format(k, m) :
	    (enum dcpk_kv)(o->index_dtype - 1);
	if (i == DCPK_KV_F32 && o->device != DCPD_DEVICE_CPU)
		return dcpd_fail(err, -EINVAL, "--index-cache-dtype f32: only "
		    "with --device cpu; give auto");
	if (i == DCPK_KV_FP8 && m->idx_dim != 128)
		return dcpd_fail(err, -EINVAL, "--index-cache-dtype fp8_e4m3: "
		    "needs index_head_dim 128, this model has %u; give bf16",
		    m->idx_dim);
	*kv = k;
	*idx = i;
	return 0;
}

/* FP8 weights in blocks of 128 x 128, which cuBLASLt multiplies with as such;
 * W4AFP8 has them beside its int4 experts. */
static bool
fp8_blocks(const struct dcpd_model_config *cfg)
{
	return (strcmp(cfg->quant_method, "fp8") == 0 ||
	    strcmp(cfg->quant_method, "w4afp8") == 0) &&
	    cfg->block_n == 128 && cfg->block_k == 128;
}

uint32_t
dcpd_options_keeps(const struct dcpd_options *o,
    const struct dcpd_model_config *cfg)
{
	if (o->device != DCPD_DEVICE_CUDA || !fp8_blocks(cfg) ||
	    o->fp8_gemm == DCPD_FP8_BF16)
		return 0;
	return DCPK_FP8_WEIGHTS | (strcmp(cfg->quant_method, "w4afp8") == 0 ?
	    DCPK_INT4_WEIGHTS : 0);
}

int
dcpd_options_quantization(const struct dcpd_options *o,
    const struct dcpd_model_config *cfg, struct dcpd_err *err)
{
	const char *has = cfg->quant_method;

	if (o->quantize_activations && has[0] == '\0')
		return dcpd_fail(err, -EINVAL, "--quantize-activations: the "
		    "checkpoint %.200s is not quantised, so its products are "
		    "not either; leave it out", o->model);
	if (o->fp8_gemm == DCPD_FP8_CUBLASLT && !fp8_blocks(cfg))
		return dcpd_fail(err, -EINVAL, "--fp8-gemm-backend cublaslt: "
		    "the checkpoint %.200s has no FP8 weights with scales of "
		    "128 x 128 blocks; leave it out", o->model);
	if (o->quantization == NULL)
		return 0;
	if (has[0] == '\0')
		has = "none";
	if (strcasecmp(o->quantization, has) == 0)
		return 0;
	return dcpd_fail(err, -EINVAL, "--quantization %.60s: the checkpoint "
	    "%.200s has %s; leave the flag out, nothing is requantised",
	    o->quantization, o->model, has);
}

/* Parsers are numbered as in flags.h: auto, none, GLM, DeepSeek. */
static const enum dcpd_parser parsers[] = {
	DCPD_PARSE_RAW, DCPD_PARSE_RAW, DCPD_PARSE_GLM, DCPD_PARSE_DSV32,
};

static enum dcpd_parser
parser_of(enum dcpd_chat chat)
{
	return chat == DCPD_CHAT_NONE ? DCPD_PARSE_RAW :
	    chat == DCPD_CHAT_DSV32 ? DCPD_PARSE_DSV32 : DCPD_PARSE_GLM;
}

int
dcpd_options_chat(const struct dcpd_options *o, const char *model_type,
    const struct dcpd_tokenizer *tok, enum dcpd_chat *chat,
    enum dcpd_parser *parser, struct dcpd_err *err)
{
	static const char *const names[] = {
		NULL, "glm45", "glm47", "glm52", "glm53", "deepseek_v32",
	};
	uint32_t r = o->reasoning_parser, t = o->tool_parser;
	enum dcpd_chat c = DCPD_CHAT_NONE;
	enum dcpd_parser p;

	if (tok == NULL && (o->chat_template != 0 || r > 1 || t > 1))
		return dcpd_fail(err, -EINVAL, "--%s: the model has no "
		    "tokenizer.json, so only token ids are served; leave it "
		    "out", o->chat_template != 0 ? "chat-template" :
		    r > 1 ? "reasoning-parser" : "tool-call-parser");
	if (o->chat_template != 0) {
		int rc = dcpd_chat_by_name(names[o->chat_template], &c);

		DCPD_ASSERT(rc == 0);
	} else if (tok != NULL) {
		c = dcpd_chat_guess(model_type, tok);
	}
	/* One parser does both; "auto" follows the other flag. */
	if (r == 0 && t == 0)
		p = parser_of(c);
	else if (r == 0 || t == 0 || r == t)
		p = parsers[r != 0 ? r : t];
	else
		return dcpd_fail(err, -EINVAL, "--reasoning-parser and "
		    "--tool-call-parser: one parser does both here; give both "
		    "the same model's, or none to both");
	*chat = c;
	*parser = p;
	return 0;
}

int
dcpd_options_way(const struct dcpd_options *o)
{
	return (int)o->prefill_way - 1;
}

int
dcpd_options_log_level(const struct dcpd_options *o)
{
	static const int level[] = {
		LOG_ERR, LOG_WARNING, LOG_NOTICE, LOG_INFO, LOG_DEBUG,
	};

	return level[o->log_level];
}
