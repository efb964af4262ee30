"""arcs, backend, ctc, frames, grid, grid_rows, jit, layouts, log, mbr, memory, numbers, paths, rows, simd, sum_product, tables, threads."""
