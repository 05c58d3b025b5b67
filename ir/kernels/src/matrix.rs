//! Matrices by strides.

/// A strided matrix operand; strides count elements.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
    pub(crate) col: usize,
}

impl<'a> Mat<'a> {
    /// A matrix stored densely with `width` elements to a row, or its transpose.
    pub(crate) fn dense(data: &'a [f32], width: usize, transposed: bool) -> Self {
        if transposed { Mat { data, row: 1, col: width } } else { Mat { data, row: width, col: 1 } }
    }

    /// The matrix without its first `rows` rows.
    pub(crate) fn below(self, rows: usize) -> Self {
        Mat { data: self.data.get(rows * self.row..).unwrap_or_default(), ..self }
    }
}
