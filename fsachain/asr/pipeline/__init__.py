"""Options chosen for the data: `fsachain.asr.pipeline.defaults`."""
