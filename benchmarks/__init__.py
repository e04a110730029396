"""What counterfoil costs beside the raw store and other libraries, as ratios within one run."""
