// Errors and times of baton.hpp.

#ifndef BATON_ERROR_HPP
#define BATON_ERROR_HPP

#include "../baton.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

namespace baton {

// A call that was not done. what() says what happened, to what, and what to do.
class error : public std::runtime_error {
public:
	error(baton_status code, const std::string &what) : std::runtime_error(what), code_(code) {}

	// Which of the failures of baton_status it is.
	baton_status code() const noexcept { return code_; }

	// The name of the code in the protocol, such as "Expired".
	const char *name() const noexcept { return baton_status_name(code_); }

private:
	baton_status code_;
};

// Failures that programs catch by themselves have a class; all others are an `error` and are told apart by code().

// Time ran out: BATON_TIMEOUT, and what is below.
class timeout : public error {
	using error::error;
};
// Time ran out and the queue has no item.
class empty : public timeout {
	using timeout::timeout;
};
// Time ran out and there is no room.
class full : public timeout {
	using timeout::timeout;
};
// The session, topic or queue is closed.
class closed : public error {
public:
	closed(baton_status code, const std::string &what)
	    : error(code, what), topic_(baton_last_status() == BATON_CLOSED ? baton_last_detail("topic") : "") {}

	// The topic or queue that was closed for all sessions; "" where something of this process was closed, such as its session.
	const std::string &topic() const noexcept { return topic_; }

private:
	std::string topic_;
};
// The storage has been recycled.
class expired : public error {
	using error::error;
};
// Nothing has that name.
class not_found : public error {
	using error::error;
};
// An option differs from what exists.
class conflict : public error {
	using error::error;
};
// BATON_OUT_OF_MEMORY, and BATON_QUOTA_EXCEEDED.
class out_of_memory : public error {
	using error::error;
};
// No broker answers at the address.
class no_broker : public error {
	using error::error;
};
// The broker has gone; the session reconnects.
class broker_lost : public error {
	using error::error;
};
// The session is over: go on with session::reopen.
class session_lost : public error {
	using error::error;
};

// No process provides the function.
class no_provider : public error {
	using error::error;
};
// The process that ran the function has ended without a reply.
class provider_died : public error {
public:
	provider_died(baton_status code, const std::string &what)
	    : error(code, what), pid_(std::strtoul(baton_last_detail("pid"), nullptr, 10)), reason_(baton_last_detail("reason")) {}

	unsigned long pid() const noexcept { return pid_; }
	// Such as "its process has ended"; "" if it is not known.
	const std::string &reason() const noexcept { return reason_; }

private:
	unsigned long pid_;
	std::string reason_;
};
// The caller wanted the call no more.
class cancelled : public error {
	using error::error;
};
// The function itself failed. A function that throws one passes it on to its own caller.
class remote_error : public error {
public:
	remote_error(baton_status code, const std::string &what)
	    : error(code, what), kind_(baton_last_detail("kind")), message_(baton_last_detail("message")), trace_(baton_last_detail("trace")),
	      provider_(baton_last_detail("provider")), cause_(baton_last_detail("cause")), detail_(baton_last_detail("")) {}

	// The type of its error as the provider's language names it, such as "ValueError".
	const std::string &kind() const noexcept { return kind_; }
	const std::string &message() const noexcept { return message_; }
	// Where it happened; "" if that is not said.
	const std::string &trace() const noexcept { return trace_; }
	// The session that ran it.
	const std::string &provider() const noexcept { return provider_; }
	// JSON of what led to it: an object of kind, message, trace and perhaps cause; "" if that is not said.
	const std::string &cause() const noexcept { return cause_; }
	// JSON of all that there is.
	const std::string &detail() const noexcept { return detail_; }

private:
	std::string kind_, message_, trace_, provider_, cause_, detail_;
};

// What a function throws to choose the kind of its error: throw baton::failure("ValueError", "bad value 3").
class failure : public std::runtime_error {
public:
	failure(std::string kind, const std::string &message) : std::runtime_error(message), kind_(std::move(kind)) {}
	const std::string &kind() const noexcept { return kind_; }

private:
	std::string kind_;
};

namespace detail {

// A class of errors that has a kind.
struct registered_error {
	std::string kind;
	std::type_index type;
	void (*raise)(const std::string &message);
};

struct registered_errors {
	std::mutex lock;
	std::vector<registered_error> all;
};

// Those of the program. They stay until its end: functions may run still when its static objects go.
inline registered_errors &errors_by_kind() {
	static auto *const all = new registered_errors;
	return *all;
}

// Throws the class of an error of a function that was registered for its kind, if one was.
inline void raise_registered(const char *kind, const std::string &message) {
	void (*raise)(const std::string &) = nullptr;
	{
		const std::lock_guard<std::mutex> locked(errors_by_kind().lock);
		for (const registered_error &one : errors_by_kind().all)
			if (one.kind == kind)
				raise = one.raise;
	}
	if (raise)
		raise(message);
}

} // namespace detail

// Names a class of errors for this process: a function that throws one has that kind at callers in every language, and an
// error of that kind is thrown as one, made of its message, when a call fails. Errors: conflict if the kind was
// registered already, BATON_INVALID_ARGUMENT for an empty one, and one of Baton's own (baton.…).
template <class E> void register_error(const std::string &kind) {
	if (kind.empty() || kind.compare(0, 6, "baton.") == 0)
		throw error(BATON_INVALID_ARGUMENT, "\"" + kind + "\" cannot be the kind of an error of a program (use a name of your own, as shop.OutOfStock)");
	detail::registered_errors &registered = detail::errors_by_kind();
	const std::lock_guard<std::mutex> locked(registered.lock);
	for (const detail::registered_error &one : registered.all)
		if (one.kind == kind)
			throw conflict(BATON_CONFLICT, "the kind of errors " + kind + " is registered already (register it once, at the start of the program)");
	registered.all.push_back({kind, typeid(E), [](const std::string &message) { throw E(message); }});
}

// Throws the class of a status, that of the thread's last call if it was one of a function.
[[noreturn]] inline void raise(baton_status code, const std::string &what) {
	switch (code) {
	case BATON_TIMEOUT: throw timeout(code, what);
	case BATON_EMPTY: throw empty(code, what);
	case BATON_FULL: throw full(code, what);
	case BATON_CLOSED: throw closed(code, what);
	case BATON_EXPIRED: throw expired(code, what);
	case BATON_NOT_FOUND: throw not_found(code, what);
	case BATON_CONFLICT: throw conflict(code, what);
	case BATON_OUT_OF_MEMORY:
	case BATON_QUOTA_EXCEEDED: throw out_of_memory(code, what);
	case BATON_NO_BROKER: throw no_broker(code, what);
	case BATON_BROKER_LOST: throw broker_lost(code, what);
	case BATON_SESSION_LOST: throw session_lost(code, what);
	case BATON_NO_PROVIDER: throw no_provider(code, what);
	case BATON_PROVIDER_DIED: throw provider_died(code, what);
	case BATON_CANCELLED: throw cancelled(code, what);
	case BATON_REMOTE: detail::raise_registered(baton_last_detail("kind"), baton_last_detail("message")); throw remote_error(code, what);
	default: throw error(code, what);
	}
}

// Throws unless a call of baton.h was done.
inline void check(baton_status status) {
	if (status != BATON_OK)
		raise(status, baton_last_error());
}

// The version of the library that runs; BATON_VERSION is that of this header.
inline const char *version() noexcept { return baton_version(); }

using std::chrono::nanoseconds;

// As a time to wait: without end. As a lease: until the session ends.
inline constexpr nanoseconds forever{BATON_FOREVER};

// As a lease: until a session has opened the handle, or 30 s after this session has ended.
inline constexpr nanoseconds once{BATON_ONCE};

namespace detail {

// A time to wait as C has it. One that has passed already, as that of a deadline, is not `forever`.
inline int64_t wait_ns(nanoseconds wait) noexcept {
	if (wait == forever)
		return BATON_FOREVER;
	return wait < nanoseconds::zero() ? 0 : wait.count();
}

// Gives an object back by its function.
template <auto function> struct releaser {
	template <class T> void operator()(T *object) const noexcept { function(object); }
};

template <class T, auto function> using owner = std::unique_ptr<T, releaser<function>>;

// What a call gives through its out pointer.
template <class T, class Call> T *made(Call &&call) {
	T *out = nullptr;
	check(call(&out));
	return out;
}

// As C has it, which ends a text at its first zero byte: one within is BATON_INVALID_ARGUMENT.
inline const char *c_text(const std::string &s) {
	if (s.find('\0') != std::string::npos)
		raise(BATON_INVALID_ARGUMENT, "\"" + s.substr(0, s.find('\0')) + "\\0…\" has a zero byte (use a text without one)");
	return s.c_str();
}

// The same; NULL for an empty text.
inline const char *text(const std::string &s) { return s.empty() ? nullptr : c_text(s); }

} // namespace detail
} // namespace baton

#endif
