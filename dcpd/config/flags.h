/*
 * Every flag of dcpd, once. This table makes the parser, the keys of the
 * configuration file, --help, the list in dcpd(8) and struct dcpd_options.
 *
 * A flag ACTs, is CHECKed (it has the legal values named here and nothing
 * else; it changes nothing, but a wrong one is an error), or is REFUSEd with
 * the reason. None is accepted and ignored. Relations between flags are in
 * check.c.
 *
 * X(kind, type, field, "name", "aliases", "default", "legal", "help")
 *
 * aliases: separated by '|'; one letter is a short flag. default "": not set.
 * type	legal			value in struct dcpd_options
 * STR	what it stands for	char *, NULL when not set
 * ENUM	a=synonym|b|c		uint32_t, index of the value
 * U32	least..most		uint32_t
 * BYTES			uint64_t; 4096, 64MiB, 2GiB
 * REAL	least..most		double
 * BOOL				bool; --flag, --flag=false
 * MODE				uint32_t; octal
 * For REFUSE, help is the reason.
 */
#ifndef DCPD_FLAGS_H
#define DCPD_FLAGS_H

/* clang-format off */
#define DCPD_FLAGS(GROUP, X) \
GROUP("Model") \
X(ACT, STR, model, "model", "model-path|m", "", "DIR", \
  "model folder in Hugging Face form; with --plan or --load-format dummy a " \
  "config.json is enough") \
X(ACT, ENUM, load_format, "load-format", "", "auto", "auto|dummy", \
  "dummy: seeded random weights from config.json alone") \
X(ACT, U32, random_seed, "random-seed", "", "0", "0..4294967295", \
  "seed of the dummy weights") \
X(ACT, ENUM, latent_norm_eps, "latent-norm-eps", "", "1e-6", "1e-6|config", \
  "epsilon of the norms of the latents: 1e-6 as transformers, config: " \
  "rms_norm_eps as serving engines") \
X(ACT, BOOL, quantize_activations, "quantize-activations", "", "false", "", \
  "CPU: round activations of FP8 and W4AFP8 products as a GPU does") \
X(ACT, U32, max_context, "max-context", "context-length|max-model-len", "0", \
  "0..16777216", \
  "tokens of the longest request; 0: what the model and the pool allow") \
X(CHECK, STR, quantization, "quantization", "", "", "METHOD", \
  "must agree with the checkpoint, which decides") \
X(CHECK, BOOL, trust_remote_code, "trust-remote-code", "", "false", "", \
  "no remote code is ever run; accepted with a log line") \
X(CHECK, ENUM, no_shared_fusion, "disable-shared-experts-fusion", "", "true", \
  "true", "shared experts are never fused with the routed ones") \
GROUP("Device and layout") \
X(ACT, ENUM, device, "device", "", "cpu", "cpu|cuda", \
  "where the model runs") \
X(ACT, U32, cpu_threads, "cpu-threads", "", "0", "0..1024", \
  "workers of --device cpu; 0: one per core online") \
X(ACT, U32, tp, "tp", "tp-size|tensor-parallel-size", "1", "1..64", \
  "ranks in all") \
X(ACT, U32, dp, "attn-dp-size", "", "1", "1..64", \
  "attention data parallelism; above 1 is not built yet") \
X(ACT, U32, cp, "attn-cp-size", "", "1", "1..64", \
  "ranks that split the tokens of a prefill (context parallelism)") \
X(ACT, BOOL, prefill_cp, "enable-prefill-cp", "", "", "", \
  "implied by --attn-cp-size above 1; an error without it") \
X(ACT, ENUM, cp_strategy, "cp-strategy", "", "interleave", \
  "interleave|zigzag", "which rank computes which prompt token") \
X(ACT, U32, dcp, "dcp-size", "decode-context-parallel-size", "1", "1..64", \
  "D: ranks that share the context of a request; each holds 1/D of it") \
X(CHECK, BOOL, cp_decode_tp, "enable-cp-decode-attn-tp", "", "", "", \
  "implied by --attn-cp-size and --dcp-size both above 1, where decode uses " \
  "head slices of the replicated weights; an error without them") \
X(ACT, ENUM, prefill_way, "prefill-way", "", "auto", "auto|q|kv|a2a", \
  "what a prefill under DCP moves; auto: the way predicted fastest") \
X(ACT, ENUM, dcp_comm, "dcp-comm", "", "auto", "auto|p2p=event|peer|nccl", \
  "how GPUs wait for each other: p2p by events; peer by flags in peer " \
  "memory, a GPU for each rank; nccl as p2p, with sums of partials by NCCL, " \
  "and all exchanges where GPUs cannot reach each other's memory; auto: peer " \
  "where it can be, nccl where memory cannot be reached. --device cuda only") \
X(ACT, BOOL, no_peers, "disable-peer-access", "", "false", "", \
  "as if no GPU could reach another's memory, for tests: only nccl is left " \
  "of --dcp-comm. --device cuda only") \
X(ACT, ENUM, dcp_wire, "dcp-wire", "", "auto", \
  "auto|f32=float32|bf16=bfloat16|fp8_e4m3=fp8", \
  "what a rank sends of an attention output that the group merges; fp8_e4m3: " \
  "with a scale per head and 128 columns. auto: f32 on the CPU, bf16 on " \
  "GPUs. Only with --dcp-size above 1") \
X(ACT, U32, cuda_graph_max_bs, "cuda-graph-max-bs", "", "64", "0..4096", \
  "decode passes of up to so many rows are replayed as CUDA graphs, captured " \
  "at start; 0: none, as always with --dcp-comm nccl. --device cuda only") \
X(ACT, ENUM, fp8_gemm, "fp8-gemm-backend", "", "auto", "auto|bf16|cublaslt", \
  "FP8 weights, and W4AFP8's int4 experts: expanded to bf16 as they are " \
  "loaded, or kept with their scales (cublaslt), which the products' inputs " \
  "are quantised to FP8 for. auto: kept, where scales are of 128 x 128 " \
  "blocks. --device cuda only") \
X(ACT, U32, ranks_per_gpu, "ranks-per-gpu", "", "", "1..64", \
  "ranks that share one GPU; --device cuda only") \
X(CHECK, ENUM, attn_backend, "attention-backend", "", "dsa", "dsa|nsa", \
  "sparse attention is the only kind here") \
X(CHECK, ENUM, dsa_decode, "dsa-decode-backend", "nsa-decode-backend", \
  "flashmla_kv", "flashmla_kv", "our own kernels of that cache format") \
X(CHECK, ENUM, dsa_prefill, "dsa-prefill-backend", "nsa-prefill-backend", \
  "flashmla_kv", "flashmla_kv", "our own kernels of that cache format") \
GROUP("Memory") \
X(ACT, ENUM, kv_dtype, "kv-cache-dtype", "", "bf16", \
  "f32=float32|bf16=bfloat16=auto|fp8_e4m3=fp8", \
  "format of the cached rows; f32: --device cpu only; auto is bf16") \
X(ACT, ENUM, index_dtype, "index-cache-dtype", "", "auto", \
  "auto|f32=float32|bf16=bfloat16|fp8_e4m3=fp8", \
  "format of the index keys; auto: follows the rows, fp8 where it fits") \
X(ACT, BYTES, kv_bytes, "kv-bytes-per-rank", "", "0", "", \
  "bytes of one rank's pool, index included; 0: by --mem-fraction-static") \
X(ACT, REAL, mem_fraction, "mem-fraction-static", "gpu-memory-utilization", \
  "0", "0..0.99", \
  "part of the device's memory for weights and pool; on the CPU of " \
  "MemAvailable. 0: 0.85 on cuda, 0.25 on the CPU") \
X(ACT, BYTES, host_cache, "host-cache-bytes", "", "0", "", \
  "host memory for cached pages that leave the pool and come back when they " \
  "are hit; 0: none") \
X(ACT, REAL, pin_fraction, "pin-fraction", "", "0.5", "0..0.95", \
  "part of the pool that `dcpctl cache pin` may hold") \
X(CHECK, ENUM, page_size, "page-size", "", "64", "64", \
  "tokens of a page, whatever --dcp-size is") \
GROUP("Scheduling") \
X(ACT, U32, chunk, "chunked-prefill-size", "", "1024", "1..65536", \
  "prompt tokens of one prefill pass") \
X(ACT, U32, max_running, "max-running-requests", "max-num-seqs", "64", \
  "1..4096", \
  "requests in prefill or decode at once") \
X(ACT, U32, queue_max, "queue-max", "max-queued-requests", "1024", \
  "1..1000000", "requests that may wait; more are refused at once") \
X(ACT, U32, text_threads, "text-threads", "", "2", "1..256", \
  "workers for templates, tokenising and detokenising") \
X(ACT, ENUM, chat_template, "chat-template", "", "auto", \
  "auto|glm45|glm47=glm5=glm51|glm52|glm53|deepseek_v32=deepseek-v32", \
  "built-in chat template; auto: from the model") \
X(ACT, ENUM, reasoning_parser, "reasoning-parser", "", "auto", \
  "auto|none|glm45|deepseek-v3=deepseek_v3=deepseek_v32", \
  "how reasoning is told from the answer; auto: from the chat template") \
X(ACT, ENUM, tool_parser, "tool-call-parser", "", "auto", \
  "auto|none|glm47=glm45|deepseekv32=deepseek_v32", \
  "how tool calls are told from the answer; auto: from the chat template") \
GROUP("Service") \
X(ACT, STR, config, "config", "c", "", "FILE", \
  "JSON object whose keys are the names here; the command line goes first; " \
  "-FILE: it may be missing") \
X(ACT, STR, socket, "socket", "", "/run/dcpd/dcpd.sock", "PATH", \
  "socket of the clients") \
X(ACT, MODE, socket_mode, "socket-mode", "", "0660", "0000..0777", \
  "permissions of --socket") \
X(ACT, STR, socket_group, "socket-group", "", "", "GROUP", \
  "owns --socket, and beside root and the daemon's user only its members may " \
  "connect; default: whomever --socket-mode lets in") \
X(ACT, STR, admin_socket, "admin-socket", "", "", "PATH", \
  "socket of dcpctl, mode 0600; default: --socket with .admin after it") \
X(ACT, U32, max_clients, "max-clients", "", "256", "1..65536", \
  "connections at once") \
X(ACT, U32, max_clients_uid, "max-clients-per-user", "", "128", "1..65536", \
  "connections of one user") \
X(ACT, U32, max_requests_uid, "max-requests-per-user", "", "1024", \
  "1..1000000", "requests of one user, waiting or running") \
X(ACT, BYTES, max_bytes_uid, "max-bytes-per-user", "", "256MiB", "", \
  "bytes held for one user: requests and answers not yet read") \
X(ACT, REAL, drain_timeout, "drain-timeout", "", "30", "0..86400", \
  "seconds that running requests get after SIGTERM") \
X(ACT, STR, state_dir, "state-dir", "", "", "DIR", \
  "where a crash leaves its report; default: systemd's StateDirectory=, else " \
  "standard error") \
X(ACT, REAL, stuck_after, "stuck-after", "", "30", "1..86400", \
  "seconds without an end of a step, with requests there, after which the " \
  "daemon says that it is stuck and the watchdog is not fed") \
X(ACT, ENUM, log_level, "log-level", "", "info", \
  "error|warning|notice|info|debug", "what goes to the log") \
GROUP("Front ends") \
X(ACT, STR, http, "http", "", "", "ADDRESS,...", \
  "serve HTTP on HOST:PORT, unix:PATH or systemd (the socket dcpd-http); " \
  "loads the plugin http") \
X(ACT, STR, port, "port", "", "", "PORT", \
  "--http of this port, on --host") \
X(ACT, STR, host, "host", "", "", "HOST", \
  "with --port: the address to listen on; default: 127.0.0.1") \
X(ACT, STR, api_key_file, "api-key-file", "", "", "FILE", \
  "HTTP asks for a key that this file has, one a line, but for /health") \
X(REFUSE, STR, api_key, "api-key", "", "", "KEY", \
  "whoever lists processes would see it; write it into a file and give " \
  "--api-key-file") \
X(ACT, STR, served_model_name, "served-model-name", "", "", "NAME", \
  "the model's name in HTTP; default: that of the model folder") \
X(ACT, STR, unix_path, "unix", "", "", "PATH", \
  "serve lines of JSON on this socket, see dcpd-unix(7); loads the plugin " \
  "unix") \
X(ACT, STR, plugins, "plugins", "", "", "NAME,...", \
  "load these plugins; in --config an object, {\"NAME\": {KEY: VALUE}}, " \
  "configures them too") \
X(ACT, STR, plugin_dir, "plugin-dir", "", "", "DIR", \
  "where NAME.so is; default: plugins in the package's library folder") \
GROUP("Without a model") \
X(ACT, ENUM, engine, "engine", "", "model", "model|null", \
  "null: a deterministic token stream, to try everything round the model") \
X(ACT, U32, null_vocab, "null-vocab", "", "0", "0..1048576", \
  "token ids of the null engine; 0: those of --model's tokenizer, else 1024") \
X(ACT, U32, null_pages, "null-pages", "", "4096", "1..16777216", \
  "pages of 64 tokens that the null engine pretends to have") \
X(ACT, U32, null_step_us, "null-step-us", "", "0", "0..600000000", \
  "microseconds that a step of the null engine takes") \
X(ACT, U32, null_fail_after, "null-fail-after", "", "0", "0..4294967295", \
  "steps after which the null engine fails, to try what a lost device does; " \
  "0: never") \
GROUP("Other") \
X(ACT, BOOL, plan, "plan", "", "false", "", \
  "print the memory plan and end; needs no GPU and no weights") \
X(ACT, BOOL, json, "json", "j", "false", "", "--plan: as JSON") \
X(ACT, BOOL, help, "help", "h", "false", "", "print this and end") \
X(ACT, BOOL, help_man, "help-man", "", "false", "", \
  "print the flags as they stand in dcpd(8) and end") \
X(ACT, BOOL, help_conf, "help-conf", "", "false", "", \
  "print the keys as they stand in dcpd.conf(5) and end") \
X(ACT, BOOL, version, "version", "V", "false", "", \
  "print the version and end")
/* clang-format on */

/* What a reload can change; everything else needs a restart. */
#define DCPD_FLAGS_RUNTIME(X) \
	X(queue_max) X(max_clients) X(max_clients_uid) X(max_requests_uid) \
	X(max_bytes_uid) X(drain_timeout) X(stuck_after) X(log_level) \
	/* if the plugin says yes */ \
	X(http) X(port) X(host) X(api_key_file) X(served_model_name) \
	X(unix_path) X(plugins)

#endif
