//! `wgmma.mma_async` m64nNkK: 64 x K times K x N by four warps, operands in shared memory or A in registers, sums in the warps' registers,
//! whose places are those of `mma.sync` tile by tile ([`super::fragment`]).
use super::fragment;
use super::group::{self, Group, Own};
use super::registry::Registry;
use super::text::zero;
use satune_ir::term::tensor::{Fragment, GroupMma, Mma};

pub(super) fn register(registry: &mut Registry) {
    group::register(registry, GroupMma::Wgmma, own);
}

fn own(g: &Group) -> Own {
    let (n, output) = (g.n, g.types[1].name());
    Own {
        // Tiles of 16 rows and 8 columns, lanes, registers.
        sums: format!("C: T.Buffer((4, {}, 32, 4), \"{output}\", scope=\"warp\", offset_factor=4)", n / 8),
        whole: format!("C[0:4, 0:{}, 0:32, 0:4]", n / 8),
        place,
        call: format!(
            "for tx in T.thread_binding(128, thread=\"threadIdx.x\"):\n    T.call_extern(\"int32\", \
             \"wgmma.mma_async.sync.aligned.m64n{n}k{}.{}.{}\", C.data, C.elem_offset + tx * {}, {}, \
             B.access_ptr(\"r\"), B.strides[0])\n",
            g.k(),
            g.types(),
            g.orders(),
            n / 2,
            // Four words of a thread.
            match g.held {
                true => format!("A.data, A.elem_offset + tx * {}", 16 / g.types[0].bytes()),
                false => "A.access_ptr(\"r\"), A.strides[0]".into(),
            }
        ),
        // Registers are cleared one by one.
        clears: Some(format!(
            "for tx in T.thread_binding(128, thread=\"threadIdx.x\"):\n    for t, r in T.grid({}, 4):\n        \
             C[tx // 32, t, tx % 32, r] = {}\n",
            n / 8,
            zero(output)
        )),
    }
}

fn place(row: &str, column: &str) -> String {
    let [lane, register] = fragment::held(Mma::F16, Fragment::D, [row, column], false);
    format!("C[{row} // 16, {column} // 8, {lane}, {register}]")
}
