// cuDNN without a GPU; see the header.
#include "fake_library.h"

enum { INVALID = 2000, NOT_SUPPORTED = 3002, EXECUTION_FAILED = 5000, BF16 = 9 };
enum Math { DEFAULT_MATH, TENSOR_OP, ALLOW_CONVERSION, FMA };
enum Pass { FORWARD_PASS, DATA_PASS, FILTER_PASS };

struct Dnn {
  void* stream = nullptr;
};
// A tensor, or a filter: outer extent, channels, height, width.
struct Tensor {
  int type = -1, d[4];
  i64 size() const { return (i64)d[0] * d[1] * d[2] * d[3]; }
  i64 bytes() const { return size() * width(type); }
};
struct Window {
  int pad[2], stride[2], dilation[2], mode = -1, compute, groups = 1, math = DEFAULT_MATH;
};
struct Offer {
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
};
struct Activation {
  int mode = -1;
};
static int convolutions;

static bool is_convolution(const Tensor& x, const Tensor& w, const Tensor& y, const Window& c) {
  bool fits = x.type == w.type && x.type == y.type && c.mode == 1 && c.compute == 0 && x.d[0] == y.d[0];
  fits = fits && x.d[1] == w.d[1] * c.groups && w.d[0] % c.groups == 0 && y.d[1] == w.d[0];
  for (int i = 0; i < 2; ++i) {
    int taps = (w.d[2 + i] - 1) * c.dilation[i] + 1;
    fits = fits && y.d[2 + i] == 1 + (x.d[2 + i] + 2 * c.pad[i] - taps) / c.stride[i];
  }
  return fits;
}

// What an algorithm takes; none where it cannot. Tensor cores want the tensors in another order of axes.
static bool takes(Pass pass, int algorithm, int math, const Tensor& x, const Tensor& w, const Tensor& y, const Window& c,
                  size_t* bytes) {
  size_t turned = math == FMA ? 0 : (size_t)(x.bytes() + w.bytes() + y.bytes());
  bool is_small = w.d[2] == 3 && w.d[3] == 3 && c.stride[0] * c.stride[1] * c.dilation[0] * c.dilation[1] == 1;
  // Transforms: non-fused Winograd.
  if (algorithm == (pass == FORWARD_PASS ? 7 : 5)) return *bytes = (size_t)(x.bytes() + w.bytes()) + turned, is_small && c.groups == 1;
  if (algorithm == 0) return *bytes = 0, math == FMA || pass != FORWARD_PASS;
  if (algorithm == 1) return *bytes = (size_t)(pass == FILTER_PASS ? w.size() * 4 : y.d[2] * y.d[3] * 4) + turned, true;
  return false;
}

// How long an algorithm takes: of the forward pass those that are offered first differ by one per cent.
static double lasts_ms(Pass pass, int algorithm) {
  if (pass == FORWARD_PASS) return algorithm == 7 ? 1000 : algorithm == 0 ? 990 : 2000;
  return algorithm == 5 ? 3000 : algorithm == 0 ? 100 : 2000;
}

static int offers(Pass pass, void* handle, const void* x, const void* w, const void* c, const void* y, int wanted,
                  int* count, Offer* found) {
  REQUIRE(is(handle, LIBRARY) && is(x, TENSOR) && is(w, FILTER) && is(c, WINDOW) && is(y, TENSOR));
  const Window& window = *(Window*)c;
  REQUIRE(is_convolution(*(Tensor*)x, *(Tensor*)w, *(Tensor*)y, window));
  *count = 0;
  // An odd thing that the library does not do.
  if (fails("unsupported") || window.dilation[0] == 3) return NOT_SUPPORTED;
  auto offer = [&](int algorithm, int math, int determinism) {
    size_t bytes = 0;
    bool can = takes(pass, algorithm, math, *(Tensor*)x, *(Tensor*)w, *(Tensor*)y, window, &bytes);
    if (*count < wanted) found[(*count)++] = Offer{can ? algorithm : -1, can ? 0 : NOT_SUPPORTED, 1, bytes, determinism, math, {}};
  };
  int fused = pass == FORWARD_PASS ? 7 : 5;
  bool is_ordered = pass == FORWARD_PASS;
  std::vector<int> maths = {FMA};
  if (window.math != FMA) maths = {ALLOW_CONVERSION, window.math, FMA};
  // The best first, as the library thinks; the first gradients' algorithm adds up in any order.
  for (int math : maths) offer(fused, math, 1);
  for (int math : maths) {
    offer(0, math, is_ordered);
    offer(1, math, 1);
  }
  return 0;
}

static int convolve(Pass pass, const char* name, Dnn& dnn, const float* alpha, const float* beta, const Tensor x,
                    const void* xs, const Tensor w, const void* ws, const Tensor y, const void* ys, const Window c,
                    int algorithm, void* workspace, size_t bytes) {
  size_t needs = 0;
  REQUIRE(is_compute(dnn.stream) && *alpha == 1 && *beta == 0 && is_convolution(x, w, y, c));
  if (!takes(pass, algorithm, c.math, x, w, y, c, &needs)) return NOT_SUPPORTED;
  REQUIRE(within(xs, x.bytes(), 16) && within(ws, w.bytes(), 16) && within(ys, y.bytes(), 16));
  REQUIRE(bytes >= needs && (bytes == 0 || within(workspace, (i64)bytes, 256)));
  REQUIRE(apart(xs, x.bytes(), ys, y.bytes()) && apart(ws, w.bytes(), ys, y.bytes()) && apart(xs, x.bytes(), ws, w.bytes()));
  REQUIRE(bytes == 0 || (apart(workspace, (i64)bytes, xs, x.bytes()) && apart(workspace, (i64)bytes, ws, w.bytes())));
  note(std::string(name) + " algorithm=" + std::to_string(algorithm) + " math=" + std::to_string(c.math) +
       " workspace=" + std::to_string(bytes) + " groups=" + std::to_string(c.groups));
  int calls = ++convolutions;
  issue(dnn.stream, [=] {
    takes_ms(lasts_ms(pass, algorithm) + (fails("slow convolutions") ? 50000 : 0));
    if (bytes > 0) memset(workspace, 0xff, bytes);
    int lost = x.type == 0 && c.math != FMA ? 13 : 0;
    i64 filters = w.d[0] / c.groups, channels = w.d[1], kh = w.d[2], kw = w.d[3];
    auto X = [&](i64 n, i64 g, i64 ch, i64 row, i64 col) {
      if (row < 0 || col < 0 || row >= x.d[2] || col >= x.d[3]) return 0.0f;
      return coarse(get(x.type, xs, ((n * x.d[1] + g * channels + ch) * x.d[2] + row) * x.d[3] + col), lost);
    };
    auto W = [&](i64 f, i64 ch, i64 a, i64 b) { return coarse(get(w.type, ws, ((f * channels + ch) * kh + a) * kw + b), lost); };
    auto Y = [&](i64 n, i64 f, i64 row, i64 col) {
      return coarse(get(y.type, ys, ((n * y.d[1] + f) * y.d[2] + row) * y.d[3] + col), lost);
    };
    Order order = algorithm == 1 ? HALVES : algorithm == 0 && pass != FORWARD_PASS ? ANY : FORWARD;
    std::vector<float> results;
    const Tensor& to = pass == FORWARD_PASS ? y : pass == DATA_PASS ? x : w;
    for (i64 at = 0; at < to.size(); ++at) {
      i64 col = at % to.d[3], row = at / to.d[3] % to.d[2], second = at / to.d[3] / to.d[2] % to.d[1];
      i64 first = at / to.d[3] / to.d[2] / to.d[1], taps = kh * kw;
      if (pass == FORWARD_PASS) {
        results.push_back(sum(channels * taps, order, calls, [&](i64 t) {
          i64 ch = t / taps, a = t % taps / kw, b = t % kw;
          return W(second, ch, a, b) * X(first, second / filters, ch, row * c.stride[0] - c.pad[0] + a * c.dilation[0],
                                         col * c.stride[1] - c.pad[1] + b * c.dilation[1]);
        }));
      } else if (pass == DATA_PASS) {
        i64 group = second / channels;
        results.push_back(sum(filters * taps, order, calls, [&](i64 t) {
          i64 f = group * filters + t / taps, a = t % taps / kw, b = t % kw;
          i64 i = row + c.pad[0] - a * c.dilation[0], j = col + c.pad[1] - b * c.dilation[1];
          if (i < 0 || j < 0 || i % c.stride[0] != 0 || j % c.stride[1] != 0) return 0.0f;
          i /= c.stride[0], j /= c.stride[1];
          return i < y.d[2] && j < y.d[3] ? W(f, second % channels, a, b) * Y(first, f, i, j) : 0.0f;
        }));
      } else {
        i64 pixels = (i64)y.d[2] * y.d[3];
        results.push_back(sum(y.d[0] * pixels, order, calls, [&](i64 t) {
          i64 n = t / pixels, i = t % pixels / y.d[3], j = t % y.d[3];
          return Y(n, first, i, j) * X(n, first / filters, second, i * c.stride[0] - c.pad[0] + row * c.dilation[0],
                                       j * c.stride[1] - c.pad[1] + col * c.dilation[1]);
        }));
      }
    }
    void* target = (void*)(pass == FORWARD_PASS ? ys : pass == DATA_PASS ? xs : ws);
    for (i64 at = 0; at < to.size(); ++at) put(to.type, target, at, results[(size_t)at]);
  });
  return 0;
}

// The library's file only passes calls on, to parts that it opens when it first needs them.
static void dispatch(const char* name) {
  for (const char* part : {"libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_cnn.so.9"}) {
    if (dlopen(part, RTLD_NOW) != nullptr) continue;
    fprintf(stderr, "Invalid handle. Cannot load symbol %s\n", name);
    abort();
  }
}

extern "C" {
size_t cudnnGetVersion() {
  dispatch(__func__);
  return fails("old library") ? 8907 : fails("other version") ? 92000 : 91900;
}
const char* cudnnGetErrorString(int status) {
  return status == EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED" : "CUDNN_STATUS_BAD_PARAM";
}
void cudnnGetLastErrorString(char* text, size_t room) { snprintf(text, room, "as FAKE_LIBRARY asks"); }
int cudnnCreate(void** handle) {
  dispatch(__func__);
  MAY_FAIL;
  return make<Dnn>(handle, LIBRARY), 0;
}
int cudnnDestroy(void* handle) { return drop<Dnn>(handle, LIBRARY, INVALID); }
int cudnnSetStream(void* handle, void* stream) {
  MAY_FAIL;
  REQUIRE(is(handle, LIBRARY) && is_compute(stream));
  ((Dnn*)handle)->stream = stream;
  return 0;
}
int cudnnCreateTensorDescriptor(void** desc) {
  MAY_FAIL;
  return make<Tensor>(desc, TENSOR), 0;
}
int cudnnDestroyTensorDescriptor(void* desc) { return drop<Tensor>(desc, TENSOR, INVALID); }
int cudnnSetTensor4dDescriptor(void* desc, int format, int type, int n, int c, int h, int w) {
  MAY_FAIL;
  REQUIRE(is(desc, TENSOR) && format == 0 && (type == 0 || type == 2 || type == BF16) && n > 0 && c > 0 && h > 0 && w > 0);
  *(Tensor*)desc = Tensor{type, {n, c, h, w}};
  return 0;
}
int cudnnCreateFilterDescriptor(void** desc) {
  MAY_FAIL;
  return make<Tensor>(desc, FILTER), 0;
}
int cudnnDestroyFilterDescriptor(void* desc) { return drop<Tensor>(desc, FILTER, INVALID); }
int cudnnSetFilter4dDescriptor(void* desc, int type, int format, int k, int c, int h, int w) {
  MAY_FAIL;
  REQUIRE(is(desc, FILTER) && format == 0 && (type == 0 || type == 2 || type == BF16) && k > 0 && c > 0 && h > 0 && w > 0);
  *(Tensor*)desc = Tensor{type, {k, c, h, w}};
  return 0;
}
int cudnnCreateConvolutionDescriptor(void** desc) {
  MAY_FAIL;
  return make<Window>(desc, WINDOW), 0;
}
int cudnnDestroyConvolutionDescriptor(void* desc) { return drop<Window>(desc, WINDOW, INVALID); }
int cudnnSetConvolution2dDescriptor(void* desc, int ph, int pw, int sh, int sw, int dh, int dw, int mode, int compute) {
  MAY_FAIL;
  REQUIRE(is(desc, WINDOW) && ph >= 0 && pw >= 0 && sh > 0 && sw > 0 && dh > 0 && dw > 0);
  *(Window*)desc = Window{{ph, pw}, {sh, sw}, {dh, dw}, mode, compute};
  return 0;
}
int cudnnSetConvolutionGroupCount(void* desc, int groups) {
  MAY_FAIL;
  REQUIRE(is(desc, WINDOW) && groups > 0);
  return ((Window*)desc)->groups = groups, 0;
}
int cudnnSetConvolutionMathType(void* desc, int math) {
  MAY_FAIL;
  REQUIRE(is(desc, WINDOW) && math >= 0 && math <= FMA);
  return ((Window*)desc)->math = math, 0;
}
int cudnnGetConvolutionForwardAlgorithm_v7(void* handle, void* x, void* w, void* c, void* y, int n, int* count, Offer* found) {
  MAY_FAIL;
  return offers(FORWARD_PASS, handle, x, w, c, y, n, count, found);
}
int cudnnGetConvolutionBackwardDataAlgorithm_v7(void* handle, void* w, void* y, void* c, void* x, int n, int* count,
                                                Offer* found) {
  MAY_FAIL;
  return offers(DATA_PASS, handle, x, w, c, y, n, count, found);
}
int cudnnGetConvolutionBackwardFilterAlgorithm_v7(void* handle, void* x, void* y, void* c, void* w, int n, int* count,
                                                  Offer* found) {
  MAY_FAIL;
  return offers(FILTER_PASS, handle, x, w, c, y, n, count, found);
}
static int needs(Pass pass, void* handle, void* x, void* w, void* c, void* y, int algorithm, size_t* bytes) {
  REQUIRE(is(handle, LIBRARY) && is(x, TENSOR) && is(w, FILTER) && is(c, WINDOW) && is(y, TENSOR));
  const Window& window = *(Window*)c;
  return takes(pass, algorithm, window.math, *(Tensor*)x, *(Tensor*)w, *(Tensor*)y, window, bytes) ? 0 : NOT_SUPPORTED;
}
int cudnnGetConvolutionForwardWorkspaceSize(void* handle, void* x, void* w, void* c, void* y, int algorithm, size_t* bytes) {
  MAY_FAIL;
  return needs(FORWARD_PASS, handle, x, w, c, y, algorithm, bytes);
}
int cudnnGetConvolutionBackwardDataWorkspaceSize(void* handle, void* w, void* y, void* c, void* x, int algorithm,
                                                 size_t* bytes) {
  MAY_FAIL;
  return needs(DATA_PASS, handle, x, w, c, y, algorithm, bytes);
}
int cudnnGetConvolutionBackwardFilterWorkspaceSize(void* handle, void* x, void* y, void* c, void* w, int algorithm,
                                                   size_t* bytes) {
  MAY_FAIL;
  return needs(FILTER_PASS, handle, x, w, c, y, algorithm, bytes);
}
int cudnnConvolutionForward(void* handle, const float* alpha, void* xd, const void* x, void* wd, const void* w, void* c,
                            int algorithm, void* workspace, size_t bytes, const float* beta, void* yd, void* y) {
  MAY_FAIL;
  if (fails("full library")) return 4004;
  REQUIRE(is(handle, LIBRARY) && is(xd, TENSOR) && is(wd, FILTER) && is(c, WINDOW) && is(yd, TENSOR));
  return convolve(FORWARD_PASS, __func__, *(Dnn*)handle, alpha, beta, *(Tensor*)xd, x, *(Tensor*)wd, w, *(Tensor*)yd, y,
                  *(Window*)c, algorithm, workspace, bytes);
}
int cudnnConvolutionBackwardData(void* handle, const float* alpha, void* wd, const void* w, void* yd, const void* y, void* c,
                                 int algorithm, void* workspace, size_t bytes, const float* beta, void* xd, void* x) {
  MAY_FAIL;
  REQUIRE(is(handle, LIBRARY) && is(xd, TENSOR) && is(wd, FILTER) && is(c, WINDOW) && is(yd, TENSOR));
  return convolve(DATA_PASS, __func__, *(Dnn*)handle, alpha, beta, *(Tensor*)xd, x, *(Tensor*)wd, w, *(Tensor*)yd, y,
                  *(Window*)c, algorithm, workspace, bytes);
}
int cudnnConvolutionBackwardFilter(void* handle, const float* alpha, void* xd, const void* x, void* yd, const void* y,
                                   void* c, int algorithm, void* workspace, size_t bytes, const float* beta, void* wd,
                                   void* w) {
  MAY_FAIL;
  REQUIRE(is(handle, LIBRARY) && is(xd, TENSOR) && is(wd, FILTER) && is(c, WINDOW) && is(yd, TENSOR));
  return convolve(FILTER_PASS, __func__, *(Dnn*)handle, alpha, beta, *(Tensor*)xd, x, *(Tensor*)wd, w, *(Tensor*)yd, y,
                  *(Window*)c, algorithm, workspace, bytes);
}
int cudnnCreateActivationDescriptor(void** desc) {
  MAY_FAIL;
  return make<Activation>(desc, ACTIVATION), 0;
}
int cudnnDestroyActivationDescriptor(void* desc) { return drop<Activation>(desc, ACTIVATION, INVALID); }
int cudnnSetActivationDescriptor(void* desc, int mode, int nan, double) {
  MAY_FAIL;
  REQUIRE(is(desc, ACTIVATION) && mode == 1 && nan == 1);
  return ((Activation*)desc)->mode = mode, 0;
}
int cudnnConvolutionBiasActivationForward(void* handle, const float* alpha, void* xd, const void* x, void* wd,
                                          const void* w, void* c, int algorithm, void* workspace, size_t bytes,
                                          const float* beta, void* zd, const void* z, void* bd, const void* b, void* ad,
                                          void* yd, void* y) {
  MAY_FAIL;
  // An algorithm of the plain convolution that this function does not have.
  if (fails("no fusion")) return NOT_SUPPORTED;
  REQUIRE(is(handle, LIBRARY) && is(xd, TENSOR) && is(wd, FILTER) && is(c, WINDOW) && is(yd, TENSOR));
  REQUIRE(is(bd, TENSOR) && is(ad, ACTIVATION) && ((Activation*)ad)->mode == 1 && zd == yd && z == y);
  const Tensor Y = *(Tensor*)yd, B = *(Tensor*)bd;
  REQUIRE(B.type == Y.type && B.d[1] == Y.d[1] && B.size() == B.d[1] && within(b, B.bytes(), 16));
  int status = convolve(FORWARD_PASS, __func__, *(Dnn*)handle, alpha, beta, *(Tensor*)xd, x, *(Tensor*)wd, w, Y, y,
                        *(Window*)c, algorithm, workspace, bytes);
  if (status != 0) return status;
  issue(((Dnn*)handle)->stream, [=] {
    i64 plane = (i64)Y.d[2] * Y.d[3];
    for (i64 at = 0; at < Y.size(); ++at) {
      float value = get(Y.type, y, at) + get(B.type, b, at / plane % B.d[1]);
      put(Y.type, y, at, value < 0 ? 0 : value);
    }
  });
  return 0;
}
int cudnnAddTensor(void* handle, const float* alpha, void* ad, const void* a, const float* beta, void* cd, void* c) {
  MAY_FAIL;
  REQUIRE(is(handle, LIBRARY) && is(ad, TENSOR) && is(cd, TENSOR) && *alpha == 1 && *beta == 1);
  const Tensor A = *(Tensor*)ad, C = *(Tensor*)cd;
  // Extents of one broadcast.
  for (int i = 0; i < 4; ++i) REQUIRE(A.d[i] == 1 || A.d[i] == C.d[i]);
  REQUIRE(A.type == C.type && within(a, A.bytes(), 16) && within(c, C.bytes(), 16) && apart(a, A.bytes(), c, C.bytes()));
  issue(((Dnn*)handle)->stream, [=] {
    for (i64 at = 0; at < C.size(); ++at) {
      i64 rest = at, from = 0, step = 1;
      for (int i = 3; i >= 0; --i) {
        if (A.d[i] > 1) from += rest % C.d[i] * step;
        step *= A.d[i];
        rest /= C.d[i];
      }
      put(C.type, c, at, get(A.type, a, from) + get(C.type, c, at));
    }
  });
  return 0;
}
int cudnnActivationForward(void* handle, void* ad, const float* alpha, void* xd, const void* x, const float* beta, void* yd,
                           void* y) {
  MAY_FAIL;
  REQUIRE(is(handle, LIBRARY) && is(ad, ACTIVATION) && is(xd, TENSOR) && xd == yd && x == y && *alpha == 1 && *beta == 0);
  const Tensor Y = *(Tensor*)yd;
  REQUIRE(within(y, Y.bytes(), 16));
  note(__func__);
  issue(((Dnn*)handle)->stream, [=] {
    for (i64 at = 0; at < Y.size(); ++at) {
      float value = get(Y.type, y, at);
      put(Y.type, y, at, value < 0 ? 0 : value);
    }
  });
  return 0;
}
}
