//! Embedding tables.
use super::expr::Ex;
use super::{Lowered, Row, one};
use crate::Cx;
use rsx_compiler::ir::{DType, ScatterKind};

fn embedding(cx: &mut Cx) -> Lowered {
    let (table, index) = (cx.x(0)?, cx.x_as(1, DType::I64)?);
    one(table.gather(&[0], &[index]))
}

fn embedding_backward(cx: &mut Cx) -> Lowered {
    let index = cx.x_as(1, DType::I64)?.flatten();
    let (rows, padding) = (cx.int(2)?, cx.int(3)?);
    let dy = cx.math(0)?;
    let width = if dy.rank() == 0 { 1 } else { dy.size(dy.rank() - 1) };
    let mut dy = dy.reshape(&[index.numel(), width]);
    let d = dy.dtype();
    if padding >= 0 {
        dy = dy.lit(0.0).when(index.eq(padding as f64).unsqueeze(1), dy);
    }
    if cx.bool(4)? {
        let ones: Ex = index.int(d, 1);
        let counts = ones.full(&[rows], 0.0).scatter(ScatterKind::Add, &[0], &[index], ones);
        dy = dy / counts.gather(&[0], &[index]).unsqueeze(1);
    }
    one(dy.full(&[rows, width], 0.0).scatter(ScatterKind::Add, &[0], &[index], dy))
}

pub(super) static ROWS: &[Row] = rows![
    "embedding" "embedding.out" => embedding;
    "embedding_dense_backward" "embedding_dense_backward.out" => embedding_backward;
];
