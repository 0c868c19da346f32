//! Host code: C headers are compiled with a driver that only writes down what it is asked, operators of PyTorch with the
//! interfaces that they use, and where there is a PyTorch they are built, loaded and asked for shapes.
use crate::tensor::plans::*;
use crate::tensor::{lower_mma, of_program};
use satune::host::{c_header, torch_extension, Argument, Extension, Launch, Map, Tensor};
use satune::kernel::{Array, Kernel};
use satune::workload::Workload;
use satune_ir::term::Schedule;
use satune_ir::DType;
use std::process::Command;

/// As much of cuda.h as headers use.
pub const DRIVER: &str = r#"
#include <stdio.h>
#include <stdint.h>
typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef uint64_t cuuint64_t;
typedef uint32_t cuuint32_t;
typedef const char *CUfunction;
typedef struct mod *CUmodule;
typedef struct str *CUstream;
typedef struct { _Alignas(64) uint64_t opaque[16]; } CUtensorMap;
enum { CUDA_SUCCESS, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES };
enum { CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    CU_TENSOR_MAP_DATA_TYPE_UINT8 };
enum { CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_128B };
enum { CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };
static CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) { (void)m; *f = name; return 0; }
static inline CUresult cuFuncSetAttribute(CUfunction f, int a, int v) { (void)a; printf("%s shared %d\n", f, v); return 0; }
static inline CUresult cuTensorMapEncodeTiled(CUtensorMap *m, int t, cuuint32_t rank, void *p, const cuuint64_t *d,
    const cuuint64_t *pitch, const cuuint32_t *box, const cuuint32_t *steps, int i, int s, int l, int o)
{
    (void)i; (void)l; (void)o;
    m->opaque[0] = (uint64_t)p;
    printf("map %d of %d: %llu x %llu, pitch %llu, box %u x %u by %u, swizzle %d\n", (int)(uint64_t)p, t, (long long)d[1],
        (long long)d[0], (long long)pitch[0], box[1], box[0], steps[0] * rank, s == CU_TENSOR_MAP_SWIZZLE_128B);
    return 0;
}
static inline CUresult cuTensorMapEncodeIm2col(CUtensorMap *m, int t, cuuint32_t rank, void *p, const cuuint64_t *d,
    const cuuint64_t *pitch, const int *lower, const int *upper, cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
    int i, int s, int l, int o)
{
    (void)i; (void)l; (void)o;
    m->opaque[0] = (uint64_t)p;
    printf("images %d of %d:", (int)(uint64_t)p, t);
    for (unsigned n = 0; n < rank; ++n) printf(" %llu by %u", (long long)d[n], steps[n]);
    for (unsigned n = 0; n + 1 < rank; ++n) printf(", pitch %llu", (long long)pitch[n]);
    for (unsigned n = 0; n + 2 < rank; ++n) printf(", from %d to %d", lower[n], upper[n]);
    printf(", %u channels of %u pixels, swizzle %d\n", channels, pixels, s == CU_TENSOR_MAP_SWIZZLE_128B);
    return 0;
}
static CUresult cuLaunchKernel(CUfunction f, int gx, int gy, int gz, int bx, int by, int bz, int shared, CUstream s,
    void **a, void **e)
{
    (void)s; (void)e;
    printf("%s<<<%d %d %d, %d %d %d, %d>>> %d\n", f, gx, gy, gz, bx, by, bz, shared, (int)*(uint64_t *)a[0]);
    return 0;
}
"#;

/// The launches of a module.
fn launches(module: &TensorModule) -> Vec<Launch> {
    let names = |kernel: &Kernel, list: &[Operand]| -> Vec<String> {
        let name = |(operand, array): (&Operand, &Array)| match operand {
            Operand::A => "A".to_string(),
            Operand::B => "B".into(),
            Operand::C => "C".into(),
            Operand::Read(_) => array.name.clone(),
            Operand::Between(number) => module.workspaces[*number].name.clone(),
        };
        list.iter().zip(&kernel.arrays).map(name).collect()
    };
    module.kernels.iter().zip(&module.args).map(|(k, list)| Launch::of(k, &names(k, list))).collect()
}

/// What the launches ask of the driver.
fn asked(module: &TensorModule, pointers: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let bytes: Vec<(String, u64)> = module.workspaces.iter().map(|w| (w.name.to_string(), w.bytes())).collect();
    std::fs::write(at("gemm.h"), c_header("gemm", &launches(module), &bytes)).unwrap();
    std::fs::write(at("cuda.h"), DRIVER).unwrap();
    // What depends on the buffers is asked for once, however often is launched.
    let main = format!(
        "#include \"gemm.h\"\nint main(void)\n{{\n    gemm_plan plan;\n    CUmodule modules[4] = {{0}};\n    return gemm_prepare(&plan, modules, {pointers}) || gemm_launch(&plan, 0) || gemm_launch(&plan, 0);\n}}\n"
    );
    std::fs::write(at("main.c"), main).unwrap();
    let flags = ["-std=c11", "-Wall", "-Wextra", "-Wno-int-to-pointer-cast", "-Werror", "-I."];
    let built = Command::new("cc").args(flags).args(["main.c", "-o", "main"]).current_dir(folder.path()).output();
    let built = built.unwrap_or_else(|error| satune_testing::no_compiler(&error));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(at("main")).output().unwrap();
    assert!(ran.status.success());
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn tensor_maps_and_launches_are_what_the_kernel_needs() {
    let plan = WgmmaPlan {
        raster: Raster::rows(16),
        blocks: Some(132),
        store: TileStore::Tma,
        ..WgmmaPlan::plain([128, 256, 64], 2, 3)
    };
    let g = Gemm::plain("gemm", [4096, 8192, 2048], DType::BF16, DType::BF16, "NT");
    let module = lower_wgmma(&g, &plan).unwrap();
    let cuda = satune::cuda::print(&module.kernels[0]);
    let body = cuda.split("__global__").nth(1).unwrap();
    let at = |what: &str| body.find(what).unwrap_or_else(|| panic!("{what} is not in {cuda}"));
    // Maps are on their way before anything waits for what they bring.
    assert!(at("prefetch_map(A);") < at("barrier_init(") && at("prefetch_map(C);") < at("load_tile("), "{cuda}");
    assert!(cuda.contains("struct __align__(128) TensorMap {"));
    let text = asked(&module, "1, 2, 3");
    assert_eq!(
        text,
        "main_kernel shared 213040
map 1 of 1: 4096 x 2048, pitch 4096, box 128 x 64 by 2, swizzle 1
map 2 of 1: 8192 x 2048, pitch 4096, box 256 x 64 by 2, swizzle 1
map 3 of 1: 4096 x 8192, pitch 16384, box 64 x 64 by 2, swizzle 1
main_kernel<<<132 1 1, 384 1 1, 213040>>> 1
main_kernel<<<132 1 1, 384 1 1, 213040>>> 1
"
    );
    // Pixels of images, of which every other column and row has a window of 3 x 3, with a padding of 1.
    let layer = satune::operators::parse("conv2d:2,15,16,128,64,3,3,bf16,stride=2,pad=1,out=bf16").unwrap();
    let g = Gemm::of(&layer.contraction).unwrap();
    let few = WgmmaPlan { tile: [128, 64, 64], blocks: None, ..plan.clone() };
    let made = layer.scheduled(&Schedule::Wgmma(few), &Default::default()).unwrap();
    let text = asked(&of_program(&g, made.module), "1, 2, 3");
    let images = "images 1 of 1: 128 by 1 16 by 2 15 by 2 2 by 1, pitch 256, pitch 4096, pitch 61440, from -1 to -2, from -1 to -1, \
                  64 channels of 128 pixels, swizzle 1\n";
    assert!(text.contains(images), "{text}");
    // The driver has no type for fp8: its bytes are moved as such.
    let plan = WgmmaPlan { tile: [128, 256, 128], store: TileStore::Direct, ..plan };
    let g = Gemm::plain("gemm", [256, 512, 1024], DType::F8E4M3, DType::F32, "NT");
    let text = asked(&lower_wgmma(&g, &plan).unwrap(), "1, 2, 3");
    assert_eq!(
        text,
        "main_kernel shared 147504
map 1 of 3: 256 x 1024, pitch 1024, box 128 x 128 by 2, swizzle 1
map 2 of 3: 512 x 1024, pitch 1024, box 256 x 128 by 2, swizzle 1
main_kernel<<<4 1 1, 384 1 1, 147504>>> 1
main_kernel<<<4 1 1, 384 1 1, 147504>>> 1
"
    );
}

#[test]
fn kernels_of_split_k_follow_each_other() {
    let plan = TensorPlan { split_k: 2, ..TensorPlan::plain([64, 64, 32], [32, 32], satune::kernel::Mma::F16, 3) };
    let g = Gemm::plain("gemm", [64, 128, 512], DType::F16, DType::F16, "NN");
    let text = asked(&lower_mma(&g, &plan).unwrap(), "1, 2, 3, 4");
    assert_eq!(text, "main_kernel_0<<<4 1 1, 32 4 1, 0>>> 1\nmain_kernel_1<<<32 1 1, 256 1 1, 0>>> 4\n".repeat(2));
}

/// As much of PyTorch's headers as operators use.
const TORCH: &str = r#"
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>
namespace at {
enum ScalarType { kHalf, kBFloat16, kFloat, kDouble, kChar, kByte, kShort, kInt, kLong, kBool, kFloat8_e4m3fn };
struct IntArrayRef { IntArrayRef(std::initializer_list<int64_t>) {} IntArrayRef(const std::vector<int64_t>&) {} };
struct Device { bool operator==(Device) const; int index() const; };
struct TensorOptions { TensorOptions dtype(ScalarType) const; };
struct Tensor {
  bool is_cuda() const; bool is_contiguous() const; ScalarType scalar_type() const; int64_t dim() const;
  int64_t sym_size(int64_t) const; void* data_ptr() const; Device device() const; TensorOptions options() const;
};
Tensor empty(IntArrayRef, TensorOptions);
void assert_no_overlap(const Tensor&, const Tensor&);
struct DeviceGuard { DeviceGuard(Device); ~DeviceGuard(); };
enum class Tag { pt2_compliant_tag, needs_fixed_stride_order };
}
void torch_check(bool, ...);
template <class... T> void torch_check_any(bool ok, const T&...) { torch_check(ok); }
#define TORCH_CHECK(...) torch_check_any(__VA_ARGS__)
struct Library {
  void def(const char*, std::initializer_list<at::Tag>);
  template <class F> void impl(const char*, F*);
};
#define TORCH_LIBRARY_FRAGMENT(name, m) void fragment_##name(Library& m)
#define TORCH_LIBRARY_IMPL(name, key, m) void impl_##name##_##key(Library& m)
"#;

/// Compiles an operator against the interfaces that it uses.
fn compiles(text: &str) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in
        ["torch/library.h", "ATen/MemoryOverlap.h", "ATen/core/Tensor.h", "ATen/ops/empty.h", "c10/core/DeviceGuard.h"]
    {
        std::fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        std::fs::write(at(name), "#pragma once\n#include <all.h>\n").unwrap();
    }
    std::fs::write(at("all.h"), TORCH).unwrap();
    std::fs::write(at("operator.cpp"), text).unwrap();
    let flags = ["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-unused", "-Werror", "-I."];
    let built = Command::new("c++").args(flags).arg("operator.cpp").current_dir(folder.path()).output();
    let built = built.unwrap_or_else(|error| satune_testing::no_compiler(&error));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// An operator with names that neither Python nor C++ takes, one parameter that is changed in place, two results, and a
/// kernel that takes a tensor map.
fn odd() -> String {
    let tensor = |name: &str, shape: &[i64], written, updated| Tensor {
        name: name.into(),
        dtype: DType::F16,
        shape: shape.to_vec(),
        written,
        updated,
    };
    let tensors = [
        tensor("lambda", &[64, 64], false, false),
        tensor("a b", &[64], true, true),
        tensor("run", &[64, 64], true, false),
        tensor("plan", &[8], true, false),
    ];
    let map = Map {
        dtype: DType::F16,
        dims: vec![64, 64],
        strides: vec![128],
        tile: vec![64, 64],
        image: None,
        swizzle: true,
    };
    let argument = |name: &str, map| Argument { name: name.into(), map };
    let list =
        vec![argument("lambda", Some(map)), argument("run", None), argument("plan", None), argument("a b", None)];
    let launches =
        [Launch { function: "odd".into(), grid: [1; 3], block: [128, 1, 1], shared_bytes: 65536, arguments: list }];
    let sources = ["extern \"C\" __global__ void odd() {}\n".to_string()];
    torch_extension(&Extension {
        name: "odd",
        tensors: &tensors,
        workspaces: &[],
        launches: &launches,
        sources: &sources,
    })
    .unwrap()
}

/// What `emit --as torch` prints of the best candidate for an operator, as the operator `name`.
fn emitted(operator: &str, name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let satune = |args: &[&str]| {
        let run = Command::new(crate::faults::SATUNE).args(args).arg("--out").arg(folder.path()).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    };
    satune(&["explore", operator, "--top", "1", "--no-compile", "--device", "none"]);
    satune(&["emit", "1", "--as", "torch", "--name", name])
}

#[test(slow)]
fn pytorch_operators_compile_against_the_interfaces_that_they_use() {
    // Two kernels and a workspace, and one kernel.
    for (operator, kernels) in [("gemm:16,16,8192,f32", 2), ("gemm:32,48,16,f16,NT", 1), ("gemm:64,64,256,e4m3,NT", 1)]
    {
        let text = emitted(operator, "product");
        assert_eq!(text.matches("R\"CUDA(").count(), kernels, "{text}");
        assert_eq!(text.matches("cuLaunchKernel(plan").count(), kernels);
        assert!(text.contains("m.def(\"product(Tensor A, Tensor B) -> Tensor\""), "{text}");
        assert!(text.contains("m.def(\"product.out(Tensor A, Tensor B, *, Tensor(a2!) C) -> ()\""), "{text}");
        // No header of a CUDA toolkit is needed to build it.
        assert!(!text.contains("#include <cuda") && !text.contains("#include <nvrtc"));
        compiles(&text);
    }
    let odd = odd();
    assert!(odd.contains("\"odd(Tensor lambda_, Tensor(a1!) a_b) -> (Tensor, Tensor)\""), "{odd}");
    assert!(odd.contains("\"odd.out(Tensor lambda_, Tensor(a1!) a_b, *, Tensor(a2!) run_, Tensor(a3!) plan) -> ()\""));
    compiles(&odd);
}

/// What the caller left in a parameter is given, where the program leaves some of it or reads it; otherwise a new tensor is the result.
#[test]
fn what_is_updated_or_partly_written_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let grid = |axes: &str, iters: &str, store: &str| {
        format!("    for i, j in T.grid({axes}):\n        with T.sblock(\"{}\"):\n            vi, vj = T.axis.remap(\"{iters}\", [i, j])\n            {store}\n", &store[..1])
    };
    let copies = |columns: usize| {
        grid("64, 96", "SS", "C[vi, vj] = A[vi, vj]")
            + &grid(&format!("64, {columns}"), "SS", "C[vi, vj + 96] = A[vi, vj]").replace("\"C\"", "\"D\"")
    };
    let cases = [
        ("A: T.Buffer((64, 96), \"float32\"), C: T.Buffer((64, 160), \"float32\")", copies(64), "(Tensor A) -> Tensor"),
        (
            "A: T.Buffer((64, 96), \"float32\"), C: T.Buffer((64, 160), \"float32\")",
            copies(63),
            "(Tensor A, Tensor(a1!) C) -> ()",
        ),
        (
            "W: T.Buffer((64, 96), \"float32\"), G: T.Buffer((64, 96), \"float32\")",
            grid("64, 96", "SS", "W[vi, vj] = W[vi, vj] - G[vi, vj] * T.float32(0.5)"),
            "(Tensor(a0!) W, Tensor G) -> ()",
        ),
        (
            "S: T.Buffer((64,), \"float32\"), A: T.Buffer((64, 96), \"float32\")",
            grid("64, 96", "SR", "S[vi] = S[vi] + A[vi, vj]"),
            "(Tensor(a0!) S, Tensor A) -> ()",
        ),
        (
            "Y: T.Buffer((64, 96), \"float32\"), P: T.Buffer((64,), \"int32\"), A: T.Buffer((64, 96), \"float32\")",
            grid("64, 96", "SS", "Y[P[vi], vj] = A[vi, vj]"),
            "(Tensor(a0!) Y, Tensor P, Tensor A) -> ()",
        ),
        (
            "Y: T.Buffer((64, 96), \"float32\"), P: T.Buffer((64,), \"int32\"), A: T.Buffer((64, 96), \"float32\")",
            "    for i, j in T.grid(64, 96):\n        with T.sblock(\"Y\"):\n            vi = T.axis.opaque(64, P[i])\n            vj = T.axis.spatial(96, j)\n            Y[vi, vj] = A[vi, vj]\n".into(),
            "(Tensor(a0!) Y, Tensor P, Tensor A) -> ()",
        ),
    ];
    let file = folder.path().join("program.py");
    for (params, body, schema) in cases {
        std::fs::write(&file, format!("@T.prim_func(s_tir=True)\ndef main({params}):\n{body}")).unwrap();
        let text = emitted(file.to_str().unwrap(), "made");
        assert!(text.contains(&format!("m.def(\"made{schema}")), "{schema}\n{text}");
    }
}

/// Two dimensions that are explored as one: PyTorch's tensors have both.
#[test(slow)]
fn operators_take_the_shapes_of_the_given_program() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layer.py");
    std::fs::write(&file, crate::tiled::layer("float16", "float32")).unwrap();
    let text = emitted(file.to_str().unwrap(), "layer");
    for tensor in ["\"A\", at::kHalf, {4, 24, 64}", "\"W\", at::kHalf, {48, 64}", "\"D\", at::kHalf, {4, 24, 48}"] {
        assert!(text.contains(tensor), "{tensor}\n{text}");
    }
    compiles(&text);
}

/// A parameter whose name TVMScript has for itself is printed under another, and is passed all the same.
#[test]
fn renamed_parameters_are_passed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("program.py");
    let problem = satune::operators::parse("gemm:16,16,8192,f32").unwrap();
    let script = problem.script.replace("A:", "I:").replace("A[", "I[");
    std::fs::write(&file, script).unwrap();
    let text = emitted(file.to_str().unwrap(), "made");
    let passed = "{address(tensors[0]), address(tensors[1]), address(workspace0), address(tensors[2])}";
    assert!(text.contains("m.def(\"made(Tensor I_, Tensor B) -> Tensor\"") && text.contains(passed), "{text}");
}

/// What Python is asked to do with the operators in its folder: `product` and `odd`.
const PYTHON: &str = r#"
import torch, torch.utils.cpp_extension as cpp

for name in ["product", "odd"]:
    cpp.load(name, [name + ".cpp"], extra_ldflags=["-ldl"], is_python_module=False, build_directory=".")

def refused(what, run, words):
    try:
        run()
    except (RuntimeError, NotImplementedError) as error:
        assert words in str(error), (what, str(error))
    else:
        raise AssertionError(what)

ops = torch.ops.satune
a, b = torch.empty(16, 8192, device="meta"), torch.empty(8192, 16, device="meta")
c = ops.product(a, b)
assert c.shape == (16, 16) and c.dtype == torch.float32 and c.is_meta
assert ops.product.out(a, b, C=c) is None
refused("shape", lambda: ops.product(a, a), "B must have the type Float and the shape [8192, 16]")
refused("type", lambda: ops.product(a.half(), b), "A must have the type Float")
refused("results", lambda: ops.product.out(a, b, C=a), "C must have")
refused("the host", lambda: ops.product(torch.empty(16, 8192), torch.empty(8192, 16)), "CPU")

x, y = torch.empty(64, 64, dtype=torch.half), torch.empty(64, dtype=torch.half)
schema = ops.odd.default._schema
assert [bool(p.alias_info and p.alias_info.is_write) for p in schema.arguments] == [False, True]
first, second = ops.odd(x.to("meta"), y.to("meta"))
assert first.shape == (64, 64) and second.shape == (8,)

# As torch.compile sees them: tensors of a GPU that is not there.
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
with FakeTensorMode():
    c = ops.product(torch.empty(16, 8192), torch.empty(8192, 16))
    assert c.shape == (16, 16) and c.device.type == "cpu"
graph = make_fx(lambda a, b: torch.relu(ops.product(a, b)), tracing_mode="symbolic")(a, b)
assert any(node.target is ops.product.default for node in graph.graph.nodes), graph.graph
print("as it should be", torch.__version__)
"#;

/// A Python that has PyTorch: SATUNE_PYTORCH names it, or it is in `target/pytorch`, or it is the machine's own.
fn pytorch() -> std::path::PathBuf {
    let own = satune_testing::root().join("target/pytorch/bin/python");
    let named = std::env::var_os("SATUNE_PYTORCH").map(Into::into);
    let known = [named, Some(own), Some("python3".into())].into_iter().flatten();
    let has = |python: &std::path::PathBuf| {
        let asked = Command::new(python).args(["-c", "import torch, setuptools"]).output();
        asked.is_ok_and(|o| o.status.success())
    };
    known.into_iter().find(has).unwrap_or_else(|| {
        satune_testing::skip("no PyTorch here: `python3 -m venv target/pytorch; target/pytorch/bin/pip install torch setuptools ninja` (some GB)")
    })
}

#[test]
fn pytorch_builds_loads_and_traces_operators() {
    let python = pytorch();
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in
        [("product.cpp", emitted("gemm:16,16,8192,f32", "product")), ("odd.cpp", odd()), ("run.py", PYTHON.into())]
    {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    // Ninja stands beside Python where it came as a wheel.
    let beside = python.parent().map_or(String::new(), |p| p.display().to_string());
    let path = format!("{beside}:{}", std::env::var("PATH").unwrap_or_default());
    let run = Command::new(&python).arg("run.py").current_dir(folder.path()).env("PATH", path).output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && said.contains("as it should be"),
        "{said}\n{}",
        String::from_utf8_lossy(&run.stderr)
    );
}
