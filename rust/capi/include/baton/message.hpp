// What is sent, and what is received.

#ifndef BATON_MESSAGE_HPP
#define BATON_MESSAGE_HPP

#include "tensor.hpp"

#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

namespace baton {

// A tensor under a name, to be sent. The tensor is lent until the call that sends it returns.
struct item {
	std::string name;
	const DLManagedTensorVersioned *tensor;

	item(std::string called, const baton::tensor &t) : name(std::move(called)), tensor(t.get()) {}
	// One of another library, which is copied into shared memory.
	item(std::string called, const DLManagedTensorVersioned *t) : name(std::move(called)), tensor(t) {}
};

// A value to send, put or set: one tensor, tensors by their names, or none. It only refers to tensors, which stay
// until the call.
//     topic.send(x);
//     topic.send({{"image", x}, {"label", y}});
//     topic.send(baton::payload(x).meta(R"({"epoch": 3})"));
class payload {
public:
	payload() = default;
	payload(const tensor &value) : unnamed_(true) { items_.emplace_back(std::string(), value); }
	payload(std::initializer_list<item> items) : items_(items) {}

	// One more tensor.
	payload &add(std::string name, const tensor &t) { return add(std::move(name), t.get()); }
	payload &add(std::string name, const DLManagedTensorVersioned *t) {
		items_.emplace_back(std::move(name), t);
		return *this;
	}

	// JSON of the program's that travels with it.
	payload &meta(std::string json) {
		meta_ = std::move(json);
		return *this;
	}

	// The value's tree in JSON (docs/protocol.md, section 6). A tensor's name is its path there; "" takes that.
	payload &tree(std::string json) {
		tree_ = std::move(json);
		return *this;
	}

	// The stream of a GPU after whose work the tensors are written.
	payload &stream(int64_t number) {
		stream_ = number;
		return *this;
	}

	// Calls a function with the structure of baton.h, which is there during the call.
	template <class Call> auto lend(Call &&call) const {
		std::vector<baton_item> items;
		items.reserve(items_.size());
		for (const item &i : items_)
			items.push_back({unnamed_ || (!tree_.empty() && i.name.empty()) ? nullptr : detail::c_text(i.name), i.tensor});
		baton_payload p = BATON_PAYLOAD_INIT;
		p.items = items.data();
		p.count = items.size();
		p.meta = detail::text(meta_);
		p.tree = detail::text(tree_);
		p.stream = stream_;
		return call(static_cast<const baton_payload *>(&p));
	}

private:
	std::vector<item> items_;
	std::string meta_, tree_;
	int64_t stream_ = 0;
	bool unnamed_ = false;
};

// What was received: a message, an item of a queue, or a revision of a name. Tensors taken from it outlive it.
// In a queue with redelivery the end of it and of its last tensor is the acknowledgement.
class message {
public:
	explicit message(baton_message *m) noexcept : message_(m) {}

	baton_message *get() const noexcept { return message_.get(); }
	baton_message *release() noexcept { return message_.release(); }

	// How many tensors. 0 too if the sender described them wrongly: tensor(0) then says how.
	size_t size() const noexcept { return baton_message_count(get()); }

	// The name of a tensor; "" for one that is the value itself. It goes with the message, as every text here.
	std::string_view name(size_t index) const {
		const char *name = baton_message_name(get(), index);
		if (!name)
			raise(BATON_NOT_FOUND, "the message has no tensor " + std::to_string(index));
		return name;
	}

	baton::tensor tensor(size_t index = 0) const {
		return baton::tensor(detail::made<DLManagedTensorVersioned>([&](auto out) { return baton_message_tensor(get(), index, out); }));
	}
	baton::tensor tensor(const std::string &name) const {
		return baton::tensor(
		    detail::made<DLManagedTensorVersioned>([&](auto out) { return baton_message_tensor_named(get(), detail::c_text(name), out); }));
	}
	baton::tensor operator[](const std::string &name) const { return tensor(name); }

	// All tensors, in their order.
	std::vector<baton::tensor> tensors() const {
		std::vector<DLManagedTensorVersioned *> all(size());
		std::vector<baton::tensor> out;
		out.reserve(all.size());
		check(baton_message_tensors(get(), 0, all.size(), all.data()));
		for (DLManagedTensorVersioned *t : all)
			out.emplace_back(t);
		return out;
	}

	// All tensors with their names:
	//     for (auto &[name, t] : message.items())
	std::vector<std::pair<std::string_view, baton::tensor>> items() const {
		auto all = tensors();
		std::vector<std::pair<std::string_view, baton::tensor>> out;
		out.reserve(all.size());
		for (size_t i = 0; i < all.size(); i++)
			out.emplace_back(name(i), std::move(all[i]));
		return out;
	}

	// JSON that came with it; "" for none.
	std::string_view meta() const noexcept { return text(baton_message_meta(get())); }
	// JSON of the value's tree; "": the value is the unnamed tensor, or a flat dict of the named ones.
	std::string_view tree() const noexcept { return text(baton_message_tree(get())); }
	// The name of the session that sent it; "" for a revision of a name.
	std::string_view sender() const noexcept { return text(baton_message_sender(get())); }
	// Its number among its sender's, from 1; of a name that of the revision.
	uint64_t sequence() const noexcept { return baton_message_sequence(get()); }
	// When it was sent, by CLOCK_MONOTONIC; 0 for a revision of a name.
	nanoseconds stamp() const noexcept { return nanoseconds(static_cast<int64_t>(baton_message_stamp(get()))); }
	// How long ago the revision of a name was set, also on another host; 0 for all else.
	nanoseconds age() const noexcept { return nanoseconds(static_cast<int64_t>(baton_message_age(get()))); }
	// Whether a newer revision of a name may be set on another host.
	bool stale() const noexcept { return baton_message_stale(get()) != 0; }
	// Messages that went by unseen before it.
	uint64_t lost() const noexcept { return baton_message_lost(get()); }
	// Whether it is the bundle of a live name, which every holder may write in place.
	bool live() const noexcept { return baton_message_live(get()) != 0; }

	// Tensors on a GPU that are taken from now on are for work of this stream.
	void use_stream(int64_t stream) const { check(baton_message_stream(get(), stream)); }

private:
	static std::string_view text(const char *s) noexcept { return s ? std::string_view(s) : std::string_view(); }

	detail::owner<baton_message, baton_message_release> message_;
};

namespace detail {

// A message, or none if a call gave the status that says that there is none yet.
template <class Call> std::optional<message> maybe(baton_status none, Call &&call) {
	baton_message *out = nullptr;
	const baton_status status = call(&out);
	if (status == none)
		return std::nullopt;
	check(status);
	return message(out);
}

// Goes over what a source gives until it was closed for all sessions and has no more. The end of the session is thrown.
template <class Source> class until_closed {
public:
	explicit until_closed(const Source *source) : source_(source) {
		if (source_)
			++*this;
	}
	message &operator*() { return *now_; }
	until_closed &operator++() {
		now_.reset(); // released before the wait for the next
		try {
			now_.emplace(source_->next());
		} catch (const closed &e) {
			if (e.topic().empty())
				throw;
			source_ = nullptr;
		}
		return *this;
	}
	bool operator!=(const until_closed &other) const noexcept { return source_ != other.source_; }

private:
	const Source *source_;
	std::optional<message> now_;
};

} // namespace detail
} // namespace baton

#endif
