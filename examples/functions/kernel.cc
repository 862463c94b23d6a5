// The C++ part of examples/functions/train.py: a kernel in tvm-ffi's global table, which knows nothing of Baton.
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace ffi = tvm::ffi;

// The gradient of a softmax regression, written into `gradient`, and the loss. The weights' last row is the bias.
static double gradient(ffi::TensorView weights, ffi::TensorView pictures, ffi::TensorView labels,
                       ffi::TensorView gradient) {
  const int64_t rows = pictures.size(0), pixels = pictures.size(1), classes = weights.size(1);
  if (weights.size(0) != pixels + 1 || gradient.numel() != weights.numel() || labels.numel() != rows) {
    TVM_FFI_THROW(ValueError) << "weights of " << weights.size(0) << " rows for pictures of " << pixels << " pixels";
  }
  const float* w = static_cast<const float*>(weights.data_ptr());
  const float* x = static_cast<const float*>(pictures.data_ptr());
  const int64_t* y = static_cast<const int64_t*>(labels.data_ptr());
  float* g = static_cast<float*>(gradient.data_ptr());
  std::fill(g, g + gradient.numel(), 0.0f);
  std::vector<double> p(classes);
  double loss = 0;
  for (int64_t i = 0; i < rows; ++i, x += pixels) {
    for (int64_t k = 0; k < classes; ++k) {
      p[k] = w[pixels * classes + k];
      for (int64_t j = 0; j < pixels; ++j) p[k] += x[j] * w[j * classes + k];
    }
    const double most = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& v : p) sum += v = std::exp(v - most);
    loss -= std::log(p[y[i]] / sum) / rows;
    for (int64_t k = 0; k < classes; ++k) {
      const float d = static_cast<float>((p[k] / sum - (k == y[i])) / rows);
      for (int64_t j = 0; j < pixels; ++j) g[j * classes + k] += d * x[j];
      g[pixels * classes + k] += d;
    }
  }
  return loss;
}

TVM_FFI_STATIC_INIT_BLOCK() { ffi::reflection::GlobalDef().def("kernel.gradient", gradient); }
