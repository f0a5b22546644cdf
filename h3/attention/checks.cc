#include "h3/attention/checks.h"

#include <algorithm>
#include <sstream>

#include "h3/common/error.h"

namespace h3 {
namespace {

[[noreturn]] void refuse(std::string message, std::string hint) {
  throw Error(ErrorCode::kInvalidArgument, std::move(message), std::move(hint));
}

// The same checks over the sizes of real tensors, where every call pays for them, and over those of
// a tracer: what is not known there becomes an assertion of the traced program.
struct Known {
  static int64_t size(const at::Tensor& t, int64_t i) { return t.sizes()[i]; }
  static int64_t stride(const at::Tensor& t, int64_t i) { return t.strides()[i]; }
  static bool equal(int64_t a, int64_t b) { return a == b; }
  static bool positive(int64_t size) { return size > 0; }
};
struct Symbolic {
  static c10::SymInt size(const at::Tensor& t, int64_t i) { return t.sym_sizes()[i]; }
  static c10::SymInt stride(const at::Tensor& t, int64_t i) { return t.sym_strides()[i]; }
  static bool equal(const c10::SymInt& a, const c10::SymInt& b) {
    return a.sym_eq(b).expect_true(__FILE__, __LINE__);
  }
  static bool positive(const c10::SymInt& size) {
    return size.sym_ge(1).expect_true(__FILE__, __LINE__);
  }
};

bool is_symbolic(const at::Tensor& t) {
  return t.defined() && t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

std::string dtype_text(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16: return "bf16";
    case at::kHalf: return "f16";
    case at::kFloat: return "f32";
    case at::kDouble: return "f64";
    default: return c10::toString(type);
  }
}

template <class Sizes>
void check_one(const at::Tensor& t, const char* name, int64_t rank) {
  if (!t.defined()) refuse(std::string(name) + " is undefined", "give a tensor");
  if (t.layout() != at::kStrided) {
    refuse(std::string(name) + " has layout " + c10::str(t.layout()), "give a strided tensor");
  }
  const std::string_view shape = rank == 4 ? "[B, S, H, D]" : "[T, H, D]";
  if (t.dim() != rank) {
    refuse(std::string(name) + " is " + describe(t) + "; it must have " + std::to_string(rank) +
               " dimensions, " + std::string(shape),
           rank == 4 ? "packed documents [T, H, D] need host bounds"
                     : "tensors [B, S, H, D] take no bounds");
  }
  bool empty = false;
  for (int64_t i = 0; i < rank; ++i) empty |= !Sizes::positive(Sizes::size(t, i));
  if (empty) {
    refuse(std::string(name) + " is " + describe(t) + "; every size must be at least 1",
           "leave out calls without tokens");
  }
  if (Sizes::stride(t, rank - 1) != 1 && Sizes::size(t, rank - 1) != 1) {
    refuse(std::string(name) + " has a last stride of " + c10::str(Sizes::stride(t, rank - 1)) +
               "; the head dimension must be contiguous (stride 1)",
           "other strides are free; call contiguous() or lay D out last");
  }
}

template <class Sizes>
void check_with(const Qkv& qkv, int64_t rank) {
  check_one<Sizes>(qkv.q, "q", rank);
  check_one<Sizes>(qkv.k, "k", rank);
  check_one<Sizes>(qkv.v, "v", rank);
  const at::Tensor &q = qkv.q, &k = qkv.k, &v = qkv.v;
  const auto both = [](const char* a, const at::Tensor& x, const char* b, const at::Tensor& y) {
    return std::string(a) + " is " + describe(x) + " and " + b + " " + describe(y);
  };
  for (const auto& [name, t] : {std::pair{"k", &k}, std::pair{"v", &v}}) {
    if (t->device() != q.device()) refuse(both("q", q, name, *t), "move them to one device");
    if (t->scalar_type() != q.scalar_type()) {
      refuse(both("q", q, name, *t), "convert them to one dtype");
    }
  }
  for (int64_t i = 0; i < rank; ++i) {
    if (!Sizes::equal(Sizes::size(k, i), Sizes::size(v, i))) {
      refuse(both("k", k, "v", v), "give v the shape of k");
    }
  }
  if (!Sizes::equal(Sizes::size(q, rank - 1), Sizes::size(k, rank - 1)) ||
      (rank == 4 && !Sizes::equal(Sizes::size(q, 0), Sizes::size(k, 0)))) {
    refuse(both("q", q, "k", k), "batch and head width must agree");
  }
  if (!Sizes::equal(Sizes::size(q, rank - 2) % Sizes::size(k, rank - 2), 0)) {
    refuse(both("q", q, "k", k), "the query heads must be a multiple of the key heads");
  }
}

}  // namespace

std::string describe(const at::Tensor& t) {
  std::ostringstream text;
  text << dtype_text(t.scalar_type()) << " [";
  for (int64_t i = 0; i < t.dim(); ++i) text << (i == 0 ? "" : ", ") << t.sym_size(i);
  text << "] on " << t.device().str();
  return text.str();
}

void check_qkv(const Qkv& qkv, int64_t rank) {
  if (is_symbolic(qkv.q) || is_symbolic(qkv.k) || is_symbolic(qkv.v)) {
    check_with<Symbolic>(qkv, rank);
  } else {
    check_with<Known>(qkv, rank);
  }
}

void check_bounds(const PackedBounds& bounds, int64_t tokens) {
  const std::vector<int32_t>& cu = bounds.cu;
  const auto at = [&](size_t i) {
    return "cu[" + std::to_string(i) + "] is " + std::to_string(cu[i]);
  };
  if (cu.empty()) refuse("cu is empty", "give n + 1 bounds for n documents, starting with 0");
  if (cu[0] != 0) refuse(at(0), "the first bound must be 0");
  int64_t longest = 0;
  for (size_t i = 1; i < cu.size(); ++i) {
    if (cu[i] < cu[i - 1])
      refuse(at(i) + " after " + std::to_string(cu[i - 1]), "bounds never fall");
    longest = std::max<int64_t>(longest, cu[i] - cu[i - 1]);
  }
  if (cu.back() > tokens) {
    refuse(at(cu.size() - 1) + " but there are " + std::to_string(tokens) + " rows",
           "the last bound must not exceed them");
  }
  if (bounds.max_seqlen < 0 || (bounds.max_seqlen > 0 && bounds.max_seqlen < longest)) {
    refuse("max_seqlen is " + std::to_string(bounds.max_seqlen) + " but the longest document has " +
               std::to_string(longest) + " rows",
           "give at least that, or 0 for not given");
  }
}

}  // namespace h3
