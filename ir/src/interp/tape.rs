//! Which loops' bodies are a [`Tape`], and which: one block that only stores, at indices that are linear in the variables.
use super::code::*;

/// More operations than this are not worth their room.
const MOST: usize = 64;

/// Whether an index is a sum of multiples of variables.
fn is_linear(e: &Int) -> bool {
    matches!(e, Int::Const(_) | Int::Slot(_) | Int::Affine(_))
}

fn is_plain(element: &Element) -> bool {
    element.views.is_empty() && element.guards.is_empty() && element.dims.iter().all(|d| is_linear(&d.index))
}

fn same_index(a: &Int, b: &Int) -> bool {
    match (a, b) {
        (Int::Const(a), Int::Const(b)) => a == b,
        (Int::Slot(a), Int::Slot(b)) => a == b,
        (Int::Affine(a), Int::Affine(b)) => (a.constant, &a.terms, a.dtype) == (b.constant, &b.terms, b.dtype),
        _ => false,
    }
}

fn same(a: &Element, b: &Element) -> bool {
    a.array == b.array && a.dims.iter().zip(&b.dims).all(|(a, b)| same_index(&a.index, &b.index))
}

impl Tape {
    /// Of a loop's body, where it is one.
    pub fn of(body: &Step) -> Option<Tape> {
        let Step::Block(block) = body else { return None };
        let always = matches!(block.predicate, Int::Const(c) if c != 0);
        let fixed = |it: &Iterator| matches!((&it.min, &it.extent), (Int::Const(_), Int::Const(_)));
        let iterators = block.iterators.iter().all(|it| fixed(it) && is_linear(&it.value));
        let bare = block.arrays.is_empty() && block.views.is_empty() && block.regions.is_empty();
        if !(always && iterators && bare) {
            return None;
        }
        let (store, whole) = match &block.body {
            Step::StoreFloat(store) => (&store.0, None),
            Step::StoreInt(dtype, store) => (&store.0, Some(*dtype)),
            _ => return None,
        };
        let mut tape = Tape { ops: Vec::new(), loads: Vec::new(), store: store.clone(), carried: None, whole };
        match &block.body {
            Step::StoreFloat(store) => tape.float_root(&store.1)?,
            Step::StoreInt(_, store) => tape.int_root(&store.1)?,
            _ => return None,
        }
        let own = tape.loads.iter().any(|load| load.array == tape.store.array);
        (is_plain(&tape.store) && !own && tape.ops.len() <= MOST).then_some(tape)
    }

    fn float_root(&mut self, root: &Float) -> Option<()> {
        if let Float::Binary(op, dtype, sides) = root {
            let own = |side: &Float| matches!(side, Float::Load(e) if same(e, &self.store));
            let first = own(&sides[0]);
            if first || own(&sides[1]) {
                self.carried = Some((*op, *dtype, first));
                return self.float(&sides[usize::from(first)]).map(|_| ());
            }
        }
        self.float(root).map(|_| ())
    }

    fn int_root(&mut self, root: &Int) -> Option<()> {
        if let Int::Binary(op, dtype, sides) = root {
            let own = |side: &Int| matches!(side, Int::Load(e) if same(e, &self.store));
            let first = own(&sides[0]);
            if first || own(&sides[1]) {
                self.carried = Some((*op, *dtype, first));
                return self.int(&sides[usize::from(first)]).map(|_| ());
            }
        }
        self.int(root).map(|_| ())
    }

    fn push(&mut self, op: Op) -> usize {
        self.ops.push(op);
        self.ops.len() - 1
    }

    fn load(&mut self, element: &Element) -> Option<usize> {
        if !is_plain(element) {
            return None;
        }
        self.loads.push(element.clone());
        Some(self.push(Op::Load(self.loads.len() - 1)))
    }

    fn float(&mut self, e: &Float) -> Option<usize> {
        let op = match e {
            Float::Const(v) => Op::Const(v.to_bits()),
            Float::Slot(slot) => Op::Slot(*slot),
            Float::Binary(op, dtype, sides) => Op::Floats(*op, *dtype, self.float(&sides[0])?, self.float(&sides[1])?),
            Float::Call(f, dtype, args) => {
                Op::Call(*f, *dtype, [self.float(&args[0])?, self.float(&args[1])?, self.float(&args[2])?])
            }
            Float::Load(element) => return self.load(element),
            Float::Round(dtype, a) => Op::Round(*dtype, self.float(a)?),
            Float::FromInt(from, to, a) => Op::FromInt(*from, *to, self.int(a)?),
            Float::Select(_) | Float::FromBits(..) | Float::Recast(..) => return None,
        };
        Some(self.push(op))
    }

    fn int(&mut self, e: &Int) -> Option<usize> {
        let op = match e {
            Int::Const(v) => Op::Const(*v as u64),
            Int::Binary(op, dtype, sides) => Op::Ints(*op, *dtype, self.int(&sides[0])?, self.int(&sides[1])?),
            Int::Load(element) => return self.load(element),
            Int::Wrap(dtype, a) => Op::Wrap(*dtype, self.int(a)?),
            Int::FromFloat(dtype, a) => Op::FromFloat(*dtype, self.float(a)?),
            _ => return None,
        };
        Some(self.push(op))
    }
}
