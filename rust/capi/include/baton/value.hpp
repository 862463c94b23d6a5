// Values: what calls of functions take and give.

#ifndef BATON_VALUE_HPP
#define BATON_VALUE_HPP

#include "tensor.hpp"

#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace baton {

enum class kind : int32_t {
	none = BATON_KIND_NONE,
	boolean = BATON_KIND_BOOL,
	integer = BATON_KIND_INT,
	floating = BATON_KIND_FLOAT,
	text = BATON_KIND_TEXT,
	bytes = BATON_KIND_BYTES,
	tensor = BATON_KIND_TENSOR,
	dtype = BATON_KIND_DTYPE,
	device = BATON_KIND_DEVICE,
	list = BATON_KIND_LIST,
	tuple = BATON_KIND_TUPLE,
	dict = BATON_KIND_DICT,
	dataclass = BATON_KIND_DATACLASS,
	function = BATON_KIND_FUNCTION,
};

class value;
class value_ref;

// How a type of C++ is given and taken: bool, integers, floats, std::string, tensor, DLDataType, DLDevice,
// std::vector<std::byte> (bytes), std::vector, std::tuple, std::pair, std::map, std::unordered_map, std::optional (none
// where it is empty), value and value_ref are known; functions are given as lambdas or pointers, and taken as
// std::function or baton::function (provide.hpp). A program adds others:
//     template <> struct baton::convert<point> {
//         static std::string types() { return "tuple|list"; } // as of a parameter
//         static point from(baton::value_ref v) { return {v[0].as<double>(), v[1].as<double>()}; }
//         static baton::value to(const point &p) { return std::make_pair(p.x, p.y); }
//     };
template <class T, class = void> struct convert;

namespace detail {

template <class T, class = void> struct converts_to : std::false_type {};
template <class T> struct converts_to<T, std::void_t<decltype(convert<T>::to(std::declval<const T &>()))>> : std::true_type {};

// What values and references to values have in common.
template <class Self> class readable {
public:
	baton::kind kind() const noexcept { return static_cast<baton::kind>(baton_value_kind(raw())); }
	bool is_none() const noexcept { return kind() == baton::kind::none; }

	// The value as a type of C++: a bool may be read as an integer, an integer as a float, a tensor without dimensions
	// as its number. Anything else, and what does not fit, is BATON_INVALID_ARGUMENT. What is read as std::string_view or
	// value_ref goes with the value.
	template <class T> T as() const;

	// Digits of an integer of any size.
	std::string digits() const {
		owner<char, baton_string_free> text(made<char>([&](auto out) { return baton_value_as_digits(raw(), out); }));
		return text.get();
	}

	// How many items a list, tuple, dict or dataclass has.
	size_t size() const noexcept { return baton_value_size(raw()); }
	// An item, in their order; of a dict what stands under its key. It goes with the value. `not_found`.
	value_ref operator[](size_t index) const;
	// What a dict has under a text, or a dataclass as a field: `not_found`.
	value_ref operator[](const std::string &name) const;
	std::optional<value_ref> find(const std::string &name) const;
	// The key of an item of a dict.
	value_ref key(size_t index) const;
	// The class of a dataclass as module:qualname; "" of anything else.
	std::string_view class_name() const noexcept {
		const char *name = baton_value_class(raw());
		return name ? name : "";
	}

private:
	const baton_value *raw() const noexcept { return static_cast<const Self *>(this)->get(); }
};

} // namespace detail

// A value that another object has, such as an argument: it goes with that.
class value_ref : public detail::readable<value_ref> {
public:
	explicit value_ref(const baton_value *v) noexcept : raw_(v) {}
	const baton_value *get() const noexcept { return raw_; }

private:
	const baton_value *raw_;
};

// A value. It never changes; a copy costs a reference.
//     baton::value v = 3, list = std::vector<double>{1, 2}, named = baton::value::dict({{"x", tensor}, {"by", 0.5}});
class value : public detail::readable<value> {
public:
	value() noexcept = default; // None
	value(std::nullptr_t) noexcept {}
	value(const char *text) { check(baton_value_of_text(text, &raw_)); }
	// Of any type for which convert is.
	template <class T, class = std::enable_if_t<detail::converts_to<std::decay_t<T>>::value && !std::is_same_v<std::decay_t<T>, value>>>
	value(const T &of) : value(convert<std::decay_t<T>>::to(of)) {}
	// One more of what another object has.
	value(value_ref v) { check(baton_value_copy(v.get(), &raw_)); }

	value(const value &other) { check(baton_value_copy(other.get(), &raw_)); }
	value(value &&other) noexcept : raw_(other.release()) {}
	value &operator=(value other) noexcept {
		std::swap(raw_, other.raw_);
		return *this;
	}
	~value() { baton_value_release(&raw_); }

	// Takes a value over.
	static value take(baton_value raw) noexcept {
		value v;
		v.raw_ = raw;
		return v;
	}
	// What a call gives through its out pointer.
	template <class Call> static value made(Call &&call) {
		value v;
		check(call(&v.raw_));
		return v;
	}

	static value text(std::string_view s) {
		return made([&](auto out) { return baton_value_of_sized_text(s.data(), s.size(), out); });
	}
	static value bytes(const void *first, size_t size) {
		return made([&](auto out) { return baton_value_of_bytes(first, size, out); });
	}
	// An integer of any size by its decimal digits.
	static value integer(const std::string &digits) {
		return made([&](auto out) { return baton_value_of_digits(detail::c_text(digits), out); });
	}
	static value list(const std::vector<value> &items) {
		const auto raw = lent(items);
		return made([&](auto out) { return baton_value_of_list(raw.data(), raw.size(), out); });
	}
	static value tuple(const std::vector<value> &items) {
		const auto raw = lent(items);
		return made([&](auto out) { return baton_value_of_tuple(raw.data(), raw.size(), out); });
	}
	static value dict(const std::vector<std::pair<std::string, value>> &items) {
		const fields f(items);
		return made([&](auto out) { return baton_value_of_dict(f.names.data(), f.values.data(), f.names.size(), out); });
	}
	// A dict with keys of any kind.
	static value pairs(const std::vector<std::pair<value, value>> &items) {
		std::vector<baton_value> keys, values;
		for (const auto &[key, v] : items) {
			keys.push_back(*key.get());
			values.push_back(*v.get());
		}
		return made([&](auto out) { return baton_value_of_pairs(keys.data(), values.data(), keys.size(), out); });
	}
	// A dataclass of Python's, by its class as module:qualname.
	static value dataclass(const std::string &class_name, const std::vector<std::pair<std::string, value>> &items) {
		const fields f(items);
		return made([&](auto out) {
			return baton_value_of_dataclass(detail::c_text(class_name), f.names.data(), f.values.data(), f.names.size(), out);
		});
	}

	// A function of this program, as an argument of a call; see provide.hpp.
	template <class F> static value function(F f);
	// A function that processes provide, or will, by its name.
	static value named_function(const std::string &name) {
		return made([&](auto out) { return baton_value_of_function_name(detail::c_text(name), out); });
	}

	const baton_value *get() const noexcept { return &raw_; }
	// Gives the value away.
	baton_value release() noexcept {
		const baton_value none = BATON_VALUE_INIT;
		return std::exchange(raw_, none);
	}
	operator value_ref() const noexcept { return value_ref(get()); }

private:
	// As an array lends them.
	static std::vector<baton_value> lent(const std::vector<value> &items) {
		std::vector<baton_value> raw;
		raw.reserve(items.size());
		for (const value &v : items)
			raw.push_back(*v.get());
		return raw;
	}
	struct fields {
		std::vector<const char *> names;
		std::vector<baton_value> values;
		explicit fields(const std::vector<std::pair<std::string, value>> &items) {
			for (const auto &[name, v] : items) {
				names.push_back(detail::c_text(name));
				values.push_back(*v.get());
			}
		}
	};

	baton_value raw_ = BATON_VALUE_INIT;
};

namespace detail {

inline value_ref there(const baton_value *v, const char *what) {
	if (!v)
		raise(BATON_NOT_FOUND, std::string("the value has no ") + what);
	return value_ref(v);
}

template <class Self> template <class T> T readable<Self>::as() const { return convert<T>::from(value_ref(raw())); }
template <class Self> value_ref readable<Self>::operator[](size_t index) const {
	return there(baton_value_item(raw(), index), "item of that number");
}
template <class Self> value_ref readable<Self>::operator[](const std::string &name) const {
	return there(baton_value_get(raw(), detail::c_text(name)), detail::c_text(name));
}
template <class Self> std::optional<value_ref> readable<Self>::find(const std::string &name) const {
	const baton_value *v = baton_value_get(raw(), detail::c_text(name));
	return v ? std::optional(value_ref(v)) : std::nullopt;
}
template <class Self> value_ref readable<Self>::key(size_t index) const {
	return there(baton_value_key(raw(), index), "key of that number");
}

// What a function of baton.h reads.
template <class T, auto read> T got(value_ref v) {
	T out{};
	check(read(v.get(), &out));
	return out;
}

// A number in a smaller type, if it fits.
template <class T, class Wide> T narrow(Wide n) {
	if (n < std::numeric_limits<T>::min() || n > std::numeric_limits<T>::max())
		raise(BATON_INVALID_ARGUMENT, "the int " + std::to_string(n) + " does not fit");
	return static_cast<T>(n);
}

} // namespace detail

template <> struct convert<value> {
	static std::string types() { return "any"; }
	static value from(value_ref v) { return value(v); }
	static value to(const value &v) { return v; }
};
template <> struct convert<value_ref> {
	static std::string types() { return "any"; }
	static value_ref from(value_ref v) { return v; }
};
template <> struct convert<bool> {
	static std::string types() { return "bool"; }
	static bool from(value_ref v) { return detail::got<int32_t, baton_value_as_bool>(v) != 0; }
	static value to(bool b) { return value::take(baton_value_of_bool(b)); }
};
template <class T> struct convert<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
	static std::string types() { return std::is_signed_v<T> || sizeof(T) < 8 ? "int64" : "int"; }
	static T from(value_ref v) {
		if constexpr (std::is_signed_v<T>)
			return detail::narrow<T>(detail::got<int64_t, baton_value_as_int>(v));
		else
			return detail::narrow<T>(detail::got<uint64_t, baton_value_as_uint>(v));
	}
	static value to(T n) {
		if constexpr (std::is_signed_v<T>)
			return value::take(baton_value_of_int(n));
		else
			return value::take(baton_value_of_uint(n));
	}
};
template <class T> struct convert<T, std::enable_if_t<std::is_floating_point_v<T>>> {
	static std::string types() { return "float"; }
	static T from(value_ref v) {
		const double f = detail::got<double, baton_value_as_float>(v);
		if (std::isfinite(f) && std::abs(f) > std::numeric_limits<T>::max()) {
			char text[32];
			std::snprintf(text, sizeof text, "%g", f);
			raise(BATON_INVALID_ARGUMENT, std::string("the float ") + text + " does not fit");
		}
		return static_cast<T>(f);
	}
	static value to(T f) { return value::take(baton_value_of_float(static_cast<double>(f))); }
};
// Goes with the value that it is read of.
template <> struct convert<std::string_view> {
	static std::string types() { return "str"; }
	static std::string_view from(value_ref v) {
		const char *text = nullptr;
		size_t size = 0;
		check(baton_value_as_text(v.get(), &text, &size));
		return {text, size};
	}
	static value to(std::string_view s) { return value::text(s); }
};
template <> struct convert<std::string> {
	static std::string types() { return "str"; }
	static std::string from(value_ref v) { return std::string(convert<std::string_view>::from(v)); }
	static value to(const std::string &s) { return value::text(s); }
};
template <> struct convert<tensor> {
	static std::string types() { return "tensor"; }
	static tensor from(value_ref v) {
		return tensor(detail::made<DLManagedTensorVersioned>([&](auto out) { return baton_value_as_tensor(v.get(), out); }));
	}
	static value to(const tensor &t) {
		return value::made([&](auto out) { return baton_value_of_tensor(nullptr, t.get(), out); });
	}
};
template <> struct convert<DLDataType> {
	static std::string types() { return "dtype"; }
	static DLDataType from(value_ref v) { return detail::got<DLDataType, baton_value_as_dtype>(v); }
	static value to(DLDataType d) { return value::take(baton_value_of_dtype(d)); }
};
template <> struct convert<DLDevice> {
	static std::string types() { return "device"; }
	static DLDevice from(value_ref v) { return detail::got<DLDevice, baton_value_as_device>(v); }
	static value to(DLDevice d) { return value::take(baton_value_of_device(d)); }
};
template <> struct convert<std::vector<std::byte>> {
	static std::string types() { return "bytes"; }
	static std::vector<std::byte> from(value_ref v) {
		const void *first = nullptr;
		size_t size = 0;
		check(baton_value_as_bytes(v.get(), &first, &size));
		const auto *bytes = static_cast<const std::byte *>(first);
		return {bytes, bytes + size};
	}
	static value to(const std::vector<std::byte> &b) { return value::bytes(b.data(), b.size()); }
};
template <class T> struct convert<std::optional<T>> {
	static std::string types() { return convert<T>::types() + "|none"; }
	static std::optional<T> from(value_ref v) { return v.is_none() ? std::nullopt : std::optional<T>(convert<T>::from(v)); }
	static value to(const std::optional<T> &o) { return o ? convert<T>::to(*o) : value(); }
};
template <class T> struct convert<std::vector<T>> {
	static std::string types() { return "list|tuple"; }
	static std::vector<T> from(value_ref v) {
		if (v.kind() != kind::list && v.kind() != kind::tuple)
			raise(BATON_INVALID_ARGUMENT, "the value is no list");
		std::vector<T> out;
		out.reserve(v.size());
		for (size_t i = 0; i < v.size(); i++)
			out.push_back(convert<T>::from(v[i]));
		return out;
	}
	static value to(const std::vector<T> &all) {
		std::vector<value> values;
		values.reserve(all.size());
		for (const auto &one : all)
			values.push_back(convert<T>::to(one));
		return value::list(values);
	}
};

namespace detail {

template <class Tuple, class... T> struct convert_tuple {
	static std::string types() { return "tuple|list"; }
	static Tuple from(value_ref v) { return from(v, std::index_sequence_for<T...>()); }
	template <size_t... I> static Tuple from(value_ref v, std::index_sequence<I...>) {
		if ((v.kind() != kind::list && v.kind() != kind::tuple) || v.size() != sizeof...(T))
			raise(BATON_INVALID_ARGUMENT, "the value is no tuple of " + std::to_string(sizeof...(T)));
		return Tuple{convert<T>::from(v[I])...};
	}
	static value to(const Tuple &t) {
		return std::apply([](const auto &...one) { return value::tuple({value(one)...}); }, t);
	}
};

// A map with keys of text.
template <class Map> struct convert_map {
	static std::string types() { return "dict"; }
	static Map from(value_ref v) {
		if (v.kind() != kind::dict && v.kind() != kind::dataclass)
			raise(BATON_INVALID_ARGUMENT, "the value is no dict");
		Map out;
		for (size_t i = 0; i < v.size(); i++)
			out.emplace(v.key(i).template as<std::string>(), v[i].template as<typename Map::mapped_type>());
		return out;
	}
	static value to(const Map &m) {
		std::vector<std::pair<std::string, value>> items;
		for (const auto &[name, one] : m)
			items.emplace_back(name, convert<typename Map::mapped_type>::to(one));
		return value::dict(items);
	}
};

} // namespace detail

template <class... T> struct convert<std::tuple<T...>> : detail::convert_tuple<std::tuple<T...>, T...> {};
template <class A, class B> struct convert<std::pair<A, B>> : detail::convert_tuple<std::pair<A, B>, A, B> {};
template <class T> struct convert<std::map<std::string, T>> : detail::convert_map<std::map<std::string, T>> {};
template <class T> struct convert<std::unordered_map<std::string, T>> : detail::convert_map<std::unordered_map<std::string, T>> {};

} // namespace baton

#endif
