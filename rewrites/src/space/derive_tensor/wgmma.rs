//! The trace of a plan on `wgmma` or `tcgen05`.
use super::common::{shared, Product, Writer, SIDES};
use super::error::Untraced;
use crate::intrinsics::group::Group;
use crate::intrinsics::tcgen05;
use crate::keys;
use crate::space::gather::GatherWriter;
use crate::space::writer::{var, TraceWriter};
use crate::trace::Trace;
use satune_ir::term::tensor::{by_threads_conditions, wgmma_conditions, GroupMma, TileStore, WgmmaPlan};
use serde_json::{json, Value};

/// Makes the trace.
pub(super) fn trace(plan: &WgmmaPlan, product: &Product) -> Result<[Trace; 3], Untraced> {
    let gemm = &product.gemm;
    plan.check(gemm)?;
    let [a_across, b_across] = SIDES.map(|side| wgmma_conditions::across(gemm, side));
    let transposed = [a_across, !b_across];
    let op = Group { op: plan.op, n: plan.tile[1], types: gemm.types(), transposed, held: false };
    let mut base = Writer::new(product, plan.tile, plan.split_k);
    base.aligned = SIDES.map(|side| wgmma_conditions::aligned(gemm, side).filter(|_| !plan.by_threads));
    let main = base.begin();
    base.cache_sums(main, if plan.op.holds_sums() { "warp" } else { tcgen05::SCOPE });
    let by_shared = plan.store != TileStore::Direct;
    if by_shared {
        base.cache_tile();
    }
    for side in SIDES {
        base.cache_operand(main, side);
    }
    base.inlined(base.contraction);
    nest(&mut base, plan, op.k());
    for side in SIDES {
        base.call("compute_at", [var(shared(side)), var("k_tile"), json!(true)]);
        base.note(shared(side), keys::TMA, i64::from(!plan.by_threads));
    }
    base.call("reverse_compute_at", [var("c_fragment"), var("consumer"), json!(true)]);
    if by_shared {
        base.call("reverse_compute_at", [var("c_shared"), var("consumer"), json!(true)]);
        base.note("c_shared", keys::TMA, if plan.store == TileStore::Boxes { 2 } else { 1 });
    }
    if plan.by_threads {
        let [consumers, threads] = [plan.consumers, plan.threads()].map(i64::from);
        for side in SIDES {
            base.fill(side, &by_threads_conditions::WAY, [consumers, threads / consumers]);
        }
    }
    base.call("annotate", [var("k_tile"), json!(keys::PIPELINE_STAGE), json!([0, 0, i64::from(plan.stages) - 1])]);
    base.call("annotate", [var("k_tile"), json!(keys::PIPELINE_ORDER), json!([0, 1, 2])]);
    base.call("annotate", [var("k_tile"), json!(keys::PIPELINE_ASYNC), json!([0])]);
    base.note("k_tile", keys::EAGER_RELEASE, plan.eager_release.into());
    base.note("k_tile", keys::ARRIVE_PER_WARP, plan.arrive_per_warp.into());
    match plan.op {
        GroupMma::Wgmma => base.sums_in_registers(main),
        GroupMma::Tcgen05 => base.sums_in_rows(main),
    }
    base.finish();
    base.loops_are_done();
    base.instructions(main, "m_row", (op.fill_name(), op.name()));
    base.spread_copies();
    Ok(base.in_parts())
}

/// The loops: blocks, consumers, tiles and steps along k, blocks of an instruction's rows; and what is said about the blocks.
fn nest(base: &mut Writer<'_>, plan: &WgmmaPlan, k: i64) {
    let consumers = if plan.ping_pong { 1 } else { i64::from(plan.consumers) };
    base.begin_loops();
    let mut split = |axis: &str, factors: &[i64], names: &[&str]| {
        let factors = [vec![Value::Null], factors.iter().copied().map(Value::from).collect()].concat();
        let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
        base.split_into(var(axis), factors, &names);
    };
    let rows = ["m_block", "consumer", "m_instruction", "m_row"];
    split("l_m", &[consumers, plan.row_blocks(), plan.op.rows()], &rows);
    split("l_n", &[plan.tile[1]], &["n_block", "n_column"]);
    split("l_k", &[plan.tile[2] / k, k], &["k_tile", "k_step", "k_lane"]);
    let blocks = base.blocks(plan.raster);
    let turns = if plan.by_rows { ["m_instruction", "k_step"] } else { ["k_step", "m_instruction"] };
    let inner = [&["consumer", "k_tile"][..], &turns[..], &["m_row", "n_column", "k_lane"][..]].concat();
    let all = [blocks.clone(), inner.into_iter().map(String::from).collect()].concat();
    base.call("reorder", all.iter().map(|l| var(l)));
    base.fuse_into(&blocks, "block_fused");
    base.call("bind", [var("block_fused"), json!("blockIdx.x")]);
    base.call("bind", [var("consumer"), json!("threadIdx.y")]);
    base.annotate_raster(plan.raster);
    base.note("block_fused", keys::PERSISTENT, plan.blocks.map_or(0, i64::from));
    base.note("block_fused", keys::PING_PONG, plan.ping_pong.into());
    base.note("block_fused", keys::STREAM_K, plan.stream_k.into());
    if plan.cluster != [1, 1] {
        base.note("block_fused", keys::CLUSTER_M, plan.cluster[0].into());
        base.note("block_fused", keys::CLUSTER_N, plan.cluster[1].into());
    }
}
