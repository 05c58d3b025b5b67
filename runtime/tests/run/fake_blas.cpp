// cuBLASLt without a GPU; see the header.
#include "fake_library.h"

#include <cmath>
#include <set>

enum { INVALID = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15, BF16 = 14 };

struct Desc {
  int compute, scale, trans_a, trans_b;
  uint32_t epilogue = 1;
  void *bias = nullptr, *more = nullptr;
  i64 more_ld = 0;
  bool has_bias() const { return epilogue & 4; }
  bool has_more() const { return epilogue & 128; }
  // Whether an operand is summed to what `bias` names.
  bool sums_a() const { return epilogue == 256; }
  bool sums_b() const { return epilogue == 512; }
  bool has_sum() const { return sums_a() || sums_b(); }
};
struct Layout {
  int type;
  i64 rows, columns, ld, batch = 1, stride = 0;
  i64 bytes() const { return ((batch - 1) * stride + (columns - 1) * ld + rows) * width(type); }
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t schemes = 7, align[4] = {256, 256, 256, 256};
};
// The 64 bytes that a caller keeps.
struct Algorithm {
  uint64_t magic, scheme, workspace, align, problem, tile, unused[2];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
static const uint64_t MAGIC = 0x66616b65;
static int products;

// Tells one problem from another; addresses have no part in it.
static uint64_t problem(const Desc& d, const Layout* a, const Layout* b, const Layout* c, const Layout* r) {
  uint64_t hash = 1469598103934665603u;
  auto mix = [&](uint64_t x) { hash = (hash ^ x) * 1099511628211u; };
  for (uint64_t x : {(uint64_t)d.compute, (uint64_t)d.trans_a, (uint64_t)d.trans_b, (uint64_t)d.epilogue}) mix(x);
  for (const Layout* l : {a, b, c, r})
    for (i64 x : {(i64)l->type, l->rows, l->columns, l->ld, l->batch, l->stride}) mix((uint64_t)x);
  return hash;
}

// GELU by the hyperbolic tangent, and its derivative.
static float gelu(float x) { return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }
static float gelu_slope(float x) {
  float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

static bool is_product(const Desc& d, const Layout* a, const Layout* b, const Layout* c, const Layout* r) {
  i64 m = d.trans_a ? a->columns : a->rows, k = d.trans_a ? a->rows : a->columns;
  i64 inner = d.trans_b ? b->columns : b->rows, n = d.trans_b ? b->rows : b->columns;
  bool fits = inner == k && r->rows == m && r->columns == n && c->rows == m && c->columns == n;
  for (const Layout* l : {a, b, c, r}) {
    fits = fits && l->type == r->type && l->batch == r->batch && l->rows > 0 && l->columns > 0 && l->ld >= l->rows;
  }
  return fits && (r->batch == 1 || r->stride >= r->ld * r->columns) && d.scale == 0;
}

// What a way to add up parts takes of workspace.
static uint64_t takes(uint64_t scheme, const Layout& result) {
  i64 elements = result.rows * result.columns * result.batch;
  return scheme == 4 ? (uint64_t)(2 * elements * width(result.type)) : scheme == 2 ? (uint64_t)(2 * elements * 4) : scheme == 1 ? 1024 : 0;
}

extern "C" {
size_t cublasLtGetVersion() { return fails("old library") ? 111103 : fails("other version") ? 130101 : 130100; }
const char* cublasLtGetStatusName(int status) {
  return status == EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED" : "CUBLAS_STATUS_INVALID_VALUE";
}
const char* cublasLtGetStatusString(int) { return "as FAKE_LIBRARY asks"; }
int cublasLtCreate(void** handle) {
  MAY_FAIL;
  return make<int>(handle, LIBRARY), 0;
}
int cublasLtDestroy(void* handle) { return drop<int>(handle, LIBRARY, INVALID); }
int cublasLtMatmulDescCreate(void** desc, int compute, int scale) {
  MAY_FAIL;
  make<Desc>(desc, DESC);
  ((Desc*)*desc)->compute = compute;
  ((Desc*)*desc)->scale = scale;
  return 0;
}
int cublasLtMatmulDescDestroy(void* desc) { return drop<Desc>(desc, DESC, INVALID); }
int cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
  MAY_FAIL;
  REQUIRE(is(handle, DESC));
  Desc& desc = *(Desc*)handle;
  std::map<int, std::pair<void*, size_t>> fields = {
      {3, {&desc.trans_a, 4}}, {4, {&desc.trans_b, 4}}, {7, {&desc.epilogue, 4}}, {8, {&desc.bias, 8}},
      {11, {&desc.more, 8}}, {12, {&desc.more_ld, 8}}};
  REQUIRE(fields.count(attribute) == 1 && fields[attribute].second == bytes);
  memcpy(fields[attribute].first, value, bytes);
  return 0;
}
int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns, i64 ld) {
  MAY_FAIL;
  REQUIRE(type == 0 || type == 2 || type == BF16);
  make<Layout>(layout, LAYOUT);
  *(Layout*)*layout = Layout{type, (i64)rows, (i64)columns, ld};
  return 0;
}
int cublasLtMatrixLayoutDestroy(void* layout) { return drop<Layout>(layout, LAYOUT, INVALID); }
int cublasLtMatrixLayoutSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
  MAY_FAIL;
  REQUIRE(is(handle, LAYOUT));
  Layout& layout = *(Layout*)handle;
  REQUIRE((attribute == 5 && bytes == 4) || (attribute == 6 && bytes == 8));
  if (attribute == 5) layout.batch = *(const int32_t*)value;
  else layout.stride = *(const i64*)value;
  return 0;
}
int cublasLtMatmulPreferenceCreate(void** preference) {
  MAY_FAIL;
  return make<Preference>(preference, PREFERENCE), 0;
}
int cublasLtMatmulPreferenceDestroy(void* preference) { return drop<Preference>(preference, PREFERENCE, INVALID); }
int cublasLtMatmulPreferenceSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
  MAY_FAIL;
  REQUIRE(is(handle, PREFERENCE));
  Preference& preference = *(Preference*)handle;
  REQUIRE(bytes == (attribute == 1 ? 8 : 4) && (attribute == 1 || attribute == 3 || (attribute >= 5 && attribute <= 8)));
  if (attribute == 1) preference.workspace = *(const uint64_t*)value;
  else (attribute == 3 ? preference.schemes : preference.align[attribute - 5]) = *(const uint32_t*)value;
  return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void* handle, void* d, void* a, void* b, void* c, void* r, void* p, int wanted,
                                   Heuristic* found, int* count) {
  MAY_FAIL;
  REQUIRE(is(handle, LIBRARY) && is(d, DESC) && is(p, PREFERENCE));
  REQUIRE(is(a, LAYOUT) && is(b, LAYOUT) && is(c, LAYOUT) && is(r, LAYOUT));
  const Desc& desc = *(Desc*)d;
  const Preference& preference = *(Preference*)p;
  const Layout& result = *(Layout*)r;
  REQUIRE(is_product(desc, (Layout*)a, (Layout*)b, (Layout*)c, &result));
  REQUIRE(desc.compute == 68 || ((desc.compute == 77 || desc.compute == 75) && result.type == 0));
  REQUIRE(std::set<uint32_t>({1, 2, 4, 6, 32, 36, 160, 164, 192, 256, 512}).count(desc.epilogue) == 1);
  REQUIRE(!(desc.has_bias() || desc.has_sum()) || desc.bias != nullptr);
  REQUIRE(!(desc.sums_a() && desc.trans_a) && !(desc.sums_b() && !desc.trans_b));
  REQUIRE(!desc.has_more() || (desc.more != nullptr && desc.more_ld >= result.rows && desc.more_ld % 8 == 0));
  *count = 0;
  // An odd thing that the library does not do.
  if (fails("unsupported") || result.rows == 13) return NOT_SUPPORTED;
  if (desc.has_sum() && (fails("no sums") || result.rows == 11)) return NOT_SUPPORTED;
  uint32_t align = ~0u;
  for (uint32_t each : preference.align) align = std::min(align, each);
  uint64_t hash = problem(desc, (Layout*)a, (Layout*)b, (Layout*)c, &result);
  auto offer = [&](uint64_t scheme, uint64_t tile, int state) {
    uint64_t workspace = takes(scheme, result);
    if ((scheme & preference.schemes) != scheme || workspace > preference.workspace || *count == wanted) return;
    found[(*count)++] = Heuristic{{MAGIC, scheme, workspace, align, hash, tile, {}}, workspace, state, 1, {}};
  };
  // The best first, as the library thinks. What cannot run says so in its state alone.
  offer(0, 0, NOT_SUPPORTED);
  offer(4, 0, 0);
  offer(1, 0, 0);
  offer(2, 0, 0);
  offer(0, 0, 0);
  offer(0, 1, 0);
  return 0;
}
int cublasLtMatmul(void* handle, void* d, const float* alpha, const void* a, void* ad, const void* b, void* bd,
                   const float* beta, const void* c, void* cd, void* r, void* rd, const Algorithm* algorithm,
                   void* workspace, size_t bytes, void* stream) {
  MAY_FAIL;
  if (fails("full library")) return 3;
  REQUIRE(is(handle, LIBRARY) && is(d, DESC) && is(ad, LAYOUT) && is(bd, LAYOUT) && is(cd, LAYOUT) && is(rd, LAYOUT));
  REQUIRE(is_compute(stream));
  const Desc desc = *(Desc*)d;
  const Layout A = *(Layout*)ad, B = *(Layout*)bd, C = *(Layout*)cd, R = *(Layout*)rd;
  REQUIRE(algorithm->magic == MAGIC && algorithm->problem == problem(desc, &A, &B, &C, &R));
  i64 align = (i64)algorithm->align;
  REQUIRE(within(a, A.bytes(), align) && within(b, B.bytes(), align));
  REQUIRE(within(c, C.bytes(), align) && within(r, R.bytes(), align));
  REQUIRE(apart(a, A.bytes(), r, R.bytes()) && apart(b, B.bytes(), r, R.bytes()));
  REQUIRE(c == r || apart(c, C.bytes(), r, R.bytes()));
  REQUIRE(bytes >= algorithm->workspace && (bytes == 0 || within(workspace, (i64)bytes, 256)));
  for (auto used : {std::make_pair(a, A.bytes()), std::make_pair(b, B.bytes()), std::make_pair(c, C.bytes())}) {
    REQUIRE(bytes == 0 || apart(workspace, (i64)bytes, used.first, used.second));
  }
  REQUIRE(!desc.has_bias() || within(desc.bias, R.rows * width(R.type), align));
  i64 sums = (desc.sums_a() ? R.rows : R.columns) * width(R.type);
  REQUIRE(!desc.has_sum() || (within(desc.bias, sums, align) && apart(desc.bias, sums, r, R.bytes()) &&
                              apart(desc.bias, sums, a, A.bytes()) && apart(desc.bias, sums, b, B.bytes())));
  i64 more = desc.more_ld * R.columns * width(R.type);
  REQUIRE(!desc.has_more() || (within(desc.more, more, align) && apart(desc.more, more, r, R.bytes())));
  float scale = *alpha, keep = *beta;
  uint64_t scheme = algorithm->scheme, tile = algorithm->tile;
  int calls = ++products;
  note("cublasLtMatmul scheme=" + std::to_string(scheme) + " compute=" + std::to_string(desc.compute) +
       " workspace=" + std::to_string(bytes) + " tile=" + std::to_string(tile) + " batch=" + std::to_string(R.batch) +
       " epilogue=" + std::to_string(desc.epilogue));
  issue(stream, [=] {
    if (desc.has_sum() && fails("slow sums")) takes_ms(5000);
    if (fails("slow products")) takes_ms(50000);
    takes_ms(scheme == 4 ? 200 : scheme == 1 ? 300 : scheme == 2 ? 3000 : tile == 0 ? 2000 : 1000);
    if (bytes > 0) memset(workspace, 0xff, bytes);
    i64 k = desc.trans_a ? A.rows : A.columns;
    Order order = scheme == 1 ? ANY : scheme == 0 ? FORWARD : HALVES;
    for (i64 j = 0; desc.has_sum() && j < (desc.sums_a() ? R.rows : R.columns); ++j) {
      const Layout& X = desc.sums_a() ? A : B;
      put(R.type, desc.bias, j,
          sum(k, order, calls, [&](i64 t) { return get(X.type, desc.sums_a() ? a : b, j + t * X.ld); }));
    }
    std::vector<float> results((size_t)(R.rows * R.columns * R.batch));
    for (i64 z = 0, at = 0; z < R.batch; ++z)
      for (i64 j = 0; j < R.columns; ++j)
        for (i64 i = 0; i < R.rows; ++i, ++at) {
          float total = sum(k, order, calls, [&](i64 t) {
            i64 left = desc.trans_a ? t + i * A.ld : i + t * A.ld, right = desc.trans_b ? j + t * B.ld : t + j * B.ld;
            int lost = desc.compute == 77 ? 13 : desc.compute == 75 ? 16 : 0;
            return coarse(get(A.type, a, z * A.stride + left), lost) * coarse(get(B.type, b, z * B.stride + right), lost);
          });
          float value = scale * total;
          if (keep != 0) value += keep * get(C.type, c, z * C.stride + i + j * C.ld);
          if (desc.has_bias()) value += get(R.type, desc.bias, i);
          i64 other = i + j * desc.more_ld;
          if (desc.epilogue == 192) value *= gelu_slope(get(R.type, desc.more, other));
          else if (desc.has_more()) put(R.type, desc.more, other, value);
          if (desc.epilogue & 2) value = value > 0 ? value : 0;
          if (desc.epilogue & 32) value = gelu(value);
          results[(size_t)at] = value;
        }
    for (i64 z = 0, at = 0; z < R.batch; ++z)
      for (i64 j = 0; j < R.columns; ++j)
        for (i64 i = 0; i < R.rows; ++i, ++at) put(R.type, r, z * R.stride + i + j * R.ld, results[(size_t)at]);
  });
  return 0;
}
}
