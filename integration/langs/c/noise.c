// A hostile client: it takes part like others, finds in /proc/self/maps what it shares with them and
// may write, and writes noise into every page of that which is in use.

#define _DEFAULT_SOURCE
#include "kit.h"

#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, MOST = 1 << 14 };

static uint64_t *pages[MOST];
static size_t count;
static uint64_t state;

static uint64_t next(void) { // xorshift64
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

// A number that means something to some function, or any.
static uint64_t number(void) {
	switch (next() % 6) {
	case 0:
		return next();
	case 1:
		return next() % 4;
	case 2:
		return next() % 4096;
	case 3:
		return (next() % 4096) * 256;
	case 4:
		return UINT64_MAX - next() % 4;
	default:
		return 1ull << next() % 64;
	}
}

// Collects the pages that are in use of every shared mapping that may be written.
static void find_pages(void) {
	static unsigned char resident[1 << 22];
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	if (!maps)
		fatal("/proc/self/maps");
	while (fgets(line, sizeof line, maps)) {
		unsigned long from, to;
		char mode[5];
		if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) != 3 || mode[1] != 'w' || mode[3] != 's')
			continue;
		size_t n = (to - from) / PAGE;
		if (n > sizeof resident || mincore((void *)from, to - from, resident) != 0)
			continue;
		for (size_t i = 0; i < n && count < MOST; i++)
			if (resident[i] & 1)
				pages[count++] = (uint64_t *)(from + i * PAGE);
	}
	fclose(maps);
}

int main(int argc, char **argv) {
	baton_session *session;
	baton_topic *commons, *council;
	baton_reader *reader, *member;
	const baton_options o = {.size = sizeof o, .name = "hostile"};
	const baton_topic_options lossless = {.size = sizeof lossless, .overwrite = BATON_NO, .linger_ns = BATON_NO_LINGER},
	                          plain = {.size = sizeof plain, .linger_ns = BATON_NO_LINGER};
	const char *seed = getenv("NOISE_SEED");
	(void)argc, (void)argv;
	state = seed ? strtoull(seed, NULL, 10) | 1 : 1;
	MUST(baton_connect(&o, &session));
	MUST(baton_topic_open(session, "commons", &plain, &commons));
	MUST(baton_topic_open(session, "council", &lossless, &council));
	MUST(baton_reader_open(commons, BATON_START_NEW, NULL, &reader));
	MUST(baton_reader_open(council, BATON_START_NEW, "mixed", &member));
	for (uint64_t i = 0; i < 20; i++) { // its lanes, its storages and its refcounts come into being
		struct value v;
		baton_message *m;
		MUST(make_value(session, i, 100, &v));
		MUST(baton_topic_send(commons, &v.payload, BATON_FOREVER));
		MUST(baton_topic_send(council, &v.payload, BATON_FOREVER));
		drop_value(&v);
		if (baton_reader_receive(reader, &m, 0) == BATON_OK)
			baton_message_release(m);
		if (baton_reader_receive(member, &m, BATON_FOREVER) == BATON_OK)
			baton_message_release(m);
	}
	find_pages();
	printf("{\"pages\":%zu}\n", count);
	fflush(stdout);
	// From here on it uses the library no more: its own pages are what it spoils.
	for (uint64_t round = 1; count > 0; round++) {
		for (int i = 0; i < 2000; i++) {
			volatile uint64_t *page = pages[next() % count];
			page[next() % (PAGE / 8)] = number();
		}
		if (round % 100 == 0) {
			printf("{\"rounds\":%llu}\n", (unsigned long long)round);
			fflush(stdout);
			usleep(1000);
		}
	}
	return 1;
}
