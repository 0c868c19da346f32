//! How many distinct programs a space holds, exactly; and uniform samples of them.
use egg::{Id, RecExpr};
use num_bigint::{BigUint, RandBigInt};
use num_traits::{One, Zero};
use rand::Rng;
use satune_ir::term::{Space, TermLanguage};
use std::collections::HashMap;

/// What a sample draws with the same probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evenly {
    /// Each program: a kind of kernel that has few of them hardly ever comes.
    Programs,
    /// Each choice of a class that holds a program: each kind of kernel comes.
    Choices,
}

/// Number of complete programs per class. Every choice of nodes is another program, since the term language has one
/// canonical form; programs that no GPU of the descriptor can run for lack of registers are counted too, those beyond
/// its threads or shared memory are not in the space.
pub struct Counts {
    per_class: HashMap<Id, BigUint>,
    root: Id,
}

impl Counts {
    /// Counts a space.
    pub fn of<T: TermLanguage>(space: &Space<T>) -> Counts {
        Counts::of_while(space, &|| true)
    }

    /// [`Counts::of`] for as long as `go_on` says so, which is asked at every step: what was not counted by then has no
    /// programs, and so the space has none.
    pub fn of_while<T: TermLanguage>(space: &Space<T>, go_on: &dyn Fn() -> bool) -> Counts {
        let mut per_class: HashMap<Id, BigUint> = HashMap::new();
        for class in space.bottom_up_while(go_on) {
            if !go_on() {
                break;
            }
            let mut sum = BigUint::zero();
            for node in space.choices(class) {
                sum += product(space, node, &per_class);
            }
            per_class.insert(class, sum);
        }
        Counts { per_class, root: space.egraph.find(space.root) }
    }

    /// Programs of the whole space.
    pub fn total(&self) -> BigUint {
        self.class(self.root)
    }

    /// Programs of one class.
    pub fn class(&self, class: Id) -> BigUint {
        self.per_class.get(&class).cloned().unwrap_or_default()
    }

    /// One program, each with the same probability; `None` from an empty space.
    pub fn sample<T: TermLanguage>(&self, space: &Space<T>, rng: &mut impl Rng) -> Option<RecExpr<T>> {
        self.sample_evenly(space, Evenly::Programs, rng)
    }

    /// One program, by what is to be drawn evenly; `None` from an empty space.
    pub fn sample_evenly<T: TermLanguage>(
        &self,
        space: &Space<T>,
        evenly: Evenly,
        rng: &mut impl Rng,
    ) -> Option<RecExpr<T>> {
        let mut out = RecExpr::default();
        self.sample_class(space, self.root, evenly, rng, &mut out)?;
        Some(out)
    }

    fn sample_class<T: TermLanguage>(
        &self,
        space: &Space<T>,
        class: Id,
        evenly: Evenly,
        rng: &mut impl Rng,
        out: &mut RecExpr<T>,
    ) -> Option<Id> {
        let weigh = |node: &T| {
            let programs = product(space, node, &self.per_class);
            match evenly {
                Evenly::Choices if !programs.is_zero() => BigUint::one(),
                _ => programs,
            }
        };
        let choices = space.choices(space.egraph.find(class)).map(|node| (node, weigh(node)));
        let choices: Vec<(&T, BigUint)> = choices.collect();
        let total: BigUint = choices.iter().map(|(_, weight)| weight).sum();
        if total.is_zero() {
            return None;
        }
        let mut ticket = rng.gen_biguint_below(&total);
        for (node, weight) in choices {
            if ticket < weight {
                let mut node = node.clone();
                for child in node.children_mut() {
                    *child = self.sample_class(space, *child, evenly, rng, out)?;
                }
                return Some(out.add(node));
            }
            ticket -= weight;
        }
        None
    }
}

fn product<T: TermLanguage>(space: &Space<T>, node: &T, per_class: &HashMap<Id, BigUint>) -> BigUint {
    node.children().iter().fold(BigUint::one(), |product, child| {
        if product.is_zero() {
            product
        } else {
            product * per_class.get(&space.egraph.find(*child)).cloned().unwrap_or_default()
        }
    })
}
