//! What binds a predicted time, and what would help, in a sentence.
use std::collections::BTreeMap;

/// A part of the time as people call it, whether it is many, and what would make it less.
fn known(part: &str) -> Option<(&'static str, bool, &'static str)> {
    Some(match part {
        "issue" => ("instruction issue", false, "larger tiles of a thread, wider accesses, an expanded inner loop"),
        "multiply_add" => (
            "the arithmetic units",
            true,
            "only tensor cores (products of tf32 or 16-bit operands): no schedule does with less",
        ),
        "tensor_cores" => ("the tensor cores", true, "only narrower operands, or tiles that fill the last wave"),
        "shared_memory" => (
            "wavefronts of shared memory",
            true,
            "accesses of 16 bytes, a padded or swizzled layout, larger tiles of a thread",
        ),
        "load_store" => ("the load/store units", true, "wider accesses, larger tiles of a thread"),
        "l1" => ("L1", false, "accesses of whole 128-byte lines, operands staged in shared memory"),
        "l2" => ("L2", false, "larger tiles of a block, clusters"),
        "dram" => {
            ("DRAM", false, "fewer bytes: an order of blocks that finds more in L2, fused programs, narrower types")
        }
        "power" => ("the power limit", false, "fewer bytes from L2 and DRAM by larger tiles, narrower types"),
        "latency" => ("latency that nothing covers", false, "more blocks per multiprocessor, a longer ring of tiles"),
        "epilogue" => ("storing the results", false, "wider stores of whole lines, consumers in turn, the copy engine"),
        "prologue" => ("copying strips above the k loop", false, "smaller strips, or tiles in the k loop"),
        "launch" => ("launching", false, "more work per launch, fewer kernels, a CUDA graph"),
        "add_parts" => ("adding the parts of k", false, "fewer parts"),
        "align_rows" => ("copying operands first", false, "operands along k whose rows are multiples of 16 bytes"),
        _ => return None,
    })
}

/// What binds: the largest part; with the next one where it is near, for with less of the first that binds.
pub fn sentence(parts: &BTreeMap<String, f64>, occupancy: &(i64, String)) -> String {
    let mut order: Vec<(&str, f64)> = parts.iter().map(|(name, ms)| (name.as_str(), *ms)).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let Some(&(first, most)) = order.first().filter(|o| o.1 > 0.0) else { return "Nothing binds it.".into() };
    let Some((name, many, help)) = known(first) else { return format!("{first} binds it.") };
    let mut subject = name.to_string();
    subject[..1].make_ascii_uppercase();
    let mut text =
        format!("{subject} bind{} it ({most:.4} ms alone); what would help: {help}", if many { "" } else { "s" });
    if first == "latency" {
        text.push_str(&format!(" ({} resident, limited by {})", occupancy.0, occupancy.1));
    }
    if let Some((next, ms)) = order.get(1).filter(|(_, ms)| *ms > 0.85 * most) {
        let name = known(next).map_or(*next, |k| k.0);
        text.push_str(&format!("; next: {name} ({ms:.4} ms)"));
    }
    text.push('.');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_part_binds_and_one_near_it_is_named() {
        let of = |parts: &[(&str, f64)]| {
            let parts: BTreeMap<String, f64> = parts.iter().map(|(n, v)| (n.to_string(), *v)).collect();
            sentence(&parts, &(2, "registers".into()))
        };
        let text = of(&[("load_store", 2.0), ("issue", 1.9), ("dram", 0.1)]);
        assert!(text.starts_with("The load/store units bind it (2.0000 ms alone)"), "{text}");
        assert!(text.contains("wider accesses") && text.ends_with("next: instruction issue (1.9000 ms)."), "{text}");
        let text = of(&[("latency", 2.0), ("issue", 0.1)]);
        assert!(text.contains("2 resident, limited by registers") && !text.contains("next"), "{text}");
        assert_eq!(of(&[]), "Nothing binds it.");
    }

    #[test]
    fn every_part_that_the_model_names_is_known() {
        use satune_extract::Descriptor;
        use satune_ir::term::{tensor::WgmmaPlan, CoresPlan, Schedule};
        let gpu = Descriptor::load("h200").unwrap();
        let product = crate::operators::parse("gemm:256,256,256,bf16,NT").unwrap().contraction;
        let plans = [
            Schedule::Cores(CoresPlan::naive(&product)),
            Schedule::Wgmma(WgmmaPlan { split_k: 2, ..WgmmaPlan::plain([128, 128, 64], 2, 3) }),
        ];
        for plan in plans {
            for part in satune_extract::predict(&plan, &product, &gpu).unwrap().parts.keys() {
                assert!(known(part).is_some(), "{part}");
            }
        }
        assert!(satune_extract::ADDED.iter().all(|part| known(part).is_some()));
    }
}
