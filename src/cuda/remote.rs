//! Addresses of barriers in other blocks of the cluster.
use super::hopper::GroupHelper;
use super::Printer;
use crate::kernel::{each_group_op, ArrayId, GroupOp, Index, Stmt};

impl Printer<'_> {
    /// The address of a barrier in a block of the cluster: as many bytes beyond the first of its array as in the own block.
    pub(super) fn remote(&mut self, (array, index): &(ArrayId, Index), rank: &Index) -> String {
        let known = self.remotes.iter().find(|(key, at, _)| key == array && at == rank);
        let base = match known.map(|(_, _, name)| name.clone()) {
            Some(name) => name,
            None => self.new_remote(*array, rank),
        };
        match index {
            Index::Const(0) => base,
            Index::Const(v) => format!("{base} + {}", 8 * v),
            index => {
                let eight = Index::Mul(Box::new(index.clone()), Box::new(Index::Const(8)));
                format!("{base} + {}", self.integer(&eight).text.text)
            }
        }
    }

    fn new_remote(&mut self, array: ArrayId, rank: &Index) -> String {
        let name = self.group_helper(GroupHelper::Remote);
        let first = self.pointer(array, &Index::Const(0)).text;
        format!("{name}({first}, {})", self.integer(rank).text.text)
    }

    /// Names for what a role's threads tell of another block all the time, where that is known where the role begins: an
    /// arrival then adds no more than a constant.
    pub(super) fn name_remotes(&mut self, body: &[Stmt]) {
        let mut list: Vec<(ArrayId, &Index)> = Vec::new();
        each_group_op(body, &mut |op| match op {
            GroupOp::ArriveRemote { barrier, rank } if !list.contains(&(barrier.0, rank)) => {
                list.push((barrier.0, rank))
            }
            _ => {}
        });
        for (array, rank) in list {
            if super::descriptor::depends(rank, &|i| matches!(i, Index::Var(_))) {
                continue;
            }
            let wish = format!("remote_{}", self.arrays[array.0 as usize]);
            let (value, name) = (self.new_remote(array, rank), self.names.take(&wish));
            self.line(&format!("const unsigned int {name} = {value};"));
            self.remotes.push((array, rank.clone(), name));
        }
    }
}
