//! Which form of a product runs: pure functions of the sizes, so that each border has a test on both sides.

/// How matrices are multiplied in prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixRoute {
    /// 8x8 simdgroup matrices (M1 to M4, macOS 15); weights stay f32 inside the product.
    Simdgroup,
    /// Metal 4 tensor operations (M5, macOS 26.1); weights are rounded to bf16 for the matrix unit.
    Tensor,
}

impl MatrixRoute {
    /// Both routes.
    pub const ALL: [MatrixRoute; 2] = [MatrixRoute::Simdgroup, MatrixRoute::Tensor];

    /// Value of `__METAL_VERSION__` its source needs: device-scope fences came with 3.2, tensor operations with 4.0.
    pub fn metal_version(self) -> u32 {
        match self {
            MatrixRoute::Simdgroup => 320,
            MatrixRoute::Tensor => 400,
        }
    }

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            MatrixRoute::Simdgroup => "simdgroup matrices",
            MatrixRoute::Tensor => "Metal 4 tensor operations",
        }
    }
}

/// How the projections of a prefill step run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DenseForm {
    /// The decode matvec over tiles of rows.
    Matvec,
    /// A tiled matrix product.
    Gemm,
}

/// Rows up to which a pass of matvecs reads less and computes no more than a matrix tile.
pub const MATVEC_ROWS: usize = 8;

/// The form for a prefill step of `rows` rows.
pub fn dense_form(rows: usize) -> DenseForm {
    if rows <= MATVEC_ROWS { DenseForm::Matvec } else { DenseForm::Gemm }
}

/// Rows of a tile of the grouped product: 64 where experts have enough rows to fill them, else 32.
pub fn grouped_tile_rows(rows: usize, experts_per_token: usize, experts: usize) -> usize {
    if rows * experts_per_token >= 64 * experts { 64 } else { 32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_eight_rows_runs_matvecs_and_one_of_nine_a_matrix_product() {
        assert_eq!(dense_form(MATVEC_ROWS), DenseForm::Matvec);
        assert_eq!(dense_form(MATVEC_ROWS + 1), DenseForm::Gemm);
    }

    #[test]
    fn grouped_tiles_have_64_rows_from_64_rows_an_expert_on() {
        assert_eq!(grouped_tile_rows(2047, 8, 256), 32);
        assert_eq!(grouped_tile_rows(2048, 8, 256), 64);
    }
}
