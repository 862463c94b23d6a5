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
