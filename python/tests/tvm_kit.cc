// What the tests of tvm-ffi have in C++, in its global table and as functions of a module.
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

namespace ffi = tvm::ffi;

static float* elements(ffi::TensorView x) { return static_cast<float*>(x.data_ptr()); }

// Functions that are served.

static void add_one(ffi::TensorView x) {
  for (int64_t i = 0; i < x.numel(); ++i) elements(x)[i] += 1;
}

static double sum(ffi::TensorView x) {
  double s = 0;
  for (int64_t i = 0; i < x.numel(); ++i) s += elements(x)[i];
  return s;
}

static ffi::Tensor same(ffi::Tensor x) { return x; }

static ffi::Tensor doubled(ffi::TensorView x) {
  ffi::Tensor made = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, x.shape(), x.dtype(), x.device());
  for (int64_t i = 0; i < x.numel(); ++i) static_cast<float*>(made.data_ptr())[i] = 2 * elements(x)[i];
  return made;
}

static ffi::Any echo(ffi::AnyView v) { return ffi::Any(v); }

static ffi::Any fail(ffi::String kind) {
  if (kind == "ValueError") TVM_FFI_THROW(ValueError) << "bad value";
  TVM_FFI_THROW(OutOfStock) << "no more " << kind;
  return ffi::Any();
}

static ffi::Map<ffi::String, ffi::Any> many(ffi::Optional<ffi::Array<ffi::Any>> all, DLDataType t, DLDevice d,
                                            bool b, ffi::Bytes y) {
  return {{"all", all}, {"type", t}, {"device", d}, {"b", b}, {"y", y}};
}

static int64_t next(int64_t n) { return n + 1; }
static ffi::Any nothing() { return ffi::Any(); }
static void* address() { return const_cast<char*>("x"); }
static ffi::Function given(ffi::Function f) { return f; }

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("kit.add_one", add_one)
      .def("kit.sum", sum)
      .def("kit.same", same)
      .def("kit.doubled", doubled)
      .def_packed("kit.echo", [](ffi::PackedArgs args, ffi::Any* ret) { *ret = echo(args[0]); })
      .def("kit.fail", fail)
      .def("kit.many", many)
      .def("kit.next", next)
      .def("kit.nothing", nothing)
      .def("kit.address", address)
      .def("kit.given", given);
}

// Functions that call one of the global table.

static ffi::Function global(ffi::String name) { return ffi::Function::GetGlobalRequired(name); }

ffi::Any Call(ffi::String name, ffi::AnyView v) { return global(name)(v); }

// The tensor is lent: a pointer to its description, and no reference.
ffi::Any CallLent(ffi::String name, ffi::TensorView x) { return global(name)(x); }

ffi::Any CallLentDeep(ffi::String name, ffi::Tensor x) { return global(name)(ffi::Array<ffi::Any>({x, 7})); }

ffi::Any CallPointer(ffi::String name) { return global(name)(static_cast<void*>(nullptr)); }

ffi::Any CallTypes(ffi::String name) { return global(name)(DLDataType{kDLFloat, 16, 1}, DLDevice{kDLCPU, 0}); }

// Memory of this program's own, on its stack.
double CallStack(ffi::String name, bool backwards) {
  float data[6] = {0, 1, 2, 3, 4, 5};
  int64_t shape[2] = {2, 3}, strides[2] = {1, 2};
  DLTensor t{data, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, backwards ? strides : nullptr, 0};
  ffi::Any got = global(name)(&t);
  for (int i = 0; i < 6; ++i) if (data[i] != i) return -1;
  return got.cast<double>();
}

ffi::String Caught(ffi::String name, ffi::AnyView v) {
  try {
    global(name)(v);
  } catch (const ffi::Error& e) {
    return std::string(e.kind()) + "\n" + std::string(e.message()) + "\n" + std::string(e.backtrace());
  }
  return "";
}
