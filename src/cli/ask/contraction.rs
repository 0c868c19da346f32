//! Questions about the schedules of a contraction, on single threads and on tensor cores.
use super::answer::{only, NOT_HELD};
use super::fixed::Fixed;
use super::tensor::{Multiplier, Products};
use super::{cores, parse, Askable, Fixes};
use crate::explore::{limits, tensor_cores};
use crate::operators::Problem;
use satune_extract::Descriptor;
use satune_ir::term::{Schedule, Space, Term};
use satune_rewrites::space::rules::tensor::TensorCores;
use satune_rewrites::space::Menu;

impl Fixes for Fixed {
    type Term = Term;

    fn variants(&self) -> Vec<Fixed> {
        Fixed::variants(self)
    }

    fn keeps(&self, space: &Space, class: egg::Id, node: &Term) -> bool {
        Fixed::keeps(self, space, class, node)
    }

    fn freer(&self) -> Vec<(String, Fixed)> {
        Fixed::freer(self)
    }

    fn decisions(&self) -> Vec<(String, Fixed)> {
        Fixed::decisions(self)
    }

    fn words(&self) -> String {
        Fixed::words(self)
    }
}

impl Askable for Problem {
    type Fixed = Fixed;

    fn question(&self, text: &str) -> Result<Fixed, String> {
        parse::parse(text, &self.contraction)
    }

    fn fixed_of(&self, plan: &Schedule) -> Result<Fixed, String> {
        Fixed::of_schedule(plan)
            .ok_or_else(|| "the schedule is one of streaming blocks, and the program a contraction".into())
    }

    fn outside(&self, fixed: &Fixed, gpu: &Descriptor) -> Vec<String> {
        let kinds = fixed.kinds();
        if kinds.is_empty() {
            return vec![
                "words of different kinds of schedules (single threads, mma.sync, wgmma) are asked together".into()
            ];
        }
        let limits = limits(gpu);
        by_kind(&kinds, |kind| match (kind, self.products(gpu)) {
            (Multiplier::Cores, _) => cores::outside(fixed, &Menu::of(&self.contraction, &limits), &limits),
            (_, Err(why)) => vec![why],
            (kind, Ok(products)) => products.outside(kind, fixed),
        })
    }

    fn broken(&self, fixed: &Fixed, gpu: &Descriptor) -> Vec<String> {
        let limits = limits(gpu);
        let menu = Menu::of(&self.contraction, &limits);
        // What no menu offers was left out before; of what is left each kind has its reasons.
        let kinds: Vec<Multiplier> = fixed.kinds();
        by_kind(&kinds, |kind| match (kind, self.products(gpu)) {
            (Multiplier::Cores, _) => {
                let outside = cores::outside(fixed, &menu, &limits);
                let broken = || cores::broken(fixed, &self.contraction, &limits, &menu);
                if outside.is_empty() {
                    broken()
                } else {
                    outside
                }
            }
            (_, Err(why)) => vec![why],
            (kind, Ok(products)) => {
                let outside = products.outside(kind, fixed);
                if !outside.is_empty() {
                    return outside;
                }
                let mut out = cores::grid(fixed, &self.contraction, &limits, &menu);
                out.extend(products.broken(kind, fixed));
                out
            }
        })
    }

    fn missing(&self, space: &Space, plan: &Schedule) -> Option<String> {
        if let Some(plan) = plan.cores() {
            return space.contains(plan).err().map(|m| m.to_string());
        }
        // Everything that a plan says is fixed, so what is left is the plan or nothing.
        let found = only(space, &self.fixed_of(plan).ok()?);
        (found.as_ref() != Some(plan)).then(|| NOT_HELD.to_string())
    }
}

trait Tensors {
    /// The product as tensor cores may take it.
    fn products(&self, gpu: &Descriptor) -> Result<Products, String>;
}

impl Tensors for Problem {
    fn products(&self, gpu: &Descriptor) -> Result<Products, String> {
        let cores = TensorCores { tf32: self.tf32, ..tensor_cores(gpu) };
        Products::of(&self.contraction, cores, limits(gpu))
    }
}

/// Reasons against schedules of each kind that is possible; none where there is none against one of them.
fn by_kind(kinds: &[Multiplier], reasons: impl Fn(Multiplier) -> Vec<String>) -> Vec<String> {
    let all: Vec<(Multiplier, Vec<String>)> = kinds.iter().map(|kind| (*kind, reasons(*kind))).collect();
    if all.iter().any(|(_, reasons)| reasons.is_empty()) {
        return Vec::new();
    }
    if let [(_, reasons)] = &all[..] {
        return reasons.clone();
    }
    let named = |(kind, reasons): &(Multiplier, Vec<String>)| format!("on {}: {}", kind.name(), reasons.join("; "));
    all.iter().map(named).collect()
}
