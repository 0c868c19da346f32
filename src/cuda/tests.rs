use super::*;
use crate::kernel::{Arith, Comparison, Cond, Unroll, Value};

fn array(name: &str, dtype: DType, len: u64, space: Space) -> Array {
    let written = space != Space::Global || name.starts_with('C');
    Array { name: name.into(), dtype, len, space, align: 16, shared_offset: 0, written }
}

fn kernel(arrays: Vec<Array>, body: Vec<Stmt>) -> Kernel {
    Kernel {
        name: "k".into(),
        notes: vec![],
        arrays,
        grid: [64, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        min_blocks_per_sm: None,
        cluster: 1,
        tensor_maps: vec![],
        body,
    }
}

fn c(v: i64) -> Index {
    Index::Const(v)
}

fn add(a: Index, b: Index) -> Index {
    Index::Add(Box::new(a), Box::new(b))
}

fn mul(a: Index, b: Index) -> Index {
    Index::Mul(Box::new(a), Box::new(b))
}

fn thread() -> Index {
    Index::ThreadIdx(Dim::X)
}

fn load(array: u32, index: Index) -> Value {
    Value::Load(ArrayId(array), index)
}

fn store(array: u32, value: Value) -> Stmt {
    Stmt::Store { array: ArrayId(array), index: thread(), value }
}

/// The statements of the text, without the frame.
fn body_of(kernel: &Kernel) -> String {
    let text = print(kernel);
    let start = text.rfind("\n{\n").map_or(0, |i| i + 3);
    text[start..].trim_end_matches("}\n").lines().map(|l| format!("{}\n", l.trim_start())).collect()
}

/// The text of `C[tx] = value` over arrays A, B of the type and C.
fn stored(dtype: DType, to: DType, value: Value) -> String {
    let g = Space::Global;
    let arrays = vec![array("A", dtype, 32, g), array("B", dtype, 32, g), array("C", to, 32, g)];
    let body = body_of(&kernel(arrays, vec![store(2, value)]));
    body.lines().last().unwrap_or("").to_string()
}

/// The text of an index into an array of so many elements.
fn indexed(grid: u32, block: u32, index: Index) -> String {
    let mut k = kernel(vec![array("C", DType::F32, 1, Space::Global)], vec![]);
    (k.grid[0], k.block[0]) = (grid, block);
    k.body = vec![Stmt::Store { array: ArrayId(0), index, value: Value::Int(0, DType::F32) }];
    let body = body_of(&k);
    let line = body.lines().last().unwrap_or("").to_string();
    line.trim_start_matches("C[").trim_end_matches("] = 0.0f;").to_string()
}

#[test]
fn a_guarded_vector_copy_reads_as_a_person_would_write_it() {
    let i = LocalVar(0);
    let at = mul(add(Index::Var(i), thread()), c(4));
    let copy = |dst: u32, dst_index: &Index, src: u32, src_index: &Index, zero_unless| Stmt::Copy {
        dst: ArrayId(dst),
        dst_index: dst_index.clone(),
        src: ArrayId(src),
        src_index: src_index.clone(),
        width: 4,
        zero_unless,
    };
    let mut kernel = kernel(
        vec![
            array("A", DType::F32, 4096, Space::Global),
            array("C", DType::F32, 4096, Space::Global),
            array("r", DType::F32, 4, Space::Register),
        ],
        vec![
            Stmt::Let {
                var: i,
                name: "i".into(),
                value: Index::Div(Box::new(Index::BlockIdx(Dim::X)), Box::new(c(8))),
            },
            copy(2, &c(0), 0, &at, Cond::Lt(at.clone(), c(4000))),
            copy(1, &at, 2, &c(0), Cond::True),
        ],
    );
    kernel.notes = vec!["a copy, \\".into(), "guarded".into()];
    insta::assert_snapshot!(print(&kernel), @r#"
    // a copy,
    // guarded
    // launch: 64 blocks of 32 threads
    extern "C" __global__ void __launch_bounds__(32)
    k(const float* __restrict__ A, float* __restrict__ C)
    {
        __align__(16) float r[4];
        const int bx = blockIdx.x;
        const int tx = threadIdx.x;
        const int i = bx >> 3;
        *reinterpret_cast<float4*>(r) = (i + tx) * 4 < 4000 ? *reinterpret_cast<const float4*>(A + (i + tx) * 4) : float4();
        *reinterpret_cast<float4*>(C + (i + tx) * 4) = *reinterpret_cast<const float4*>(r);
    }
    "#);
}

#[test]
fn indices_have_no_more_parentheses_than_a_reader_needs() {
    let t = thread;
    let op = |f: fn(Box<Index>, Box<Index>) -> Index, a, b| f(Box::new(a), Box::new(b));
    for (index, text) in [
        (add(mul(t(), c(4)), c(-3)), "tx * 4 - 3"),
        (mul(add(t(), c(1)), c(4)), "(tx + 1) * 4"),
        (op(Index::Sub, t(), op(Index::Sub, t(), c(1))), "tx - (tx - 1)"),
        (op(Index::Div, add(t(), c(1)), c(8)), "(tx + 1) >> 3"),
        (op(Index::Mod, op(Index::Div, t(), c(8)), c(4)), "(tx >> 3) & 3"),
        (op(Index::Mod, op(Index::Div, t(), c(6)), c(5)), "tx / 6 % 5"),
        (op(Index::Mul, c(3), op(Index::Mod, t(), c(5))), "3 * (tx % 5)"),
        (op(Index::Xor, mul(t(), c(4)), op(Index::And, t(), c(3))), "(tx * 4) ^ (tx & 3)"),
        (op(Index::Min, t(), op(Index::Max, t(), c(5))), "min(tx, max(tx, 5))"),
        (op(Index::Shl, c(1), t()), "1 << tx"),
    ] {
        assert_eq!(indexed(1, 16, index), text);
    }
}

#[test]
fn indices_are_computed_in_64_bits_from_where_32_do_not_hold_them() {
    let block = || Index::BlockIdx(Dim::X);
    for (index, text) in [
        (add(mul(block(), c(1 << 11)), thread()), "bx * 2048 + tx"),
        (add(mul(block(), c(1 << 12)), thread()), "(long long)bx * 4096 + tx"),
        (mul(add(mul(block(), c(4)), thread()), c(1 << 12)), "(long long)(bx * 4 + tx) * 4096"),
        (add(block(), c(1 << 40)), "bx + 1099511627776LL"),
        (Index::Min(Box::new(mul(block(), c(1 << 12))), Box::new(c(7))), "min((long long)bx * 4096, (long long)7)"),
        (Index::Mod(Box::new(mul(block(), c(1 << 12))), Box::new(c(7))), "(long long)bx * 4096 % 7"),
    ] {
        assert_eq!(indexed(1 << 20, 32, index), text);
    }
}

#[test]
fn variables_have_the_width_of_their_values() {
    let (row, i) = (LocalVar(0), LocalVar(1));
    let mut k = kernel(
        vec![array("C", DType::F32, 1 << 40, Space::Global)],
        vec![
            Stmt::Let { var: row, name: "row".into(), value: mul(Index::BlockIdx(Dim::X), c(1 << 20)) },
            Stmt::For {
                var: i,
                name: "int".into(),
                start: c(2),
                extent: c(3),
                unroll: Unroll::By(3),
                body: vec![Stmt::If {
                    cond: Cond::Not(Box::new(Cond::Lt(Index::Var(row), c(1 << 33)))),
                    then: vec![Stmt::Store {
                        array: ArrayId(0),
                        index: add(Index::Var(row), Index::Var(i)),
                        value: Value::Float(f64::NEG_INFINITY, DType::F32),
                    }],
                    otherwise: vec![],
                }],
            },
        ],
    );
    k.grid[0] = 1 << 20;
    insta::assert_snapshot!(body_of(&k), @r#"
    const int bx = blockIdx.x;
    const long long row = (long long)bx * 1048576;
    #pragma unroll 3
    for (int int_ = 2; int_ < 5; ++int_) {
    if (row >= 8589934592LL) {
    C[row + int_] = __uint_as_float(0xff800000u);
    }
    "#);
}

#[test]
fn values_of_each_type() {
    use DType::{Bool, BF16, F16, F32, F64, I32, I64};
    let a = || Box::new(load(0, thread()));
    let b = || Box::new(load(1, thread()));
    let binary = |op, dtype| Value::Binary(op, dtype, a(), b());
    let sum = |dtype| Value::Fma(dtype, a(), b(), Box::new(load(2, thread())));
    let nested = Value::Binary(Arith::Mul, F32, Box::new(binary(Arith::Add, F32)), b());
    for (from, to, value, text) in [
        (F32, F32, sum(F32), "C[tx] = fmaf(A[tx], B[tx], C[tx]);"),
        (F64, F64, sum(F64), "C[tx] = fma(A[tx], B[tx], C[tx]);"),
        (F16, F16, sum(F16), "C[tx] = half_fma(A[tx], B[tx], C[tx]);"),
        (BF16, BF16, sum(BF16), "C[tx] = bf16_fma(A[tx], B[tx], C[tx]);"),
        (F16, F32, sum(F32), "C[tx] = fmaf(half_to_float(A[tx]), half_to_float(B[tx]), C[tx]);"),
        (I32, I32, sum(I32), "C[tx] = (int)((unsigned int)A[tx] * B[tx] + C[tx]);"),
        (I32, I64, sum(I64), "C[tx] = (long long)((unsigned long long)((long long)A[tx] * (long long)B[tx]) + C[tx]);"),
        (F32, F32, nested, "C[tx] = (A[tx] + B[tx]) * B[tx];"),
        (F16, F16, binary(Arith::Add, F16), "C[tx] = half_add(A[tx], B[tx]);"),
        (F16, F16, binary(Arith::Div, F16), "C[tx] = float_to_half(half_to_float(A[tx]) / half_to_float(B[tx]));"),
        (F32, F32, binary(Arith::Max, F32), "C[tx] = fmaxf(A[tx], B[tx]);"),
        (I32, I32, binary(Arith::Min, I32), "C[tx] = min(A[tx], B[tx]);"),
        (F16, F16, Value::Unary("exp".into(), F16, a()), "C[tx] = float_to_half(expf(half_to_float(A[tx])));"),
        (
            F32,
            F32,
            Value::Unary("sigmoid".into(), F32, Box::new(binary(Arith::Add, F32))),
            "C[tx] = 1.0f / (1.0f + expf(-(A[tx] + B[tx])));",
        ),
        (F32, F16, Value::Cast(F16, a()), "C[tx] = float_to_half(A[tx]);"),
        (F64, F16, Value::Cast(F16, a()), "C[tx] = double_to_half(A[tx]);"),
        (F16, I32, Value::Cast(I32, a()), "C[tx] = __float2int_rz(half_to_float(A[tx]));"),
        (I32, BF16, Value::Cast(BF16, a()), "C[tx] = float_to_bf16((float)A[tx]);"),
        (F32, Bool, Value::Cast(Bool, a()), "C[tx] = A[tx] != 0;"),
        (F32, F16, Value::Float(1.0, F16), "C[tx] = 0x3c00;"),
        (F32, F64, Value::Float(0.1, F64), "C[tx] = 0.1;"),
        (F32, F32, Value::Float(f64::NEG_INFINITY, F32), "C[tx] = __uint_as_float(0xff800000u);"),
        (F32, F64, Value::Float(f64::INFINITY, F64), "C[tx] = __longlong_as_double(0x7ff0000000000000LL);"),
        (F32, F32, binary(Arith::Pow, F32), "C[tx] = powf(A[tx], B[tx]);"),
        (
            F16,
            F16,
            Value::Choose(Box::new(Value::Compare(Comparison::Le, F16, a(), b())), a(), b()),
            "C[tx] = half_to_float(A[tx]) <= half_to_float(B[tx]) ? A[tx] : B[tx];",
        ),
        (
            F32,
            F32,
            Value::Shuffle { value: a(), lane_mask: 16, lanes: 32 },
            "C[tx] = __shfl_xor_sync(0xffffffffu, A[tx], 16);",
        ),
        (
            F16,
            F16,
            Value::Shuffle { value: a(), lane_mask: 2, lanes: 8 },
            "C[tx] = (unsigned short)__shfl_xor_sync(0xffu << (tx & 24), A[tx], 2);",
        ),
        (F32, F32, Value::FromIndex(F32, add(thread(), c(1))), "C[tx] = (float)(tx + 1);"),
        (F32, F32, Value::Binary(Arith::Add, F32, Box::new(load(2, thread())), b()), "C[tx] += B[tx];"),
        (
            F32,
            F32,
            Value::Select(
                Cond::And(vec![Cond::Lt(thread(), c(5)), Cond::Or(vec![Cond::Eq(thread(), c(1)), Cond::True])]),
                a(),
                Box::new(Value::Float(-1.0, F32)),
            ),
            "C[tx] = tx < 5 && (tx == 1 || true) ? A[tx] : -1.0f;",
        ),
    ] {
        assert_eq!(stored(from, to, value), text);
    }
}

#[test]
fn arrays_that_share_bytes_are_carved_from_one() {
    let mut second = array("second", DType::F16, 64, Space::Shared);
    second.shared_offset = 128;
    let mut k = kernel(vec![array("first", DType::F32, 32, Space::Shared), second], vec![]);
    k.shared_bytes = 256;
    insta::assert_snapshot!(body_of(&k), @r#"
    __shared__ __align__(16) float first[32];
    __shared__ __align__(16) unsigned short second[64];
    "#);
    k.arrays[1].shared_offset = 64;
    insta::assert_snapshot!(body_of(&k), @r#"
    __shared__ __align__(16) unsigned char shared_memory[256];
    float* const first = reinterpret_cast<float*>(shared_memory);
    unsigned short* const second = reinterpret_cast<unsigned short*>(shared_memory + 64);
    "#);
    k.shared_bytes = 64 * 1024;
    assert!(print(&k).contains("extern __shared__ __align__(16) unsigned char shared_memory[];"));
}

#[test]
fn no_name_collides_with_the_language_or_another() {
    let arrays = ["float", "tx", "a b", "a_b", "copy_async_16"].map(|n| array(n, DType::F32, 32, Space::Global));
    let mut k = kernel(arrays.to_vec(), vec![store(1, load(0, thread()))]);
    k.name = "main".into();
    insta::assert_snapshot!(print(&k), @r#"
    // launch: 64 blocks of 32 threads
    extern "C" __global__ void __launch_bounds__(32)
    main_kernel(
        const float* __restrict__ float_,
        const float* __restrict__ tx,
        const float* __restrict__ a_b,
        const float* __restrict__ a_b2,
        const float* __restrict__ copy_async_16_)
    {
        const int tx2 = threadIdx.x;
        tx[tx2] = float_[tx2];
    }
    "#);
    assert_eq!(function_name("gemm"), "gemm");
}

#[test]
fn asynchronous_copies_and_their_groups() {
    let copy = |width, zero_unless| Stmt::AsyncCopy {
        dst: ArrayId(1),
        dst_index: mul(thread(), c(4)),
        src: ArrayId(0),
        src_index: mul(thread(), c(4)),
        width,
        prefetch: 0,
        zero_unless,
    };
    let k = kernel(
        vec![array("A", DType::F32, 128, Space::Global), array("s", DType::F32, 128, Space::Shared)],
        vec![copy(4, Cond::True), copy(1, Cond::Lt(thread(), c(9))), Stmt::AsyncCommit, Stmt::AsyncWait(1)],
    );
    insta::assert_snapshot!(print(&k), @r#"
    // launch: 64 blocks of 32 threads

    __device__ __forceinline__ void copy_async_4_or_zero(void* to, const void* from, bool read)
    {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     :: "r"((unsigned int)__cvta_generic_to_shared(to)), "l"(from), "r"(read ? 4 : 0) : "memory");
    }

    __device__ __forceinline__ void copy_async_16(void* to, const void* from)
    {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     :: "r"((unsigned int)__cvta_generic_to_shared(to)), "l"(from) : "memory");
    }

    __device__ __forceinline__ void copy_async_commit()
    {
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    // Waits until all but the latest groups of this thread are complete.
    template <int latest>
    __device__ __forceinline__ void copy_async_wait()
    {
        asm volatile("cp.async.wait_group %0;" :: "n"(latest) : "memory");
    }

    extern "C" __global__ void __launch_bounds__(32)
    k(const float* __restrict__ A)
    {
        __shared__ __align__(16) float s[128];
        const int tx = threadIdx.x;
        copy_async_16(s + tx * 4, A + tx * 4);
        copy_async_4_or_zero(s + tx * 4, A + (tx < 9 ? tx * 4 : 0), tx < 9);
        copy_async_commit();
        copy_async_wait<1>();
    }
    "#);
}
