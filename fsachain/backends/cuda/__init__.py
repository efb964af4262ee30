"""backend, ctc, cupy_device, device, grid, launch, layout, pairs, paths, plan."""
