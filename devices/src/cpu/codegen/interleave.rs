//! The copies of an unrolled loop, instruction by instruction in turn.
//!
//! One vector after the other, each is a chain of dependent operations that is as long as the processor can look ahead;
//! and a constant that no register is left for is read once per vector. Taken in turn, the chains run side by side and
//! share the constants. LLVM's scheduler keeps the order that it is given.
use super::emit::{Emit, Lane};
use std::collections::HashMap;

impl Emit<'_> {
    /// Runs `f` (which is given the copy's number) in each of the lanes; the code of all of them is merged.
    ///
    /// What a copy stores, no other copy reads.
    pub(super) fn side_by_side<R>(&mut self, lanes: &[Lane], f: &mut dyn FnMut(&mut Self, usize) -> R) -> Vec<R> {
        let begin = self.scopes.last().map_or(0, |s| s.code.len());
        let (mut results, mut ends) = (Vec::with_capacity(lanes.len()), Vec::with_capacity(lanes.len()));
        for (n, lane) in lanes.iter().enumerate() {
            results.push(self.on(lane, |e| f(e, n)));
            ends.push(self.scopes.last().map_or(0, |s| s.code.len()));
        }
        if let (true, Some(scope)) = (lanes.len() > 1, self.scopes.last_mut()) {
            let mut from = begin;
            let parts: Vec<Vec<&str>> = (ends.iter())
                .map(|&end| scope.code[std::mem::replace(&mut from, end)..end].lines().collect())
                .collect();
            if let Some(merged) = merge(&parts) {
                scope.code.truncate(begin);
                scope.code.push_str(&merged);
            }
        }
        results
    }
}

/// Lines of all parts in turn. A part may use what those before it define. None if there is more than straight code.
fn merge(parts: &[Vec<&str>]) -> Option<String> {
    let mut owner = HashMap::new();
    for (n, part) in parts.iter().enumerate() {
        for line in part {
            if line.ends_with(':') || line.starts_with("br ") || line.contains(" phi ") {
                return None;
            }
            if let Some((name, _)) = line.split_once(" = ") {
                owner.insert(name, n);
            }
        }
    }
    let mut out = String::with_capacity(parts.iter().flatten().map(|l| l.len() + 1).sum());
    let mut next = vec![0; parts.len()];
    let mut done = std::collections::HashSet::new();
    while next.iter().zip(parts).any(|(&at, p)| at < p.len()) {
        for (n, part) in parts.iter().enumerate() {
            let Some(line) = part.get(next[n]) else { continue };
            let waits = |name: &str| owner.get(name).is_some_and(|&o| o != n) && !done.contains(name);
            if names(line).any(waits) {
                continue;
            }
            if let Some((name, _)) = line.split_once(" = ") {
                done.insert(name);
            }
            out.push_str(line);
            out.push('\n');
            next[n] += 1;
        }
    }
    Some(out)
}

/// Names of SSA values in a line.
fn names(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices('%').map(|(at, _)| {
        let rest = &line[at..];
        let end =
            rest[1..].find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '_').map_or(rest.len(), |e| e + 1);
        &rest[..end]
    })
}

#[cfg(test)]
mod tests {
    use super::merge;

    #[test]
    fn parts_take_turns_but_wait_for_what_they_use() {
        let a = vec!["%v1 = load float, ptr %p0", "%v2 = fadd float %v1, %v1", "%v3 = fmul float %v2, %v1"];
        let b = vec!["%v4 = fadd float %v2, %c", "store float %v4, ptr %p1"];
        let want = "%v1 = load float, ptr %p0\n%v2 = fadd float %v1, %v1\n%v4 = fadd float %v2, %c\n\
                    %v3 = fmul float %v2, %v1\nstore float %v4, ptr %p1\n";
        assert_eq!(merge(&[a.clone(), b]).as_deref(), Some(want));
        assert_eq!(merge(&[a, vec!["br label %L1.head", "L1.head:"]]), None);
    }
}
