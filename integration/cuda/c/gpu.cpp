// Tensors on a GPU by baton.hpp: "send" fills them by a stream and lends memory of its own, "receive" reads them.

#include <baton.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

#include "../../langs/c/check.hpp"

using namespace std::chrono_literals;

// A process whose partner has failed fails, too.
static constexpr auto patience = 60s;

// The driver, as a program has it that makes kernels of its own.
struct driver {
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	void *stream = nullptr;

	driver() {
		void *context = nullptr;
		CHECK(library && call("cuInit", 0U) == 0 && call("cuDevicePrimaryCtxRetain", &context, 0) == 0 &&
		      call("cuCtxPushCurrent_v2", context) == 0 && call("cuStreamCreate", &stream, 1U) == 0);
	}
	template <class... Args> int call(const char *name, Args... args) const {
		int (*function)(Args...) = nullptr;
		void *found = dlsym(library, name);
		std::memcpy(&function, &found, sizeof found);
		return function(args...);
	}
	void fill(const baton::tensor &t, unsigned char value) const {
		t.use_on(baton::stream_number(stream));
		CHECK(call("cuMemsetD8Async", reinterpret_cast<uint64_t>(t.data()), value, t.size(), stream) == 0);
	}
	// What all bytes of a tensor are, as the stream reads them.
	unsigned char seen(const baton::tensor &t) const {
		t.use_on(baton::stream_number(stream));
		std::vector<unsigned char> all(t.size());
		CHECK(call("cuMemcpyDtoHAsync_v2", static_cast<void *>(all.data()), reinterpret_cast<uint64_t>(t.data()), all.size(), stream) == 0);
		CHECK(call("cuStreamSynchronize", stream) == 0);
		for (unsigned char b : all)
			CHECK(b == all[0]);
		return all[0];
	}
};

// Memory of cudaMalloc, as another library has it.
struct foreign {
	DLManagedTensorVersioned managed{};
	int64_t shape = 4096;
	bool given_back = false;

	foreign(const driver &gpu, unsigned char value) {
		uint64_t at = 0;
		CHECK(gpu.call("cuMemAlloc_v2", &at, static_cast<size_t>(shape)) == 0);
		CHECK(gpu.call("cuMemsetD8Async", at, value, static_cast<size_t>(shape), gpu.stream) == 0);
		managed.version = {1, 3};
		managed.manager_ctx = this;
		managed.deleter = [](DLManagedTensorVersioned *self) { static_cast<foreign *>(self->manager_ctx)->given_back = true; };
		managed.dl_tensor = {reinterpret_cast<void *>(at), {kDLCUDA, 0}, 1, {kDLUInt, 8, 1}, &shape, nullptr, 0};
	}
};

static int sends(const baton::session &s, const driver &gpu) {
	const int64_t stream = baton::stream_number(gpu.stream);
	baton::alloc_options on;
	on.device = "cuda:0";
	on.stream = stream;
	auto x = s.alloc<unsigned char>({4096}, on);
	CHECK(x.device().device_type == kDLCUDA);
	try {
		x.as<unsigned char>();
		CHECK(!"the processor cannot read it");
	} catch (const baton::error &e) {
		CHECK(e.code() == BATON_UNSUPPORTED);
	}
	gpu.fill(x, 7);
	auto q = s.queue("gpu"), back = s.queue("back");
	q.put(baton::payload(x).stream(stream));
	foreign theirs(gpu, 9);
	auto lent = s.lend(&theirs.managed, stream);
	CHECK(lent.data() == theirs.managed.dl_tensor.data && !theirs.given_back);
	q.put(baton::payload(lent).stream(stream));
	CHECK(back.take(patience).size() == 0);
	lent.written(patience);
	s.close(); // the lent memory is the program's again, or is kept to its end
	return 0;
}

static int receives(const baton::session &s, const driver &gpu) {
	auto q = s.queue("gpu"), back = s.queue("back");
	for (unsigned char want : {7, 9}) {
		auto m = q.take(patience);
		m.use_stream(baton::stream_number(gpu.stream));
		auto t = m.tensor();
		CHECK(gpu.seen(t) == want && t.device().device_type == kDLCUDA);
		t.written(patience);
		(void)t.ordered_by_streams();
	}
	back.put({});
	return 0;
}

int main(int argc, char **argv) {
	try {
		const driver gpu;
		auto s = baton::session::connect();
		return argc == 2 && std::strcmp(argv[1], "send") == 0 ? sends(s, gpu) : receives(s, gpu);
	} catch (const baton::error &e) {
		std::fprintf(stderr, "%s: %s: %s\n", argv[argc - 1], e.name(), e.what());
		return 1;
	}
}
