// What programs of functions in C++ check exceptions with.
#pragma once

#include <baton.hpp>

#include "check.hpp"

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
