//! Fences of the generic proxy: membar, fence. (`fence.proxy` has a file of its own.)
use crate::program::{Decoder, Flow, Operation, Unsupported};
use crate::syntax::Instruction;

/// See [`super::Family`].
pub fn decode(i: &Instruction, _: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    let proxy = i.modifiers.iter().any(|m| m.starts_with("proxy") || m.starts_with("mbarrier_init"));
    if !matches!(i.opcode.as_str(), "membar" | "fence") || proxy {
        return None;
    }
    Some(Ok(Box::new(|c| {
        let (mask, live) = (c.mask, c.warp.live);
        c.warp.clocks.fence(mask, live);
        Ok(Flow::Next)
    })))
}
