// Tensors and views of their elements.

#ifndef BATON_TENSOR_HPP
#define BATON_TENSOR_HPP

#include "error.hpp"

#include <cassert>
#include <complex>
#include <cstddef>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>
#if __cplusplus >= 202002L && __has_include(<ranges>)
#include <ranges>
#endif

namespace baton {

// An element of a tensor of bool, in one byte. Other processes may write any byte there, and to read one that is neither 0
// nor 1 as a bool of C++ is undefined: here each byte but 0 is true. It converts from and to bool.
struct boolean {
	boolean() = default;
	constexpr boolean(bool b) noexcept : byte(b ? 1 : 0) {}
	constexpr operator bool() const noexcept { return byte != 0; }

	uint8_t byte;
};
static_assert(sizeof(boolean) == 1 && std::is_trivial_v<boolean> && std::is_standard_layout_v<boolean>);

// The type of DLPack that elements of a type of C++ have. Integers, float, double, boolean, std::byte and std::complex are
// known; a program adds others, of which every pattern of bits has to be a value, since other processes may write any:
//     template <> struct baton::element<my_bfloat16> { static constexpr DLDataType type{kDLBfloat, 16, 1}; };
template <class T> struct element {
	static_assert(!std::is_same_v<T, bool>, "elements are baton::boolean, not bool: another process may write a byte that is neither 0 nor 1");
	static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8, "no type of DLPack is known for this one: specialise baton::element");
	static constexpr uint8_t code = std::is_floating_point_v<T> ? kDLFloat : std::is_signed_v<T> ? kDLInt : kDLUInt;
	static constexpr DLDataType type{code, 8 * sizeof(T), 1};
};
template <> struct element<boolean> {
	static constexpr DLDataType type{kDLBool, 8, 1};
};
template <> struct element<std::byte> {
	static constexpr DLDataType type{kDLUInt, 8, 1};
};
template <class T> struct element<std::complex<T>> {
	static constexpr DLDataType type{kDLComplex, 16 * sizeof(T), 1};
};

inline bool same(DLDataType a, DLDataType b) noexcept { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

// The type of a name as ml_dtypes spells it, such as "bfloat16".
inline DLDataType dtype(const std::string &name) {
	DLDataType out;
	check(baton_dtype(detail::c_text(name), &out));
	return out;
}

// The number of a stream of a GPU, a CUstream or cudaStream_t, as functions here take it.
inline int64_t stream_number(const void *stream) noexcept {
	return static_cast<int64_t>(reinterpret_cast<intptr_t>(stream));
}

// A row of elements that a tensor keeps. std::span is made of it if there is one.
template <class T> class span {
public:
	using value_type = std::remove_cv_t<T>;

	span() = default;
	span(T *data, size_t size) noexcept : data_(data), size_(size) {}

	T *data() const noexcept { return data_; }
	size_t size() const noexcept { return size_; }
	bool empty() const noexcept { return size_ == 0; }
	T *begin() const noexcept { return data_; }
	T *end() const noexcept { return data_ + size_; }
	T &operator[](size_t i) const noexcept {
		assert(i < size_);
		return data_[i];
	}

private:
	T *data_ = nullptr;
	size_t size_ = 0;
};

// A shape, which its tensor keeps.
class dims : public span<const int64_t> {
public:
	using span::span;
	operator std::vector<int64_t>() const { return {begin(), end()}; }
	friend bool operator==(const dims &a, const std::vector<int64_t> &b) { return std::vector<int64_t>(a) == b; }
	friend bool operator!=(const dims &a, const std::vector<int64_t> &b) { return !(a == b); }
};

} // namespace baton

#if defined(__cpp_lib_ranges)
// Its elements are kept by something else, as those of std::span, which takes one that is about to go.
template <class T> inline constexpr bool std::ranges::enable_borrowed_range<baton::span<T>> = true;
template <class T> inline constexpr bool std::ranges::enable_view<baton::span<T>> = true;
template <> inline constexpr bool std::ranges::enable_borrowed_range<baton::dims> = true;
template <> inline constexpr bool std::ranges::enable_view<baton::dims> = true;
#endif

namespace baton {

// The elements of a tensor, by their indices and in whatever order they lie. The tensor keeps them.
template <class T> class view {
public:
	// strides are in elements; null: C-contiguous.
	view(T *first, dims shape, const int64_t *strides) noexcept : first_(first), shape_(shape), strides_(strides) {}

	T *data() const noexcept { return first_; }
	const dims &shape() const noexcept { return shape_; }
	size_t ndim() const noexcept { return shape_.size(); }

	// The element at as many indices as there are dimensions, which are not checked in a release build.
	template <class... Index> T &operator()(Index... index) const noexcept {
		static_assert((std::is_integral_v<Index> && ...), "indices are integers");
		assert(sizeof...(Index) == ndim());
		const int64_t at[] = {static_cast<int64_t>(index)..., 0};
		int64_t offset = 0;
		for (size_t d = 0; d < sizeof...(Index); d++) {
			assert(at[d] >= 0 && at[d] < shape_[d]);
			offset = strides_ ? offset + at[d] * strides_[d] : offset * shape_[d] + at[d];
		}
		return first_[offset];
	}

private:
	T *first_;
	dims shape_;
	const int64_t *strides_;
};

// A tensor as the structure before DLPack 1.0, which releases itself; release() gives it to a consumer.
using legacy_tensor = detail::owner<DLManagedTensor, baton_legacy_release>;

// A tensor, in shared memory, on a GPU, or of another library. Ending it releases this reference alone.
class tensor {
public:
	tensor() = default;
	// Takes a structure over, of this or another library.
	explicit tensor(DLManagedTensorVersioned *managed) noexcept : managed_(managed) {}

	explicit operator bool() const noexcept { return managed_ != nullptr; }
	DLManagedTensorVersioned *get() const noexcept { return managed_.get(); }
	// Gives the structure away, as to a consumer of DLPack.
	DLManagedTensorVersioned *release() noexcept { return managed_.release(); }

	// What follows is undefined for a tensor that is none.

	const DLTensor &dl() const noexcept { return managed_->dl_tensor; }
	dims shape() const noexcept { return {dl().shape, static_cast<size_t>(dl().ndim)}; }
	DLDataType dtype() const noexcept { return dl().dtype; }
	DLDevice device() const noexcept { return dl().device; }
	bool read_only() const noexcept { return (managed_->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0; }

	// In elements.
	std::vector<int64_t> strides() const {
		const size_t n = shape().size();
		if (dl().strides)
			return {dl().strides, dl().strides + n};
		std::vector<int64_t> all(n, 1);
		for (size_t d = n; d-- > 1;)
			all[d - 1] = all[d] * shape()[d];
		return all;
	}

	// How many elements.
	size_t size() const noexcept {
		size_t n = 1;
		for (int64_t extent : shape())
			n *= static_cast<size_t>(extent);
		return n;
	}

	// Whether the elements lie one behind the other, the last index fastest.
	bool contiguous() const {
		const auto have = strides();
		int64_t want = 1;
		for (size_t d = have.size(); d-- > 0; want *= shape()[d])
			if (shape()[d] != 1 && have[d] != want && size() != 0)
				return false;
		return true;
	}

	// The first element: the shared memory itself, or an address of the device.
	void *data() const noexcept { return static_cast<char *>(dl().data) + dl().byte_offset; }

	// The elements by their indices. T is const for what is read-only (BATON_READ_ONLY); it is the tensor's type
	// (BATON_INVALID_ARGUMENT), and the processor reads the memory (BATON_UNSUPPORTED).
	template <class T> view<T> as() const { return {elements<T>(), shape(), dl().strides}; }

	// The elements in a row. As by as(); they are contiguous (BATON_INVALID_ARGUMENT).
	template <class T> span<T> flat() const {
		T *first = elements<T>();
		if (!contiguous())
			raise(BATON_INVALID_ARGUMENT, "the elements do not lie in a row: use as<T>(), or make a contiguous copy");
		return {first, size()};
	}

	// Another view of the same storage, byte_offset bytes behind the first element of this one; without strides
	// C-contiguous.
	tensor view_as(DLDataType dtype, const std::vector<int64_t> &shape, uint64_t byte_offset = 0) const {
		return viewed(dtype, shape, nullptr, byte_offset);
	}
	tensor view_as(DLDataType dtype, const std::vector<int64_t> &shape, const std::vector<int64_t> &strides, uint64_t byte_offset) const {
		if (shape.size() != strides.size())
			raise(BATON_INVALID_ARGUMENT, "shape and strides have to be of one length");
		return viewed(dtype, shape, strides.data(), byte_offset);
	}

	// One more reference to the same elements.
	tensor duplicate() const {
		if (!managed_)
			none();
		return view_as(dtype(), shape(), strides(), 0);
	}

	// The same tensor, to be handed on read-only.
	tensor as_read_only() const {
		return tensor(detail::made<DLManagedTensorVersioned>([&](auto out) { return baton_tensor_read_only(get(), out); }));
	}

	// A handle as JSON, which any means carry to any process of this broker. The broker holds the tensor for the
	// time of the lease, or `forever` or `once`.
	std::string handle(nanoseconds lease = std::chrono::seconds(30)) const {
		detail::owner<char, baton_string_free> text(
		    detail::made<char>([&](auto out) { return baton_tensor_handle(get(), lease.count(), out); }));
		return text.get();
	}

	// The structure before DLPack 1.0: BATON_READ_ONLY for a read-only tensor.
	legacy_tensor to_legacy() const {
		return legacy_tensor(detail::made<DLManagedTensor>([&](auto out) { return baton_to_legacy(get(), out); }));
	}
	// The same of a read-only one, too: what the consumer writes is not seen by others.
	legacy_tensor to_legacy_private() const {
		return legacy_tensor(detail::made<DLManagedTensor>([&](auto out) { return baton_to_legacy_private(get(), out); }));
	}

	// On a GPU: work that is enqueued on a stream from now on uses the tensor.
	void use_on(int64_t stream) const { check(baton_tensor_use_on(get(), stream)); }
	// Waits on the processor until the sender's stream has written it.
	void written(nanoseconds wait = forever) const { check(baton_tensor_written(get(), detail::wait_ns(wait))); }
	// Whether streams wait for each other, and not the processor.
	bool ordered_by_streams() const noexcept { return baton_tensor_ordered_by_streams(get()) != 0; }

private:
	[[noreturn]] static void none() {
		raise(BATON_INVALID_ARGUMENT, "the tensor is none: it was moved from, released or never made");
	}

	static std::string name_of(DLDataType t) {
		if (t.code == kDLBool)
			return "bool";
		const char *const kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};
		const std::string name = t.code < std::size(kinds) ? kinds[t.code] : "type " + std::to_string(t.code) + " of ";
		return name + std::to_string(t.bits) + (t.lanes == 1 ? "" : "x" + std::to_string(t.lanes));
	}

	template <class T> T *elements() const {
		if (!managed_)
			none();
		if (const auto wanted = element<std::remove_cv_t<T>>::type; !same(dtype(), wanted))
			raise(BATON_INVALID_ARGUMENT, "a tensor of " + name_of(dtype()) + " is read as " + name_of(wanted) + ": use the type of the tensor");
		if (!std::is_const_v<T> && read_only())
			raise(BATON_READ_ONLY, "the tensor is read-only: look at it as const");
		const DLDeviceType at = device().device_type;
		if (at != kDLCPU && at != kDLCUDAHost && at != kDLROCMHost && at != kDLCUDAManaged)
			raise(BATON_UNSUPPORTED, "the tensor is on a device: its address is data()");
		return static_cast<T *>(data());
	}

	tensor viewed(DLDataType dtype, const std::vector<int64_t> &shape, const int64_t *strides, uint64_t byte_offset) const {
		const auto ndim = static_cast<int32_t>(shape.size());
		return tensor(detail::made<DLManagedTensorVersioned>(
		    [&](auto out) { return baton_tensor_view(get(), dtype, ndim, shape.data(), strides, byte_offset, out); }));
	}

	detail::owner<DLManagedTensorVersioned, baton_tensor_release> managed_;
};

} // namespace baton

#endif
