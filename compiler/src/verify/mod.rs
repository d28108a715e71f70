//! The verifier: all invariants of a graph, all faults at once.
//!
//! The pass runner verifies after every pass, so that a fault names the pass that made it; nothing else needs to
//! check what is checked here.
use crate::ir::{Attrs, DType, Graph, Inst, InstId, OpKind, ParamKind, TensorType, Value, infer};
use crate::text;
use std::fmt;

/// One violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Names of the functions from the graph inwards, joined by `/`.
    pub function: String,
    /// The offending instruction as text (its first line), or `parameter 3`, `result 0`.
    pub place: String,
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}: {}: {}", self.function, self.place, self.message)
    }
}

/// All faults of a graph, as an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if i > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// Fails with all faults of `graph`, if it has any.
pub fn check(graph: &Graph) -> Result<(), Faults> {
    let faults = verify(graph);
    if faults.is_empty() { Ok(()) } else { Err(Faults(faults)) }
}

/// All faults of `graph`, in the order of its text.
///
/// Checked: every parameter has exactly one instruction, of its type; runtime scalars are 0-d `f64` or `i64`;
/// values are numbered in order; operands are defined before their use; the type rule ([`infer`]) holds; results
/// exist; donations name a result of the same type, one parameter each; and all of this in the bodies of fusions,
/// which have no donations.
pub fn verify(graph: &Graph) -> Vec<Fault> {
    let mut v = Verifier { graph, function: graph.name.clone(), faults: Vec::new() };
    v.run();
    v.faults
}

struct Verifier<'a> {
    graph: &'a Graph,
    function: String,
    faults: Vec<Fault>,
}

impl Verifier<'_> {
    fn fault(&mut self, place: String, message: impl Into<String>) {
        let function = self.function.clone();
        self.faults.push(Fault { function, place, message: message.into() });
    }

    fn fault_at(&mut self, id: InstId, message: impl Into<String>) {
        let text = text::print_inst(self.graph, id);
        let line = text.lines().next().unwrap_or_default().trim_end_matches(" {").to_string();
        self.fault(line, message);
    }

    fn exists(&self, v: Value) -> bool {
        (v.0 as usize) < self.graph.n_values()
    }

    fn run(&mut self) {
        let g = self.graph;
        self.params();
        let mut next = 0;
        for (id, inst) in g.iter() {
            self.inst(id, inst, next);
            next = inst.first.0.saturating_add(inst.n_results);
        }
        if next as usize != g.n_values() {
            self.fault("values".into(), format!("{} values, the instructions define {next}", g.n_values()));
        }
        for (i, &v) in g.results.iter().enumerate() {
            if !self.exists(v) {
                self.fault(format!("result {i}"), format!("%{} does not exist", v.0));
            }
        }
        self.donations();
    }

    fn params(&mut self) {
        let g = self.graph;
        let mut seen = vec![0; g.params.len()];
        for (id, inst) in g.iter().filter(|(_, inst)| inst.kind == OpKind::Parameter) {
            let Attrs::Index(index) = inst.attrs else { continue };
            match g.params.get(index as usize) {
                None => self.fault_at(id, format!("the function has {} parameters", g.params.len())),
                Some(param) => {
                    seen[index as usize] += 1;
                    if seen[index as usize] == 2 {
                        self.fault_at(id, format!("parameter {index} has a second instruction"));
                    }
                    if self.exists(inst.first) && *g.ty(inst.first) != param.ty {
                        self.fault_at(id, format!("parameter {index} is declared {}", param.ty));
                    }
                }
            }
        }
        for (i, param) in g.params.iter().enumerate() {
            if seen[i] == 0 {
                self.fault(format!("parameter {i}"), "it has no instruction");
            }
            let scalar = [DType::F64, DType::I64].map(TensorType::scalar).contains(&param.ty);
            if param.kind == ParamKind::Scalar && !scalar {
                self.fault(format!("parameter {i}"), format!("a runtime scalar of type {}", param.ty));
            }
        }
    }

    fn inst(&mut self, id: InstId, inst: &Inst, next: u32) {
        let g = self.graph;
        if inst.first.0 != next {
            self.fault_at(id, format!("expected its first result to be %{next}"));
        }
        let missing: Vec<Value> = inst.results().filter(|&v| !self.exists(v) || g.def(v) != id).collect();
        for v in &missing {
            self.fault_at(id, format!("%{} is not its result", v.0));
        }
        let mut usable = missing.is_empty();
        for &v in &inst.operands {
            let problem = if !self.exists(v) {
                "does not exist"
            } else if g.def(v) >= id {
                "is used before it is defined"
            } else {
                continue;
            };
            usable = false;
            self.fault_at(id, format!("%{} {problem}", v.0));
        }
        if let Attrs::Fusion { body, .. } = &inst.attrs {
            self.body(body);
            // The type rule of a fusion asks for the types of the body's results.
            usable &= body.results.iter().all(|v| (v.0 as usize) < body.n_values());
        }
        if usable {
            self.types(id, inst);
        }
    }

    fn types(&mut self, id: InstId, inst: &Inst) {
        let g = self.graph;
        let declared: Vec<TensorType> = inst.results().map(|v| g.ty(v).clone()).collect();
        if let Some(t) = declared.iter().find(|t| t.dims.iter().any(|&d| d < 0)) {
            self.fault_at(id, format!("negative size in {t}"));
            return;
        }
        let operands: Vec<&TensorType> = inst.operands.iter().map(|&v| g.ty(v)).collect();
        match infer(inst.kind, &inst.attrs, &operands, &declared) {
            Err(e) => self.fault_at(id, e.to_string()),
            Ok(types) if types != declared => {
                let list: Vec<String> = types.iter().map(|t| t.to_string()).collect();
                self.fault_at(id, format!("the type rule gives {}", list.join(", ")));
            }
            Ok(_) => {}
        }
    }

    fn body(&mut self, body: &Graph) {
        let function = format!("{}/{}", self.function, body.name);
        let mut inner = Verifier { graph: body, function, faults: Vec::new() };
        inner.run();
        for (i, _) in body.params.iter().enumerate().filter(|(_, p)| p.donate_to.is_some()) {
            inner.fault(format!("parameter {i}"), "a fusion's parameter cannot be donated");
        }
        self.faults.append(&mut inner.faults);
    }

    fn donations(&mut self) {
        let g = self.graph;
        for (i, param) in g.params.iter().enumerate() {
            let Some(result) = param.donate_to else { continue };
            let place = format!("parameter {i}");
            if param.kind == ParamKind::Scalar {
                self.fault(place.clone(), "a runtime scalar cannot be donated");
            }
            match g.results.get(result as usize) {
                None => self.fault(place.clone(), format!("donated to result {result} of {}", g.results.len())),
                Some(&v) if self.exists(v) && *g.ty(v) != param.ty => {
                    self.fault(place.clone(), format!("{} donated to result {result} of type {}", param.ty, g.ty(v)));
                }
                Some(_) => {}
            }
            if let Some(first) = g.params[..i].iter().position(|p| p.donate_to == Some(result)) {
                self.fault(place, format!("result {result} already takes the memory of parameter {first}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let graph = text::parse_unchecked(text).unwrap_or_else(|e| panic!("{e}"));
        verify(&graph).iter().map(|f| f.to_string()).collect()
    }

    /// The kinds of faults that texts can express are fixtures under tests/ir/verify; these need hand-made graphs.
    #[test]
    fn broken_numbering() {
        let mut graph = text::parse("func @f(%0: tensor<4xf32>) { %1 = tanh %0 : tensor<4xf32> return %1 }").unwrap();
        graph.insts[1].first = Value(7);
        graph.params.push(graph.params[0].clone());
        let got: Vec<String> = verify(&graph).iter().map(|f| f.to_string()).collect();
        assert_eq!(
            got,
            [
                "@f: parameter 1: it has no instruction",
                "@f: %7 = tanh %0 : ?: expected its first result to be %1",
                "@f: %7 = tanh %0 : ?: %7 is not its result",
                "@f: values: 2 values, the instructions define 8",
            ]
        );
    }

    #[test]
    fn a_sound_graph_has_no_faults() {
        assert_eq!(
            faults("func @f(%0: tensor<4xf32> {donate = 0}) { %1 = tanh %0 : tensor<4xf32> return %1 }"),
            [""; 0]
        );
    }
}
