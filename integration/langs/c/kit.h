// What the C programs of these tests share: values with a seed, their check, and answers.

#ifndef BATON_TEST_KIT_H
#define BATON_TEST_KIT_H

#include <baton.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const DLDataType word_type = {1, 64, 1};

static inline void fatal(const char *what) {
	fprintf(stderr, "%s: %s\n", what, baton_last_error());
	exit(1);
}

#define MUST(call) \
	do { \
		if ((call) != BATON_OK) \
			fatal(#call); \
	} while (0)

// The word that stands at place i of a tensor with a seed, in every language.
static inline uint64_t word_at(uint64_t seed, uint64_t i) {
	uint64_t z = seed * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
	z ^= z >> 29;
	return z * 0x94d049bb133111ebu;
}

// The seed of a tensor by its first word: word_at undone.
static inline uint64_t seed_in(uint64_t first) {
	uint64_t z = first * 0x319642b2d24d8ec3u;
	z ^= z >> 29 ^ z >> 58;
	return z * 0xf1de83e19937733du;
}

static inline uint64_t *words_of(const DLManagedTensorVersioned *t) {
	return (uint64_t *)(void *)((char *)t->dl_tensor.data + t->dl_tensor.byte_offset);
}

static inline int64_t count_of(const DLManagedTensorVersioned *t) {
	int64_t n = 1;
	for (int32_t d = 0; d < t->dl_tensor.ndim; d++)
		n *= t->dl_tensor.shape[d];
	return n;
}

// A tensor of a seed in huge pages of a size, NULL for the usual ones.
static inline baton_status filled_in(const baton_session *session, const char *pages, uint64_t seed, int64_t words,
                                     DLManagedTensorVersioned **out) {
	baton_alloc_options o = BATON_ALLOC_OPTIONS_INIT;
	o.pages = pages;
	baton_status s = baton_alloc_with(session, &o, word_type, 1, &words, out);
	for (int64_t i = 0; s == BATON_OK && i < words; i++)
		words_of(*out)[i] = word_at(seed, (uint64_t)i);
	return s;
}

static inline baton_status filled(const baton_session *session, uint64_t seed, int64_t words, DLManagedTensorVersioned **out) {
	return filled_in(session, NULL, seed, words, out);
}

// The first word that is not of the seed, or -1.
static inline int64_t wrong_word(const DLManagedTensorVersioned *t, uint64_t seed) {
	for (int64_t i = 0; i < count_of(t); i++)
		if (words_of(t)[i] != word_at(seed, (uint64_t)i))
			return i;
	return -1;
}

// The value of a seed: two tensors over one storage and one over another, and the seed as meta.
struct value {
	DLManagedTensorVersioned *whole, *half, *other;
	baton_item items[3];
	char meta[40];
	baton_payload payload;
};

static inline void drop_value(struct value *v) {
	baton_tensor_release(v->whole);
	baton_tensor_release(v->half);
	baton_tensor_release(v->other);
}

static inline baton_status make_value(const baton_session *session, uint64_t seed, int64_t words, struct value *v) {
	memset(v, 0, sizeof *v);
	baton_status s = filled(session, seed, words, &v->whole);
	if (s == BATON_OK) {
		const int64_t rest = words / 2;
		s = baton_tensor_view(v->whole, word_type, 1, &rest, NULL, (uint64_t)rest * 8, &v->half);
	}
	if (s == BATON_OK)
		s = filled(session, seed + 1, 3, &v->other);
	if (s != BATON_OK) {
		drop_value(v);
		return s;
	}
	v->items[0] = (baton_item){"whole", v->whole};
	v->items[1] = (baton_item){"half", v->half};
	v->items[2] = (baton_item){"a/b", v->other};
	snprintf(v->meta, sizeof v->meta, "{\"seed\":%llu}", (unsigned long long)seed);
	v->payload = (baton_payload){sizeof(baton_payload), sizeof(baton_item), v->items, 3, v->meta, NULL, 0};
	return BATON_OK;
}

// One tensor and nothing beside it.
static inline baton_status make_lone(const baton_session *session, uint64_t seed, int64_t words, struct value *v) {
	const int64_t shape[] = {words, 2};
	memset(v, 0, sizeof *v);
	baton_status s = baton_alloc(session, word_type, 2, shape, &v->whole);
	for (int64_t i = 0; s == BATON_OK && i < 2 * words; i++)
		words_of(v->whole)[i] = word_at(seed, (uint64_t)i);
	v->items[0] = (baton_item){NULL, v->whole};
	v->payload = (baton_payload){sizeof(baton_payload), sizeof(baton_item), v->items, 1, NULL, NULL, 0};
	return s;
}

static inline uint64_t seed_of(const baton_message *m) {
	unsigned long long seed = 0;
	DLManagedTensorVersioned *lone = NULL;
	if (!baton_message_meta(m)[0] && baton_message_tensor(m, 0, &lone) == BATON_OK) {
		if (count_of(lone) > 0 && lone->dl_tensor.dtype.bits == 64) // a liar may have sent it
			seed = seed_in(words_of(lone)[0]);
		baton_tensor_release(lone);
		return seed;
	}
	if (sscanf(baton_message_meta(m), "{\"seed\":%llu}", &seed) != 1)
		return 0;
	return seed;
}

// Checks the value of a seed, and fills its first tensor with the seed when write is not 0. Says in
// broken what is wrong.
static inline baton_status check_value(const baton_message *m, uint64_t seed, int write, int *readonly, char *broken, size_t size) {
	DLManagedTensorVersioned *whole = NULL, *half = NULL, *other = NULL;
	broken[0] = 0;
	baton_status s;
	if (!baton_message_meta(m)[0]) {
		if ((s = baton_message_tensor(m, 0, &whole)) != BATON_OK)
			return s;
		*readonly = (whole->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
		if (wrong_word(whole, seed) >= 0)
			snprintf(broken, size, "the lone tensor of seed %llu", (unsigned long long)seed);
		for (int64_t i = 0; write && !broken[0] && i < count_of(whole); i++)
			words_of(whole)[i] = seed;
		baton_tensor_release(whole);
		return BATON_OK;
	}
	s = baton_message_tensor_named(m, "whole", &whole);
	if (s == BATON_OK)
		s = baton_message_tensor_named(m, "half", &half);
	if (s == BATON_OK)
		s = baton_message_tensor_named(m, "a/b", &other);
	if (s == BATON_OK) {
		int64_t bad = wrong_word(whole, seed);
		*readonly = (whole->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
		if (bad >= 0)
			snprintf(broken, size, "word %lld of seed %llu", (long long)bad, (unsigned long long)seed);
		else if (wrong_word(other, seed + 1) >= 0)
			snprintf(broken, size, "the other of seed %llu", (unsigned long long)seed);
		else if (words_of(half) != words_of(whole) + count_of(whole) / 2)
			snprintf(broken, size, "half of seed %llu is not in the memory of the whole", (unsigned long long)seed);
		if (write && !broken[0])
			for (int64_t i = 0; i < count_of(whole); i++)
				words_of(whole)[i] = seed;
	}
	baton_tensor_release(whole);
	baton_tensor_release(half);
	baton_tensor_release(other);
	return s;
}

#endif
