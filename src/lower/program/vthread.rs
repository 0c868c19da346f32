//! vthread loops, moved inward: every thread runs them itself, around the statements that depend on them.
//!
//! A program has them outside of its serial loops. Iterations of a vthread loop are independent, so they may take
//! turns statement by statement: the k loop and the shared copies then run once, and only the arithmetic on registers
//! is repeated. A buffer on the chip whose index does not tell the iterations apart gets a dimension that does.
use super::linear::Linear;
use super::nest::{Leaf, Loop, LoopKind, Nest, Node};
use satune_ir::{visit, BufferId, DType, Expr, Program, Var, VarId};
use std::collections::{HashMap, HashSet};

/// Puts the vthread loops of the nest where they belong.
pub fn distribute(nest: &mut Nest, program: &Program) {
    if nest.vthreads.is_empty() {
        return;
    }
    let needs = replicate(nest, program);
    let body = std::mem::take(&mut nest.body);
    nest.body = wrap_list(body, nest, &needs);
}

/// Which vthreads each leaf depends on; buffers get their extra dimensions on the way.
fn replicate(nest: &mut Nest, program: &Program) -> HashMap<usize, Vec<VarId>> {
    let on_chip = |b: BufferId| program.buffer(b).scope != "global";
    let mut extra: HashSet<(BufferId, VarId)> = HashSet::new();
    let mut needs: HashMap<usize, HashSet<VarId>> = HashMap::new();
    loop {
        let before = (extra.len(), needs.values().map(HashSet::len).sum::<usize>());
        nest.leaves(&mut |leaf, _| {
            let own = needs.entry(leaf.id).or_default();
            for v in &leaf.vthreads {
                let read = leaf.reads.iter().any(|(b, _)| extra.contains(&(*b, *v)));
                if leaf.uses(*v) || read || leaf.accumulates() || extra.contains(&(leaf.target, *v)) {
                    own.insert(*v);
                }
                let told_apart = leaf.at.iter().any(|l| l.uses(&|x| x == *v));
                if own.contains(v) && !told_apart && on_chip(leaf.target) && !leaf.accumulates() {
                    extra.insert((leaf.target, *v));
                }
            }
        });
        if before == (extra.len(), needs.values().map(HashSet::len).sum::<usize>()) {
            break;
        }
    }
    let mut order: Vec<(BufferId, VarId)> = extra.into_iter().collect();
    order.sort();
    nest.leaves_mut(&mut |leaf| {
        for (buffer, v) in &order {
            add_dimension(leaf, *buffer, *v);
        }
    });
    let position = |v: &VarId| nest.vthreads.iter().position(|x| x.var == *v);
    needs
        .into_iter()
        .map(|(leaf, set)| {
            let mut list: Vec<VarId> = set.into_iter().collect();
            list.sort_by_key(position);
            (leaf, list)
        })
        .collect()
}

fn add_dimension(leaf: &mut Leaf, buffer: BufferId, v: VarId) {
    let form = Linear::var(v);
    // Its elements may say where others are.
    let told = |at: &mut Vec<Linear>| at.iter_mut().for_each(|index| *index = index.with_dimension(buffer, &form));
    told(&mut leaf.at);
    if leaf.target == buffer {
        leaf.at.insert(0, form.clone());
    }
    for (b, at) in &mut leaf.reads {
        told(at);
        if *b == buffer {
            at.insert(0, form.clone());
        }
    }
    for guard in &mut leaf.guards {
        *guard = guard.map(&mut |index| index.with_dimension(buffer, &form));
    }
    leaf.value = visit::map_expr(&leaf.value, &mut |e| match e {
        Expr::Load(b, mut idx) if b == buffer => {
            idx.insert(0, Expr::Var(Var { id: v, name: "vthread".into(), dtype: DType::I32 }));
            Expr::Load(b, idx)
        }
        e => e,
    });
}

fn wrap_list(nodes: Vec<Node>, nest: &Nest, needs: &HashMap<usize, Vec<VarId>>) -> Vec<Node> {
    nodes.into_iter().map(|n| wrap(n, nest, needs)).collect()
}

fn wrap(node: Node, nest: &Nest, needs: &HashMap<usize, Vec<VarId>>) -> Node {
    if let Some(leaf) = single_spatial(&node) {
        let vars = needs.get(&leaf.id).cloned().unwrap_or_default();
        return vars.into_iter().rev().fold(node, |inner, v| {
            let (name, extent) = nest
                .vthreads
                .iter()
                .find(|x| x.var == v)
                .map_or((String::from("vthread"), 1), |x| (x.name.clone(), x.extent));
            Node::Loop(Loop {
                steps: None,
                var: v,
                name,
                extent,
                kind: LoopKind::Unrolled,
                annotations: Default::default(),
                body: vec![inner],
                child_sizes: vec![1],
            })
        });
    }
    match node {
        Node::Loop(mut l) => {
            l.body = wrap_list(l.body, nest, needs);
            Node::Loop(l)
        }
        other => other,
    }
}

/// The leaf of a nest of single loops, all of which choose the element that is written.
fn single_spatial(node: &Node) -> Option<&Leaf> {
    match node {
        Node::Leaf(leaf) => Some(leaf),
        Node::Loop(l) => {
            let [inner] = l.body.as_slice() else { return None };
            let leaf = single_spatial(inner)?;
            leaf.at.iter().any(|f| f.uses(&|v| v == l.var)).then_some(leaf)
        }
        Node::Barrier => None,
    }
}
