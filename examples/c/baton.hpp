// A thin C++17 layer over baton.h: what is received releases itself, failures are exceptions.
// Copy it into a program and let it grow there.

#ifndef EXAMPLE_BATON_HPP
#define EXAMPLE_BATON_HPP

#include <baton.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace baton {

struct error : std::runtime_error {
	baton_status status;
	explicit error(baton_status s) : std::runtime_error(baton_last_error()), status(s) {}
};

inline void check(baton_status status) {
	if (status != BATON_OK)
		throw error(status);
}

template <auto release> struct releaser {
	template <class T> void operator()(T *object) const { release(object); }
};

using session = std::unique_ptr<baton_session, releaser<baton_session_release>>;
using queue = std::unique_ptr<baton_queue, releaser<baton_queue_release>>;
using message = std::unique_ptr<baton_message, releaser<baton_message_release>>;
using tensor = std::unique_ptr<DLManagedTensorVersioned, releaser<baton_tensor_release>>;

// Makes an object of what a call gives through its out pointer.
template <class Object, class Call> Object made(Call &&call) {
	typename Object::pointer out = nullptr;
	check(call(&out));
	return Object(out);
}

inline session connect(const baton_options *options = nullptr) {
	return made<session>([&](auto out) { return baton_connect(options, out); });
}

inline queue open_queue(const session &s, const std::string &name) {
	return made<queue>([&](auto out) { return baton_queue_open(s.get(), name.c_str(), nullptr, out); });
}

inline message get(const queue &q, int64_t timeout_ns = BATON_FOREVER) {
	return made<message>([&](auto out) { return baton_queue_get(q.get(), out, timeout_ns); });
}

inline tensor first(const message &m) {
	return made<tensor>([&](auto out) { return baton_message_tensor(m.get(), 0, out); });
}

} // namespace baton

#endif
