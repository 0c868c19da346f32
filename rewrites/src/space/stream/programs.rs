//! The programs that the primitives make of a source, each known once however it came about, and what they make of each other: what
//! was asked of one is not asked again, be it with other bounds.
use super::tiled::{alone, read, Contractions};
use crate::replay::Replay;
use crate::space::nests::parts;
use crate::Call;
use satune_ir::term::stream::Stream;
use satune_ir::{tvmscript, Program};
use std::collections::{BTreeSet, HashMap};

/// Programs by number; the source is the first.
pub(super) struct Programs {
    /// Names of the buffers that the source's blocks write.
    made: BTreeSet<String>,
    /// Whether blocks may move at all.
    moves: bool,
    contractions: Contractions,
    all: Vec<Known>,
    by_text: HashMap<String, usize>,
    /// What the primitives say of calls on a part of a program, by the text of the part.
    verdicts: HashMap<(String, String), bool>,
    legal: HashMap<Step, bool>,
    next: HashMap<Step, Option<usize>>,
    rests: HashMap<(usize, usize), Option<usize>>,
}

/// A program, the blocks among which calls are made (none for all of it), and the calls as a text.
type Step = (usize, Vec<usize>, String);

struct Known {
    replay: Replay,
    /// Its blocks, where it is one of streaming blocks.
    stream: Option<Stream>,
}

impl Programs {
    /// None but the source, whose blocks are read already, and the contractions among them.
    pub fn of(
        source: Replay,
        (stream, contractions): (Stream, Contractions),
        made: BTreeSet<String>,
        moves: bool,
    ) -> Programs {
        let text = tvmscript::print(source.schedule.program());
        Programs {
            made,
            moves,
            contractions,
            all: vec![Known { replay: source, stream: Some(stream) }],
            by_text: HashMap::from([(text, 0)]),
            verdicts: HashMap::new(),
            legal: HashMap::new(),
            next: HashMap::new(),
            rests: HashMap::new(),
        }
    }

    /// The program of a number.
    pub fn program(&self, number: usize) -> &Program {
        self.all[number].replay.schedule.program()
    }

    /// Its blocks, where it is one of streaming blocks.
    pub fn stream(&self, number: usize) -> Option<&Stream> {
        self.all[number].stream.as_ref()
    }

    /// Names of the buffers that the source's blocks write.
    pub fn made(&self) -> &BTreeSet<String> {
        &self.made
    }

    /// Whether the primitives take calls on some blocks of a program: of these blocks alone, for no others matter.
    pub fn legal(&mut self, program: usize, blocks: &[usize], calls: &[Call]) -> bool {
        let step = (program, blocks.to_vec(), format!("{calls:?}"));
        self.moves && self.allowed(&step, calls)
    }

    fn allowed(&mut self, step: &Step, calls: &[Call]) -> bool {
        if let Some(known) = self.legal.get(step) {
            return *known;
        }
        let (number, blocks, text) = step;
        let program = self.program(*number);
        let part = alone(program, &parts(program), &|at| blocks.contains(&at));
        let takes = |mut part: Replay| calls.iter().all(|call| part.call(call).is_ok());
        let ask = || Replay::strict(&part).is_ok_and(takes);
        let said = *self.verdicts.entry((tvmscript::print(&part), text.clone())).or_insert_with(ask);
        self.legal.insert(step.clone(), said);
        said
    }

    /// What calls on some blocks make of a program, where they are legal.
    pub fn next(&mut self, program: usize, blocks: &[usize], calls: &[Call]) -> Option<usize> {
        let step = (program, blocks.to_vec(), format!("{calls:?}"));
        (self.moves && self.allowed(&step, calls)).then_some(())?;
        self.made_of(step, calls)
    }

    fn made_of(&mut self, step: Step, calls: &[Call]) -> Option<usize> {
        if let Some(known) = self.next.get(&step) {
            return *known;
        }
        let mut replay = self.all[step.0].replay.clone();
        let made = calls.iter().all(|call| replay.call(call).is_ok()).then(|| self.add(replay));
        self.next.insert(step, made);
        made
    }

    /// What calls make of a program as a whole, which says more than its parts of values that nobody reads.
    pub fn whole(&mut self, program: usize, calls: &[Call]) -> Option<usize> {
        self.moves.then_some(())?;
        self.made_of((program, Vec::new(), format!("{calls:?}")), calls)
    }

    /// What is left of a program without its first blocks.
    pub fn rest(&mut self, program: usize, without: usize) -> Option<usize> {
        if let Some(known) = self.rests.get(&(program, without)) {
            return *known;
        }
        let whole = self.program(program);
        let replay = Replay::new(&alone(whole, &parts(whole), &|at| at >= without)).ok();
        let made = replay.map(|replay| self.add(replay));
        self.rests.insert((program, without), made);
        made
    }

    fn add(&mut self, replay: Replay) -> usize {
        let number = *self.by_text.entry(tvmscript::print(replay.schedule.program())).or_insert(self.all.len());
        if number == self.all.len() {
            let stream = read(&replay, &self.made, &mut self.contractions).ok();
            self.all.push(Known { replay, stream });
        }
        number
    }
}
