// What programs in C++ check with: a condition that does not hold is named by its line and ends the program.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			std::fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
			std::exit(1); \
		} \
	} while (0)

// The class of what a call throws; e is what it throws.
#define THROWS(call, type, ...) \
	do { \
		try { \
			(void)(call); \
			std::fprintf(stderr, "line %d: %s threw nothing\n", __LINE__, #call); \
			std::exit(1); \
		} catch (const type &e) { \
			CHECK(*e.what()); \
			__VA_ARGS__; \
		} \
	} while (0)
#define REFUSED(call) THROWS(call, baton::error, CHECK(e.code() == BATON_INVALID_ARGUMENT))
