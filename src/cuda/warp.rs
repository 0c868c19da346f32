//! Statements of warps and of groups of warps.
use super::bounds::Range;
use super::expression::precedence::{ATOM, MUL, SHIFT, TERNARY};
use super::expression::{Integer, Text};
use super::hopper::GroupHelper;
use super::instructions::WarpHelper;
use super::prelude::Helper;
use super::{c_type, Printer, MARGIN};
use crate::kernel::{Array, ArrayId, GroupOp, Index, Left, Role, Space, WarpOp, WmmaOp};
use satune_ir::DType;

/// `index / by` and `index % by`, where every term but constants is a multiple of `by`.
fn parts(index: &Index, by: i64) -> Option<(Index, i64)> {
    Some(match index {
        Index::Const(v) => (Index::Const(v.div_euclid(by)), v.rem_euclid(by)),
        Index::Add(a, b) => {
            let ((a, i), (b, j)) = (parts(a, by)?, parts(b, by)?);
            let sum = if b == Index::Const(0) { a } else { Index::Add(Box::new(a), Box::new(b)) };
            (i + j < by).then_some((sum, i + j))?
        }
        Index::Mul(a, b) => match b.as_ref() {
            Index::Const(k) if *k == by => (a.as_ref().clone(), 0),
            Index::Const(k) if k % by == 0 => (Index::Mul(a.clone(), Box::new(Index::Const(k / by))), 0),
            _ => return None,
        },
        _ => return None,
    })
}

/// `index / by`, where that is whole; a division elsewhere.
fn divided(index: &Index, by: i64) -> Index {
    match (by, parts(index, by)) {
        (1, _) => index.clone(),
        (_, Some((whole, 0))) => whole,
        _ => Index::Div(Box::new(index.clone()), Box::new(Index::Const(by))),
    }
}

impl Printer<'_> {
    /// The index of the word that holds an element of a fragment array.
    pub(super) fn word_index(&self, array: ArrayId, index: &Index) -> Index {
        divided(index, i64::from(4 / self.kernel.array(array).dtype.bytes().clamp(1, 4)))
    }

    /// Whether it is declared as words of packed elements.
    pub(super) fn is_fragment(&self, array: ArrayId) -> bool {
        let a = self.kernel.array(array);
        a.space == Space::Fragment || a.space == Space::Opaque && a.dtype.bytes() < 4
    }

    /// An element of an array of words of packed elements.
    pub(super) fn packed(&mut self, array: ArrayId, index: &Index) -> Text {
        let dtype = self.kernel.array(array).dtype;
        let per_word = i64::from(4 / dtype.bytes().clamp(1, 4));
        if per_word == 1 {
            return Text::atom(self.element(array, index));
        }
        let bits = i64::from(8 * dtype.bytes());
        let (word, by) = match parts(index, per_word) {
            Some((word, within)) => (word, (within * bits).to_string()),
            None => {
                let times = |make: fn(Box<Index>, Box<Index>) -> Index, a: Index, k| {
                    make(Box::new(a), Box::new(Index::Const(k)))
                };
                let within = times(Index::Mul, times(Index::Mod, index.clone(), per_word), bits);
                (self.word_index(array, index), self.integer(&within).text.within(SHIFT + 1))
            }
        };
        let word = self.element(array, &word);
        let element = if by == "0" { Text::atom(word) } else { Text::new(format!("{word} >> {by}"), SHIFT) };
        element.cast(c_type(dtype))
    }

    fn word(&mut self, (array, index): &(ArrayId, Index)) -> String {
        let index = self.word_index(*array, index);
        self.element(*array, &index)
    }

    fn warp_helper(&mut self, helper: WarpHelper) -> String {
        self.helper(Helper::Warp(helper))
    }

    pub(super) fn group_helper(&mut self, helper: GroupHelper) -> String {
        if matches!(helper, GroupHelper::LoadTile { .. } | GroupHelper::StoreTile { .. }) {
            self.helper(Helper::Group(GroupHelper::TensorMapType));
        }
        self.helper(Helper::Group(helper))
    }

    pub(super) fn at(&mut self, (array, index): &(ArrayId, Index)) -> String {
        self.pointer(*array, index).text
    }

    pub(super) fn warp_op(&mut self, op: &WarpOp) {
        match op {
            WarpOp::LoadMatrix { dst, dst_index, src, src_index, count, transposed } => {
                let name = self.warp_helper(WarpHelper::LoadMatrix(*count, *transposed));
                let (to, from) = (self.pointer(*dst, dst_index).text, self.pointer(*src, src_index).text);
                self.line(&format!("{name}({to}, {from});"));
            }
            WarpOp::StoreMatrix { dst, dst_index, src, src_index, count, transposed } => {
                let name = self.warp_helper(WarpHelper::StoreMatrix(*count, *transposed));
                let (to, from) = (self.pointer(*dst, dst_index).text, self.pointer(*src, src_index).text);
                self.line(&format!("{name}({to}, {from});"));
            }
            WarpOp::Mma { op, d, a, b } => {
                let name = self.warp_helper((*op).into());
                let (d, a, b) = (self.at(d), self.at(a), self.at(b));
                self.line(&format!("{name}({d}, {a}, {b});"));
            }
            WarpOp::Permute { dst, low, high, selector } => {
                let (to, low, high) = (self.word(dst), self.word(low), self.word(high));
                self.line(&format!("{to} = __byte_perm({low}, {high}, {selector:#06x});"));
            }
            WarpOp::Pack { dst, low, high } => {
                let helper = match self.kernel.array(dst.0).dtype {
                    DType::BF16 => WarpHelper::PackBf16,
                    _ => WarpHelper::PackHalf,
                };
                let name = self.warp_helper(helper);
                let (low, high) = (self.value_as(low, DType::F32).text, self.value_as(high, DType::F32).text);
                let to = self.word(dst);
                self.line(&format!("{to} = {name}({low}, {high});"));
            }
            WarpOp::Wmma(op) => self.wmma_op(op),
        }
    }

    fn wmma_op(&mut self, op: &WmmaOp) {
        let text = match op {
            WmmaOp::Zero { op, d } => {
                format!("{}({})", self.warp_helper(WarpHelper::WmmaZero(op.accumulator())), self.at(d))
            }
            WmmaOp::Load { op, side, dst, src, stride, across } => {
                let name = self.warp_helper(WarpHelper::WmmaLoad(*op, *side, *across));
                format!("{name}({}, {}, {stride})", self.at(dst), self.at(src))
            }
            WmmaOp::Multiply { op, d, a, b, across } => {
                let name = self.warp_helper(WarpHelper::Wmma(*op, *across));
                format!("{name}({}, {}, {})", self.at(d), self.at(a), self.at(b))
            }
            WmmaOp::Store { op, dst, stride, src } => {
                let shared = self.kernel.array(dst.0).space == Space::Shared;
                let name = self.warp_helper(WarpHelper::WmmaStore(*op, shared));
                format!("{name}({}, {}, {stride})", self.at(dst), self.at(src))
            }
        };
        self.line(&format!("{text};"));
    }

    pub(super) fn group_op(&mut self, op: &GroupOp) {
        let call = |p: &mut Self, helper: GroupHelper, arguments: String| {
            let name = p.group_helper(helper);
            p.line(&format!("{name}({arguments});"));
        };
        match op {
            GroupOp::BarrierInit { barrier, arrivals } => {
                let arguments = format!("{}, {arrivals}", self.at(barrier));
                call(self, GroupHelper::Initialise, arguments);
            }
            GroupOp::FenceBarrierInit => call(self, GroupHelper::FenceInitialised, String::new()),
            GroupOp::Arrive { barrier } => {
                let at = self.at(barrier);
                call(self, GroupHelper::Arrive, at);
            }
            GroupOp::ArriveRemote { barrier, rank } => {
                let at = self.remote(barrier, rank);
                call(self, GroupHelper::ArriveRemote, at);
            }
            GroupOp::ClusterBarrier => call(self, GroupHelper::ClusterBarrier, String::new()),
            GroupOp::ArriveExpect { barrier, bytes } => {
                let arguments = format!("{}, {bytes}", self.at(barrier));
                call(self, GroupHelper::ArriveExpect, arguments);
            }
            GroupOp::WaitPhase { barrier, parity } => {
                let arguments = format!("{}, {}", self.at(barrier), self.integer(parity).text.text);
                call(self, GroupHelper::WaitPhase, arguments);
            }
            GroupOp::LoadTile { dst, dst_index, map, at, offsets, barrier, multicast } => {
                let (to, map) = (self.pointer(*dst, dst_index).text, self.map_name(*map));
                let mut arguments = vec![to, map];
                arguments.extend(at.iter().map(|i| self.integer(i).text.text));
                arguments.push(self.at(barrier));
                arguments.extend(offsets.iter().chain(multicast).map(|i| self.integer(i).text.text));
                let (rank, images) = (at.len() as u8, !offsets.is_empty());
                let helper = GroupHelper::LoadTile { rank, images, multicast: multicast.is_some() };
                call(self, helper, arguments.join(", "));
            }
            GroupOp::PrefetchMap { map } => {
                let map = self.map_name(*map);
                call(self, GroupHelper::PrefetchMap, map);
            }
            GroupOp::StoreTile { map, at, src, src_index } => {
                let from = self.pointer(*src, src_index).text;
                let mut arguments = vec![self.map_name(*map)];
                arguments.extend(at.iter().map(|i| self.integer(i).text.text));
                arguments.push(from);
                call(self, GroupHelper::StoreTile { rank: at.len() as u8 }, arguments.join(", "));
            }
            GroupOp::StoreCommit => call(self, GroupHelper::StoreCommit, String::new()),
            GroupOp::StoreWait { latest, read } => {
                let name = self.group_helper(if *read { GroupHelper::StoreWaitRead } else { GroupHelper::StoreWait });
                self.line(&format!("{name}<{latest}>();"));
            }
            GroupOp::FenceAsync => call(self, GroupHelper::FenceAsync, String::new()),
            GroupOp::NamedBarrier { id, threads } => {
                let arguments = format!("{}, {threads}", self.integer(id).text.text);
                call(self, GroupHelper::NamedBarrier, arguments);
            }
            GroupOp::MatrixKeep { array, count } => {
                // Words, or numbers.
                let Array { space, dtype, .. } = self.kernel.array(*array);
                let sums = if *space == Space::Fragment { DType::F16 } else { *dtype };
                let (name, at) =
                    (self.group_helper(GroupHelper::MatrixKeep(sums)), self.at(&(*array, Index::Const(0))));
                self.line(&format!("{name}<{count}>({at});"));
            }
            GroupOp::MatrixFence => call(self, GroupHelper::MatrixFence, String::new()),
            GroupOp::Matrix { op, d, a, b } => {
                let name = self.group_helper(GroupHelper::Matrix(*op));
                let a = match a {
                    Left::Shared(a) => self.descriptor(a),
                    Left::Registers(array, first) => self.at(&(*array, first.clone())),
                };
                let (d, b) = (self.at(d), self.descriptor(b));
                let text = format!("{name}({d}, {a}, {b});");
                if self.depth * 4 + text.len() <= MARGIN {
                    return self.line(&text);
                }
                self.line(&format!("{name}({d},"));
                self.depth += 1;
                self.line(&format!("{a},"));
                self.line(&format!("{b});"));
                self.depth -= 1;
            }
            GroupOp::TensorMemory(op) => self.tensor_memory_op(op),
            GroupOp::MatrixCommit => call(self, GroupHelper::MatrixCommit, String::new()),
            GroupOp::MatrixWait(latest) => {
                let name = self.group_helper(GroupHelper::MatrixWait);
                self.line(&format!("{name}<{latest}>();"));
            }
        }
    }

    fn map_name(&self, map: u32) -> String {
        let array = self.kernel.tensor_maps.get(map as usize).map_or(0, |m| m.array.0 as usize);
        self.arrays.get(array).cloned().unwrap_or_default()
    }

    pub(super) fn roles(&mut self, roles: &[Role]) {
        let thread = self.place(true, crate::kernel::Dim::X);
        // Of lane 0, so that the compiler knows it to be the same in the whole warp.
        let warp = self.names.take("warp_number");
        self.line(&format!("const int {warp} = __shfl_sync(0xffffffffu, {thread} / 32, 0);"));
        for (i, role) in roles.iter().enumerate() {
            let end = role.first_warp + role.warps * role.instances.max(1);
            let head = match (i, i + 1 == roles.len()) {
                (0, _) => format!("if ({warp} < {end}) {{"),
                (_, false) => format!("}} else if ({warp} < {end}) {{"),
                _ => "} else {".to_string(),
            };
            self.line(&format!("{head} // {}", role.name));
            let names = self.names.clone();
            self.depth += 1;
            if let Some(registers) = role.registers {
                let given = 65536 / self.kernel.threads().max(1) / 8 * 8;
                let up = registers > given;
                let name = self.group_helper(if up { GroupHelper::RegistersUp } else { GroupHelper::RegistersDown });
                self.line(&format!("{name}<{registers}>();"));
            }
            if let Some(number) = role.number {
                let range = Range::of(0, i128::from(role.instances.max(1)) - 1);
                let name = self.names.take(&role.name);
                let from = if role.first_warp == 0 { warp.clone() } else { format!("({warp} - {})", role.first_warp) };
                self.line(&format!("const int {name} = {from} / {};", role.warps));
                self.variables.insert(number, Integer { text: Text::new(name, ATOM), wide: false, range });
            }
            self.name_descriptors(&role.body, role.number);
            self.name_remotes(&role.body);
            self.list(&role.body);
            self.descriptors.clear();
            self.kept.clear();
            self.remotes.clear();
            self.depth -= 1;
            self.names = names;
        }
        self.line("}");
    }

    /// A copy between a fragment and memory, or between two fragments: whole words.
    pub(super) fn fragment_copy(
        &mut self,
        dst: (ArrayId, &Index),
        src: (ArrayId, &Index),
        bytes: u32,
        cond: &crate::kernel::Cond,
    ) {
        let vector = match bytes {
            8 => "uint2",
            16 => "uint4",
            _ => "unsigned int",
        };
        for id in [dst.0, src.0] {
            if self.kernel.array(id).space.is_private() && bytes > 4 {
                self.aligned.insert(id);
            }
        }
        let (to, from) = (self.pointer(dst.0, dst.1), self.pointer(src.0, src.1));
        let side = |p: &Self, id: ArrayId, at: &Text, constant: &str| match p.is_fragment(id) && bytes <= 4 {
            // The element itself, not the pointer to it.
            true => at.text.strip_prefix('&').map_or(format!("*{}", at.within(MUL + 1)), str::to_string),
            false => format!("*reinterpret_cast<{constant}{vector}*>({})", at.text),
        };
        let (target, value) = (side(self, dst.0, &to, ""), side(self, src.0, &from, "const "));
        let zero = if bytes > 4 { format!("{vector}()") } else { "0".into() };
        if *cond == crate::kernel::Cond::True {
            return self.line(&format!("{target} = {value};"));
        }
        let cond = self.condition(cond).within(TERNARY + 1);
        self.line(&format!("{target} = {cond} ? {value} : {zero};"));
    }
}
