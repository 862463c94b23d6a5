// Sessions: the connection to the broker, and all that is made with it.

#ifndef BATON_SESSION_HPP
#define BATON_SESSION_HPP

#include "channel.hpp"
#include "provide.hpp"

namespace baton {

// How a session is opened. What is left out is the default.
struct options {
	// The broker's socket, "unix:/path" or "/path". Default: $BATON_ADDRESS, else the user's broker. A broker that
	// was named is awaited and never started.
	std::string address;
	// Where names live. Default: $BATON_NAMESPACE, else "default".
	std::string name_space;
	// The name shown in listings. Default: $BATON_NAME, else the program's.
	std::string name;
	// The program baton, which is run to start a broker. Default: $BATON_BINARY, else that on PATH.
	std::string binary;
	// Whether the user's broker is started when none runs. Default: true.
	std::optional<bool> start;
	// How long to wait for a broker; 0: for 30 s.
	nanoseconds timeout = nanoseconds::zero();
};

// Where a tensor is allocated. What is left out is the machine's memory in its usual pages, without waiting.
struct alloc_options {
	// "2M" or "1G": huge pages of that size, of those that the machine has reserved.
	std::string pages;
	// "cuda:0", "cuda", "cuda:GPU-...": a GPU.
	std::string device;
	// How long to wait if memory is full.
	nanoseconds timeout = nanoseconds::zero();
	// On a GPU, the stream whose work uses it first.
	int64_t stream = 0;
};

// How a name is set.
struct name_options {
	// One bundle that every holder may write in place.
	bool live = false;
	// Deleted when this session ends.
	bool ephemeral = false;
};

// A connection to the broker. It ends when it and all that was made with it has ended, or with close().
class session {
public:
	// Opens a session: `no_broker`, and others.
	static session connect(const options &o = {}) {
		baton_options raw = BATON_OPTIONS_INIT;
		raw.address = detail::text(o.address);
		raw.name_space = detail::text(o.name_space);
		raw.name = detail::text(o.name);
		raw.binary = detail::text(o.binary);
		raw.start = detail::choice(o.start);
		raw.timeout_ns = detail::wait_ns(o.timeout);
		return session(detail::made<baton_session>([&](auto out) { return baton_connect(&raw, out); }));
	}

	explicit session(baton_session *s) noexcept : session_(s) {}
	baton_session *get() const noexcept { return session_.get(); }

	// Another session with the settings of this one, as after `session_lost`.
	session reopen() const {
		return session(detail::made<baton_session>([&](auto out) { return baton_session_reopen(get(), out); }));
	}

	// Ends the session at once: calls of other threads that wait in it throw `closed`. Tensors keep their bytes.
	void close() const { check(baton_session_end(get())); }

	// A descriptor for poll: readable when something may have changed. It is the session's.
	int fd() const {
		const int fd = baton_session_fd(get());
		if (fd < 0)
			check(baton_last_status());
		return fd;
	}
	// Makes it not readable; then all there is is taken, with a wait of 0.
	void clear_fd() const { check(baton_session_fd_clear(get())); }

	// What the session has and did.
	baton_stats stats() const {
		baton_stats out = BATON_STATS_INIT;
		check(baton_session_stats(get(), &out));
		return out;
	}
	// Gives memory without a holder back to the broker: how many bytes.
	uint64_t collect() const {
		uint64_t bytes = 0;
		check(baton_session_collect(get(), &bytes));
		return bytes;
	}

	// A tensor, C-contiguous, in which stands whatever was there before: `out_of_memory`.
	tensor alloc(DLDataType dtype, const std::vector<int64_t> &shape, const alloc_options &o = {}) const {
		baton_alloc_options raw = BATON_ALLOC_OPTIONS_INIT;
		raw.pages = detail::text(o.pages);
		raw.device = detail::text(o.device);
		raw.timeout_ns = detail::wait_ns(o.timeout);
		raw.stream = o.stream;
		const auto ndim = static_cast<int32_t>(shape.size());
		return taken([&](auto out) { return baton_alloc_with(get(), &raw, dtype, ndim, shape.data(), out); });
	}
	template <class T> tensor alloc(const std::vector<int64_t> &shape, const alloc_options &o = {}) const {
		return alloc(element<T>::type, shape, o);
	}

	// A tensor of another library, copied once into shared memory unless it lies there already. It stays the
	// caller's.
	tensor from_dlpack(const DLManagedTensorVersioned *t) const {
		return taken([&](auto out) { return baton_from_dlpack(get(), t, out); });
	}
	tensor from_dlpack(const DLManagedTensor *t) const {
		return taken([&](auto out) { return baton_from_legacy(get(), t, out); });
	}

	// A tensor of another library in memory of cudaMalloc as it lies, not copied, written after the work of a
	// stream. Its ownership is taken in any case.
	tensor lend(DLManagedTensorVersioned *t, int64_t stream) const {
		return taken([&](auto out) { return baton_lend(get(), t, stream, out); });
	}
	tensor lend(DLManagedTensor *t, int64_t stream) const {
		return taken([&](auto out) { return baton_lend_legacy(get(), t, stream, out); });
	}

	// The tensor of a handle: `expired`.
	tensor open(const std::string &handle) const {
		return taken([&](auto out) { return baton_open(get(), detail::c_text(handle), out); });
	}
	// Ends a handle's lease before its time.
	void release_handle(const std::string &handle) const { check(baton_handle_release(get(), detail::c_text(handle))); }

	// Opens or makes a topic, without a name a private one: `conflict`.
	baton::topic topic(const std::string &name = {}, const channel_options &o = {}) const {
		const baton_topic_options raw = detail::raw(o);
		return baton::topic(detail::made<baton_topic>([&](auto out) { return baton_topic_open(get(), detail::c_text(name), &raw, out); }));
	}
	// Another process's private topic, by its token.
	baton::topic private_topic(const std::string &token) const {
		return baton::topic(detail::made<baton_topic>([&](auto out) { return baton_topic_open_private(get(), detail::c_text(token), out); }));
	}

	// Opens or makes a queue, without a name a private one: `conflict`.
	baton::queue queue(const std::string &name = {}, const channel_options &o = {}) const {
		const baton_topic_options raw = detail::raw(o);
		return baton::queue(detail::made<baton_queue>([&](auto out) { return baton_queue_open(get(), detail::c_text(name), &raw, out); }));
	}
	// Another process's private queue, by its token.
	baton::queue private_queue(const std::string &token) const {
		return baton::queue(detail::made<baton_queue>([&](auto out) { return baton_queue_open_private(get(), detail::c_text(token), out); }));
	}

	// Publishes a revision of a name: its number.
	uint64_t set(const std::string &name, const payload &value, name_options o = {}) const {
		const uint32_t flags = (o.live ? BATON_LIVE : 0U) | (o.ephemeral ? BATON_EPHEMERAL : 0U);
		uint64_t revision = 0;
		check(value.lend([&](auto p) { return baton_set(get(), detail::c_text(name), p, flags, &revision); }));
		return revision;
	}
	// The newest revision of a name: `not_found` when there is none within the time.
	message get(const std::string &name, nanoseconds wait = nanoseconds::zero()) const {
		return message(detail::made<baton_message>([&](auto out) { return baton_get(get(), detail::c_text(name), out, detail::wait_ns(wait)); }));
	}
	// The same, and none when there is none.
	std::optional<message> try_get(const std::string &name, nanoseconds wait = nanoseconds::zero()) const {
		return detail::maybe(BATON_NOT_FOUND, [&](auto out) { return baton_get(get(), detail::c_text(name), out, detail::wait_ns(wait)); });
	}
	baton::watch watch(const std::string &name) const {
		return baton::watch(detail::made<baton_watch>([&](auto out) { return baton_watch_open(get(), detail::c_text(name), out); }));
	}
	// Removes a name: `not_found`.
	void remove(const std::string &name) const { check(baton_delete(get(), detail::c_text(name))); }
	// The names that are set; in the pattern * stands for any run of characters.
	std::vector<std::string> names(const std::string &pattern = {}) const {
		detail::owner<char *, baton_names_free> all(
		    detail::made<char *>([&](auto out) { return baton_names(get(), detail::c_text(pattern), out); }));
		std::vector<std::string> out;
		for (char **name = all.get(); *name; name++)
			out.emplace_back(*name);
		return out;
	}

	// Calls the function of a name and waits for what it returns; see function::call. Arguments are values, and behind
	// them those by name.
	//     double y = session.call<double>("scale", 3, baton::arg("by", 0.5));
	template <class R = value, class... Args> R call(const std::string &name, const Args &...args) const {
		return detail::result<R>(detail::with_arguments(
		    [&](auto raw, auto n, auto names) {
			    return value::made([&](auto out) { return baton_call(get(), detail::c_text(name), raw, n, names, out, BATON_FOREVER); });
		    },
		    args...));
	}
	// A function to be called again and again, waiting so long for some process to provide it, as its calls do then:
	// `not_found`, `no_provider`.
	baton::function function(const std::string &name, nanoseconds wait = nanoseconds::zero()) const {
		return baton::function(
		    detail::made<baton_function>([&](auto out) { return baton_function_open(get(), detail::c_text(name), out, detail::wait_ns(wait)); }));
	}
	// Provides a function under a name, until the end of what it gives: what is called with arguments of types for
	// which convert is, or with one baton::args; behind them with a part_sender if it gives parts. Exceptions that leave it are errors of the call. It is called by threads
	// of the library. `conflict`.
	//     auto p = session.provide("scale", [](baton::tensor x, double by) { … return x; }, {"x", {"by", 2.0}});
	template <class F> provided provide(const std::string &name, F f, function_options o = {}) const {
		return detail::provide(get(), name, std::move(f), std::move(o));
	}
	// The functions that are registered; in the pattern * stands for any run of characters.
	std::vector<function_info> functions(const std::string &pattern = {}) const {
		detail::owner<baton_function_list, baton_function_list_release> all(
		    detail::made<baton_function_list>([&](auto out) { return baton_functions(get(), detail::c_text(pattern), out); }));
		return detail::infos(all.get());
	}
	// Ends all registrations of a function: how many sessions provided it. `not_found`.
	uint32_t remove_function(const std::string &name) const {
		uint32_t providers = 0;
		check(baton_function_remove(get(), detail::c_text(name), &providers));
		return providers;
	}

	// Fills in DLPack's table for libraries of this process, whose allocator makes tensors in this session and
	// keeps it open; the functions for Python's objects are left NULL.
	void exchange_api(DLPackExchangeAPI *out) const { check(baton_exchange_api(get(), out)); }

private:
	template <class Call> static tensor taken(Call &&call) { return tensor(detail::made<DLManagedTensorVersioned>(call)); }

	detail::owner<baton_session, baton_session_release> session_;
};

} // namespace baton

#endif
