//! Helper functions for barriers with phases, the TMA and `wgmma`, as inline PTX (sm_90a).
use super::instructions::{operands, sums};
use super::tensor_memory::TensorMemoryHelper;
use crate::kernel::Wgmma;
use satune_ir::DType;

/// An instruction of sm_90a.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GroupHelper {
    TensorMapType,
    Initialise,
    FenceInitialised,
    Arrive,
    ArriveRemote,
    Remote,
    ArriveExpect,
    ClusterBarrier,
    WaitPhase,
    PrefetchMap,
    /// Of a tensor of so many dimensions, or pixels of images.
    LoadTile {
        rank: u8,
        images: bool,
        multicast: bool,
    },
    StoreTile {
        rank: u8,
    },
    StoreCommit,
    StoreWait,
    StoreWaitRead,
    FenceAsync,
    NamedBarrier,
    RegistersUp,
    RegistersDown,
    Descriptor,
    Kept,
    /// Of sums of a type.
    MatrixKeep(DType),
    MatrixFence,
    MatrixCommit,
    MatrixWait,
    Matrix(Wgmma),
    /// Of sm_100a.
    TensorMemory(TensorMemoryHelper),
}

impl GroupHelper {
    pub fn name(self) -> String {
        match self {
            GroupHelper::TensorMapType => "TensorMap".into(),
            GroupHelper::Initialise => "barrier_init".into(),
            GroupHelper::FenceInitialised => "barrier_init_fence".into(),
            GroupHelper::Arrive => "barrier_arrive".into(),
            GroupHelper::ArriveRemote => "barrier_arrive_remote".into(),
            GroupHelper::Remote => "remote_barrier".into(),
            GroupHelper::ClusterBarrier => "cluster_barrier".into(),
            GroupHelper::ArriveExpect => "barrier_arrive_expect".into(),
            GroupHelper::WaitPhase => "barrier_wait".into(),
            GroupHelper::PrefetchMap => "prefetch_map".into(),
            GroupHelper::LoadTile { rank, images, multicast } => {
                let what = match (images, rank) {
                    (true, _) => format!("load_pixels_{rank}d"),
                    (false, 2) => "load_tile".into(),
                    (false, _) => format!("load_tile_{rank}d"),
                };
                what + if multicast { "_multicast" } else { "" }
            }
            GroupHelper::StoreTile { rank: 2 } => "store_tile".into(),
            GroupHelper::StoreTile { rank } => format!("store_tile_{rank}d"),
            GroupHelper::StoreCommit => "store_tile_commit".into(),
            GroupHelper::StoreWait => "store_tile_wait".into(),
            GroupHelper::StoreWaitRead => "store_tile_wait_read".into(),
            GroupHelper::FenceAsync => "async_fence".into(),
            GroupHelper::NamedBarrier => "named_barrier".into(),
            GroupHelper::RegistersUp => "more_registers".into(),
            GroupHelper::RegistersDown => "fewer_registers".into(),
            GroupHelper::Descriptor => "matrix_descriptor".into(),
            GroupHelper::Kept => "kept_descriptor".into(),
            GroupHelper::MatrixKeep(_) => "wgmma_keep".into(),
            GroupHelper::MatrixFence => "wgmma_fence".into(),
            GroupHelper::MatrixCommit => "wgmma_commit".into(),
            GroupHelper::MatrixWait => "wgmma_wait".into(),
            GroupHelper::TensorMemory(helper) => helper.name(),
            GroupHelper::Matrix(op) => {
                let sides = sides(op.operand, [op.a_transposed, op.b_transposed]);
                let held = if op.a_held { "_r" } else { "" };
                format!("wgmma_m64n{}k{}_{}{sides}{held}", op.n, op.k(), operand(op.operand))
            }
        }
    }

    /// The whole definition.
    pub fn text(self) -> String {
        let function = |rest: &str| format!("__device__ __forceinline__ void {}{rest}\n", self.name());
        let template = |instruction: &str| {
            format!(
                "template <int number>\n__device__ __forceinline__ void {}()
{{
    asm volatile(\"{instruction} %0;\" :: \"n\"(number) : \"memory\");
}}
",
                self.name()
            )
        };
        let plain =
            |instruction: &str| function(&format!("()\n{{\n    asm volatile(\"{instruction};\" ::: \"memory\");\n}}"));
        match self {
            GroupHelper::TensorMapType => {
                "struct __align__(128) TensorMap { unsigned long long words[16]; }; // as CUtensorMap\n".into()
            }
            GroupHelper::Initialise => function(
                "(unsigned long long* barrier, int arrivals)
{
    asm volatile(\"mbarrier.init.shared::cta.b64 [%0], %1;\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(barrier)), \"r\"(arrivals) : \"memory\");
}",
            ),
            GroupHelper::FenceInitialised => plain("fence.mbarrier_init.release.cluster"),
            GroupHelper::Arrive => function(
                "(unsigned long long* barrier)
{
    asm volatile(\"mbarrier.arrive.shared::cta.b64 _, [%0];\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(barrier)) : \"memory\");
}",
            ),
            GroupHelper::ArriveRemote => function(
                "(unsigned int remote)
{
    asm volatile(\"mbarrier.arrive.shared::cluster.b64 _, [%0];\" :: \"r\"(remote) : \"memory\");
}",
            ),
            GroupHelper::Remote => format!(
                "// Where a block of the cluster has this barrier; not made anew each time.
__device__ __forceinline__ unsigned int {}(unsigned long long* barrier, int rank)
{{
    unsigned int remote;
    asm volatile(\"mapa.shared::cluster.u32 %0, %1, %2;\"
                 : \"=r\"(remote) : \"r\"((unsigned int)__cvta_generic_to_shared(barrier)), \"r\"(rank));
    return remote;
}}
",
                self.name()
            ),
            GroupHelper::ClusterBarrier => function(
                "()
{
    asm volatile(\"barrier.cluster.arrive.release;\\nbarrier.cluster.wait.acquire;\" ::: \"memory\");
}",
            ),
            GroupHelper::ArriveExpect => function(
                "(unsigned long long* barrier, int bytes)
{
    asm volatile(\"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(barrier)), \"r\"(bytes) : \"memory\");
}",
            ),
            GroupHelper::WaitPhase => function(
                "(unsigned long long* barrier, int parity)
{
    asm volatile(\"{\\n.reg .pred done;\\n\"
                 \"again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n\"
                 \"@done bra end;\\nbra again;\\nend:\\n}\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(barrier)), \"r\"(parity) : \"memory\");
}",
            ),
            GroupHelper::PrefetchMap => function(
                "(const TensorMap& map)
{
    asm volatile(\"prefetch.tensormap [%0];\" :: \"l\"(&map) : \"memory\");
}",
            ),
            GroupHelper::LoadTile { rank, images, multicast } => function(&load(rank.into(), images, multicast)),
            GroupHelper::StoreTile { rank } => function(&store(rank.into())),
            GroupHelper::StoreCommit => plain("cp.async.bulk.commit_group"),
            GroupHelper::StoreWait => template("cp.async.bulk.wait_group"),
            GroupHelper::StoreWaitRead => template("cp.async.bulk.wait_group.read"),
            GroupHelper::FenceAsync => plain("fence.proxy.async.shared::cta"),
            GroupHelper::NamedBarrier => function(
                "(int id, int threads)
{
    asm volatile(\"bar.sync %0, %1;\" :: \"r\"(id), \"r\"(threads) : \"memory\");
}",
            ),
            GroupHelper::RegistersUp => template("setmaxnreg.inc.sync.aligned.u32"),
            GroupHelper::RegistersDown => template("setmaxnreg.dec.sync.aligned.u32"),
            GroupHelper::Descriptor => {
                "// Of a matrix in swizzled shared memory (1: of 128 bytes, 2: 64, 3: 32); strides in bytes. What is added moves it, in 16.
__device__ __forceinline__ unsigned long long matrix_descriptor(const void* start, int leading, int stride, int swizzle)
{
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(start);
    const unsigned int low = ((address & 0x3ffffu) >> 4) + ((leading >> 4) << 16);
    const unsigned int high = ((unsigned int)swizzle << 30) | (stride >> 4);
    return (unsigned long long)high << 32 | low;
}
"
                .into()
            }
            GroupHelper::Kept => {
                "// The compiler shall keep it in registers, where it would add it to another one each time.
__device__ __forceinline__ unsigned long long kept_descriptor(unsigned long long descriptor)
{
    asm volatile(\"\" : \"+l\"(descriptor));
    return descriptor;
}
"
                .into()
            }
            GroupHelper::MatrixKeep(dtype) => {
                let (sum, letter, _) = sums(dtype);
                format!(
                    "// The sums are in their registers from here on: the compiler may not set them after the fence.
template <int count> __device__ __forceinline__ void wgmma_keep({sum}* d)
{{
#pragma unroll
    for (int i = 0; i < count; ++i) asm volatile(\"\" : \"+{letter}\"(d[i]));
}}
"
                )
            }
            GroupHelper::MatrixFence => plain("wgmma.fence.sync.aligned"),
            GroupHelper::MatrixCommit => plain("wgmma.commit_group.sync.aligned"),
            GroupHelper::MatrixWait => template("wgmma.wait_group.sync.aligned"),
            GroupHelper::Matrix(op) => matrix(op, &self.name()),
            GroupHelper::TensorMemory(helper) => helper.text(),
        }
    }
}

/// Coordinates of a box of a tensor of so many dimensions.
fn coordinates(rank: usize) -> Vec<&'static str> {
    ["x", "y", "z", "u", "v"][..rank.min(5)].to_vec()
}

/// Parameters of these names.
fn integers(names: &[&str]) -> String {
    names.iter().map(|name| format!(", int {name}")).collect()
}

/// Operands of an instruction that are these parameters.
fn bound(names: &[&str], letter: char, cast: &str) -> String {
    names.iter().map(|name| format!(", \"{letter}\"({cast}{name})")).collect()
}

/// So many operands of an instruction as a vector.
fn vector(first: usize, count: usize) -> String {
    let names: Vec<String> = (first..first + count).map(|i| format!("%{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// A copy of a box from shared memory.
fn store(rank: usize) -> String {
    let names = coordinates(rank);
    let last = 1 + rank;
    format!(
        "(const TensorMap& map{}, const void* from)
{{
    asm volatile(\"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%0, {}], [%{last}];\"
                 :: \"l\"(&map){}, \"r\"((unsigned int)__cvta_generic_to_shared(from)) : \"memory\");
}}",
        integers(&names),
        vector(1, rank),
        bound(&names, 'r', ""),
    )
}

/// A copy of a box to shared memory, of a tensor or of pixels of images; the instruction's operands are the parameters in order.
fn load(rank: usize, images: bool, multicast: bool) -> String {
    let between = if images { rank.saturating_sub(2).min(3) } else { 0 };
    let (coordinates, offsets) = match images {
        false => (coordinates(rank), vec![]),
        true => ([&["c"], &["w", "h", "d"][..between], &["n"]].concat(), ["by_w", "by_h", "by_d"][..between].to_vec()),
    };
    let last = if multicast { vec!["blocks"] } else { vec![] };
    let barrier = 2 + rank;
    let mut operands = format!("[%0], [%1, {}], [%{barrier}]", vector(2, rank));
    if images {
        operands += &format!(", {}", vector(barrier + 1, between));
    }
    if multicast {
        operands += &format!(", %{}", barrier + 1 + between);
    }
    let mode = if images { "im2col" } else { "tile" };
    let cluster = if multicast { ".multicast::cluster" } else { "" };
    let shorts = [offsets, last].concat();
    format!(
        "(void* to, const TensorMap& map{}, unsigned long long* barrier{})
{{
    asm volatile(\"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes{cluster}\"
                 \" {operands};\"
                 :: \"r\"((unsigned int)__cvta_generic_to_shared(to)), \"l\"(&map){},
                    \"r\"((unsigned int)__cvta_generic_to_shared(barrier)){} : \"memory\");
}}",
        integers(&coordinates),
        integers(&shorts),
        bound(&coordinates, 'r', ""),
        bound(&shorts, 'h', "(unsigned short)"),
    )
}

pub(super) fn operand(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I8 => "s8",
        DType::F8E4M3 => "e4m3",
        DType::F8E5M2 => "e5m2",
        _ => "tf32",
    }
}

/// How operands lie, as names have it: 16-bit types alone lie in several ways.
pub(super) fn sides(dtype: DType, transposed: [bool; 2]) -> String {
    let [a, b] = transposed.map(|t| if t { 't' } else { 'n' });
    if dtype.bytes() == 2 {
        format!("_{a}{b}")
    } else {
        String::new()
    }
}

/// So many registers of an instruction: their numbers, and what they are bound to under a constraint.
pub(super) fn registers(count: u32, constraint: &str) -> [String; 2] {
    let lines = |text: &dyn Fn(u32) -> String, separator: &str| {
        let line = |i: u32| (i..(i + 16).min(count)).map(text).collect::<Vec<_>>().join(", ");
        (0..count).step_by(16).map(line).collect::<Vec<_>>().join(separator)
    };
    let list = lines(&|i| format!("%{i}"), ", \"\n                 \"");
    [list, lines(&|i| format!("\"{constraint}\"(d[{i}])"), ",\n                   ")]
}

fn matrix(op: Wgmma, name: &str) -> String {
    let count = op.n / 2 * op.accumulator().bytes() / 4;
    let (c_type, letter, sum) = sums(op.accumulator());
    let [list, d] = registers(count, &format!("+{letter}"));
    // Scale of D, signs of A and B, then which sides are transposed (16-bit types only).
    let flags = match (op.operand, op.operand.bytes()) {
        (DType::I8, _) => "1".to_string(),
        (_, 2) if op.a_held => format!("1, 1, 1, {}", u8::from(op.b_transposed)),
        (_, 2) => format!("1, 1, 1, {}, {}", u8::from(op.a_transposed), u8::from(op.b_transposed)),
        _ => "1, 1, 1".into(),
    };
    let (n, k, t) = (op.n, op.k(), operand(op.operand));
    // A's four words, or its descriptor.
    let (a_type, a, ab) = match op.a_held {
        true => {
            let words = (0..4).map(|i| format!("\"r\"(a[{i}])")).collect::<Vec<_>>().join(", ");
            ("const unsigned int*", words, format!("{{{}}}, {}", operands(count, 4), operands(count + 4, 1)))
        }
        false => ("unsigned long long", "\"l\"(a)".into(), operands(count, 2)),
    };
    format!(
        "__device__ __forceinline__ void {name}({c_type}* d, {a_type} a, unsigned long long b)
{{
    asm volatile(\"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{sum}.{t}.{t} {{\"
                 \"{list}\"
                 \"}}, {ab}, {flags};\"
                 : {d}
                 : {a}, \"l\"(b));
}}
"
    )
}
