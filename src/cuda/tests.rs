use super::*;
use crate::kernel::Dim;

#[test]
fn a_guarded_vector_copy_reads_as_a_person_would_write_it() {
    let array = |name: &str, space, written| Array {
        name: name.into(),
        dtype: DType::F32,
        len: 4096,
        space,
        align: 16,
        shared_offset: 0,
        written,
    };
    let i = LocalVar(0);
    let at = Index::Mul(
        Box::new(Index::Add(Box::new(Index::Var(i)), Box::new(Index::ThreadIdx(Dim::X)))),
        Box::new(Index::Const(4)),
    );
    let kernel = Kernel {
        name: "copy".into(),
        notes: vec!["a copy".into()],
        arrays: vec![
            array("A", Space::Global, false),
            array("B", Space::Global, true),
            array("r", Space::Register, false),
        ],
        grid: [1, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        min_blocks_per_sm: None,
        body: vec![
            Stmt::Let {
                var: i,
                name: "i".into(),
                value: Index::Div(Box::new(Index::BlockIdx(Dim::X)), Box::new(Index::Const(8))),
            },
            Stmt::Copy {
                dst: ArrayId(2),
                dst_index: Index::Const(0),
                src: ArrayId(0),
                src_index: at.clone(),
                width: 4,
                zero_unless: Cond::Lt(at.clone(), Index::Const(4000)),
            },
            Stmt::Copy {
                dst: ArrayId(1),
                dst_index: at,
                src: ArrayId(2),
                src_index: Index::Const(0),
                width: 4,
                zero_unless: Cond::True,
            },
        ],
    };
    insta::assert_snapshot!(print(&kernel), @r#"
    // a copy
    extern "C" __global__ void __launch_bounds__(32)
    copy(const float* __restrict__ A, float* __restrict__ B)
    {
        float r[4096];
        const int i = (int)blockIdx.x >> 3;
        {
            const float4 v = (i + (int)threadIdx.x) * 4 < 4000 ? *reinterpret_cast<const float4*>(A + (i + (int)threadIdx.x) * 4) : make_float4(0, 0, 0, 0);
            r[0] = v.x;
            r[1] = v.y;
            r[2] = v.z;
            r[3] = v.w;
        }
        *reinterpret_cast<float4*>(B + (i + (int)threadIdx.x) * 4) = make_float4(r[0], r[1], r[2], r[3]);
    }
    "#);
}
