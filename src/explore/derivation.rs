//! How a term came about: the rule that made each of its nodes.
use egg::{Id, RecExpr};
use satune_ir::term::{Space, TermLanguage};

/// One line per decision, from the outside in: the node and the rule.
pub fn of<T: TermLanguage>(space: &Space<T>, term: &RecExpr<T>) -> Vec<String> {
    let nodes = term.as_ref();
    let mut classes: Vec<Option<Id>> = Vec::with_capacity(nodes.len());
    let mut made: Vec<(Id, T)> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let mut known = true;
        let in_space = node.clone().map_children(|id| match classes.get(usize::from(id)).copied().flatten() {
            Some(class) => class,
            None => {
                known = false;
                id
            }
        });
        let class = if known { space.egraph.lookup(in_space.clone()) } else { None };
        classes.push(class);
        made.extend(class.map(|class| (class, in_space)));
    }
    let rules = space.rules(&made);
    let lines = made.iter().zip(rules).rev();
    lines.filter_map(|((_, node), rule)| rule.map(|rule| format!("{node}  by  {rule}"))).collect()
}
