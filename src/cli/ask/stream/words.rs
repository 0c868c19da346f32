//! What is fixed of a streaming schedule, in the words that a question is read from.
use super::fixed::{whose, Fixed, Kernel, KernelKind};
use satune_ir::term::stream::RowPlace;

impl Fixed {
    /// The question in words; [`super::parse::parse`] reads them.
    pub fn words(&self) -> String {
        let mut said: Vec<String> =
            self.inlined.iter().map(|(b, i)| format!("{} {b}", if *i { "inline" } else { "keep" })).collect();
        said.extend(self.parts.map(|parts| format!("parts {parts}")));
        said.extend(self.cascaded.map(|yes| format!("cascaded {}", if yes { "yes" } else { "no" })));
        said.extend(self.one.then(|| "kernels 1".to_string()));
        for (block, kernel) in &self.kernels {
            said.extend(kernel.blocks.as_ref().map(|blocks| format!("kernel {}", blocks.join("+"))));
            let of = whose(block);
            said.extend(kernel.words().into_iter().map(|words| format!("{of}{words}")));
        }
        said.join(", ")
    }
}

impl Kernel {
    fn words(&self) -> Vec<String> {
        let kind = self.kind.map(|kind| match kind {
            KernelKind::Rows => "as rows".to_string(),
            KernelKind::Flat => "as flat".into(),
            KernelKind::Tile => "as tile".into(),
            KernelKind::Plain => "as plain".into(),
            KernelKind::Tiled => "as tiled".into(),
        });
        let numbers = [
            ("rows", self.rows),
            ("side-by-side", self.side_by_side),
            ("threads", self.threads),
            ("vector", self.vector),
            ("steps", self.steps),
            ("tile", self.tile),
            ("pad", self.pad),
        ];
        let mut said: Vec<String> = kind.into_iter().collect();
        said.extend(numbers.into_iter().filter_map(|(word, n)| n.map(|n| format!("{word} {n}"))));
        said.extend(self.window.as_ref().map(|(results, iter)| {
            let along = iter.as_ref().map_or_else(String::new, |iter| format!(" along {iter}"));
            format!("window {results}{along}")
        }));
        said.extend(self.sharing.map(|(n, lanes)| format!("sharing {n}{}", if lanes { " lanes" } else { "" })));
        said.extend(self.held.iter().map(|(buffer, place)| {
            let place = match place {
                RowPlace::Global => "global",
                RowPlace::Shared => "shared",
                RowPlace::Registers => "registers",
            };
            format!("hold {buffer} {place}")
        }));
        said.extend(self.unroll.iter().map(|(b, yes)| format!("unroll {b} {}", if *yes { "yes" } else { "no" })));
        said
    }
}
