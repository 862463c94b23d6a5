// Providing functions, and functions as values.

#ifndef BATON_PROVIDE_HPP
#define BATON_PROVIDE_HPP

#include "function.hpp"

#include <new>

namespace baton {

// The arguments of a function that takes whatever is given. They go with the call.
class args {
public:
	args(const baton_value *first, size_t size) noexcept : first_(first), size_(size) {}
	size_t size() const noexcept { return size_; }
	// `not_found`, here and below.
	value_ref operator[](size_t index) const { return detail::there(index < size_ ? first_ + index : nullptr, "argument of that number"); }
	value_ref operator[](const std::string &name) const {
		return detail::there(baton_current_argument(baton_current_call(), detail::c_text(name)), name.c_str());
	}
	// "" for one by its position.
	std::string_view name(size_t index) const noexcept {
		const char *name = baton_current_name(baton_current_call(), index);
		return name ? name : "";
	}

private:
	const baton_value *first_;
	size_t size_;
};

// The call for which this thread runs a function, if it does. Any thread may use it until the function returns.
class current_call {
public:
	current_call() noexcept : raw_(baton_current_call()) {}
	explicit operator bool() const noexcept { return raw_ != nullptr; }

	// Whether the caller wants it no more, or has gone, or its deadline has passed.
	bool cancelled() const noexcept { return baton_current_cancelled(raw_) != 0; }
	// `cancelled` if the caller wants it no more, `timeout` if its deadline has passed.
	void check() const { baton::check(baton_current_check(raw_)); }
	// Sleeps until the caller wants it no more, so long at most: whether it does not.
	bool wait_cancelled(nanoseconds time = forever) const {
		const baton_status status = baton_current_wait(raw_, detail::wait_ns(time));
		if (status != BATON_TIMEOUT && status != BATON_CANCELLED)
			baton::check(status);
		return status == BATON_CANCELLED;
	}
	// How long the caller still waits; `forever` without a limit.
	nanoseconds left() const noexcept { return nanoseconds(baton_current_left(raw_)); }
	// More than 1 of an idempotent function whose provider has ended.
	uint32_t attempt() const noexcept { return baton_current_attempt(raw_); }
	// The name of the session that calls.
	std::string_view caller() const noexcept {
		const char *name = baton_current_caller(raw_);
		return name ? name : "";
	}

private:
	const baton_current *raw_;
};

// Gives the parts of a call to its caller, one after the other: the last argument of a function that gives parts. Any
// thread may use it until the function returns.
//     session.provide("count", [](int n, baton::part_sender<int> send) {
//         for (int i = 0; i < n; i++)
//             send(i);
//     }, {"n"});
template <class T = value> class part_sender {
public:
	part_sender() noexcept : raw_(baton_current_call()) {}
	// Waits if the caller has not taken as many parts before as it lets be ahead. `cancelled` if it wants no more,
	// `timeout` after its deadline; BATON_INVALID_ARGUMENT for what cannot be sent.
	void operator()(const T &part) const {
		const value v(part);
		check(baton_current_send_part(raw_, v.get()));
	}

private:
	const baton_current *raw_;
};

// How a parameter is given.
enum class by : int32_t { either = BATON_BY_EITHER, position = BATON_BY_POSITION, name = BATON_BY_NAME };

// A parameter of a function: its name, and its value if it is not given.
struct parameter {
	std::string name;
	std::optional<value> otherwise;
	by given = by::either;
	// What it takes, joined by |; "": what the function's argument is made of.
	std::string types;

	parameter(std::string called, by how = by::either) : name(std::move(called)), given(how) {}
	parameter(const char *called, by how = by::either) : name(called), given(how) {}
	parameter(std::string called, value if_not_given, by how = by::either)
	    : name(std::move(called)), otherwise(std::move(if_not_given)), given(how) {}
};

// How a function is provided: as {"x", {"by", 2.0}}, its parameters, or by members.
struct function_options {
	function_options() = default;
	function_options(std::initializer_list<parameter> all) : parameters(all) {}

	// As many as the function's arguments, in their order. Without them those have no names.
	std::vector<parameter> parameters;
	// What it does, for people.
	std::string doc;
	// What it gives, as the types of a parameter; "": what the function returns, or its parts are.
	std::string result;
	// How many calls it runs at a time, each in a thread of the library, 1 to 1024.
	uint32_t concurrency = 1;
	// Lets another provider run a call again whose provider has ended before it replied.
	bool idempotent = false;
	// Allows one process alone to provide it.
	bool exclusive = false;
	// Takes the place of the providers that there are.
	bool replace = false;
	// Requests over NATS call it too, by a broker that runs with --nats-functions.
	bool over_nats = false;
	// How long it stays listed once no session has it open.
	nanoseconds linger{0};
};

// A function that this process provides, until its end, which waits for the calls that run.
class provided {
public:
	explicit provided(baton_provided *p) noexcept : provided_(p) {}
	baton_provided *get() const noexcept { return provided_.get(); }

	std::string name() const {
		const char *name = baton_provided_name(get());
		return name ? name : "";
	}
	// How many calls run now.
	size_t running() const noexcept { return baton_provided_running(get()); }
	// Waits until it takes no more calls, so long at most: whether it takes none.
	bool wait(nanoseconds time = forever) const {
		const baton_status status = baton_provided_wait(get(), detail::wait_ns(time));
		if (status != BATON_TIMEOUT)
			check(status);
		return status == BATON_OK;
	}
	// Takes no more calls. It does not wait for those that run; the end of this object does.
	void close() const { check(baton_provided_end(get())); }

private:
	detail::owner<baton_provided, baton_provided_release> provided_;
};

// A session that provides a function.
struct provider_info {
	std::string name;
	uint64_t session;
	uint64_t running;
	uint32_t pid;
	uint32_t concurrency;
	bool stopped;
};

// A function that is registered.
struct function_info {
	std::string name, signature, doc;
	uint64_t callers, waiting, running;
	bool idempotent, exclusive;
	std::vector<provider_info> providers;
};

namespace detail {

// The kind of an exception, as callers in other languages see it.
inline const char *kind_of(const std::exception &e) noexcept {
	if (dynamic_cast<const std::invalid_argument *>(&e))
		return "std::invalid_argument";
	if (dynamic_cast<const std::out_of_range *>(&e))
		return "std::out_of_range";
	if (dynamic_cast<const std::domain_error *>(&e))
		return "std::domain_error";
	if (dynamic_cast<const std::length_error *>(&e))
		return "std::length_error";
	if (dynamic_cast<const std::logic_error *>(&e))
		return "std::logic_error";
	if (dynamic_cast<const std::range_error *>(&e))
		return "std::range_error";
	if (dynamic_cast<const std::overflow_error *>(&e))
		return "std::overflow_error";
	if (dynamic_cast<const std::underflow_error *>(&e))
		return "std::underflow_error";
	if (dynamic_cast<const std::runtime_error *>(&e))
		return "std::runtime_error";
	if (dynamic_cast<const std::bad_alloc *>(&e))
		return "std::bad_alloc";
	return "std::exception";
}

// Makes the error of a function of the exception that is under way, which must not reach the library.
inline int failed() noexcept {
	try {
		throw;
	} catch (const failure &e) {
		return baton_fail(e.kind().c_str(), e.what(), nullptr);
	} catch (const remote_error &e) {
		return baton_fail(e.kind().c_str(), e.message().c_str(), e.detail().c_str());
	} catch (const error &e) {
		char kind[64] = "baton.";
		for (size_t at = 6, i = 0; e.name()[i] && at < sizeof kind - 1; i++)
			kind[at++] = e.name()[i];
		return baton_fail(kind, e.what(), nullptr);
	} catch (const std::exception &e) {
		registered_errors &registered = errors_by_kind();
		const std::lock_guard<std::mutex> locked(registered.lock);
		for (const registered_error &one : registered.all)
			if (one.type == typeid(e))
				return baton_fail(one.kind.c_str(), e.what(), nullptr);
		return baton_fail(kind_of(e), e.what(), nullptr);
	} catch (...) {
		return baton_fail("exception", "what was thrown is no std::exception", nullptr);
	}
}

// The arguments and the result of something that is called.
template <class F> struct shape : shape<decltype(&F::operator())> {};
template <class R, class... A> struct shape<R (*)(A...)> {
	using result = std::decay_t<R>;
	using all = std::tuple<std::decay_t<A>...>;
};
template <class R, class... A> struct shape<R (*)(A...) noexcept> : shape<R (*)(A...)> {};
template <class C, class R, class... A> struct shape<R (C::*)(A...)> : shape<R (*)(A...)> {};
template <class C, class R, class... A> struct shape<R (C::*)(A...) const> : shape<R (*)(A...)> {};
template <class C, class R, class... A> struct shape<R (C::*)(A...) noexcept> : shape<R (*)(A...)> {};
template <class C, class R, class... A> struct shape<R (C::*)(A...) const noexcept> : shape<R (*)(A...)> {};

// What a function is given after its arguments: what gives its parts, or nothing.
template <class All, class = void> struct sender_of {
	static constexpr bool is = false;
};
template <class T> struct sender_type {
	static constexpr bool is = false;
};
template <class T> struct sender_type<part_sender<T>> {
	static constexpr bool is = true;
	using part = T;
};
template <class All> struct sender_of<All, std::enable_if_t<(std::tuple_size_v<All> > 0)>> : sender_type<std::tuple_element_t<std::tuple_size_v<All> - 1, All>> {};

// An argument, whose error says which one it is.
template <class T> T read(const baton_value *args, size_t i) {
	try {
		return convert<T>::from(value_ref(args + i));
	} catch (const error &e) {
		const char *name = baton_current_name(baton_current_call(), i);
		raise(e.code(), "the argument " + (name && *name ? std::string(name) : std::to_string(i)) + ": " + e.what());
	}
}

template <class R> std::string types_of() {
	if constexpr (std::is_void_v<R>)
		return "none";
	else
		return convert<R>::types();
}

// A function of C++ as baton.h calls it.
template <class F> struct handler {
	using result = typename shape<F>::result;
	using all = typename shape<F>::all;
	using sender = sender_of<all>;
	// Of arguments that are read.
	static constexpr size_t count = std::tuple_size_v<all> - (sender::is ? 1 : 0);
	static constexpr bool takes_any = [] {
		if constexpr (count == 1)
			return std::is_same_v<std::tuple_element_t<0, all>, args>;
		else
			return false;
	}();

	static int run(void *state, const baton_value *args, int32_t n, baton_value *out) noexcept {
		try {
			value v = called(*static_cast<F *>(state), args, static_cast<size_t>(n));
			*out = v.release();
			return BATON_OK;
		} catch (...) {
			return failed();
		}
	}
	// The same, of a value, whose arguments nothing has looked at before.
	static int run_value(void *state, const baton_value *args, int32_t n, baton_value *out) noexcept {
		try {
			if constexpr (!takes_any)
				fit(static_cast<size_t>(n));
		} catch (...) {
			return failed();
		}
		return run(state, args, n, out);
	}
	static void fit(size_t n) {
		if (n != count)
			raise(BATON_INVALID_ARGUMENT, "the function takes " + std::to_string(count) + " arguments, and " + std::to_string(n) + " are given");
		for (size_t i = 0; i < n; i++)
			if (const char *name = baton_current_name(baton_current_call(), i); name && *name)
				raise(BATON_INVALID_ARGUMENT, "the argument " + std::string(name) + " is given by its name, which the function does not have");
	}
	static void drop(void *state) noexcept { delete static_cast<F *>(state); }

	static value called(F &f, const baton_value *args, size_t n) {
		if constexpr (takes_any)
			return given(f, baton::args(args, n));
		else
			return each(f, args, std::make_index_sequence<count>());
	}
	template <size_t... I> static value each(F &f, const baton_value *args, std::index_sequence<I...>) {
		(void)args; // if there is none
		return given(f, read<std::tuple_element_t<I, all>>(args, I)...);
	}
	template <class... Args> static value given(F &f, Args &&...args) {
		const auto call = [&]() -> decltype(auto) {
			if constexpr (sender::is)
				return f(std::forward<Args>(args)..., part_sender<typename sender::part>());
			else
				return f(std::forward<Args>(args)...);
		};
		if constexpr (std::is_void_v<result>) {
			call();
			return value();
		} else {
			return value(call());
		}
	}

	// What the options say, and what the function's type does.
	static void describe(function_options &o) { describe(o, std::make_index_sequence<takes_any ? 0 : count>()); }
	template <size_t... I> static void describe(function_options &o, std::index_sequence<I...>) {
		if (o.result.empty()) {
			if constexpr (sender::is)
				o.result = types_of<typename sender::part>();
			else
				o.result = types_of<result>();
		}
		if constexpr (!takes_any) {
			const std::array<std::string, sizeof...(I)> types{types_of<std::tuple_element_t<I, all>>()...};
			if (o.parameters.empty())
				for (size_t i = 0; i < types.size(); i++)
					o.parameters.emplace_back("x" + std::to_string(i), by::position);
			if (o.parameters.size() != types.size())
				raise(BATON_INVALID_ARGUMENT, "the function has " + std::to_string(types.size()) + " arguments and " +
				                                  std::to_string(o.parameters.size()) + " parameters");
			for (size_t i = 0; i < types.size(); i++)
				if (o.parameters[i].types.empty())
					o.parameters[i].types = types[i];
		}
	}
};

template <class F> provided provide(const baton_session *session, const std::string &name, F f, function_options o) {
	using made_of = handler<F>;
	made_of::describe(o);
	std::vector<baton_parameter> parameters;
	for (const parameter &p : o.parameters)
		parameters.push_back({detail::c_text(p.name), text(p.types), p.otherwise ? p.otherwise->get() : nullptr, static_cast<int32_t>(p.given), 0});
	baton_function_options raw = BATON_FUNCTION_OPTIONS_INIT;
	raw.parameters = parameters.data();
	raw.count = parameters.size();
	raw.result = text(o.result);
	raw.doc = text(o.doc);
	raw.no_parameters = parameters.empty() && !made_of::takes_any ? BATON_YES : BATON_NO;
	raw.concurrency = o.concurrency;
	raw.idempotent = o.idempotent ? BATON_YES : BATON_NO;
	raw.exclusive = o.exclusive ? BATON_YES : BATON_NO;
	raw.replace = o.replace ? BATON_YES : BATON_NO;
	raw.over_nats = o.over_nats ? BATON_YES : BATON_NO;
	raw.linger_ns = o.linger.count();
	raw.parts = made_of::sender::is ? BATON_YES : BATON_NO;
	auto *state = new F(std::move(f)); // the library's from here on
	return provided(made<baton_provided>(
	    [&](auto out) { return baton_provide(session, detail::c_text(name), &raw, made_of::run, state, made_of::drop, out); }));
}

// The functions of a list, and their providers.
inline std::vector<function_info> infos(const baton_function_list *list) {
	std::vector<function_info> out;
	for (size_t i = 0; i < baton_function_list_count(list); i++) {
		baton_function_info f = BATON_FUNCTION_INFO_INIT;
		check(baton_function_list_get(list, i, &f));
		std::vector<provider_info> providers;
		for (size_t k = 0; k < f.providers; k++) {
			baton_provider_info p = BATON_PROVIDER_INFO_INIT;
			check(baton_function_list_provider(list, i, k, &p));
			providers.push_back({p.name, p.session, p.running, p.pid, p.concurrency, p.stopped != 0});
		}
		out.push_back({f.name, f.signature, f.doc, f.callers, f.waiting, f.running, f.idempotent != 0, f.exclusive != 0, std::move(providers)});
	}
	return out;
}

// Whether something is a lambda, or what else has one call, or a pointer to a function. std::function has a convert of
// its own.
template <class T> struct is_std_function : std::false_type {};
template <class S> struct is_std_function<std::function<S>> : std::true_type {};
template <class T, class = void> struct has_call : std::false_type {};
template <class T> struct has_call<T, std::void_t<decltype(&T::operator())>> : std::true_type {};
template <class T>
inline constexpr bool is_called = (has_call<T>::value && !is_std_function<T>::value) || (std::is_pointer_v<T> && std::is_function_v<std::remove_pointer_t<T>>);

} // namespace detail

// Its arguments are given by position, unless it takes baton::args. It runs in the thread that waits for the call; that of
// submit and stream in a thread of the library. What it throws is an error of its caller's call. A lambda is copied: one
// that cannot be is moved by value::function(std::move(f)).
template <class F> value value::function(F f) {
	using made_of = detail::handler<F>;
	static_assert(!made_of::sender::is, "a function that gives parts is provided under a name");
	auto *state = new F(std::move(f)); // the library's from here on
	return made([&](auto out) { return baton_value_of_handler(made_of::run_value, state, made_of::drop, out); });
}

template <class F> struct convert<F, std::enable_if_t<detail::is_called<F>>> {
	static std::string types() { return "function"; }
	static value to(const F &f) { return value::function(f); }
};

} // namespace baton

#endif
