/*
 * tokenizer.json of a model folder: byte-level BPE as the GLM and DeepSeek
 * checkpoints have it. The file is read once, at start; whatever it holds
 * that we would not honour is refused by name, so that ids never differ
 * silently from those the model was trained with.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "dcpd/text/tok.h"
#include "dcpd/text/utf8.h"

/* --- the alphabet ----------------------------------------------------- */

static bool
printable(unsigned b)
{
	return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
}

uint32_t
tok_byte_char(unsigned char byte)
{
	uint32_t c = 0x100;
	unsigned b;

	if (printable(byte))
		return byte;
	for (b = 0; b < byte; b++)
		c += !printable(b);
	return c;
}

int
tok_char_byte(uint32_t c)
{
	if (c < 0x100)
		return printable(c) ? (int)c : -1;
	if (c <= 0x120)				/* 00..20 */
		return (int)(c - 0x100);
	if (c <= 0x142)				/* 7f..a0 */
		return (int)(c - 0x121 + 0x7f);
	return c == 0x143 ? 0xad : -1;
}

/*
 * A token's text into the bytes it decodes to. If a character of it is not in
 * the alphabet its UTF-8 stands for itself. Returns whether all were.
 */
static bool
token_bytes(const char *s, size_t len, char *out, size_t *n)
{
	size_t at = 0, k = 0;
	unsigned w;
	int b;

	while (at < len) {
		b = tok_char_byte(dcpd_utf8_char(s + at, &w));
		if (b < 0) {
			memcpy(out, s, len);
			*n = len;
			return false;
		}
		out[k++] = (char)b;
		at += w;
	}
	*n = k;
	return true;
}

/* --- tables ----------------------------------------------------------- */

static uint32_t
hash_bytes(const char *s, size_t len)
{
	uint64_t h = 0xcbf29ce484222325u;
	size_t i;

	for (i = 0; i < len; i++)
		h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
	return (uint32_t)(h ^ h >> 32);
}

static uint32_t
hash_pair(uint64_t pair)
{
	return (uint32_t)((pair * 0x9e3779b97f4a7c15u) >> 32);
}

/* Slots for n entries, at most half full. */
static uint32_t
table_mask(size_t n)
{
	uint32_t size = 16;

	while (size < 2 * n)
		size *= 2;
	return size - 1;
}

static uint32_t *
word_slot(const struct dcpd_tokenizer *t, const char *s, size_t len)
{
	uint32_t i = hash_bytes(s, len) & t->words_mask;

	for (;; i = (i + 1) & t->words_mask) {
		const struct tok_entry *e;

		if (t->words[i] == TOK_NONE)
			return &t->words[i];
		e = &t->tok[t->words[i]];
		if (e->len == len && memcmp(t->arena.v + e->off, s, len) == 0)
			return &t->words[i];
	}
}

uint32_t
tok_word(const struct dcpd_tokenizer *t, const char *s, size_t len)
{
	return *word_slot(t, s, len);
}

static struct tok_merge *
merge_slot(const struct dcpd_tokenizer *t, uint64_t pair)
{
	uint32_t i = hash_pair(pair) & t->merges_mask;

	while (t->merges[i].id != TOK_NONE && t->merges[i].pair != pair)
		i = (i + 1) & t->merges_mask;
	return &t->merges[i];
}

const struct tok_merge *
tok_merge_of(const struct dcpd_tokenizer *t, uint32_t left, uint32_t right)
{
	const struct tok_merge *m;

	m = merge_slot(t, (uint64_t)left << 32 | right);
	return m->id == TOK_NONE ? NULL : m;
}

/* --- reading the file ------------------------------------------------- */

static int
set_token(struct dcpd_tokenizer *t, uint32_t id, const char *s, size_t len,
    bool *in_alphabet, struct dcpd_err *err)
{
	struct tok_entry *e;
	char *bytes;
	size_t n;

	if (id >= t->cap) {
		uint32_t cap = t->cap == 0 ? 4096 : t->cap;

		while (cap <= id)
			cap *= 2;
		e = reallocarray(t->tok, cap, sizeof *e);
		if (e == NULL)
			return dcpd_fail(err, -ENOMEM, "out of memory");
		memset(e + t->cap, 0, (cap - t->cap) * sizeof *e);
		t->tok = e;
		t->cap = cap;
	}
	bytes = malloc(len + 1);
	if (bytes == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	*in_alphabet = token_bytes(s, len, bytes, &n);
	e = &t->tok[id];
	e->off = (uint32_t)t->arena.n;
	e->len = (uint32_t)n;
	e->used = true;
	dcpd_buf_add(&t->arena, bytes, n);
	free(bytes);
	if (t->arena.failed)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	if (id >= t->limit)
		t->limit = id + 1;
	return 0;
}

static int
read_vocab(struct dcpd_tokenizer *t, json_t *vocab, struct dcpd_err *err)
{
	const char *key;
	json_t *v;
	size_t n = json_object_size(vocab), len;
	json_int_t id;
	unsigned b;
	int rc;

	if (!json_is_object(vocab) || n == 0)
		return dcpd_fail(err, -EINVAL,
		    "model.vocab is missing or empty");
	if (n > TOK_MAX_ID)
		return dcpd_fail(err, -EINVAL, "model.vocab has %zu entries, "
		    "more than %u", n, TOK_MAX_ID);
	t->words_mask = table_mask(n);
	t->words = malloc(((size_t)t->words_mask + 1) * sizeof *t->words);
	if (t->words == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	memset(t->words, 0xff, ((size_t)t->words_mask + 1) * sizeof *t->words);
	json_object_foreach(vocab, key, v) {
		bool plain;

		len = strlen(key);
		id = json_integer_value(v);
		if (!json_is_integer(v) || id < 0 || id >= TOK_MAX_ID)
			return dcpd_fail(err, -EINVAL, "model.vocab: \"%.80s\" "
			    "has no id from 0 to %u", key, TOK_MAX_ID - 1);
		if (len > TOK_MAX_TOKEN)
			return dcpd_fail(err, -EINVAL, "model.vocab: token "
			    "%lld is longer than %u bytes", (long long)id,
			    TOK_MAX_TOKEN);
		if ((uint32_t)id < t->limit && t->tok[id].used)
			return dcpd_fail(err, -EINVAL, "model.vocab: \"%.80s\" "
			    "has the id %lld of another token", key,
			    (long long)id);
		rc = set_token(t, (uint32_t)id, key, len, &plain, err);
		if (rc < 0)
			return rc;
		/* The rest can never come out of a merge. */
		if (plain)
			*word_slot(t, t->arena.v + t->tok[id].off,
			    t->tok[id].len) = (uint32_t)id;
	}
	for (b = 0; b < 256; b++) {
		char c = (char)b;

		t->byte_id[b] = tok_word(t, &c, 1);
		/* c0, c1 and f5..ff do not occur in UTF-8. */
		if (t->byte_id[b] == TOK_NONE && b != 0xc0 && b != 0xc1 &&
		    b < 0xf5)
			return dcpd_fail(err, -EINVAL, "model.vocab has no "
			    "token for the byte 0x%02x: not a byte-level BPE "
			    "vocabulary", b);
	}
	return 0;
}

/* Both forms of a merge: ["a", "b"] and "a b". */
static int
merge_sides(json_t *m, const char **l, size_t *nl, const char **r, size_t *nr)
{
	const char *s, *space;
	size_t n;

	if (json_is_array(m) && json_array_size(m) == 2 &&
	    json_is_string(json_array_get(m, 0)) &&
	    json_is_string(json_array_get(m, 1))) {
		*l = json_string_value(json_array_get(m, 0));
		*nl = json_string_length(json_array_get(m, 0));
		*r = json_string_value(json_array_get(m, 1));
		*nr = json_string_length(json_array_get(m, 1));
	} else if (json_is_string(m)) {
		s = json_string_value(m);
		n = json_string_length(m);
		space = memchr(s, ' ', n);
		if (space == NULL || memchr(space + 1, ' ',
		    n - (size_t)(space + 1 - s)) != NULL)
			return -EINVAL;
		*l = s;
		*nl = (size_t)(space - s);
		*r = space + 1;
		*nr = n - *nl - 1;
	} else {
		return -EINVAL;
	}
	return *nl > 0 && *nr > 0 && *nl <= TOK_MAX_TOKEN &&
	    *nr <= TOK_MAX_TOKEN ? 0 : -EINVAL;
}

static int
read_merges(struct dcpd_tokenizer *t, json_t *merges, struct dcpd_err *err)
{
	size_t i, n = json_array_size(merges), nl, nr, bl, br;
	char *buf;
	int rc = 0;

	if (!json_is_array(merges))
		return dcpd_fail(err, -EINVAL, "model.merges is missing");
	if (n > TOK_MAX_MERGES)
		return dcpd_fail(err, -EINVAL, "model.merges has %zu entries, "
		    "more than %u", n, TOK_MAX_MERGES);
	t->merges_mask = table_mask(n);
	t->merges = malloc(((size_t)t->merges_mask + 1) * sizeof *t->merges);
	buf = malloc(2 * TOK_MAX_TOKEN);
	if (t->merges == NULL || buf == NULL) {
		rc = dcpd_fail(err, -ENOMEM, "out of memory");
		goto out;
	}
	memset(t->merges, 0xff,
	    ((size_t)t->merges_mask + 1) * sizeof *t->merges);
	for (i = 0; i < n; i++) {
		const char *l, *r;
		uint32_t a, b, ab;
		struct tok_merge *m;

		if (merge_sides(json_array_get(merges, i), &l, &nl, &r, &nr) ||
		    !token_bytes(l, nl, buf, &bl) ||
		    !token_bytes(r, nr, buf + bl, &br)) {
			rc = dcpd_fail(err, -EINVAL, "model.merges[%zu] is "
			    "neither [\"a\", \"b\"] nor \"a b\"", i);
			goto out;
		}
		a = tok_word(t, buf, bl);
		b = tok_word(t, buf + bl, br);
		ab = tok_word(t, buf, bl + br);
		if (a == TOK_NONE || b == TOK_NONE || ab == TOK_NONE) {
			rc = dcpd_fail(err, -EINVAL, "model.merges[%zu]: "
			    "\"%.60s\" + \"%.60s\" or their sum is not in "
			    "model.vocab", i, l, r);
			goto out;
		}
		/* Said twice: the last counts. */
		m = merge_slot(t, (uint64_t)a << 32 | b);
		m->pair = (uint64_t)a << 32 | b;
		m->rank = (uint32_t)i;
		m->id = ab;
	}
out:
	free(buf);
	return rc;
}

static bool
is_null(const json_t *v)
{
	return v == NULL || json_is_null(v);
}

static const char *
type_of(const json_t *v)
{
	const char *s = json_string_value(json_object_get(v, "type"));

	return s == NULL ? "(no type)" : s;
}

static int
read_model(struct dcpd_tokenizer *t, json_t *model, struct dcpd_err *err)
{
	static const char *const affix[] = {
		"continuing_subword_prefix", "end_of_word_suffix",
	};
	json_t *v;
	unsigned i;
	int rc;

	if (!json_is_object(model))
		return dcpd_fail(err, -EINVAL, "\"model\" is missing");
	v = json_object_get(model, "type");
	if (v != NULL && strcmp(type_of(model), "BPE") != 0)
		return dcpd_fail(err, -EINVAL, "model.type is \"%s\", only "
		    "\"BPE\" is supported", type_of(model));
	v = json_object_get(model, "dropout");
	if (!is_null(v) && json_number_value(v) != 0)
		return dcpd_fail(err, -EINVAL,
		    "model.dropout is set: a training setting");
	if (json_is_true(json_object_get(model, "byte_fallback")))
		return dcpd_fail(err, -EINVAL, "model.byte_fallback is true: "
		    "only byte-level BPE is supported");
	for (i = 0; i < 2; i++) {
		v = json_object_get(model, affix[i]);
		if (json_string_length(v) > 0)
			return dcpd_fail(err, -EINVAL,
			    "model.%s is not supported", affix[i]);
	}
	t->ignore_merges = json_is_true(json_object_get(model,
	    "ignore_merges"));
	rc = read_vocab(t, json_object_get(model, "vocab"), err);
	if (rc == 0)
		rc = read_merges(t, json_object_get(model, "merges"), err);
	return rc;
}

static int
read_split(struct dcpd_tokenizer *t, json_t *v, size_t i,
    struct dcpd_err *err)
{
	json_t *re = json_object_get(json_object_get(v, "pattern"), "Regex");
	const char *how = json_string_value(json_object_get(v, "behavior"));
	int rc;

	if (!json_is_string(re))
		return dcpd_fail(err, -EINVAL, "pre_tokenizer %zu (Split): "
		    "only a \"Regex\" pattern is supported", i);
	if (how == NULL || strcmp(how, "Isolated") != 0 ||
	    json_is_true(json_object_get(v, "invert")))
		return dcpd_fail(err, -EINVAL, "pre_tokenizer %zu (Split): "
		    "only behavior \"Isolated\", not inverted, is supported",
		    i);
	if (t->n_split == TOK_MAX_SPLITS)
		return dcpd_fail(err, -EINVAL, "more than %d pre_tokenizers",
		    TOK_MAX_SPLITS);
	rc = tok_pattern(json_string_value(re), json_string_length(re),
	    &t->split[t->n_split], err);
	if (rc < 0)
		return dcpd_fail_in(err,
		    "pre_tokenizer %zu (Split): its expression", i);
	t->n_split++;
	return 0;
}

/* A Sequence of Splits with ByteLevel at its end, or ByteLevel alone. */
static int
read_pre_tokenizer(struct dcpd_tokenizer *t, json_t *pre, struct dcpd_err *err)
{
	json_t *list = json_object_get(pre, "pretokenizers"), *v;
	bool sequence = strcmp(type_of(pre), "Sequence") == 0;
	size_t i, n = sequence ? json_array_size(list) : 1;
	int rc;

	for (i = 0; i < n; i++) {
		v = sequence ? json_array_get(list, i) : pre;
		if (i + 1 < n && strcmp(type_of(v), "Split") == 0) {
			rc = read_split(t, v, i, err);
			if (rc < 0)
				return rc;
			continue;
		}
		if (strcmp(type_of(v), "ByteLevel") != 0 || i + 1 < n)
			return dcpd_fail(err, -EINVAL, "pre_tokenizer %zu is "
			    "\"%s\": supported are Split, and ByteLevel at the "
			    "end", i, type_of(v));
		if (json_is_true(json_object_get(v, "add_prefix_space")) ||
		    !json_is_false(json_object_get(v, "use_regex")))
			return dcpd_fail(err, -EINVAL, "pre_tokenizer %zu "
			    "(ByteLevel): add_prefix_space and use_regex must "
			    "be false", i);
		return 0;
	}
	return dcpd_fail(err, -EINVAL, "pre_tokenizer does not end with "
	    "ByteLevel: only byte-level BPE is supported");
}

/* The parts that must be there in the usual form, or not at all. */
static int
check_rest(json_t *root, struct dcpd_err *err)
{
	json_t *v = json_object_get(root, "normalizer");

	if (!is_null(v) && (strcmp(type_of(v), "Sequence") != 0 ||
	    json_array_size(json_object_get(v, "normalizers")) > 0))
		return dcpd_fail(err, -EINVAL, "normalizer \"%s\" is not "
		    "supported (null or an empty Sequence is)", type_of(v));
	v = json_object_get(root, "post_processor");
	if (!is_null(v) && strcmp(type_of(v), "ByteLevel") != 0)
		return dcpd_fail(err, -EINVAL, "post_processor \"%s\" is not "
		    "supported (null or ByteLevel is)", type_of(v));
	v = json_object_get(root, "decoder");
	if (strcmp(type_of(v), "ByteLevel") != 0)
		return dcpd_fail(err, -EINVAL, "decoder is \"%s\", only "
		    "ByteLevel is supported", type_of(v));
	return 0;
}

/* --- added tokens ----------------------------------------------------- */

static int
trie_node(struct tok_trie *tr, unsigned char byte, uint32_t *out)
{
	if (tr->n == tr->cap) {
		uint32_t cap = tr->cap == 0 ? 64 : 2 * tr->cap;
		struct tok_node *v = reallocarray(tr->v, cap, sizeof *v);

		if (v == NULL)
			return -ENOMEM;
		tr->v = v;
		tr->cap = cap;
	}
	tr->v[tr->n] = (struct tok_node){ .byte = byte, .added = -1 };
	*out = tr->n++;
	return 0;
}

static int
trie_add(struct tok_trie *tr, const char *s, size_t len, int32_t added)
{
	uint32_t at = 0, next;
	size_t i;

	for (i = 0; i < len; i++) {
		next = tr->v[at].child;
		while (next != 0 && tr->v[next].byte != (unsigned char)s[i])
			next = tr->v[next].sibling;
		if (next == 0) {
			if (trie_node(tr, (unsigned char)s[i], &next) < 0)
				return -ENOMEM;
			tr->v[next].sibling = tr->v[at].child;
			tr->v[at].child = next;
		}
		at = next;
	}
	tr->first[(unsigned char)s[0]] = true;
	tr->v[at].added = added;
	return 0;
}

/* Is the id in use for anything but this text? */
static bool
id_taken(const struct dcpd_tokenizer *t, uint32_t id, const json_t *content)
{
	size_t len = json_string_length(content);

	return id < t->limit && t->tok[id].used && (t->tok[id].len != len ||
	    memcmp(t->arena.v + t->tok[id].off, json_string_value(content),
	    len) != 0);
}

static int
read_added(struct dcpd_tokenizer *t, json_t *v, size_t i,
    struct dcpd_err *err)
{
	struct tok_added *a = &t->added[t->n_added];
	json_t *content = json_object_get(v, "content");
	json_t *id = json_object_get(v, "id");
	size_t len = json_string_length(content);
	uint32_t plain;
	bool ignore;
	int rc;

	if (!json_is_string(content) || !json_is_integer(id) ||
	    json_integer_value(id) < 0 || json_integer_value(id) >= TOK_MAX_ID)
		return dcpd_fail(err, -EINVAL, "added_tokens[%zu]: \"content\" "
		    "or an \"id\" from 0 to %u is missing", i, TOK_MAX_ID - 1);
	if (len > TOK_MAX_TOKEN)
		return dcpd_fail(err, -EINVAL, "added_tokens[%zu] is longer "
		    "than %u bytes", i, TOK_MAX_TOKEN);
	if (len == 0)
		return 0;
	a->id = (uint32_t)json_integer_value(id);
	plain = tok_word(t, json_string_value(content), len);
	if (plain != TOK_NONE && plain != a->id)
		return dcpd_fail(err, -EINVAL, "added_tokens[%zu]: \"%.60s\" "
		    "has id %u here and %u in model.vocab", i,
		    json_string_value(content), a->id, plain);
	if (plain == TOK_NONE && id_taken(t, a->id, content))
		return dcpd_fail(err, -EINVAL, "added_tokens[%zu]: \"%.60s\" "
		    "has the id %u of another token", i,
		    json_string_value(content), a->id);
	a->content = strdup(json_string_value(content));
	if (a->content == NULL)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	a->len = (uint32_t)len;
	a->special = json_is_true(json_object_get(v, "special"));
	a->normalized = json_is_true(json_object_get(v, "normalized"));
	a->lstrip = json_is_true(json_object_get(v, "lstrip"));
	a->rstrip = json_is_true(json_object_get(v, "rstrip"));
	a->single_word = json_is_true(json_object_get(v, "single_word"));
	t->n_added++;
	rc = set_token(t, a->id, a->content, len, &ignore, err);
	if (rc < 0)
		return rc;
	t->tok[a->id].special = a->special;
	if (a->single_word && t->word_char == NULL) {
		static const char re[] =
		    "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]";

		rc = tok_pattern(re, sizeof re - 1, &t->word_char, err);
		if (rc < 0)
			return dcpd_fail_in(err, "added_tokens[%zu]: "
			    "single_word", i);
	}
	if (trie_add(&t->trie[a->normalized], a->content, len,
	    (int32_t)(a - t->added)) < 0)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	return 0;
}

static int
read_added_all(struct dcpd_tokenizer *t, json_t *list, struct dcpd_err *err)
{
	size_t i, n = json_array_size(list);
	uint32_t root;
	int rc;

	if (!is_null(list) && !json_is_array(list))
		return dcpd_fail(err, -EINVAL, "added_tokens is not a list");
	if (n > TOK_MAX_ID)
		return dcpd_fail(err, -EINVAL, "added_tokens has %zu entries, "
		    "more than %u", n, TOK_MAX_ID);
	t->added = calloc(n + 1, sizeof *t->added);
	if (t->added == NULL || trie_node(&t->trie[0], 0, &root) < 0 ||
	    trie_node(&t->trie[1], 0, &root) < 0)
		return dcpd_fail(err, -ENOMEM, "out of memory");
	for (i = 0; i < n; i++) {
		rc = read_added(t, json_array_get(list, i), i, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/*
 * The folder's chat template. It is not run, only looked at, to tell releases
 * with the same vocabulary apart; so a missing or odd one is no error.
 */
static char *
read_template(const char *dir)
{
	char path[4096], *text = NULL, *tpl = NULL;
	const char *s;
	json_t *root;
	size_t len;

	snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
	if (dcpd_read_file(path, TOK_MAX_TEMPLATE, &text, &len, NULL) == 0)
		return text;
	snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
	if (dcpd_read_file(path, TOK_MAX_TEMPLATE, &text, &len, NULL) < 0)
		return NULL;
	root = json_loadb(text, len, 0, NULL);
	s = json_string_value(json_object_get(root, "chat_template"));
	if (s != NULL)
		tpl = strdup(s);
	json_decref(root);
	free(text);
	return tpl;
}

int
dcpd_tokenizer_open(const char *dir, struct dcpd_tokenizer **out,
    struct dcpd_err *err)
{
	struct dcpd_tokenizer *t = NULL;
	char path[4096], *text = NULL;
	json_t *root = NULL;
	json_error_t je;
	size_t len;
	int rc;

	if ((size_t)snprintf(path, sizeof path, "%s/tokenizer.json", dir) >=
	    sizeof path)
		return dcpd_fail(err, -ENAMETOOLONG, "%.200s...: path too long",
		    dir);
	rc = dcpd_read_file(path, TOK_MAX_FILE, &text, &len, err);
	if (rc < 0)
		return rc;
	root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
	if (!json_is_object(root)) {
		rc = root != NULL ?
		    dcpd_fail(err, -EINVAL, "not a JSON object") :
		    dcpd_fail(err, -EINVAL, "line %d: %s", je.line, je.text);
		goto out;
	}
	t = calloc(1, sizeof *t);
	if (t == NULL) {
		rc = dcpd_fail(err, -ENOMEM, "out of memory");
		goto out;
	}
	t->magic = TOK_MAGIC;
	rc = read_model(t, json_object_get(root, "model"), err);
	if (rc == 0)
		rc = read_pre_tokenizer(t,
		    json_object_get(root, "pre_tokenizer"), err);
	if (rc == 0)
		rc = check_rest(root, err);
	if (rc == 0)
		rc = read_added_all(t, json_object_get(root, "added_tokens"),
		    err);
	if (rc == 0) {
		t->chat_template = read_template(dir);
		*out = t;
		t = NULL;
	}
out:
	if (rc < 0)
		dcpd_fail_in(err, "%s", path);
	dcpd_tokenizer_close(t);
	json_decref(root);
	free(text);
	return rc;
}

void
dcpd_tokenizer_close(struct dcpd_tokenizer *t)
{
	uint32_t i;

	if (t == NULL)
		return;
	DCPD_CHECK(t, TOK_MAGIC);
	for (i = 0; i < t->n_split; i++)
		pcre2_code_free(t->split[i]);
	pcre2_code_free(t->word_char);
	for (i = 0; i < t->n_added; i++)
		free(t->added[i].content);
	free(t->added);
	free(t->trie[0].v);
	free(t->trie[1].v);
	free(t->chat_template);
	free(t->merges);
	free(t->words);
	free(t->tok);
	dcpd_buf_free(&t->arena);
	t->magic = 0;
	free(t);
}
