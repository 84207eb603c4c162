// A device of its own for torch, made of host memory: two "devices" called hostram, and a backend called ramccl that
// hands their collectives to gloo. torch knows such a device only through its registries (PrivateUse1), as it knows a
// vendor's plugin, so that code which trains here reaches for no torch.cuda.
//
// Memory is host memory, so every kernel is the CPU's: the fallback copies operands to CPU tensors and results back.
// As on any device, operands that lie elsewhere are refused, but for numbers (0-d tensors) and for `x[indices]`.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/extension.h>
#include <torch/library.h>

#include <atomic>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

constexpr auto RAM = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex DEVICES = 2;
thread_local DeviceIndex current = 0;
std::atomic<int64_t> bytes{0};
std::atomic<int64_t> launches{0};  // of operators on this device: a test can tell that work happened here

void checked_set(DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < DEVICES, "hostram has no device ", static_cast<int>(index));
  current = index;
}

struct Block {
  void* data;
  size_t size;
};

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    auto* block = new Block{c10::alloc_cpu(size), size};
    bytes += static_cast<int64_t>(size);
    return {block->data, block, &give_back, Device(RAM, current)};
  }
  static void give_back(void* context) {
    auto* block = static_cast<Block*>(context);
    bytes -= static_cast<int64_t>(block->size);
    c10::free_cpu(block->data);
    delete block;
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(RAM, &allocator)

// Random numbers are those of a generator of the CPU.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(DeviceIndex index, at::Generator inner = at::detail::createCPUGenerator())
      : GeneratorImpl(Device(RAM, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), cpu(std::move(inner)) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_offset(uint64_t offset) override { cpu.set_offset(offset); }
  uint64_t get_offset() const override { return cpu.get_offset(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override { return new Generator(device().index(), cpu.clone()); }

  at::Generator cpu;
};

// Work is done when a call returns, so that streams and events have nothing to wait for.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return RAM; }
  Device exchangeDevice(Device device) const override {
    const Device before(RAM, current);
    checked_set(device.index());
    return before;
  }
  Device getDevice() const override { return {RAM, current}; }
  void setDevice(Device device) const override { checked_set(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override { current = device.index(); }
  Stream getStream(Device device) const override { return stream(device); }
  Stream getDefaultStream(Device device) const override { return stream(device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return stream(device); }
  Stream getNewStream(Device device, int) const override { return stream(device); }
  Stream exchangeStream(Stream old) const override { return old; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  DeviceIndex deviceCount() const noexcept override { return DEVICES; }

  static Stream stream(Device device) {
    return Stream(Stream::DEFAULT, Device(RAM, device.has_index() ? device.index() : current));
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return DEVICES; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { checked_set(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const auto before = current;
    checked_set(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override { return at::make_generator<Generator>(index); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::DeviceType::CPU); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto fresh = allocator.allocate(size);
    const auto kept = std::min(size, storage.nbytes());
    if (kept > 0) {
      std::memcpy(fresh.get(), storage.data(), kept);
    }
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(size);
  }
};

// A CPU tensor over the same memory; it keeps the tensor that it shows alive.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) {
    return tensor;
  }
  auto keep = tensor.detach();
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [keep](void*) {}, tensor.options().device(at::kCPU));
}

at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<Device> device,
    std::optional<bool>,
    std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(
      size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<Device> device,
    std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

at::Tensor as_strided(
    const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<c10::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  return at::native::_local_scalar_dense_cpu(on_cpu(self));
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_tensor_(self, source);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  return at::native::set_(self, source);
}

at::Tensor& set_storage_offset(
    at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::cpu::set_(self, source, offset, size, stride);
}

void check_place(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  TORCH_CHECK(
      !tensor.defined() || tensor.device().type() == RAM || tensor.dim() == 0,
      "Expected all tensors of ", op.operator_name(), " to be on hostram, but found one on ", tensor.device());
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++launches;
  for (size_t at = stack->size() - op.schema().arguments().size(); at < stack->size(); ++at) {
    auto& argument = (*stack)[at];
    if (argument.isTensor()) {
      check_place(op, argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorList()) {
        check_place(op, tensor);
      }
    } else if (argument.isGenerator() && argument.toGenerator().device().type() == RAM) {
      argument = argument.toGenerator().get<Generator>()->cpu;
    }
  }
  at::native::cpu_fallback(op, stack);
}

at::Tensor on_ram(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(Device(RAM, current)) : tensor;
}

// Without a copy of what it selects from: that may be a view of overlapping pieces, larger than all memory.
at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  TORCH_CHECK(self.device() == index.device(), "index_select of ", self.device(), " by indices on ", index.device());
  return on_ram(at::index_select(on_cpu(self), dim, on_cpu(index)));
}

at::Tensor convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation,
    bool transposed,
    c10::IntArrayRef output_padding,
    int64_t groups) {
  TORCH_CHECK(input.device() == weight.device(), "convolution of ", input.device(), " with ", weight.device());
  std::optional<at::Tensor> shift;
  if (bias.has_value()) {
    shift = on_cpu(*bias);
  }
  return on_ram(at::convolution(
      on_cpu(input), on_cpu(weight), shift, stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& weight,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation,
    bool transposed,
    c10::IntArrayRef output_padding,
    int64_t groups,
    std::array<bool, 3> mask) {
  const std::vector<int64_t> bias{weight.size(transposed ? 1 : 0)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      on_cpu(grad), on_cpu(input), on_cpu(weight), bias, stride, padding, dilation, transposed, output_padding, groups,
      mask);
  return {on_ram(of_input), on_ram(of_weight), on_ram(of_bias)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// Under autocast it computes in the format that it is given.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("resize_", &resize);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("index_select", &index_select);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage_offset);
}

using Tensors = std::vector<at::Tensor>;
using Work = c10::intrusive_ptr<c10d::Work>;

// Collectives of hostram tensors: gloo's, on CPU tensors over the same memory.
struct RamCcl final : c10d::Backend {
  explicit RamCcl(c10::intrusive_ptr<c10d::Backend> gloo)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "ramccl"; }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto all = shown(tensors);
    return gloo_->broadcast(all, options);
  }
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    auto all = shown(tensors);
    return gloo_->allreduce(all, options);
  }
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto all = shown(tensors);
    return gloo_->reduce(all, options);
  }
  Work allgather(std::vector<Tensors>& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    auto outs = shown(to);
    auto ins = shown(from);
    return gloo_->allgather(outs, ins, options);
  }
  Work _allgather_base(at::Tensor& to, at::Tensor& from, const c10d::AllgatherOptions& options) override {
    auto out = on_cpu(to);
    auto in = on_cpu(from);
    return gloo_->_allgather_base(out, in, options);
  }
  Work _reduce_scatter_base(at::Tensor& to, at::Tensor& from, const c10d::ReduceScatterOptions& options) override {
    auto out = on_cpu(to);
    auto in = on_cpu(from);
    return gloo_->_reduce_scatter_base(out, in, options);
  }
  Work allgather_into_tensor_coalesced(Tensors& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    auto outs = shown(to);
    auto ins = shown(from);
    return gloo_->allgather_into_tensor_coalesced(outs, ins, options);
  }
  Work reduce_scatter_tensor_coalesced(
      Tensors& to, Tensors& from, const c10d::ReduceScatterOptions& options) override {
    auto outs = shown(to);
    auto ins = shown(from);
    return gloo_->reduce_scatter_tensor_coalesced(outs, ins, options);
  }
  Work barrier(const c10d::BarrierOptions&) override {
    return gloo_->barrier(c10d::BarrierOptions());
  }

 private:
  static Tensors shown(const Tensors& tensors) {
    Tensors all;
    for (const auto& tensor : tensors) {
      all.push_back(on_cpu(tensor));
    }
    return all;
  }
  static std::vector<Tensors> shown(const std::vector<Tensors>& lists) {
    std::vector<Tensors> all;
    for (const auto& list : lists) {
      all.push_back(shown(list));
    }
    return all;
  }

  c10::intrusive_ptr<c10d::Backend> gloo_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("device_count", [] { return static_cast<int>(DEVICES); });
  m.def("current_device", [] { return static_cast<int>(current); });
  m.def("set_device", [](int index) { checked_set(static_cast<DeviceIndex>(index)); });
  m.def("memory_allocated", [] { return bytes.load(); });
  m.def("launches", [] { return launches.load(); });
  m.def("over_gloo", [](const c10::intrusive_ptr<c10d::Backend>& gloo) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<RamCcl>(gloo);
  });
}
