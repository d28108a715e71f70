//! Training steps as they are recorded: forward, backward and optimiser in one graph, decomposed as the recorder's
//! lowerings do it, views as chains of movement ops. One model after another, all on the one `Step`, hence its length.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
use rsx_compiler::ir::{Builder, CmpDir, DType, Graph, OpKind, ParamKind, ReduceKind, ScatterKind, TensorType, Value};

pub const F: DType = DType::F32;

/// A graph being recorded, with the parameters an optimiser updates.
pub struct Step {
    pub b: Builder,
    lr: Value,
    beta1: Value,
    beta2: Value,
    eps: Value,
    decay: Value,
    results: Vec<Value>,
    states: Vec<State>,
}

/// A trained parameter with its AdamW state, as parameter numbers, and its gradient.
struct State {
    p: (u32, Value),
    m: (u32, Value),
    v: (u32, Value),
    step: (u32, Value),
    grad: Option<Value>,
}

/// Handle of a trained parameter.
#[derive(Clone, Copy)]
pub struct Weight(usize);

impl Step {
    pub fn new(name: &str) -> Self {
        let mut b = Builder::new(name);
        let mut scalar = || b.parameter(TensorType::scalar(DType::F64), ParamKind::Scalar);
        let (lr, beta1, beta2, eps, decay) = (scalar(), scalar(), scalar(), scalar(), scalar());
        Step { b, lr, beta1, beta2, eps, decay, results: vec![], states: vec![] }
    }

    pub fn input(&mut self, dtype: DType, dims: &[i64]) -> (u32, Value) {
        let n = self.b.graph().params.len() as u32;
        (n, self.b.parameter(TensorType::new(dtype, dims), ParamKind::Tensor))
    }

    pub fn weight(&mut self, dims: &[i64]) -> Weight {
        let state = State {
            p: self.input(F, dims),
            m: self.input(F, dims),
            v: self.input(F, dims),
            step: self.input(F, &[]),
            grad: None,
        };
        self.states.push(state);
        Weight(self.states.len() - 1)
    }

    pub fn value(&self, w: Weight) -> Value {
        self.states[w.0].p.1
    }

    pub fn set_grad(&mut self, w: Weight, g: Value) {
        let g = match self.states[w.0].grad {
            Some(old) => self.b.add(old, g),
            None => g,
        };
        self.states[w.0].grad = Some(g);
    }

    pub fn lit(&mut self, like: Value, x: f64) -> Value {
        self.b.full_like(like, x)
    }

    /// `x op constant`.
    pub fn scale(&mut self, x: Value, c: f64) -> Value {
        let c = self.lit(x, c);
        self.b.mul(x, c)
    }

    pub fn plus(&mut self, x: Value, c: f64) -> Value {
        let c = self.lit(x, c);
        self.b.add(x, c)
    }

    /// `v` (of kept or fewer dimensions) broadcast to the sizes of `like`.
    pub fn like(&mut self, v: Value, like: Value) -> Value {
        let dims = self.b.dims(like);
        self.b.broadcast_to(v, dims)
    }

    pub fn mean_keep(&mut self, x: Value, dims: &[i64]) -> Value {
        let n: i64 = dims.iter().map(|&d| self.b.dims(x)[d as usize]).product();
        let s = self.b.reduce_keep(ReduceKind::Sum, x, dims);
        let n = self.lit(s, n as f64);
        self.b.div(s, n)
    }

    /// (y, mean, rstd) over the last dimension.
    pub fn layer_norm(&mut self, x: Value, w: Value, bias: Value) -> (Value, Value, Value) {
        let last = self.b.rank(x) as i64 - 1;
        let mean = self.mean_keep(x, &[last]);
        let m = self.like(mean, x);
        let d = self.b.sub(x, m);
        let dd = self.b.mul(d, d);
        let var = self.mean_keep(dd, &[last]);
        let ve = self.plus(var, 1e-5);
        let rstd = self.b.unary(OpKind::Rsqrt, ve);
        let m = self.like(mean, x);
        let d = self.b.sub(x, m);
        let r = self.like(rstd, x);
        let n = self.b.mul(d, r);
        let (w, bias) = (self.like(w, x), self.like(bias, x));
        let nw = self.b.mul(n, w);
        (self.b.add(nw, bias), mean, rstd)
    }

    /// (dx, dw, db).
    pub fn layer_norm_backward(&mut self, dy: Value, x: Value, mean: Value, rstd: Value, w: Value) -> [Value; 3] {
        let last = self.b.rank(x) as i64 - 1;
        let outer: Vec<i64> = (0..last).collect();
        let m = self.like(mean, x);
        let d = self.b.sub(x, m);
        let r = self.like(rstd, x);
        let normal = self.b.mul(d, r);
        let wb = self.like(w, x);
        let g = self.b.mul(dy, wb);
        let gm = self.mean_keep(g, &[last]);
        let gn = self.b.mul(g, normal);
        let gnm = self.mean_keep(gn, &[last]);
        let (gm, gnm) = (self.like(gm, x), self.like(gnm, x));
        let a = self.b.sub(g, gm);
        let c = self.b.mul(normal, gnm);
        let ac = self.b.sub(a, c);
        let r = self.like(rstd, x);
        let dx = self.b.mul(ac, r);
        let dyn_ = self.b.mul(dy, normal);
        let dw = self.b.reduce(ReduceKind::Sum, dyn_, &outer);
        let db = self.b.reduce(ReduceKind::Sum, dy, &outer);
        [dx, dw, db]
    }

    /// `x · wᵀ + bias` on the last dimension (`addmm` of a flattened view).
    pub fn linear(&mut self, x: Value, w: Value, bias: Option<Value>) -> Value {
        let mut dims = self.b.dims(x);
        let k = dims[dims.len() - 1];
        let rows: i64 = dims[..dims.len() - 1].iter().product();
        let flat = self.b.reshape(x, [rows, k]);
        let wt = self.b.transpose(w, [1, 0]);
        let mut y = self.b.matmul(flat, wt);
        if let Some(bias) = bias {
            let bias = self.like(bias, y);
            y = self.b.add(bias, y);
        }
        let last = dims.len() - 1;
        dims[last] = self.b.dims(w)[0];
        self.b.reshape(y, dims)
    }

    /// (dx, dw, db).
    pub fn linear_backward(&mut self, dy: Value, x: Value, w: Value) -> [Value; 3] {
        let xd = self.b.dims(x);
        let (n, k) = (self.b.dims(w)[0], self.b.dims(w)[1]);
        let rows: i64 = xd[..xd.len() - 1].iter().product();
        let dyf = self.b.reshape(dy, [rows, n]);
        let xf = self.b.reshape(x, [rows, k]);
        let dx = self.b.matmul(dyf, w);
        let dx = self.b.reshape(dx, xd);
        let dyt = self.b.transpose(dyf, [1, 0]);
        let dw = self.b.matmul(dyt, xf);
        let db = self.b.reduce(ReduceKind::Sum, dyf, &[0]);
        [dx, dw, db]
    }

    fn gelu_inner(&mut self, x: Value) -> Value {
        let k = self.scale(x, 0.044715);
        let xx = self.b.mul(k, x);
        let xxx = self.b.mul(xx, x);
        let s = self.b.add(x, xxx);
        let s = self.scale(s, 0.797_884_560_802_865_4);
        self.b.unary(OpKind::Tanh, s)
    }

    pub fn gelu(&mut self, x: Value) -> Value {
        let t = self.gelu_inner(x);
        let half = self.scale(x, 0.5);
        let t1 = self.plus(t, 1.0);
        self.b.mul(half, t1)
    }

    pub fn gelu_backward(&mut self, dy: Value, x: Value) -> Value {
        let t = self.gelu_inner(x);
        let k = self.scale(x, 3.0 * 0.044715);
        let kx = self.b.mul(k, x);
        let inner = self.plus(kx, 1.0);
        let inner = self.scale(inner, 0.797_884_560_802_865_4);
        let t1 = self.plus(t, 1.0);
        let left = self.scale(t1, 0.5);
        let tt = self.b.mul(t, t);
        let one = self.lit(x, 1.0);
        let sech = self.b.sub(one, tt);
        let hx = self.scale(x, 0.5);
        let r = self.b.mul(hx, sech);
        let r = self.b.mul(r, inner);
        let d = self.b.add(left, r);
        self.b.mul(dy, d)
    }

    pub fn softmax(&mut self, x: Value) -> Value {
        let last = self.b.rank(x) as i64 - 1;
        let m = self.b.reduce_keep(ReduceKind::Max, x, &[last]);
        let m = self.like(m, x);
        let s = self.b.sub(x, m);
        let e = self.b.unary(OpKind::Exp, s);
        let z = self.b.reduce_keep(ReduceKind::Sum, e, &[last]);
        let z = self.like(z, x);
        self.b.div(e, z)
    }

    pub fn softmax_backward(&mut self, dy: Value, y: Value) -> Value {
        let last = self.b.rank(y) as i64 - 1;
        let dyy = self.b.mul(dy, y);
        let s = self.b.reduce_keep(ReduceKind::Sum, dyy, &[last]);
        let s = self.like(s, y);
        let d = self.b.sub(dy, s);
        self.b.mul(y, d)
    }

    /// Mean cross entropy of logits [n, classes] and i64 targets [n], and the gradient of the logits.
    pub fn cross_entropy(&mut self, x: Value, target: Value) -> (Value, Value) {
        let dims = self.b.dims(x);
        let (n, classes) = (dims[0], dims[1]);
        let m = self.b.reduce_keep(ReduceKind::Max, x, &[1]);
        let m = self.like(m, x);
        let shifted = self.b.sub(x, m);
        let e = self.b.unary(OpKind::Exp, shifted);
        let z = self.b.reduce_keep(ReduceKind::Sum, e, &[1]);
        let lz = self.b.unary(OpKind::Log, z);
        let lz = self.like(lz, x);
        let logp = self.b.sub(shifted, lz);

        let t = self.b.reshape(target, [n, 1]);
        let index = TensorType::new(DType::I64, [n, classes]);
        let iota = self.b.iota(&index, 1);
        let tb = self.b.broadcast_to(t, [n, classes]);
        let eq = self.b.compare(CmpDir::Eq, iota, tb);
        let ignore = self.b.splat_i64(&TensorType::new(DType::I64, [n, 1]), -100);
        let valid = self.b.compare(CmpDir::Ne, t, ignore);
        let vb = self.b.broadcast_to(valid, [n, classes]);
        let hot = self.b.binary(OpKind::And, eq, vb);
        let weight = self.b.convert(valid, F);
        let zero = self.lit(logp, 0.0);
        let chosen = self.b.select(hot, logp, zero);
        let chosen = self.b.reduce_keep(ReduceKind::Sum, chosen, &[1]);
        let neg = self.b.unary(OpKind::Negate, chosen);
        let losses = self.b.mul(neg, weight);
        let total = self.b.reduce(ReduceKind::Sum, weight, &[0, 1]);
        let loss = self.b.reduce(ReduceKind::Sum, losses, &[0, 1]);
        let loss = self.b.div(loss, total);

        let dy = self.b.scalar(F, 1.0);
        let dy = self.b.div(dy, total);
        let nw = self.b.unary(OpKind::Negate, weight);
        let dyb = self.like(dy, nw);
        let g = self.b.mul(nw, dyb);
        let gb = self.like(g, x);
        let dlogp = self.b.select(hot, gb, zero);
        let p = self.b.unary(OpKind::Exp, logp);
        let s = self.b.reduce_keep(ReduceKind::Sum, dlogp, &[1]);
        let s = self.like(s, x);
        let ps = self.b.mul(p, s);
        (loss, self.b.sub(dlogp, ps))
    }

    pub fn result(&mut self, v: Value) {
        self.results.push(v);
    }

    fn scalar_as(&mut self, v: Value, like: Value) -> Value {
        let dims = self.b.dims(like);
        let v = self.b.convert(v, F);
        self.b.broadcast_to(v, dims)
    }

    /// AdamW on everything that has a gradient, as the fused optimiser is lowered; all state is donated.
    pub fn adamw(&mut self) {
        let one64 = self.b.scalar(DType::F64, 1.0);
        for i in 0..self.states.len() {
            let State { p, m, v, step, grad } = &self.states[i];
            let (p, m, v, step) = (*p, *m, *v, *step);
            let Some(g) = *grad else { continue };
            let one = self.b.scalar(F, 1.0);
            let step1 = self.b.add(step.1, one);
            let (lr, beta1, beta2, eps, decay) = (self.lr, self.beta1, self.beta2, self.eps, self.decay);
            let lrd = self.b.mul(lr, decay);
            let lrd = self.scalar_as(lrd, p.1);
            let pd = self.b.mul(p.1, lrd);
            let p1 = self.b.sub(p.1, pd);
            let w1 = self.b.sub(one64, beta1);
            let w1 = self.scalar_as(w1, p.1);
            let gm = self.b.sub(g, m.1);
            let gmw = self.b.mul(gm, w1);
            let m2 = self.b.add(m.1, gmw);
            let b2 = self.scalar_as(beta2, p.1);
            let vb = self.b.mul(v.1, b2);
            let gg = self.b.mul(g, g);
            let w2 = self.b.sub(one64, beta2);
            let w2 = self.scalar_as(w2, p.1);
            let ggw = self.b.mul(gg, w2);
            let v2 = self.b.add(vb, ggw);
            let s64 = self.b.convert(step1, DType::F64);
            let pow1 = self.b.binary(OpKind::Power, beta1, s64);
            let c1 = self.b.sub(one64, pow1);
            let pow2 = self.b.binary(OpKind::Power, beta2, s64);
            let c2 = self.b.sub(one64, pow2);
            let root = self.b.unary(OpKind::Sqrt, c2);
            let root = self.scalar_as(root, p.1);
            let sv = self.b.unary(OpKind::Sqrt, v2);
            let den = self.b.div(sv, root);
            let eps = self.scalar_as(eps, p.1);
            let den = self.b.add(den, eps);
            let q = self.b.div(m2, den);
            let rate = self.b.div(lr, c1);
            let rate = self.scalar_as(rate, p.1);
            let u = self.b.mul(q, rate);
            let p2 = self.b.sub(p1, u);
            for (n, new) in [(p.0, p2), (m.0, m2), (v.0, v2), (step.0, step1)] {
                self.b.donate(n, self.results.len() as u32);
                self.results.push(new);
            }
        }
    }

    /// Ends with the update of everything that has a gradient.
    pub fn finish_adamw(mut self) -> Graph {
        self.adamw();
        self.finish()
    }

    pub fn finish(self) -> Graph {
        match self.b.finish(self.results) {
            Ok(g) => g,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Sizes of a GPT.
#[derive(Clone, Copy)]
pub struct Gpt {
    pub layers: usize,
    pub batch: i64,
    pub time: i64,
    pub width: i64,
    pub heads: i64,
    pub vocab: i64,
}

/// One training step of a GPT with tied-free head: embedding, blocks of attention and MLP with residuals, cross entropy,
/// backward, AdamW.
pub fn gpt(z: Gpt) -> Graph {
    gpt_step(z, true)
}

/// The logits of a GPT, nothing else.
pub fn gpt_forward(z: Gpt) -> Graph {
    gpt_step(z, false)
}

fn gpt_step(z: Gpt, trains: bool) -> Graph {
    let Gpt { layers, batch, time, width, heads, vocab } = z;
    let depth = width / heads;
    let mut s = Step::new("gpt");
    let (_, tokens) = s.input(DType::I64, &[batch, time]);
    let (_, targets) = s.input(DType::I64, &[batch, time]);
    let wte = s.weight(&[vocab, width]);
    let wpe = s.weight(&[time, width]);
    struct Block {
        ln1: [Weight; 2],
        qkv: [Weight; 2],
        proj: [Weight; 2],
        ln2: [Weight; 2],
        fc: [Weight; 2],
        out: [Weight; 2],
    }
    let mut blocks = Vec::new();
    for _ in 0..layers {
        let mut pair = |rows: i64, cols: Option<i64>| {
            let w = match cols {
                Some(c) => s.weight(&[rows, c]),
                None => s.weight(&[rows]),
            };
            [w, s.weight(&[rows])]
        };
        blocks.push(Block {
            ln1: pair(width, None),
            qkv: pair(3 * width, Some(width)),
            proj: pair(width, Some(width)),
            ln2: pair(width, None),
            fc: pair(4 * width, Some(width)),
            out: pair(width, Some(4 * width)),
        });
    }
    let lnf = [s.weight(&[width]), s.weight(&[width])];
    let head = s.weight(&[vocab, width]);

    // Forward.
    let table = s.value(wte);
    let tok = s.b.gather(table, &[0], &[tokens]);
    let pos = s.b.iota(&TensorType::new(DType::I64, [time]), 0);
    let ptable = s.value(wpe);
    let pos_emb = s.b.gather(ptable, &[0], &[pos]);
    let pe = s.like(pos_emb, tok);
    let mut x = s.b.add(tok, pe);
    struct Saved {
        x: Value,
        ln1: (Value, Value, Value),
        q: [Value; 3],
        att: (Value, Value),
        merged: Value,
        x2: Value,
        ln2: (Value, Value, Value),
        h: Value,
        g: Value,
    }
    let scale = s.b.scalar(DType::F64, 1.0 / (depth as f64).sqrt());
    let mut saved = Vec::new();
    for k in &blocks {
        let (w, b) = (s.value(k.ln1[0]), s.value(k.ln1[1]));
        let ln1 = s.layer_norm(x, w, b);
        let (w, b) = (s.value(k.qkv[0]), s.value(k.qkv[1]));
        let qkv = s.linear(ln1.0, w, Some(b));
        let q: Vec<Value> = (0..3)
            .map(|i| {
                let part = s.b.slice_dim(qkv, 2, i * width, (i + 1) * width, 1);
                let split = s.b.reshape(part, [batch, time, heads, depth]);
                s.b.transpose(split, [0, 2, 1, 3])
            })
            .collect();
        let q = [q[0], q[1], q[2]];
        let att = s.b.attention(q, scale, None, true);
        let t = s.b.transpose(att.0, [0, 2, 1, 3]);
        let merged = s.b.reshape(t, [batch, time, width]);
        let (w, b) = (s.value(k.proj[0]), s.value(k.proj[1]));
        let y = s.linear(merged, w, Some(b));
        let x2 = s.b.add(x, y);
        let (w, b) = (s.value(k.ln2[0]), s.value(k.ln2[1]));
        let ln2 = s.layer_norm(x2, w, b);
        let (w, b) = (s.value(k.fc[0]), s.value(k.fc[1]));
        let h = s.linear(ln2.0, w, Some(b));
        let g = s.gelu(h);
        let (w, b) = (s.value(k.out[0]), s.value(k.out[1]));
        let y = s.linear(g, w, Some(b));
        let x3 = s.b.add(x2, y);
        saved.push(Saved { x, ln1, q, att, merged, x2, ln2, h, g });
        x = x3;
    }
    let (w, b) = (s.value(lnf[0]), s.value(lnf[1]));
    let lf = s.layer_norm(x, w, b);
    let w = s.value(head);
    let logits = s.linear(lf.0, w, None);
    if !trains {
        s.result(logits);
        return s.finish();
    }
    let flat = s.b.reshape(logits, [batch * time, vocab]);
    let flat_targets = s.b.reshape(targets, [batch * time]);
    let (loss, dflat) = s.cross_entropy(flat, flat_targets);
    s.result(loss);

    // Backward.
    let dlogits = s.b.reshape(dflat, [batch, time, vocab]);
    let [d, dw, _] = s.linear_backward(dlogits, lf.0, w);
    s.set_grad(head, dw);
    let w = s.value(lnf[0]);
    let [mut dx, dw, db] = s.layer_norm_backward(d, x, lf.1, lf.2, w);
    s.set_grad(lnf[0], dw);
    s.set_grad(lnf[1], db);
    for (k, v) in blocks.iter().zip(&saved).rev() {
        let linear = |s: &mut Step, at: &[Weight; 2], dy: Value, x: Value| {
            let w = s.value(at[0]);
            let [dx, dw, db] = s.linear_backward(dy, x, w);
            s.set_grad(at[0], dw);
            s.set_grad(at[1], db);
            dx
        };
        let norm = |s: &mut Step, at: &[Weight; 2], dy: Value, x: Value, ln: (Value, Value, Value)| {
            let w = s.value(at[0]);
            let [dx, dw, db] = s.layer_norm_backward(dy, x, ln.1, ln.2, w);
            s.set_grad(at[0], dw);
            s.set_grad(at[1], db);
            dx
        };
        let dg = linear(&mut s, &k.out, dx, v.g);
        let dh = s.gelu_backward(dg, v.h);
        let dl = linear(&mut s, &k.fc, dh, v.ln2.0);
        let dn = norm(&mut s, &k.ln2, dl, v.x2, v.ln2);
        let dx2 = s.b.add(dx, dn);
        let dm = linear(&mut s, &k.proj, dx2, v.merged);
        let split = s.b.reshape(dm, [batch, time, heads, depth]);
        let datt = s.b.transpose(split, [0, 2, 1, 3]);
        let [q, kk, vv] = v.q;
        let grads = s.b.attention_backward([q, kk, vv, scale, v.att.0, v.att.1, datt], None, true);
        let parts: Vec<Value> = grads
            .iter()
            .map(|&g| {
                let t = s.b.transpose(g, [0, 2, 1, 3]);
                s.b.reshape(t, [batch, time, width])
            })
            .collect();
        let dqkv = s.b.concatenate(&parts, 2);
        let dl = linear(&mut s, &k.qkv, dqkv, v.ln1.0);
        let dn = norm(&mut s, &k.ln1, dl, v.x, v.ln1);
        dx = s.b.add(dx2, dn);
    }
    let dpos = s.b.reduce(ReduceKind::Sum, dx, &[0]);
    let zeros = s.b.splat(&TensorType::new(F, [time, width]), 0.0);
    let dwpe = s.b.scatter(ScatterKind::Add, zeros, &[0], &[pos], dpos);
    s.set_grad(wpe, dwpe);
    let flat_tokens = s.b.reshape(tokens, [batch * time]);
    let dxf = s.b.reshape(dx, [batch * time, width]);
    let zeros = s.b.splat(&TensorType::new(F, [vocab, width]), 0.0);
    let dwte = s.b.scatter(ScatterKind::Add, zeros, &[0], &[flat_tokens], dxf);
    s.set_grad(wte, dwte);
    s.adamw();
    s.finish()
}

/// One training step of a multi-layer perceptron with gelu and squared error.
pub fn mlp(layers: usize, batch: i64, width: i64) -> Graph {
    let mut s = Step::new("mlp");
    let (_, input) = s.input(F, &[batch, width]);
    let (_, target) = s.input(F, &[batch, width]);
    let weights: Vec<[Weight; 2]> = (0..layers).map(|_| [s.weight(&[width, width]), s.weight(&[width])]).collect();
    let mut x = input;
    let mut saved = Vec::new();
    for w in &weights {
        let (wv, bv) = (s.value(w[0]), s.value(w[1]));
        let h = s.linear(x, wv, Some(bv));
        saved.push((x, h));
        x = s.gelu(h);
    }
    let e = s.b.sub(x, target);
    let ee = s.b.mul(e, e);
    let total = s.b.reduce(ReduceKind::Sum, ee, &[0, 1]);
    let n = s.lit(total, (batch * width) as f64);
    let loss = s.b.div(total, n);
    s.result(loss);
    let mut d = s.scale(e, 2.0 / (batch * width) as f64);
    for (w, &(x, h)) in weights.iter().zip(&saved).rev() {
        let dh = s.gelu_backward(d, h);
        let wv = s.value(w[0]);
        let [dx, dw, db] = s.linear_backward(dh, x, wv);
        s.set_grad(w[0], dw);
        s.set_grad(w[1], db);
        d = dx;
    }
    s.adamw();
    s.finish()
}

/// Gradient clipping by the global norm, then AdamW: `clip_grad_norm_` as `_foreach` ops record it.
pub fn clipped(sizes: &[&[i64]]) -> Graph {
    let mut s = Step::new("clipped");
    let weights: Vec<Weight> = sizes.iter().map(|d| s.weight(d)).collect();
    let grads: Vec<Value> = sizes.iter().map(|d| s.input(F, d).1).collect();
    let mut norms = Vec::new();
    for &g in &grads {
        let square = s.b.mul(g, g);
        let all: Vec<i64> = (0..s.b.rank(g) as i64).collect();
        let sum = s.b.reduce(ReduceKind::Sum, square, &all);
        let norm = s.b.unary(OpKind::Sqrt, sum);
        norms.push(s.b.reshape(norm, [1]));
    }
    let stacked = s.b.concatenate(&norms, 0);
    let square = s.b.mul(stacked, stacked);
    let total = s.b.reduce(ReduceKind::Sum, square, &[0]);
    let total = s.b.unary(OpKind::Sqrt, total);
    let e = s.plus(total, 1e-6);
    let one = s.b.scalar(F, 1.0);
    let coef = s.b.div(one, e);
    let coef = s.b.binary(OpKind::Minimum, coef, one);
    for (&w, &g) in weights.iter().zip(&grads) {
        let c = s.like(coef, g);
        let clipped = s.b.mul(g, c);
        s.set_grad(w, clipped);
    }
    s.result(total);
    s.adamw();
    s.finish()
}

/// Forward and backward of softmax(q·kᵀ / sqrt(d) + mask), dropout, ·v as separate ops.
pub fn math_attention(batch: i64, heads: i64, time: i64, depth: i64) -> Graph {
    let mut s = Step::new("math_attention");
    let dims = [batch, time, heads, depth];
    let input = |s: &mut Step| {
        let x = s.input(F, &dims).1;
        let t = s.b.transpose(x, [0, 2, 1, 3]);
        s.b.reshape(t, [batch * heads, time, depth])
    };
    let (q, k, v, dout) = (input(&mut s), input(&mut s), input(&mut s), input(&mut s));
    let mask = s.input(DType::Bool, &[time, time]).1;
    let seed = s.b.parameter(TensorType::scalar(DType::I64), ParamKind::Scalar);
    let offset = s.b.parameter(TensorType::scalar(DType::I64), ParamKind::Scalar);
    let kt = s.b.transpose(k, [0, 2, 1]);
    let scores = s.b.bmm(q, kt);
    let scaled = s.scale(scores, 1.0 / (depth as f64).sqrt());
    let four = s.b.reshape(scaled, [batch, heads, time, time]);
    let minus = s.lit(four, f64::NEG_INFINITY);
    let m = s.like(mask, four);
    let masked = s.b.select(m, four, minus);
    let p = s.softmax(masked);
    // Dropout keeps a quarter less.
    let bits = s.b.rng_bits(seed, offset, &[batch, heads, time, time], 0);
    let limit = s.b.splat_i64(&TensorType::new(DType::U32, [batch, heads, time, time]), 1 << 30);
    let keep = s.b.compare(CmpDir::Ge, bits, limit);
    let keep_f = s.b.convert(keep, F);
    let keep_f = s.scale(keep_f, 4.0 / 3.0);
    let dropped = s.b.mul(p, keep_f);
    let flat = s.b.reshape(dropped, [batch * heads, time, time]);
    let out = s.b.bmm(flat, v);
    s.result(out);
    // Backward.
    let ft = s.b.transpose(flat, [0, 2, 1]);
    let dv = s.b.bmm(ft, dout);
    let vt = s.b.transpose(v, [0, 2, 1]);
    let dp = s.b.bmm(dout, vt);
    let dp = s.b.reshape(dp, [batch, heads, time, time]);
    let dp = s.b.mul(dp, keep_f);
    let ds = s.softmax_backward(dp, p);
    let zero = s.lit(ds, 0.0);
    let ds = s.b.select(m, ds, zero);
    let ds = s.scale(ds, 1.0 / (depth as f64).sqrt());
    let ds = s.b.reshape(ds, [batch * heads, time, time]);
    let dq = s.b.bmm(ds, k);
    let dst = s.b.transpose(ds, [0, 2, 1]);
    let dk = s.b.bmm(dst, q);
    for g in [dq, dk, dv] {
        let g = s.b.reshape(g, [batch, heads, time, depth]);
        let g = s.b.transpose(g, [0, 2, 1, 3]);
        s.result(g);
    }
    s.finish()
}

/// Forward of a LLaMA block's MLP with RMS norm: norm, two projections, silu gate, projection, residual; in bf16 with
/// f32 norms.
pub fn gated_mlp(rows: i64, width: i64, hidden: i64) -> Graph {
    let mut s = Step::new("gated_mlp");
    let h = DType::BF16;
    let x = s.input(h, &[rows, width]).1;
    let w = s.input(h, &[width]).1;
    let [wg, wu] = [(); 2].map(|()| s.input(h, &[hidden, width]).1);
    let wd = s.input(h, &[width, hidden]).1;
    let xf = s.b.convert(x, F);
    let sq = s.b.mul(xf, xf);
    let mean = s.mean_keep(sq, &[1]);
    let me = s.plus(mean, 1e-6);
    let r = s.b.unary(OpKind::Rsqrt, me);
    let r = s.like(r, xf);
    let n = s.b.mul(xf, r);
    let n = s.b.convert(n, h);
    let wl = s.like(w, n);
    let n = s.b.mul(n, wl);
    let g = s.linear(n, wg, None);
    let u = s.linear(n, wu, None);
    let gf = s.b.convert(g, F);
    let sig = s.b.unary(OpKind::Logistic, gf);
    let a = s.b.mul(gf, sig);
    let a = s.b.convert(a, h);
    let a = s.b.mul(a, u);
    let d = s.linear(a, wd, None);
    let y = s.b.add(x, d);
    s.result(y);
    s.finish()
}
