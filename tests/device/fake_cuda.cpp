// A CUDA device without hardware, for a CPU build of PyTorch: it fills the dispatch key that such a build leaves empty.
// A tensor of it is "cuda", its memory is the CPU's, and each kernel is the CPU's. Mixing it with the CPU is an error, as on a GPU;
// kernels, reads back and what is sent to it are counted by name.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <set>

using namespace at;

static const Device kHere(kCUDA, 0);
static const DispatchKeySet kKeys(DispatchKey::CUDA);
static std::map<std::string, int64_t> counts;
static std::mutex counting;
static std::atomic<int64_t> used{0}, most{0};

static void count(const std::string& name) {
  std::lock_guard<std::mutex> lock(counting);
  counts[name]++;
}

// -- memory ----------------------------------------------------------------------------------------------------------

struct Memory final : c10::Allocator {
  struct Block { std::unique_ptr<char[]> data; size_t size; };
  static void release(void* block) {
    used -= static_cast<Block*>(block)->size;
    delete static_cast<Block*>(block);
  }
  DataPtr allocate(size_t size) override {
    auto block = new Block{std::make_unique<char[]>(size + 64), size};
    std::memset(block->data.get(), 0xAB, size + 64);  // what nobody has written is no zero
    used += size;
    for (int64_t now = used, seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {}
    auto start = (reinterpret_cast<uintptr_t>(block->data.get()) + 63) / 64 * 64;
    return {size ? reinterpret_cast<void*>(start) : nullptr, block, &release, kHere};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};
static Memory allocator;
REGISTER_ALLOCATOR(kCUDA, &allocator);

// -- the device, its stream and its random numbers -------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static Stream only() { return Stream(Stream::UNSAFE, kHere, 0); }
  DeviceType type() const override { return kCUDA; }
  Device exchangeDevice(Device) const override { return kHere; }
  Device getDevice() const override { return kHere; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return only(); }
  Stream getDefaultStream(Device) const override { return only(); }
  Stream getStreamFromGlobalPool(Device, bool) const override { return only(); }
  Stream exchangeStream(Stream) const override { return only(); }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

struct Numbers final : c10::GeneratorImpl {
  Generator inner = at::detail::createCPUGenerator();
  uint64_t given = 0;
  Numbers() : GeneratorImpl(kHere, kKeys) { set_current_seed(c10::default_rng_seed_val); }
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(~(given = seed)); }  // others than the CPU's
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return given; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return given;
  }
  void set_state(const TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorImpl* clone_impl() const override {
    auto copy = new Numbers();
    copy->inner = inner.clone();
    copy->given = given;
    return copy;
  }
};
static const Generator& default_numbers() {
  static Generator numbers = at::make_generator<Numbers>();
  return numbers;
}

struct Hooks final : CUDAHooksInterface {
  Hooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  void deviceSynchronize(DeviceIndex) const override {}
  Device getDeviceFromPtr(void*) const override { return kHere; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(kCPU); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &allocator; }
  const Generator& getDefaultGenerator(DeviceIndex) const override { return default_numbers(); }
  Generator getNewGenerator(DeviceIndex) const override {
    static std::atomic<bool> known{false};  // Python has no other way to the default one than to be given it first
    return known.exchange(true) ? at::make_generator<Numbers>() : default_numbers();
  }
};
namespace at {
using CUDAHooks = ::Hooks;
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at

// -- kernels ---------------------------------------------------------------------------------------------------------

static Tensor on_cpu(const Tensor& x) {  // in the same memory
  if (!x.defined() || !x.is_cuda()) return x;
  DataPtr data(x.storage().mutable_data(), kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), x.storage().nbytes(), std::move(data), c10::GetAllocator(kCPU), true);
  auto y = at::detail::make_tensor<TensorImpl>(std::move(storage), DispatchKeySet(DispatchKey::CPU), x.dtype());
  y.unsafeGetTensorImpl()->set_sizes_and_strides(x.sizes(), x.strides(), x.storage_offset());
  y._set_conj(x.is_conj());
  y._set_neg(x.is_neg());
  return y;
}

static Tensor new_strided(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dtype, std::optional<Layout> = {},
                            std::optional<Device> = {}, std::optional<bool> = {}) {
  return at::detail::empty_strided_generic(size, stride, &allocator, kKeys, c10::dtype_or_default(dtype));
}

static Tensor new_empty(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout>, std::optional<Device>, std::optional<bool>,
                    std::optional<MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, kKeys, c10::dtype_or_default(dtype), format);
}

static Tensor here(const Tensor& x) {  // a copy
  if (!x.defined() || !x.is_cpu()) return x;
  Tensor y = new_strided(x.sizes(), x.strides(), x.scalar_type());
  if (x.numel()) on_cpu(y).copy_(x);
  return y;
}

// Kernels that take indices from the CPU, as the CUDA ones do, and kernels whose result has a size that the CPU has to know.
static const std::set<std::string> takes_cpu = {"aten::index", "aten::_index_put_impl_", "aten::index_put_", "aten::index_put", "aten::_foreach_copy_"};
static const std::set<std::string> reads_size = {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
  "aten::unique_consecutive", "aten::equal", "aten::is_nonzero", "aten::bincount", "aten::isin", "aten::repeat_interleave"};

static IValue mapped(const IValue& value, const std::function<Tensor(const Tensor&)>& map) {
  if (value.isTensor()) return map(value.toTensor());
  if (value.isTensorList()) {
    std::vector<Tensor> all;
    for (const Tensor& x : value.toTensorVector()) all.push_back(map(x));
    return all;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> all;
    for (std::optional<Tensor> x : value.toOptionalTensorList()) all.push_back(x ? std::optional<Tensor>(map(*x)) : x);
    return all;
  }
  return value;
}

static void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto &name = schema.name();
  const auto &arguments = schema.arguments(), &returns = schema.returns();
  const auto first = stack->size() - arguments.size();
  count(name);
  if (reads_size.count(name)) count("read by " + name);
  std::vector<IValue> given(stack->begin() + first, stack->end());
  std::vector<std::pair<Tensor, Tensor>> written;
  bool cuda = false, cpu = false;
  for (size_t i = 0; i < arguments.size(); i++) {
    auto& value = (*stack)[first + i];
    const auto alias = arguments[i].alias_info();
    if (value.isDevice()) {
      cuda |= value.toDevice().is_cuda();
      value = Device(kCPU);
    } else if (arguments[i].name() == "generator") {
      auto numbers = value.isNone() ? default_numbers() : value.toGenerator();
      TORCH_CHECK(numbers.device().is_cuda(), "Expected a 'cuda' device type for generator but found 'cpu' in ", name);
      value = numbers.get<Numbers>()->inner;
    } else {
      value = mapped(value, [&](const Tensor& x) {
        auto y = on_cpu(x);
        cuda |= x.defined() && x.is_cuda();
        cpu |= x.defined() && x.is_cpu() && x.dim() > 0;
        if (alias && alias->isWrite() && x.defined()) written.emplace_back(x, y);
        return y;
      });
    }
  }
  TORCH_CHECK(!(cuda && cpu) || takes_cpu.count(name), "Expected all tensors to be on the same device, but found cuda:0 and cpu in ", name);
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  for (auto& [x, y] : written)  // an `out` that the kernel has resized
    if (x.is_cuda() && (y.sizes() != x.sizes() || y.storage().data() != x.storage().data())) on_cpu(x.resize_(y.sizes())).copy_(y);
  for (size_t i = 0, start = stack->size() - returns.size(); i < returns.size(); i++) {
    auto& value = (*stack)[start + i];
    const auto alias = returns[i].alias_info();
    TORCH_CHECK(!alias || alias->isWrite(), name, " returns a view, and has no kernel of its own here");
    if (!alias) value = mapped(value, here);
    for (size_t j = 0; alias && j < arguments.size(); j++)
      if (arguments[j].alias_info() && *arguments[j].alias_info() == *alias) value = given[j];
  }
}

static Tensor& copied(Tensor& self, const Tensor& from, bool non_blocking) {
  count("aten::copy_");
  if (self.is_cpu()) count("read by aten::copy_");
  else if (from.is_cpu()) count(non_blocking ? "sent" : "sent and waited for");
  on_cpu(self).copy_(on_cpu(from));
  return self;
}

static Scalar value_of(const Tensor& x) {
  count("read by aten::item");
  return at::_local_scalar_dense(on_cpu(x));
}

static int64_t plain_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>, bool) { return 0; }

// Without cuDNN, CUDA has a fused cell, with other derivatives than those of the CPU's operations.
static Tensor plus(const Tensor& x, const std::optional<Tensor>& bias) { return bias && bias->defined() ? on_cpu(x) + on_cpu(*bias) : on_cpu(x); }

static std::tuple<Tensor, Tensor> fused_gru(const Tensor& x, const Tensor& h, const Tensor& before, const std::optional<Tensor>& bx, const std::optional<Tensor>& bh) {
  count("aten::_thnn_fused_gru_cell");
  auto i = plus(x, bx).chunk(3, 1), j = plus(h, bh).chunk(3, 1);
  auto r = (i[0] + j[0]).sigmoid(), z = (i[1] + j[1]).sigmoid(), n = (i[2] + r * j[2]).tanh();
  return {here(n + z * (on_cpu(before) - n)), here(at::cat({r, z, n, on_cpu(before), j[2]}, 1))};
}

static std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> fused_gru_backward(const Tensor& grad, const Tensor& kept, bool bias) {
  count("aten::_thnn_fused_gru_cell_backward");
  auto parts = on_cpu(kept).chunk(5, 1);
  auto g = on_cpu(grad), r = parts[0], z = parts[1], n = parts[2];
  auto dn = g * (1 - z) * (1 - n * n), dz = g * (parts[3] - n) * (1 - z) * z, dr = dn * parts[4] * (1 - r) * r;
  auto dx = at::cat({dr, dz, dn}, 1), dh = at::cat({dr, dz, dn * r}, 1);
  return {here(dx), here(dh), here(g * z), bias ? here(dx.sum(0)) : Tensor(), bias ? here(dh.sum(0)) : Tensor()};
}

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", TORCH_FN(copied));
  m.impl("_local_scalar_dense", TORCH_FN(value_of));
  m.impl("empty.memory_format", TORCH_FN(new_empty));
  m.impl("empty_strided", TORCH_FN(new_strided));
  m.impl("_fused_sdp_choice", TORCH_FN(plain_attention));
  m.impl("_thnn_fused_gru_cell", TORCH_FN(fused_gru));
  m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(fused_gru_backward));
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());  // or it would be composed of others
  m.impl("as_strided", TORCH_FN(native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(native::view));
  m.impl("_reshape_alias", TORCH_FN(native::_reshape_alias));
  m.impl("unfold", TORCH_FN(native::unfold));
  m.impl("resize_", TORCH_FN(native::resize_));
  m.impl("set_", TORCH_FN(native::set_cpu_));
  m.impl("set_.source_Tensor", TORCH_FN(native::set_tensor_));
  m.impl("set_.source_Storage", TORCH_FN(native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(native::set_storage_cpu_));
}

struct NoClock final : c10d::Timer {  // DistributedDataParallel asks for one
  explicit NoClock(Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};
namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, NoClock)
}  // namespace c10d

// -- what Python asks ------------------------------------------------------------------------------------------------

static c10::Dict<std::string, int64_t> taken_counts() {
  c10::Dict<std::string, int64_t> found;
  for (auto& [name, number] : std::exchange(counts, {})) found.insert(name, number);
  return found;
}

TORCH_LIBRARY(fake_cuda, m) {
  m.def("taken_counts", taken_counts);
  m.def("memory", [](bool peak) -> int64_t { return peak ? most.load() : used.load(); });
  m.def("reset_peak", [] { most = used.load(); });
}
