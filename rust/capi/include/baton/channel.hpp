// Topics with their readers, queues, and watches of names.

#ifndef BATON_CHANNEL_HPP
#define BATON_CHANNEL_HPP

#include "message.hpp"

namespace baton {

// Options of a topic or queue. What is left out takes what exists, else the default; what differs from what exists
// is a `conflict`.
struct channel_options {
	// How many messages of each sender are kept. Default: 8 in a topic, 64 in a queue.
	uint32_t depth = 0;
	// Bytes of a slot for what describes a message. Default: 1024.
	uint32_t description = 0;
	// How long it stays when no session has it open; 0: not at all. Default: 60 s.
	std::optional<nanoseconds> linger;
	// A topic's: false makes it lossless, so that a send waits for the slowest reader. Default: true.
	std::optional<bool> overwrite;
	// A queue's: true gives an item whose taker dies before releasing it to another. Default: false.
	std::optional<bool> redeliver;
	// Whether it is made if it is not there (not_found). Default: true.
	std::optional<bool> create;
};

namespace detail {

inline int32_t choice(const std::optional<bool> &b) noexcept { return !b ? BATON_DEFAULT : *b ? BATON_YES : BATON_NO; }

inline baton_topic_options raw(const channel_options &o) {
	baton_topic_options out = BATON_TOPIC_OPTIONS_INIT;
	out.depth = o.depth;
	out.description = o.description;
	if (o.linger && *o.linger < nanoseconds::zero())
		raise(BATON_INVALID_ARGUMENT, "linger is negative");
	if (o.linger)
		out.linger_ns = *o.linger == nanoseconds::zero() ? BATON_NO_LINGER : o.linger->count();
	out.overwrite = choice(o.overwrite);
	out.redeliver = choice(o.redeliver);
	out.create = choice(o.create);
	return out;
}

} // namespace detail

// Where a reader begins. A reader of a lossless topic, or its group, has what is sent after its making,
// whatever this says.
enum class start : int32_t {
	newest = BATON_START_NEW, // with what is sent from now on
	last = BATON_START_LAST,  // with the newest message that is kept
	all = BATON_START_ALL,    // with everything that is kept
};

// Receives a topic's messages. Threads that share one take turns: open one for each that is to receive.
//     for (baton::message &m : reader) // until the topic is closed and all received; the end of the session is `closed`
class reader {
public:
	explicit reader(baton_reader *r) noexcept : reader_(r) {}
	baton_reader *get() const noexcept { return reader_.get(); }

	// The next message: `timeout`; `closed` when the topic was closed and everything received.
	message receive(nanoseconds wait = forever) const {
		return message(detail::made<baton_message>([&](auto out) { return baton_reader_receive(get(), out, detail::wait_ns(wait)); }));
	}
	// The same, and none when time ran out.
	std::optional<message> try_receive(nanoseconds wait = nanoseconds::zero()) const {
		return detail::maybe(BATON_TIMEOUT, [&](auto out) { return baton_reader_receive(get(), out, detail::wait_ns(wait)); });
	}
	// Messages that went by unseen and that no later message has reported.
	uint64_t lost() const noexcept { return baton_reader_lost(get()); }

	message next() const { return receive(); }
	detail::until_closed<reader> begin() const { return detail::until_closed<reader>(this); }
	detail::until_closed<reader> end() const { return detail::until_closed<reader>(nullptr); }

private:
	detail::owner<baton_reader, baton_reader_release> reader_;
};

// A channel of messages with many senders and many readers, each of which sees every message.
class topic {
public:
	explicit topic(baton_topic *t) noexcept : topic_(t) {}
	baton_topic *get() const noexcept { return topic_.get(); }

	// Hands a value to every reader; its tensors are not written any more. In a lossless topic it waits until the
	// slowest reader has made room: `full`.
	void send(const payload &value, nanoseconds wait = forever) const {
		check(value.lend([&](auto p) { return baton_topic_send(get(), p, detail::wait_ns(wait)); }));
	}

	baton::reader reader(start from = start::newest) const { return opened(from, nullptr); }
	// One of the readers that share the messages of a lossless topic.
	baton::reader group_reader(const std::string &group) const { return opened(start::newest, detail::c_text(group)); }

	// What opens a private topic in another process.
	std::string token() const {
		const char *token = baton_topic_token(get());
		return token ? token : "";
	}

	// Closes it for all sessions: readers get `closed` when they have received all that is there. The end of this
	// object leaves the topic and closes it for no other.
	void close() const { check(baton_topic_end(get())); }

private:
	baton::reader opened(start from, const char *group) const {
		return baton::reader(
		    detail::made<baton_reader>([&](auto out) { return baton_reader_open(get(), static_cast<int32_t>(from), group, out); }));
	}

	detail::owner<baton_topic, baton_topic_release> topic_;
};

// Gives each item to one taker. Threads that share one take turns: open it once for each that is to take.
//     for (baton::message &m : queue) // until it is closed and empty; the end of the session is `closed`
class queue {
public:
	explicit queue(baton_queue *q) noexcept : queue_(q) {}
	baton_queue *get() const noexcept { return queue_.get(); }

	// Adds an item, which its taker may write, waiting while the queue is full: `full`.
	void put(const payload &value, nanoseconds wait = forever) const {
		check(value.lend([&](auto p) { return baton_queue_put(get(), p, detail::wait_ns(wait)); }));
	}
	// An item: `empty`; `closed` when the queue was closed and is empty.
	message take(nanoseconds wait = forever) const {
		return message(detail::made<baton_message>([&](auto out) { return baton_queue_get(get(), out, detail::wait_ns(wait)); }));
	}
	// The same, and none when time ran out.
	std::optional<message> try_take(nanoseconds wait = nanoseconds::zero()) const {
		return detail::maybe(BATON_EMPTY, [&](auto out) { return baton_queue_get(get(), out, detail::wait_ns(wait)); });
	}
	// How many items wait to be taken.
	size_t waiting() const {
		size_t n = 0;
		check(baton_queue_waiting(get(), &n));
		return n;
	}

	// What opens a private queue in another process.
	std::string token() const {
		const char *token = baton_queue_token(get());
		return token ? token : "";
	}

	// Closes it for all sessions: takers get `closed` when it is empty. The end of this object leaves the queue and
	// closes it for no other.
	void close() const { check(baton_queue_end(get())); }

	message next() const { return take(); }
	detail::until_closed<queue> begin() const { return detail::until_closed<queue>(this); }
	detail::until_closed<queue> end() const { return detail::until_closed<queue>(nullptr); }

private:
	detail::owner<baton_queue, baton_queue_release> queue_;
};

// Follows a name: the current revision at once, then always the newest.
class watch {
public:
	explicit watch(baton_watch *w) noexcept : watch_(w) {}
	baton_watch *get() const noexcept { return watch_.get(); }

	// The newest revision not seen yet: `timeout`; `closed` when the session ended.
	message receive(nanoseconds wait = forever) const {
		return message(detail::made<baton_message>([&](auto out) { return baton_watch_receive(get(), out, detail::wait_ns(wait)); }));
	}
	// The same, and none when time ran out.
	std::optional<message> try_receive(nanoseconds wait = nanoseconds::zero()) const {
		return detail::maybe(BATON_TIMEOUT, [&](auto out) { return baton_watch_receive(get(), out, detail::wait_ns(wait)); });
	}

private:
	detail::owner<baton_watch, baton_watch_release> watch_;
};

// What wait_any waits for: a reader, a queue or a watch, which stays where it is meanwhile.
class waitable {
public:
	waitable(const reader &r) noexcept : raw_{sizeof(baton_wait), r.get(), BATON_WAIT_READER, 0} {} // NOLINT: it is one
	waitable(const queue &q) noexcept : raw_{sizeof(baton_wait), q.get(), BATON_WAIT_QUEUE, 0} {}   // NOLINT
	waitable(const watch &w) noexcept : raw_{sizeof(baton_wait), w.get(), BATON_WAIT_WATCH, 0} {}   // NOLINT
	const baton_wait &raw() const noexcept { return raw_; }

private:
	baton_wait raw_;
};

// Waits until at least one of several is ready, and gives the indices of all that are: try_receive or try_take would
// give a message, or throw what it ends with. None are when time ran out. It takes nothing: another taker may be
// faster. The objects may be of several sessions.
//     for (size_t i : baton::wait_any({reader, queue})) ...
inline std::vector<size_t> wait_any(const std::vector<waitable> &objects, nanoseconds wait = forever) {
	std::vector<baton_wait> raw;
	raw.reserve(objects.size());
	for (const waitable &o : objects)
		raw.push_back(o.raw());
	size_t count = 0;
	baton_status status = baton_wait_any(raw.data(), raw.size(), &count, detail::wait_ns(wait));
	if (status != BATON_TIMEOUT)
		check(status);
	std::vector<size_t> ready;
	ready.reserve(count);
	for (size_t i = 0; i < raw.size() && ready.size() < count; i++)
		if (raw[i].ready)
			ready.push_back(i);
	return ready;
}

} // namespace baton

#endif
