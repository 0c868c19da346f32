//! `tcgen05.mma` m128nNkK: 128 x K times K x N by one thread, operands in shared memory, sums in tensor memory: a matrix of 128 lanes and N
//! columns, in the scope that TVM has for it.
use super::group::{self, Group, Own};
use super::registry::Registry;
use super::text::{param, short};
use satune_ir::term::tensor::GroupMma;

/// The scope of tensor memory.
pub const SCOPE: &str = "shared.tmem";

pub(super) fn register(registry: &mut Registry) {
    group::register(registry, GroupMma::Tcgen05, own);
}

fn own(g: &Group) -> Own {
    let (m, n) = (g.op.rows(), g.n);
    let [input, output] = g.types.map(|t| t.name());
    Own {
        sums: param("C", &[m, n], output, "c", &format!("scope=\"{SCOPE}\", offset_factor=1")),
        whole: format!("C[0:{m}, 0:{n}]"),
        place: |row, column| format!("C[{row}, {column}]"),
        call: format!(
            "T.call_extern(\"int32\", \"tcgen05.mma.cta_group.1.m{m}n{n}k{}.{}.{}\", C.access_ptr(\"rw\"), \
             A.access_ptr(\"r\"), A.strides[0], B.access_ptr(\"r\"), B.strides[0])\n",
            g.k(),
            short(input),
            g.orders()
        ),
        // The first product of a tile is not added to anything: nothing clears them.
        clears: None,
    }
}
