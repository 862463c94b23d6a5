// Calling functions.

#ifndef BATON_FUNCTION_HPP
#define BATON_FUNCTION_HPP

#include "value.hpp"

#include <array>
#include <functional>
#include <iterator>

namespace baton {

// An argument by its name:
//     session.call<double>("scale", 3, baton::arg("by", 0.5));
struct argument {
	std::string name;
	baton::value value;
};
inline argument arg(std::string name, value v) { return {std::move(name), std::move(v)}; }

namespace detail {

inline argument given(argument a) { return a; }
template <class T, class = std::enable_if_t<std::is_constructible_v<value, const T &>>> argument given(const T &v) { return {{}, value(v)}; }

// Calls a function with arguments as baton.h has them, which are there during the call.
template <class Call, class... Args> auto with_arguments(Call &&call, const Args &...args) {
	constexpr size_t n = sizeof...(Args);
	const std::array<argument, n> all{given(args)...};
	std::array<baton_value, n + 1> raw{}; // C++ has arrays of none, and C has no pointer to one
	std::array<const char *, n + 1> names{};
	for (size_t i = 0; i < n; i++) {
		raw[i] = *all[i].value.get();
		names[i] = all[i].name.empty() ? nullptr : detail::c_text(all[i].name);
	}
	return call(raw.data(), static_cast<int32_t>(n), names.data());
}

template <class R> R result(const value &v) {
	static_assert(!std::is_same_v<R, std::string_view> && !std::is_same_v<R, value_ref>, "it would go with the result");
	if constexpr (!std::is_void_v<R>)
		return v.as<R>();
}

} // namespace detail

// A call that is under way. Its end cancels it, unless it is over.
class pending {
public:
	explicit pending(baton_pending *p) noexcept : pending_(p) {}
	baton_pending *get() const noexcept { return pending_.get(); }

	// Waits until it is over, so long at most: whether it is.
	bool wait(nanoseconds time = forever) const {
		const baton_status status = baton_pending_wait(get(), detail::wait_ns(time));
		if (status != BATON_TIMEOUT)
			check(status);
		return status == BATON_OK;
	}
	// Waits for what it returns, once, and throws as function::call.
	template <class R = value> R result() const {
		return detail::result<R>(value::made([&](auto out) { return baton_pending_result(get(), out); }));
	}
	// Says that it is wanted no more, also to a thread that waits for its result: `cancelled`.
	void cancel() const { check(baton_pending_cancel(get())); }

private:
	detail::owner<baton_pending, baton_pending_release> pending_;
};

// The parts of a call of a function that gives them; see function::stream. Its end cancels the call, unless it is over. As
// a range it waits for each part, which is there until the next, and throws as function::call if the call fails:
//     for (const baton::tensor &tile : f.stream<baton::tensor>(x))
//         ...
template <class T = value> class parts {
	static_assert(!std::is_same_v<T, std::string_view> && !std::is_same_v<T, value_ref>, "it would go with the part");

public:
	explicit parts(baton_parts *p) noexcept : parts_(p) {}
	baton_parts *get() const noexcept { return parts_.get(); }

	// Waits for the next part: nothing when there are no more. `empty` if none has come in that time; the call goes on.
	std::optional<T> next(nanoseconds time = forever) const {
		int32_t more = 0;
		const value part = value::made([&](auto out) { return baton_parts_next(get(), out, &more, detail::wait_ns(time)); });
		return more ? std::optional<T>(part.as<T>()) : std::nullopt;
	}
	// Waits for what the function returns, once. Parts that were not taken are let go.
	template <class R = value> R result() const {
		return detail::result<R>(value::made([&](auto out) { return baton_parts_result(get(), out); }));
	}
	// Says that no more parts are wanted, also to a thread that waits for one: `cancelled`.
	void cancel() const { check(baton_parts_cancel(get())); }

	class iterator {
	public:
		using iterator_category = std::input_iterator_tag;
		using value_type = T;
		using difference_type = std::ptrdiff_t;
		using pointer = T *;
		using reference = T &;

		iterator() noexcept = default; // the end
		explicit iterator(parts *of) : of_(of) { ++*this; }
		T &operator*() const { return *of_->part_; }
		T *operator->() const { return &*of_->part_; }
		iterator &operator++() {
			of_->part_ = of_->next();
			if (!of_->part_)
				of_ = nullptr;
			return *this;
		}
		void operator++(int) { ++*this; }
		friend bool operator==(const iterator &a, const iterator &b) noexcept { return a.of_ == b.of_; }
		friend bool operator!=(const iterator &a, const iterator &b) noexcept { return a.of_ != b.of_; }

	private:
		parts *of_ = nullptr;
	};
	iterator begin() { return iterator(this); }
	iterator end() const noexcept { return {}; }

private:
	detail::owner<baton_parts, baton_parts_release> parts_;
	std::optional<T> part_;
};

// A function that processes provide, to be called again and again.
class function {
public:
	explicit function(baton_function *f) noexcept : function_(f) {}
	baton_function *get() const noexcept { return function_.get(); }

	// With its version.
	std::string name() const {
		const char *name = baton_function_name(get());
		return name ? name : "";
	}
	// As its provider says now.
	std::string doc() const { return text([&](auto out) { return baton_function_doc(get(), out); }); }
	// What it takes and gives, such as "(image: tensor, by: float = 2.0) -> tensor".
	std::string signature() const { return text([&](auto out) { return baton_function_signature(get(), out); }); }
	// How many sessions provide it now.
	uint32_t providers() const noexcept { return baton_function_providers(get()); }

	// How long calls take at most: `timeout`, and the provider is told.
	function &timeout(nanoseconds time) & {
		timeout_ = time;
		return *this;
	}
	function &&timeout(nanoseconds time) && { return std::move(this->timeout(time)); }

	// How many parts it may give that are not taken, 1 to 63.
	function &ahead(uint32_t count) & {
		ahead_ = count;
		return *this;
	}
	function &&ahead(uint32_t count) && { return std::move(this->ahead(count)); }

	// Calls it and waits for what it returns. It ends once: with that, or `remote_error` (the function failed),
	// `no_provider`, `provider_died`, `timeout`, `closed`, `session_lost`, `broker_lost`, within another call also
	// `cancelled`. Arguments that do not fit are BATON_INVALID_ARGUMENT, before anything is sent.
	template <class R = value, class... Args> R call(const Args &...args) const {
		return detail::result<R>(detail::with_arguments(
		    [&](auto raw, auto n, auto names) {
			    return value::made([&](auto out) { return baton_function_call(get(), raw, n, names, out, detail::wait_ns(timeout_)); });
		    },
		    args...));
	}
	// The same, without waiting for what it returns.
	template <class... Args> pending submit(const Args &...args) const {
		return detail::with_arguments(
		    [&](auto raw, auto n, auto names) {
			    return pending(detail::made<baton_pending>(
			        [&](auto out) { return baton_function_submit(get(), raw, n, names, out, detail::wait_ns(timeout_)); }));
		    },
		    args...);
	}
	// Calls a function that gives parts, one after the other; its timeout is that of all.
	template <class T = value, class... Args> baton::parts<T> stream(const Args &...args) const {
		return detail::with_arguments(
		    [&](auto raw, auto n, auto names) {
			    return baton::parts<T>(detail::made<baton_parts>(
			        [&](auto out) { return baton_function_stream(get(), raw, n, names, ahead_, out, detail::wait_ns(timeout_)); }));
		    },
		    args...);
	}

private:
	template <class Call> static std::string text(Call &&call) {
		return detail::owner<char, baton_string_free>(detail::made<char>(call)).get();
	}

	detail::owner<baton_function, baton_function_release> function_;
	nanoseconds timeout_ = forever;
	uint32_t ahead_ = 0;
};

// As an argument it goes by its name. One that came with a call can be called until that ends: `closed` after that.
template <> struct convert<function> {
	static std::string types() { return "function"; }
	static function from(value_ref v) {
		return function(detail::made<baton_function>([&](auto out) { return baton_value_as_function(v.get(), out); }));
	}
	static value to(const function &f) {
		return value::made([&](auto out) { return baton_value_of_function(f.get(), out); });
	}
};
// The same, to be called as any other; it is given as a function of this program.
template <class R, class... A> struct convert<std::function<R(A...)>> {
	static std::string types() { return "function"; }
	static std::function<R(A...)> from(value_ref v) {
		auto f = std::make_shared<const function>(convert<function>::from(v));
		return [f](const std::decay_t<A> &...args) { return f->template call<R>(args...); };
	}
	static value to(const std::function<R(A...)> &f) {
		if (!f)
			raise(BATON_INVALID_ARGUMENT, "the function is empty");
		return value::function(f);
	}
};

} // namespace baton

#endif
