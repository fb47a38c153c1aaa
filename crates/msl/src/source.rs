//! What a caller hands in: named pieces of Metal source that are compiled as one text.

/// One named piece of source text.
#[derive(Debug, Clone)]
pub struct Part {
    /// Name used in messages and reports, usually the file name.
    pub name: String,
    /// The text.
    pub text: String,
}

/// Pieces that are preprocessed in order as one translation unit, so that macros and constants of an earlier piece are
/// seen by later ones.
#[derive(Debug, Clone)]
pub struct Source {
    /// The pieces, in order.
    pub parts: Vec<Part>,
    /// Value of `__METAL_VERSION__`: 310 for MSL 3.1, 400 for MSL 4.0 (tensor operations).
    pub metal_version: u32,
}

impl Source {
    /// A source of one piece, for MSL 4.0.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Source { parts: vec![Part { name: name.into(), text: text.into() }], metal_version: 400 }
    }

    /// An empty source for MSL 4.0, to be filled with [`Source::with`].
    pub fn empty() -> Self {
        Source { parts: Vec::new(), metal_version: 400 }
    }

    /// Appends a piece.
    pub fn with(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.parts.push(Part { name: name.into(), text: text.into() });
        self
    }

    /// Appends `#define NAME VALUE`, seen by the pieces appended after it.
    pub fn define(self, name: &str, value: impl std::fmt::Display) -> Self {
        self.with("<define>", format!("#define {name} {value}\n"))
    }

    /// Sets `__METAL_VERSION__` (310, 320, 400).
    pub fn metal_version(mut self, version: u32) -> Self {
        self.metal_version = version;
        self
    }

    /// Name of part `file`.
    pub(crate) fn name(&self, file: u32) -> &str {
        self.parts.get(file as usize).map_or("<none>", |part| &part.name)
    }
}
