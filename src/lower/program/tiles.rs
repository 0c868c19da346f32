//! Pipelines of matrices: tiles along k in a ring, in which steps load what a warp multiplies.
//!
//! ```text
//!   for k:                                         for step:                                  of the last step
//!     copy A, B -> ring                              load what is loaded in its step
//!     for step:                           ->         load the next step's, of two sets          wait for the next tile; barrier; load its first
//!       load A, B from the ring                      begin to copy the tile that is so far ahead
//!       multiply                                     multiply
//! ```
//! The barrier stands before the last step's multiplications, which so hide it. So many tiles are written out as bring the ring, and the
//! sets, back to where they were: then slots and registers are constants.
//!
//! `wgmma` reads tiles itself, and four warps go on meanwhile: they copy a later tile while this one is multiplied, and wait for the
//! multiplication of the tile before it. That one's place is filled a tile later, when all have waited for it.
//!
//! ```text
//!   for k:
//!     begin to multiply tile k
//!     begin to copy tile k + slots - 2
//!     wait for the multiplication of tile k - 1; wait for tile k + 1; barrier
//! ```
use super::emit::{guarded, innermost, Emitter, Mode};
use super::error::LowerError;
use super::nest::{flag, leaves, Leaf, Loop, LoopKind, Node};
use super::pipeline::{Form, Pipeline};
use super::steps::Steps;
use crate::kernel::{Cond, GroupOp, Index, Stmt, Unroll};
use crate::lower::index::{add, c, mul, rem};
use satune_ir::term::tensor::mma_conditions;
use satune_ir::Attr;
use satune_rewrites::keys;

/// A tile that is multiplied.
struct Tile {
    /// Its number.
    number: Index,
    /// What differs from it by whole laps of the ring.
    turn: Index,
    /// Whether a tile is copied meanwhile.
    copies: bool,
    /// Whether there may be no such tile, and none after this one.
    may_end: bool,
}

impl Emitter<'_> {
    /// The loop over tiles.
    pub(super) fn tiles(
        &mut self,
        l: &Loop,
        p: &Pipeline,
        copies: &[Node],
        steps: Steps,
    ) -> Result<Vec<Stmt>, LowerError> {
        self.tiles_of(l, p, copies, steps, None)
    }

    /// The loop over tiles that `wgmma` multiplies.
    pub(super) fn tiles_of_groups(
        &mut self,
        l: &Loop,
        p: &Pipeline,
        copies: &[Node],
        multiply: &[Node],
    ) -> Result<Vec<Stmt>, LowerError> {
        let late = p.slots() > 2 && !flag(&l.annotations, keys::EAGER_RELEASE);
        let steps = Steps { of: None, loads: &[], multiply };
        let tiles = self.tiles_of(l, p, copies, steps, Some(u32::from(late)))?;
        let kept = self.kept(&tiles);
        let last = late.then_some(Stmt::Group(GroupOp::MatrixWait(0)));
        Ok([kept.clone(), tiles, last.into_iter().collect(), kept].concat())
    }

    fn tiles_of(
        &mut self,
        l: &Loop,
        p: &Pipeline,
        copies: &[Node],
        steps: Steps,
        goes_on: Option<u32>,
    ) -> Result<Vec<Stmt>, LowerError> {
        let (slots, tiles) = (p.slots(), l.extent);
        let ahead = slots - 1 - i64::from(goes_on.unwrap_or(0));
        let rolled = flag(&l.annotations, keys::ROLLED);
        match p.form {
            Form::Ring(_, true) if !rolled => self.load_ahead(copies, slots)?,
            Form::Registers => self.load_ahead(copies, 1)?,
            _ => {}
        }
        let sets = steps.of.and_then(|s| self.pipelines.get(&s.var)).filter(|p| p.form == Form::Sets).cloned();
        // With an odd number of steps a tile begins with the set that the one before did not begin with.
        let turns = sets.is_some() && steps.count() % 2 != 0;
        let laps = match turns {
            false if rolled => 1,
            true if slots % 2 != 0 => 2 * slots,
            _ => slots,
        };
        let whole_tiles = self.laps_without_guards(l, copies).clamp(0, tiles);
        // Every tile may be ragged, or the last alone.
        let guarded_all = whole_tiles + 1 < tiles;
        let alike = if guarded_all { tiles } else { whole_tiles };
        let (waits, others): (Vec<Node>, Vec<Node>) = copies.iter().cloned().partition(|node| self.asks_ahead(node, p));
        let this = &mut Tiles {
            l,
            p,
            copies,
            waits: &waits,
            others: &others,
            steps,
            sets: sets.as_ref(),
            ahead,
            goes_on,
            emitter: self,
        };
        let mut out = this.begin(alike.min(ahead))?;
        // What waits in registers is loaded for later tiles, whose guards are those of the others.
        let under_way = if waits.is_empty() { ahead } else { 2 * ahead };
        let rounds = (alike - under_way).max(0) / laps;
        if rounds > 0 {
            let (round, lap) = (this.emitter.fresh(), this.emitter.fresh());
            let (number, turn) = match laps {
                1 => (Index::Var(round), Index::Var(round)),
                _ => (add(mul(Index::Var(round), laps), Index::Var(lap)), Index::Var(lap)),
            };
            let tile = Tile { number, turn, copies: true, may_end: false };
            let body = this.within((0, alike - 1), |this| this.tile(&tile))?;
            let (start, name) = (c(0), l.name.clone());
            let body = match laps {
                1 => body,
                _ => vec![Stmt::For { var: lap, name, start, extent: c(laps), unroll: Unroll::Full, body }],
            };
            let (start, name) = (c(0), format!("{}_round", l.name));
            out.push(Stmt::For { var: round, name, start, extent: c(rounds), unroll: Unroll::No, body });
        }
        let first = rounds * laps;
        let var = this.emitter.fresh();
        let (number, turn) = (Index::Var(var), Index::Var(var));
        let tile = Tile { number, turn, copies: tiles - ahead > first, may_end: true };
        let body = this.within((first, tiles - 1), |this| this.tile(&tile))?;
        // Written out, a compiler moves loads of several of these tiles up to the first, and runs out of registers. Sets are constants
        // only there where a tile's steps are odd.
        let unroll = if turns || !waits.is_empty() { Unroll::Full } else { Unroll::No };
        let (start, name) = (c(first), l.name.clone());
        out.push(Stmt::For { var, name, start, extent: c(tiles - first), unroll, body });
        Ok(out)
    }

    /// How far a serial loop over copies of matrices is expanded: addresses of all copies take registers. What waits in registers waits
    /// together; `cp.async` waits for nothing.
    pub(super) fn rolled(&self, l: &Loop) -> Option<Unroll> {
        let (leaf, around) = innermost(l).filter(|_| self.written_out)?;
        let elements = if around.kind == LoopKind::Vectorized { around.extent } else { 1 };
        let bytes = elements * i64::from(self.program.buffer(leaf.target).dtype.bytes());
        // What is computed of what it loads waits for that.
        let by_itself = self.mode == Mode::Async && bytes >= 4 && self.copies_only(leaf);
        Some(if by_itself { Unroll::No } else { Unroll::By(mma_conditions::LOADED_TOGETHER as u32) })
    }

    /// Whether what a copy of a ring loads waits in registers.
    fn asks_ahead(&self, node: &Node, p: &Pipeline) -> bool {
        let mut found = false;
        leaves(std::slice::from_ref(node), &mut |leaf| found |= self.ahead.contains_key(&leaf.id));
        found && matches!(p.form, Form::Ring(_, true))
    }
}

/// What the tiles of a loop have in common.
struct Tiles<'t, 'e, 'a> {
    l: &'t Loop,
    p: &'t Pipeline,
    copies: &'t [Node],
    /// Of the copies those of which what they load waits in registers, and the others.
    waits: &'t [Node],
    others: &'t [Node],
    steps: Steps<'t>,
    sets: Option<&'t Pipeline>,
    /// Tiles that are copied while one is multiplied.
    ahead: i64,
    /// Of tiles that `wgmma` multiplies: how many multiplications go on behind a tile.
    goes_on: Option<u32>,
    emitter: &'e mut Emitter<'a>,
}

type Code = Result<Vec<Stmt>, LowerError>;

impl Tiles<'_, '_, '_> {
    /// With guards of those tiles alone.
    fn within(&mut self, laps: (i64, i64), f: impl FnOnce(&mut Self) -> Code) -> Code {
        let before = self.emitter.enter_laps(self.l.var, laps, self.copies);
        let code = f(self);
        self.emitter.leave_laps(before);
        code
    }

    fn is_async(&self) -> bool {
        matches!(self.p.form, Form::Ring(_, true))
    }

    fn mode(&self) -> Mode {
        match self.p.form {
            Form::Ring(_, true) => Mode::Async,
            Form::Ring(_, false) | Form::Sets => Mode::Whole,
            Form::Registers => Mode::Load,
        }
    }

    fn committed(&self) -> Option<Stmt> {
        self.is_async().then_some(Stmt::AsyncCommit)
    }

    /// What stands before the barrier after which the next tile is read.
    fn landed(&self) -> Option<Stmt> {
        let slack = match self.l.annotations.get(keys::SLACK) {
            Some(Attr::Int(slack)) => *slack,
            _ => 0,
        };
        self.is_async().then(|| Stmt::AsyncWait((self.ahead - 1 - slack).max(0) as u32))
    }

    /// Copies of a tile, into a slot.
    fn fill(&mut self, copies: &[Node], tile: &Index, slot: Index, mode: Mode) -> Code {
        let (tile, p) = (tile.clone(), self.p);
        self.emitter.written_out = true;
        let code = self.emitter.with_all(&[(self.l.var, tile), (p.slot, slot)], |e| e.copies(copies, mode));
        self.emitter.written_out = false;
        code
    }

    /// One half of the copies that wait in registers: loads of a tile, or what is computed of them, into its slot.
    fn half(&mut self, copies: &[Node], tile: &Index, slot: &Index, mode: Mode) -> Code {
        self.emitter.set = slot.clone();
        let code = self.fill(copies, tile, slot.clone(), mode);
        self.emitter.set = c(0);
        code
    }

    /// The first tiles, those of the same kind in a loop: written out, addresses of all of them are held at once.
    fn begin(&mut self, alike: i64) -> Code {
        let (copies, waits, ahead, slots) = (self.others, self.waits, self.ahead, self.p.slots());
        let tiles = self.l.extent;
        let mut asked = Vec::new();
        for stage in (0..ahead.min(tiles)).filter(|_| !waits.is_empty()) {
            asked.extend(self.within((stage, stage), |this| this.half(waits, &c(stage), &c(stage), Mode::Load))?);
        }
        let whole = |this: &mut Self, at: Index| {
            let mut code = this.fill(copies, &at, at.clone(), this.mode())?;
            if this.p.form == Form::Registers {
                code.extend(this.fill(copies, &at, at.clone(), Mode::Store)?);
            }
            code.extend(this.committed());
            Ok(code)
        };
        let looped = if alike > 2 { alike } else { 0 };
        let mut out = asked;
        if looped > 0 {
            let var = self.emitter.fresh();
            let body = self.within((0, looped - 1), |this| whole(this, Index::Var(var)))?;
            let (start, name) = (c(0), self.l.name.clone());
            out.push(Stmt::For { var, name, start, extent: c(looped), unroll: Unroll::No, body });
        }
        for stage in looped..ahead {
            match stage < self.l.extent {
                true => out.extend(self.within((stage, stage), |this| whole(this, c(stage)))?),
                false => out.extend(self.committed()),
            }
        }
        for stage in (0..ahead).filter(|_| !waits.is_empty()) {
            if stage < tiles {
                out.extend(self.within((stage, stage), |this| this.half(waits, &c(stage), &c(stage), Mode::Store))?);
            }
            let later = stage + ahead;
            if later < tiles {
                out.extend(
                    self.within((later, later), |this| this.half(waits, &c(later), &c(later % slots), Mode::Load))?,
                );
            }
        }
        out.extend(self.landed());
        out.extend(self.emitter.barrier());
        out.extend(self.load(&c(0), &c(0), 0, c(0), true)?);
        Ok(out)
    }

    /// The loads of a step, of those that are a step ahead or the others.
    fn load(&mut self, tile: &Index, slot: &Index, step: i64, set: Index, ahead: bool) -> Code {
        let steps = self.steps;
        let is_ahead = |node: &&Node| {
            let mut found = false;
            leaves(std::slice::from_ref(*node), &mut |leaf| {
                found |= self.sets.is_some_and(|sets| sets.buffers.contains(&leaf.target));
            });
            found
        };
        let nodes: Vec<Node> = steps.loads.iter().filter(|node| is_ahead(node) == ahead).cloned().collect();
        self.at_step(tile, slot, step, set, &nodes)
    }

    fn at_step(&mut self, tile: &Index, slot: &Index, step: i64, set: Index, nodes: &[Node]) -> Code {
        let (l, p, steps, sets) = (self.l, self.p, self.steps, self.sets);
        let mut bound = vec![(l.var, tile.clone()), (p.slot, slot.clone())];
        if let Some(of) = steps.of {
            let step = if flag(&of.annotations, keys::DESCENDING) { of.extent - 1 - step } else { step };
            bound.push((of.var, c(step)));
        }
        bound.extend(sets.map(|sets| (sets.slot, set)));
        self.emitter.written_out = true;
        let code = self.emitter.with_all(&bound, |e| e.nodes(nodes));
        self.emitter.written_out = false;
        code
    }

    /// The multiplications of a tile, as one group.
    fn begun(&mut self, tile: &Tile, slot: &Index) -> Code {
        let bound = [(self.l.var, tile.number.clone()), (self.p.slot, slot.clone())];
        let multiply = self.steps.multiply;
        self.emitter.in_group = true;
        let code = self.emitter.with_all(&bound, |e| e.nodes(multiply));
        self.emitter.in_group = false;
        let [fence, commit] = [GroupOp::MatrixFence, GroupOp::MatrixCommit].map(|op| vec![Stmt::Group(op)]);
        Ok([fence, code?, commit].concat())
    }

    /// One tile.
    fn tile(&mut self, tile: &Tile) -> Code {
        let (slots, tiles, steps) = (self.p.slots(), self.l.extent, self.steps.count());
        let slot = |by: i64| rem(add(tile.turn.clone(), c(by)), slots);
        let set = |step: i64| match steps % 2 {
            0 => c(step % 2),
            _ => rem(add(mul(tile.turn.clone(), steps), c(step)), 2),
        };
        let ahead = self.ahead;
        let (after, next) = (add(tile.number.clone(), c(1)), add(tile.number.clone(), c(ahead)));
        let fill_slot = slot(ahead);
        let cond = |cond: Cond| if tile.may_end { cond } else { Cond::True };
        let there = cond(Cond::Lt(next.clone(), c(tiles)));
        let begins: Vec<i64> = self.copies.iter().map(begins).map(|step| step.min((steps - 2).max(0))).collect();
        let mut body = Vec::new();
        for step in 0..steps {
            let is_last = step + 1 == steps;
            let fills = |this: &mut Self| -> Code {
                let mut code = Vec::new();
                let mine = this.copies.iter().zip(&begins).filter(|(_, at)| **at == step).map(|(node, _)| node.clone());
                let (waits, others): (Vec<Node>, Vec<Node>) =
                    mine.partition(|node| this.emitter.asks_ahead(node, this.p));
                if tile.copies && !others.is_empty() {
                    let mode = this.mode();
                    code.extend(guarded(there.clone(), this.fill(&others, &next, fill_slot.clone(), mode)?));
                }
                if tile.copies && !waits.is_empty() {
                    code.extend(guarded(there.clone(), this.half(&waits, &next, &slot(ahead), Mode::Store)?));
                    let later = add(next.clone(), c(ahead));
                    let there = cond(Cond::Lt(later.clone(), c(tiles)));
                    code.extend(guarded(there, this.half(&waits, &later, &slot(2 * ahead), Mode::Load)?));
                }
                if begins.iter().max() == Some(&step) {
                    code.extend(this.committed());
                }
                Ok(code)
            };
            if let Some(goes_on) = self.goes_on {
                body.extend(self.begun(tile, &slot(0))?);
                body.extend(fills(self)?);
                body.push(Stmt::Group(GroupOp::MatrixWait(goes_on)));
                let list: Vec<Stmt> = self.landed().into_iter().chain(self.emitter.barrier()).collect();
                body.extend(guarded(cond(Cond::Lt(tile.number.clone(), c(tiles - 1))), list));
                continue;
            }
            // While the tile may be read: before the barrier after which it is overwritten.
            body.extend(self.load(&tile.number, &slot(0), step, set(step), false)?);
            if is_last && steps == 1 {
                body.extend(fills(self)?);
            }
            if is_last {
                let mut list: Vec<Stmt> = self.landed().into_iter().collect();
                if tile.copies && self.p.form == Form::Registers {
                    let copies = self.copies;
                    let stored = self.fill(copies, &next, fill_slot.clone(), Mode::Store)?;
                    list.extend(guarded(there.clone(), stored));
                }
                list.push(Stmt::Barrier);
                list.extend(self.load(&after, &slot(1), 0, set(steps), true)?);
                body.extend(guarded(cond(Cond::Lt(tile.number.clone(), c(tiles - 1))), list));
            } else {
                body.extend(self.load(&tile.number, &slot(0), step + 1, set(step + 1), true)?);
                body.extend(fills(self)?);
            }
            let multiply = self.steps.multiply;
            body.extend(self.at_step(&tile.number, &slot(0), step, set(step), multiply)?);
        }
        Ok(body)
    }
}

/// The step at which a tile's copies begin.
fn begins(node: &Node) -> i64 {
    let mut step = 0;
    leaves(std::slice::from_ref(node), &mut |leaf: &Leaf| {
        if let Some(Attr::Int(at)) = leaf.annotations.get(keys::STEP) {
            step = *at;
        }
    });
    step.max(0)
}
