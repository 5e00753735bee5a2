"""From noise to a sample: counter-based noise, sampler steps, the denoising loop, the step-wise engine."""
