//! The table of user frames: source lines as small numbers.
use ahash::AHashMap;
use std::sync::{Arc, RwLock};

/// A user's source line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    pub file: Arc<str>,
    /// From 1.
    pub line: u32,
    pub function: Arc<str>,
}

impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        if self.function.is_empty() { Ok(()) } else { write!(f, " ({})", self.function) }
    }
}

/// Interned frames; append-only. Number 0 is "unknown".
#[derive(Debug, Default)]
pub struct FrameTable {
    inner: RwLock<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    frames: Vec<Frame>,
    /// Hash of a frame to the numbers that have it.
    by_hash: AHashMap<u64, Vec<u32>>,
    /// File and function names, shared between frames.
    names: AHashMap<Arc<str>, ()>,
    hasher: ahash::RandomState,
}

impl FrameTable {
    /// The number of a frame, from 1. Equal frames get equal numbers.
    pub fn intern(&self, file: &str, line: u32, function: &str) -> u32 {
        let is = |f: &Frame| &*f.file == file && f.line == line && &*f.function == function;
        {
            let inner = self.inner.read().unwrap_or_else(|e| e.into_inner());
            let hash = inner.hash(file, line, function);
            if let Some(id) = inner.find(hash, is) {
                return id;
            }
        }
        let mut inner = self.inner.write().unwrap_or_else(|e| e.into_inner());
        let hash = inner.hash(file, line, function);
        if let Some(id) = inner.find(hash, is) {
            return id;
        }
        let frame = Frame { file: inner.name(file), line, function: inner.name(function) };
        inner.frames.push(frame);
        let id = inner.frames.len() as u32;
        inner.by_hash.entry(hash).or_default().push(id);
        id
    }

    /// The frame with number `id`; `None` for 0 and numbers never given out.
    pub fn get(&self, id: u32) -> Option<Frame> {
        let index = (id as usize).checked_sub(1)?;
        self.inner.read().unwrap_or_else(|e| e.into_inner()).frames.get(index).cloned()
    }

    /// Text of a frame: `file:line (function)`, or `unknown place`.
    pub fn text(&self, id: u32) -> String {
        self.get(id).map_or_else(|| "unknown place".into(), |f| f.to_string())
    }

    pub fn len(&self) -> usize {
        self.inner.read().unwrap_or_else(|e| e.into_inner()).frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Inner {
    fn hash(&self, file: &str, line: u32, function: &str) -> u64 {
        self.hasher.hash_one((file, line, function))
    }

    fn find(&self, hash: u64, is: impl Fn(&Frame) -> bool) -> Option<u32> {
        self.by_hash.get(&hash)?.iter().copied().find(|&id| is(&self.frames[id as usize - 1]))
    }

    fn name(&mut self, text: &str) -> Arc<str> {
        if let Some((name, ())) = self.names.get_key_value(text) {
            return name.clone();
        }
        let name: Arc<str> = text.into();
        self.names.insert(name.clone(), ());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_frames_are_one() {
        let table = FrameTable::default();
        let a = table.intern("train.py", 12, "step");
        assert_eq!(a, table.intern("train.py", 12, "step"));
        assert_ne!(a, table.intern("train.py", 13, "step"));
        assert_ne!(a, table.intern("train.py", 12, "other"));
        assert_eq!(table.text(a), "train.py:12 (step)");
        assert_eq!(table.text(0), "unknown place");
        assert_eq!(table.len(), 3);
    }
}
