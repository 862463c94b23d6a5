/* Streams: a thread each, which does its work in order, later than it was
 * asked, so that a caller that does not wait reads what is not there yet. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

struct item {
	struct item *next;
	struct work work;
	uint64_t number;
	struct point { struct stream *stream; uint64_t number; } *after; /* that must be done before */
	int after_count;
};

struct stream {
	struct stream *next; /* of all there ever were: what is destroyed becomes a new one, at the same address */
	struct context *context;
	bool blocking, destroyed, ended;
	enum capture capture;
	struct stream *others; /* default streams of the same thread in other contexts */
	struct item *first, *last;
	uint64_t asked, done;
};

enum capture_mode { CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; /* something was asked or done */
static struct stream *streams;
static __thread struct stream *per_thread;

/* BATON_STANDIN_DELAY is the longest time in microseconds that work is late. */
static void dawdle(unsigned *seed)
{
	static long longest = -1;
	if (longest < 0) {
		const char *env = getenv("BATON_STANDIN_DELAY");
		longest = env ? atol(env) : 300;
	}
	if (longest > 0 && rand_r(seed) % 4)
		usleep((useconds_t)(rand_r(seed) % (unsigned)longest));
}

static void *serve(void *arg)
{
	struct stream *s = arg;
	unsigned seed = (unsigned)getpid() ^ (unsigned)(uintptr_t)s ^ (unsigned)time(NULL);
	pthread_mutex_lock(&lock);
	while (s->first || !s->destroyed) {
		struct item *i = s->first;
		if (!i) {
			pthread_cond_wait(&moved, &lock);
			continue;
		}
		for (int k = 0; k < i->after_count; k++)
			while (i->after[k].stream->done < i->after[k].number)
				pthread_cond_wait(&moved, &lock);
		pthread_mutex_unlock(&lock);
		dawdle(&seed);
		CUresult err = atomic_load(&s->context->sticky) ? CUDA_SUCCESS : perform(&i->work);
		int none = CUDA_SUCCESS;
		if (err)
			atomic_compare_exchange_strong(&s->context->sticky, &none, err);
		pthread_mutex_lock(&lock);
		s->first = i->next;
		if (!s->first)
			s->last = NULL;
		s->done = i->number;
		pthread_cond_broadcast(&moved);
		free(i->work.staged);
		free(i->after);
		free(i);
	}
	s->ended = true;
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* A stream that was destroyed and has done its work, or memory for one. The caller has lock. */
static struct stream *room(void)
{
	for (struct stream *s = streams; s; s = s->next)
		if (s->ended)
			return s;
	struct stream *s = calloc(1, sizeof *s);
	if (s) {
		s->next = streams;
		streams = s;
	}
	return s;
}

struct stream *stream_make(struct context *c, bool blocking)
{
	pthread_t thread;
	pthread_mutex_lock(&lock);
	struct stream *s = room();
	if (s) {
		s->context = c;
		s->blocking = blocking;
		s->destroyed = s->ended = false;
		s->capture = CAPTURE_NONE;
		if (pthread_create(&thread, NULL, serve, s)) {
			s->destroyed = s->ended = true;
			s = NULL;
		} else
			pthread_detach(thread);
	}
	pthread_mutex_unlock(&lock);
	return s;
}

/* Finds what a caller means; NULL is an invalid handle. To name a stream that was destroyed is
 * undefined, and ends the process. The caller has lock. */
static struct stream *find(CUstream h)
{
	if (h == NULL || h == STREAM_LEGACY)
		return current->legacy;
	for (struct stream *s = streams; s; s = s->next) {
		if (s != h || s == current->legacy)
			continue;
		if (s->destroyed) {
			fprintf(stderr, "stand-in: stream %p is used after it was destroyed: undefined behaviour\n", (void *)h);
			abort();
		}
		if (s->context == current)
			return s;
	}
	return NULL;
}

static struct stream *resolve(CUstream h)
{
	if (h == STREAM_PER_THREAD) {
		struct stream *own = per_thread;
		while (own && own->context != current)
			own = own->others;
		if (!own && (own = stream_make(current, true))) {
			own->others = per_thread;
			per_thread = own;
		}
		h = own;
	}
	pthread_mutex_lock(&lock);
	struct stream *s = find(h);
	pthread_mutex_unlock(&lock);
	return s;
}

/* The legacy stream comes after all blocking streams, and they after it. */
static void order(struct stream *s, struct item *i)
{
	int n = 0;
	for (struct stream *o = streams; o; o = o->next)
		n++;
	i->after = calloc((size_t)n + 1, sizeof *i->after);
	for (struct stream *o = streams; o && i->after; o = o->next) {
		bool legacy = s == s->context->legacy && o->blocking, blocking = s->blocking && o == s->context->legacy;
		if (o->context == s->context && (legacy || blocking))
			i->after[i->after_count++] = (struct point){ o, o->asked };
	}
}

static void wait_for(struct stream *s, uint64_t number)
{
	while (s->done < number)
		pthread_cond_wait(&moved, &lock);
}

CUresult enqueue(CUstream h, struct work *w, bool wait)
{
	struct stream *s = resolve(h);
	struct item *i = s ? calloc(1, sizeof *i) : NULL;
	if (!i) {
		free(w->staged);
		return s ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_HANDLE;
	}
	i->work = *w;
	pthread_mutex_lock(&lock);
	if (s->capture != CAPTURE_NONE) { /* it goes into the graph, which the stand-in does not run */
		pthread_mutex_unlock(&lock);
		free(w->staged);
		free(i);
		return wait ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
	}
	order(s, i);
	i->number = ++s->asked;
	if (s->last)
		s->last->next = i;
	else
		s->first = i;
	s->last = i;
	pthread_cond_broadcast(&moved);
	if (wait)
		wait_for(s, s->asked);
	pthread_mutex_unlock(&lock);
	return wait ? atomic_load(&s->context->sticky) : CUDA_SUCCESS;
}

CUresult drain(struct context *c)
{
	pthread_mutex_lock(&lock);
	for (struct stream *s = streams; s; s = s->next)
		if (s->context == c)
			wait_for(s, s->asked);
	pthread_mutex_unlock(&lock);
	return atomic_load(&c->sticky);
}

EXPORTED CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	ENTER(NEED_CONTEXT);
	if (flags & ~(unsigned)STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	*stream = stream_make(current, !(flags & STREAM_NON_BLOCKING));
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORTED CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
	ENTER(NEED_CONTEXT);
	struct stream *s = resolve(stream);
	if (s)
		*status = s->capture;
	return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult capture(CUstream stream, enum capture from, enum capture to)
{
	struct stream *s = resolve(stream);
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&lock);
	bool right = s != current->legacy && s->capture == from;
	if (right)
		s->capture = to;
	pthread_mutex_unlock(&lock);
	return right ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

EXPORTED CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	ENTER(NEED_CONTEXT);
	if (mode < CAPTURE_GLOBAL || mode > CAPTURE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	return capture(stream, CAPTURE_NONE, CAPTURE_ACTIVE);
}

/* There is no graph to run: what was captured is forgotten. */
EXPORTED CUresult cuStreamEndCapture(CUstream stream, void **graph)
{
	ENTER(NEED_CONTEXT);
	*graph = NULL;
	return capture(stream, CAPTURE_ACTIVE, CAPTURE_NONE);
}

EXPORTED CUresult cuStreamDestroy_v2(CUstream stream)
{
	ENTER(NEED_CONTEXT);
	struct stream *s = stream && stream != STREAM_LEGACY && stream != STREAM_PER_THREAD ? resolve(stream) : NULL;
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&lock);
	s->destroyed = true; /* what was asked is still done */
	pthread_cond_broadcast(&moved);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamSynchronize(CUstream stream)
{
	ENTER(NEED_CONTEXT);
	struct stream *s = resolve(stream);
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&lock);
	bool captures = s->capture != CAPTURE_NONE;
	if (!captures)
		wait_for(s, s->asked);
	pthread_mutex_unlock(&lock);
	return captures ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : atomic_load(&s->context->sticky);
}

EXPORTED CUresult cuStreamQuery(CUstream stream)
{
	ENTER(NEED_CONTEXT);
	struct stream *s = resolve(stream);
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&lock);
	bool ready = s->done == s->asked;
	pthread_mutex_unlock(&lock);
	return ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
